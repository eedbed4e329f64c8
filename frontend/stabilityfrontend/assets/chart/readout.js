// What a chart says at a place on its x axis: values of its lines, what is no number there, forks and incidents near.

import { cutName, h } from "../core/dom.js";
import { formatCount, formatValue } from "../core/format.js";
import { incidentKind, severityOf } from "../core/kinds.js";
import { lowerBound } from "./downsample.js";
import { bandEnd, beginOf, hasBand } from "./traces.js";

// -- Ranges of x axes: zooming and panning them, and which steps a range of another axis means.

/** Air around all of the data, shares of its span: as where nothing is zoomed (view_state.js). */
const [BEFORE, AFTER] = [0.01, 0.03];

/** A range made `factor` times as wide around a place that stays where it is. @param {number[]} range */
export const scaled = ([low, high], at, factor) => [at - (at - low) * factor, at + (high - at) * factor];

/** @param {number[]} range */
export const moved = ([low, high], by) => [low + by, high + by];

/**
 * A wanted range of steps within what there is: at least one step wide, moved back where it left the data; null where it
 * is all of it.
 * @param {number[]} range
 * @param {number[] | null} extent
 */
export function fitted([from, to], extent) {
  if (!extent) return to - from >= 1 ? [from, to] : [(from + to - 1) / 2, (from + to + 1) / 2];
  const span = Math.max(10, extent[1] - extent[0]);
  const [low, high] = [extent[0] - BEFORE * span, extent[0] + span * (1 + AFTER)];
  const wide = Math.max(1, to - from);
  if (wide >= high - low) return null;
  const start = Math.min(high - wide, Math.max(low, to - from < 1 ? (from + to) / 2 - 0.5 : from));
  return [start, start + wide];
}

/** Whether the x of a line never falls. */
export const isRising = (x) => x.every((one, index) => index === 0 || one >= x[index - 1]);

/**
 * The steps of a range of another x axis, by a line that has both; null where x falls somewhere. Beyond what is drawn the
 * line goes on as it went on average.
 * @param {number[]} range
 * @param {{x: number[], steps: number[]}} line
 */
export function stepsOf([from, to], { x, steps }) {
  if (!isRising(x) || x.length < 2) return null;
  const last = x.length - 1;
  const pace = (steps[last] - steps[0]) / (x[last] - x[0] || 1);
  const first = Math.min(last, lowerBound(x, from));
  const end = Math.max(first, lowerBound(x, to) - 1);
  return [
    from < x[0] ? steps[0] - (x[0] - from) * pace : steps[first],
    to > x[last] ? steps[last] + (to - x[last]) * pace : steps[end],
  ];
}

/** The index of the first number of a rising list that is not below one; the last at most. */
export const indexAt = (list, value) => Math.min(list.length - 1, lowerBound(list, value));

/** @typedef {import("../chart/line_chart.js").Line} Line */

/** A mark is under the pointer when this near, and a line that is `near` when it has a point so near: pixels. */
const [MARK_PX, NEAR_PX] = [7, 20];
/** Marks and notes of one place that are read out, and lines in a chip. */
const [MARKS, NOTES, CHIP_LINES] = [3, 3, 4];

/** Characters of an annotation. */
const NOTE = 80;

/** Of the point nearest to an x; of two at one place the one that has a value. @param {Line} line @param {number} at */
export function nearestIndex({ x, y }, at) {
  let best = -1;
  let distance = Infinity;
  for (let index = 0; index < x.length; index += 1) {
    const far = Math.abs(x[index] - at);
    if (far < distance || (far === distance && y[best] === null)) [best, distance] = [index, far];
  }
  return best;
}

/** The point of a line that is nearest to an x; its value is NaN where there is none. @param {Line} line @param {number} at */
export function nearestPoint(line, at) {
  const index = nearestIndex(line, at);
  if (index < 0) return null;
  const value = line.y[index];
  const point = { step: line.x[index], value: value === null ? NaN : value };
  const low = line.band?.low[index];
  const high = line.band?.high[index];
  return typeof low === "number" && typeof high === "number" && low < high ? { ...point, low, high } : point;
}

/** The points to read out at an x, and the x of the nearest one. @param {import("../chart/line_chart.js").Plot} plot @param {number} at */
export function found(plot, at) {
  const all = plot.rows
    .flatMap((row) => row.lines)
    .filter((line) => line.hover !== false && line.x.length)
    .map((line) => ({ line, point: nearestPoint(line, at) }));
  let exact = /** @type {number | null} */ (null);
  for (const { line, point } of all)
    if (point && !line.near && (exact === null || Math.abs(point.step - at) < Math.abs(exact - at))) exact = point.step;
  const x = exact === null ? at : exact;
  const near = (/** @type {number} */ one, /** @type {number} */ pixels) =>
    Math.abs(plot.toX(one) - plot.toX(x)) <= pixels;
  return {
    x,
    points: all.flatMap(({ line, point }) =>
      point && (!line.near || near(point.step, NEAR_PX)) ? { line, point } : [],
    ),
    marks: [...plot.rows.flatMap((row) => row.marks), ...(plot.spec?.rules || [])]
      .filter((one) => one.words && (near(one.x, MARK_PX) || ("to" in one && one.x <= x && x <= (one.to ?? one.x))))
      .slice(0, MARKS),
    notes: (plot.spec?.notes?.() || [])
      .filter((note) => (x >= note.x && x <= note.to) || near(note.x, MARK_PX) || near(note.to, MARK_PX))
      .slice(0, NOTES),
  };
}

const key = (color, ...parts) => h("div.key", h("i", { style: { background: color } }), ...parts);

/** A value, and what is around it where it is a mean. */
const valueWords = ({ value, low, high }) =>
  low === undefined
    ? formatValue(value, 5)
    : `${formatValue(value, 4)} (${formatValue(low, 3)} to ${formatValue(high, 3)})`;

/** What stands beside the pointer. */
export function tipParts(spec, { x, points, marks, notes }) {
  return [
    h("b", spec.axis.words(x)),
    ...points.map(({ line, point }) =>
      key(
        line.color,
        h("span.tip-name", line.near ? `${line.name} at ${spec.axis.words(point.step)}` : line.name),
        h("b", valueWords(point)),
      ),
    ),
    ...marks.map((mark) => key(mark.color, h("span", { class: "to" in mark ? "noted" : "" }, mark.words))),
    ...notes.map((note) => key(note.color, h("span.tip-note", note.words))),
  ];
}

/** The same in short, for the charts in which the pointer is not. */
export function chipParts({ points, marks }) {
  const own = points.filter(({ line }) => !line.near && line.name !== "raw");
  return [
    ...own
      .slice(0, CHIP_LINES)
      .map(({ line, point }) =>
        key(line.color, own.length > 1 ? cutName(line.name) : null, h("b", formatValue(point.value, 5))),
      ),
    own.length > CHIP_LINES ? h("div.sub", `+ ${own.length - CHIP_LINES}`) : null,
    ...marks.slice(0, 1).map((mark) => key(mark.color, mark.words)),
  ];
}

/**
 * Forks, incidents and annotations as notes of a chart, in this order: `{x, to, words, color}`. `view` and `axis` as for `shapes`.
 */
export function notesOf(view, colors, axis) {
  const { place, forkAt } = axis;
  const notes = [];
  for (const fork of view.forks) {
    const x = forkAt(fork);
    const reason = fork.segment.reason ? `: ${fork.segment.reason}` : "";
    if (x !== null)
      notes.push({
        x,
        to: x,
        words: `${fork.label}, ${fork.segment.cause === "restart" ? "restarted" : "rolled back"} here${reason}`,
        color: colors.accent,
      });
  }
  for (const incident of view.incidents) {
    if (!hasBand(incident)) continue;
    const x = beginOf(incident, axis, view.lastStep);
    const to = place(bandEnd(incident, view.segments, view.lastStep), incident.segment);
    if (x === null || to === null) continue;
    const since = formatCount(incident.onset_step);
    notes.push({
      x,
      to,
      words: `${incidentKind(incident.kind).short} since step ${since}${incident.state === "open" ? ", open" : ""}`,
      color: colors[severityOf(incident)],
    });
  }
  for (const { first_step: first, last_step: last, segment, text, author } of view.notes || []) {
    const [x, to] = [place(first, segment), place(last, segment)];
    if (x === null || to === null) continue;
    const words = text.length > NOTE ? `${text.slice(0, NOTE - 1)}…` : text;
    notes.push({ x, to, words: `${words} (${author})`, color: colors.accent });
  }
  return notes;
}
