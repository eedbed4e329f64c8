// What the table of runs shows, as the page's address has it: filter, order, group, columns. Pure, so that the page's head
// asks for the first rows before the other modules are there.

/** Columns beside state and name, which are always there, where the address names none. */
export const DEFAULT_COLUMNS = ["step", "loss", "curve", "tokens", "speed", "incidents", "gpus", "goodput", "progress"];
/** Rows of one request. */
export const PAGE_ROWS = 100;
/** Columns that an order can have. */
const SORTS = 3;

/** `?q=&sort=&group=&col=&open=` -> `{q, sort, group, columns, open}`. */
export function readState(search) {
  const query = new URLSearchParams(search);
  const columns = [...new Set(query.getAll("col"))].filter((key) => key && key !== "name" && key !== "state");
  return {
    q: query.get("q") || "",
    sort: query.getAll("sort").filter(Boolean),
    group: query.get("group") || "",
    columns: columns.length ? columns : DEFAULT_COLUMNS,
    open: new Set(query.getAll("open")),
  };
}

/** The parameters of the address that say it; null takes one out. */
export function written(state) {
  const usual = state.columns.join("\n") === DEFAULT_COLUMNS.join("\n");
  return {
    q: state.q || null,
    sort: state.sort.length ? state.sort : null,
    group: state.group || null,
    col: usual ? null : state.columns,
    open: state.group && state.open.size && state.open.size <= 50 ? [...state.open] : null,
  };
}

/** A state as a saved view has it, whatever somebody else may have put there. */
export function viewState(saved) {
  const texts = (value) => (Array.isArray(value) ? value.filter((one) => typeof one === "string" && one) : []);
  const text = (value) => (typeof value === "string" ? value : "");
  const columns = texts(saved?.columns);
  return {
    q: text(saved?.q),
    sort: texts(saved?.sort),
    group: text(saved?.group),
    columns: columns.length ? columns : DEFAULT_COLUMNS,
    open: new Set(texts(saved?.open)),
  };
}

/** What a view keeps of a state. */
export const keptState = ({ q, sort, group, columns, open }) => ({ q, sort, group, columns, open: [...open] });

/** Columns whose values the server is asked for: those that not every run has. */
export const asked = (columns) => columns.filter((key) => key.includes("."));

/** The API's address of some rows; `order` goes on in an order that an answer named. */
export function tablePath({ q, sort, group, columns }, offset = 0, order = null) {
  const query = new URLSearchParams();
  if (q.trim()) query.set("q", q.trim());
  for (const one of sort) query.append("sort", one);
  if (group) query.set("group", group);
  for (const one of asked(columns)) query.append("column", one);
  query.set("offset", String(offset));
  query.set("limit", String(PAGE_ROWS));
  if (order) query.set("order", order);
  return `/run_table?${query}`;
}

/** The order after a press on a column's head: it, then turned round, then as it was before; `add`: behind the others. */
export function nextSort(sort, key, kind, add) {
  const first = ["text", "tags", "state", "age", "any"].includes(kind) ? key : `-${key}`;
  const second = first.startsWith("-") ? key : `-${key}`;
  const at = sort.findIndex((one) => one === key || one === `-${key}`);
  const rest = sort.filter((one) => one !== key && one !== `-${key}`);
  const next = at < 0 ? first : sort[at] === first ? second : null;
  if (!add) return next === null ? [] : [next];
  if (next === null) return rest;
  return at < 0 ? [...rest, next].slice(-SORTS) : sort.map((one, index) => (index === at ? next : one));
}

/** How a column is sorted: `{way: "ascending" | "descending" | "none", place}`; `place` from 1, 0 where it is not. */
export function sortedBy(sort, key) {
  const at = sort.findIndex((one) => one.replace(/^-/, "") === key);
  if (at < 0) return { way: "none", place: 0 };
  return { way: sort[at].startsWith("-") ? "descending" : "ascending", place: at + 1 };
}

/**
 * The lines of the table from its groups: heads of groups, and the rows of those that are open; without groups all rows.
 * `count`: of lines. `at(index)`: `{group}` or `{row}`, the row's place in the order. `of(row)`: its line, -1 where folded.
 */
export function lineMap(groups, open, fit) {
  if (!groups.length) return { count: fit, at: (index) => ({ row: index }), of: (row) => row };
  const all = open.has("*");
  const begins = [];
  let count = 0;
  for (const group of groups) {
    begins.push(count);
    count += 1 + (all || open.has(group.label) ? group.count : 0);
  }
  const groupAt = (index) => {
    let [low, high] = [0, groups.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (begins[middle] <= index) low = middle;
      else high = middle - 1;
    }
    return low;
  };
  return {
    count,
    at(index) {
      const which = groupAt(index);
      const group = groups[which];
      return index === begins[which] ? { group } : { row: group.first + index - begins[which] - 1 };
    },
    of(row) {
      const which = groups.findIndex((group) => row >= group.first && row < group.first + group.count);
      if (which < 0 || !(all || open.has(groups[which].label))) return -1;
      return begins[which] + 1 + row - groups[which].first;
    },
  };
}

/** The term that a caret stands in: `{begin, end, text}`. */
export function termAt(text, caret) {
  let begin = 0;
  let quoted = false;
  for (let at = 0; at < caret; at += 1) {
    if (text[at] === "\\" && quoted) at += 1;
    else if (text[at] === '"') quoted = !quoted;
    else if (!quoted && /\s/.test(text[at])) begin = at + 1;
  }
  let end = caret;
  while (end < text.length && (quoted || !/\s/.test(text[end]))) {
    if (text[end] === '"') quoted = !quoted;
    end += 1;
  }
  return { begin, end, text: text.slice(begin, end) };
}

/** A value or key as the filter's language has it: in quotes where it needs them. */
export const quoted = (value) =>
  /^[^\s",:=<>!*-][^\s",:=<>!*]*$/.test(value) ? value : `"${value.replace(/[\\"]/g, "\\$&")}"`;

/** A filter with a term put in, or taken out where it is there already. */
export function toggled(q, term) {
  const terms = q.split(/\s+/).filter(Boolean);
  return (terms.includes(term) ? terms.filter((one) => one !== term) : [...terms, term]).join(" ");
}
