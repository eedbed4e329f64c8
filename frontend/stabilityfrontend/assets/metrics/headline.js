// What of the run is shown first, as the server chose it: the cells of the strip, the large chart's metrics, the small
// charts. Cells and charts are made here; what is in a cell is drawn by run/kpis.js.

import { chartTools } from "../chart/chart_tools.js";
import { MIXTURE, PanelChart } from "../chart/panel_chart.js";
import { api } from "../core/api.js";
import { byId, h, setShown } from "../core/dom.js";
import { firstMetrics, firstRequests, matching, wantedOf } from "../core/first_requests.js";
import { narrowPage } from "./layout.js";

/** New names are told apart after some rows: it is asked again this soon after the first, and after later ones. */
const [SOON_MS, AGAIN_MS] = [300, 5000];

/** Where a layout has the options of a chart that the server chose: no metric is called so. */
const optionsKey = (id) => `headline ${id}`;

export class Headline {
  /** `page` as in run_page.js. */
  constructor(page) {
    this.page = page;
    /** @type {import("../../../types/api").Headline} */
    this.now = { main: null, below: null, cells: [], charts: [] };
    this.known = false;
    /** The names that the run had when it was asked for. */
    this.askedWith = "";
    /** Small charts: `{key, panel, section, chart}`. */
    this.panels = [];
    /** Names of the run that strip and small charts show. */
    this.first = [];
  }

  async fetch() {
    const { page } = this;
    this.askedWith = page.names.join("\n");
    try {
      const answer = await api.headlineOf(page.id);
      if (page.gone) return;
      const same = JSON.stringify(answer) === JSON.stringify(this.now);
      this.now = answer;
      Object.assign(firstRequests, {
        patterns: wantedOf(answer),
        strip: answer.cells.map((cell) => cell.metric),
      });
      if (!same || !this.known) this.use();
      this.known = true;
    } catch {
      // The page asks again when it is in touch again.
    }
  }

  /** There are new names. */
  soon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(
      () => {
        if (this.askedWith !== this.page.names.join("\n")) this.fetch();
      },
      this.now.cells.length ? AGAIN_MS : SOON_MS,
    );
  }

  use() {
    const { page } = this;
    this.makePanels();
    const large = byId("chart-focus");
    if (large) large.dataset.empty = this.now.main ? "" : "No metric yet: the curve begins with the first step.";
    page.namesShown(this.known ? page.names : []); // at first the feed fetches them all
    page.dirty("kpis", "header");
  }

  /** The charts that differ go and come; those that stay are not touched. */
  makePanels() {
    const { page } = this;
    const place = byId("panels");
    if (!place) return;
    const wanted = new Map(this.now.charts.map((chart) => [JSON.stringify(chart), chart]));
    for (const one of this.panels)
      if (!wanted.has(one.key)) {
        page.board.remove(one.panel.id);
        one.section.remove();
      }
    const kept = new Map(this.panels.map((one) => [one.key, one]));
    this.panels = [...wanted].map(([key, panel]) => kept.get(key) || this.make(key, panel));
    for (const { section } of this.panels) place.append(section);
    this.show();
  }

  make(key, panel) {
    const { page } = this;
    const legend = h("div.legend", { id: `legend-${panel.id}` });
    const element = h("div.chart.small", { id: `chart-${panel.id}` });
    const head = h(
      "div.panel-head.small",
      h("h3", { title: panel.title, dir: "auto" }, panel.title),
      h("span.sub", { id: `note-${panel.id}` }, panel.unit),
      h("span.grow"),
      legend,
    );
    const section = h(
      "section.panel",
      { id: `panel-${panel.id}`, "aria-label": panel.title, hidden: true },
      head,
      element,
    );
    const { own, set } = narrowPage(page, panel.metrics);
    const chart = new PanelChart(element, legend, { ...panel, metrics: [...panel.metrics] }, page.config, own);
    set(chart);
    chart.setOptions(page.metrics.layout.options[optionsKey(panel.id)] || {});
    chart.onOptions = (options) => page.metrics.setOptions(optionsKey(panel.id), options);
    chartTools(head, chart, page);
    page.board.add(chart);
    return { key, panel, section, chart };
  }

  /** The charts take what a layout says of them. */
  applyOptions(layout) {
    for (const { panel, chart } of this.panels) chart.setOptions(layout.options[optionsKey(panel.id)] || {});
  }

  /** Show the charts that have one of the run's metrics; the place of all while there is any. */
  show() {
    const { page } = this;
    this.first = firstMetrics(page.names);
    for (const { panel, section } of this.panels) {
      const declared = panel.id === MIXTURE && page.mixture?.curves;
      section.hidden = !declared && matching(panel.metrics, page.names).length === 0;
    }
    setShown(
      byId("panels"),
      this.panels.some((one) => !one.section.hidden),
    );
    page.mixture?.draw();
  }

  /** Names that have a chart above all others. */
  charted() {
    const { page } = this;
    const patterns = this.panels.flatMap(({ panel }) => panel.metrics);
    return new Set([this.now.main, this.now.below, ...matching(patterns, page.names)]);
  }

  /** Seconds of a step as the run logs them, null where it does not or in no unit that we know. */
  stepScale() {
    const cell = this.now.cells.find((one) => one.role === "step_time_s");
    const scale = cell && { s: 1, ms: 1e-3 }[cell.unit];
    return cell && scale ? { metric: cell.metric, scale } : null;
  }

  close() {
    clearTimeout(this.timer);
  }
}
