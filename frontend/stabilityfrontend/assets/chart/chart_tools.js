// The tools in the head of a chart: a button for what is used most, and a menu with the rest.

import { choice, smoothing } from "../core/controls.js";
import { fill, h, setText } from "../core/dom.js";
import { fileButtons } from "./chart_files.js";

/** Metrics offered in a list. */
const OFFERED = 300;
/** Tells the controls of one chart from those of another. */
const made = { tools: 0 };

/**
 * Put the tools of a chart into the head of its section. `chart` as `panelChart` returns it: `set(changes)` and `now()`
 * are its options, `title()` its name. One without options, the large chart, has the files only. Returns the element.
 * @param {HTMLElement} head
 * @param {any} chart
 * @param {any} page
 */
export function chartTools(head, chart, page) {
  made.tools += 1;
  const id = `chart-tools-${made.tools}`;
  const menu = h("div.chart-menu", { id, popover: "auto", role: "dialog" });
  const log = chart.set ? button("log", "Logarithmic y axis", () => chart.set({ log: !chart.now().log })) : null;
  const open = button("⋯", "", () => {});
  open.setAttribute("popovertarget", id);
  open.setAttribute("aria-haspopup", "dialog");
  const tools = h("div.chart-tools", log, open, menu);
  const parts = chart.set ? new ChartMenu(menu, id, chart, page) : { draw() {} };
  menu.append(fileButtons(chart, page, () => menu.hidePopover()));
  const draw = () => {
    if (log) {
      const { log: on } = chart.now();
      log.classList.toggle("on", on);
      log.setAttribute("aria-pressed", String(on));
      open.classList.toggle("on", Object.keys(chart.options()).length > 0);
    }
    for (const [element, words] of [
      [open, `Tools of the chart ${chart.title()}`],
      [menu, `Tools of the chart ${chart.title()}`],
    ])
      if (element.getAttribute("aria-label") !== words) element.setAttribute("aria-label", words);
    if (menu.matches(":popover-open")) parts.draw();
  };
  menu.addEventListener("toggle", (event) => {
    if (/** @type {ToggleEvent} */ (event).newState !== "open") return;
    parts.draw();
    place(menu, open);
  });
  // Names of metrics may come later.
  open.addEventListener("click", draw);
  chart.watch?.(draw);
  draw();
  head.append(tools);
  return tools;
}

/** Under its button, within the window. */
function place(menu, open) {
  const box = open.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = menu;
  const left = Math.max(8, Math.min(box.right - width, window.innerWidth - width - 8));
  const top = box.bottom + height + 8 > window.innerHeight ? Math.max(8, box.top - height - 4) : box.bottom + 4;
  Object.assign(menu.style, { left: `${left}px`, top: `${top}px` });
}

const button = (words, title, click) => h("button.chart-tool", { title: title || null, onclick: click }, words);

/** The menu of a chart: its axis, smoothing, y range and metrics. */
class ChartMenu {
  constructor(menu, id, chart, page) {
    this.chart = chart;
    this.page = page;
    const x = h("div.tool");
    const smooth = h("div.tool");
    this.ends = ["Lowest", "Highest"].map((words) =>
      h("input.field", {
        inputmode: "decimal",
        placeholder: "auto",
        "aria-label": `${words} y`,
        onchange: () => this.range(),
      }),
    );
    this.trouble = h("div.sub", { role: "status" });
    this.metrics = h("div.chart-metrics");
    this.list = h("datalist", { id: `${id}-names` });
    this.add = h("input.field", {
      list: `${id}-names`,
      placeholder: "Add a metric",
      "aria-label": "Add a metric",
      onchange: () => this.addMetric(),
    });
    fill(
      menu,
      x,
      smooth,
      h("div.tool", h("span.tool-label", "Y range"), this.ends),
      this.trouble,
      h("div.tool", h("span.tool-label", "Metrics"), this.add, this.list),
      this.metrics,
      h("button.button", { onclick: () => chart.setOptions({}, true) }, "Reset chart"),
    );
    this.setX = choice(x, `${id}-x`, "X axis", (value) => chart.set({ x: value }));
    this.setSmooth = smoothing(smooth, `${id}-smooth`, (weight) => chart.set({ smooth: weight }));
  }

  range() {
    const { chart, ends, trouble } = this;
    const given = ends.map((field) => (field.value.trim() === "" ? null : Number(field.value)));
    if (given.every((end) => end === null)) chart.set({ yRange: null });
    else {
      const shown = chart.shownRange();
      const wanted = given.map((end, index) => (end === null ? shown[index] : end));
      if (!wanted.every(Number.isFinite)) return setText(trouble, "Expected two numbers, or nothing for auto.");
      if (wanted[1] <= wanted[0]) return setText(trouble, "The highest y is not above the lowest.");
      chart.set({ yRange: wanted });
    }
    return setText(trouble, "");
  }

  addMetric() {
    const name = this.add.value.trim();
    if (name && this.page.names.includes(name)) {
      this.add.value = "";
      setText(this.trouble, "");
      this.chart.set({ metrics: [...new Set([...this.chart.now().metrics, name])] });
    } else if (name) setText(this.trouble, `No metric is called ${name}.`);
  }

  draw() {
    const { chart, page } = this;
    const now = chart.now();
    const axes = [
      { value: "step", text: "Step" },
      { value: "time", text: "Wall time" },
      ...page.names.slice(0, OFFERED).map((one) => ({ value: one, text: one, group: "Any logged metric" })),
    ];
    if (!axes.some((one) => one.value === now.x)) axes.push({ value: now.x, text: now.x });
    this.setX.options(axes, now.x);
    this.setSmooth(now.smooth);
    this.ends.forEach((field, index) => {
      if (document.activeElement !== field) field.value = now.yRange ? String(now.yRange[index]) : "";
    });
    fill(
      this.list,
      page.names.slice(0, OFFERED).map((one) => h("option", { value: one })),
    );
    const without = (one) => chart.set({ metrics: chart.now().metrics.filter((other) => other !== one) });
    const label = (one) => ({ "aria-label": `Take ${one} out of the chart`, onclick: () => without(one) });
    fill(
      this.metrics,
      now.metrics.map((one) =>
        h("span.chip", one, now.metrics.length > 1 && h("button.icon-button.tiny", label(one), "×")),
      ),
    );
  }
}
