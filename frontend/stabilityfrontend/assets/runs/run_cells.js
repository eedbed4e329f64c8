// The columns of the table of runs: their heads, and what stands in a cell.

import { h } from "../core/dom.js";
import {
  ago,
  formatAge,
  formatCount,
  formatShare,
  formatValue,
  moment,
  narrow,
  plural,
  steady,
  toNumber,
} from "../core/format.js";
import { notBackWords, phaseAppearance, stateOf, statePill, statusFacts, tonedClass } from "../core/kinds.js";
import { asked } from "./table_state.js";

// -- The curve of a whole run in a cell: a band from the least to the greatest value of each stretch of its steps.

const SVG = "http://www.w3.org/2000/svg";
/** Height of the greatest value in what the server sends. */
const TOP = 100;

/** `curve`: of the server's row. The colours are in the style sheet. */
function runCurve(curve, width = 132, height = 26) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", "run-curve");
  const count = curve.low.length;
  const x = (index) => (count > 1 ? (index / (count - 1)) * width : width / 2).toFixed(1);
  const y = (value) => (height - 2 - (value / TOP) * (height - 4)).toFixed(1);
  const band = [];
  const line = [];
  const close = (begin, end) => {
    const up = [];
    const down = [];
    for (let at = begin; at < end; at += 1) {
      up.push(`${x(at)},${y(curve.high[at])}`);
      down.unshift(`${x(at)},${y(curve.low[at])}`);
    }
    if (up.length > 1) band.push(`M${up.join("L")}L${down.join("L")}Z`);
    const middle = up.map(
      (_, index) => `${x(begin + index)},${y((curve.high[begin + index] + curve.low[begin + index]) / 2)}`,
    );
    if (middle.length) line.push(`M${middle.join("L")}${middle.length === 1 ? "h1" : ""}`);
  };
  let begin = -1;
  for (let at = 0; at <= count; at += 1) {
    const there = at < count && curve.low[at] !== null && curve.high[at] !== null;
    if (there && begin < 0) begin = at;
    if (!there && begin >= 0) {
      close(begin, at);
      begin = -1;
    }
  }
  for (const [name, parts] of [
    ["band", band],
    ["line", line],
    ["odd", (curve.odd || []).map((at) => `M${x(at)},${height - 5}v5`)],
  ]) {
    if (!parts.length) continue;
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", String(name));
    path.setAttribute("d", parts.join(""));
    svg.append(path);
  }
  return svg;
}

/** A large count in four signs or so: `12.3 k`, `1.25 T`. */
export function short(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return formatValue(value);
  const size = Math.abs(value);
  for (const [unit, letter] of /** @type {[number, string][]} */ ([
    [1e12, "T"],
    [1e9, "B"],
    [1e6, "M"],
    [1e3, "k"],
  ]))
    if (size >= unit) return `${Number((value / unit).toPrecision(3))} ${letter}`;
  return String(Number(value.toPrecision(3)));
}

/** An empty cell: the reason is under the pointer. */
const empty = (why) => h("span.none", { title: why, "aria-label": why }, "–");

/** What is to be known of a run first: its worst open incident, and below it since when and what it does; else its phase. */
function stateCell(row, now) {
  const state = stateOf(row);
  const age = now - (state.since ?? now);
  const since = !state.since ? "" : age < 2 ? "just now" : `for ${formatAge(age)}`;
  const phase = state.incident_id ? phaseAppearance(row).word : "";
  const notBack = notBackWords(state);
  // A row has room for two lines.
  const words = notBack ? "" : [since, phase].filter(Boolean).join(" · ");
  return [
    statePill(row),
    words ? h("div.sub", { title: state.since ? moment(state.since) : "" }, words) : null,
    notBack ? h("div.sub.not-back", { title: notBack }, notBack) : null,
  ];
}

function nameCell(row) {
  const name = row.name || row.run_id;
  return [
    h("a.run-link", { href: `/runs/${encodeURIComponent(row.run_id)}`, title: name, dir: "auto" }, name),
    h(
      "div.sub",
      h("bdi", row.project || "no project"),
      (row.tags || []).slice(0, 3).map((tag) => h("span.chip.tag", { title: tag }, h("bdi", tag))),
    ),
  ];
}

/** Words of a condition of runs after its count in `conditions`: `1 needs attention`, `2 crashed`. */
export const conditionWord = (name, { conditions }) =>
  name === "sick" ? `need${conditions.sick === 1 ? "s" : ""} attention` : name;

/** The suggested rollback, or the undo of one: opens the run with the dialog, which asks. */
function wayOut(row) {
  if (statusFacts(row.status).over) return null;
  const [what, words, title] =
    row.worst_incident?.advice === "roll_back"
      ? ["rollback", "Roll back …", "Suggested: opens the run with the prepared rollback, and asks"]
      : row.undo === null || row.undo === undefined
        ? []
        : ["undo", "Undo rollback …", "The rollback of the last day: opens the run with the way back, and asks"];
  if (!what) return null;
  const href = `/runs/${encodeURIComponent(row.run_id)}?do=${what}`;
  return h("div", h("a.way-out", { href, title, data: { do: what, needs: "command" } }, words));
}

const number = (value, why) => (value === null || value === undefined ? empty(why) : value);

/** Built-in columns: `label`, `kind` as the server has it, `width` px, `cell(row, now)`. */
const BUILT_IN = {
  state: { label: "State", kind: "state", width: 168, cell: stateCell },
  name: { label: "Run", kind: "text", width: 150, cell: nameCell },
  step: {
    label: "Step",
    kind: "count",
    width: 84,
    cell: (row) => number(row.step === null ? null : formatCount(row.step), "no step yet"),
  },
  loss: {
    label: "Loss",
    kind: "number",
    width: 84,
    cell: (row) =>
      row.loss === null
        ? empty(row.loss_metric === null ? "no metric is watched as the loss" : `no value of ${row.loss_metric} yet`)
        : h("span.strong", { title: row.loss_metric }, narrow(toNumber(row.loss))),
  },
  curve: {
    label: "Whole run",
    kind: "curve",
    width: 130,
    cell: (row) =>
      row.curve === null
        ? empty(row.curve_why)
        : h(
            "div",
            {
              class: row.loss_metric === null ? "curve-of-run named" : "curve-of-run",
              title: `${row.curve.metric}, steps ${formatCount(row.curve.first)} to ${formatCount(row.curve.last)}, ${steady(row.curve.least)} to ${steady(row.curve.most)}`,
            },
            runCurve(row.curve),
            row.loss_metric === null ? h("div.sub.spark-name", row.curve.metric) : null,
          ),
  },
  tokens: {
    label: "Tokens",
    kind: "count",
    width: 74,
    cell: (row) => number(row.tokens === null ? null : short(row.tokens), row.tokens_why),
  },
  speed: {
    label: "Speed",
    kind: "number",
    width: 94,
    cell: (row) =>
      row.speed === null ? empty("no step time is known yet") : [short(row.speed), h("div.sub", row.speed_unit)],
  },
  incidents: {
    label: "Incidents",
    kind: "count",
    width: 100,
    cell: (row) => [
      row.open_incidents
        ? h("span", { class: tonedClass("chip", stateOf(row)) }, `${formatCount(row.open_incidents)} open`)
        : h("span.sub", "none"),
      wayOut(row),
    ],
  },
  gpus: {
    label: "GPUs",
    kind: "count",
    width: 64,
    cell: (row) =>
      number(row.gpus === null ? null : formatCount(row.gpus), `no agent sees a GPU; ${plural(row.ranks, "rank")}`),
  },
  goodput: {
    label: "Goodput",
    kind: "share",
    width: 80,
    cell: (row) => number(row.goodput === null ? null : formatShare(row.goodput), row.goodput_why),
  },
  progress: {
    label: "Last progress",
    kind: "age",
    width: 98,
    cell: (row, now) =>
      age(row.progress, now, row.step === null ? "its ranks logged nothing yet" : "its log has no times"),
  },
  since: {
    label: "Since",
    kind: "age",
    width: 96,
    cell: (row, now) => age(row.state.since, now, "start unknown"),
  },
  ranks: { label: "Ranks", kind: "count", width: 68, cell: (row) => formatCount(row.ranks) },
  rollbacks: { label: "Rollbacks", kind: "count", width: 88, cell: (row) => formatCount(row.rollbacks) },
  age: { label: "Age", kind: "age", width: 84, cell: (row, now) => age(row.created, now, "not known") },
  updated: { label: "Last report", kind: "age", width: 96, cell: (row, now) => age(row.updated, now, "nothing yet") },
  id: {
    label: "Run id",
    kind: "text",
    width: 160,
    cell: (row) => h("span.cut", { title: row.run_id }, row.run_id),
  },
  project: {
    label: "Project",
    kind: "text",
    width: 120,
    cell: (row) => h("bdi.cut", { title: row.project }, row.project || "–"),
  },
  status: { label: "Status", kind: "text", width: 100, cell: (row) => row.status },
  tag: {
    label: "Tags",
    kind: "tags",
    width: 140,
    cell: (row) => (row.tags || []).map((tag) => h("span.chip.tag", h("bdi", tag))),
  },
};

function age(time, now, why) {
  if (time === null || time === undefined || !(time > 0)) return empty(why);
  // A clock that is ahead of ours makes nothing younger than now.
  return h("span.sub", { title: moment(time) }, ago(Math.max(0, now - time)));
}

/** What a column is; `facts`: what the server said of it, where it did. */
export function column(key, facts) {
  if (Object.hasOwn(BUILT_IN, key)) return { key, ...BUILT_IN[key] };
  const label = key.replace(/^(?:config|metric)\./, "");
  const kind = facts?.kind || (key.startsWith("metric.") ? "number" : "any");
  return {
    key,
    label,
    kind,
    width: 120,
    gone: Boolean(facts?.gone),
    title: facts?.gone ? `No run has ${label} any more` : `${label}: ${facts?.what || ""}`,
    cell: (row, _now, columns) => {
      const value = row.cells[asked(columns).indexOf(key)];
      if (value === null || value === undefined) return empty(`this run has no ${label}`);
      if (typeof value === "boolean") return value ? "true" : "false";
      if (typeof value === "number") return formatValue(value);
      const words = toNumber(value);
      if (kind === "number" && words !== null) return formatValue(words);
      return h("bdi.cut", { title: value }, value);
    },
  };
}

/** Whether its values stand at the right. */
export const isNumeric = (kind) => ["count", "number", "share", "age"].includes(kind);

/** What makes a row another one than it was drawn: ages in words. */
export const ages = (row, now) =>
  `${formatAge(now - row.progress)} ${formatAge(now - row.created)} ${formatAge(now - row.state.since)}`;
