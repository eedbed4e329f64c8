// Turns stored lines into Plotly traces and shapes: effective lines, ghosts, marks of what is not a number, forks, bands.

import { toldStep } from "../core/as_type.js";
import { formatCount, formatValue, plotlyText } from "../core/format.js";
import { incidentKind } from "../core/kinds.js";
import { onlyKnown, severityOf } from "../incident/severity.js";
import { lowerBound, thinInto } from "./downsample.js";

/** Newest incidents that get a band; older ones stand in the list. */
const BANDS = 40;
/** The newest forks that get a line over the whole height when there are more. */
const CROWD = 6;
/** Height of an older fork's tick, as a share of the chart's. */
const TICK = 0.025;
/** Height of the strip of what is known and no alarm, of the plot's. */
const STRIP = 0.02;
/** A gap between two pieces greater than this share of the line so far is a jump. */
const JUMP = 0.002;
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
 * bucketed across a fork. `column`: `values` or `smoothed`.
 */
export function lineXY(line, window, budget, column) {
  const x = [];
  const y = [];
  const steps = line.pieces.some((piece) => piece.xs) ? [] : null;
  const cuts = line.pieces.map((piece) => [piece, ...cut(piece, window)]);
  const total = cuts.reduce((sum, [, from, to]) => sum + to - from, 0);
  for (const [piece, from, to] of cuts) {
    // On another axis than steps a fork may be a jump: what was discarded took time. There the line is open.
    const last = x.length - 1;
    if (
      steps &&
      to > from &&
      last >= 0 &&
      x[last] !== null &&
      Math.abs(piece.xs[from] - x[last]) > JUMP * Math.abs(x[last] - x[0])
    ) {
      x.push(x[last]);
      y.push(null);
      steps.push(steps[last]);
    }
    const share = total <= budget ? to - from : Math.max(4, Math.floor((budget * (to - from)) / total));
    const values = piece[column || "values"] || piece.values;
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

/** Marks for values that are not numbers: `{x, y, symbols, text}` on an axis from 0 to 1. */
export function nonFiniteMarks(lines, stretches, window) {
  const marks = { x: [], y: [], symbols: [], text: [], dead: [] };
  const scan = (piece, rank, dead) => {
    const [from, to] = cut(piece, window);
    for (let index = to - 1; index >= from && marks.x.length < MARKS; index -= 1) {
      const value = piece.values[index];
      if (Number.isFinite(value)) continue;
      const down = value === -Infinity;
      marks.x.push(xsOf(piece)[index]);
      marks.y.push(value === Infinity ? 0.97 : 0.03);
      marks.symbols.push(Number.isNaN(value) ? "x-thin" : down ? "triangle-down" : "triangle-up");
      marks.text.push(
        `${formatValue(value)} at step ${formatCount(piece.steps[index])}${rank === null ? "" : `, rank ${rank}`}${dead ? " (discarded)" : ""}`,
      );
      marks.dead.push(dead);
    }
  };
  for (const line of lines) for (const piece of line.pieces) scan(piece, line.rank, false);
  for (const stretch of stretches) scan(stretch, stretch.rank, true);
  return marks;
}

export function lineTrace(xy, name, color, extra) {
  return {
    type: "scatter",
    mode: xy.x.length === 1 ? "markers" : "lines",
    x: xy.x,
    y: xy.y,
    name: plotlyText(name),
    line: { color, width: 1.6, shape: "linear", simplify: true },
    marker: { color, size: 6 },
    connectgaps: false,
    ...extra,
  };
}

export function ghostTrace(xy, colors, extra) {
  return lineTrace(xy, "discarded", colors.ghost, {
    hovertemplate: "%{y:.5~g} at step %{x:,d}",
    mode: "lines",
    line: { color: colors.ghost, width: 1.2, dash: "5px,2px" },
    opacity: 0.8,
    ...extra,
  });
}

/** Whether an incident is about a stretch of steps: a sick GPU or a lost agent is a mark of the health lane alone. */
export const hasBand = (incident) => incidentKind(incident.kind).band && toldStep(incident.onset_step) !== null;

/** Where an incident's band ends: where it recovered, where its branch was cut off, or at the newest step. */
export function bandEnd(incident, segments, lastStep) {
  // What a job says with run.alert is about a step, however late somebody closes it.
  if (incidentKind(incident.kind).about === "user") return incident.onset_step;
  if (incident.recovered_step !== null && incident.recovered_step !== undefined) return incident.recovered_step;
  const segment = segments.get(incident.segment);
  if (
    segment &&
    (incident.dead ||
      (segment.dead_after !== null && segment.dead_after !== undefined && incident.onset_step > segment.dead_after))
  ) {
    return segment.last_step === null ? incident.step : segment.last_step;
  }
  if (incident.state === "resolved") return Math.max(incident.step, incident.peak_step || 0);
  return Math.max(lastStep === null ? -Infinity : lastStep, incident.step, incident.onset_step);
}

/** Where a step is drawn when the x axis is the steps themselves. */
/** @type {(step: number, segment?: number) => number | null} */
export const atStep = (step) => step;
export const onSteps = { place: atStep, forkAt: (fork) => fork.step };

/**
 * Bands of incidents and lines of forks, as Plotly shapes over the whole height.
 * `place(step, segment)` and `forkAt(fork)`: where a step of a segment, and where a fork, is on the x axis; null where
 * that is not known.
 */
export function shapes(view, colors, strong, { place, forkAt } = onSteps) {
  const shapes = [];
  for (const incident of view.incidents.filter(hasBand).slice(0, BANDS)) {
    const onset = place(incident.onset_step, incident.segment);
    const end = place(bandEnd(incident, view.segments, view.lastStep), incident.segment);
    if (onset === null || end === null) continue;
    const color = colors[severityOf(incident)];
    const open = incident.state === "open";
    // What is known and no alarm is a strip at the foot: over the band of an alarm it would turn its colour to grey.
    const quiet = onlyKnown(incident);
    shapes.push({
      type: "rect",
      xref: "x",
      yref: "paper",
      x0: onset,
      x1: place === atStep ? Math.max(end, onset + 0.5) : end,
      y0: 0,
      y1: quiet ? STRIP : 1,
      layer: "below",
      fillcolor: color,
      opacity: quiet ? 0.35 : (open ? 0.15 : 0.08) * (strong ? 1 : 0.8),
      line: { width: 0 },
    });
    if (strong && open && !quiet) shapes.push(vertical(onset, color, "dot", 1, 0.8));
  }
  // Many of them side by side would be a fence in front of the curve: older ones are a tick at its foot.
  const old = view.forks.length > CROWD ? view.forks.length - CROWD : 0;
  view.forks.forEach((fork, index) => {
    const x = forkAt(fork);
    if (x !== null)
      shapes.push(
        vertical(
          x,
          colors.accent,
          index < old ? "solid" : "dash",
          1,
          (old ? 0.6 : 1) * (strong ? 0.9 : 0.45),
          index < old ? TICK : 1,
        ),
      );
  });
  return shapes;
}

function vertical(step, color, dash, width, opacity, height = 1) {
  return {
    type: "line",
    xref: "x",
    yref: "paper",
    x0: step,
    x1: step,
    y0: 0,
    y1: height,
    layer: "below",
    opacity,
    line: { color, width, dash },
  };
}

/** Bands that lie over each other add up to this many; more of them look like this many, so that the curve is seen. */
const DEEP = 4;

/**
 * The same shapes as few paths: all that look alike become one. Plotly spends more on each shape than on a line of
 * five hundred points, and forty incidents would otherwise cost more than the curve. Within one path what overlaps is
 * filled once, so bands over each other are in paths of their own.
 */
export function mergeShapes(shapes) {
  const groups = new Map();
  const free = new Map();
  const bands = shapes.filter((one) => one.type === "rect").sort((a, b) => a.x0 - b.x0);
  for (const shape of [...bands, ...shapes.filter((one) => one.type !== "rect")]) {
    const { x0, x1, y0, y1 } = shape;
    const look = {
      fillcolor: shape.fillcolor || "rgba(0,0,0,0)",
      fillrule: "nonzero",
      opacity: shape.opacity,
      layer: shape.layer || "above",
      line: shape.line,
    };
    const same = JSON.stringify(look);
    let level = 0;
    if (shape.type === "rect") {
      if (!free.has(same)) free.set(same, new Array(DEEP).fill(-Infinity));
      const ends = free.get(same);
      level = ends.findIndex((end) => x0 >= end);
      if (level < 0) level = DEEP - 1;
      ends[level] = Math.max(ends[level], x1);
    }
    const key = `${level} ${same}`;
    const part =
      shape.type === "rect" ? `M${x0},${y0}L${x1},${y0}L${x1},${y1}L${x0},${y1}Z` : `M${x0},${y0}L${x1},${y1}`;
    if (groups.has(key)) groups.get(key).path += part;
    else groups.set(key, { type: "path", xref: "x", yref: "paper", ...look, path: part });
  }
  return [...groups.values()];
}

/**
 * The forks of a run, oldest first: `{step, label, segment, discarded, deadEnd}`. `lost`: segment -> its Rollback of the
 * server's ledger, which says what a fork discarded; 0 and null of one that is not in it yet.
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
  return `ordered: ${ordered}; done: ${told || (segment.applied ? "none of it" : "not reported")}`;
}
