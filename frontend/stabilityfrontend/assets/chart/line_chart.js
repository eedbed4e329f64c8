// The one renderer of line charts: a canvas, fifty times cheaper to redraw than SVG, so that a wall of charts stays at 60
// frames a second. Rows of lines above each other share an x axis; pointer, keys and readout are in `chart_pointer.js`.

import { fill, h } from "../core/dom.js";
import { formatValue } from "../core/format.js";
import { ChartPointer } from "./chart_pointer.js";
import { logTicks, valueTicks } from "./ticks.js";

// -- Draws the band between the extremes of a line's buckets: filled, with edges, so that a peak of one step is seen.

/** How much of a line's colour the band and its edges have. */
const [FILL, EDGE] = [0.2, 0.5];
/** Points in one stroke. One of 1,000 points that go up and down takes 120 ms without a GPU, sixteen of 64 take 10 ms. */
const STROKE = 64;

/**
 * @param {import("./line_chart.js").Plot} plot
 * @param {CanvasRenderingContext2D} context
 * @param {import("./line_chart.js").Row} row
 * @param {import("./line_chart.js").Line} line
 */
function drawBand(plot, context, row, line) {
  const { low, lowX, high, highX } = /** @type {NonNullable<typeof line.band>} */ (line.band);
  const opacity = line.opacity === undefined ? 1 : line.opacity;
  context.fillStyle = context.strokeStyle = line.color;
  context.lineWidth = 1;
  const last = low.length;
  for (let from = 0; from < last; from += 1) {
    if (low[from] === null) continue;
    let to = from;
    while (to < last && low[to] !== null) to += 1;
    context.globalAlpha = FILL * opacity;
    context.beginPath();
    for (let at = from; at < to; at += 1)
      context.lineTo(plot.toX(highX[at]), plot.toY(row, /** @type {number} */ (high[at])));
    for (let at = to - 1; at >= from; at -= 1)
      context.lineTo(plot.toX(lowX[at]), plot.toY(row, /** @type {number} */ (low[at])));
    context.fill();
    context.globalAlpha = EDGE * opacity;
    edge(plot, context, row, highX, high, from, to);
    edge(plot, context, row, lowX, low, from, to);
    from = to;
  }
  context.globalAlpha = 1;
}

/** One edge as strokes of few points: a long one costs much more without a GPU. */
function edge(plot, context, row, x, y, from, to) {
  context.beginPath();
  for (let at = from; at < to; at += 1) {
    const [px, py] = [plot.toX(x[at]), plot.toY(row, y[at])];
    context.lineTo(px, py);
    if ((at - from + 1) % STROKE === 0) {
      context.stroke();
      context.beginPath();
      context.moveTo(px, py);
    }
  }
  context.stroke();
}

// -- Where the y range cuts a line: an arrow at the edge with the value that is beyond it, of several near each other the
// farthest with how many they are.

/** Arrows nearer to each other than this are one; half of an arrow; its distance from the edge: pixels. */
const [NEAR_PX, HALF_PX, AIR_PX] = [64, 4, 3];

/**
 * The excursions of one line beyond a range: `{x, value, up}` each, its farthest point.
 * @param {import("./line_chart.js").Line} line
 * @param {number[]} range
 */
export function excursions({ x, y, band }, [low, high]) {
  const found = [];
  const scan = (places, values, up) => {
    let best = /** @type {{x: number, value: number, up: boolean} | null} */ (null);
    for (let index = 0; index < values.length; index += 1) {
      const value = values[index];
      if (value !== null && (up ? value > high : value < low)) {
        if (!best || (up ? value > best.value : value < best.value)) best = { x: places[index], value, up };
      } else if (best) {
        found.push(best);
        best = null;
      }
    }
    if (best) found.push(best);
  };
  scan(band ? band.highX : x, band ? band.high : y, true);
  scan(band ? band.lowX : x, band ? band.low : y, false);
  return found;
}

/** Excursions that would stand on each other as one: `{x, value, up, color, count}`. `toX`: pixels of a place. */
export function mergedPeaks(peaks, toX) {
  const groups = [];
  for (const up of [true, false]) {
    for (const peak of peaks.filter((one) => one.up === up).sort((a, b) => a.x - b.x)) {
      const group = groups[groups.length - 1];
      if (group && group.up === up && toX(peak.x) - toX(group.x) < NEAR_PX) {
        const farther = up ? peak.value > group.value : peak.value < group.value;
        if (farther) Object.assign(group, peak, { count: group.count + 1 });
        else group.count += 1;
      } else groups.push({ ...peak, count: 1 });
    }
  }
  return groups;
}

/** Draw the arrows of a row. @param {import("./line_chart.js").Plot} plot @param {CanvasRenderingContext2D} context @param {import("./line_chart.js").Row} row */
function drawPeaks(plot, context, row) {
  const { xRange, font, colors } = /** @type {import("./line_chart.js").Spec} */ (plot.spec);
  const range = row.log ? row.yRange.map((one) => 10 ** one) : row.yRange;
  const peaks = row.lines
    .filter((line) => line.hover !== false && !line.near)
    .flatMap((line) => excursions(line, range).map((peak) => ({ ...peak, color: line.color })))
    // Of a logarithmic axis nothing is below: zero has no place on it.
    .filter(({ x, up, value }) => x >= xRange[0] && x <= xRange[1] && (up || !row.log || value > 0));
  if (!peaks.length) return;
  const { left, right, top, bottom } = plot.boxOf(row);
  context.font = `10px ${font}`;
  context.textBaseline = "middle";
  for (const { x, value, up, color, count } of mergedPeaks(peaks, (one) => plot.toX(one))) {
    const at = plot.toX(x);
    const tip = up ? top + AIR_PX : bottom - AIR_PX;
    const foot = tip + (up ? 1 : -1) * 1.8 * HALF_PX;
    context.fillStyle = color;
    context.beginPath();
    context.moveTo(at, tip);
    context.lineTo(at + HALF_PX, foot);
    context.lineTo(at - HALF_PX, foot);
    context.fill();
    const words = `${formatValue(value, 3)}${count > 1 ? ` ×${count}` : ""}`;
    const room = context.measureText(words).width + 2 * HALF_PX;
    const before = at + room > right && at - room > left;
    context.textAlign = before ? "right" : "left";
    // Over a band letters need a ground of their own.
    context.strokeStyle = colors.panel;
    context.lineWidth = 3;
    context.lineJoin = "round";
    context.strokeText(words, at + (before ? -1 : 1) * (HALF_PX + 3), (tip + foot) / 2 + 0.5);
    context.fillText(words, at + (before ? -1 : 1) * (HALF_PX + 3), (tip + foot) / 2 + 0.5);
  }
}

/**
 * A line. `steps`: the step of each point, where x is something else; `near`: in the readout only close to a point of it.
 *
 * @typedef {{x: number[], y: (number | null)[], steps?: number[] | null, name?: string, color: string, width?: number,
 *   dash?: number[], opacity?: number, hover?: boolean, near?: boolean, dots?: boolean,
 *   band?: import("./buckets.js").Banded["band"]}} Line With `band`, x and y are the mean of what is denser than pixels.
 *
 * What is no number: NaN, ∞, −∞ at an x. `words` are shown under the pointer.
 * @typedef {{x: number, color: string, symbol?: "x" | "up" | "down", words?: string}} Mark
 *
 * Bands of one look; each is from, to, and its height as a share of the plot's, from its foot.
 * @typedef {{color: string, opacity: number, rects: number[][]}} Bands
 *
 * A vertical line, `height` as that of a band. `words` are shown under the pointer, there and up to `to`.
 * @typedef {{x: number, to?: number, color: string, dash?: number[], opacity: number, height: number, words?: string}} Rule
 *
 * Words at an x, `top` pixels below the plot's upper edge (negative: above it); with `fill` a flag. `tip`: what it says
 * under the pointer, lines of `[bold, plain]`.
 * @typedef {{x: number, top: number, words: string, color: string, align: CanvasTextAlign, size?: number, fill?: string,
 *   tip?: string[][]}} Label
 *
 * Rectangles behind the lines: each is from, to on the x axis, low, high on the row's y axis.
 * @typedef {{color: string, opacity: number, rects: number[][]}} Area
 *
 * Lines with a y axis of their own, between `from` and `to` of the plot's height (1 is its upper edge). A logarithmic
 * `yRange` is in exponents of ten. `dot`: the live end. `none`: what is said where there is no number at all: no axis.
 * @typedef {{from?: number, to?: number, yRange: number[], log?: boolean, title?: string, lines: Line[], marks: Mark[],
 *   none?: string,
 *   areas?: Area[], dot?: {x: number, y: number, color: string} | null}} Row
 *
 * @typedef {{ticks: (range: number[], count: number) => {value: number, words: string}[], words: (x: number) => string}} XAxis
 *
 * A chart of one row may have the row's parts itself. `scale`: how much larger than drawn it is shown.
 * @typedef {Partial<Row> & {width: number, height: number, margin: {l: number, r: number, t: number, b: number},
 *   xRange: number[], axis: XAxis, colors: {[name: string]: any}, font: string, rows?: Row[], bands?: Bands[],
 *   rules?: Rule[], labels?: Label[], spans?: {from: number, to: number, color: string}[],
 *   notes?: () => {x: number, to: number, words: string, color: string}[], scale?: number, ratio?: number}} Spec
 *   `notes`: what is read out near a place; `ratio`: pixels of the picture for one of the page, that of the screen
 *   if left out.
 *
 * @typedef {{left: number, right: number, top: number, bottom: number}} Box
 */

/** Pixels for a label of an axis. */
const [ROW_PX, COLUMN_PX] = [33, 80];
/** Half of a mark, a letter's place under a flag, the bar of what a fork discarded above the plot: pixels. */
const [MARK_PX, FLAG_PX, SPAN_PX] = [4, 15, 4];

export class Plot {
  /**
   * @param {HTMLElement} element
   * @param {import("./chart_pointer.js").Events} events
   */
  constructor(element, events) {
    this.canvas = /** @type {HTMLCanvasElement} */ (h("canvas", { "aria-hidden": "true" }));
    this.pointer = new ChartPointer(element, this, events);
    fill(element, this.canvas, ...this.pointer.parts);
    /** @type {Spec | null} */
    this.spec = null;
    /** @type {Row[]} */
    this.rows = [];
    /** Where flags were drawn. @type {{label: Label, box: Box}[]} */
    this.flags = [];
    this.inner = { left: 0, right: 0, top: 0, bottom: 0 };
  }

  /** Draw, all anew. @param {Spec} spec */
  draw(spec) {
    this.spec = spec;
    const { width, height, margin } = spec;
    const ratio = spec.ratio || (spec.scale || 1) * (window.devicePixelRatio || 1);
    const { canvas } = this;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    this.inner = { left: margin.l, top: margin.t, right: width - margin.r, bottom: height - margin.b };
    this.rows = spec.rows || [/** @type {Row} */ (spec)];
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = `11px ${spec.font}`;
    for (const row of this.rows) this.yAxis(context, row);
    this.xAxis(context, spec);
    this.clipped(context, this.inner, () => {
      for (const band of spec.bands || []) this.band(context, band);
      for (const rule of spec.rules || []) this.rule(context, rule);
    });
    for (const row of this.rows) {
      const box = this.boxOf(row);
      this.clipped(context, box, () => {
        for (const area of row.areas || []) this.area(context, row, area);
        for (const line of row.lines) if (line.band) drawBand(this, context, row, line);
        for (const line of row.lines) (line.dots ? this.dots : this.line).call(this, context, row, line);
        for (const mark of row.marks) this.mark(context, mark, box);
      });
      if (row.dot) this.dot(context, row, row.dot);
      drawPeaks(this, context, row);
    }
    this.flags = [];
    for (const span of spec.spans || []) this.span(context, span);
    for (const label of spec.labels || []) this.label(context, label);
    this.pointer.gestures.drawn();
    this.pointer.place(this.pointer.cursor);
    this.pointer.describe();
  }

  /**
   * Give the canvas's memory back at once. Left to the garbage collector, a hundred charts that were scrolled past stop
   * the page for 90 ms.
   */
  close() {
    this.canvas.width = this.canvas.height = 0;
  }

  /** The pixels of a row. @param {Row} row */
  boxOf({ from = 0, to = 1 }) {
    const { left, right, top, bottom } = this.inner;
    return { left, right, top: bottom - to * (bottom - top), bottom: bottom - from * (bottom - top) };
  }

  /** @param {number} x */
  toX(x) {
    const { left, right } = this.inner;
    const [low, high] = /** @type {Spec} */ (this.spec).xRange;
    return left + ((x - low) / (high - low)) * (right - left);
  }

  /** @param {number} pixel */
  fromX(pixel) {
    const { left, right } = this.inner;
    const [low, high] = /** @type {Spec} */ (this.spec).xRange;
    return low + ((pixel - left) / (right - left)) * (high - low);
  }

  /** @param {Row} row @param {number} value */
  toY(row, value) {
    const { top, bottom } = this.boxOf(row);
    if (row.log && value <= 0) return bottom + 1000;
    const [low, high] = row.yRange;
    return bottom - (((row.log ? Math.log10(value) : value) - low) / (high - low)) * (bottom - top);
  }

  /** @param {CanvasRenderingContext2D} context @param {Row} row */
  yAxis(context, row) {
    const { colors } = /** @type {Spec} */ (this.spec);
    const { left, right, top, bottom } = this.boxOf(row);
    context.lineWidth = 1;
    context.textBaseline = "middle";
    const count = Math.min(10, Math.max(2, Math.floor((bottom - top) / ROW_PX)));
    if (row.none) {
      context.textAlign = "center";
      context.fillStyle = colors.soft;
      context.fillText(row.none, (left + right) / 2, (top + bottom) / 2);
    }
    context.textAlign = "right";
    for (const { value, words } of row.none ? [] : row.log ? logTicks(row.yRange) : valueTicks(row.yRange, count)) {
      const y = Math.round(this.toY(row, value)) + 0.5;
      context.strokeStyle = colors.grid;
      context.beginPath();
      context.moveTo(left, y);
      context.lineTo(right, y);
      context.stroke();
      context.fillStyle = colors.muted;
      context.fillText(words, left - 6, y);
    }
    if (!row.title) return;
    // Left of the plot and above its axis nothing is ever drawn; over the plot only what `labels` and `spans` are.
    context.textBaseline = "bottom";
    context.fillStyle = colors.soft;
    context.textAlign = "left";
    context.fillText(this.titleOf(context, row.title, top), 4, top - 4);
  }

  /** A row's title, cut where the room for it ends. @param {CanvasRenderingContext2D} context @param {string} title @param {number} top */
  titleOf(context, title, top) {
    const { labels = [], spans = [] } = /** @type {Spec} */ (this.spec);
    const { left, right } = this.inner;
    const flagged = top === this.inner.top && (spans.length > 0 || labels.some((label) => label.top < 0));
    const room = (flagged ? left : right) - 8;
    if (context.measureText(title).width <= room) return title;
    let kept = title.length;
    while (kept > 1 && context.measureText(`${title.slice(0, kept)}…`).width > room) kept = Math.floor(kept * 0.9);
    return `${title.slice(0, kept)}…`;
  }

  /** @param {CanvasRenderingContext2D} context @param {Spec} spec */
  xAxis(context, { colors, axis, xRange, width }) {
    const { left, right, bottom } = this.inner;
    context.strokeStyle = colors.border;
    context.beginPath();
    context.moveTo(left, bottom + 0.5);
    context.lineTo(right, bottom + 0.5);
    context.stroke();
    context.textAlign = "center";
    context.textBaseline = "top";
    context.fillStyle = colors.muted;
    for (const { value, words } of axis.ticks(xRange, Math.max(2, Math.floor((right - left) / COLUMN_PX)))) {
      const half = context.measureText(words).width / 2;
      const x = this.toX(value);
      if (x + half <= width - 2 && x - half >= 0) context.fillText(words, x, bottom + 7);
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {Box} box @param {() => void} draw */
  clipped(context, { left, right, top, bottom }, draw) {
    context.save();
    context.beginPath();
    context.rect(left, top, right - left, bottom - top);
    context.clip();
    draw();
    context.restore();
  }

  /** Bands of one look are one path: what overlaps within it is filled once. @param {CanvasRenderingContext2D} context @param {Bands} bands */
  band(context, { color, opacity, rects }) {
    const { top, bottom } = this.inner;
    context.globalAlpha = opacity;
    context.fillStyle = color;
    context.beginPath();
    for (const [from, to, height] of rects) {
      const left = this.toX(from);
      const high = height * (bottom - top);
      context.rect(left, bottom - high, Math.max(1, this.toX(to) - left), high);
    }
    context.fill();
  }

  /** @param {CanvasRenderingContext2D} context @param {Row} row @param {Area} area */
  area(context, row, { color, opacity, rects }) {
    context.globalAlpha = opacity;
    context.fillStyle = color;
    context.beginPath();
    for (const [from, to, low, high] of rects) {
      const [left, top] = [this.toX(from), this.toY(row, high)];
      context.rect(left, top, this.toX(to) - left, Math.max(1, this.toY(row, low) - top));
    }
    context.fill();
    context.globalAlpha = 1;
  }

  /** @param {CanvasRenderingContext2D} context @param {Rule} rule */
  rule(context, { x, color, dash, opacity, height }) {
    const { top, bottom } = this.inner;
    const at = Math.round(this.toX(x)) + 0.5;
    context.globalAlpha = opacity;
    context.strokeStyle = color;
    context.lineWidth = 1;
    context.setLineDash(dash || []);
    context.beginPath();
    context.moveTo(at, bottom - height * (bottom - top));
    context.lineTo(at, bottom);
    context.stroke();
    context.setLineDash([]);
  }

  /** @param {CanvasRenderingContext2D} context @param {Row} row @param {Line} line */
  line(context, row, line) {
    context.globalAlpha = line.opacity === undefined ? 1 : line.opacity;
    context.strokeStyle = line.color;
    context.fillStyle = line.color;
    context.lineWidth = line.width || 1.5;
    context.lineJoin = "round";
    context.setLineDash(line.dash || []);
    context.beginPath();
    let open = false;
    let points = 0;
    const alone = [];
    const { x, y } = line;
    for (let index = 0; index < x.length; index += 1) {
      const value = y[index];
      if (value === null) {
        open = false;
        continue;
      }
      const px = this.toX(x[index]);
      const py = this.toY(row, value);
      if (open) {
        context.lineTo(px, py);
        points += 1;
        if (!line.dash && points % STROKE === 0) {
          context.stroke();
          context.beginPath();
          context.moveTo(px, py);
        }
      } else {
        context.moveTo(px, py);
        if (index + 1 >= x.length || y[index + 1] === null) alone.push([px, py]);
      }
      open = true;
    }
    context.stroke();
    context.setLineDash([]);
    // A point between two gaps is no line; it is a dot.
    for (const [px, py] of alone) this.disc(context, px, py, 2.5);
    context.globalAlpha = 1;
  }

  /** Points that are no line: small squares, a tenth of what discs cost. */
  /** @param {CanvasRenderingContext2D} context @param {Row} row @param {Line} line */
  dots(context, row, { x, y, color, opacity = 1 }) {
    context.globalAlpha = 0.6 * opacity;
    context.fillStyle = color;
    x.forEach((at, index) => {
      const value = y[index];
      if (value !== null) context.fillRect(this.toX(at) - 1, this.toY(row, value) - 1, 2, 2);
    });
    context.globalAlpha = 1;
  }

  /** @param {CanvasRenderingContext2D} context @param {number} x @param {number} y @param {number} radius */
  disc(context, x, y, radius) {
    context.beginPath();
    context.arc(x, y, radius, 0, 7);
    context.fill();
  }

  /** @param {CanvasRenderingContext2D} context @param {Mark} mark @param {Box} box */
  mark(context, { x, color, symbol }, box) {
    const at = this.toX(x);
    const y = symbol === "up" ? box.top + MARK_PX + 3 : box.bottom - MARK_PX - 3;
    const tip = symbol === "up" ? -MARK_PX : MARK_PX;
    context.strokeStyle = context.fillStyle = color;
    context.lineWidth = 1.8;
    context.beginPath();
    context.moveTo(at - MARK_PX, y - tip);
    if (symbol === "up" || symbol === "down") {
      context.lineTo(at + MARK_PX, y - tip);
      context.lineTo(at, y + tip);
      context.fill();
      return;
    }
    context.lineTo(at + MARK_PX, y + tip);
    context.moveTo(at - MARK_PX, y + tip);
    context.lineTo(at + MARK_PX, y - tip);
    context.stroke();
  }

  /** @param {CanvasRenderingContext2D} context @param {Row} row @param {{x: number, y: number, color: string}} dot */
  dot(context, row, { x, y, color }) {
    const { colors } = /** @type {Spec} */ (this.spec);
    const [px, py] = [this.toX(x), this.toY(row, y)];
    const { left, right, top, bottom } = this.boxOf(row);
    if (px < left || px > right || py < top || py > bottom) return;
    for (const [paint, radius] of [
      [colors.panel, 5],
      [color, 3.5],
    ]) {
      context.fillStyle = paint;
      this.disc(context, px, py, radius);
    }
  }

  /** A dashed bar above the plot. @param {CanvasRenderingContext2D} context @param {{from: number, to: number, color: string}} span */
  span(context, { from, to, color }) {
    context.strokeStyle = color;
    context.lineWidth = 2;
    context.setLineDash([2, 2]);
    context.beginPath();
    context.moveTo(this.toX(from), this.inner.top - SPAN_PX);
    context.lineTo(this.toX(to), this.inner.top - SPAN_PX);
    context.stroke();
    context.setLineDash([]);
  }

  /** @param {CanvasRenderingContext2D} context @param {Label} label */
  label(context, label) {
    const { font } = /** @type {Spec} */ (this.spec);
    context.font = `${label.fill ? "bold " : ""}${label.size || 11}px ${font}`;
    context.textAlign = label.align;
    context.textBaseline = "middle";
    const x = this.toX(label.x);
    const y = this.inner.top + label.top;
    if (label.fill) {
      const half = context.measureText(label.words).width / 2 + 2;
      const box = { left: x - half, right: x + half, top: y - FLAG_PX / 2, bottom: y + FLAG_PX / 2 };
      context.fillStyle = label.fill;
      context.beginPath();
      context.roundRect(box.left, box.top, 2 * half, FLAG_PX, 3);
      context.fill();
      this.flags.push({ label, box });
    }
    context.fillStyle = label.color;
    context.fillText(label.words, x, y + 0.5);
  }
}
