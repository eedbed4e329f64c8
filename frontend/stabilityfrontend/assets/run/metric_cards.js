// All metrics as small cards with a sparkline: bounded, searchable, filled only while in sight. A click on one opens it
// as a chart of its own among the small multiples; the page's address remembers which are open.

import { chartTools } from "../chart/chart_tools.js";
import { panelChart } from "../chart/panel_chart.js";
import { sparkline } from "../chart/sparkline.js";
import { byId, fill, h, setShown, setText, toast } from "../core/dom.js";
import { formatCount, formatValue, plural } from "../core/format.js";
import { colorTheme } from "../core/theme.js";
import { fitPanels } from "./panels.js";

/** Charts that people may add by clicking cards. */
const ADDED = 12;

export class Cards {
  constructor(page, config) {
    this.page = page;
    this.limit = config.limits.cards;
    this.config = config;
    this.open = false;
    this.cards = new Map();
    this.added = new Map();
    // Charts that the address asks for; each opens when its metric is known.
    this.wanted = new Set(new URLSearchParams(location.search).getAll("chart").slice(0, ADDED));
    this.search = h("input", {
      type: "search",
      class: "field",
      placeholder: "Search metrics",
      "aria-label": "Search metrics",
      autocomplete: "off",
      id: "all-filter",
    });
    this.search.addEventListener("input", () => {
      this.setOpen(true);
      this.list();
    });
    fill(byId("all-search"), this.search);
    byId("all-fold").addEventListener("click", () => this.setOpen(!this.open));
    this.seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const card = this.cards.get(/** @type {HTMLElement} */ (entry.target).dataset.metric);
        if (card) card.visible = entry.isIntersecting;
      }
      this.page.feed.fetchWanted([...this.cards].filter(([, card]) => card.visible).map(([name]) => name));
    });
  }

  setOpen(open) {
    if (open === this.open) return;
    this.open = open;
    byId("all-fold").setAttribute("aria-expanded", String(open));
    setShown(byId("all-metrics"), open);
    if (open) this.list();
  }

  /** Make the cards of the metrics that the search lets through, and open the charts that the address asks for. */
  list() {
    const metrics = this.page.names;
    for (const name of [...this.wanted].filter((one) => metrics.includes(one))) this.add(name);
    const words = this.search.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const fitting = metrics.filter((name) => words.every((word) => name.toLowerCase().includes(word)));
    const shown = fitting.slice(0, this.limit);
    setText(
      byId("all-note"),
      `${plural(metrics.length, "metric")}${words.length ? `, ${formatCount(fitting.length)} fit` : ""}${fitting.length > shown.length ? `, the first ${shown.length} shown` : ""}`,
    );
    if (!this.open) return;
    const place = byId("all-metrics");
    const keep = new Set(shown);
    for (const [name, card] of this.cards) {
      if (keep.has(name)) continue;
      this.seen.unobserve(card.element);
      this.cards.delete(name);
    }
    for (const name of shown) if (!this.cards.has(name)) this.cards.set(name, this.make(name));
    fill(
      place,
      shown.map((name) => this.cards.get(name).element),
    );
    if (!shown.length)
      fill(
        place,
        h("div", { class: "nothing" }, metrics.length ? "No metric has these words in its name." : "No metric yet."),
      );
  }

  make(name) {
    const value = h("span", { class: "card-value" });
    const spark = h("div", { class: "card-spark" });
    const element = h(
      "button",
      {
        type: "button",
        class: "card",
        title: `${name}: open or close its chart`,
        "aria-pressed": String(this.added.has(name)),
        data: { metric: name },
        on: { click: () => this.promote(name) },
      },
      h("span", { class: "card-name" }, name),
      value,
      spark,
    );
    this.seen.observe(element);
    return { element, value, spark, visible: false, key: "" };
  }

  /** Refresh the cards in sight. */
  draw() {
    if (!this.open) return;
    for (const [name, card] of this.cards) {
      if (!card.visible) continue;
      const { steps, values } = this.page.store.tail(name, 100);
      const key = `${colorTheme.name()} ${steps[steps.length - 1]} ${values[values.length - 1]} ${values.length}`;
      if (key === card.key) continue;
      card.key = key;
      setText(card.value, values.length ? formatValue(values[values.length - 1]) : "–");
      fill(card.spark, sparkline(values, "var(--accent)", 160, 28));
    }
  }

  /** Open a metric as a chart, or take its chart away again. */
  promote(name) {
    if (this.added.has(name)) this.remove(name);
    else if (this.added.size >= ADDED) toast(`${ADDED} charts are open already; close one first.`, "warning");
    else this.add(name).scrollIntoView({ block: "nearest", behavior: "smooth" });
    this.page.look.remember();
  }

  /** The metrics that stand as charts of their own, also those that are still awaited. */
  names() {
    return [...new Set([...this.added.keys(), ...this.wanted])];
  }

  add(name) {
    this.wanted.delete(name);
    const element = h("div", { class: "chart small" });
    const legend = h("div", { class: "legend" });
    const close = h(
      "button",
      {
        type: "button",
        class: "icon-button tiny",
        "aria-label": `Close the chart of ${name}`,
        on: { click: () => this.promote(name) },
      },
      "×",
    );
    const tools = h("span", { class: "chart-tools-place" });
    const section = h(
      "section",
      { class: "panel added", data: { added: name } },
      h(
        "div",
        { class: "panel-head small" },
        h("h3", { title: name }, name),
        h("span", { class: "grow" }),
        legend,
        tools,
        close,
      ),
      element,
    );
    this.added.set(name, section);
    byId("panels").append(section);
    fitPanels(this.page.root);
    const chart = panelChart(
      element,
      legend,
      { id: `added ${name}`, metrics: [name], per_rank: true, log: false },
      this.config,
      this.page,
    );
    this.page.board.add(chart);
    chartTools(tools, chart, this.page);
    this.page.store.pin([name]);
    if (this.page.charted) this.page.feed.fetchWanted([name]);
    this.pressed(name, true);
    return section;
  }

  remove(name) {
    this.page.board.remove(`added ${name}`);
    this.added.get(name).remove();
    this.added.delete(name);
    this.page.store.loosen([name].filter((one) => !this.page.alwaysKept().includes(one)));
    fitPanels(this.page.root);
    this.pressed(name, false);
  }

  /** Show on a metric's card whether its chart is open. */
  pressed(name, on) {
    const card = this.cards.get(name);
    if (card) card.element.setAttribute("aria-pressed", String(on));
  }

  close() {
    this.seen.disconnect();
  }
}
