// Draws the large chart's figure on a canvas: the same layout and traces that Plotly gets, long before plotly.js is there.
// It knows what our figures use and nothing else: lines, markers, shapes, annotations, one x axis and y axes by domain.

import { h } from "../core/dom.js";

/** The plain text of a label: Plotly's small HTML is ours, names in it are escaped. */
const plain = (text) =>
  String(text)
    .replace(/<br>/g, " ")
    .replace(/<\/?b>/g, "")
    .replace(/&lt;/g, "<")
    .replace(/&gt;/g, ">")
    .replace(/%&#123;/g, "%{")
    .replace(/&amp;/g, "&");

const dashes = (name) =>
  name === "dash" ? [6, 4] : name === "dot" ? [2, 3] : name ? name.split(",").map((part) => parseFloat(part)) : [];

export class Sketch {
  constructor(element) {
    this.canvas = h("canvas", { "aria-hidden": "true", class: "sketch" });
    element.append(this.canvas);
  }

  remove() {
    this.canvas.remove();
  }

  /** Draw a figure `{data, layout}`; the layout has width, height and the ranges of all axes. */
  draw({ data, layout }) {
    const { canvas } = this;
    const { width, height, margin } = layout;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = layout.paper_bgcolor;
    context.fillRect(0, 0, width, height);
    this.inner = { left: margin.l, right: width - margin.r, top: margin.t, bottom: height - margin.b };
    this.layout = layout;
    this.font = layout.font.family;
    for (const name of ["yaxis", "yaxis2"]) this.yAxis(context, layout[name]);
    this.xAxis(context, layout.xaxis);
    this.clipped(context, [0, 1], () =>
      layout.shapes.filter((shape) => shape.layer === "below").forEach((shape) => this.shape(context, shape)),
    );
    for (const trace of data) this.trace(context, trace);
    layout.shapes.filter((shape) => shape.layer !== "below").forEach((shape) => this.shape(context, shape));
    for (const note of layout.annotations) this.note(context, note);
  }

  x(value) {
    const { left, right } = this.inner;
    const [low, high] = this.layout.xaxis.range;
    return left + ((value - low) / (high - low)) * (right - left);
  }

  /** The pixel of a share of the plot's height, from its foot. */
  paper(share) {
    const { top, bottom } = this.inner;
    return bottom - share * (bottom - top);
  }

  y(axis, value) {
    const [low, high] = axis.range;
    const place = axis.type === "log" ? (value > 0 ? Math.log10(value) : -Infinity) : value;
    const share = Math.max(-10, (place - low) / (high - low));
    const [from, to] = axis.domain;
    return this.paper(from + share * (to - from));
  }

  axisOf(trace) {
    return this.layout[(trace.yaxis || "y").replace("y", "yaxis")];
  }

  yAxis(context, axis) {
    if (axis.visible === false) return;
    const { left, right } = this.inner;
    context.font = `11px ${this.font}`;
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.lineWidth = 1;
    (axis.tickvals || []).forEach((value, index) => {
      const y = Math.round(this.y(axis, value)) + 0.5;
      context.strokeStyle = axis.gridcolor;
      context.beginPath();
      context.moveTo(left, y);
      context.lineTo(right, y);
      context.stroke();
      context.fillStyle = axis.color;
      context.fillText(axis.ticktext[index], left - 5, y);
    });
  }

  xAxis(context, axis) {
    const { left, right, bottom } = this.inner;
    context.strokeStyle = axis.linecolor;
    context.beginPath();
    context.moveTo(left, bottom + 0.5);
    context.lineTo(right, bottom + 0.5);
    context.stroke();
    context.textAlign = "center";
    context.textBaseline = "top";
    context.fillStyle = axis.color;
    (axis.tickvals || []).forEach((value, index) => context.fillText(axis.ticktext[index], this.x(value), bottom + 6));
  }

  clipped(context, [from, to], draw) {
    const { left, right } = this.inner;
    context.save();
    context.beginPath();
    context.rect(left, this.paper(to), right - left, this.paper(from) - this.paper(to));
    context.clip();
    draw();
    context.restore();
  }

  shape(context, shape) {
    context.save();
    context.globalAlpha = shape.opacity === undefined ? 1 : shape.opacity;
    context.beginPath();
    // A path of ours is M, L and Z with absolute numbers.
    for (const [, letter, x, y] of (shape.path || `M${shape.x0},${shape.y0}L${shape.x1},${shape.y1}`).matchAll(
      /([MLZ])(?:([-+\d.e]+),([-+\d.e]+))?/g,
    )) {
      if (letter === "M") context.moveTo(this.x(Number(x)), this.paper(Number(y)));
      else if (letter === "L") context.lineTo(this.x(Number(x)), this.paper(Number(y)));
      else context.closePath();
    }
    if (shape.fillcolor && shape.fillcolor !== "rgba(0,0,0,0)") {
      context.fillStyle = shape.fillcolor;
      context.fill();
    }
    if (shape.line && shape.line.width) {
      context.strokeStyle = shape.line.color;
      context.lineWidth = shape.line.width;
      context.setLineDash(dashes(shape.line.dash));
      context.stroke();
    }
    context.restore();
  }

  trace(context, trace) {
    const axis = this.axisOf(trace);
    const draw = () => {
      context.globalAlpha = trace.opacity === undefined ? 1 : trace.opacity;
      if (trace.mode.includes("lines")) this.line(context, trace, axis);
      if (trace.mode.includes("markers")) this.markers(context, trace, axis);
      context.globalAlpha = 1;
    };
    if (trace.cliponaxis === false) draw();
    else this.clipped(context, axis.domain, draw);
  }

  line(context, { x, y, line }, axis) {
    context.strokeStyle = line.color;
    context.lineWidth = line.width;
    context.lineJoin = "round";
    context.setLineDash(dashes(line.dash));
    context.beginPath();
    let open = false;
    for (let index = 0; index < x.length; index += 1) {
      const value = y[index];
      if (value === null || (axis.type === "log" && value <= 0)) {
        open = false;
        continue;
      }
      if (open) context.lineTo(this.x(x[index]), this.y(axis, value));
      else context.moveTo(this.x(x[index]), this.y(axis, value));
      open = true;
    }
    context.stroke();
    context.setLineDash([]);
  }

  markers(context, { x, y, marker }, axis) {
    for (let index = 0; index < x.length; index += 1) {
      if (y[index] === null) continue;
      const [px, py] = [this.x(x[index]), this.y(axis, y[index])];
      if (px < this.inner.left - 8 || px > this.inner.right + 8) continue;
      const color = Array.isArray(marker.color) ? marker.color[index] : marker.color;
      const symbol = Array.isArray(marker.symbol) ? marker.symbol[index] : marker.symbol;
      const half = marker.size / 2;
      context.beginPath();
      if (symbol === "x-thin") {
        context.moveTo(px - half, py - half);
        context.lineTo(px + half, py + half);
        context.moveTo(px - half, py + half);
        context.lineTo(px + half, py - half);
        context.strokeStyle = color;
        context.lineWidth = 2;
        context.stroke();
        continue;
      }
      if (symbol === "triangle-up" || symbol === "triangle-down") {
        const up = symbol === "triangle-up" ? -1 : 1;
        context.moveTo(px - half, py - up * half);
        context.lineTo(px + half, py - up * half);
        context.lineTo(px, py + up * half);
      } else context.arc(px, py, half, 0, 7);
      context.fillStyle = color;
      context.fill();
    }
  }

  note(context, note) {
    const size = (note.font && note.font.size) || 11;
    context.font = `${String(note.text).startsWith("<b>") ? "bold " : ""}${size}px ${this.font}`;
    const words = plain(note.text);
    const box = context.measureText(words).width;
    const x =
      (note.xref === "paper" ? this.inner.left + note.x * (this.inner.right - this.inner.left) : this.x(note.x)) +
      (note.xshift || 0);
    const y = this.paper(note.y) - (note.yshift || 0);
    const left = note.xanchor === "right" ? x - box : note.xanchor === "center" ? x - box / 2 : x;
    const pad = note.borderpad || 0;
    const top = note.yanchor === "top" ? y : y - size * 1.3 - pad;
    if (note.bgcolor) {
      context.fillStyle = note.bgcolor;
      context.fillRect(left - pad, top, box + 2 * pad, size * 1.3 + pad);
    }
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillStyle = note.font.color;
    context.fillText(words, left, top + (size * 1.3 + pad) / 2 + 0.5);
  }
}
