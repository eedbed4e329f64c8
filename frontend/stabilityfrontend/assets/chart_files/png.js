// A chart as a picture: what is drawn, with its title, legend, the run and the time, twice as sharp as a plain screen.

import { Plot } from "../chart/line_chart.js";
import { h } from "../core/dom.js";

/** Pixels of the picture for one of the page; heights of the title, of a row of the legend and of the foot; the margin. */
const [RATIO, TITLE_PX, LEGEND_PX, FOOT_PX, SIDE_PX] = [2, 30, 20, 24, 14];

/** Words that fit into so many pixels. */
function cut(context, words, width) {
  if (context.measureText(words).width <= width) return words;
  let most = words.length;
  while (most > 1 && context.measureText(`${words.slice(0, most)}…`).width > width) most -= Math.ceil(most / 20);
  return `${words.slice(0, most)}…`;
}

/** Names and colours of lines in rows that fit: `[{name, color, x, row}]`, and how many rows. */
export function legendRows(entries, measure, width) {
  let [x, row] = [0, 0];
  const placed = entries.map(({ name, color }) => {
    const need = Math.min(width, measure(name) + 34);
    if (x > 0 && x + need > width) [x, row] = [0, row + 1];
    const here = { name, color, x, row };
    x += need;
    return here;
  });
  return { placed, rows: entries.length ? row + 1 : 0 };
}

/**
 * The picture as a canvas. `title`, `run`: above; `when`: unix milliseconds, below.
 * @param {import("../chart/line_chart.js").Plot} plot
 */
export function picture(plot, { title, run, when }) {
  const spec = /** @type {import("../chart/line_chart.js").Spec} */ (plot.spec);
  const { colors, font, width } = spec;
  const lines = plot.rows.flatMap((row) => row.lines).filter((line) => line.hover !== false && !line.near && line.name);
  const canvas = /** @type {HTMLCanvasElement} */ (h("canvas"));
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.font = `12px ${font}`;
  const legend = legendRows(lines, (name) => context.measureText(name).width, width - 2 * SIDE_PX);
  const top = TITLE_PX + legend.rows * LEGEND_PX;
  canvas.width = RATIO * width;
  canvas.height = RATIO * (top + spec.height + FOOT_PX);
  context.scale(RATIO, RATIO);
  context.fillStyle = colors.panel;
  context.fillRect(0, 0, width, canvas.height / RATIO);
  context.textBaseline = "middle";
  context.font = `bold 13px ${font}`;
  context.fillStyle = colors.text;
  const head = cut(context, title, width * 0.6);
  context.fillText(head, SIDE_PX, TITLE_PX / 2 + 2);
  const used = context.measureText(head).width;
  context.font = `12px ${font}`;
  context.fillStyle = colors.soft;
  context.textAlign = "right";
  context.fillText(cut(context, run, width - used - 3 * SIDE_PX), width - SIDE_PX, TITLE_PX / 2 + 2);
  context.textAlign = "left";
  for (const { name, color, x, row } of legend.placed) {
    const y = TITLE_PX + (row + 0.5) * LEGEND_PX;
    context.fillStyle = color;
    context.fillRect(SIDE_PX + x, y - 2, 14, 4);
    context.fillStyle = colors.soft;
    context.fillText(cut(context, name, width - 2 * SIDE_PX - 34), SIDE_PX + x + 20, y);
  }
  const sharp = new Plot(h("div"), { onZoom() {}, onReset() {}, onCursor() {} });
  sharp.draw({ ...spec, ratio: RATIO });
  context.drawImage(sharp.canvas, 0, top, width, spec.height);
  context.font = `11px ${font}`;
  context.fillStyle = colors.muted;
  context.textBaseline = "middle";
  const [from, to] = spec.xRange;
  const foot = top + spec.height + FOOT_PX / 2 - 2;
  context.fillText(`${spec.axis.words(Math.max(0, from))} to ${spec.axis.words(to)}`, SIDE_PX, foot);
  context.textAlign = "right";
  const time = `${new Date(when).toISOString().slice(0, 16).replace("T", " ")} UTC`;
  context.fillText(`${time} · Stabilityboard`, width - SIDE_PX, foot);
  return canvas;
}
