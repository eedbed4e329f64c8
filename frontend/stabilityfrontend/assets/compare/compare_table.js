// The runs of a comparison as rows: what each says under the pointer, and now.

import { statePill } from "../core/appearance.js";
import { byId, fill, h, setText } from "../core/dom.js";
import { formatCount, formatValue, moment } from "../core/format.js";
import { nearestPoint } from "../pointer/readout.js";
import { drawConfigs } from "./config_table.js";

/** `0.02 % · grad_norm 0.1 %`: of the loss, then of the gradient norm. */
function scoreWords(scores) {
  const known = (scores ? scores.metrics : []).filter((one) => one.share !== null);
  return known.map((one) => `${one.metric} ${scorePercent(one.share)}`).join(" · ") || "–";
}

const scorePercent = (share) => `${share ? Number((100 * share).toPrecision(2)) : 0} %`;

/** The runs as rows: what each says under the pointer, and now. */
export function drawCompared(page) {
  const place = byId("compare-table");
  if (!place) return;
  drawConfigs(page);
  const x = page.plot.pointer.cursor;
  setText(byId("compare-cursor"), x === null ? "" : `at ${page.plot.spec.axis.words(x)}`);
  const heads = [
    "Run",
    "Status",
    "Value under the pointer",
    "Newest",
    "Lowest",
    "SpikeScore",
    "Newest step",
    "Zero is at",
    "Rollbacks",
    "",
  ];
  const facts = page.ids.map((id) => {
    const run = page.all.find((one) => one.run_id === id) || {};
    const shown = page.runs.find((one) => one.run_id === id);
    const own = page.metricOf(id);
    const drawn = (page.plot.spec ? page.plot.spec.lines : []).find((line) => line.run === id);
    const point = drawn && x !== null ? nearestPoint(drawn, x) : null;
    const { align } = page.settings;
    const zero = !shown
      ? "–"
      : align === "fork"
        ? shown.fork_step === null || shown.fork_step === undefined
          ? "no fork"
          : `step ${formatCount(shown.fork_step)}`
        : align === "time"
          ? moment(shown.offset)
          : "step 0";
    let lowest = null;
    for (const value of drawn ? drawn.y : []) if (value !== null && (lowest === null || value < lowest)) lowest = value;
    let newest = drawn ? drawn.y.length - 1 : -1;
    while (newest >= 0 && drawn.y[newest] === null) newest -= 1;
    return {
      fixed: [
        id,
        page.nameOf(id),
        page.colour(id),
        run.status ? [run.state, run.worst_incident, run.note] : null,
        own === page.settings.metric ? "" : own || `does not log ${page.settings.metric}`,
      ],
      words: [
        point ? formatValue(point.value) : "–",
        newest >= 0 ? formatValue(drawn.y[newest]) : "–",
        lowest === null ? "–" : formatValue(lowest),
        scoreWords(page.scores.get(id)),
        formatCount(run.last_step),
        zero,
        formatCount(run.rollbacks),
      ],
    };
  });
  // Rows stay while only their numbers change: a button that is replaced under the pointer loses the click.
  const key = JSON.stringify(facts.map((one) => one.fixed));
  if (place.dataset.rows !== key) {
    place.dataset.rows = key;
    const rows = facts.map(({ fixed: [id, name, colour, shown, own], words }) =>
      h(
        "tr",
        { data: { run: id } },
        h(
          "td",
          h("i.swatch", { style: { background: colour } }),
          " ",
          h("a.run-link", { href: `/runs/${encodeURIComponent(id)}` }, name),
          own ? h("span.sub", " ", h("bdi", own)) : null,
        ),
        h("td", shown ? statePill({ run_id: id, state: shown[0], worst_incident: shown[1], note: shown[2] }) : ""),
        words.map((_, index) => h("td", { class: `num${index === 0 ? " strong" : ""}` })),
        h(
          "td.num",
          h(
            "button.icon-button.tiny",
            {
              "aria-label": `Take ${name} out`,
              title: "Take it out",
              data: { remove: id },
              onclick: () => page.remove(id),
            },
            "×",
          ),
        ),
      ),
    );
    fill(
      place,
      rows.length
        ? h(
            "table.table.dense",
            h(
              "thead",
              h(
                "tr",
                heads.map((head, index) =>
                  h("th", { class: index > 1 ? "num" : "" }, head || h("span.unseen", "Take out")),
                ),
              ),
            ),
            h("tbody", rows),
          )
        : h("div.nothing", "None yet."),
    );
  }
  facts.forEach(({ words }, row) => {
    const { children } = place.querySelectorAll("tbody tr")[row];
    words.forEach((text, index) => setText(children[index + 2], text));
  });
}
