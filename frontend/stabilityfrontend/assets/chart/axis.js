// x axes: steps, wall time, a metric, time or steps since something. Zoom and lists speak of steps; the large chart's axis
// says where they are drawn.

import { duration, formatCount, formatValue, plural } from "../core/format.js";
import { lowerBound } from "./downsample.js";
import { clockTicks, durationTicks, valueTicks } from "./ticks.js";
import { atStep } from "./traces.js";

/** @typedef {import("./line_chart.js").XAxis} XAxis */

/** @type {XAxis} */
export const STEP_AXIS = {
  ticks: (range, count) => valueTicks(range, count, true).filter((one) => one.value >= 0),
  words: (x) => `step ${formatCount(x)}`,
};

/** @type {XAxis} */
export const DURATION_AXIS = { ticks: durationTicks, words: duration };

/** @type {XAxis} */
export const FORK_AXIS = {
  ticks: (range, count) => valueTicks(range, count, true),
  words: (x) => `${x < 0 ? "−" : "+"}${plural(Math.abs(Math.round(x)), "step")} from the fork`,
};

/** Of `clockMs`. @type {XAxis} */
export const CLOCK_AXIS = {
  ticks: clockTicks,
  words: (x) => {
    const date = new Date(x);
    const day = date.toLocaleDateString("en-US", { month: "short", day: "numeric", timeZone: "UTC" });
    return `${day}, ${date.toISOString().slice(11, 19)}`;
  },
};

/** Of any metric. @returns {XAxis} */
const metricAxis = (name) => ({ ticks: valueTicks, words: (x) => `${name} ${formatValue(x, 5)}` });

/** The least and the greatest x of lines inside a window of steps. */
function extent(lines, window) {
  let low = Infinity;
  let high = -Infinity;
  for (const piece of lines) {
    const from = window ? Math.max(piece.from, lowerBound(piece.steps, window[0])) : piece.from;
    const to = window ? Math.min(piece.to, lowerBound(piece.steps, window[1] + 1)) : piece.to;
    for (let index = from; index < to; index += 1) {
      const x = (piece.xs || piece.steps)[index];
      if (x === null || !Number.isFinite(x)) continue;
      if (x < low) low = x;
      if (x > high) high = x;
    }
  }
  return low <= high ? [low, high] : [0, 1];
}

/**
 * The axis of a chart: how it is drawn (`axis`), `range(row, window)`, and where a step of a segment and a fork are on it:
 * `place(step, segment)`, `forkAt(fork)`; null where that is not known. `lines`: the server's on that axis (Derived), null
 * while they are not here; `metric`: the one by which steps are placed.
 */
export function axisOf(
  page,
  x = page.settings.x,
  lines = page.derived.ready() ? page.derived : null,
  metric = page.metric(),
) {
  if (x === "step" || !lines)
    return {
      axis: STEP_AXIS,
      clock: false,
      place: atStep,
      forkAt: (fork) => fork.step,
      range: () => page.look.stepRange(),
    };
  return {
    axis: x === "time" ? CLOCK_AXIS : metricAxis(x),
    clock: x === "time",
    place: (step, segment) => lines.place(metric, step, segment),
    forkAt: (fork) => lines.begins(metric, fork.segment),
    range(row, window) {
      const pieces = row.effective.flatMap((line) => line.pieces);
      const [low, high] = extent(window ? pieces : [...pieces, ...row.discarded], window);
      const span = high - low || Math.abs(high) * 0.1 || 1;
      return [low - 0.01 * span, high + 0.03 * span];
    },
  };
}
