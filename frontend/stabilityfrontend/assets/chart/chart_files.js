// A chart for elsewhere: a picture, a table of every row, a table to read. Buttons for the menu of its tools.

import { api } from "../core/api.js";
import { fill, h, setText, toast } from "../core/dom.js";
import { errorText, formatCount, formatValue, plural, toNumber } from "../core/format.js";
import { smallDialog } from "../dialogs/confirm.js";
import { Plot } from "./line_chart.js";

// -- What a chart shows as a table of every logged row, for a file.

/** Rows of one file: what people still open. Longer stretches are what an export is for. */
const MAX_ROWS = 1_000_000;
/** Rows that are put together at a time. */
const CHUNK = 20_000;

/** A cell: quoted where it must be; what a spreadsheet would take for a formula is text. */
export function cell(words) {
  const text = /^[=+\-@\t\r]/.test(words) ? `'${words}` : words;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

const numberWords = (value) => (value === null || value === undefined ? "" : String(toNumber(value) ?? ""));
const timeWords = (seconds) => (Number.isFinite(seconds) ? new Date(1000 * seconds).toISOString() : "");
const stateOf = ({ stray, dead }) => (stray ? "stray" : dead ? "discarded" : "effective");

/** The column of an entry: its metric, with rank or node where the metric has several. */
function columnOf(series) {
  const who = new Map();
  for (const { metric, rank, node } of series) {
    if (!who.has(metric)) who.set(metric, new Set());
    who.get(metric).add(rank ?? `node ${node}`);
  }
  return ({ metric, rank, node }) =>
    who.get(metric).size < 2 ? metric : `${metric} ${rank === null ? `node ${node}` : `rank ${rank}`}`;
}

/**
 * The rows of an answer of /series with `x=time`, as parts of a CSV text: step, time (UTC), segment, whether it counts, and
 * a column for each metric and rank. By segment, then by step; a cell is empty where nothing was logged.
 * @returns {{parts: string[], rows: number, columns: number}}
 */
export function csvOf(series) {
  const nameOf = columnOf(series);
  const columns = [...new Set(series.map(nameOf))];
  const place = new Map(columns.map((name, index) => [name, index]));
  const groups = new Map();
  for (const entry of series) {
    const key = `${entry.segment} ${stateOf(entry)} ${entry.source || ""}`;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(entry);
  }
  const parts = [`${["step", "time", "segment", "state", ...columns].map(cell).join(",")}\n`];
  let lines = /** @type {string[]} */ ([]);
  let rows = 0;
  for (const group of groups.values()) {
    const [{ segment }] = group;
    const state = stateOf(group[0]);
    const steps = [...new Set(group.flatMap((entry) => entry.steps))].sort((a, b) => a - b);
    const at = group.map(() => 0);
    for (const step of steps) {
      const cells = columns.map(() => "");
      let time = NaN;
      group.forEach((entry, index) => {
        if (entry.steps[at[index]] !== step) return;
        cells[/** @type {number} */ (place.get(nameOf(entry)))] = numberWords(entry.values[at[index]]);
        if (entry.xs && !Number.isFinite(time)) time = entry.xs[at[index]];
        at[index] += 1;
      });
      lines.push(`${step},${timeWords(time)},${segment},${state},${cells.join(",")}\n`);
      rows += 1;
      if (lines.length >= CHUNK) {
        parts.push(lines.join(""));
        lines = [];
      }
    }
  }
  parts.push(lines.join(""));
  return { parts, rows, columns: columns.length };
}

// -- A chart as a picture: what is drawn, with its title, legend, the run and the time, twice as sharp as a plain screen.

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
function picture(plot, { title, run, when }) {
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

// -- The points that a chart draws as a table in a dialog, page by page.

/** Rows of one page of the table. */
const PAGE = 100;

/** The drawn points as rows `{x, values}`, values by line: `{value, low, high}` or undefined. Rising x, one row an x. @param {number[]} range */
export function tableOf(lines, range) {
  const [from, to] = range;
  const rows = new Map();
  lines.forEach(({ x, y, band }, line) => {
    x.forEach((at, index) => {
      if (at < from || at > to || y[index] === null) return;
      if (!rows.has(at)) rows.set(at, { x: at, values: lines.map(() => undefined) });
      const [low, high] = band ? [band.low[index], band.high[index]] : [null, null];
      rows.get(at).values[line] =
        low !== null && low < high ? { value: y[index], low, high } : { value: y[index], low: null, high: null };
    });
  });
  return [...rows.values()].sort((a, b) => a.x - b.x);
}

/** Open the table of a chart as it is drawn now. @param {string} title @param {import("../chart/line_chart.js").Plot} plot */
function showTable(title, plot) {
  const { spec, rows: parts } = plot;
  if (!spec) return;
  const { axis } = spec;
  const lines = parts.flatMap((row) => row.lines).filter((line) => line.hover !== false && line.x.length);
  const rows = tableOf(lines, spec.xRange);
  const thinned = lines.some((line) => line.band);
  const pages = Math.max(1, Math.ceil(rows.length / PAGE));
  let page = pages - 1; // the newest first: that is what people come for
  const body = h("tbody");
  const where = h("span.sub", { role: "status" });
  const turn = (words, by) => h("button.button", { onclick: () => draw(page + by) }, words);
  const [before, after] = [turn("Earlier", -1), turn("Later", 1)];
  const words = (one) =>
    one === undefined
      ? "–"
      : one.low === null
        ? formatValue(one.value, 6)
        : `${formatValue(one.value, 6)} (${formatValue(one.low)} to ${formatValue(one.high)})`;
  function draw(wanted) {
    page = Math.max(0, Math.min(pages - 1, wanted));
    fill(
      body,
      rows.slice(page * PAGE, (page + 1) * PAGE).map((row) =>
        h(
          "tr",
          h("th", { scope: "row" }, axis.words(row.x)),
          row.values.map((one) => h("td.num", words(one))),
        ),
      ),
    );
    setText(where, `Page ${formatCount(page + 1)} of ${formatCount(pages)}, ${plural(rows.length, "row")}`);
    before.disabled = page === 0;
    after.disabled = page === pages - 1;
  }
  draw(page);
  const close = h("button.button", { onclick: () => dialog.close() }, "Close");
  const dialog = smallDialog({
    id: "chart-table",
    title,
    body: h(
      "div.dialog-body.chart-table",
      thinned ? h("p.sub", "The mean of each bucket, with its lowest and highest. CSV has every logged row.") : null,
      h(
        "div.chart-table-scroll",
        { tabindex: "0", role: "region", "aria-label": `Points of ${title}` },
        h(
          "table.table",
          h(
            "thead",
            h(
              "tr",
              h("th", { scope: "col" }, "At"),
              lines.map((line) => h("th.num", { scope: "col" }, line.name)),
            ),
          ),
          body,
        ),
      ),
    ),
    buttons: [where, before, after, close],
  });
  close.focus();
}

/** A file stays in memory for so long after it was handed over. */
const KEPT_MS = 60_000;
/** Characters of a file's name. */
const NAME = 120;

/** What every file system takes of some words. */
export const fileName = (...words) =>
  words
    .join(" ")
    .normalize("NFKD")
    .replace(/[^A-Za-z0-9._-]+/g, "-")
    .replace(/^[-.]+|[-.]+$/g, "")
    .slice(0, NAME) || "chart";

function save(blob, name) {
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), KEPT_MS);
}

/** Save a chart as it is drawn now. */
function savePng(chart, page) {
  if (!chart.plot.spec) return;
  const canvas = picture(chart.plot, { title: chart.title(), run: page.name(), when: Date.now() });
  canvas.toBlob((blob) => {
    if (blob) save(blob, `${fileName(page.id, chart.title())}.png`);
    else toast("The picture could not be made.", "warning");
  }, "image/png");
}

/** Save every logged row of a chart's metrics in the steps that are in sight, with what its x axis shows. */
export async function saveCsv(chart, page) {
  const x = chart.now ? chart.now().x : page.settings.x;
  const metrics = [...new Set([...chart.metrics(), ...(page.nameSet.has(x) ? [x] : [])])];
  const window = page.look.window();
  const steps = window ? { start: Math.max(0, Math.ceil(window[0])), stop: Math.max(0, Math.floor(window[1])) } : {};
  try {
    const answers = await api.series(page.id, metrics, { view: "all", x: "time", rank: chart.ranks, ...steps });
    const series = answers.flatMap((answer) => answer.series);
    const points = series.reduce((sum, one) => sum + one.steps.length, 0);
    const { parts, rows } = points > 0 ? csvOf(series) : { parts: [], rows: 0 };
    if (!rows) toast("No points in these steps.", "warning");
    else if (rows > MAX_ROWS)
      toast(
        `${formatCount(rows)} rows, a file has at most ${formatCount(MAX_ROWS)}: zoom in, or export the run.`,
        "warning",
        12,
      );
    else save(new Blob(parts, { type: "text/csv" }), `${fileName(page.id, chart.title())}.csv`);
  } catch (error) {
    toast(`No CSV: ${errorText(error)}`, "warning", 12);
  }
}

/** The buttons. `done` closes the menu. */
export function fileButtons(chart, page, done) {
  const button = (words, title, act) =>
    h(
      "button.button",
      {
        title,
        onclick: () => {
          done();
          act();
        },
      },
      words,
    );
  return h(
    "div.chart-files",
    button("PNG", "Save the chart as a picture", () => savePng(chart, page)),
    button("CSV", "Save every logged row of what is in sight", () => saveCsv(chart, page)),
    button("Data table", "The points that are drawn, to read", () => showTable(chart.title(), chart.plot)),
  );
}
