// Pointer and keys over a line chart: a crosshair with the values under it, drag to zoom, double click to end the zoom.

import { fill, h, setShown } from "../core/dom.js";
import { formatValue } from "../core/format.js";

/**
 * What a chart does: `onZoom` with a range of its x axis, `onReset`, `onCursor` with a place on it (null: away).
 * With `label` the chart can be reached by keys and is called so.
 * @typedef {{onZoom: (range: number[]) => void, onReset: () => void, onCursor: (x: number | null) => void, label?: string}} Events
 * @typedef {import("./line_chart.js").Line} Line
 */

/** A drag shorter than this is a click, pixels. */
const DRAG_PX = 5;
/** A mark is under the pointer when this near, and a line that is `near` when it has a point so near: pixels. */
const [MARK_PX, NEAR_PX] = [7, 20];
/** Marks of one place that are read out. */
const MARKS = 3;
/** Points that an arrow goes with Shift. */
const FAST = 10;

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
    this.cross = h("div", { class: "cross", hidden: true });
    this.selection = h("div", { class: "selection", hidden: true });
    this.tip = h("div", { class: "tip", hidden: true });
    this.parts = [this.cross, this.selection, this.tip];
    this.over = false;
    /** @type {number | null} */
    this.cursor = null;
    /** @type {number | null} */
    this.dragged = null;
    /** The flag under the pointer. @type {import("./line_chart.js").Label | null} */
    this.flag = null;
    element.addEventListener("pointermove", (event) => this.onMove(event));
    element.addEventListener("pointerleave", () => this.leave());
    element.addEventListener("pointerdown", (event) => this.onDown(event));
    element.addEventListener("pointerup", (event) => this.onUp(event));
    element.addEventListener("pointercancel", () => this.endDrag());
    element.addEventListener("dblclick", () => this.events.onReset());
    if (!events.label) return;
    element.tabIndex = 0;
    element.setAttribute("role", "group");
    element.setAttribute("aria-label", `${events.label}: arrows read values, plus zooms in, Escape ends a zoom`);
    element.addEventListener("keydown", (event) => this.onKey(event));
    element.addEventListener("blur", () => this.leave());
  }

  /** Pixels from the chart's corner. @param {PointerEvent} event */
  pixels(event) {
    const box = this.element.getBoundingClientRect();
    const { left, right } = this.plot.inner;
    return { x: Math.min(right, Math.max(left, event.clientX - box.left)), y: event.clientY - box.top };
  }

  /** @param {PointerEvent} event */
  onMove(event) {
    if (!this.plot.spec) return;
    const { x, y } = this.pixels(event);
    const { top, bottom } = this.plot.inner;
    this.over = true;
    if (this.dragged !== null) {
      const from = this.dragged;
      Object.assign(this.selection.style, {
        left: `${Math.min(from, x)}px`,
        width: `${Math.abs(x - from)}px`,
        top: `${top}px`,
        height: `${bottom - top}px`,
      });
      setShown(this.selection, Math.abs(x - from) >= DRAG_PX);
    }
    const hit = this.plot.flags.find(({ box }) => x >= box.left && x <= box.right && y >= box.top && y <= box.bottom);
    this.flag = hit ? hit.label : null;
    this.events.onCursor(this.plot.fromX(x));
  }

  leave() {
    this.over = false;
    this.flag = null;
    this.tip.removeAttribute("aria-live");
    this.events.onCursor(null);
  }

  /** @param {PointerEvent} event */
  onDown(event) {
    if (!this.plot.spec || event.button !== 0) return;
    this.dragged = this.pixels(event).x;
    this.element.setPointerCapture(event.pointerId);
  }

  /** @param {PointerEvent} event */
  onUp(event) {
    const from = this.dragged;
    this.endDrag();
    if (from === null || !this.plot.spec) return;
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
    if (!spec || event.target !== this.element) return;
    if (event.key === "Escape") {
      this.leave();
      this.events.onReset();
    } else if (event.key === "+" && this.cursor !== null) {
      const quarter = (spec.xRange[1] - spec.xRange[0]) / 4;
      this.events.onZoom([this.cursor - quarter, this.cursor + quarter]);
    } else if (line && (event.key === "ArrowLeft" || event.key === "ArrowRight")) {
      const last = line.x.length - 1;
      const at = this.cursor === null ? last + 1 : nearestIndex(line, this.cursor);
      const by = (event.key === "ArrowLeft" ? -1 : 1) * (event.shiftKey ? FAST : 1);
      this.over = true;
      this.tip.setAttribute("aria-live", "polite");
      this.events.onCursor(line.x[Math.max(0, Math.min(last, at + by))]);
    } else return;
    event.preventDefault();
  }

  /** The points to read out at an x, and the x of the nearest one. @param {number} at */
  found(at) {
    const { plot } = this;
    const all = plot.rows
      .flatMap((row) => row.lines)
      .filter((line) => line.hover !== false)
      .map((line) => ({ line, point: nearestPoint(line, at) }));
    let exact = /** @type {number | null} */ (null);
    for (const { line, point } of all)
      if (point && !line.near && (exact === null || Math.abs(point.step - at) < Math.abs(exact - at)))
        exact = point.step;
    const x = exact === null ? at : exact;
    const near = (/** @type {number} */ one, /** @type {number} */ pixels) =>
      Math.abs(plot.toX(one) - plot.toX(x)) <= pixels;
    return {
      x,
      points: all.flatMap(({ line, point }) =>
        point && (!line.near || near(point.step, NEAR_PX)) ? { line, point } : [],
      ),
      marks: [...plot.rows.flatMap((row) => row.marks), ...(plot.spec?.rules || [])]
        .filter((one) => one.words && (near(one.x, MARK_PX) || ("to" in one && one.x <= x && x <= (one.to ?? one.x))))
        .slice(0, MARKS),
    };
  }

  /** Put the crosshair at an x (null: away), and the values under it beside the pointer. @param {number | null} at */
  place(at) {
    this.cursor = at;
    const { spec, inner } = this.plot;
    const inside = spec && at !== null && at >= spec.xRange[0] && at <= spec.xRange[1];
    setShown(this.cross, Boolean(inside));
    setShown(this.tip, Boolean(inside && this.over));
    if (!spec || !inside || at === null) return;
    const found = this.found(at);
    const x = this.plot.toX(found.x);
    Object.assign(this.cross.style, { left: `${x}px`, top: `${inner.top}px`, height: `${inner.bottom - inner.top}px` });
    if (!this.over) return;
    if (this.flag?.tip)
      fill(
        this.tip,
        this.flag.tip.map(([bold, plain]) => h("div", {}, bold && h("b", {}, `${bold} `), plain)),
      );
    else
      fill(
        this.tip,
        h("b", {}, spec.axis.words(found.x)),
        found.points.map(({ line, point }) =>
          h(
            "div",
            { class: "key" },
            h("i", { style: { background: line.color } }),
            h("span", { class: "tip-name" }, line.near ? `${line.name} at ${spec.axis.words(point.step)}` : line.name),
            h("b", {}, formatValue(point.value, 5)),
          ),
        ),
        found.marks.map((mark) =>
          h(
            "div",
            { class: `key${"to" in mark ? " noted" : ""}` },
            h("i", { style: { background: mark.color } }),
            mark.words,
          ),
        ),
      );
    const right = x > (inner.left + inner.right) / 2;
    Object.assign(this.tip.style, {
      left: right ? "auto" : `${x + 10}px`,
      right: right ? `${spec.width - x + 10}px` : "auto",
      top: `${inner.top}px`,
    });
  }
}

/** Of the point nearest to an x; of two at one place the one that has a value. @param {Line} line @param {number} at */
function nearestIndex({ x, y }, at) {
  let best = -1;
  let distance = Infinity;
  for (let index = 0; index < x.length; index += 1) {
    const far = Math.abs(x[index] - at);
    if (far < distance || (far === distance && y[best] === null)) [best, distance] = [index, far];
  }
  return best;
}

/** The point of a line that is nearest to an x; its value is NaN where there is none. @param {Line} line @param {number} at */
export function nearestPoint(line, at) {
  const index = nearestIndex(line, at);
  if (index < 0) return null;
  const value = line.y[index];
  return { step: line.x[index], value: value === null ? NaN : value };
}
