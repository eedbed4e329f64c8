// One metric as a chart among the others: its head with the tools, its size, its place by drag and by keys, full screen.

import { chartTools } from "../chart/chart_tools.js";
import { PanelChart } from "../chart/panel_chart.js";
import { byId, fill, h } from "../core/dom.js";
import { narrowPage, SIZE_WORDS, SIZES } from "./layout.js";
import { titleOf } from "./metric_tree.js";

/** The pointer rests so long on a chart that somebody goes to, milliseconds: others pass under it while the page scrolls. */
const REST_MS = 50;

/** A chart for the Board in `element`. */
function chartIn(element, legend, id, name, owner) {
  const { page, layout } = owner;
  const { own, set } = narrowPage(page, [name]);
  const panel = { id, metrics: [name], title: titleOf(name), per_rank: !name.endsWith("*"), log: false };
  const chart = new PanelChart(element, legend, panel, page.config, own);
  set(chart);
  if (layout.options[name]) chart.setOptions(layout.options[name]);
  chart.onOptions = (options) => owner.setOptions(name, options);
  return chart;
}

const iconButton = (icon, title, click, more) =>
  h(
    "button.chart-tool",
    { title, "aria-label": title, ...more, onclick: click },
    icon === "×" ? icon : h("span", { class: `icon icon-${icon}` }),
  );

export class MetricTile {
  /** `owner`: MetricSections; `section`: the prefix of the section that it stands in. */
  constructor(owner, section, name) {
    /** Until its tools are made; 0: the pointer is elsewhere. */
    this.timer = /** @type {any} */ (0);
    this.owner = owner;
    this.section = section;
    this.name = name;
    this.id = `metric ${name}`;
    const title = titleOf(name);
    this.legend = h("div.legend");
    this.canvas = h("div.chart.small");
    this.tools = h("span.tile-tools");
    this.grip = h(
      "button.chart-tool.grip",
      {
        draggable: "true",
        title: `${title}: drag it, or move it with the arrow keys`,
        "aria-label": `Move ${title}`,
        onkeydown: (event) => this.key(event),
        ondragstart: (event) => owner.dragged(event, this),
      },
      "⠿",
    );
    this.element = h(
      "section",
      {
        class: `panel metric size-${this.size}`,
        "aria-label": title,
        data: { metric: name },
        ondragover: (event) => owner.over(event, this),
        ondrop: (event) => owner.dropped(event, this),
        ondragend: () => owner.dragEnded(),
      },
      h(
        "div.panel-head.small",
        this.grip,
        h("h3", { title, dir: "auto" }, title),
        h("span.grow"),
        this.legend,
        this.tools,
      ),
      this.canvas,
    );
    this.chart = chartIn(this.canvas, this.legend, this.id, name, owner);
    owner.page.board.add(this.chart);
    // Hundreds of charts scroll past: tools are made for the few that somebody goes to.
    this.element.addEventListener("focusin", () => this.makeTools());
    for (const moved of ["pointerenter", "pointermove"])
      this.element.addEventListener(moved, () => {
        this.timer ||= setTimeout(() => this.makeTools(), REST_MS);
      });
    this.element.addEventListener("pointerleave", () => {
      clearTimeout(this.timer);
      this.timer = 0;
    });
    if (matchMedia("(hover: none)").matches) this.makeTools();
  }

  makeTools() {
    if (this.tools.firstChild) return;
    const { owner, name } = this;
    const title = titleOf(name);
    const pinned = owner.layout.pins.includes(name);
    fill(
      this.tools,
      iconButton(pinned ? "unpin" : "pin", `${pinned ? "Unpin" : "Pin"} ${title}`, () => owner.pin(name, !pinned), {
        "aria-pressed": String(pinned),
        data: { pin: name },
      }),
      iconButton("size", `Size of ${title}: ${SIZE_WORDS[this.size]}; click for the next`, () => owner.resize(name), {
        data: { size: name },
      }),
      iconButton("full", `${title} in full screen`, () => fullScreen(owner, name), { data: { full: name } }),
    );
    chartTools(this.tools, this.chart, owner.page);
  }

  get size() {
    return this.owner.layout.sizes[this.name] || "M";
  }

  key(event) {
    const by = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    this.owner.move(this.section, this.name, by);
  }

  /** The metrics whose points it needs. */
  metrics() {
    return this.chart.metrics();
  }

  close() {
    clearTimeout(this.timer);
    this.owner.page.board.remove(this.id);
    this.element.remove();
  }
}

/** The next size after this one. */
export const nextSize = (size) => SIZES[(SIZES.indexOf(size || "M") + 1) % SIZES.length];

/** Open a metric over the whole window; Esc ends it. `options` hold for this look only. */
export function fullScreen(owner, name, options = {}) {
  const { page } = owner;
  const canvas = h("div.chart");
  const legend = h("div.legend");
  const tools = h("span.tile-tools");
  const title = titleOf(name);
  const dialog = /** @type {HTMLDialogElement} */ (
    h(
      "dialog.full-chart",
      { "aria-label": title },
      h(
        "div.panel-head",
        h("h2", { title, dir: "auto" }, title),
        h("span.grow"),
        legend,
        tools,
        iconButton("×", "Close (Esc)", () => dialog.close(), { autofocus: true }),
      ),
      canvas,
    )
  );
  const chart = chartIn(canvas, legend, `full ${name}`, name, owner);
  if (Object.keys(options).length) chart.setOptions({ ...owner.layout.options[name], ...options });
  chartTools(tools, chart, page);
  dialog.addEventListener("close", () => {
    page.board.remove(chart.id);
    dialog.remove();
    owner.applyOptions(name);
    owner.dialog = null;
  });
  (byId("page") || document.body).append(dialog);
  owner.dialog?.close();
  owner.dialog = dialog;
  dialog.showModal();
  page.board.add(chart);
  page.feed.fetchWanted(chart.metrics());
  page.board.mark(chart);
  return chart;
}
