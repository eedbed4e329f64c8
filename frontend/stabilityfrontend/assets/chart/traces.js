// Turns stored lines into what a chart draws: effective lines, discarded ones, marks of what is no number, forks, bands.

import { toldStep } from "../core/as_type.js";
import { formatCount, formatValue } from "../core/format.js";
import { incidentKind, onlyKnown, severityOf } from "../core/kinds.js";
import { banded, jumps } from "./buckets.js";
import { lowerBound, thinInto } from "./downsample.js";
import { clockMs } from "./ticks.js";

// -- Where an event is on an x axis: its band, its mark in the lane and its name ask here, so that they are at one place.

/** Machines fail in the middle of a step: what came after the newest logged one is drawn there. */
const seenStep = (step, last) => (typeof last === "number" && typeof step === "number" ? Math.min(step, last) : step);

/**
 * Where an incident begins; null where that is not known. On a clock what happened to machines is at its own time, which
 * no step may have; all else is where its step is. One of a discarded branch is at that branch's step, which may be
 * beyond the newest one that counts.
 */
export function beginOf(incident, axis, lastStep) {
  const timed = axis.clock && incidentKind(incident.kind).of_machine && typeof incident.since === "number";
  if (timed) return clockMs(incident.since);
  return axis.place(incident.dead ? incident.onset_step : seenStep(incident.onset_step, lastStep), incident.segment);
}

// -- A line without one finite value has no y axis; what it says instead.

/**
 * `NaN at all 300 points`, or "" where a value is a number, and where there is no point at all.
 * @param {(number | null)[]} values what of the lines is seen
 * @param {boolean} [all] whether each point that was logged is among them
 */
export function noNumber(values, all = true) {
  let found = null;
  let points = 0;
  for (const value of values) {
    if (value === null) continue;
    if (Number.isFinite(value)) return "";
    const words = formatValue(value);
    found = found === null || found === words ? words : "NaN or infinite";
    points += 1;
  }
  if (found === null) return "";
  if (!all) return `${found} at every point`;
  return points === 1 ? `${found} at the only point` : `${found} at all ${formatCount(points)} points`;
}

// -- What people noted at steps, on a chart: a line or a band on each, a flag on the large one, the text under the pointer.

/** Annotations drawn on one chart, newest ones; the list beside the charts has them all. */
const DRAWN = 200;
/** Characters of a text under the pointer; the list has all of it. */
const LINE = 64;
const LINES = 6;
/** A letter of a flag and its border, pixels. */
const FLAG_WIDTH = 18;

/** The annotations that a chart of these metrics shows; one without a metric is on all charts. */
export const notesOn = (notes, metrics) =>
  (notes || []).filter((note) => note.metric === null || !metrics || metrics.includes(note.metric));

/** Step or steps of an annotation, in words. */
export const stepsOf = ({ first_step: first, last_step: last }) =>
  first === last
    ? `step ${first.toLocaleString("en-US")}`
    : `steps ${first.toLocaleString("en-US")}–${last.toLocaleString("en-US")}`;

/** A text as short lines; one that is cut says so. */
function wrapped(text, width = LINE, most = LINES) {
  const lines = [];
  for (const part of text.split("\n")) {
    let line = "";
    for (const word of part.split(" ")) {
      let rest = word;
      while (rest.length > width) {
        if (line) lines.push(line);
        line = "";
        lines.push(rest.slice(0, width));
        rest = rest.slice(width);
      }
      if (line && line.length + 1 + rest.length > width) {
        lines.push(line);
        line = rest;
      } else line = line ? `${line} ${rest}` : rest;
    }
    lines.push(line);
  }
  return lines.length > most ? [...lines.slice(0, most - 1), `${lines[most - 1].slice(0, width - 1)}…`] : lines;
}

/** The annotations of a view at their places on an x axis: `{note, from, to}`; those whose place is not known are left out. */
function placed(view, place) {
  return (view.notes || []).slice(-DRAWN).flatMap((note) => {
    const from = place(note.first_step, note.segment);
    const to = note.last_step === note.first_step ? from : place(note.last_step, note.segment);
    return from === null || to === null ? [] : [{ note, from, to }];
  });
}

/** Bands and lines of annotations, as `bands` and `rules` of a chart; the rules say the text under the pointer. */
function annotationShapes(view, colors, place) {
  const bands = [];
  const rules = [];
  for (const { note, from, to } of placed(view, place)) {
    const color = note.dead ? colors.ghost : colors.info;
    if (to > from) bands.push({ from, to, height: 1, color, opacity: note.dead ? 0.07 : 0.12 });
    rules.push({
      x: from,
      to,
      color,
      dash: [1, 3],
      opacity: note.dead ? 0.5 : 0.9,
      height: 1,
      words: `${wrapped(note.text, LINE, 2).join(" ")} (${note.author}${note.dead ? ", on a discarded branch" : ""})`,
    });
  }
  return { bands, rules };
}

/** Flags at the foot of the large chart, as `labels`; of several that would cover each other one, with all under the pointer. */
export function annotationFlags(view, colors, range, width, height, { place }) {
  const scale = width / (range[1] - range[0]);
  const groups = [];
  const shown = placed(view, place).filter(({ from, to }) => to >= range[0] && from <= range[1]);
  for (const { note, from } of shown.sort((a, b) => a.from - b.from)) {
    const x = Math.max(from, range[0]);
    const last = groups[groups.length - 1];
    if (last && (x - last.x) * scale < FLAG_WIDTH) last.notes.push(note);
    else groups.push({ x, notes: [note] });
  }
  return groups.map(({ x, notes }) => {
    const dead = notes.every((note) => note.dead);
    return {
      x,
      top: height - 11,
      words: notes.length > 1 ? `✎${notes.length}` : "✎",
      color: dead ? colors.panel : colors["accent-ink"],
      fill: dead ? colors.ghost : colors.info,
      align: "center",
      size: 12,
      tip: notes.slice(0, LINES).flatMap(tipOf),
    };
  });
}

/** What a flag says under the pointer. */
function tipOf(note) {
  const by = [note.author, note.metric, note.dead ? "on a discarded branch" : ""].filter(Boolean).join(" · ");
  return [[stepsOf(note), by], ...wrapped(note.text).map((line) => ["", line])];
}

/** Newest incidents that get a band; older ones stand in the list. */
const BANDS = 40;
/** The newest forks that get a line over the whole height when there are more. */
const CROWD = 6;
/** Height of an older fork's tick, as a share of the chart's. */
const TICK = 0.025;
/** Height of the strip of what is known and no alarm, of the plot's. */
const STRIP = 0.02;
/** Lines of forks, and of where an incident began. */
const [DASHED, DOTTED] = [
  [6, 4],
  [2, 3],
];
/** Marks of NaN and Inf in one chart. */
const MARKS = 400;

/** The indices of a piece that lie in the window, with one neighbour on each side so that lines run to the edge. */
function cut(piece, window) {
  if (!window) return [piece.from, piece.to];
  const from = Math.max(piece.from, lowerBound(piece.steps, window[0]) - 1);
  const to = Math.min(piece.to, lowerBound(piece.steps, window[1] + 1) + 1);
  return [from, Math.max(from, to)];
}

/** The x of every point of a piece: its step, or where the server placed it on another axis. */
const xsOf = (piece) => piece.xs || piece.steps;

/**
 * x and y of an effective line, and the steps where x is something else. Pieces are thinned one by one: nothing is ever
 * bucketed across a fork. `column`: `values` or `smoothed`. With `columns` (pixels) a line that has more points than these
 * can show is a band with its mean (buckets.js).
 * @returns {{x: number[], y: (number | null)[], steps?: number[] | null, band?: any}}
 */
export function lineXY(line, window, budget, column = "values", columns = 0) {
  const x = [];
  const y = [];
  const steps = line.pieces.some((piece) => piece.xs) ? [] : null;
  const cuts = line.pieces.map((piece) => [piece, ...cut(piece, window)]);
  const band = columns && column === "values" ? banded(cuts, columns, Math.min(budget, 2 * columns)) : null;
  if (band) return band;
  const total = cuts.reduce((sum, [, from, to]) => sum + to - from, 0);
  for (const [piece, from, to] of cuts) {
    // On another axis than steps a fork may be a jump: what was discarded took time. There the line is open.
    if (steps && to > from && jumps(x, piece.xs[from])) {
      x.push(x[x.length - 1]);
      y.push(null);
      steps.push(steps[steps.length - 1]);
    }
    const share = total <= budget ? to - from : Math.max(4, Math.floor((budget * (to - from)) / total));
    const values = piece[column] || piece.values;
    thinInto(xsOf(piece), values, from, to, share, x, y);
    if (steps) thinInto(piece.steps, values, from, to, share, steps, []);
  }
  return steps ? { x, y, steps } : { x, y };
}

/** x and y of dead stretches, with a gap between each two: a ghost is never joined to anything. */
export function ghostXY(stretches, window, budget, column) {
  const x = [];
  const y = [];
  const each = Math.max(20, Math.floor(budget / Math.max(1, stretches.length)));
  for (const stretch of stretches) {
    const [from, to] = cut(stretch, window);
    if (to <= from) continue;
    if (x.length) {
      x.push(xsOf(stretch)[from]);
      y.push(null);
    }
    thinInto(xsOf(stretch), stretch[column || "values"] || stretch.values, from, to, each, x, y);
  }
  return { x, y };
}

/**
 * What is no number on lines and on discarded stretches: `{x, symbol, words, dead}` each.
 */
export function nonFiniteMarks(lines, stretches, window) {
  const marks = [];
  const scan = (piece, rank, dead) => {
    const [from, to] = cut(piece, window);
    for (let index = to - 1; index >= from && marks.length < MARKS; index -= 1) {
      const value = piece.values[index];
      if (Number.isFinite(value)) continue;
      marks.push({
        x: xsOf(piece)[index],
        symbol: Number.isNaN(value) ? "x" : value > 0 ? "up" : "down",
        words: `${formatValue(value)} at step ${formatCount(piece.steps[index])}${rank === null ? "" : `, rank ${rank}`}${dead ? " (discarded)" : ""}`,
        dead,
      });
    }
  };
  for (const line of lines) for (const piece of line.pieces) scan(piece, line.rank, false);
  for (const stretch of stretches) scan(stretch, stretch.rank, true);
  return marks;
}

/** Whether an incident is about a stretch of steps: a sick GPU or a lost agent is a mark of the health lane alone. */
export const hasBand = (incident) => incidentKind(incident.kind).band && toldStep(incident.onset_step) !== null;

/** Where an incident's band ends: where the server says, else where its branch ends, or at the newest step. */
export function bandEnd(incident, segments, lastStep) {
  if (typeof incident.until_step === "number") return incident.until_step;
  const segment = segments.get(incident.segment);
  if (incident.dead && segment) return segment.last_step ?? incident.step;
  return Math.max(lastStep ?? -Infinity, incident.step, incident.onset_step);
}

/** Where a step is drawn when the x axis is the steps themselves. */
/** @type {(step: number, segment?: number) => number | null} */
export const atStep = (step) => step;
export const onSteps = { place: atStep, forkAt: (fork) => fork.step };

/**
 * Bands of incidents and lines of forks, for a chart's `bands` and `rules`. `strong`: on the large chart.
 * `axis`: `place(step, segment)` and `forkAt(fork)`, where a step of a segment, and where a fork, is on the x axis, null
 * where that is not known; `clock` where it is one.
 */
export function shapes(view, colors, strong, axis = onSteps) {
  const { place, forkAt } = axis;
  const bands = [];
  const rules = [];
  for (const incident of view.incidents.filter(hasBand).slice(0, BANDS)) {
    const from = beginOf(incident, axis, view.lastStep);
    const end = place(bandEnd(incident, view.segments, view.lastStep), incident.segment);
    if (from === null || end === null) continue;
    const color = colors[severityOf(incident)];
    const open = incident.state === "open";
    // What is known and no alarm is a strip at the foot: over the band of an alarm it would turn its colour to grey.
    const quiet = onlyKnown(incident);
    const opacity = quiet ? 0.35 : (open ? 0.15 : 0.08) * (strong ? 1 : 0.8);
    bands.push({
      from,
      to: place === atStep ? Math.max(end, from + 0.5) : Math.max(end, from),
      height: quiet ? STRIP : 1,
      color,
      opacity,
    });
    if (strong && open && !quiet) rules.push({ x: from, color, dash: DOTTED, opacity: 0.8, height: 1 });
  }
  // Many of them side by side would be a fence in front of the curve: older ones are a tick at its foot.
  const old = view.forks.length > CROWD ? view.forks.length - CROWD : 0;
  view.forks.forEach((fork, index) => {
    const x = forkAt(fork);
    const tick = index < old;
    if (x !== null)
      rules.push({
        x,
        color: colors.accent,
        dash: tick ? [] : DASHED,
        opacity: (old ? 0.6 : 1) * (strong ? 0.9 : 0.45),
        height: tick ? TICK : 1,
      });
  });
  const noted = annotationShapes(view, colors, place);
  return { bands: layered([...bands, ...noted.bands]), rules: [...rules, ...noted.rules] };
}

/** Bands that lie over each other add up to this many; more of them look like this many, so that the curve is seen. */
const DEEP = 4;

/**
 * Bands of one look as few groups, each filled as one: what overlaps within a group is no darker, so bands over each
 * other are in groups of their own.
 */
function layered(bands) {
  const groups = new Map();
  const free = new Map();
  for (const { from, to, height, color, opacity } of [...bands].sort((a, b) => a.from - b.from)) {
    const look = `${color} ${opacity} ${height}`;
    if (!free.has(look)) free.set(look, new Array(DEEP).fill(-Infinity));
    const ends = free.get(look);
    const found = ends.findIndex((end) => from >= end);
    const level = found < 0 ? DEEP - 1 : found;
    ends[level] = Math.max(ends[level], to);
    const key = `${level} ${look}`;
    if (!groups.has(key)) groups.set(key, { color, opacity, rects: [] });
    groups.get(key).rects.push([from, to, height]);
  }
  return [...groups.values()];
}

/**
 * The forks of a run, oldest first: `{step, label, segment, discarded, deadEnd, resume}`. `lost`: segment -> its
 * RollbackCost, which says what a fork discarded and what the resume was; 0 and null of one that has none yet.
 */
export function forks(segments, lost) {
  const forked = [...segments.values()].filter((segment) => segment.label).sort((a, b) => a.id - b.id);
  return forked.map((segment) => {
    const booked = lost.get(segment.id);
    return {
      step: segment.fork_step,
      label: segment.label,
      segment,
      deadEnd: booked ? booked.last_dead_step : null,
      discarded: booked ? booked.steps_lost : 0,
      resume: booked?.resume ?? null,
    };
  });
}

/** What was changed, in words: `LR × 0.5, seed 7, 40 batches skipped`; what is only `ordered`: `... skip 40 batches`. */
export function changes(changes, ordered) {
  const words = [];
  for (const [key, value] of Object.entries(changes || {})) {
    if (value === null || value === undefined) continue;
    if (key === "lr_scale") words.push(`LR × ${value}`);
    else if (key === "seed") words.push(`seed ${value}`);
    else if (key === "skip_batches" && Number.isFinite(value))
      words.push(
        ordered
          ? `skip ${value === 1 ? "1 batch" : `${formatCount(value)} batches`}`
          : `${value === 1 ? "1 batch" : `${formatCount(value)} batches`} skipped`,
      );
    else if (key === "skip_range" && Array.isArray(value) && value.length === 2)
      words.push(`${ordered ? "skip the" : "skipped the"} batches of steps ${value.map(formatCount).join("–")}`);
    else words.push(`${key} ${typeof value === "object" ? JSON.stringify(value) : value}`);
  }
  return words.join(", ");
}

/** What a fork's job says that it changed, beside what was ordered where that is another thing. */
export function changed(segment) {
  const ordered = segment.cause === "command" ? changes(segment.changes, true) : "";
  const told = segment.applied ? changes(segment.applied) : "";
  if (!ordered || (told && told === changes(segment.changes)))
    return told || (segment.applied ? "" : changes(segment.changes));
  return `requested: ${ordered}; applied: ${told || (segment.applied ? "nothing" : "not reported")}`;
}
