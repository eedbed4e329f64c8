// The declared mixture as what a chart draws: for each data set the declared share as steps, the band of chance around
// it, and the realised share.

import { toNumber } from "../core/format.js";
import { robustRange } from "./downsample.js";

/** The panel of the data's mixture: with curves of a declared one it is shown whatever the run's metrics are called. */
export const MIXTURE = "ratio";
/** Looks of the declared line and of its band. */
const [DASH, BAND] = [[4, 3], 0.16];

/**
 * Curves as what a chart draws: `{lines, areas, marks, range}`; null of curves without a bucket.
 * `colors` of the theme; at most `limit` data sets.
 * @param {import("../../../types/api").MixtureCurves | null} curves
 */
export function mixtureShapes(curves, colors, limit) {
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
  for (const [index, set] of curves.sets.slice(0, limit).entries()) {
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
      const given = set.realised[at];
      const share = given === null ? null : toNumber(given);
      const middle = (step + last[at]) / 2;
      realised.x.push(middle);
      realised.y.push(share !== null && Number.isFinite(share) ? share : null);
      if (share !== null && Number.isNaN(share))
        marks.push({ x: middle, symbol: "x", color: colors.critical, words: `${set.dataset}: not a number` });
      values.push(share, set.declared[at], set.low[at], set.high[at]);
    });
    areas.push({ color, opacity: BAND, rects });
    lines.push({ ...declared, color, width: 1, dash: DASH, opacity: 0.9, hover: false });
    lines.push({ ...realised, color, width: 1.6, name: set.dataset });
  }
  const shown = values.filter(Number.isFinite);
  return { lines, areas, marks, range: shown.length ? robustRange(shown, []) : [0, 1] };
}
