// The small multiples: one chart for a metric or a family of metrics, on the shared range of steps.

import { cutName, h, patch } from "../core/dom.js";
import { firstRequests, matching } from "../core/first_requests.js";
import { toNumber } from "../core/format.js";
import { colorTheme } from "../core/theme.js";
import { axisOf } from "./axis.js";
import { axisRange, robustRange } from "./downsample.js";
import { Plot } from "./line_chart.js";
import { calmRange, visibleValues } from "./main_chart.js";
import { fitted, indexAt, isRising, notesOf, stepsOf } from "./readout.js";
import { Derived } from "./server_series.js";
import { ghostXY, lineXY, noNumber, nonFiniteMarks, shapes } from "./traces.js";

// -- The declared mixture as what a chart draws: for each data set the declared share as steps, the band of chance around
// it, and the realised share.

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

// -- How people set up one chart, as plain JSON: what layouts, the page's address and templates keep of it.

/**
 * `log`: y axis; `smooth`: weight of the past, 0 for none; `x`: step, time or a metric; `yRange`: null follows the data;
 * `hidden`: names of lines; `metrics`: names, or prefixes that end with `*`.
 * @typedef {{log: boolean, smooth: number, x: string, yRange: number[] | null, hidden: string[], metrics: string[]}} Options
 */

/** Weights of the past that the server takes. */
const MAX_SMOOTH = 0.9999;
/** Metrics of one chart, hidden lines of one chart, characters of a name: what an address can hold. */
const [METRICS, HIDDEN, NAME] = [24, 64, 500];

/** What a chart is before anybody sets it up. @returns {Options} */
export const usualOptions = (panel) => ({
  log: Boolean(panel.log),
  smooth: 0,
  x: "step",
  yRange: null,
  hidden: [],
  metrics: [...panel.metrics],
});

const isName = (one) => typeof one === "string" && one !== "" && one.length <= NAME;
const isRange = (one) =>
  Array.isArray(one) && one.length === 2 && one.every((end) => Number.isFinite(end)) && one[1] > one[0];
const names = (given, most) => [...new Set(given.filter(isName))].slice(0, most);

/** Options out of JSON that somebody kept: what is unknown or malformed is as in `usual`. @returns {Options} */
export function readOptions(given, usual) {
  const one = given && typeof given === "object" && !Array.isArray(given) ? given : {};
  const metrics = Array.isArray(one.metrics) ? names(one.metrics, METRICS) : [];
  return {
    log: typeof one.log === "boolean" ? one.log : usual.log,
    smooth: Number.isFinite(one.smooth) && one.smooth >= 0 && one.smooth <= MAX_SMOOTH ? one.smooth : usual.smooth,
    x: isName(one.x) ? one.x : usual.x,
    yRange: isRange(one.yRange) ? [...one.yRange] : usual.yRange,
    hidden: Array.isArray(one.hidden) ? names(one.hidden, HIDDEN) : usual.hidden,
    metrics: metrics.length ? metrics : usual.metrics,
  };
}

/** What of the options differs from the usual ones: `{}` of a chart that nobody set up. */
export const differing = (options, usual) =>
  Object.fromEntries(
    Object.entries(options).filter(([key, value]) => JSON.stringify(value) !== JSON.stringify(usual[key])),
  );

/** Hide or show a line; `alone`: hide all others, or show all where it is alone already. */
export function toggled(hidden, name, all, alone) {
  if (!alone) return hidden.includes(name) ? hidden.filter((one) => one !== name) : [...hidden, name];
  const others = all.filter((one) => one !== name);
  return others.length && others.every((one) => hidden.includes(one)) && !hidden.includes(name) ? [] : others;
}

// -- Lines of small charts that the server makes, on another x axis or smoothed. Charts that wish the same share one request,
// its live updates and its memory; only so many different wishes are kept.

/** Different x axes and smoothings at a time, and metrics of one of them. */
const [WISHES, NAMES] = [6, 96];
/** Wait for a slider to rest. */
const REST_MS = 120;

/** @type {WeakMap<object, PanelLines>} */
const byPage = new WeakMap();

/** Those of a page; of one that a chart sees narrowly (metrics/layout.js) the whole one's. */
function panelLines(given) {
  const page = given.whole || given;
  const known = byPage.get(page) || new PanelLines(page);
  byPage.set(page, known);
  return known;
}

class PanelLines {
  constructor(page) {
    this.page = page;
    /** @type {Map<string, any>} */
    this.wishes = new Map();
    page.zoom.rested.add((range) => range && this.detail(range));
  }

  detail(range) {
    if (!this.page.gone) for (const { lines } of this.wishes.values()) lines.fetchDetail(range);
  }

  /**
   * What a chart draws with these options now: `{lines, trouble}`. `lines` as a store, null while they are on their way
   * and where none are wished; `trouble`: why they can't be had, "" where they can.
   */
  of(chart, { x, smooth }) {
    const key = `${x} ${smooth}`;
    for (const [other, wish] of this.wishes) {
      if (other !== key) wish.charts.delete(chart);
      for (const one of wish.charts) if (this.page.board.charts.get(one.id) !== one) wish.charts.delete(one);
      if (!wish.charts.size && other !== key) this.drop(other);
    }
    if (x === "step" && !smooth) return { lines: null, trouble: "" };
    if (!this.wishes.has(key) && !this.room())
      return { lines: null, trouble: `More than ${WISHES} different x axes and smoothings at a time.` };
    const wish = this.wishes.get(key) || this.make(key, x, smooth);
    wish.charts.add(chart);
    this.want(wish);
    // The board draws the chart when its points came: then there are new ones of these lines, too.
    const { lastTime } = this.page.store;
    if (wish.seen !== lastTime && wish.lines.ready()) {
      wish.seen = lastTime;
      wish.lines.onPoints();
    }
    return { lines: wish.lines.ready() ? wish.lines : null, trouble: wish.trouble };
  }

  /** Whether there is room for one more, after one that nobody sees has gone. */
  room() {
    if (this.wishes.size < WISHES) return true;
    const unseen = [...this.wishes].find(([, wish]) => ![...wish.charts].some((chart) => chart.visible));
    if (unseen) this.drop(unseen[0]);
    return Boolean(unseen);
  }

  make(key, x, smooth) {
    const wish = {
      charts: new Set(),
      asked: new Set(),
      trouble: "",
      seen: this.page.store.lastTime,
      rest: 0,
      lines: /** @type {any} */ (null),
    };
    const mark = () => {
      for (const chart of wish.charts) this.page.board.mark(chart);
    };
    wish.lines = new Derived(
      this.page,
      (words) => {
        wish.trouble = words;
        mark();
      },
      {
        settings: { x, smooth },
        names: () => [...wish.asked],
        points: firstRequests.points.panel,
        shown() {
          wish.trouble = "";
          mark();
        },
      },
    );
    this.wishes.set(key, wish);
    return wish;
  }

  /** Ask for the metrics of a wish's charts, those in sight first, where one of them was not asked for yet. */
  want(wish) {
    const charts = [...wish.charts].sort((a, b) => Number(b.visible) - Number(a.visible));
    const names = [...new Set(charts.flatMap((chart) => chart.metrics()))].slice(0, NAMES);
    if (names.every((name) => wish.asked.has(name)) || wish.rest) return;
    wish.rest = window.setTimeout(() => {
      wish.rest = 0;
      if (this.page.gone || ![...this.wishes.values()].includes(wish)) return;
      const now = [...wish.charts].flatMap((chart) => chart.metrics());
      wish.asked = new Set([...names, ...now].slice(0, NAMES));
      wish.lines.change();
    }, REST_MS);
  }

  drop(key) {
    const wish = this.wishes.get(key);
    clearTimeout(wish.rest);
    wish.lines.clear();
    this.wishes.delete(key);
  }
}

const MARGIN = { l: 50, r: 12, t: 8, b: 26 };
/** The raw line behind a smoothed one. */
const BEHIND = 0.35;
/** Marks of one line. */
const MARKS = 100;

/** How much higher than the lines what was discarded may make a range. */
const DEAD = 0.4;

/**
 * A range of values that shows discarded ones, too, where they are not far above.
 * @param {[number, number]} range
 * @param {number[]} dead
 * @returns {[number, number]}
 */
function withDead([low, high], dead) {
  const top = dead.reduce((most, value) => (Number.isFinite(value) && value > most ? value : most), high);
  return [low, Math.min(top, high + DEAD * (high - low || Math.abs(high) * 0.1 || 1))];
}

/** Whether all of a chart's metrics count their own steps. */
const hasOwnSteps = (metrics, run) =>
  metrics.length > 0 && metrics.every((name) => (run?.own_steps || []).includes(name));

/** The range of x of lines. @returns {[number, number]} */
function spanOf(lines) {
  const every = lines.flatMap((line) => [line.x[0], line.x[line.x.length - 1]]).filter(Number.isFinite);
  if (!every.length) return [0, 1];
  const [low, high] = [Math.min(...every), Math.max(...every)];
  const span = Math.max(1, high - low);
  return [low - 0.02 * span, high + 0.03 * span];
}

/** What tells the lines of one panel apart: `loss/code` among `loss/*` is `code`. */
function shortName(name, patterns) {
  const pattern = patterns.find((one) => one.endsWith("*") && name.startsWith(one.slice(0, -1)));
  return pattern ? name.slice(pattern.length - 1) || name : name;
}

/** A small chart for the Board. */
export class PanelChart {
  /**
   * `panel` is one of the headline's charts, `page` as in main_chart.js; `legend` is the element that gets the names, or
   * null.
   */
  constructor(element, legend, panel, config, page) {
    this.id = panel.id;
    this.element = element;
    this.panel = panel;
    this.legend = legend;
    this.config = config;
    this.page = page;
    this.interval = config.limits.panel_interval_ms;
    /** Whose points are shown, as /series calls them. */
    this.ranks = panel.per_rank ? "all" : "primary";
    this.memory = new Map();
    this.usual = usualOptions(panel);
    this.given = this.usual;
    this.watchers = /** @type {(() => void)[]} */ ([]);
    this.legendKey = "";
    /** Whether its steps are its metrics' own, as batches of a validation: no step of the run has a place on it. */
    this.own = false;
    /** The last drawn line on another axis than steps: the step of each x. */
    this.lastLine = /** @type {{x: number[], steps: number[]} | null} */ (null);
    /** Where x does not rise with the steps, a zoom is of this chart alone. */
    this.localRange = /** @type {number[] | null} */ (null);
    /** The reason why it is not drawn by its options, "" where it is. */
    this.trouble = "";
    /** Called with the options after a change by a person. */
    this.onOptions = /** @type {((options: any) => void) | null} */ (null);
    this.plot = new Plot(element, {
      label: this.label(),
      onZoom: (range) => this.zoom(range),
      onReset: () => this.reset(),
      onY: (range) => this.set({ yRange: range }),
      onCursor: (x) => this.cursor(x),
    });
  }

  zoom(range) {
    const steps = this.own
      ? null
      : this.lastLine
        ? stepsOf(range, this.lastLine)
        : /** @type {number[] | null} */ (range);
    if (steps) this.page.zoom.set(fitted(steps, this.page.store.extent(this.metrics())));
    else {
      this.localRange = range;
      this.page.board.mark(this);
    }
  }

  reset() {
    this.localRange = null;
    if (this.given.yRange) this.set({ yRange: null });
    if (this.own) this.page.board.mark(this);
    else this.page.zoom.set(null);
  }

  cursor(x) {
    const { own, lastLine: drawn, page, plot } = this;
    if (own) return plot.pointer.place(x);
    page.board.pointAt(x === null || !drawn ? x : (drawn.steps[indexAt(drawn.x, x)] ?? null));
    if (drawn) plot.pointer.place(x);
  }

  label() {
    return `Chart ${this.title()}`;
  }

  title() {
    return this.panel.title || this.given.metrics.join(", ");
  }

  /** The options. */
  now() {
    return this.given;
  }

  /** The options that differ from the usual ones. */
  options() {
    return differing(this.given, this.usual);
  }

  /** Take kept options; `told`: a person chose them, so `onOptions` is called. */
  setOptions(given, told = false) {
    this.given = readOptions(given, this.usual);
    this.changed(told);
  }

  /** Change some of the options for a person. */
  set(changes) {
    const wanted = readOptions({ ...this.given, ...changes }, this.usual);
    this.given = { ...wanted, ...(changes.yRange === null ? { yRange: null } : {}) };
    this.changed(true);
  }

  changed(told) {
    this.memory.clear();
    this.localRange = null;
    this.page.board.mark(this);
    this.plot.pointer.name(this.label());
    for (const hear of this.watchers) hear();
    if (told && this.onOptions) this.onOptions(this.options());
  }

  watch(hear) {
    this.watchers.push(hear);
  }

  /** The y range that is drawn, as values. */
  shownRange() {
    const [row] = this.plot.rows;
    if (!row) return [0, 1];
    return row.log ? row.yRange.map((one) => 10 ** one) : row.yRange;
  }

  metrics() {
    return matching(this.given.metrics, this.page.names);
  }

  forget() {
    this.memory.clear();
  }

  close() {
    this.plot.close();
  }

  hasLine() {
    return Boolean(this.plot.spec?.lines?.length);
  }

  pointAt(step) {
    const { own, lastLine: drawn, plot } = this;
    if (own && !plot.pointer.over) plot.pointer.place(null);
    else if (own) return;
    else if (!drawn) plot.pointer.place(step);
    else if (!plot.pointer.over) plot.pointer.place(step === null ? null : drawn.x[indexAt(drawn.steps, step)]);
  }

  paint(width, height) {
    const { colors } = this.config.themes[colorTheme.name()];
    const declared =
      this.panel.id === MIXTURE
        ? mixtureShapes(this.page.mixture?.curves, colors, {
            limit: this.config.limits.lines,
            ghosts: this.page.settings.ghosts,
            off: this.page.mixture?.off || [],
          })
        : null;
    if (declared) this.drawMixture(declared, width, height, colors);
    else this.drawLines(width, height, colors);
  }

  drawLines(width, height, colors) {
    this.own = hasOwnSteps(this.metrics(), this.page.run);
    const window = this.own ? null : this.page.look.window();
    const view = this.page.view(this.metrics());
    // What people added may not be here yet.
    this.page.feed?.fetchWanted(this.metrics());
    const { lines: server, trouble } = panelLines(this.page).of(this, this.given);
    this.trouble = trouble;
    const found = this.collect(server, window, width - MARGIN.l - MARGIN.r, colors);
    const axis = axisOf(this.page, this.given.x, server, found.first || this.page.metric());
    const [line] = found.lines;
    this.lastLine = line?.steps ? line : null;
    // On an axis that goes up and down lines are a tangle, and no stretch of steps has one place.
    const rising = !this.lastLine || isRising(/** @type {{x: number[]}} */ (this.lastLine).x);
    if (!rising) for (const one of found.lines) one.dots = true;
    /** @type {[number, number]} */
    let range = found.ranges.length
      ? [Math.min(...found.ranges.map((one) => one[0])), Math.max(...found.ranges.map((one) => one[1]))]
      : [0, 1];
    if (found.ranges.length) range = withDead(range, found.dead);
    this.plot.draw({
      width,
      height,
      margin: MARGIN,
      xRange: this.localRange || (this.own ? spanOf(found.lines) : axis.range(found, window)),
      axis: axis.axis,
      yRange: this.yRange(range),
      log: this.given.log,
      colors,
      font: this.config.font,
      lines: [...found.ghosts, ...found.behind, ...found.lines],
      ...(rising && !this.own ? shapes(view, colors, false, axis) : {}),
      notes: () => (rising && !this.own ? notesOf(view, colors, axis) : []),
      marks: found.marks,
      none: found.seen.every(Boolean) ? [...new Set(found.seen)].join(", ") : "",
    });
    this.writeLegend(found.named, found.left);
  }

  /** The lines of the chart's metrics, and what stands around them. */
  collect(server, window, columns, colors) {
    const budget = this.config.limits.panel_points;
    const column = server && this.given.smooth > 0 ? "smoothed" : "values";
    const source = server || this.page.store;
    const names = this.metrics();
    const found = {
      first: /** @type {string | null} */ (null),
      lines: /** @type {any[]} */ ([]),
      behind: /** @type {any[]} */ ([]),
      ghosts: /** @type {any[]} */ ([]),
      named: /** @type {{name: string, color: string}[]} */ ([]),
      marks: /** @type {any[]} */ ([]),
      ranges: /** @type {number[][]} */ ([]),
      dead: /** @type {number[]} */ ([]),
      seen: /** @type {string[]} */ ([]),
      thinned: false,
      effective: /** @type {any[]} */ ([]),
      discarded: /** @type {any[]} */ ([]),
      left: 0,
    };
    for (const name of names) {
      const lines = source.effective(name, window);
      if (lines.length) found.first ||= name;
      if (this.page.settings.ghosts)
        this.addGhosts(found, source, name, window, lines, { budget, column, colors, names });
      for (const line of this.panel.per_rank ? lines : lines.slice(0, 1)) {
        if (found.named.length >= this.config.limits.lines) {
          found.left += 1;
          continue;
        }
        const color = colors.series[found.named.length % colors.series.length];
        const words = this.lineWords(name, line, names.length > 1);
        found.named.push({ name: words, color });
        if (this.given.hidden.includes(words)) continue;
        found.effective.push(line);
        const xy = lineXY(line, window, budget, column, columns);
        if (column === "smoothed") {
          const raw = lineXY(line, window, budget, "values", columns);
          found.behind.push({ ...raw, name: "raw", color, opacity: BEHIND, width: 1, hover: false });
        }
        const thick = column === "smoothed" || xy.band || xy.x.length <= columns;
        const more = { metric: name, rank: line.rank, node: line.node };
        found.lines.push({ ...xy, ...more, name: words, color, width: thick ? 1.5 : 1 });
        const values = visibleValues(line.pieces, window);
        found.thinned ||= Boolean(source.isThinned?.(name));
        found.seen.push(noNumber(values, !found.thinned));
        if (values.length) found.ranges.push(robustRange(values, []));
        for (const mark of nonFiniteMarks([line], [], window).slice(0, MARKS))
          found.marks.push({ ...mark, color: colors.critical });
      }
    }
    return found;
  }

  addGhosts(found, source, name, window, lines, { budget, column, colors, names }) {
    const lowest = lines.length ? lines[0].rank : null;
    const dead = source
      .dead(name, window)
      .filter((stretch) => this.panel.per_rank || !lines.length || stretch.rank === lowest);
    if (!dead.length) return;
    found.ghosts.push({
      ...ghostXY(dead, window, budget / 2, column),
      color: colors.ghost,
      width: 1.1,
      dash: [5, 3],
      opacity: names.length > 1 || this.panel.per_rank ? 0.5 : 0.85,
      hover: false,
    });
    found.dead.push(...visibleValues(dead, window));
    found.discarded.push(...dead);
  }

  /** What a line is called among the others. */
  lineWords(name, line, several) {
    const short = shortName(name, this.given.metrics);
    if (!this.panel.per_rank) return short;
    const who = line.rank === null ? line.node : `rank ${line.rank}`;
    return several ? `${short} ${who}` : who;
  }

  /** The y axis: what people zoomed to, else what shows the lines. */
  yRange(range) {
    const wanted = this.given.yRange && (!this.given.log || this.given.yRange[1] > 0) ? this.given.yRange : null;
    if (wanted) return this.given.log ? axisRange(wanted, true) : wanted;
    return calmRange(this.memory, "y", axisRange(range, this.given.log));
  }

  drawMixture({ lines, areas, marks, range }, width, height, colors) {
    const axis = axisOf(this.page, "step");
    this.lastLine = null;
    this.plot.draw({
      width,
      height,
      margin: MARGIN,
      xRange: this.page.look.stepRange(),
      axis: axis.axis,
      yRange: this.given.yRange || axisRange(range, false),
      colors,
      font: this.config.font,
      lines: lines.filter((line) => !this.given.hidden.includes(line.name)),
      areas,
      marks,
      ...shapes(this.page.view(), colors, false),
      notes: () => notesOf(this.page.view(), colors, axis),
    });
    const named = lines.filter((line) => line.name);
    this.writeLegend(named, this.page.mixture.curves.sets.length - named.length);
  }

  writeLegend(lines, left) {
    if (!this.legend) return;
    const shown = lines.length > 1 || left || lines.some(({ name }) => this.given.hidden.includes(name)) ? lines : [];
    const key = JSON.stringify([shown.map(({ name, color }) => [name, color]), left, this.given.hidden, this.trouble]);
    if (key === this.legendKey) return;
    this.legendKey = key;
    const all = shown.map(({ name }) => name);
    const toggle = (name, alone) => this.set({ hidden: toggled(this.given.hidden, name, all, alone) });
    patch(
      this.legend,
      this.trouble ? h("span.key.chart-trouble", { title: this.trouble }, "x axis: step") : null,
      shown.map(({ name, color }) => {
        const on = !this.given.hidden.includes(name);
        return h(
          "button",
          {
            class: on ? "key" : "key off",
            title: `${name}: click to ${on ? "hide" : "show"}, Alt and click for this line alone`,
            "aria-pressed": String(on),
            data: { line: name },
            onclick: (event) => toggle(name, event.altKey),
            ondblclick: () => toggle(name, true),
          },
          h("i", { style: { background: color } }),
          cutName(name),
        );
      }),
      left ? h("span.key", `+ ${left} more`) : null,
    );
  }
}
