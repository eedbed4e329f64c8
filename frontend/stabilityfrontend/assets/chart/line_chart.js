// A small chart on a canvas: fifty times cheaper to redraw than an SVG one, so that a wall of them stays at 60 frames a
// second. It has what a small multiple needs: lines, dashes, bands, marks, a shared crosshair, drag to zoom.

import { fill, h, setShown } from "../core/dom.js";
import { duration, formatCount, formatValue, plural } from "../core/format.js";
import { lowerBound } from "./downsample.js";
import { durationTicks, logTicks, valueTicks } from "./ticks.js";

/** A drag shorter than this is a click, pixels. */
const DRAG_PX = 5;

export class Plot {
  /** `events`: onZoom([from, to]), onReset(), onCursor(step or null). */
  constructor(element, events) {
    this.element = element;
    this.events = events;
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.cross = h("div", { class: "cross", hidden: true });
    this.selection = h("div", { class: "selection", hidden: true });
    this.tip = h("div", { class: "tip", hidden: true });
    fill(element, this.canvas, this.cross, this.selection, this.tip);
    this.spec = null;
    this.over = false;
    element.addEventListener("pointermove", (event) => this.onMove(event));
    element.addEventListener("pointerleave", () => this.onLeave());
    element.addEventListener("pointerdown", (event) => this.onDown(event));
    element.addEventListener("pointerup", (event) => this.onUp(event));
    element.addEventListener("pointercancel", () => this.endDrag());
    element.addEventListener("dblclick", () => this.events.onReset());
  }

  /**
   * Draw. `spec`: width, height, margin {l, r, t, b}, xRange, yRange, log, colors, font,
   * xKind ("duration": seconds), xName, lines [{x, y, name, color, width, dash, opacity, hover}], shapes (as shapes), marks [{x, color}].
   */
  draw(spec) {
    this.spec = spec;
    const { width, height, margin } = spec;
    const ratio = window.devicePixelRatio || 1;
    const { canvas } = this;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    const inner = { left: margin.l, top: margin.t, right: width - margin.r, bottom: height - margin.b };
    this.inner = inner;
    const [x0, x1] = spec.xRange;
    const [y0, y1] = spec.yRange;
    this.toX = (step) => inner.left + ((step - x0) / (x1 - x0)) * (inner.right - inner.left);
    const scaleY = (place) => inner.bottom - ((place - y0) / (y1 - y0)) * (inner.bottom - inner.top);
    this.toY = spec.log ? (value) => (value > 0 ? scaleY(Math.log10(value)) : inner.bottom + 1000) : scaleY;
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    this.axes(context, spec, inner);
    context.save();
    context.beginPath();
    context.rect(inner.left, inner.top, inner.right - inner.left, inner.bottom - inner.top);
    context.clip();
    for (const shape of spec.shapes) this.shape(context, shape, inner);
    for (const line of spec.lines) this.line(context, line);
    for (const mark of spec.marks) this.mark(context, mark, inner);
    context.restore();
    this.place(this.cursor === undefined ? null : this.cursor);
  }

  axes(context, spec, inner) {
    const { colors } = spec;
    context.font = `11px ${spec.font}`;
    context.lineWidth = 1;
    context.textBaseline = "middle";
    context.textAlign = "right";
    const rows = Math.min(10, Math.max(2, Math.floor((inner.bottom - inner.top) / 36)));
    for (const { value, words } of spec.log ? logTicks(spec.yRange) : valueTicks(spec.yRange, rows)) {
      const y = Math.round(this.toY(value)) + 0.5;
      context.strokeStyle = colors.grid;
      context.beginPath();
      context.moveTo(inner.left, y);
      context.lineTo(inner.right, y);
      context.stroke();
      context.fillStyle = colors.muted;
      context.fillText(words, inner.left - 6, y);
    }
    context.strokeStyle = colors.border;
    context.beginPath();
    context.moveTo(inner.left, inner.bottom + 0.5);
    context.lineTo(inner.right, inner.bottom + 0.5);
    context.stroke();
    context.textAlign = "center";
    context.textBaseline = "top";
    context.fillStyle = colors.muted;
    const columns = Math.max(2, Math.floor((inner.right - inner.left) / 80));
    const below = spec.xKind ? -Infinity : 0; // steps begin at 0; what is counted from a fork does not
    for (const { value, words } of spec.xKind === "duration"
      ? durationTicks(spec.xRange, columns)
      : valueTicks(spec.xRange, columns, true)) {
      const half = context.measureText(words).width / 2;
      const x = this.toX(value);
      if (x + half <= spec.width - 2 && x - half >= 0 && value >= below) context.fillText(words, x, inner.bottom + 7);
    }
  }

  shape(context, shape, inner) {
    const from = this.toX(shape.x0);
    const to = this.toX(shape.x1);
    const height = (inner.bottom - inner.top) * (shape.y1 ?? 1);
    context.globalAlpha = shape.opacity;
    if (shape.type === "rect") {
      context.fillStyle = shape.fillcolor;
      context.fillRect(from, inner.bottom - height, Math.max(1, to - from), height);
    } else {
      context.strokeStyle = shape.line.color;
      context.lineWidth = shape.line.width;
      context.setLineDash({ dot: [2, 3], solid: [] }[shape.line.dash] || [6, 4]);
      context.beginPath();
      context.moveTo(Math.round(from) + 0.5, inner.bottom - height);
      context.lineTo(Math.round(from) + 0.5, inner.bottom);
      context.stroke();
      context.setLineDash([]);
    }
    context.globalAlpha = 1;
  }

  line(context, line) {
    context.globalAlpha = line.opacity === undefined ? 1 : line.opacity;
    context.strokeStyle = line.color;
    context.fillStyle = line.color;
    context.lineWidth = line.width || 1.5;
    context.lineJoin = "round";
    context.setLineDash(line.dash || []);
    context.beginPath();
    let open = false;
    let alone = null;
    const { x, y } = line;
    for (let index = 0; index < x.length; index += 1) {
      if (y[index] === null) {
        open = false;
        continue;
      }
      const px = this.toX(x[index]);
      const py = this.toY(y[index]);
      if (open) context.lineTo(px, py);
      else {
        context.moveTo(px, py);
        if (index + 1 >= x.length || y[index + 1] === null) alone = [...(alone || []), [px, py]];
      }
      open = true;
    }
    context.stroke();
    context.setLineDash([]);
    // A point between two gaps is no line; it is a dot.
    for (const [px, py] of alone || []) {
      context.beginPath();
      context.arc(px, py, 2.5, 0, 7);
      context.fill();
    }
    context.globalAlpha = 1;
  }

  mark(context, mark, inner) {
    const x = this.toX(mark.x);
    const y = inner.bottom - 6;
    context.strokeStyle = mark.color;
    context.lineWidth = 1.6;
    context.beginPath();
    context.moveTo(x - 3, y - 3);
    context.lineTo(x + 3, y + 3);
    context.moveTo(x - 3, y + 3);
    context.lineTo(x + 3, y - 3);
    context.stroke();
  }

  stepAt(event) {
    const box = this.element.getBoundingClientRect();
    const x = Math.min(this.inner.right, Math.max(this.inner.left, event.clientX - box.left));
    const [x0, x1] = this.spec.xRange;
    return { x, step: x0 + ((x - this.inner.left) / (this.inner.right - this.inner.left)) * (x1 - x0) };
  }

  onMove(event) {
    if (!this.spec) return;
    const { x, step } = this.stepAt(event);
    this.over = true;
    if (this.drag) {
      const from = this.drag.x;
      Object.assign(this.selection.style, {
        left: `${Math.min(from, x)}px`,
        width: `${Math.abs(x - from)}px`,
        top: `${this.inner.top}px`,
        height: `${this.inner.bottom - this.inner.top}px`,
      });
      setShown(this.selection, Math.abs(x - from) >= DRAG_PX);
    }
    this.events.onCursor(step);
  }

  onLeave() {
    this.over = false;
    this.events.onCursor(null);
  }

  onDown(event) {
    if (!this.spec || event.button !== 0) return;
    this.drag = this.stepAt(event);
    this.element.setPointerCapture(event.pointerId);
  }

  onUp(event) {
    const { drag } = this;
    this.endDrag();
    if (!drag || !this.spec) return;
    const { x, step } = this.stepAt(event);
    const range = [Math.min(drag.step, step), Math.max(drag.step, step)];
    if (Math.abs(x - drag.x) >= DRAG_PX && range[1] - range[0] >= 1) this.events.onZoom(range);
  }

  endDrag() {
    this.drag = null;
    setShown(this.selection, false);
  }

  /** A place on the x axis in words. */
  words(x) {
    const { xKind, xName } = this.spec || {};
    if (xKind === "duration") return duration(x);
    if (xName === "fork") return `${x < 0 ? "−" : "+"}${plural(Math.abs(Math.round(x)), "step")} from the fork`;
    return `step ${formatCount(x)}`;
  }

  /** Put the crosshair at a step (null: away), and the values under it beside the pointer. */
  place(step) {
    this.cursor = step;
    const { spec, inner } = this;
    const inside = spec && step !== null && step >= spec.xRange[0] && step <= spec.xRange[1];
    setShown(this.cross, Boolean(inside));
    setShown(this.tip, Boolean(inside && this.over));
    if (!inside) return;
    const found = spec.lines
      .filter((line) => line.hover !== false)
      .map((line) => ({ line, point: nearestPoint(line, step) }))
      .filter(({ point }) => point);
    const exact = found.length
      ? found.reduce(
          (best, one) => (Math.abs(one.point.step - step) < Math.abs(best - step) ? one.point.step : best),
          found[0].point.step,
        )
      : Math.round(step);
    const x = this.toX(exact);
    Object.assign(this.cross.style, { left: `${x}px`, top: `${inner.top}px`, height: `${inner.bottom - inner.top}px` });
    if (!this.over) return;
    fill(
      this.tip,
      h("b", {}, this.words(exact)),
      found.map(({ line, point }) =>
        h(
          "div",
          { class: "key" },
          h("i", { style: { background: line.color } }),
          h("span", { class: "tip-name" }, line.name),
          h("b", {}, formatValue(point.value)),
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

/** The point of a line that is nearest to a step. */
export function nearestPoint(line, step) {
  const { x, y } = line;
  if (!x.length) return null;
  let at = lowerBound(x, step);
  if (at >= x.length || (at > 0 && step - x[at - 1] < x[at] - step)) at -= 1;
  return { step: x[at], value: y[at] === null ? NaN : y[at] };
}
