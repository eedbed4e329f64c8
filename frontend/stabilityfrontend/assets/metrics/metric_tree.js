// Which metrics are listed where: sections by prefix, what a search lets through, the order that people gave them. Pure.

/** What the name of a series begins with that the server computes from others. */
export const EXPRESSION = "expr:";
/** Sections: more prefixes than that, and the smallest go without one. */
const SECTIONS = 120;
/** Tiles that are made and let go together; a multiple of every number of columns, so that rows are whole. */
export const CHUNK = 12;
/** The title of what has no prefix, or shares it with nobody. */
export const OTHER = "";

/** The section of a name: what stands before its first slash, with the slash. */
export function prefixOf(name) {
  const at = name.indexOf("/");
  return at > 0 && at < name.length - 1 ? name.slice(0, at + 1) : OTHER;
}

const collator = new Intl.Collator("en", { numeric: true });

/** Names by section, `[prefix, names]` each: those without a prefix first, GPUs last, names as people count. */
export function sectionsOf(names) {
  const rest = /** @type {string[]} */ ([]);
  const groups = new Map([[OTHER, rest]]);
  for (const name of names) {
    const prefix = prefixOf(name);
    const there = groups.get(prefix) || [];
    there.push(name);
    groups.set(prefix, there);
  }
  const alone = [...groups].filter(([prefix, there]) => prefix !== OTHER && there.length < 2);
  const kept = [...groups].filter(([prefix, there]) => prefix !== OTHER && there.length > 1);
  kept.sort((a, b) => b[1].length - a[1].length);
  for (const [, there] of [...alone, ...kept.slice(SECTIONS)]) rest.push(...there);
  const found = kept.slice(0, SECTIONS);
  const last = (prefix) => Number(prefix === "gpu/" || prefix === "node/");
  found.sort((a, b) => last(a[0]) - last(b[0]) || collator.compare(a[0], b[0]));
  if (rest.length) found.unshift([OTHER, rest]);
  for (const [, there] of found) there.sort(collator.compare);
  return found;
}

/** Names in the order that people gave them: those that they moved stand where they put them, the others behind. */
export function inOrder(names, order) {
  if (!order || !order.length) return names;
  const there = new Set(names);
  const moved = order.filter((name) => there.has(name));
  const set = new Set(moved);
  return [...moved, ...names.filter((name) => !set.has(name))];
}

/** The order after `name` went to the place of `other`, or by so many places. */
export function movedTo(names, name, to) {
  const from = names.indexOf(name);
  const place = typeof to === "number" ? from + to : names.indexOf(to);
  if (from < 0 || place < 0 || place >= names.length || place === from) return names;
  const left = names.filter((one) => one !== name);
  left.splice(place, 0, name);
  return left;
}

/**
 * @typedef {{kind: "all" | "words" | "regex" | "expression", text: string, fits: (name: string) => boolean, error: string}} Search
 *
 * What was typed into the search. With an `error` nothing of it holds. Words all have to be in a name; between slashes is a regular
 * expression; behind `=` an expression of metrics (`text`), which is no search.
 * @returns {Search}
 */
export function searchOf(typed) {
  const text = typed.trim();
  if (text.startsWith("=")) return { kind: "expression", text: text.slice(1).trim(), fits: () => true, error: "" };
  const regex = /^\/(.*?)(?:\/([a-z]*))?$/s.exec(text);
  if (regex && regex[1]) {
    try {
      const pattern = new RegExp(regex[1], (regex[2] || "").replace(/[gy]/g, ""));
      return { kind: "regex", text, fits: (name) => pattern.test(name), error: "" };
    } catch (error) {
      return {
        kind: "regex",
        text,
        fits: () => false,
        error: `Not a regular expression: ${/** @type {Error} */ (error).message}`,
      };
    }
  }
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return {
    kind: words.length ? "words" : "all",
    text,
    fits: (name) => {
      const lower = name.toLowerCase();
      return words.every((word) => lower.includes(word));
    },
    error: "",
  };
}

/** Names in groups of `CHUNK`. */
export function chunksOf(names) {
  const found = [];
  for (let at = 0; at < names.length; at += CHUNK) found.push(names.slice(at, at + CHUNK));
  return found;
}

/** What a chart of a name or expression is called. */
export const titleOf = (name) => (name.startsWith(EXPRESSION) ? name.slice(EXPRESSION.length) : name);
