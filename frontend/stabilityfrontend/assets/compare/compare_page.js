// Runs over each other: one metric, aligned by step, by the newest fork or by time since the first point. What is shown is
// in the address, so that a link shows the same.

import { Plot } from "../chart/line_chart.js";
import { focusMetric } from "../chart/main_chart.js";
import { api } from "../core/api.js";
import { choice, remember, smoothing } from "../core/controls.js";
import { byId, fill, h, segmented, setShown, setText, toast } from "../core/dom.js";
import { errorText, plural } from "../core/format.js";
import { Live } from "../core/live.js";
import { colorTheme } from "../core/theme.js";
import { drawBanner, drawPill } from "../run/header.js";
import { drawChart } from "./compare_chart.js";
import { drawCompared } from "./compare_table.js";
import { sameDataWords, shiftsOf, shiftWords } from "./same_data.js";

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

export class ComparePage {
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
