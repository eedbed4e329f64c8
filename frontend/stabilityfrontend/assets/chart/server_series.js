// Lines that the server makes over the true points: on another x axis, smoothed. They live beside the store, follow the
// run by cursor, and are cut by the same lineage.

import { api } from "../core/api.js";
import { derivedOptions, firstRequests } from "../core/first_requests.js";
import { errorText } from "../core/format.js";
import { addBuckets, noBuckets } from "./buckets.js";
import { lowerBound } from "./downsample.js";
import { deadStretches, effectiveLines, entryOf, grouped, joined, put, segmentLines } from "./series_store.js";
import { clockMs } from "./ticks.js";

/** Between two questions for what is new, at least. */
const ASK_MS = 1000;
/** Wait for the slider to rest. */
const REST_MS = 120;
/** New points beside those of the first answer; then it is asked for anew, thinned by the server. */
const MORE_POINTS = 6000;

/**
 * For whom lines are made: which (`settings`: x, smooth), of which metrics, how many points; `shown` is told when they came.
 * @typedef {{settings: {x: string, smooth: number}, names: () => string[], points: number, shown: () => void}} Wish
 */

/** What the large chart wishes. @returns {Wish} */
const ofLarge = (page) => ({
  settings: page.settings,
  names: () => [...new Set([...firstRequests.fine, page.metric(), page.below()])].filter(Boolean),
  points: firstRequests.points.fine,
  shown: () => page.board.mark(page.focus),
});

export class Derived {
  /**
   * `page`: id, store, metric(), settings ({x, smooth}), zoom, board. `onTrouble(words)` when it can't be had; `wish` is
   * the large chart's unless others are named (panel_lines.js).
   */
  constructor(page, onTrouble, wish = ofLarge(page)) {
    this.page = page;
    this.wish = wish;
    this.onTrouble = onTrouble;
    this.asks = 0;
    /** @type {any} */
    this.timer = null;
    /** @type {any} */
    this.rest = null;
    /** What the server made of all that is shown, and of a zoom. @type {any} */
    this.whole = null;
    /** @type {any} */
    this.detail = null;
    this.more = 0;
    this.clear();
  }

  clear() {
    this.asks += 1;
    clearTimeout(this.timer);
    clearTimeout(this.rest);
    this.timer = null;
    this.cursor = null;
    this.more = 0;
    this.whole = null;
    this.detail = null;
    this.key = "";
  }

  /** Whether lines of the server's making are wanted. */
  active() {
    const { x, smooth } = this.wish.settings;
    return x !== "step" || smooth > 0;
  }

  /** Whether they are here. */
  ready() {
    return this.active() && this.whole !== null && this.axis === this.wish.settings.x;
  }

  names() {
    return this.wish.names();
  }

  /** The request for them. */
  options(more) {
    return derivedOptions(this.wish.settings, { points: this.wish.points, ...more });
  }

  /** The settings changed: ask for the lines, when the slider rests. What was drawn stays until they come. */
  change() {
    if (!this.active()) {
      this.clear();
      return;
    }
    clearTimeout(this.rest);
    const fresh = this.whole === null;
    this.rest = setTimeout(() => this.fetch(), fresh ? 0 : REST_MS);
  }

  async fetch() {
    const { page } = this;
    const { x } = this.wish.settings;
    const ask = (this.asks += 1);
    try {
      const answers = await api.series(page.id, this.names(), this.options());
      if (page.gone || ask !== this.asks) return;
      const series = answers.flatMap((answer) => answer.series);
      this.axis = x;
      this.whole = new Map();
      this.detail = null;
      this.more = 0;
      this.cursor = answers[0].cursor || null;
      add(this.whole, series, x);
      this.shown();
      if (page.zoom.range) this.fetchDetail(page.zoom.range);
    } catch (error) {
      if (!page.gone && ask === this.asks) this.onTrouble(errorText(error));
    }
  }

  /** The window of a zoom in full detail. */
  async fetchDetail(range) {
    const { page } = this;
    if (!this.active() || !this.whole) return;
    const span = range[1] - range[0];
    const [start, stop] = [Math.max(0, Math.floor(range[0] - 0.1 * span)), Math.ceil(range[1] + 0.1 * span)];
    const ask = this.asks;
    try {
      const answers = await api.series(page.id, this.names(), this.options({ start, stop }));
      if (page.gone || ask !== this.asks || page.zoom.range !== range) return;
      this.detail = { start, stop, metrics: new Map() };
      add(
        this.detail.metrics,
        answers.flatMap((answer) => answer.series),
        this.wish.settings.x,
      );
      this.shown();
    } catch {
      // The thinned lines stay on the screen.
    }
  }

  /** Points came: ask for what is new of these lines, once a second. */
  onPoints() {
    if (this.timer || !this.ready() || document.hidden) return;
    this.timer = setTimeout(() => {
      this.timer = null;
      this.fetchMore();
    }, ASK_MS);
  }

  async fetchMore() {
    const { page } = this;
    if (!this.ready()) return;
    if (!this.cursor || this.more > MORE_POINTS) {
      this.fetch();
      return;
    }
    const ask = this.asks;
    try {
      const answers = await api.series(page.id, this.names(), this.options({ cursor: this.cursor }));
      if (page.gone || ask !== this.asks) return;
      const series = answers.flatMap((answer) => answer.series);
      if (answers.some((answer) => answer.complete !== false)) {
        this.whole = new Map();
        this.more = 0;
      } else this.more += series.reduce((sum, one) => sum + one.steps.length, 0);
      add(this.whole, series, this.wish.settings.x);
      if (this.detail) add(this.detail.metrics, series, this.wish.settings.x, this.detail);
      this.cursor = answers[0].cursor || this.cursor;
      this.shown();
    } catch {
      // The live feed says that the server is away; with the next point it is asked again.
    }
  }

  shown() {
    this.wish.shown();
  }

  /** @param {number[] | null} [window] */
  entries(name, window) {
    const inside = this.detail && window && window[0] >= this.detail.start && window[1] <= this.detail.stop;
    const entries = (inside ? this.detail.metrics : this.whole || new Map()).get(name);
    return entries ? entries.values() : [];
  }

  effective(name, window) {
    return effectiveLines(this.entries(name, window), (segment) => this.page.store.aliveUpTo(segment));
  }

  dead(name, window) {
    return deadStretches(this.entries(name, window), (segment) => this.page.store.aliveUpTo(segment));
  }

  alone(name, segment, window) {
    return segmentLines(this.entries(name, window), segment);
  }

  /** Where a segment begins on the x axis: at its own first point, for what its parent had there was long before. */
  begins(name, segment) {
    const firsts = [...(this.whole ? this.entries(name) : [])]
      .filter((entry) => entry.segment === segment.id && !entry.stray && entry.xs && Number.isFinite(entry.xs[0]))
      .map((entry) => entry.xs[0]);
    if (firsts.length) return Math.min(...firsts);
    return this.axis === "time" && segment.created ? clockMs(segment.created) : null;
  }

  /** Where a step of a segment is on the x axis, between its neighbours; null where that is not known. */
  place(name, step, segment) {
    let best = /** @type {{distance: number, entry: any} | null} */ (null);
    for (const entry of this.whole ? this.entries(name) : []) {
      if (!entry.xs || !entry.steps.length || entry.stray) continue;
      const last = entry.steps.length - 1;
      const off =
        step < entry.steps[0] ? entry.steps[0] - step : step > entry.steps[last] ? step - entry.steps[last] : 0;
      // The segment itself speaks best for its steps, then the one that comes nearest to having them.
      const distance = off + (entry.segment === segment && off === 0 ? -1 : 0);
      if (best === null || distance < best.distance) best = { distance, entry };
    }
    if (!best) return null;
    const { steps, xs } = best.entry;
    const at = Math.min(steps.length - 1, lowerBound(steps, step));
    if (at === 0 || steps[at] <= step) return xs[at];
    const share = (step - steps[at - 1]) / (steps[at] - steps[at - 1]);
    return xs[at - 1] + share * (xs[at] - xs[at - 1]);
  }
}

/** Put answers into maps by metric; a wall clock's seconds become what a clock here shows. */
function add(metrics, series, x, bounds) {
  const wanted = bounds ? (step) => step >= bounds.start && step <= bounds.stop : () => true;
  for (const group of grouped(series)) {
    const columns = joined(group);
    if (x === "time" && columns.xs)
      columns.xs = columns.xs.map((seconds) => (seconds === null ? null : clockMs(seconds)));
    const [one] = group;
    if (!metrics.has(one.metric)) metrics.set(one.metric, new Map());
    const entry = entryOf(metrics.get(one.metric), one.segment, one.rank, one.node, group.stray);
    if (!entry.steps.length && !bounds) Object.assign(entry, columns);
    else {
      for (const name of ["xs", "smoothed"])
        if (columns[name] && !entry[name]) entry[name] = entry.steps.map(() => null);
      for (const part of group)
        if (part.buckets && !bounds) {
          entry.buckets = entry.buckets || noBuckets();
          addBuckets(entry.buckets, part);
        }
      columns.steps.forEach((step, index) => {
        if (wanted(step))
          put(entry, step, columns.values[index], {
            xs: columns.xs && columns.xs[index],
            smoothed: columns.smoothed && columns.smoothed[index],
          });
      });
    }
  }
}
