// The points that a chart draws as a table in a dialog, page by page.

import { fill, h, setText } from "../core/dom.js";
import { formatCount, formatValue, plural } from "../core/format.js";
import { smallDialog } from "../dialogs/confirm.js";

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
export function showTable(title, plot) {
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
