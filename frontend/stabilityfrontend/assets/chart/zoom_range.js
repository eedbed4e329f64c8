// Ranges of x axes: zooming and panning them, and which steps a range of another axis means.

import { lowerBound } from "./downsample.js";

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
