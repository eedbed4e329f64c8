// The strip of numbers: what the run does now, with the last hundred points behind each number.

import { robustRange } from "../chart/downsample.js";
import { asRecord } from "../core/as_type.js";
import { usable } from "../core/checkpoint.js";
import { byId, fill, h, setClass, setText, setTitle } from "../core/dom.js";
import { ago, capital, formatCount, plural, steady } from "../core/format.js";
import { incidentKind, notBackWords, onlyKnown, SEVERITIES, severityOf, stateOf, statusFacts } from "../core/kinds.js";

// -- A small line without axes, as SVG.

const SVG = "http://www.w3.org/2000/svg";

/** A line without axes. `values` may hold null for gaps; the colour is a CSS colour. */
function sparkline(values, color, width, height) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", "spark");
  const finite = values.filter((value) => Number.isFinite(value));
  if (finite.length < 2) return svg;
  const [low, high] = robustRange(finite);
  const span = high - low || 1;
  const clamp = (value) => Math.min(1, Math.max(0, (value - low) / span));
  let path = "";
  let open = false;
  values.forEach((value, index) => {
    if (!Number.isFinite(value)) {
      open = false;
      return;
    }
    const x = (index / (values.length - 1)) * width;
    const y = height - 2 - clamp(value) * (height - 4);
    path += `${open ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`;
    open = true;
  });
  const line = document.createElementNS(SVG, "path");
  line.setAttribute("d", path);
  line.setAttribute("fill", "none");
  line.setAttribute("stroke", color);
  line.setAttribute("stroke-width", "1.5");
  line.setAttribute("stroke-linejoin", "round");
  line.setAttribute("vector-effect", "non-scaling-stroke");
  svg.append(line);
  return svg;
}

// -- The cells of the strip: which there are, and their elements. What is in them is drawn by kpis.js.

/** Numbers side by side: fewer look lost, more are not read. */
const [LEAST, MOST] = [4, 8];

/** Cells that are computed: id and the words above. */
const COMPUTED = {
  ranks: "Ranks",
  last: "Last report",
  checkpoint: "Last checkpoint",
  incidents: "Open incidents",
  rollbacks: "Rollbacks",
};

/**
 * The cells that a run has: of its metrics those with a point, then what stands beside them. Nothing to show, no cell;
 * where that leaves too few, what is always known fills up.
 *
 * @param {{id: string, metric: string, unit: string, median: boolean}[]} chosen the headline's, with a point
 * @param {{checkpoints: number, forks: number, ranks: number, point: boolean}} facts
 */
export function cellsOf(chosen, facts) {
  const computed = ["incidents"];
  if (facts.checkpoints) computed.unshift("checkpoint");
  if (facts.forks) computed.push("rollbacks");
  const metrics = chosen.slice(0, MOST - computed.length);
  const fill = ["rollbacks", "ranks", ...(facts.point ? ["last"] : [])].filter((id) => !computed.includes(id));
  while (metrics.length + computed.length < LEAST && fill.length) computed.push(/** @type {string} */ (fill.shift()));
  return [
    ...metrics.map((cell) => ({ ...cell, label: cell.metric })),
    ...computed.map((id) => ({ id, label: COMPUTED[id], metric: "", unit: "", median: false })),
  ];
}

/** Bring the elements of the strip up to date. Returns its cells. */
function makeStrip(page) {
  const place = byId("kpis");
  if (!place) return [];
  const { cells: chosen } = page.headline.now;
  const cells = cellsOf(
    chosen.filter((cell) => page.store.tail(cell.metric, 1).steps.length),
    {
      checkpoints: page.checkpointList().filter(usable).length,
      forks: page.view().forks.length,
      ranks: page.worldSize(),
      point: page.store.lastTime !== null || Boolean(page.run?.updated),
    },
  );
  const key = JSON.stringify(cells);
  if (place.dataset.cells !== key || !place.firstChild) {
    place.dataset.cells = key;
    const there = new Map([...place.children].map((element) => [element.id, element]));
    fill(
      place,
      cells.map((cell) => there.get(`kpi-${cell.id}`) || make(cell)),
    );
    for (const cell of cells) name(cell);
  }
  return cells;
}

function make(cell) {
  return h(
    "div.kpi",
    { id: `kpi-${cell.id}` },
    h("div.kpi-label", { dir: "auto" }),
    h("div.kpi-line", h("span.kpi-value"), h("span.kpi-unit")),
    h("div.kpi-note"),
    h("div.kpi-spark"),
  );
}

function name(cell) {
  const element = byId(`kpi-${cell.id}`);
  const label = element.querySelector(".kpi-label");
  setText(label, cell.label);
  setTitle(label, cell.metric);
  setText(element.querySelector(".kpi-unit"), cell.unit);
  Object.assign(element.dataset, { metric: cell.metric, median: cell.median ? "yes" : "" });
}

/** Points behind a sparkline, and steps back for the comparison under the number. */
const SPARK = 120;
const BACK = 50;
/** Milliseconds from one drawing of a sparkline to the next: with each number they cost the page as much as a chart. */
const SPARK_MS = 2000;

function cell(id) {
  const element = byId(`kpi-${id}`);
  if (!element) return null;
  return {
    element,
    value: element.querySelector(".kpi-value"),
    unit: element.querySelector(".kpi-unit"),
    note: element.querySelector(".kpi-note"),
    spark: element.querySelector(".kpi-spark"),
  };
}

/** The words under a number; in full under the pointer, where the cell is too narrow for them. */
function note(parts, words, full) {
  setText(parts.note, words);
  if (parts.note.title !== (full || words)) parts.note.title = full || words;
}

export const median = (values) => {
  const sorted = values.filter(Number.isFinite).sort((a, b) => a - b);
  return sorted.length ? sorted[Math.floor(sorted.length / 2)] : null;
};

/** What the small picture of a cell was made of, and when; it is made again where that is another, after `rest` ms. */
const made = new WeakMap();
function picture(parts, key, make, rest = 0) {
  const last = made.get(parts.spark);
  const now = performance.now();
  // A region that came anew is empty.
  if (last && (last.key === key || now - last.at < rest) && (parts.spark.firstChild || !key)) return;
  made.set(parts.spark, { key, at: now });
  fill(parts.spark, make ? make() : null);
}

/** The gravest open alarm about a metric; of a loss also one about a data set's. */
function alarmOf(page, metric, loss) {
  return page
    .incidents()
    .filter((one) => one.state === "open" && !onlyKnown(one) && incidentKind(one.kind).compared)
    .filter((one) => one.metric === metric || (loss && one.dataset))
    .sort((a, b) => SEVERITIES.indexOf(severityOf(a)) - SEVERITIES.indexOf(severityOf(b)))[0];
}

/** Since when, and how many times the level before it, where the server says that. */
function alarmWords(incident, metric, now) {
  const evidence = asRecord(incident.evidence);
  const { metric: judged, level: drawn } = asRecord(evidence.window);
  const level = evidence.level_before ?? drawn; // that of the incident's own sentence
  const times = judged === metric && level > 0 && Number.isFinite(now) ? `× ${(now / level).toPrecision(2)} ` : "";
  return `${times}since ${formatCount(incident.onset_step)}`;
}

/** Redraw a cell that shows a metric. */
function metricCell(page, { id, metric, median: byMedian }, main) {
  const parts = cell(id);
  if (!parts) return;
  const { steps, values } = page.store.tail(metric, SPARK);
  const tone = (state) => setClass(parts.element, `kpi${state ? ` ${state}` : ""}`);
  if (!values.length) return;
  const now = values[values.length - 1];
  const smooth = byMedian ? median(values.slice(-9)) : now;
  setText(parts.value, steady(Number.isFinite(now) ? smooth : now));
  const before = median(values.slice(-BACK - 10, -10));
  const incident = alarmOf(page, metric, main && id === "loss");
  let note = "";
  let state = "";
  if (incident && Number.isFinite(now)) {
    note = alarmWords(incident, metric, now);
    state = severityOf(incident);
  } else if (!Number.isFinite(now)) {
    note = `at step ${formatCount(steps[steps.length - 1])}`;
    state = "critical";
  } else if (before !== null && values.length >= 24 && ofOneSign(values.slice(-BACK - 10))) {
    // A change is told, not judged: what is wrong is the server's to say, with an incident.
    const change = (median(values.slice(-5)) - before) / Math.abs(before);
    note =
      Math.abs(change) < 0.0005
        ? "no change"
        : `${change >= 0 ? "▲" : "▼"} ${percent(Math.abs(change))} in ${BACK} points`;
  }
  setText(parts.note, note);
  tone(state);
  const color = state === "critical" ? "var(--critical)" : state === "warning" ? "var(--warning)" : "var(--accent)";
  picture(parts, `${color} ${values.join()}`, () => sparkline(values, color, 160, 30), SPARK_MS);
}

/** Around 0 a share of the value before says nothing. */
const ofOneSign = (values) => values.every((value) => !(value <= 0)) || values.every((value) => !(value >= 0));

const percent = (share) =>
  share >= 9.995 ? `× ${(share + 1).toPrecision(3)}` : `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;

function checkpointCell(page) {
  const parts = cell("checkpoint");
  if (!parts) return;
  const fit = page.checkpointList().filter(usable);
  const [newest] = fit;
  setText(parts.value, newest ? formatCount(newest.step) : "–");
  setText(
    parts.note,
    newest ? `${ago(page.now() - newest.time)} · ${fit.length} usable` : page.ready ? "none announced yet" : "",
  );
  if (!newest || page.lastStep() === null) return picture(parts, "");
  const shown = fit.slice(0, 60);
  const low = shown[shown.length - 1].step;
  const span = Math.max(1, page.lastStep() - low);
  const places = shown.map((one) => `${Math.min(100, (100 * (one.step - low)) / span)}%`);
  picture(parts, places.join(), () =>
    h(
      "div.ticks",
      places.map((left) => h("i", { style: { left } })),
    ),
  );
}

function incidentsCell(page) {
  const parts = cell("incidents");
  if (!parts) return;
  const alarms = page.incidents().filter((incident) => !onlyKnown(incident));
  const open = alarms.filter((incident) => incident.state === "open");
  const worst = open.some((one) => one.severity === "critical") ? "critical" : open.length ? "warning" : "good";
  setText(parts.value, page.ready || open.length ? formatCount(open.length) : "–");
  const lead = open.find((one) => one.severity === "critical") || open[0];
  note(
    parts,
    lead
      ? lead.title
      : alarms.length
        ? capital(notBackWords(stateOf(page.run))) || `${formatCount(alarms.length)} so far, none open`
        : page.ready
          ? "none so far"
          : "",
  );
  setClass(parts.element, `kpi${open.length ? ` ${worst}` : ""}`);
  const dots = alarms
    .slice(0, 24)
    .reverse()
    .map((one) => [one.state === "open" ? severityOf(one) : "calm", one.title]);
  picture(parts, JSON.stringify(dots), () =>
    h(
      "div.dots",
      dots.map(([tone, title]) => h("i", { class: tone, title })),
    ),
  );
}

function rollbacksCell(page) {
  const parts = cell("rollbacks");
  if (!parts) return;
  const { forks } = page.view();
  const restarts = forks.filter((fork) => fork.segment.cause === "restart").length;
  const gone = forks.length ? page.rollbackCosts.stepsLost() : page.ready ? 0 : null;
  setText(parts.value, page.ready || forks.length ? formatCount(forks.length) : "–");
  const words = gone
    ? `${gone < 1000 ? plural(gone, "step") : formatCount(gone)} discarded`
    : gone === 0
      ? "nothing discarded"
      : "";
  const goodput = page.rollbackCosts.goodput();
  const kinds = restarts && restarts === forks.length ? `${plural(restarts, "restart")} · ` : "";
  note(
    parts,
    kinds + (goodput && forks.length ? goodput : words),
    `${gone === null ? "" : `${plural(gone, "step")} discarded`}${restarts ? `; ${plural(restarts, "restart")} among the forks` : ""}${goodput ? `; ${goodput} (see Rollback costs)` : ""}`,
  );
  const last = page.lastStep();
  const share = last ? gone / (last + gone) : 0;
  picture(
    parts,
    gone ? String(share) : "",
    gone
      ? () => h("div.bar", { title: `${percent(share)} of all steps` }, h("i", { style: { width: `${100 * share}%` } }))
      : null,
  );
}

/** How many ranks the job has. */
function ranksCell(page) {
  const parts = cell("ranks");
  if (!parts) return;
  setText(parts.value, formatCount(page.worldSize()));
  const none = page.run?.last_step === null || page.run?.last_step === undefined;
  note(parts, !none ? "in the job" : statusFacts(page.run?.status).ended ? "no step was logged" : "no step yet");
}

function lastCell(page) {
  const parts = cell("last");
  if (!parts) return;
  setText(parts.value, ago(page.now() - (page.store.lastTime ?? page.run.updated)));
  note(parts, page.lastStep() === null ? "" : `step ${formatCount(page.lastStep())}`);
}

/** Bring the strip up to date. */
export function drawKpis(page) {
  const cells = makeStrip(page);
  for (const one of cells) if (one.metric) metricCell(page, one, one.metric === page.metric());
  checkpointCell(page);
  incidentsCell(page);
  rollbacksCell(page);
  ranksCell(page);
  lastCell(page);
}
