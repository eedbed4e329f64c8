// The large chart: the loss on the effective timeline, what was discarded as ghosts, forks, incidents, and the gradient
// norm beneath on the same x axis.

import { byId, setShown } from "../core/dom.js";
import { firstRequests } from "../core/first_requests.js";
import { clock, formatCount, plural } from "../core/format.js";
import { incidentKind, onlyKnown, severityOf } from "../core/kinds.js";
import { colorTheme } from "../core/theme.js";
import { axisOf } from "./axis.js";
import { axisRange, lowerBound, robustRange } from "./downsample.js";
import { Plot } from "./line_chart.js";
import { fitted, indexAt, notesOf, stepsOf } from "./readout.js";
import {
  annotationFlags,
  bandEnd,
  beginOf,
  changed,
  ghostXY,
  hasBand,
  lineXY,
  noNumber,
  nonFiniteMarks,
  onSteps,
  shapes,
} from "./traces.js";

// -- Flags of forks above the large chart. Where they would cover each other they are one, with a list under the pointer.

/** Width of a letter of a flag and of its border, pixels. */
const MARK_LETTER_PX = 6.5;
const BORDER_PX = 10;
/** Forks in the list of a flag; the lineage has them all. */
const LISTED = 12;
/** Characters of a reason in that list. */
const REASON = 60;

/** Grade of a resume -> its mark behind a flag's label, and the colour of the flag; the others have neither. */
const GRADES = { good: ["✓", "accent"], differs: ["≠", "warning"], wrong: ["!", "critical"] };
/** From the least to the worst. */
const WORSE = ["good", "differs", "wrong"];

/** The worst grade of some forks, undefined where none is known. */
const worstOf = (forks) => WORSE.findLast((grade) => forks.some((fork) => fork.resume?.grade === grade));

/** What a flag of several says: `R1–R10` where they follow each other, else how many they are. */
function groupLabel(forks) {
  if (forks.length === 1) return [forks[0].label, GRADES[worstOf(forks)]?.[0]].filter(Boolean).join(" ");
  const letter = forks[0].label.charAt(0);
  const numbers = forks.map((fork) => Number(fork.label.slice(1))).sort((a, b) => a - b);
  const row =
    forks.every((fork) => fork.label.charAt(0) === letter) &&
    numbers[numbers.length - 1] - numbers[0] === forks.length - 1;
  return row ? `${letter}${numbers[0]}–${letter}${numbers[numbers.length - 1]}` : `${forks.length} forks`;
}

/** Where a fork is on the x axis: its step, or what `at` says. */
const placeOf = (fork) => (fork.at === undefined ? fork.step : fork.at);

/** The flags that fit: `{forks, label, from, to, left, right}` in pixels from step 0, left to right, none over another. */
export function flagGroups(forks, scale) {
  const groups = [];
  const make = (members) => {
    const from = placeOf(members[0]) * scale;
    const to = placeOf(members[members.length - 1]) * scale;
    const label = groupLabel(members);
    const half = (MARK_LETTER_PX * label.length + BORDER_PX) / 2;
    return { forks: members, label, from, to, left: (from + to) / 2 - half, right: (from + to) / 2 + half };
  };
  for (const fork of [...forks].sort((a, b) => placeOf(a) - placeOf(b))) {
    let group = make([fork]);
    while (groups.length && groups[groups.length - 1].right > group.left)
      group = make([...groups.pop().forks, ...group.forks]);
    groups.push(group);
  }
  return groups;
}

const returned = (segment) => (typeof segment.returns_to === "number" ? " of the branch that it had left" : "");

/** A fork in full, as lines of bold and plain words. */
function details(fork) {
  const { segment } = fork;
  const plain = [
    fork.discarded ? `${plural(fork.discarded, "step")} discarded` : "",
    segment.reason || "",
    changed(segment),
    segment.issuer ? `by ${segment.issuer}` : segment.cause === "declared" ? "by the job itself" : "",
    segment.created ? clock(segment.created) : "",
    fork.resume?.text || "",
  ];
  const title = `${fork.label}: ${segment.cause === "restart" ? "restarted from" : "rolled back to"} step ${formatCount(fork.step)}${returned(segment)}`;
  return [[title, ""], ...plain.filter(Boolean).map((words) => ["", words])];
}

/** A fork in one line. */
function line(fork) {
  const reason = fork.segment.reason || "";
  const words = [
    `step ${formatCount(fork.step)}`,
    fork.discarded ? `−${formatCount(fork.discarded)}` : "",
    reason.length > REASON ? `${reason.slice(0, REASON - 1)}…` : reason,
  ];
  return [fork.label, words.filter(Boolean).join(" · ")];
}

/** What a flag says under the pointer. */
function tipOf(forks) {
  if (forks.length === 1) return details(forks[0]);
  const newest = [...forks].sort((a, b) => b.segment.id - a.segment.id);
  const lines = newest.slice(0, LISTED).map(line);
  if (newest.length > LISTED) lines.push(["", `and ${newest.length - LISTED} older`]);
  return lines;
}

/** Flags of forks, and bars over what each threw away, as `labels` and `spans` of a chart whose plot is `width` pixels wide. */
function flags(forks, colors, range, width, { place, forkAt } = onSteps) {
  const labels = [];
  const spans = [];
  const scale = width / (range[1] - range[0]);
  const shown = forks
    .map((fork) => ({
      ...fork,
      at: forkAt(fork),
      // One that returns to a branch threw away what came behind the place where the two part.
      fromAt: place(fork.segment.shared_step ?? fork.step, fork.segment.parent),
      endAt: fork.deadEnd === null ? null : place(fork.deadEnd, fork.segment.parent),
    }))
    .filter((fork) => fork.at !== null && fork.at >= range[0] && fork.at <= range[1]);
  // Pixels from the left edge and not from zero: a wall clock's zero is fifty years away.
  const groups = flagGroups(
    shown.map((fork) => ({ ...fork, at: fork.at - range[0] })),
    scale,
  );
  for (const group of groups)
    labels.push({
      x: range[0] + (group.from + group.to) / 2 / scale,
      top: -13,
      words: group.label,
      color: colors["accent-ink"],
      align: "center",
      size: 10,
      fill: colors[GRADES[worstOf(group.forks)]?.[1] ?? "accent"],
      tip: tipOf(group.forks),
    });
  // The newest first: of two numbers that would stand on each other the older one is left out.
  const taken = groups.map(({ left, right }) => [left, right]);
  for (const fork of [...shown].reverse()) {
    if (
      fork.endAt === null ||
      fork.fromAt === null ||
      !fork.discarded ||
      fork.endAt < fork.fromAt ||
      fork.endAt <= range[0]
    )
      continue;
    const from = Math.max(fork.fromAt, range[0]);
    const to = Math.min(fork.endAt, range[1]);
    spans.push({ from, to, color: colors.ghost });
    const words = `−${formatCount(fork.discarded)}`;
    const right = (to - range[0]) * scale;
    const left = right - MARK_LETTER_PX * words.length - BORDER_PX;
    if (left < (from - range[0]) * scale || taken.some(([low, high]) => high > left && low < right)) continue;
    taken.push([left, right]);
    labels.push({ x: to, top: -13, words, color: colors.muted, align: "right", size: 10 });
  }
  return { labels, spans };
}

/** The metric that is the run's loss, null where it logs none: what the server watches as one, else what is called so. */
const lossMetric = (metrics, run) =>
  (run && run.loss_metric) || firstRequests.losses.find((name) => metrics.includes(name)) || null;

/**
 * The metric that the large chart shows: what the server chose of the run; before that is known the loss, else what is
 * named like one, else the first that is no reading of a GPU.
 */
export const focusMetric = (metrics, run, chosen = /** @type {string | null} */ (null)) =>
  chosen ||
  lossMetric(metrics, run) ||
  metrics.find((name) => /(^|[/_.])loss$/.test(name)) ||
  metrics.find((name) => !name.startsWith("gpu/")) ||
  "loss";

/** Values of the lines inside the window, for the range of an axis. */
export function visibleValues(pieces, window) {
  const values = [];
  for (const piece of pieces) {
    const from = window ? Math.max(piece.from, lowerBound(piece.steps, window[0])) : piece.from;
    const to = window ? Math.min(piece.to, lowerBound(piece.steps, window[1] + 1)) : piece.to;
    for (let index = from; index < to; index += 1) values.push(piece.values[index]);
  }
  return values;
}

/** A range that grows at once and shrinks only when it is much too large: axes must not tremble. */
export function calmRange(memory, key, range) {
  const held = memory.get(key);
  if (held) {
    const span = held[1] - held[0];
    const inside = range[0] >= held[0] && range[1] <= held[1];
    if (inside && range[1] - range[0] > 0.82 * span) return held;
  }
  const air = 0.03 * (range[1] - range[0]);
  const fresh = held ? [range[0] < 0 || range[0] - air > 0 ? range[0] - air : range[0], range[1] + air] : range;
  memory.set(key, fresh);
  return fresh;
}

/** Segments that get a line of their own where all are shown; older ones share one. */
const OWN = 24;
/** The raw line behind a smoothed one. */
const BEHIND = 0.28;
/** Dashes of what was discarded. */
const GHOST = [5, 2];
/** Where the rows are in the plot's height, the loss over the gradient norm. */
const [LOSS_ROW, GRAD_ROW] = [
  { from: 0.36, to: 1 },
  { from: 0, to: 0.27 },
];
/** Over the plot are flags, left of it numbers. */
const MARGIN = { l: 66, r: 20, t: 40, b: 34 };
/** A letter of a band's name, and what stands around it. */
const [LETTER_PX, AROUND_PX] = [7, 8];
/** Words of a band stand below the arrows of what the range cuts (`line_chart.js`), pixels below the edge. */
const BELOW_PEAKS_PX = 26;

/**
 * The large chart, for the Board. `page` gives: store, derived, view() ({incidents, segments, forks, lastStep}), look
 * (View), settings, metric() (the loss), below() (the gradient norm or null), hasGrad(), zoom, resetZoom().
 */
export class FocusChart {
  constructor(element, config, page) {
    this.id = "focus";
    this.first = true;
    this.ranks = "primary";
    this.element = element;
    this.config = config;
    this.page = page;
    this.interval = config.limits.focus_interval_ms;
    this.memory = new Map();
    /** The effective line that was drawn last: where on the x axis which step is. */
    this.lastLine = /** @type {{x: number[], y: (number | null)[], steps?: number[]} | null} */ (null);
    /** Where the x axis does not rise with the steps, a zoom is of this chart alone. */
    this.localRange = /** @type {number[] | null} */ (null);
    /** The zoomed y range of a row, null for its own. @type {{[row: number]: number[] | null}} */
    this.yRanges = {};
    this.plot = new Plot(element, {
      label: "Large chart",
      onZoom: (range) => this.zoom(range),
      onReset: () => {
        this.yRanges = {};
        page.resetZoom();
      },
      onY: (range, row) => {
        this.yRanges = { ...this.yRanges, [row]: range };
        page.board.mark(this);
      },
      onCursor: (x) => {
        const drawn = this.lastLine;
        page.board.pointAt(x === null ? null : drawn && drawn.steps ? (drawn.steps[indexAt(drawn.x, x)] ?? null) : x);
        if (drawn && drawn.steps) this.plot.pointer.place(x);
      },
    });
  }

  /** @param {number[]} range */
  zoom(range) {
    const line = this.lastLine;
    const steps = line?.steps ? stepsOf(range, /** @type {{x: number[], steps: number[]}} */ (line)) : range;
    if (steps) {
      this.page.zoom.set(fitted(steps, this.page.store.extent(this.metrics())));
      return;
    }
    this.localRange = range;
    setShown(byId("zoom-reset"), true);
    this.page.board.mark(this);
  }

  metrics() {
    return [this.page.metric(), this.page.below()].filter(Boolean);
  }

  title() {
    const names = this.metrics().filter((name) => this.page.names.includes(name));
    return names.join(" and ") || this.page.metric();
  }

  forget() {
    this.memory.clear();
  }

  close() {
    this.plot.close();
  }

  hasLine() {
    return Boolean(this.lastLine && this.lastLine.x.length);
  }

  /** From another chart; under the pointer it is there already. */
  pointAt(step) {
    const { lastLine: drawn, plot } = this;
    if (!drawn || !drawn.steps) plot.pointer.place(step);
    else if (!plot.pointer.over) plot.pointer.place(step === null ? null : drawn.x[indexAt(drawn.steps, step)]);
  }

  paint(width, height) {
    const { page, config, memory } = this;
    const { colors } = config.themes[colorTheme.name()];
    const axis = axisOf(page);
    const window = page.look.window();
    const view = page.view(this.metrics());
    const inner = width - MARGIN.l - MARGIN.r;
    const draw = { page, config, colors, window, memory, inner };
    const both = page.hasGrad();
    const top = { ...(both ? LOSS_ROW : {}), ...metricRow(draw, page.metric(), colors.accent, true) };
    const xRange = this.localRange || axis.range(top, window);
    const rows = both ? [top, { ...GRAD_ROW, ...metricRow(draw, page.below(), colors.series[3], false) }] : [top];
    for (const row of /** @type {any[]} */ (rows)) {
      row.marks = nonFiniteMarks(row.effective.slice(0, config.limits.lines), row.discarded, window).map((mark) => ({
        ...mark,
        color: mark.dead ? colors.ghost : colors.critical,
      }));
    }
    top.dot = liveEnd(top.main, colors.accent);
    rows.forEach((row, index) => {
      const wanted = this.yRanges[index];
      if (wanted && (!row.log || wanted[1] > 0)) row.yRange = row.log ? axisRange(wanted, true) : wanted;
    });
    this.lastLine = top.main;
    const above = flags(view.forks, colors, xRange, inner, axis);
    this.plot.draw({
      width,
      height,
      margin: MARGIN,
      xRange,
      axis: axis.axis,
      colors,
      font: config.font,
      rows,
      ...shapes(view, colors, true, axis),
      labels: [
        ...bandNames(view, colors, xRange, inner, axis),
        ...above.labels,
        ...annotationFlags(view, colors, xRange, inner, height - MARGIN.t - MARGIN.b, axis),
      ],
      spans: above.spans,
      notes: () => notesOf(view, colors, axis),
    });
    page.lane.draw(axis, xRange, MARGIN.l, inner);
  }
}

/** A row of the chart: a metric's lines and their y axis. `main`: the first effective line as it is drawn. */
/** @returns {import("./line_chart.js").Row & {main: any, effective: any[], discarded: any[]}} */
function metricRow({ page, config, colors, window, memory, inner }, metric, color, top) {
  const { log, ghosts, view } = page.settings;
  const smooth = page.derived.ready() && page.settings.smooth > 0;
  const column = smooth ? "smoothed" : "values";
  const source = page.derived.ready() ? page.derived : page.store;
  const alone = page.look.segment();
  const effective = alone === null ? source.effective(metric, window) : source.alone(metric, alone, window);
  const dead = alone === null ? source.dead(metric, window) : [];
  const discarded = view === "all" || ghosts ? dead : [];
  const budget = firstRequests.points.fine;
  const lines = /** @type {import("./line_chart.js").Line[]} */ ([]);
  if (view === "all") lines.push(...everySegment(dead, page, colors, { metric, top, window, budget, column }));
  else if (discarded.length) lines.push(ghost(ghostXY(discarded, window, budget / 2, column), colors, top));
  for (const line of effective.slice(1, config.limits.lines))
    lines.push({
      ...lineXY(line, window, budget / 4, column),
      name: lineName(metric, line),
      color,
      opacity: 0.3,
      width: 1,
    });
  if (smooth && effective[0])
    lines.push({
      ...lineXY(effective[0], window, budget, "values", inner),
      name: "raw",
      color,
      opacity: BEHIND,
      width: 1,
    });
  const main = effective[0] ? lineXY(effective[0], window, budget, column, inner) : { x: [], y: [] };
  // Where points are denser than pixels a fine line shows the shape, and costs a tenth.
  const width = !main.band && main.x.length > inner ? 1 : top ? 2 : 1.5;
  lines.push({ ...main, name: effective.length > 1 ? lineName(metric, effective[0]) : metric, color, width });
  const live = effective.flatMap((line) => visibleValues(line.pieces, window));
  const rest = visibleValues(discarded, window);
  const wanted = axisRange(robustRange(log ? live.filter((value) => value > 0) : live, rest), log);
  // Drawn before its points have come: that axis is none to keep for them.
  const empty = !live.some(Number.isFinite) && !rest.some(Number.isFinite);
  return {
    title: metric,
    none: noNumber(live, !source.isThinned?.(metric)),
    log,
    yRange: empty ? wanted : calmRange(memory, `${top}${log}${ghosts}${view}`, wanted),
    lines,
    marks: [],
    main,
    effective,
    discarded,
    dot: null,
  };
}

/** What was discarded; of the lower row it is not read out. */
const ghost = (xy, colors, hover, name = "discarded") => ({
  ...xy,
  name,
  color: colors.ghost,
  width: 1.2,
  dash: GHOST,
  opacity: 0.8,
  hover,
  near: true,
});

/** Every discarded stretch as a line of its own, with a name under the pointer. */
function everySegment(dead, page, colors, { metric, top, window, budget, column }) {
  const labels = new Map(page.forkList.map((fork) => [fork.segment.id, fork.label]));
  const newest = [...new Set(dead.map((one) => one.segment))].sort((a, b) => b - a);
  const own = newest.slice(0, OWN);
  const share = Math.max(60, budget / Math.max(1, own.length));
  const lines = own.map((segment) => ({
    ...ghostXY(dead.filter((one) => one.segment === segment).slice(0, 1), window, share, column),
    name: `${labels.get(segment) || "start"} (discarded)`,
    color: colors.series[1 + (segment % (colors.series.length - 1))],
    opacity: 0.9,
    width: 1.3,
    hover: top,
    near: true,
  }));
  const older = dead.filter((one) => !own.includes(one.segment));
  if (older.length)
    lines.push(
      ghost(
        ghostXY(older, window, budget / 2, column),
        colors,
        false,
        `${metric} of ${plural(newest.length - OWN, "older segment")}`,
      ),
    );
  return lines;
}

const lineName = (metric, line) => (line.rank === null ? `${metric} ${line.node}` : `${metric} rank ${line.rank}`);

/** The newest point of the line that is a number. */
function liveEnd({ x, y }, color) {
  const at = y.findLastIndex((value) => value !== null);
  return at < 0 ? null : { x: x[at], y: y[at], color };
}

/** The kind of an incident inside its band, where the band is wide enough to hold it; alarms come before what is known. */
export function bandNames(view, colors, range, inner, axis) {
  const scale = inner / (range[1] - range[0]);
  const labels = [];
  const taken = [];
  for (const incident of view.incidents
    .filter(hasBand)
    .slice(0, 40)
    .sort((a, b) => Number(onlyKnown(a)) - Number(onlyKnown(b)) || a.onset_step - b.onset_step)) {
    const onset = beginOf(incident, axis, view.lastStep);
    const until = axis.place(bandEnd(incident, view.segments, view.lastStep), incident.segment);
    if (onset === null || until === null) continue;
    const start = Math.max(onset, range[0]);
    const words = incidentKind(incident.kind).short;
    const need = LETTER_PX * words.length + AROUND_PX;
    const left = (start - range[0]) * scale;
    if ((Math.min(until, range[1]) - start) * scale < need) continue;
    if (taken.some(([from, to]) => left < to && left + need > from)) continue;
    taken.push([left, left + need]);
    labels.push({
      x: start + 4 / scale,
      top: BELOW_PEAKS_PX,
      words,
      color: colors[severityOf(incident)],
      align: "left",
    });
  }
  return labels;
}
