// Runs over each other: one metric, aligned by step, by the newest fork or by time since the first point. What is shown is
// in the address, so that a link shows the same.

import { DURATION_AXIS, FORK_AXIS, STEP_AXIS } from "../chart/axis.js";
import { axisRange, robustRange } from "../chart/downsample.js";
import { Plot } from "../chart/line_chart.js";
import { calmRange, focusMetric } from "../chart/main_chart.js";
import { nearestPoint } from "../chart/readout.js";
import { api } from "../core/api.js";
import { choice, grow, LINEAR_LOG, panelHead, remember, segments, smoothing, toolPlace } from "../core/controls.js";
import { byId, fill, h, patch, segmented, setShown, setText, toast } from "../core/dom.js";
import { errorText, formatCount, formatValue, moment, plural, toNumber } from "../core/format.js";
import { statePill } from "../core/kinds.js";
import { Live } from "../core/live.js";
import { colorTheme } from "../core/theme.js";
import { crumbRuns, frame, livePill, morePanels } from "../navigation/rail.js";
import { configRows } from "../run/about.js";
import { drawBanner, drawPill } from "../run/header.js";

// -- The configs of the compared runs: only the keys that differ, a column for each run.

/** Keys that are shown at most. */
const KEYS = 300;

/**
 * Keys that are not the same in all configs: `[key, [value of each run]]`, by name; a key that a run lacks is null there.
 * @param {any[]} configs
 */
export function differingKeys(configs) {
  const tables = configs.map((config) => new Map(/** @type {[string, string][]} */ (configRows(config))));
  const keys = new Set(tables.flatMap((table) => [...table.keys()]));
  return /** @type {[string, (string | null)[]][]} */ (
    [...keys]
      .sort()
      .map((key) => [key, tables.map((table) => table.get(key) ?? null)])
      .filter(([, values]) => new Set(values).size > 1)
  );
}

/** `page` as in compare_page.js. */
function drawConfigs(page) {
  const place = byId("compare-configs");
  if (!place) return;
  const runs = page.ids.map((id) => page.all.find((run) => run.run_id === id)).filter(Boolean);
  const rows = runs.length > 1 ? differingKeys(runs.map((run) => run.config)) : [];
  setShown(byId("compare-config-panel"), rows.length > 0);
  if (!rows.length) return;
  setText(byId("compare-config-note"), `${plural(rows.length, "key")} ${rows.length === 1 ? "differs" : "differ"}`);
  const drawn = JSON.stringify([runs.map((run) => run.run_id), rows]);
  if (place.dataset.drawn === drawn) return;
  place.dataset.drawn = drawn;
  patch(
    place,
    h(
      "table.table.dense.about-diff",
      h(
        "thead",
        h(
          "tr",
          h("th", "Key"),
          runs.map((run) =>
            h("th", h("i.swatch", { style: { background: page.colour(run.run_id) } }), " ", page.nameOf(run.run_id)),
          ),
        ),
      ),
      h(
        "tbody",
        rows.slice(0, KEYS).map(([key, values]) =>
          h(
            "tr",
            { data: { key } },
            h("th", { scope: "row" }, key),
            values.map((value) => h("td", value === null ? h("span.sub", "not there") : value)),
          ),
        ),
      ),
    ),
    rows.length > KEYS ? h("p.sub", `and ${rows.length - KEYS} more`) : null,
  );
}

// -- The runs of a comparison as rows: what each says under the pointer, and now.

/** `0.02 % · grad_norm 0.1 %`: of the loss, then of the gradient norm. */
function scoreWords(scores) {
  const known = (scores ? scores.metrics : []).filter((one) => one.share !== null);
  return known.map((one) => `${one.metric} ${scorePercent(one.share)}`).join(" · ") || "–";
}

const scorePercent = (share) => `${share ? Number((100 * share).toPrecision(2)) : 0} %`;

/** A run's row: `fixed` of the row itself, `words` of its cells; `x`: where the pointer is. */
function factsOf(page, id, x) {
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
}

function comparedRow(page, { fixed: [id, name, colour, shown, own], words }) {
  return h(
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
  );
}

/** The runs as rows: values under the pointer, and the newest. */
function drawCompared(page) {
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
    "x starts at",
    "Rollbacks",
    "",
  ];
  const facts = page.ids.map((id) => factsOf(page, id, x));
  // Rows stay while only their numbers change: a button that is replaced under the pointer loses the click.
  const key = JSON.stringify(facts.map((one) => one.fixed));
  if (place.dataset.rows !== key) {
    place.dataset.rows = key;
    const rows = facts.map((one) => comparedRow(page, one));
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

// -- The chart of a comparison: a line a run, on the axis by which they are aligned.

/** How strong the true values are behind the smoothed ones. */
const BEHIND = 0.25;

/** Marks of what is no number, as the server writes it. */
const SYMBOLS = { Infinity: "up", "-Infinity": "down" };

/** The lines of a run in one: its segments in step order, cut where each stopped counting. */
function lineOf(run, column, align) {
  const x = [];
  const y = [];
  const parts = [...run.series].filter((one) => !one.dead && one.steps.length).sort((a, b) => a.steps[0] - b.steps[0]);
  for (const part of parts) {
    const xs = part.xs || part.steps;
    const values = part[column] || part.values;
    // In time a fork is a gap: what was discarded took its time, and the restart took some.
    if (align === "time" && x.length) {
      x.push(x[x.length - 1]);
      y.push(null);
    }
    for (let index = 0; index < xs.length; index += 1) {
      const value = toNumber(values[index]);
      x.push(xs[index]);
      y.push(Number.isFinite(value) ? value : null);
    }
  }
  return { x, y };
}

/** Draw the lines of the runs that are shown. */
function drawChart(page, element) {
  if (element.clientWidth < 40) return;
  const { settings } = page;
  const { colors } = page.config.themes[colorTheme.name()];
  const lines = [];
  const marks = [];
  const ranges = [];
  let low = Infinity;
  let high = -Infinity;
  for (const run of page.runs) {
    if (!page.ids.includes(run.run_id) || page.off.has(run.run_id)) continue;
    const color = page.colour(run.run_id);
    const raw = lineOf(run, "values", settings.align);
    const main = settings.smooth ? lineOf(run, "smoothed", settings.align) : raw;
    if (settings.smooth) lines.push({ ...raw, color, opacity: BEHIND, width: 1, hover: false, name: "" });
    lines.push({ ...main, color, width: 1.8, name: page.nameOf(run.run_id), run: run.run_id });
    const inside = main.y.filter(
      (value, index) =>
        value !== null &&
        (!settings.log || value > 0) &&
        (!page.range || (main.x[index] >= page.range[0] && main.x[index] <= page.range[1])),
    );
    if (inside.length) ranges.push(robustRange(inside, []));
    for (const part of run.series)
      part.values.forEach(
        (value, index) =>
          Number.isFinite(toNumber(value)) ||
          marks.push({ x: (part.xs || part.steps)[index], color, symbol: SYMBOLS[value] || "x" }),
      );
    if (raw.x.length) {
      low = Math.min(low, raw.x[0]);
      high = Math.max(high, raw.x[raw.x.length - 1]);
    }
  }
  const there = lines.some((line) => line.x.length);
  element.dataset.empty = there
    ? ""
    : page.ids.length
      ? page.refused ||
        (page.runs.length
          ? `None of these runs has logged ${settings.metric}.`
          : page.all.length && !page.asked().length
            ? "None of these runs has forked: there is nothing to align by."
            : "Fetching …")
      : "";
  const span = high - low || 1;
  const y = axisRange(
    ranges.length ? [Math.min(...ranges.map((one) => one[0])), Math.max(...ranges.map((one) => one[1]))] : [0, 1],
    settings.log,
  );
  page.plot.draw({
    width: element.clientWidth,
    height: element.clientHeight,
    margin: { l: 62, r: 18, t: 14, b: 30 },
    xRange: page.range || (there ? [low - 0.005 * span, high + 0.01 * span] : [0, 100]),
    yRange: calmRange(page.memory, "y", y),
    log: settings.log,
    colors,
    font: page.config.font,
    lines,
    rules:
      settings.align === "fork" && there ? [{ x: 0, color: colors.muted, dash: [6, 4], opacity: 0.8, height: 1 }] : [],
    marks: marks.slice(0, 400),
    axis: { time: DURATION_AXIS, fork: FORK_AXIS }[settings.align] || STEP_AXIS,
  });
}

// -- What is said of runs that saw the same data in the same order, and by how much they are moved to lie over each other.

/** Stretches of a run that are named one by one. */
const NAMED = 3;

/**
 * One text for each of the longest stretches in which a run saw the data of another one.
 *
 * @param {{ run_id: string, same_data: import("../../../types/api").SameData[] }} run
 * @param {(id: string) => string} nameOf
 * @returns {string[]}
 */
export function sameDataWords(run, nameOf) {
  const longest = [...run.same_data].sort((a, b) => b.last_step - b.first_step - (a.last_step - a.first_step));
  const words = longest.slice(0, NAMED).map((stretch) => {
    const steps = `steps ${formatCount(stretch.first_step)} to ${formatCount(stretch.last_step)}`;
    const than =
      stretch.first_step === stretch.other_step ? "" : ` from its step ${formatCount(stretch.other_step)} on`;
    return `${nameOf(run.run_id)}, ${steps}: the data of ${nameOf(stretch.other_run)}${than}, in its order`;
  });
  const more = longest.length - words.length;
  return more > 0 ? [...words, `and ${formatCount(more)} more`] : words;
}

/**
 * By how many steps each run of an address is moved: its `shift` belongs to the `run` at the same place.
 *
 * @param {URLSearchParams} query
 * @returns {Map<string, number>}
 */
export function shiftsOf(query) {
  const shifts = query.getAll("shift").map(Number);
  return new Map(query.getAll("run").map((id, at) => [id, Number.isSafeInteger(shifts[at]) ? shifts[at] : 0]));
}

/**
 * What is said of a run whose steps are moved, "" of one that stays where it is.
 *
 * @param {string} name
 * @param {number} shift
 */
export function shiftWords(name, shift) {
  const steps = `${formatCount(Math.abs(shift))} ${Math.abs(shift) === 1 ? "step" : "steps"}`;
  return shift ? `${name} is moved ${steps} to the ${shift > 0 ? "right" : "left"}` : "";
}

/** Runs on the page; beyond that nobody tells lines apart. */
const RUNS = 8;
/** How often new points are asked for while someone looks. */
const AGAIN_MS = 4000;
/** How often the SpikeScore of a run that goes on is asked for. */
const SCORE_MS = 60000;
const REST_MS = 120;
const POINTS = 2000;
const METRICS = 500;
const ALIGNS = { step: "step", fork: "steps since the newest fork", time: "time since the first point" };

/** The metric of `run` that answers to `metric`: that, or its own loss where `metric` is the loss of one of `runs`. */
export function comparedMetric(run, metric, runs) {
  if ((run.metrics || []).includes(metric)) return metric;
  return (runs.some((one) => one.loss_metric === metric) && run.loss_metric) || null;
}

const skeleton = () =>
  frame(
    [crumbRuns(), h("h1.crumb-here", "Compare"), h("span.chip", { id: "compare-count" }), livePill()],
    h(
      "main.list.stack",
      h(
        "section.panel",
        { id: "compare-panel" },
        h(
          "div.tools.first",
          toolPlace("compare-metric"),
          h(
            "div.tool",
            h("span.tool-label", "Align by"),
            segments("compare-align", "What the lines have in common at zero", [
              ["step", "Step"],
              ["fork", "Last fork"],
              ["time", "Time"],
            ]),
          ),
          toolPlace("compare-smooth"),
          grow(),
          segments("compare-scale", "Value axis", LINEAR_LOG),
          h("button.toggle", { id: "zoom-reset", hidden: true }, "Reset zoom"),
        ),
        h("div.legend.wide", { id: "compare-legend" }),
        h("div.chart.compare", { id: "compare-chart" }),
        h("div.panel-note", { id: "compare-note", hidden: true }),
      ),
      h(
        "section.panel",
        panelHead("Runs", h("span.sub", { id: "compare-cursor" }), grow(), toolPlace("compare-add")),
        h("div.wide-table", { id: "compare-table" }),
      ),
      h(
        "section.panel",
        { id: "compare-config-panel", hidden: true },
        panelHead("Config", h("span.sub", { id: "compare-config-note" })),
        h("div.wide-table", { id: "compare-configs" }),
      ),
      h("div", { id: "compare-empty", hidden: true }),
      morePanels(),
    ),
  );

export class ComparePage {
  static skeleton = skeleton;

  constructor(root, config) {
    this.root = root;
    this.config = config;
    const query = new URLSearchParams(location.search);
    this.ids = [...new Set(query.getAll("run"))].slice(0, RUNS);
    this.shifts = shiftsOf(query);
    const smooth = Number(query.get("smooth"));
    this.settings = {
      metric: query.get("metric") || "",
      align: Object.keys(ALIGNS).find((one) => one === query.get("align")) || "step",
      smooth: smooth > 0 && smooth < 1 ? smooth : 0,
      log: query.get("scale") === "log",
    };
    this.all = [];
    this.runs = [];
    this.off = new Set();
    this.slots = new Map();
    /** Run -> its SpikeScores, and when they were asked for. */
    this.scores = new Map();
    this.scoredAt = new Map();
    this.memory = new Map();
    this.asks = 0;
    this.range = null;
    this.plot = new Plot(byId("compare-chart"), {
      label: "Comparison",
      onZoom: (range) => range[1] - range[0] >= 1 && this.zoom(range),
      onReset: () => this.zoom(null),
      onCursor: (x) => this.pointAt(x),
    });
    this.listen();
    this.unwatch = colorTheme.watch(() => this.draw());
    this.sized = new ResizeObserver(() => this.paint());
    this.sized.observe(byId("compare-chart"));
    this.live = new Live(
      null,
      (message) => this.onMessage(message),
      (state) => {
        this.state = state;
        this.drawTop();
      },
    );
    this.fetchList();
    this.tick = setInterval(() => !document.hidden && this.drawTop(), 1000);
  }

  listen() {
    const { settings } = this;
    this.metricList = choice(byId("compare-metric"), "compare-metric-list", "Metric", (value) => {
      settings.metric = value;
      this.change(true);
    });
    this.addList = choice(byId("compare-add"), "compare-add-list", "Add a run", (value) => {
      if (value && this.ids.length < RUNS) this.ids.push(value);
      this.change(false);
    });
    segmented(byId("compare-align"), (value) => {
      settings.align = value;
      this.change(true);
    })(settings.align, true);
    segmented(byId("compare-scale"), (value) => {
      settings.log = value === "log";
      this.memory.clear();
      this.remember();
      this.draw();
    })(settings.log ? "log" : "linear", true);
    smoothing(byId("compare-smooth"), "compare-smooth-slider", (weight) => {
      settings.smooth = weight;
      this.change(false, REST_MS);
    })(settings.smooth);
    byId("zoom-reset").addEventListener("click", () => this.zoom(null));
  }

  /** What is shown changed: ask again. `anew`: the zoom means nothing any more. */
  change(anew, wait) {
    if (anew) {
      this.range = null;
      this.memory.clear();
    }
    this.remember();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.fetch(), wait || 0);
    this.draw();
  }

  remember() {
    const { metric, align, smooth, log } = this.settings;
    remember({
      run: this.ids,
      metric,
      align: align === "step" ? null : align,
      shift: this.moved().some(Boolean) ? this.ids.map((id) => this.shifts.get(id) || 0) : null,
      smooth: smooth || null,
      scale: log ? "log" : null,
    });
  }

  zoom(range) {
    this.range = range;
    setShown(byId("zoom-reset"), range !== null);
    this.memory.clear();
    this.paint();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.fetch(), REST_MS);
  }

  /** All runs: for the metrics that they have in common, and for those that may be added. */
  async fetchList() {
    try {
      const { runs } = await api.runs();
      if (this.gone) return;
      this.all = runs.filter((run) => run.run_id);
      this.trouble = null;
      await this.fetchNames();
      if (this.gone) return;
      if (!this.settings.metric) this.settings.metric = focusMetric(this.metrics());
      this.fetch();
    } catch (error) {
      if (this.gone) return;
      this.trouble = error.message;
      this.timer = setTimeout(() => this.fetchList(), 2000 + 2000 * Math.random());
    }
    this.draw();
  }

  /** Names of the metrics of the chosen runs: lists have none. */
  async fetchNames() {
    const unknown = this.all.filter((run) => this.ids.includes(run.run_id) && !run.metrics);
    const found = await Promise.all(unknown.map((run) => api.run(run.run_id).catch(() => null)));
    for (const one of found) if (one) Object.assign(this.run(one.run_id), { metrics: one.metrics });
  }

  /** SpikeScores of the chosen runs; that of a run that goes on is asked for again after a minute. */
  async fetchScores() {
    const now = performance.now();
    const due = this.ids.filter((id) => {
      const at = this.scoredAt.get(id);
      return at === undefined || (this.run(id).status === "running" && now - at > SCORE_MS);
    });
    for (const id of due) this.scoredAt.set(id, now);
    await Promise.all(
      due.map(async (id) => this.scores.set(id, (await api.spikeScore(id).catch(() => null)) || this.scores.get(id))),
    );
    if (due.length && !this.gone) this.draw();
  }

  /** @returns {any} */
  run(id) {
    return this.all.find((one) => one.run_id === id) || {};
  }

  /** Names that any chosen run logs; those that all of them log first. */
  metrics() {
    const chosen = this.all.filter((run) => this.ids.includes(run.run_id));
    const counts = new Map();
    for (const run of chosen) for (const name of run.metrics || []) counts.set(name, (counts.get(name) || 0) + 1);
    return [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).map(([name]) => name);
  }

  /** What of a run is laid over the others, null for nothing: losses are compared whatever each run calls its own. */
  metricOf(id) {
    const run = this.all.find((one) => one.run_id === id);
    return run ? comparedMetric(run, this.settings.metric, this.all) : this.settings.metric;
  }

  async fetch() {
    clearTimeout(this.timer);
    const { settings } = this;
    const ask = (this.asks += 1);
    await this.fetchNames();
    if (this.gone || ask !== this.asks) return;
    this.fetchScores();
    const asked = this.asked();
    if (!asked.length) this.runs = [];
    if (asked.length && settings.metric) {
      const query = new URLSearchParams(asked.map((id) => ["run", id]));
      const shown = new Map(asked.map((id) => [id, this.metricOf(id)]));
      for (const name of new Set([settings.metric, ...shown.values()])) if (name) query.append("metric", name);
      query.set("align", settings.align);
      query.set("points", String(POINTS));
      if (this.moved().some(Boolean)) for (const shift of this.moved()) query.append("shift", String(shift));
      if (settings.smooth) query.set("smooth", String(settings.smooth));
      if (this.range) this.window(query);
      try {
        const answer = await api.compare(query);
        if (this.gone || ask !== this.asks) return;
        this.runs = answer.runs.map((run) => ({
          ...run,
          series: run.series.filter((one) => one.metric === (shown.get(run.run_id) || settings.metric)),
        }));
        this.trouble = this.refused = null;
      } catch (error) {
        if (this.gone || ask !== this.asks) return;
        // A run of the address that is gone: the others are shown.
        if (error.status === 404) this.dropUnknown();
        if (error.status >= 400 && error.status < 500) this.refused = errorText(error);
        else this.trouble = errorText(error);
      }
      this.draw();
    }
    const live = this.all.some((run) => this.ids.includes(run.run_id) && run.status === "running");
    if (live || this.trouble) this.timer = setTimeout(() => (document.hidden ? this.later() : this.fetch()), AGAIN_MS);
  }

  /** Runs that can be aligned as people want: one that never forked has no fork to be aligned by. */
  asked() {
    const forked = (id) => (this.all.find((run) => run.run_id === id) || {}).rollbacks > 0;
    return this.settings.align === "fork" ? this.ids.filter(forked) : this.ids;
  }

  /** By how many steps each run that is asked for is moved; none where they are not aligned by step. */
  moved() {
    return this.settings.align === "step" ? this.ids.map((id) => this.shifts.get(id) || 0) : [];
  }

  later() {
    this.timer = setTimeout(() => (document.hidden ? this.later() : this.fetch()), AGAIN_MS);
  }

  dropUnknown() {
    const known = new Set(this.all.map((run) => run.run_id));
    const lost = this.ids.filter((id) => !known.has(id));
    if (!lost.length) return;
    this.ids = this.ids.filter((id) => known.has(id));
    toast(`${lost.join(", ")} ${lost.length > 1 ? "are" : "is"} not known to this server.`, "warning");
    this.change(false);
  }

  /** The steps that a zoom shows, of whichever run: the server thins what lies in them. */
  window(query) {
    if (this.settings.align !== "step") return; // each run has its own; what is here stays
    const span = this.range[1] - this.range[0];
    query.set("start", String(Math.max(0, Math.floor(this.range[0] - 0.1 * span))));
    query.set("stop", String(Math.ceil(this.range[1] + 0.1 * span)));
  }

  onMessage(message) {
    if (message.type === "run") {
      const at = this.all.findIndex((run) => run.run_id === message.run.run_id);
      if (at >= 0) this.all[at] = { ...this.all[at], ...message.run };
      if (this.ids.includes(message.run.run_id)) drawCompared(this);
    } else if (message.type === "hello" && message.afterLoss) this.fetchList();
  }

  // -- drawing --------------------------------------------------------------------------------------------------

  colour(id) {
    const { series } = this.config.themes[colorTheme.name()].colors;
    // A run keeps its colour while others come and go.
    for (const known of [...this.slots.keys()]) if (!this.ids.includes(known)) this.slots.delete(known);
    if (!this.slots.has(id)) {
      const taken = new Set(this.slots.values());
      let free = 0;
      while (taken.has(free)) free += 1;
      this.slots.set(id, free);
    }
    return series[this.slots.get(id) % series.length];
  }

  nameOf(id) {
    const run = this.all.find((one) => one.run_id === id);
    const twins = this.all.filter((one) => run && one.name === run.name && this.ids.includes(one.run_id)).length > 1;
    return run ? (run.name ? (twins ? `${run.name} (${id})` : run.name) : id) : id;
  }

  drawTop() {
    const newest = this.all
      .filter((run) => this.ids.includes(run.run_id))
      .reduce((best, run) => Math.max(best, run.updated || 0), 0);
    drawPill(this.live, this.state, null, newest || null, false);
    drawBanner(this.live, this.trouble);
  }

  draw() {
    if (this.gone || !this.root.isConnected) return;
    const { settings } = this;
    setText(byId("compare-count"), this.ids.length ? plural(this.ids.length, "run") : "");
    const none = this.ids.length === 0;
    setShown(byId("compare-panel"), !none);
    const empty = byId("compare-empty");
    setShown(empty, none);
    if (none && !empty.children.length) {
      fill(
        empty,
        h(
          "div.empty.panel",
          h("h2", "No run is chosen"),
          h(
            "p",
            "Choose runs in ",
            h("a", { href: "/" }, "the list"),
            ", or add one above; their lines are laid over each other here.",
          ),
        ),
      );
    }
    const names = this.metrics().slice(0, METRICS);
    if (settings.metric && !names.includes(settings.metric)) names.unshift(settings.metric);
    this.metricList?.options(
      names.map((name) => ({ value: name, text: name })),
      settings.metric,
    );
    const others = this.all
      .filter((run) => !this.ids.includes(run.run_id))
      .map((run) => ({ value: run.run_id, text: run.name || run.run_id }));
    this.addList?.options(
      [
        { value: "", text: this.ids.length >= RUNS ? `${RUNS} at most` : others.length ? "Choose …" : "No other run" },
        ...(this.ids.length < RUNS ? others : []),
      ],
      "",
    );
    this.drawLegend();
    this.paint();
    drawCompared(this);
    this.drawTop();
  }

  drawLegend() {
    fill(
      byId("compare-legend"),
      this.ids.map((id) =>
        h(
          "button",
          {
            class: `legend-key${this.off.has(id) ? " off" : ""}`,
            title: this.off.has(id) ? "Show its line" : "Hide its line",
            "aria-pressed": String(!this.off.has(id)),
            data: { run: id },
            onclick: () => {
              if (this.off.has(id)) this.off.delete(id);
              else this.off.add(id);
              this.memory.clear();
              this.draw();
            },
          },
          h("i", { style: { background: this.colour(id) } }),
          h("span", this.nameOf(id)),
        ),
      ),
    );
  }

  paint() {
    if (this.gone || !byId("compare-chart")) return;
    drawChart(this, byId("compare-chart"));
    const missing = this.ids.filter((id) => !this.asked().includes(id));
    const note = byId("compare-note");
    const words = [
      `x: ${ALIGNS[this.settings.align]}`,
      missing.length ? `without a fork and so left out: ${missing.map((id) => this.nameOf(id)).join(", ")}` : "",
      ...this.moved().map((shift, at) => shiftWords(this.nameOf(this.ids[at]), shift)),
      ...new Set(this.runs.flatMap((run) => run.problems || [])),
      ...this.runs.flatMap((run) => sameDataWords(run, (id) => this.nameOf(id))),
    ];
    setText(note, words.filter(Boolean).join(" · "));
    setShown(note, this.ids.length > 0);
  }

  pointAt(x) {
    this.plot.pointer.place(x);
    if (this.pointing) return;
    this.pointing = true;
    requestAnimationFrame(() => {
      this.pointing = false;
      if (!this.gone) drawCompared(this);
    });
  }

  remove(id) {
    this.ids = this.ids.filter((one) => one !== id);
    this.runs = this.runs.filter((run) => run.run_id !== id);
    this.off.delete(id);
    this.change(false);
  }

  close() {
    this.gone = true;
    clearInterval(this.tick);
    clearTimeout(this.timer);
    this.unwatch();
    this.sized.disconnect();
    this.live.close();
  }
}
