// Where the y range cuts a line: an arrow at the edge with the value that is beyond it, of several near each other the
// farthest with how many they are.

import { formatValue } from "../core/format.js";

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
export function drawPeaks(plot, context, row) {
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
