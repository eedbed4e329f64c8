// Fewer points without losing what matters: each bucket keeps its lowest and its highest, gaps stay gaps.

/** Index of the first step >= `step` in an ascending list. */
export function lowerBound(steps, step) {
  let low = 0;
  let high = steps.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * Append points `from..to` (indices, `to` excluded) to `x` and `y`, at most about `budget` of them.
 * A value that is not finite becomes null, a gap in the line: it has a mark of its own.
 */
export function thinInto(steps, values, from, to, budget, x, y) {
  const count = to - from;
  if (count <= 0) return;
  if (count <= budget) {
    for (let index = from; index < to; index += 1) {
      x.push(steps[index]);
      y.push(Number.isFinite(values[index]) ? values[index] : null);
    }
    return;
  }
  // The ends stay as they are, so that pieces meet and the newest point is the newest point.
  const push = (index) => {
    x.push(steps[index]);
    y.push(Number.isFinite(values[index]) ? values[index] : null);
  };
  push(from);
  const inner = count - 2;
  const buckets = Math.max(1, Math.floor(budget / 2) - 1);
  for (let bucket = 0; bucket < buckets; bucket += 1) {
    const start = from + 1 + Math.floor((bucket * inner) / buckets);
    const stop = from + 1 + Math.floor(((bucket + 1) * inner) / buckets);
    let low = -1;
    let high = -1;
    let gap = -1;
    for (let index = start; index < stop; index += 1) {
      const value = values[index];
      if (!Number.isFinite(value)) gap = index;
      else {
        if (low < 0 || value < values[low]) low = index;
        if (high < 0 || value > values[high]) high = index;
      }
    }
    for (const index of [...new Set([low, high, gap])].filter((one) => one >= 0).sort((a, b) => a - b)) push(index);
  }
  push(to - 1);
}

/**
 * Thin an entry in place to about `keep` points; the newest quarter stays whole, and every non-finite point stays. What
 * was between the extremes stays as a bucket's mean (buckets.js); no bucket is cut in two.
 */
export function thinEntry(entry, keep) {
  const { steps, values, buckets: known } = entry;
  const raw = Math.floor(keep / 4);
  const old = steps.length - raw;
  const x = [];
  const y = [];
  const made = /** @type {import("./buckets.js").Buckets} */ ({ first: [], last: [], mean: [], count: [] });
  const buckets = Math.max(1, Math.floor((keep - raw) / 2));
  let at = 0;
  let stop = 0;
  for (let bucket = 0; bucket < buckets; bucket += 1) {
    const start = stop;
    stop = Math.max(stop, Math.floor(((bucket + 1) * old) / buckets));
    if (stop <= start) continue;
    let [low, high, sum, count] = [-1, -1, 0, 0];
    const kept = new Set();
    for (let index = start; index < stop; index += 1) {
      const value = values[index];
      while (known && at < known.last.length && known.last[at] < steps[index]) at += 1;
      const covered = Boolean(known) && at < known.last.length && known.first[at] <= steps[index];
      if (covered) {
        // All of a bucket that is known already goes into one.
        while (stop < steps.length && steps[stop] <= known.last[at]) stop += 1;
        if (index + 1 >= steps.length || steps[index + 1] > known.last[at]) {
          if (known.mean[at] !== null) sum += known.mean[at] * known.count[at];
          count += known.count[at];
        }
      }
      if (!Number.isFinite(value)) {
        // A long run of NaN is one fact at its ends; keep those, not ten thousand of them.
        if (index === start || Number.isFinite(values[index - 1]) || Number.isFinite(values[index + 1]))
          kept.add(index);
        continue;
      }
      if (!covered) [sum, count] = [sum + value, count + 1];
      if (low < 0 || value < values[low]) low = index;
      if (high < 0 || value > values[high]) high = index;
    }
    if (low >= 0) kept.add(low).add(high);
    for (const index of [...kept].sort((a, b) => a - b)) {
      x.push(steps[index]);
      y.push(values[index]);
    }
    made.first.push(steps[start]);
    made.last.push(steps[stop - 1]);
    made.mean.push(count && Number.isFinite(sum) ? sum / count : null);
    made.count.push(count);
  }
  for (let index = stop; index < steps.length; index += 1) {
    x.push(steps[index]);
    y.push(values[index]);
  }
  for (let index = 0; known && index < known.first.length; index += 1)
    if (known.first[index] > made.last[made.last.length - 1])
      for (const column of Object.keys(made)) made[column].push(known[column][index]);
  steps.splice(0, steps.length, ...x);
  values.splice(0, values.length, ...y);
  entry.buckets = made;
}

/** Up to so many points a line is a short one. */
const FEW = 500;

/** Quantile of a sorted list. */
function quantile(sorted, share) {
  const place = share * (sorted.length - 1);
  const low = Math.floor(place);
  const high = Math.min(sorted.length - 1, low + 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (place - low);
}

/**
 * The y range that shows the line and not its worst moment.
 * `values`: the effective line in step order. `ghosts`: dead points; they may widen the range by at most 40 %.
 * The newest fifth of few points, the newest twentieth of many, is always whole: a spike that is happening is what
 * people came to see; one that has been over for a day must not flatten the curve, and leaves the picture upwards.
 */
export function robustRange(values, ghosts) {
  const finite = values.filter((value) => Number.isFinite(value));
  if (!finite.length) {
    const rest = (ghosts || []).filter((value) => Number.isFinite(value));
    return rest.length ? robustRange(rest) : [0, 1];
  }
  const sorted = Float64Array.from(finite).sort();
  let low = quantile(sorted, 0.002);
  let high = sorted[sorted.length - 1];
  if (finite.length > 40) {
    // A peak may take half of the height. What is higher than that leaves the picture upwards rather than squash it.
    const usual = quantile(sorted, 0.98);
    high = Math.min(high, usual + (usual - low));
  }
  const newest = finite.length <= FEW ? 0.2 * finite.length : Math.max(0.1 * FEW, 0.05 * finite.length);
  for (let index = Math.floor(finite.length - newest); index < finite.length; index += 1) {
    if (finite[index] > high) high = finite[index];
    if (finite[index] < low) low = finite[index];
  }
  const span = high - low || Math.abs(high) * 0.1 || 1;
  if (ghosts && ghosts.length) {
    let top = high;
    for (const value of ghosts) if (Number.isFinite(value) && value > top) top = value;
    high = Math.min(top, high + 0.4 * span);
  }
  return [low, high];
}

/** A range with air around it. Log ranges are exponents of ten. */
export function axisRange(range, log) {
  const [low, high] = range;
  if (log) {
    const floor = low > 0 ? low : high > 0 ? high / 1e4 : 1e-6;
    const top = Math.max(high, floor * 1.0001);
    const [a, b] = [Math.log10(floor), Math.log10(top)];
    const air = Math.max(0.02, 0.08 * (b - a));
    return [a - air, b + air];
  }
  // About a constant there is room, so that its ticks have few digits: 0.0010, not 0.001005.
  const air = high > low ? 0.08 * (high - low) : 0.25 * Math.abs(high) || 0.08;
  // A quantity that is never below zero gets no axis below zero.
  return [low >= 0 && low - air < 0 ? Math.min(0, low) : low - air, high + air];
}
