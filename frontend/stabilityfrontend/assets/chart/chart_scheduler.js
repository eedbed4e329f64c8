// Draws charts: only those in sight, each at most so often, a few milliseconds a frame. Points coalesce meanwhile; none
// is dropped, since each drawing reads the store anew.

/** A chart rests this many times as long as its drawing took: the page is one of many things that a machine does. */
const REST = 10;
/**
 * One whose points came rests this many times as long as all charts in sight take, the large one half of it, at most so
 * long: what the browser does after a drawing costs a multiple of the drawing.
 */
const LIVE_REST = 40;
const LIVE_MS = 2000;
/** Charts whose points came share frames, at most so far apart: every frame costs as much as some drawings. */
const FRAME_MS = 390;
/** Up to here a chart's rest is waited for frame by frame. */
const SOON_MS = 20;

/** What was drawn and when, for benchmarks and tests: the newest records, `drawnAt` in unix seconds. */
export const drawLog = { lastDrawn: null, drawn: /** @type {any[]} */ ([]), frames: 0, first: {} };

/** Changes of a zoom that come closer than this belong to one move: of a wheel, of a finger. */
const MOVE_MS = 180;

/**
 * The x range that all charts share. `range` null follows the data. `listeners` hear of each change, `rested` of the
 * first of a move and of where it ended: a drag, which is one change, waits for nothing.
 */
export class Zoom {
  constructor() {
    this.range = null;
    this.listeners = new Set();
    this.rested = new Set();
    this.changed = Number.NEGATIVE_INFINITY;
    this.timer = /** @type {any} */ (null);
  }

  set(range) {
    this.range = range;
    for (const listener of this.listeners) listener(range);
    const now = performance.now();
    const begins = now - this.changed >= MOVE_MS;
    this.changed = now;
    clearTimeout(this.timer);
    if (begins) this.rest();
    else this.timer = setTimeout(() => this.rest(), MOVE_MS);
  }

  rest() {
    for (const listener of this.rested) listener(this.range);
  }

  close() {
    clearTimeout(this.timer);
  }
}

/**
 * The charts of a page. A chart is `{id, element, interval, metrics(), paint(width, height)}`, `hasLine()` once it shows
 * one, `pointAt(step)`, which puts the shared crosshair, and `close()`, after which it is drawn no more.
 */
export class Board {
  constructor(config, zoom) {
    this.config = config;
    this.zoom = zoom;
    this.charts = new Map();
    this.byElement = new Map();
    this.pending = new Map();
    this.sleeping = true;
    /** Milliseconds that it takes to draw all charts in sight once. */
    this.load = 0;
    /** When a frame with charts whose points came began. */
    this.liveFrame = 0;
    this.first = {};
    /** Called with what was drawn, and in a frame in which something is. */
    this.onDrawn = null;
    this.onFrame = /** @type {(() => void) | null} */ (null);
    this.seen = new IntersectionObserver((entries) => this.onSeen(entries), { rootMargin: "80px" });
    this.sized = new ResizeObserver((entries) => {
      for (const { target } of entries) {
        const chart = this.byElement.get(target);
        if (!chart) continue;
        // Measured here, where the layout is fresh: while charts are drawn each question would make the browser lay out.
        chart.size = [target.clientWidth, target.clientHeight];
        this.mark(chart);
      }
    });
  }

  add(chart) {
    Object.assign(chart, { dirty: true, asked: true, visible: false, drawn: 0, born: false, size: null });
    this.charts.set(chart.id, chart);
    this.byElement.set(chart.element, chart);
    this.seen.observe(chart.element);
    this.sized.observe(chart.element);
  }

  remove(id) {
    const chart = this.charts.get(id);
    if (!chart) return;
    this.charts.delete(id);
    this.byElement.delete(chart.element);
    this.seen.unobserve(chart.element);
    this.sized.unobserve(chart.element);
    chart.close?.();
  }

  onSeen(entries) {
    for (const entry of entries) {
      const chart = this.byElement.get(entry.target);
      if (!chart) continue;
      chart.visible = entry.isIntersecting;
      if (chart.visible && chart.dirty) this.mark(chart);
    }
  }

  mark(chart) {
    if (!chart) return;
    chart.dirty = chart.asked = true;
    if (chart.visible) this.wake();
  }

  markAll() {
    for (const chart of this.charts.values()) chart.dirty = chart.asked = true;
    this.wake();
  }

  /** Points of these metrics came: redraw who shows them. `time` is when they were logged, unix seconds. */
  markMetrics(touched, step, time) {
    for (const name of touched) this.pending.set(name, { step, time });
    for (const chart of this.charts.values()) {
      if (chart.dirty && chart.visible) continue;
      if (!chart.metrics().some((name) => touched.has(name))) continue;
      chart.dirty = true;
      if (chart.visible) this.wake();
    }
  }

  wake() {
    if (!this.sleeping || this.gone) return;
    this.sleeping = false;
    clearTimeout(this.alarm);
    requestAnimationFrame(() => this.frame());
  }

  /** One frame: the chart that waits longest first, until the budget is spent. */
  frame() {
    if (this.gone) return;
    const start = performance.now();
    const waiting = [];
    this.load = 0;
    for (const chart of this.charts.values()) {
      if (!chart.visible) continue;
      this.load += chart.cost || 0;
      if (chart.dirty) waiting.push(chart);
    }
    const due = waiting.filter((chart) => start >= this.dueAt(chart));
    due.sort((a, b) => (a.first === b.first ? a.drawn - b.drawn : a.first ? -1 : 1));
    const drawn = [];
    for (const chart of due) {
      if (drawn.length && performance.now() - start > this.config.limits.frame_budget_ms) break;
      const began = performance.now();
      const alone = chart.first && !chart.born; // the first thing that people see waits for no other chart
      if (!chart.asked) this.liveFrame = start;
      this.draw(chart);
      chart.cost = 0.5 * (chart.cost || 0) + 0.5 * (performance.now() - began);
      drawn.push(chart);
      if (alone) break;
    }
    if (drawn.length) this.record(drawn);
    drawLog.frames += drawn.length ? 1 : 0;
    if (drawn.length) this.onFrame?.();
    const rests = waiting.filter((chart) => chart.dirty).map((chart) => this.dueAt(chart) - performance.now());
    if (rests.some((rest) => rest < SOON_MS)) {
      requestAnimationFrame(() => this.frame());
      return;
    }
    // A frame that is asked for costs the page, though nothing is drawn in it: until the first one is due there is none.
    this.sleeping = true;
    if (rests.length) this.alarm = setTimeout(() => this.wake(), Math.min(...rests) - SOON_MS / 2);
  }

  /** How long a chart waits between two drawings: where they cost much they are drawn less often. */
  pace(chart) {
    const own = REST * (chart.cost || 0);
    const all = Math.min(LIVE_REST * this.load, LIVE_MS) * (chart.first ? 0.5 : 1);
    return Math.max(chart.interval, own, chart.asked ? 0 : all);
  }

  /** When a chart may be drawn again. */
  dueAt(chart) {
    const due = chart.drawn + this.pace(chart);
    const frame = this.liveFrame + Math.min(FRAME_MS, 0.5 * LIVE_REST * this.load);
    return chart.asked ? due : Math.max(due, frame);
  }

  /** Put the crosshair of every chart in sight at a step; null takes it away. */
  pointAt(step) {
    this.cursor = step;
    if (this.pointing) return;
    this.pointing = true;
    requestAnimationFrame(() => {
      this.pointing = false;
      for (const chart of this.charts.values()) if (chart.visible && chart.pointAt) chart.pointAt(this.cursor);
    });
  }

  draw(chart) {
    const { element } = chart;
    const [width, height] = chart.size || [element.clientWidth, element.clientHeight];
    chart.dirty = chart.asked = false; // one without room is marked again when it gets some
    if (width < 40 || height < 40) return;
    chart.drawn = performance.now();
    chart.born = true;
    chart.paint(width, height);
  }

  /** Note what became visible once its frame is on the screen: the start of the next one is after the paint. */
  record(drawn) {
    this.recordFirst(drawn);
    const shown = [];
    for (const chart of drawn) {
      for (const name of chart.metrics()) {
        const point = this.pending.get(name);
        if (point) {
          shown.push({ metric: name, step: point.step, logTime: point.time });
          this.pending.delete(name);
        }
      }
    }
    if (!shown.length) return;
    requestAnimationFrame(() => {
      const drawnAt = Date.now() / 1000;
      for (const one of shown) {
        one.drawnAt = drawnAt;
        drawLog.drawn.push(one);
        drawLog.lastDrawn = one;
      }
      if (drawLog.drawn.length > this.config.limits.drawn_records) {
        drawLog.drawn.splice(0, drawLog.drawn.length - this.config.limits.drawn_records);
      }
      if (this.onDrawn) this.onDrawn(shown);
    });
  }

  /** When each chart first showed a line, in milliseconds since the navigation began: `drawLog.first`. */
  recordFirst(drawn) {
    const fresh = drawn.filter((chart) => !(chart.id in this.first) && chart.hasLine && chart.hasLine());
    if (!fresh.length) return;
    requestAnimationFrame(() => {
      for (const chart of fresh) this.first[chart.id] = performance.now();
      drawLog.first = this.first;
    });
  }

  close() {
    this.gone = true;
    clearTimeout(this.alarm);
    this.seen.disconnect();
    this.sized.disconnect();
    for (const id of [...this.charts.keys()]) this.remove(id);
  }
}
