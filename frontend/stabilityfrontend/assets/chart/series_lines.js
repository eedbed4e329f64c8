// How points of one metric become lines: by segment and rank, cut where their segment stopped counting. Lineage is looked
// up when reading, so that a rollback moves no point.

import { toNumber } from "../core/format.js";
import { addBuckets, noBuckets } from "./buckets.js";
import { lowerBound } from "./downsample.js";

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
