// The band of a thinned line: of each bucket the lowest, the highest and the mean. Buckets are absolute blocks of a power
// of two of steps, as the server's are (docs/decisions/0009), so that a new point moves none of them.

import { lowerBound } from "./downsample.js";

/**
 * What an entry knows of stretches whose points it has not: one number a bucket. `first`, `last`: steps, rising, none over
 * another; `mean` of the finite values, null for none; `count` of these.
 * @typedef {{first: number[], last: number[], mean: (number | null)[], count: number[]}} Buckets
 *
 * A line with its band: `x`, `y` are the mean, `low` and `high` the extremes at their own places. Null: nothing finite.
 * @typedef {{x: number[], y: (number | null)[], steps: number[] | null,
 *   band: {low: (number | null)[], lowX: number[], high: (number | null)[], highX: number[]}}} Banded
 */

/** A gap between two pieces greater than this share of the line so far is a jump. */
const JUMP = 0.002;

/** Whether a line that ends at `x[last]` is open before a piece that begins at `next`, on another axis than steps. */
export function jumps(x, next) {
  const last = x.length - 1;
  return last >= 0 && x[last] !== null && Math.abs(next - x[last]) > JUMP * Math.abs(x[last] - x[0]);
}

/** @returns {Buckets} */
export const noBuckets = () => ({ first: [], last: [], mean: [], count: [] });

/** The first step of the absolute block of `2 ** level` steps that a step is in. */
const blockStart = (step, level) => Math.floor(step / 2 ** level) * 2 ** level;

/** Append the buckets of an entry of the server's answer. @param {Buckets} into */
export function addBuckets(into, { steps, level, buckets }) {
  buckets.last.forEach((last, index) => {
    const before = index ? buckets.last[index - 1] + 1 : steps[0];
    const known = into.last.length ? into.last[into.last.length - 1] : -1;
    const first = Math.max(blockStart(last, level), before);
    if (first <= known) return; // it is a part of what is known already
    into.first.push(first);
    into.last.push(last);
    into.mean.push(buckets.mean[index]);
    into.count.push(buckets.count[index]);
  });
}

/** The buckets that begin after a step. @param {Buckets | undefined} buckets @returns {Buckets} */
export function bucketsAfter(buckets, step) {
  if (!buckets) return noBuckets();
  const at = lowerBound(buckets.first, step + 1);
  const { first, last, mean, count } = buckets;
  return { first: first.slice(at), last: last.slice(at), mean: mean.slice(at), count: count.slice(at) };
}

/** The smallest level at which a span of steps has at most so many blocks. */
const levelOf = (span, most) => Math.max(0, Math.ceil(Math.log2(Math.max(1, span / Math.max(1, most)))));

/**
 * Walk over the points `from..to` (indices, `to` excluded) of a piece in groups: `endOf(step)` gives the last step that
 * belongs to the group of `step`; a bucket is never cut in two. `act(group)` gets `{start, stop, sum, count, low, high}`:
 * indices of its points, what its mean is made of, indices of its extremes (-1: nothing finite).
 */
export function walk(piece, from, to, endOf, act) {
  const { steps, values, buckets } = piece;
  let bucket = buckets ? lowerBound(buckets.last, steps[from]) : 0;
  const known = buckets ? buckets.last.length : 0;
  let at = from;
  while (at < to) {
    const group = { start: at, stop: at, sum: 0, count: 0, low: -1, high: -1 };
    let end = endOf(steps[at]);
    while (at < to && steps[at] <= end) {
      const step = steps[at];
      while (bucket < known && buckets.last[bucket] < step) bucket += 1;
      const covered = bucket < known && buckets.first[bucket] <= step;
      if (covered && buckets.last[bucket] > end) end = buckets.last[bucket];
      const value = values[at];
      if (Number.isFinite(value)) {
        if (group.low < 0 || value < values[group.low]) group.low = at;
        if (group.high < 0 || value > values[group.high]) group.high = at;
        if (!covered) {
          group.sum += value;
          group.count += 1;
        }
      }
      // The bucket counts once, with the last of its points that are here; where a fork cut it, nobody knows its mean.
      if (covered && (at + 1 >= to || steps[at + 1] > buckets.last[bucket])) {
        const mean = buckets.mean[bucket];
        const forked = at + 1 === piece.to && steps[at + 1] <= buckets.last[bucket];
        if (mean !== null && !forked) {
          group.sum += mean * buckets.count[bucket];
          group.count += buckets.count[bucket];
        }
      }
      at += 1;
    }
    group.stop = at;
    act(group);
  }
}

/** Whether a list never falls. */
function rises(list, from, to) {
  for (let index = from + 1; index < to; index += 1) if (!(list[index] >= list[index - 1])) return false;
  return true;
}

/**
 * A line as a band and its mean, where it has more points than `most` in what is drawn, or was thinned by the server;
 * null where its points are drawn one by one. `cuts`: `[piece, from, to]` each; `columns`: about how many buckets.
 * @returns {Banded | null}
 */
export function banded(cuts, columns, most) {
  const shown = cuts.filter(([, from, to]) => to > from);
  if (!shown.length) return null;
  const total = shown.reduce((sum, [, from, to]) => sum + to - from, 0);
  const thinned = shown.some(
    ([piece, from, to]) =>
      piece.buckets &&
      lowerBound(piece.buckets.last, piece.steps[from]) < lowerBound(piece.buckets.first, piece.steps[to - 1] + 1),
  );
  if (!thinned && total <= most) return null;
  if (shown.some(([piece, from, to]) => piece.xs && !rises(piece.xs, from, to))) return null;
  const [first] = shown;
  const last = shown[shown.length - 1];
  const level = levelOf(last[0].steps[last[2] - 1] - first[0].steps[first[1]] + 1, columns);
  const block = 2 ** level;
  const found = /** @type {Banded} */ ({
    x: [],
    y: [],
    steps: shown.some(([piece]) => piece.xs) ? [] : null,
    band: { low: [], lowX: [], high: [], highX: [] },
  });
  const { band } = found;
  for (const [piece, from, to] of shown) {
    const xs = piece.xs || piece.steps;
    const put = (x, step, mean, low, high) => {
      found.x.push(x);
      found.y.push(mean);
      if (found.steps) found.steps.push(step);
      band.low.push(low < 0 ? null : piece.values[low]);
      band.lowX.push(low < 0 ? x : xs[low]);
      band.high.push(high < 0 ? null : piece.values[high]);
      band.highX.push(high < 0 ? x : xs[high]);
    };
    if (piece.xs && jumps(found.x, xs[from])) put(found.x[found.x.length - 1], piece.steps[from], null, -1, -1);
    walk(
      piece,
      from,
      to,
      (step) => blockStart(step, level) + block - 1,
      ({ start, stop, sum, count, low, high }) => {
        // The middle of the block, the same for all metrics; at the ends of a piece that of what is there.
        const whole = !piece.xs && start > from && stop < to;
        const middle = whole ? blockStart(piece.steps[start], level) + block / 2 : (xs[start] + xs[stop - 1]) / 2;
        put(middle, piece.steps[(start + stop - 1) >> 1], count ? sum / count : null, low, high);
      },
    );
  }
  // The newest point is the newest point: the line ends in it.
  const [piece, , to] = last;
  const value = piece.values[to - 1];
  const at = (piece.xs || piece.steps)[to - 1];
  if (Number.isFinite(value) && at > found.x[found.x.length - 1]) {
    found.x.push(at);
    found.y.push(value);
    found.steps?.push(piece.steps[to - 1]);
    for (const [values, places] of [
      [band.low, band.lowX],
      [band.high, band.highX],
    ]) {
      values.push(value);
      places.push(at);
    }
  }
  return found;
}
