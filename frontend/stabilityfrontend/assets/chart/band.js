// Draws the band between the extremes of a line's buckets: filled, with edges, so that a peak of one step is seen.

/** How much of a line's colour the band and its edges have. */
const [FILL, EDGE] = [0.2, 0.5];
/** Points in one stroke (line_chart.js). */
const STROKE = 64;

/**
 * @param {import("./line_chart.js").Plot} plot
 * @param {CanvasRenderingContext2D} context
 * @param {import("./line_chart.js").Row} row
 * @param {import("./line_chart.js").Line} line
 */
export function drawBand(plot, context, row, line) {
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
