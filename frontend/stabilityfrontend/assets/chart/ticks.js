// Where an axis has its ticks and what they are called.

import { formatCount, formatValue } from "../core/format.js";

/** The round step (1, 2 or 5 times a power of ten) that gives about `count` ticks over `span`. */
function roundStep(span, count) {
  const rough = span / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const share = rough / power;
  return (share > 7 ? 10 : share > 3.5 ? 5 : share > 1.5 ? 2 : 1) * power;
}

/** A tick's words. `step` is the distance of ticks, `top` the greatest size on the axis: all ticks of one are alike. */
function tickWords(value, step, top) {
  if (value === 0) return "0";
  if (top < 1e-3) {
    const digits = Math.floor(Math.log10(Math.abs(value)) + 1e-9) - Math.floor(Math.log10(step) + 1e-9);
    return value.toExponential(Math.max(0, Math.min(4, digits))).replaceAll("-", "−");
  }
  const [unit, letter] =
    top >= 1e12 ? [1e12, "T"] : top >= 1e9 ? [1e9, "G"] : top >= 1e6 ? [1e6, "M"] : top >= 1e4 ? [1e3, "k"] : [1, ""];
  const digits = Math.min(6, Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9)));
  return `${(value / unit).toFixed(digits).replace("-", "−")}${letter}`;
}

/** Ticks of a linear axis: `[{value, words}]`. */
export function valueTicks(range, count, whole) {
  const [low, high] = range;
  let step = roundStep(high - low || 1, count);
  // One number on an axis says nothing of its scale.
  if (Math.floor(high / step) <= Math.ceil(low / step)) step = roundStep(high - low || 1, 2 * count);
  if (whole) step = Math.max(1, step);
  const top = Math.max(Math.abs(low), Math.abs(high));
  const ticks = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + 1e-9 * step && ticks.length < 50; index += 1) {
    const value = index * step;
    ticks.push({ value, words: whole ? formatCount(value) : tickWords(value, step, top) });
  }
  return ticks;
}

/** Distances of ticks on a clock, seconds; beyond them whole days. */
const CLOCK = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
const clockStep = (span, count) =>
  CLOCK.find((step) => span / step <= count) || 86400 * Math.ceil(span / count / 86400);

/** Milliseconds that a clock here shows, as if it stood in UTC: an axis knows no time zones. */
export const clockMs = (seconds) => 1000 * seconds - 60000 * new Date(1000 * seconds).getTimezoneOffset();

/** Ticks of an axis of `clockMs`: the hour, and the day where one begins. */
export function clockTicks(range, count) {
  const step = 1000 * clockStep((range[1] - range[0]) / 1000 || 1, count);
  const ticks = [];
  for (let value = Math.ceil(range[0] / step) * step; value <= range[1] && ticks.length < 50; value += step) {
    const date = new Date(value);
    const day = date.toLocaleDateString("en-US", { month: "short", day: "numeric", timeZone: "UTC" });
    const time = date.toISOString().slice(11, step < 60000 ? 19 : 16);
    ticks.push({ value, words: value % 86400000 === 0 ? day : time });
  }
  return ticks;
}

/** Ticks of an axis of seconds since something: `90 s`, `15 min`, `2 h`, `3 d`. */
export function durationTicks(range, count) {
  const step = clockStep(range[1] - range[0] || 1, count);
  const top = Math.max(Math.abs(range[0]), Math.abs(range[1]));
  const [unit, letters] =
    top >= 2 * 86400 ? [86400, " d"] : top >= 7200 ? [3600, " h"] : top >= 180 ? [60, " min"] : [1, " s"];
  const ticks = [];
  for (let value = Math.ceil(range[0] / step) * step; value <= range[1] && ticks.length < 50; value += step) {
    ticks.push({
      value,
      words: value === 0 ? "0" : `${Number((value / unit).toFixed(2))}${letters}`.replace("-", "−"),
    });
  }
  return ticks;
}

/** Ticks of a logarithmic axis; `range` holds exponents of ten. */
export function logTicks(range) {
  const [low, high] = range;
  const parts = high - low > 2.5 ? [1] : high - low > 0.9 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 7];
  const ticks = [];
  const every = Math.max(1, Math.ceil((high - low) / 6));
  for (let power = Math.floor(low); power <= high; power += every) {
    for (const part of parts) {
      const value = part * 10 ** power;
      const place = Math.log10(value);
      if (place >= low && place <= high) ticks.push({ value, words: formatValue(value) });
    }
  }
  return ticks;
}
