// Pointer and keys over a line chart: a crosshair with the values under it, drag to zoom, wheel, pan and pinch, drags on
// the y axis. The readout is in `readout.js`.

import { fill, h, setShown, setText } from "../core/dom.js";
import { formatValue, plural } from "../core/format.js";
import { chipParts, found, moved, nearestIndex, scaled, tipParts } from "./readout.js";

// -- Wheel, pan, pinch and the y axis of a chart. The plain wheel is the page's: only with Ctrl (or Cmd, or two fingers on a
// trackpad) does it zoom, sideways or with Shift it pans. Shift and drag, or the middle button, pan. A drag on the y axis
// zooms it. A double click shows all again, on the y axis only its range.

/** What one pixel of the wheel makes of what is seen: a notch of 100 makes it 1.25 times as wide. */
const WHEEL = 0.00223;
/** A wheel that counts lines: pixels of one. */
const LINE_PX = 33;
/** A drag shorter than this is a click, pixels. */
const DRAG_PX = 5;

export class Gestures {
  /**
   * @param {HTMLElement} element
   * @param {import("../chart/line_chart.js").Plot} plot
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
    return this.wanted || /** @type {import("../chart/line_chart.js").Spec} */ (this.plot.spec).xRange;
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

// -- A chart in words, for those who do not see it.

/** Lines that are put into words, and notes. */
const [LINES, NOTES] = [8, 5];
/** Part of the points at each end whose means say where a line goes, and what of its height is still level. */
const [END, LEVEL] = [0.2, 0.1];

/** Where a line goes: up, down, or about level, by the means of its first and its last fifth. */
export function trend(values) {
  const known = values.filter((value) => value !== null && Number.isFinite(value));
  if (known.length < 5) return "";
  const count = Math.max(1, Math.floor(END * known.length));
  const mean = (list) => list.reduce((sum, value) => sum + value / list.length, 0);
  const by = mean(known.slice(-count)) - mean(known.slice(0, count));
  const height =
    known.reduce((most, value) => Math.max(most, value), -Infinity) -
    known.reduce((least, value) => Math.min(least, value), Infinity);
  if (!(Math.abs(by) > LEVEL * height)) return "about level";
  return by > 0 ? "rising" : "falling";
}

/** One line in words: its newest, lowest and highest point in sight, and where it goes. */
function lineWords({ name, x, y, band }, words) {
  let newest = -1;
  let [low, high] = [
    { x: 0, value: Infinity },
    { x: 0, value: -Infinity },
  ];
  const look = (at, value) => {
    if (value < low.value) low = { x: at, value };
    if (value > high.value) high = { x: at, value };
  };
  y.forEach((value, index) => {
    if (value !== null) newest = index;
    if (band && band.low[index] !== null) {
      look(band.lowX[index], band.low[index]);
      look(band.highX[index], band.high[index]);
    } else if (value !== null) look(x[index], value);
  });
  if (newest < 0) return `${name} has no number here.`;
  const goes = trend(y);
  const of = (point) => `${formatValue(point.value)} at ${words(point.x)}`;
  return `${name}: newest ${of({ value: y[newest], x: x[newest] })}, lowest ${of(low)}, highest ${of(high)}${goes ? `, ${goes}` : ""}.`;
}

/** All of a chart in words. `spec` as it was drawn, `rows` of the plot. */
export function summaryOf(spec, rows) {
  const lines = rows.flatMap((row) => row.lines).filter((line) => line.hover !== false && !line.near && line.x.length);
  const marks = rows.flatMap((row) => row.marks).length;
  const [from, to] = spec.xRange;
  const notes = (spec.notes?.() || []).filter((note) => note.to >= from && note.x <= to);
  if (!lines.length) return "No points here.";
  return [
    `From ${spec.axis.words(Math.max(0, from))} to ${spec.axis.words(to)}.`,
    ...lines.slice(0, LINES).map((line) => lineWords(line, spec.axis.words)),
    lines.length > LINES ? `And ${plural(lines.length - LINES, "more line")}.` : "",
    marks ? `${plural(marks, "value")} that ${marks === 1 ? "is" : "are"} NaN or infinite.` : "",
    ...notes.slice(0, NOTES).map((note) => `${note.words}.`),
    notes.length > NOTES ? `And ${plural(notes.length - NOTES, "more event")}.` : "",
  ]
    .filter(Boolean)
    .join(" ");
}

/**
 * What a chart does: `onZoom` with a range of its x axis, `onReset`, `onCursor` with a place on it (null: away), `onY` with
 * a range of values of a row, null for its own. With `label` the chart can be reached by keys and is called so.
 * @typedef {{onZoom: (range: number[]) => void, onReset: () => void, onCursor: (x: number | null) => void,
 *   onY?: (range: number[] | null, row: number) => void, label?: string}} Events
 * @typedef {import("./line_chart.js").Line} Line
 */

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
