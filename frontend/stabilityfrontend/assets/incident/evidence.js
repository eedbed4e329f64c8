// What an incident rests on: the curve around its onset, who moved first, what else happened, what to go through.

import { asFinite, asList, asRecord, asText } from "../core/as_type.js";
import { cutName, h, setText, tableHead, when } from "../core/dom.js";
import { formatAge, formatCount, formatValue, plural, toNumber } from "../core/format.js";
import { incidentKind, severityOf } from "../core/kinds.js";
import { incidentHref } from "../core/route.js";
import { trainLine } from "./verdict.js";

// -- A declared mixture that is off: declared and taken share of each data set, as a table.

/** Data sets before it says how many more there are. */
const FEW_SETS = 8;

const share = (value) => `${(100 * (asFinite(value) ?? 0)).toFixed(1)} %`;

/** How many tokens or samples too many or too few: `+8,192`, `−4,096`, `0`. */
function offWords(amount) {
  const words = formatCount(Math.round(Math.abs(amount)));
  return words === "0" ? words : `${amount > 0 ? "+" : "−"}${words}`;
}

/** The table; null for an incident that is of no declared mixture. */
function sharesTable(incident) {
  const { sets, unit, measure } = incident.evidence;
  if (!Array.isArray(sets) || !sets.length) return null;
  const counted = measure !== "ratio"; // a bare share has no amount
  const heads = ["Data set", "declared", "taken", ...(counted ? [`${asText(unit)} off`] : [])];
  return h(
    "table.moved.shares",
    tableHead(heads, (_word, at) => (at ? "num" : "")),
    h(
      "tbody",
      sets
        .slice(0, FEW_SETS)
        .map((one) =>
          h(
            "tr",
            h("td.name", { title: asText(one.dataset) }, cutName(asText(one.dataset))),
            h("td.num", share(one.declared)),
            h("td.num", share(one.realised)),
            counted ? h("td.num", offWords(asFinite(one.off) ?? 0)) : null,
          ),
        ),
    ),
    sets.length > FEW_SETS ? h("caption", `and ${sets.length - FEW_SETS} more`) : null,
  );
}

// -- What a rollback was to change and did not: what was ordered beside what came instead, as a table.

const CHANGES = { lr_scale: "Learning rate", seed: "Seed", skip_batches: "Batches", skip_range: "Batches" };

/** What the job reports that it applied, in a line; "" where it reports nothing. */
export function reportedWords(applied) {
  if (applied === null || applied === undefined) return "";
  const said = Object.entries(asRecord(applied)).map(([name, value]) => `${name} ${asText(value)}`);
  return `The job reports that it applied: ${said.join(", ") || "nothing"}.`;
}

/** The table; null for an incident that is of no order. */
function ordersTable(incident) {
  const { not_followed: rows, applied } = incident.evidence;
  if (!asList(rows).length) return null;
  return h(
    "table.moved.orders",
    tableHead(["Change", "ordered", "came instead"]),
    h(
      "tbody",
      asList(rows).map((one) =>
        h(
          "tr",
          h("td.name", CHANGES[asText(one.change)] || asText(one.change)),
          h("td", asText(one.ordered)),
          h("td", asText(one.observed)),
        ),
      ),
    ),
    h("caption", reportedWords(applied)),
  );
}

const SVG = "http://www.w3.org/2000/svg";
/** The chart's own units; it is stretched to the width that there is. */
const WIDTH = 300;
const HEIGHT = 84;
/** Lines of a table before it says how many more there are. */
const FEW = 6;

const list = (value) => (Array.isArray(value) ? value : []);
const number = (value) => {
  const found = toNumber(value);
  return found === null ? NaN : found;
};

function shape(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  return element;
}

/** `3 steps before`, `at the onset`, `1 step after`. */
function fromOnset(distance) {
  if (distance === 0) return "at the onset";
  return `${plural(Math.abs(distance), "step")} ${distance < 0 ? "before" : "after"}`;
}

/** The drawing of `evidence.window`; `scale`: `{x, y}` of an index and a value, `onset` an index. */
function windowDrawing(incident, { steps, values, band, level }, { x, y, onset }) {
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const over = steps.findIndex((step) => step >= (incident.recovered_step ?? Infinity));
  const end = over < 0 ? steps.length - 1 : over;
  const width = Math.max(1.5, x(end) - x(onset));
  svg.append(shape("rect", { class: `event ${severityOf(incident)}`, x: x(onset), y: 0, width, height: HEIGHT }));
  if (band.length === 2 && band.every(Number.isFinite)) {
    const height = Math.max(1, y(band[0]) - y(band[1]));
    svg.append(shape("rect", { class: "usual", x: 0, y: y(band[1]), width: WIDTH, height }));
  }
  if (Number.isFinite(level))
    svg.append(shape("line", { class: "level", x1: 0, x2: WIDTH, y1: y(level), y2: y(level) }));
  let path = "";
  let on = false;
  values.forEach((value, index) => {
    if (Number.isFinite(value)) path += `${on ? "L" : "M"}${x(index).toFixed(1)},${y(value).toFixed(1)}`;
    on = Number.isFinite(value);
  });
  svg.append(shape("path", { class: "curve", d: path }));
  values.forEach((value, index) => {
    if (!Number.isFinite(value))
      svg.append(shape("line", { class: "strange", x1: x(index), x2: x(index), y1: 0, y2: 9 }));
  });
  return svg;
}

/** The small curve of `evidence.window`; null where there is none. One point beside the other: steps may be uneven. */
function windowChart(incident) {
  const found = incident.evidence && incident.evidence.window;
  if (!found || list(found.steps).length < 2) return null;
  const { steps } = found;
  const values = list(found.values).map(number);
  const band = list(found.band).map(number);
  const level = number(found.level);
  const finite = [...values, ...band].filter(Number.isFinite);
  if (!finite.length) return null;
  const [least, most] = [Math.min(...finite), Math.max(...finite)];
  const air = 0.08 * (most - least || Math.abs(most) || 1);
  const [low, high] = [least - air, most + air];
  const x = (index) => (index / (steps.length - 1)) * WIDTH;
  const y = (value) => HEIGHT - ((value - low) / (high - low)) * HEIGHT;
  const before = steps.findIndex((step) => step >= incident.onset_step);
  const onset = before < 0 ? steps.length - 1 : before;
  const write = (chart, words) => setText(chart.parentElement.querySelector(".window-read"), words);
  const read = ({ currentTarget: chart, clientX }) => {
    const box = chart.getBoundingClientRect();
    const at = Math.round(((clientX - box.left) / box.width) * (steps.length - 1));
    const index = Math.max(0, Math.min(steps.length - 1, at));
    write(chart, `step ${formatCount(steps[index])}: ${formatValue(values[index])}`);
  };
  const place = onset / (steps.length - 1);
  return h(
    "figure.window",
    h("figcaption", h("b", found.metric), h("span.window-read", levelWords(level))),
    h(
      "div.window-chart",
      {
        role: "img",
        "aria-label": `${found.metric} around the onset, from step ${steps[0]} to ${steps[steps.length - 1]}`,
        onpointermove: read,
        onpointerleave: (event) => write(event.currentTarget, levelWords(level)),
      },
      windowDrawing(incident, { steps, values, band, level }, { x, y, onset }),
    ),
    h(
      "div.window-steps",
      place > 0.22 ? h("span", formatCount(steps[0])) : null,
      h(
        "span",
        { class: `at${place > 0.85 ? " end" : place < 0.1 ? " begin" : ""}`, style: { left: `${100 * place}%` } },
        `onset ${formatCount(incident.onset_step)}`,
      ),
      place < 0.75 ? h("span.last", formatCount(steps[steps.length - 1])) : null,
    ),
  );
}

const levelWords = (level) => (Number.isFinite(level) ? `usual level ${formatValue(level)}` : "");

function change(move) {
  const percent = toNumber(move.rise_percent);
  if (percent === null || !Number.isFinite(percent)) return formatValue(toNumber(move.to));
  if (percent >= 900) return `× ${formatValue(Number((1 + percent / 100).toPrecision(2)))}`;
  // As the sentence above it rounds: whole percents.
  const size = Math.abs(percent);
  return `${percent > 0 ? "+" : "−"}${formatValue(size < 10 ? Number(size.toPrecision(2)) : Math.round(size))} %`;
}

function movedTable(incident) {
  const moved = list(incident.evidence.moved_first);
  if (!moved.length) return null;
  const shares = moved.some((move) => move.share !== undefined && move.share !== null);
  const rows = moved
    .slice(0, FEW)
    .map((move) =>
      h(
        "tr",
        h("td.name", { title: move.metric }, cutName(move.metric)),
        h("td", fromOnset(move.onset_step - incident.onset_step)),
        h(
          "td.num",
          { title: `from ${formatValue(toNumber(move.from))} to ${formatValue(toNumber(move.to))}` },
          change(move),
        ),
        shares
          ? h("td.num", move.share === undefined || move.share === null ? "" : `${Math.round(100 * move.share)} %`)
          : null,
      ),
    );
  const head = ["Moved first", "when", "change", ...(shares ? ["of the rise"] : [])];
  return h(
    "table.moved",
    h(
      "thead",
      h(
        "tr",
        head.map((word, index) =>
          h(
            "th",
            { class: index > 1 ? "num" : "", title: index > 2 ? "Share of the rise of all data sets" : null },
            word,
          ),
        ),
      ),
    ),
    h("tbody", rows),
    moved.length > FEW ? h("caption", `and ${moved.length - FEW} more`) : null,
  );
}

const block = (title, ...parts) =>
  parts.flat().some(Boolean) ? h("section.evidence-part", h("h4", title), ...parts) : null;
const lines = (entries, look) =>
  entries.length
    ? h(
        "ul",
        { class: look || "" },
        entries.map((entry) => h("li", entry)),
      )
    : null;

function nearby(incident) {
  return list(incident.evidence.nearby).map((fact) => [
    h("span.when", fromOnset(fact.step - incident.onset_step)),
    ` ${fact.text}`,
  ]);
}

function batches(incident) {
  const found = list(incident.evidence.batches);
  return found.map((entry) => [
    h("span.when", formatCount(entry.step)),
    " ",
    h("code", { title: entry.fingerprint }, entry.fingerprint),
  ]);
}

/** Everything behind the fold; null where there is nothing. */
function details(incident) {
  const { suggestion } = incident;
  const parts = [
    movedTable(incident),
    sharesTable(incident),
    ordersTable(incident),
    block("Near the onset", lines(nearby(incident))),
    block("Checklist", lines(list(suggestion && suggestion.checklist))),
    block("Batches by step", lines(batches(incident), "batches")),
    suggestion && suggestion.source && suggestion.source !== "rule of thumb"
      ? h("p.source", `Source: ${suggestion.source}.`)
      : null,
  ].filter(Boolean);
  return parts.length ? h("div.evidence", parts) : null;
}

/**
 * What a card shows below its facts. The curve and the advice stand there while it is open, the rest behind a fold that
 * stays as people left it. `first`: unfolded until somebody folds it.
 */
export function evidence(page, incident, first) {
  if (!incident.evidence) return [];
  const { suggestion } = incident;
  const open = incident.state === "open";
  const folds = (page.evidenceFolds = page.evidenceFolds || new Map());
  const shown = folds.has(incident.incident_id) ? folds.get(incident.incident_id) : Boolean(first);
  const more = details(incident);
  const chart = open || shown ? windowChart(incident) : null;
  const hidden = more || (!open && windowChart(incident));
  const excuses = list(incident.evidence.explained_by).filter((text) => text);
  return [
    excuses.length ? h("p.excuse", `Explained by: ${excuses.join("; ")}.`) : null,
    chart,
    suggestion && suggestion.text && (open || suggestion.action !== "none") ? h("p.suggestion", suggestion.text) : null,
    hidden
      ? h(
          "button.fold.evidence-fold",
          {
            "aria-expanded": String(shown),
            data: { evidence: incident.incident_id },
            onclick: () => {
              folds.set(incident.incident_id, !shown);
              page.dirty("incidents");
            },
          },
          h("span.icon.icon-fold"),
          "Evidence",
        )
      : null,
    shown ? more : null,
  ];
}

/** A chip with the data sets that moved together; null where that is one or none. */
export function dataSets(incident) {
  const names = list(incident.evidence && incident.evidence.datasets);
  if (names.length < 2) return null;
  const shown =
    names.length > FEW ? `${names.slice(0, FEW).join(", ")} and ${names.length - FEW} more` : names.join(", ");
  return h(
    "span.fact-chip",
    { title: "Data sets whose losses moved, the one that carries most first" },
    `data sets ${shown}`,
  );
}

/** What is known and no alarm, below the alarms and folded. */
export function knownList(page, known) {
  if (!known.length) return null;
  const shown = Boolean(page.knownShown);
  const row = (incident) =>
    h(
      "article",
      {
        class: `known${incident.state === "open" ? "" : " closed"}`,
        tabindex: "0",
        data: { incident: incident.incident_id },
        onclick: (event) => event.target.closest("button, a") || page.zoomTo(incident),
        onkeydown: (event) => event.key === "Enter" && event.target === event.currentTarget && page.zoomTo(incident),
      },
      h(
        "div.incident-head",
        h("h3", incident.title || incidentKind(incident.kind).label),
        when(incident.opened, formatAge(page.now() - incident.opened)),
      ),
      incident.text ? h("p", incident.text) : null,
      trainLine(incident, page.incidents(), page.id),
      evidence(page, incident, false),
      page.id
        ? h(
            "a.details-link",
            { href: incidentHref(page.id, incident.incident_id), data: { details: incident.incident_id } },
            "Details",
          )
        : null,
    );
  return h(
    "div.known-list",
    h(
      "button.fold",
      {
        id: "known-fold",
        "aria-expanded": String(shown),
        title: "Changes with a known reason, and unsure findings. They send no alert.",
        onclick: () => {
          page.knownShown = !shown;
          page.dirty("incidents");
        },
      },
      h("span.icon.icon-fold"),
      "Known or watched, no alarm",
      h("span.chip", formatCount(known.length)),
    ),
    shown ? known.map(row) : null,
  );
}
