// What a chart shows as a table of every logged row, for a file.

import { toNumber } from "../core/format.js";

/** Rows of one file: what people still open. Longer stretches are what an export is for. */
export const MAX_ROWS = 1_000_000;
/** Rows that are put together at a time. */
const CHUNK = 20_000;

/** A cell: quoted where it must be; what a spreadsheet would take for a formula is text. */
export function cell(words) {
  const text = /^[=+\-@\t\r]/.test(words) ? `'${words}` : words;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

const numberWords = (value) => (value === null || value === undefined ? "" : String(toNumber(value) ?? ""));
const timeWords = (seconds) => (Number.isFinite(seconds) ? new Date(1000 * seconds).toISOString() : "");
const stateOf = ({ stray, dead }) => (stray ? "stray" : dead ? "discarded" : "effective");

/** The column of an entry: its metric, with rank or node where the metric has several. */
function columnOf(series) {
  const who = new Map();
  for (const { metric, rank, node } of series) {
    if (!who.has(metric)) who.set(metric, new Set());
    who.get(metric).add(rank ?? `node ${node}`);
  }
  return ({ metric, rank, node }) =>
    who.get(metric).size < 2 ? metric : `${metric} ${rank === null ? `node ${node}` : `rank ${rank}`}`;
}

/**
 * The rows of an answer of /series with `x=time`, as parts of a CSV text: step, time (UTC), segment, whether it counts, and
 * a column for each metric and rank. By segment, then by step; a cell is empty where nothing was logged.
 * @returns {{parts: string[], rows: number, columns: number}}
 */
export function csvOf(series) {
  const nameOf = columnOf(series);
  const columns = [...new Set(series.map(nameOf))];
  const place = new Map(columns.map((name, index) => [name, index]));
  const groups = new Map();
  for (const entry of series) {
    const key = `${entry.segment} ${stateOf(entry)} ${entry.source || ""}`;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(entry);
  }
  const parts = [`${["step", "time", "segment", "state", ...columns].map(cell).join(",")}\n`];
  let lines = /** @type {string[]} */ ([]);
  let rows = 0;
  for (const group of groups.values()) {
    const [{ segment }] = group;
    const state = stateOf(group[0]);
    const steps = [...new Set(group.flatMap((entry) => entry.steps))].sort((a, b) => a - b);
    const at = group.map(() => 0);
    for (const step of steps) {
      const cells = columns.map(() => "");
      let time = NaN;
      group.forEach((entry, index) => {
        if (entry.steps[at[index]] !== step) return;
        cells[/** @type {number} */ (place.get(nameOf(entry)))] = numberWords(entry.values[at[index]]);
        if (entry.xs && !Number.isFinite(time)) time = entry.xs[at[index]];
        at[index] += 1;
      });
      lines.push(`${step},${timeWords(time)},${segment},${state},${cells.join(",")}\n`);
      rows += 1;
      if (lines.length >= CHUNK) {
        parts.push(lines.join(""));
        lines = [];
      }
    }
  }
  parts.push(lines.join(""));
  return { parts, rows, columns: columns.length };
}
