// Wheel, pan, pinch and the y axis of a chart. The plain wheel is the page's: only with Ctrl (or Cmd, or two fingers on a
// trackpad) does it zoom, sideways or with Shift it pans. Shift and drag, or the middle button, pan. A drag on the y axis
// zooms it. A double click shows all again, on the y axis only its range.

import { moved, scaled } from "./zoom_range.js";

/** @typedef {import("./chart_pointer.js").Events} Events */

/** What one pixel of the wheel makes of what is seen: a notch of 100 makes it 1.25 times as wide. */
const WHEEL = 0.00223;
/** A wheel that counts lines: pixels of one. */
const LINE_PX = 33;
/** A drag on the y axis shorter than this is a click, pixels. */
const DRAG_PX = 5;

export class Gestures {
  /**
   * @param {HTMLElement} element
   * @param {import("./line_chart.js").Plot} plot
   * @param {Events} events
   */
  constructor(element, plot, events) {
    this.element = element;
    this.plot = plot;
    this.events = events;
    /** What was asked for and is not drawn yet. @type {number[] | null} */
    this.wanted = null;
    this.frame = 0;
    /** Fingers on the chart: id -> x. @type {Map<number, number>} */
    this.fingers = new Map();
    /** @type {{kind: "pan" | "pinch" | "y", x: number, y: number, range: number[], row: number, places?: number[]} | null} */
    this.now = null;
    element.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    element.addEventListener("dblclick", (event) => this.onDouble(event));
    // The middle button scrolls a page in some browsers.
    element.addEventListener("mousedown", (event) => event.button === 1 && event.preventDefault());
  }

  /** Pixels from the chart's corner, also outside of the plot. @param {MouseEvent} event */
  at(event) {
    const box = this.element.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  /** The range that is seen, or will be. */
  range() {
    return this.wanted || /** @type {import("./line_chart.js").Spec} */ (this.plot.spec).xRange;
  }

  /** Ask for a range; of many in one frame the last one counts. @param {number[]} range */
  zoom(range) {
    if (!range.every(Number.isFinite)) return;
    this.wanted = range;
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      if (this.wanted) this.events.onZoom(this.wanted);
    });
  }

  /** It is drawn. */
  drawn() {
    if (!this.frame) this.wanted = null;
  }

  /** @param {WheelEvent} event */
  onWheel(event) {
    if (!this.plot.spec) return;
    const unit = event.deltaMode === 1 ? LINE_PX : 1;
    const sideways = event.deltaX || (event.shiftKey ? event.deltaY : 0);
    const [low, high] = this.range();
    const { left, right } = this.plot.inner;
    if (event.ctrlKey || event.metaKey) {
      const x = Math.min(right, Math.max(left, this.at(event).x));
      const at = low + ((x - left) / (right - left)) * (high - low);
      this.zoom(scaled([low, high], at, Math.exp(WHEEL * unit * event.deltaY)));
    } else if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY))
      this.zoom(moved([low, high], ((unit * sideways) / (right - left)) * (high - low)));
    else return;
    event.preventDefault();
  }

  /** The row of the chart whose y axis is under a pixel, -1 for none. */
  rowAt({ x, y }) {
    if (x >= this.plot.inner.left) return -1;
    return this.plot.rows.findIndex((row) => {
      const { top, bottom } = this.plot.boxOf(row);
      return y >= top && y <= bottom;
    });
  }

  /** A value of a row at a pixel. */
  valueAt(row, y) {
    const { top, bottom } = this.plot.boxOf(this.plot.rows[row]);
    const [low, high] = this.plot.rows[row].yRange;
    const at = low + ((bottom - Math.min(bottom, Math.max(top, y))) / (bottom - top)) * (high - low);
    return this.plot.rows[row].log ? 10 ** at : at;
  }

  /** Whether it begins something other than a selection of x. @param {PointerEvent} event */
  down(event) {
    const { x, y } = this.at(event);
    const range = [...this.range()];
    if (event.pointerType === "touch") this.fingers.set(event.pointerId, x);
    if (this.fingers.size === 2) {
      const places = [...this.fingers.values()].map((one) => this.plot.fromX(one));
      this.now = { kind: "pinch", x, y, range, row: -1, places };
      return true;
    }
    const row = this.events.onY ? this.rowAt({ x, y }) : -1;
    if (event.button === 0 && row >= 0) this.now = { kind: "y", x, y, range, row };
    else if (event.button === 1 || (event.button === 0 && event.shiftKey))
      this.now = { kind: "pan", x, y, range, row: -1 };
    return this.now !== null;
  }

  /** Whether something other than a selection of x goes on. @param {PointerEvent} event */
  move(event) {
    const { x, y } = this.at(event);
    if (this.fingers.has(event.pointerId)) this.fingers.set(event.pointerId, x);
    if (!this.now) {
      this.element.classList.toggle("on-y", Boolean(this.events.onY) && this.rowAt({ x, y }) >= 0);
      return false;
    }
    const { left, right } = this.plot.inner;
    const { kind, range, row } = this.now;
    if (kind === "pan") this.zoom(moved(range, ((this.now.x - x) / (right - left)) * (range[1] - range[0])));
    else if (kind === "pinch") this.pinch();
    else {
      const { top, bottom } = this.plot.boxOf(this.plot.rows[row]);
      const [from, to] = [this.now.y, Math.min(bottom, Math.max(top, y))];
      const { pointer } = this.plot;
      pointer.select({ left, width: right - left, top: Math.min(from, to), height: Math.abs(to - from) });
      pointer.selection.hidden = Math.abs(to - from) < DRAG_PX;
    }
    return true;
  }

  /** What was under two fingers stays under them. */
  pinch() {
    const [a, b] = [...this.fingers.values()];
    const [from, to] = this.now?.places || [0, 0];
    if (Math.abs(b - a) < DRAG_PX || from === to || (to - from) * (b - a) < 0) return;
    const { left, right } = this.plot.inner;
    const pixel = (to - from) / (b - a);
    const low = from - (a - left) * pixel;
    this.zoom([low, low + (right - left) * pixel]);
  }

  /** Whether it ended something other than a selection of x. @param {PointerEvent} event */
  up(event) {
    this.fingers.delete(event.pointerId);
    const { now } = this;
    this.now = null;
    if (now?.kind === "y" && this.events.onY) {
      const y = this.at(event).y;
      if (Math.abs(y - now.y) < DRAG_PX) return true;
      const ends = [now.y, y].map((one) => this.valueAt(now.row, one)).sort((a, b) => a - b);
      if (ends[1] > ends[0]) this.events.onY(ends, now.row);
    }
    return now !== null;
  }

  /** @param {MouseEvent} event */
  onDouble(event) {
    const row = this.events.onY ? this.rowAt(this.at(event)) : -1;
    if (row >= 0) this.events.onY?.(null, row);
    else this.events.onReset();
  }
}
