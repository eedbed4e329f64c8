// A chart for elsewhere: a picture, a table of every row, a table to read. Buttons for the menu of its tools.

import { api } from "../core/api.js";
import { h, toast } from "../core/dom.js";
import { errorText, formatCount } from "../core/format.js";
import { csvOf, MAX_ROWS } from "./csv.js";
import { picture } from "./png.js";
import { showTable } from "./table.js";

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
export function savePng(chart, page) {
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
