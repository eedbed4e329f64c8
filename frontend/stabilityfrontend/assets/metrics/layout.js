// How the charts of a run's metrics are laid out: pins, order, sizes, folds, options of charts. Plain JSON that a browser
// keeps for each project, that is saved under a name, and of which the essential part is in the page's address.

import { api } from "../core/api.js";
import { asRecord } from "../core/as_type.js";
import { byId, fill, h, setText, toast } from "../core/dom.js";
import { firstRequests } from "../core/first_requests.js";
import { errorText, formatCount } from "../core/format.js";
import { EXPRESSION } from "./metric_tree.js";

// -- The page as a chart of a few metrics sees it: only their names count, however many the run has.

/** A page whose `names` are those of the chart's metrics that the run has; `set(chart)` says of which. */
export function narrowPage(page, metrics) {
  let chart = /** @type {any} */ (null);
  const own = Object.create(page, {
    whole: { value: page },
    names: {
      get() {
        const now = chart ? chart.now().metrics : metrics;
        if (now.some((name) => name.endsWith("*"))) return page.names;
        return now.filter((name) => name.startsWith(EXPRESSION) || page.nameSet.has(name));
      },
    },
  });
  return { own, set: (made) => (chart = made) };
}

/** Bounds of what is kept: an address and 64 KiB on the server hold it. */
const [PINS, ORDERED, SECTIONS, SIZED, NAME] = [48, 2000, 240, 400, 500];
/** Characters of sizes and options in the address; a longer one is in saved layouts alone. */
const ADDRESS = 1500;
/** Characters that a saved layout may have, as JSON. */
const SAVED = 60_000;

/** Sizes of a chart, small to full width. */
export const SIZES = ["S", "M", "L", "W"];
export const SIZE_WORDS = { S: "small", M: "medium", L: "large", W: "full width" };

/**
 * @typedef {{pins: string[], order: Record<string, string[]>, sizes: Record<string, string>,
 *   open: Record<string, boolean>, options: Record<string, any>, find: string}} State
 */

/** @returns {State} */
export const emptyLayout = () => ({ pins: [], order: {}, sizes: {}, open: {}, options: {}, find: "" });

const isName = (one) => typeof one === "string" && one !== "" && one.length <= NAME;
const names = (given, most) => (Array.isArray(given) ? [...new Set(given.filter(isName))].slice(0, most) : []);
const entries = (given, fits, most) =>
  Object.fromEntries(
    Object.entries(asRecord(given))
      .filter(([key, value]) => key.length <= NAME && key !== "__proto__" && fits(value))
      .slice(0, most),
  );

/** A layout out of JSON that somebody kept: what is unknown or malformed is left out. @returns {State} */
export function readLayout(given) {
  const one = asRecord(given);
  const order = entries(one.order, Array.isArray, SECTIONS);
  for (const key of Object.keys(order)) order[key] = names(order[key], ORDERED);
  return {
    pins: names(one.pins, PINS),
    order,
    sizes: entries(one.sizes, (size) => SIZES.includes(size), SIZED),
    open: entries(one.open, (open) => typeof open === "boolean", SECTIONS),
    options: entries(one.options, (options) => options && typeof options === "object", SIZED),
    find: typeof one.find === "string" ? one.find.slice(0, NAME) : "",
  };
}

/** The parameters of the address that say how the metrics are laid out. */
export function addressOf(layout) {
  const rest = Object.fromEntries(
    ["sizes", "options"].filter((key) => Object.keys(layout[key]).length).map((key) => [key, layout[key]]),
  );
  const text = Object.keys(rest).length ? JSON.stringify(rest) : "";
  const open = Object.entries(layout.open).map(([prefix, open]) => `${open ? "" : "-"}${prefix}`);
  return {
    chart: layout.pins,
    find: layout.find || null,
    open: open.length && open.length <= 24 ? open.join(",") : null,
    charts: text && text.length <= ADDRESS ? text : null,
  };
}

/** The layout in an address, null where it has none. @returns {State | null} */
export function layoutIn(search) {
  const query = new URLSearchParams(search);
  if (!["chart", "find", "open", "charts"].some((key) => query.has(key))) return null;
  let more = {};
  try {
    more = asRecord(JSON.parse(query.get("charts") || "{}"));
  } catch {
    // A link that was cut: the rest of it holds.
  }
  const open = Object.fromEntries(
    (query.get("open") ?? "")
      .split(query.has("open") ? "," : /(?!)/)
      .filter((one) => query.has("open") && one !== undefined)
      .map((one) => [one.replace(/^-/, ""), !one.startsWith("-")]),
  );
  return readLayout({ ...more, pins: query.getAll("chart"), find: query.get("find") || "", open });
}

/** Whether a layout can be saved. */
const fitsSaving = (layout) => JSON.stringify(layout).length <= SAVED;

const KEY = "stabilityboard.layout.";

/** What this browser kept for a project. @returns {State | null} */
export function keptLayout(project) {
  try {
    const text = localStorage.getItem(KEY + project);
    return text ? readLayout(JSON.parse(text)) : null;
  } catch {
    return null; // no storage, or not ours
  }
}

/** Keep a layout in this browser; an empty one is taken out. */
export function keepLayout(project, layout) {
  try {
    const text = JSON.stringify(layout);
    if (text === JSON.stringify(emptyLayout())) localStorage.removeItem(KEY + project);
    else if (text.length <= SAVED) localStorage.setItem(KEY + project, text);
  } catch {
    // A browser that keeps nothing: the address still does.
  }
}

/** Metrics that a layout names and the run does not have. */
export function missingOf(layout, known) {
  return layout.pins.filter((name) => !name.startsWith("expr:") && !name.endsWith("*") && !known.has(name));
}

// -- Expressions of metrics follow the run: the server makes what is new of them, and this asks for it, once a second.

const ASK_MS = 1000;

export class ExpressionFeed {
  /** `page` as in run_page.js. */
  constructor(page) {
    this.page = page;
    /** @type {any} */
    this.timer = null;
    /** The stream id up to which they are here. An old one costs an answer with everything, nothing else. */
    this.cursor = null;
  }

  /** Points came: whoever draws an expression needs its own. */
  onPoints() {
    this.cursor ??= this.page.feed.cursor;
    if (this.timer || document.hidden || !this.page.metrics.expressions().length) return;
    this.timer = setTimeout(() => {
      this.timer = null;
      this.fetch();
    }, ASK_MS);
  }

  async fetch() {
    const { page } = this;
    const names = page.metrics.expressions().filter((name) => page.store.follows(name));
    const { cursor } = this;
    if (!names.length || !cursor) return;
    const points = firstRequests.points.panel;
    try {
      const answers = await api.series(page.id, names, { view: "all", points, cursor });
      if (page.gone) return;
      for (const answer of answers) page.store.take(answer, points);
      this.cursor = answers[0].cursor || cursor;
      const made = new Set(names);
      for (const chart of page.board.charts.values())
        if (chart.metrics().some((name) => made.has(name))) page.board.mark(chart);
    } catch {
      // With the next point it is asked again.
    }
  }

  close() {
    clearTimeout(this.timer);
  }
}

// -- Layouts under names, for all runs of a project: open, save, delete.

export class LayoutMenu {
  /** `owner`: MetricSections. */
  constructor(owner) {
    this.owner = owner;
    this.listPlace = h("div.layout-list");
    this.trouble = h("div.sub", { role: "status" });
    this.name = /** @type {HTMLInputElement} */ (
      h("input.field", { placeholder: "Name", "aria-label": "Name of the layout", maxlength: 80, id: "layout-name" })
    );
    const form = h(
      "form.tool",
      { data: { needs: "command" }, onsubmit: (event) => this.save(event) },
      this.name,
      h("button.button", { type: "submit", id: "layout-save" }, "Save"),
    );
    this.menu = h(
      "div.chart-menu",
      { id: "layout-menu", popover: "auto", role: "dialog", "aria-label": "Layouts" },
      this.listPlace,
      form,
      h("button.button", { id: "layout-reset", onclick: () => this.reset() }, "Reset layout"),
      this.trouble,
    );
    const open = h(
      "button.toggle",
      { id: "layout-open", popovertarget: "layout-menu", "aria-haspopup": "dialog" },
      "Layouts",
    );
    this.menu.addEventListener("toggle", (event) => {
      if (/** @type {ToggleEvent} */ (event).newState !== "open") return;
      const box = open.getBoundingClientRect();
      const left = Math.max(8, Math.min(box.right - this.menu.offsetWidth, innerWidth - this.menu.offsetWidth - 8));
      Object.assign(this.menu.style, { left: `${left}px`, top: `${Math.min(box.bottom + 4, innerHeight - 200)}px` });
      this.fetch();
    });
    fill(byId("all-layouts"), open, this.menu);
  }

  get project() {
    return this.owner.page.run?.project || "";
  }

  async fetch() {
    try {
      const { views } = await api.views("layout", this.project);
      this.draw(views);
      setText(this.trouble, "");
    } catch (error) {
      setText(this.trouble, errorText(error));
    }
  }

  draw(views) {
    fill(
      this.listPlace,
      views.length
        ? views.map((view) =>
            h(
              "div.layout-row",
              { data: { layout: view.name } },
              h(
                "button.layout-name",
                {
                  title: `Saved by ${view.saved_by}`,
                  onclick: () => this.open(view),
                },
                view.name,
              ),
              view.project === "" && this.project !== "" ? h("span.sub", "all projects") : null,
              h(
                "button.icon-button.tiny",
                {
                  "aria-label": `Delete the layout ${view.name}`,
                  data: { needs: "command" },
                  onclick: () => this.remove(view),
                },
                "×",
              ),
            ),
          )
        : h("div.sub", "No layout is saved for this project."),
    );
  }

  open(view) {
    const layout = readLayout(view.state);
    this.owner.take(layout);
    this.name.value = view.name;
    this.menu.hidePopover();
    const missing = missingOf(layout, this.owner.page.nameSet);
    if (missing.length) toast(`${formatCount(missing.length)} of its metrics are not in this run.`, "warning");
  }

  async save(event) {
    event.preventDefault();
    const name = this.name.value.trim();
    if (!name) return setText(this.trouble, "Give it a name.");
    if (!fitsSaving(this.owner.layout))
      return setText(this.trouble, "It is too large to be saved: reset the order of some sections.");
    try {
      await api.saveView({ kind: "layout", project: this.project, name, state: this.owner.layout });
      await this.fetch();
      setText(this.trouble, `Saved as ${name}.`);
    } catch (error) {
      setText(this.trouble, errorText(error));
    }
    return undefined;
  }

  async remove(view) {
    try {
      await api.deleteView({ kind: "layout", project: view.project, name: view.name });
      await this.fetch();
    } catch (error) {
      setText(this.trouble, errorText(error));
    }
  }

  reset() {
    this.owner.take(emptyLayout());
    this.menu.hidePopover();
  }

  close() {
    if (this.menu.matches(":popover-open")) this.menu.hidePopover();
  }
}
