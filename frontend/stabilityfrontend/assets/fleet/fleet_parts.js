// The regions of the fleet's page: headline numbers, the table in the words of Llama 3's, the list with its evidence, the GPUs.

import { asFinite, asList, asRecord, asText } from "../core/as_type.js";
import { byId, h, setShown, setText } from "../core/dom.js";
import { ago, duration, formatCount, formatValue, moment, plural, readable } from "../core/format.js";
import { incidentHref } from "../core/route.js";
import { keyed } from "../incident/parts.js";
import { interruptionEntry } from "./interruption_list.js";

/** Interruptions drawn at once; a button brings as many more. */
const LISTED = 60;
const GPUS = 200;

/** GPU-hours below which nothing is said of a thousand of them. */
const FEW_HOURS = 10;
const VISIBLE = { direct: "directly", indirect: "indirectly", no: "not visible" };

const percent = (share) =>
  share === null || share === undefined || !Number.isFinite(share)
    ? "–"
    : `${share > 0 && share < 0.01 ? "< 1" : Math.round(100 * share)} %`;

function headline(id, value, unit, note) {
  const cell = byId(`fleet-total-${id}`);
  if (!cell) return;
  setText(cell.querySelector(".kpi-value"), value);
  setText(cell.querySelector(".kpi-unit"), unit);
  setText(cell.querySelector(".kpi-note"), note);
}

function headlines(data) {
  const lost = asFinite(data.time_lost_s);
  const running = asFinite(data.running_s);
  const rate = asFinite(data.per_1000_gpu_hours);
  headline(
    "count",
    formatCount(asFinite(data.count)),
    "",
    `in ${plural(asFinite(data.runs) || 0, "run")}${data.not_counted ? `; ${formatCount(data.not_counted)} by hand or by themselves not counted` : ""}`,
  );
  headline(
    "lost",
    lost === null ? "–" : lost ? duration(lost) : "0",
    "",
    lost && running ? `${percent(lost / (running + lost))} of the time` : "",
  );
  headline(
    "mtbi",
    asFinite(data.mtbi_s) === null ? "–" : duration(data.mtbi_s),
    "",
    running ? `${duration(running)} trained` : "",
  );
  const hours = asFinite(data.gpu_hours);
  const few = hours !== null && hours < FEW_HOURS;
  headline(
    "rate",
    rate === null || few ? "–" : rate >= 1000 ? formatCount(rate) : formatValue(rate),
    "",
    hours === null ? "" : `${formatValue(hours)} GPU-hours${few ? ": too few to say" : ""}`,
  );
}

// -- the table ------------------------------------------------------------------------------------------------------

function row(one, most) {
  const share = asFinite(one.share) || 0;
  const published = asFinite(one.published_share);
  const bar = (value, look) => h("i", { class: look, style: { width: `${most ? (100 * value) / most : 0}%` } });
  return h(
    "tr",
    { class: one.count ? "" : "never", data: { category: asText(one.category) } },
    h("th", { scope: "row" }, asText(one.label) || readable(asText(one.category))),
    h("td", { class: "num strong" }, formatCount(asFinite(one.count))),
    h("td", { class: "num" }, one.count ? percent(share) : "–"),
    h("td", { class: "num" }, one.count ? duration(asFinite(one.time_lost_s)) : "–"),
    h("td", { class: "bars", "aria-hidden": "true" }, bar(share, "ours"), bar(published || 0, "theirs")),
    h(
      "td",
      {
        class: "num sub",
        title: asFinite(one.published) === null ? null : `${formatCount(one.published)} of Llama 3's interruptions`,
      },
      published === null ? "not in it" : percent(published),
    ),
    h(
      "td",
      { class: "sees" },
      h("span", { class: `seen ${asText(one.visible)}` }, VISIBLE[one.visible] || "–"),
      asText(one.sees) ? h("span", { class: "sub" }, `: ${asText(one.sees)}`) : null,
    ),
  );
}

function table(data) {
  const rows = asList(data.table).map(asRecord);
  const most = Math.max(0, ...rows.flatMap((one) => [asFinite(one.share) || 0, asFinite(one.published_share) || 0]));
  const published = asRecord(data.published);
  return [
    h(
      "table",
      { class: "table dense fleet-table" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          [
            ["Category"],
            ["Count", "num"],
            ["Share", "num"],
            ["Time lost", "num"],
            ["", "bars"],
            ["Llama 3", "num"],
            ["Visibility"],
          ].map(([word, look]) => h("th", { scope: "col", class: look || "" }, word)),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((one) => row(one, most)),
      ),
    ),
    h(
      "p",
      { class: "panel-note" },
      h("span", { class: "key" }, h("i", { class: "line" }), "this fleet"),
      " ",
      h("span", { class: "key" }, h("i", { class: "line quiet" }), "Llama 3"),
      ` · ${published.count ? `${formatCount(published.count)} unexpected interruptions in ${formatCount(published.days)} days on ${formatCount(published.gpus)} GPUs` : ""}${asText(published.source) ? ` (${asText(published.source)})` : ""}. ${asText(published.note)}`,
    ),
  ];
}

// -- the list -------------------------------------------------------------------------------------------------------

function list(page) {
  const all = (Array.isArray(page.data.interruptions) ? page.data.interruptions : []).map(asRecord);
  const shown = all.slice(0, LISTED * page.more);
  const more = all.length - shown.length;
  return [
    shown.map((one) => interruptionEntry(page, one)),
    more > 0
      ? h(
          "button",
          {
            type: "button",
            class: "segment-more",
            data: { focus: "more" },
            on: { click: () => ((page.more += 1), page.draw()) },
          },
          `${formatCount(more)} older ones …`,
        )
      : null,
  ];
}

// -- GPUs -----------------------------------------------------------------------------------------------------------

function gpus(page) {
  const all = page.gpus
    .map(asRecord)
    .sort((a, b) => (b.runs || 0) - (a.runs || 0) || (b.count || 0) - (a.count || 0) || (b.last || 0) - (a.last || 0));
  return [
    h(
      "table",
      { class: "table dense fleet-gpus" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          [
            ["GPU"],
            ["Where"],
            ["Faults", "num"],
            ["Runs", "num"],
            ["14 days", "num"],
            ["Last"],
            ["Class"],
            ["Newest fault"],
          ].map(([word, look]) => h("th", { scope: "col", class: look || "" }, word)),
        ),
      ),
      h(
        "tbody",
        {},
        all.slice(0, GPUS).map((gpu) => {
          const newest = asRecord(asList(gpu.faults)[0]);
          const title = asText(newest.title) || readable(asText(newest.what));
          return h(
            "tr",
            { class: gpu.runs > 1 || gpu.recent > 1 ? "repeat" : "", data: { gpu: asText(gpu.uuid) } },
            h(
              "td",
              {},
              h("code", {}, asText(gpu.uuid)),
              h(
                "div",
                { class: "sub" },
                asText(gpu.name),
                gpu.runs > 1 ? h("span", { class: "chip critical repeat-chip" }, "repeats") : null,
              ),
            ),
            h(
              "td",
              {},
              [asText(gpu.node), asFinite(gpu.index) === null ? "" : `GPU ${gpu.index}`].filter(Boolean).join(" · "),
            ),
            h("td", { class: "num strong" }, formatCount(asFinite(gpu.count))),
            h("td", { class: "num" }, formatCount(asFinite(gpu.runs))),
            h("td", { class: "num" }, formatCount(asFinite(gpu.recent))),
            h(
              "td",
              { title: asFinite(gpu.last) === null ? null : moment(gpu.last) },
              asFinite(gpu.last) === null ? "–" : ago(page.now() - gpu.last),
            ),
            h("td", {}, asText(newest.class) || "–"),
            h(
              "td",
              { class: "words" },
              asText(newest.run_id) && asText(newest.incident_id)
                ? h("a", { href: incidentHref(asText(newest.run_id), asText(newest.incident_id)) }, title)
                : title || "–",
            ),
          );
        }),
      ),
    ),
    all.length > GPUS ? h("p", { class: "panel-note" }, `and ${formatCount(all.length - GPUS)} GPUs more`) : null,
  ];
}

// -- all of it ------------------------------------------------------------------------------------------------------

function empty(page) {
  const { data } = page;
  const period = page.days === "all" ? "as long as this server remembers" : `in the last ${page.days} days`;
  return h(
    "div",
    { class: "empty panel" },
    h("h2", {}, data.runs ? "Nothing has interrupted training" : "No run trained"),
    h(
      "p",
      {},
      `${data.runs ? `${plural(data.runs, "run")} trained ${period}, and none of them stopped without being asked to` : `There is no run ${period}`}${page.project ? ` in project “${page.project}”` : ""}.`,
    ),
    h(
      "p",
      {},
      "When a job dies, hangs, or loses a node or a GPU, the stop appears here: what it was, in the words of the table that the Llama 3 report published, what speaks for that, how sure it is, and what it cost. Nothing has to be set up for it.",
    ),
  );
}

export function drawFleet(page) {
  const { data } = page;
  const none = !asList(data.interruptions).length;
  headlines(data);
  setShown(byId("fleet-totals"), Boolean(data.runs) || !none);
  setShown(byId("fleet-empty"), none);
  setShown(byId("fleet-table-panel"), !none);
  setShown(byId("fleet-list-panel"), !none);
  keyed(byId("fleet-empty"), [none, data.runs, page.days, page.project], () => (none ? empty(page) : []));
  keyed(byId("fleet-table"), [data.table, data.published], () => table(data));
  keyed(byId("fleet-list"), [data.interruptions, [...page.opened], page.more, data.table], () => list(page));
  setText(byId("fleet-list-note"), none ? "" : "newest first; correct what you know better");
  setShown(byId("fleet-gpus-panel"), page.gpus.length > 0);
  keyed(byId("fleet-gpus"), page.gpus, () => gpus(page));
  setText(byId("fleet-gpus-note"), "over all runs and projects, those that do it again first");
}
