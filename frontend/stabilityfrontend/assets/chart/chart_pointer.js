// Pointer and keys over a line chart: a crosshair with the values under it, drag to zoom. Wheel, pan, pinch and the y axis
// are in `chart_gestures.js`, what is read out in `readout.js`.

import { summaryOf } from "../chart_files/summary.js";
import { fill, h, setShown, setText } from "../core/dom.js";
import { Gestures } from "../pointer/chart_gestures.js";
import { chipParts, found, nearestIndex, tipParts } from "../pointer/readout.js";
import { moved, scaled } from "../pointer/zoom_range.js";

/**
 * What a chart does: `onZoom` with a range of its x axis, `onReset`, `onCursor` with a place on it (null: away), `onY` with
 * a range of values of a row, null for its own. With `label` the chart can be reached by keys and is called so.
 * @typedef {{onZoom: (range: number[]) => void, onReset: () => void, onCursor: (x: number | null) => void,
 *   onY?: (range: number[] | null, row: number) => void, label?: string}} Events
 * @typedef {import("./line_chart.js").Line} Line
 */

/** A drag shorter than this is a click, pixels. */
const DRAG_PX = 5;
/** Points that an arrow goes with Shift. */
const FAST = 10;
/** How many times as wide a key makes what is seen, and how far it goes on where the cursor leaves it, shares of that. */
const [KEY_ZOOM, KEY_PAN] = [2, 0.5];
/** A chart is put into words anew this often at most, and whenever the keyboard comes to it. */
const DESCRIBED_MS = 10_000;
/** Tells the words of one chart from those of another. */
const made = { charts: 0 };
/** What a chart that keys reach is called after its name. */
const KEYS = "arrows read values, plus and minus zoom, 0 shows all";

export class ChartPointer {
  /**
   * @param {HTMLElement} element
   * @param {import("./line_chart.js").Plot} plot
   * @param {Events} events
   */
  constructor(element, plot, events) {
    this.element = element;
    this.plot = plot;
    this.events = events;
    this.cross = h("div.cross", { hidden: true });
    this.selection = h("div.selection", { hidden: true });
    this.tip = h("div.tip", { hidden: true });
    this.chip = h("div.tip.at-cursor", { hidden: true });
    this.summary = h("p.unseen");
    this.described = -DESCRIBED_MS;
    this.parts = [this.cross, this.selection, this.tip, this.chip, this.summary];
    this.over = false;
    /** @type {number | null} */
    this.cursor = null;
    /** @type {number | null} */
    this.dragged = null;
    /** The flag under the pointer. @type {import("./line_chart.js").Label | null} */
    this.flag = null;
    this.gestures = new Gestures(element, plot, events);
    element.addEventListener("pointermove", (event) => this.onMove(event));
    element.addEventListener("pointerleave", () => this.leave());
    element.addEventListener("pointerdown", (event) => this.onDown(event));
    element.addEventListener("pointerup", (event) => this.onUp(event));
    element.addEventListener("pointercancel", (event) => this.onUp(event, true));
    if (events.label) this.name(events.label);
  }

  /** Make the chart reachable by keys, under this name. @param {string} label */
  name(label) {
    const { element } = this;
    const words = `${label}: ${KEYS}`;
    if (element.getAttribute("aria-label") === words) return;
    element.setAttribute("aria-label", words);
    if (element.tabIndex === 0) return;
    element.tabIndex = 0;
    element.setAttribute("role", "figure");
    made.charts += 1;
    this.summary.id = `chart-words-${made.charts}`;
    element.setAttribute("aria-describedby", this.summary.id);
    element.addEventListener("focus", () => this.describe(true));
    element.addEventListener("keydown", (event) => this.onKey(event));
    element.addEventListener("blur", () => this.leave());
  }

  /** Put what is drawn into words. */
  describe(now = false) {
    const { spec, rows } = this.plot;
    const time = performance.now();
    if (!spec || !this.summary.id || (!now && time - this.described < DESCRIBED_MS)) return;
    if (rows.some((row) => row.lines.length)) this.described = time;
    setText(this.summary, summaryOf(spec, rows));
  }

  /** Pixels from the chart's corner. @param {PointerEvent} event */
  pixels(event) {
    const box = this.element.getBoundingClientRect();
    const { left, right } = this.plot.inner;
    return { x: Math.min(right, Math.max(left, event.clientX - box.left)), y: event.clientY - box.top };
  }

  /** @param {PointerEvent} event */
  onMove(event) {
    if (!this.plot.spec || this.gestures.move(event)) return;
    const { x, y } = this.pixels(event);
    const { top, bottom } = this.plot.inner;
    this.over = true;
    if (this.dragged !== null) {
      const from = this.dragged;
      this.select({ left: Math.min(from, x), width: Math.abs(x - from), top, height: bottom - top });
      setShown(this.selection, Math.abs(x - from) >= DRAG_PX);
    }
    const hit = this.plot.flags.find(({ box }) => x >= box.left && x <= box.right && y >= box.top && y <= box.bottom);
    this.flag = hit ? hit.label : null;
    this.events.onCursor(this.plot.fromX(x));
  }

  /** @param {{[side: string]: number}} box */
  select(box) {
    for (const [side, pixels] of Object.entries(box)) this.selection.style.setProperty(side, `${pixels}px`);
  }

  leave() {
    this.over = false;
    this.flag = null;
    this.tip.removeAttribute("aria-live");
    this.events.onCursor(null);
  }

  /** @param {PointerEvent} event */
  onDown(event) {
    if (!this.plot.spec) return;
    if (this.gestures.down(event)) this.endDrag();
    else if (event.button === 0) this.dragged = this.pixels(event).x;
    else return;
    this.element.setPointerCapture(event.pointerId);
  }

  /** @param {PointerEvent} event */
  onUp(event, away = false) {
    const from = this.dragged;
    this.endDrag();
    if (this.gestures.up(event) || away || from === null || !this.plot.spec) return;
    const { x } = this.pixels(event);
    if (Math.abs(x - from) >= DRAG_PX)
      this.events.onZoom([this.plot.fromX(Math.min(from, x)), this.plot.fromX(Math.max(from, x))]);
  }

  endDrag() {
    this.dragged = null;
    setShown(this.selection, false);
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    const { spec, rows } = this.plot;
    const line = rows.flatMap((row) => row.lines).findLast((one) => one.hover !== false && !one.near && one.x.length);
    if (!spec || event.target !== this.element || event.ctrlKey || event.metaKey || event.altKey) return;
    const [low, high] = this.gestures.range();
    const { key } = event;
    if (key === "Escape" || key === "0") {
      this.leave();
      this.events.onReset();
    } else if (key === "+" || key === "=" || key === "-") {
      const at = this.cursor !== null && this.cursor >= low && this.cursor <= high ? this.cursor : (low + high) / 2;
      this.gestures.zoom(scaled([low, high], at, key === "-" ? KEY_ZOOM : 1 / KEY_ZOOM));
    } else if (line && ["ArrowLeft", "ArrowRight", "Home", "End"].includes(key)) {
      const last = line.x.length - 1;
      const now = this.cursor === null ? last + 1 : nearestIndex(line, this.cursor);
      const by = (key === "ArrowLeft" ? -1 : 1) * (event.shiftKey ? FAST : 1);
      const at = key === "Home" ? 0 : key === "End" ? last : Math.max(0, Math.min(last, now + by));
      const x = line.x[at];
      // A line goes on for a point on each side of what is seen: there the chart follows.
      if (x < low || x > high) this.gestures.zoom(moved([low, high], (x < low ? -1 : 1) * KEY_PAN * (high - low)));
      this.over = true;
      this.tip.setAttribute("aria-live", "polite");
      this.events.onCursor(x);
    } else return;
    event.preventDefault();
  }

  /** What is read out at an x. @param {number} at */
  found(at) {
    return found(this.plot, at);
  }

  /** Put the crosshair at an x (null: away), and the values under it beside the pointer. @param {number | null} at */
  place(at) {
    this.cursor = at;
    const { spec, inner } = this.plot;
    const inside = spec && at !== null && at >= spec.xRange[0] && at <= spec.xRange[1];
    setShown(this.cross, Boolean(inside));
    setShown(this.tip, Boolean(inside && this.over));
    if (!inside || this.over) setShown(this.chip, false);
    if (!spec || !inside || at === null) return;
    const there = this.found(at);
    const x = this.plot.toX(there.x);
    Object.assign(this.cross.style, { left: `${x}px`, top: `${inner.top}px`, height: `${inner.bottom - inner.top}px` });
    const words = this.over ? this.tip : this.chip;
    if (this.over && this.flag?.tip)
      fill(
        words,
        this.flag.tip.map(([bold, plain]) => h("div", bold && h("b", `${bold} `), plain)),
      );
    else fill(words, this.over ? tipParts(spec, there) : chipParts(there));
    if (!this.over) setShown(this.chip, words.childElementCount > 0);
    const right = x > (inner.left + inner.right) / 2;
    Object.assign(words.style, {
      left: right ? "auto" : `${x + 10}px`,
      right: right ? `${spec.width - x + 10}px` : "auto",
      top: `${inner.top}px`,
    });
  }
}
