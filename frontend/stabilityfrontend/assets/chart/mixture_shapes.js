// The declared mixture as what a chart draws: for each data set the declared share as steps, the band of chance around
// it, and the realised share.

import { toNumber } from "../core/format.js";

/** The panel of the data's mixture: with curves of a declared one it is shown whatever the run's metrics are called. */
export const MIXTURE = "ratio";
/** Looks of the declared line, of discarded steps, and of the bands: of many sets only one that is off stands out. */
const [DASH, GHOST, BAND, FAINT] = [[4, 3], [5, 3], 0.16, 0.05];
/** So many bands can still be told apart where they overlap. */
const FEW = 3;

/** The data sets that are drawn, as indices: those that are off, then the largest; in the order in which they come. */
function chosen(sets, limit, off) {
  const size = ({ declared, realised }) => Math.max(lastOf(declared), lastOf(realised));
  return sets
    .map((set, index) => ({ index, off: off.includes(set.dataset), size: size(set) }))
    .sort((a, b) => Number(b.off) - Number(a.off) || b.size - a.size)
    .slice(0, limit)
    .map(({ index }) => index)
    .sort((a, b) => a - b);
}

/** The newest finite value of a list, 0 for none. */
function lastOf(values) {
  return values.findLast((value) => typeof value === "number") ?? 0;
}

/** A share of the answer as a number; null for none and for what is no number. */
function shareOf(given) {
  const share = given === null ? null : toNumber(given);
  return share !== null && Number.isFinite(share) ? share : null;
}

/** What a discarded branch took of a data set as a line, as other charts draw discarded steps. */
function ghost({ first, last, realised }, dataset, colors, values) {
  const y = realised[dataset].map(shareOf);
  values.push(...y);
  const x = first.map((step, at) => (step + last[at]) / 2);
  return { x, y, color: colors.ghost, width: 1.1, dash: GHOST, opacity: 0.85, hover: false };
}

/**
 * Curves as what a chart draws: `{lines, areas, marks, range}`; null of curves without a bucket.
 * `colors` of the theme; at most `limit` data sets; `ghosts`: with what discarded branches took; `off`: names of the
 * data sets about which an incident is open.
 * @param {import("../../../types/api").MixtureCurves | null} curves
 * @param {any} colors
 * @param {{limit: number, ghosts: boolean, off: string[]}} how
 */
export function mixtureShapes(curves, colors, { limit, ghosts, off }) {
  if (!curves || !curves.first.length) return null;
  const { first, last } = curves;
  /** @type {any[]} */
  const lines = [];
  /** @type {any[]} */
  const areas = [];
  /** @type {any[]} */
  const marks = [];
  /** @type {any[]} */
  const values = [];
  const shown = chosen(curves.sets, limit, off);
  for (const one of ghosts ? curves.discarded : [])
    for (const index of shown) lines.push(ghost(one, curves.sets[index].dataset, colors, values));
  for (const index of shown) {
    const set = curves.sets[index];
    const color = colors.series[index % colors.series.length];
    /** @type {{x: number[], y: (number | null)[]}} */
    const declared = { x: [], y: [] };
    /** @type {{x: number[], y: (number | null)[]}} */
    const realised = { x: [], y: [] };
    /** @type {number[][]} */
    const rects = [];
    first.forEach((step, at) => {
      const end = last[at] + 1;
      declared.x.push(step, end);
      declared.y.push(set.declared[at], set.declared[at]);
      if (set.low[at] !== null) rects.push([step, end, set.low[at] ?? 0, set.high[at] ?? 1]);
      const share = shareOf(set.realised[at]);
      const middle = (step + last[at]) / 2;
      realised.x.push(middle);
      realised.y.push(share);
      if (share === null && set.realised[at] !== null)
        marks.push({ x: middle, symbol: "x", color: colors.critical, words: `${set.dataset}: not a number` });
      values.push(share, set.declared[at], set.low[at], set.high[at]);
    });
    areas.push({ color, opacity: shown.length <= FEW || off.includes(set.dataset) ? BAND : FAINT, rects });
    lines.push({ ...declared, color, width: 1, dash: DASH, opacity: 0.9, hover: false });
    lines.push({ ...realised, color, width: 1.6, name: set.dataset });
  }
  const known = values.filter(Number.isFinite);
  // Shares are 0 to 1: what is far off is the news, and nothing is cut away.
  return { lines, areas, marks, range: known.length ? [Math.min(...known), Math.max(...known)] : [0, 1] };
}
