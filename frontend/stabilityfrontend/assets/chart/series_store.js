// The points of one run in the browser, by metric and by (segment, rank, node). Lineage is looked up when reading, so
// a rollback moves no point: it changes which of them are on the effective line.

import { toNumber } from "../core/format.js";
import { addBuckets, bucketsAfter, noBuckets } from "./buckets.js";
import { lowerBound, thinEntry } from "./downsample.js";

// -- How points of one metric become lines: by segment and rank, cut where their segment stopped counting. Lineage is looked
// up when reading, so that a rollback moves no point.

/**
 * Answers of /series by metric, segment and rank: a segment's dead points come as an entry of their own. Dead ones
 * among the steps of another entry are strays, low steps that nothing followed: a group of their own, never a line.
 */
export function grouped(series) {
  const groups = new Map();
  for (const one of series) {
    const key = JSON.stringify([one.metric, one.segment, one.rank, one.node]);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(one);
  }
  const found = [];
  for (const group of groups.values()) {
    const strays = group.filter(
      (one) => one.stray || (one.dead && group.some((other) => other !== one && covers(other, one))),
    );
    found.push(group.filter((one) => !strays.includes(one)));
    if (strays.length) found.push(Object.assign([...strays], { stray: true }));
  }
  return found.filter((group) => group.length);
}

/** Whether `other` is the line beside whose steps the dead entry `one` stands. */
function covers(other, one) {
  if (!other.steps.length || !one.steps.length || other.steps[other.steps.length - 1] < one.steps[0]) return false;
  return !other.dead || other.steps.length > one.steps.length;
}

/** The columns of a group as one, in step order; `xs`, `smoothed` and `buckets` where the server sent them. */
export function joined(group) {
  const parts = group.filter((one) => one.steps.length).sort((a, b) => a.steps[0] - b.steps[0]);
  const columns = {
    steps: parts.flatMap((one) => one.steps),
    values: parts.flatMap((one) => one.values.map(toNumber)),
  };
  if (parts.some((one) => one.xs)) columns.xs = parts.flatMap((one) => one.xs.map(toNumber));
  if (parts.some((one) => one.smoothed)) columns.smoothed = parts.flatMap((one) => one.smoothed.map(toNumber));
  for (const one of parts)
    if (one.buckets) {
      columns.buckets = columns.buckets || noBuckets();
      addBuckets(columns.buckets, one);
    }
  return columns;
}

/** The entry of a segment and rank (or node) in a map of them, made when it is not there yet. */
export function entryOf(entries, segment, rank, node, stray) {
  const alone = rank === null || rank === undefined;
  const key = `${stray ? "stray|" : ""}${segment}|${alone ? "" : rank}|${alone ? node || "" : ""}`;
  let entry = entries.get(key);
  if (!entry) {
    entry = {
      segment,
      rank: alone ? null : rank,
      node: node || "",
      stray: Boolean(stray),
      steps: [],
      values: [],
      thinned: false,
    };
    entries.set(key, entry);
  }
  return entry;
}

/**
 * Add a point to an entry, after the others of its step: a job that logs each micro-batch has several. A value that the
 * step has already is the same point, which came by the feed and in an answer.
 */
export function put(entry, step, value, more) {
  const { steps, values } = entry;
  const last = steps.length - 1;
  let at = last < 0 || step > steps[last] ? last + 1 : lowerBound(steps, step);
  while (at <= last && steps[at] === step && !Object.is(values[at], value)) at += 1;
  const there = steps[at] === step ? 1 : 0;
  if (at > last) {
    steps.push(step);
    values.push(value);
  } else {
    steps.splice(at, there, step);
    values.splice(at, there, value);
  }
  for (const [name, one] of Object.entries(more || {})) if (entry[name]) entry[name].splice(at, there, one);
}

/** A piece of an entry, with the columns that a chart reads. */
const piece = (entry, from, to) => ({
  segment: entry.segment,
  rank: entry.rank,
  node: entry.node,
  steps: entry.steps,
  values: entry.values,
  xs: entry.xs,
  smoothed: entry.smoothed,
  buckets: entry.buckets,
  from,
  to,
});

/**
 * The effective lines among entries, one per rank (or node), lowest rank first: `{rank, node, pieces}` with pieces in
 * step order, and no step in two of them. `aliveUpTo(segment)` is the greatest step of a segment that counts.
 */
export function effectiveLines(entries, aliveUpTo) {
  const lines = new Map();
  for (const entry of entries) {
    const to = entry.stray ? 0 : lowerBound(entry.steps, aliveUpTo(entry.segment) + 1);
    if (to <= 0) continue;
    const key = entry.rank === null ? `n${entry.node}` : entry.rank;
    if (!lines.has(key)) lines.set(key, { rank: entry.rank, node: entry.node, pieces: [] });
    lines.get(key).pieces.push(piece(entry, 0, to));
  }
  for (const line of lines.values()) {
    line.pieces.sort((a, b) => a.segment - b.segment);
    // Points of a new segment may come before the news that it forked: what it repeats gives way to it.
    for (let index = line.pieces.length - 2; index >= 0; index -= 1) {
      const one = line.pieces[index];
      const next = line.pieces[index + 1];
      one.to = Math.min(one.to, lowerBound(one.steps, next.steps[next.from]));
      if (one.to <= one.from) line.pieces.splice(index, 1);
    }
  }
  return [...lines.values()].sort((a, b) => (a.rank === null ? 1e9 : a.rank) - (b.rank === null ? 1e9 : b.rank));
}

/** The dead stretches among entries, oldest segment first. */
export function deadStretches(entries, aliveUpTo) {
  const stretches = [];
  for (const entry of entries) {
    const from = entry.stray ? 0 : lowerBound(entry.steps, aliveUpTo(entry.segment) + 1);
    if (from < entry.steps.length) stretches.push(piece(entry, from, entry.steps.length));
  }
  return stretches.sort((a, b) => a.segment - b.segment || (a.rank || 0) - (b.rank || 0));
}

/** The lines of one segment alone, what was discarded of it included. */
export function segmentLines(entries, segment) {
  return [...entries]
    .filter((entry) => entry.segment === segment && !entry.stray && entry.steps.length)
    .map((entry) => ({ rank: entry.rank, node: entry.node, pieces: [piece(entry, 0, entry.steps.length)] }))
    .sort((a, b) => (a.rank === null ? 1e9 : a.rank) - (b.rank === null ? 1e9 : b.rank));
}

export class SeriesStore {
  /** `limits`: entry_points (points kept of each entry), live_metrics (metrics kept at all). */
  constructor(limits) {
    this.limits = limits;
    this.metrics = new Map();
    this.details = new Map();
    this.segments = new Map();
    this.head = null;
    this.lastStep = null;
    this.lastTime = null;
    this.uses = 0;
  }

  setSegments(head, segments) {
    this.head = head;
    this.segments = new Map(segments.map((segment) => [segment.id, segment]));
  }

  /** The greatest step of a segment that counts: -Infinity when none of them do. */
  aliveUpTo(id) {
    const segment = this.segments.get(id);
    if (!segment) return Infinity; // points may come before their segment does; it is the newest then
    if (segment.on_head_path === false) return -Infinity;
    return segment.dead_after === null || segment.dead_after === undefined ? Infinity : segment.dead_after;
  }

  /** Keep points of a metric from now on. Returns whether its history has to be fetched, once. */
  want(name) {
    this.uses += 1;
    const known = this.metrics.get(name);
    if (known) known.used = this.uses;
    else {
      this.metrics.set(name, { entries: new Map(), used: this.uses, asked: false, pinned: false });
      this.evict();
    }
    const metric = this.metrics.get(name);
    const first = !metric.asked;
    metric.asked = true;
    return first;
  }

  /** The history of these did not come: ask again when they are wanted again. */
  unask(names) {
    for (const name of names) if (this.metrics.has(name)) this.metrics.get(name).asked = false;
  }

  /** Never evict these: the charts that are always there. */
  pin(names) {
    for (const name of names) {
      if (!this.metrics.has(name)) {
        this.metrics.set(name, { entries: new Map(), used: 0, asked: false, pinned: false });
      }
      this.metrics.get(name).pinned = true;
    }
  }

  evict() {
    if (this.metrics.size <= this.limits.live_metrics) return;
    const loose = [...this.metrics].filter(([, metric]) => !metric.pinned).sort((a, b) => a[1].used - b[1].used);
    for (const [name] of loose.slice(0, this.metrics.size - this.limits.live_metrics)) this.metrics.delete(name);
  }

  /** Merge an answer of /series, the whole history of its names or only what is new. */
  take(answer, points) {
    if (answer.complete === false) this.merge(answer.series);
    else {
      for (const name of answer.names) this.forget(name);
      this.fill(answer.names, answer.series, points, answer.level);
    }
  }

  /** Forget the points of a metric: its history comes anew. */
  forget(name) {
    if (this.metrics.has(name)) this.metrics.get(name).entries.clear();
    this.details.delete(name);
  }

  /** Merge what /series answered for `names`; a metric that is not in the answer has no points yet. */
  fill(names, series, points, level) {
    for (const name of names) if (this.metrics.has(name)) this.metrics.get(name).asked = true;
    for (const group of grouped(series)) {
      const [one] = group;
      const metric = this.metrics.get(one.metric);
      if (!metric) continue;
      const entry = entryOf(metric.entries, one.segment, one.rank, one.node, group.stray);
      const { steps, values, buckets } = joined(group);
      // What came live meanwhile is newer than the answer and stays, further rows of its last step too.
      const later = steps.length ? lowerBound(entry.steps, steps[steps.length - 1]) : 0;
      const live = { steps: entry.steps.slice(later), values: entry.values.slice(later) };
      entry.steps = [...steps];
      entry.values = [...values];
      live.steps.forEach((step, index) => put(entry, step, live.values[index]));
      const after = bucketsAfter(entry.buckets, steps.length ? steps[steps.length - 1] : -1);
      if (!buckets) entry.buckets = after.first.length ? after : undefined;
      else
        entry.buckets = Object.fromEntries(Object.keys(buckets).map((key) => [key, buckets[key].concat(after[key])]));
      const span = steps.length ? steps[steps.length - 1] - steps[0] + 1 : 0;
      if (level > 0 || (level === undefined && points && steps.length >= 0.3 * points && span > steps.length))
        entry.thinned = true;
      this.bound(entry);
    }
    for (const name of names) this.findLast(name);
  }

  /** Add points that are new: those of an outage. Their segment may be one that is not known yet. */
  merge(series) {
    const touched = new Set();
    for (const one of series) {
      const metric = this.metrics.get(one.metric);
      if (!metric) continue;
      touched.add(one.metric);
      const [group] = grouped([one]);
      const { steps, values } = joined(group);
      const entry = entryOf(metric.entries, one.segment, one.rank, one.node);
      const detail = this.details.get(one.metric);
      const close = detail && entryOf(detail.entries, one.segment, one.rank, one.node);
      steps.forEach((step, index) => {
        put(entry, step, values[index]);
        if (close && step >= detail.start && step <= detail.stop) put(close, step, values[index]);
      });
      if (one.buckets) {
        entry.buckets = entry.buckets || noBuckets();
        addBuckets(entry.buckets, one);
      }
      this.bound(entry);
      if (close) this.bound(close);
    }
    for (const name of touched) this.findLast(name);
  }

  /** Points of a window in full detail, shown while the zoom lies inside it. */
  setDetail(name, start, stop, series) {
    const entries = new Map();
    for (const group of grouped(series)) {
      const entry = entryOf(entries, group[0].segment, group[0].rank, group[0].node, group.stray);
      Object.assign(entry, joined(group));
    }
    this.details.set(name, { start, stop, entries });
  }

  isThinned(name) {
    const metric = this.metrics.get(name);
    return Boolean(metric) && [...metric.entries.values()].some((entry) => entry.thinned);
  }

  bound(entry) {
    if (entry.steps.length <= this.limits.entry_points) return;
    thinEntry(entry, Math.floor(this.limits.entry_points / 2));
    entry.thinned = true;
  }

  /** Whether points of a metric are kept. */
  follows(name) {
    return this.metrics.has(name) || this.details.has(name);
  }

  /** Add a block of live points. Returns the names of the metrics that it touched. */
  append(block) {
    const touched = [];
    const alive = this.aliveUpTo(block.segment);
    const last = block.steps.length - 1;
    for (const [name, column] of Object.entries(block.values)) {
      touched.push(name);
      const metric = this.metrics.get(name);
      const entry = metric && entryOf(metric.entries, block.segment, block.rank, block.node);
      const detail = this.details.get(name);
      for (let index = 0; index <= last; index += 1) {
        const value = toNumber(column[index]);
        if (value === null) continue; // missing: not logged at this step
        const step = block.steps[index];
        if (entry) put(entry, step, value);
        if (detail && step >= detail.start && step <= detail.stop) {
          const close = entryOf(detail.entries, block.segment, block.rank, block.node);
          put(close, step, value);
          this.bound(close);
        }
      }
      if (entry) this.bound(entry);
    }
    for (let index = 0; index <= last; index += 1) {
      const step = block.steps[index];
      if (step <= alive && (this.lastStep === null || step > this.lastStep)) this.lastStep = step;
      if (this.lastTime === null || block.times[index] > this.lastTime) this.lastTime = block.times[index];
    }
    return touched;
  }

  /** The newest effective step, after a fetch or a change of the lineage. */
  findLast(name) {
    for (const line of this.effective(name)) {
      const piece = line.pieces[line.pieces.length - 1];
      if (line.rank !== null || this.lastStep === null)
        this.lastStep = Math.max(this.lastStep ?? -Infinity, piece.steps[piece.to - 1]);
    }
  }

  /** After a change of the lineage: dead points may have been the newest ones. */
  relook() {
    this.lastStep = null;
    for (const name of this.metrics.keys()) this.findLast(name);
  }

  source(name, window) {
    const metric = this.metrics.get(name);
    const detail = this.details.get(name);
    if (detail && window && window[0] >= detail.start && window[1] <= detail.stop) return detail.entries;
    return metric ? metric.entries : new Map();
  }

  /** The effective lines of a metric (see series_lines.js), in full detail where a window lies inside what was fetched. */
  effective(name, window) {
    return effectiveLines(this.source(name, window).values(), (segment) => this.aliveUpTo(segment));
  }

  /** The dead stretches of a metric: `{segment, rank, node, steps, values, from, to}`. */
  dead(name, window) {
    return deadStretches(this.source(name, window).values(), (segment) => this.aliveUpTo(segment));
  }

  /** The lines of one segment alone. */
  alone(name, segment, window) {
    return segmentLines(this.source(name, window).values(), segment);
  }

  /** The newest `count` values of the lowest rank's effective line, in step order. */
  tail(name, count) {
    const [line] = this.effective(name);
    if (!line) return { steps: [], values: [] };
    const steps = [];
    const values = [];
    for (let index = line.pieces.length - 1; index >= 0 && steps.length < count; index -= 1) {
      const piece = line.pieces[index];
      for (let at = piece.to - 1; at >= piece.from && steps.length < count; at -= 1) {
        steps.push(piece.steps[at]);
        values.push(piece.values[at]);
      }
    }
    return { steps: steps.reverse(), values: values.reverse() };
  }

  /** First and last step that any wanted metric has, dead ones included; null before the first point. */
  extent(names) {
    let low = Infinity;
    let high = -Infinity;
    for (const name of names) {
      const metric = this.metrics.get(name);
      if (!metric) continue;
      for (const entry of metric.entries.values()) {
        if (!entry.steps.length) continue;
        low = Math.min(low, entry.steps[0]);
        high = Math.max(high, entry.steps[entry.steps.length - 1]);
      }
    }
    return low <= high ? [low, high] : null;
  }
}
