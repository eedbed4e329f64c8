// The search over everything (Ctrl-K): runs, metrics of the open run, incidents, nodes and GPUs, pages, commands. By the
// keyboard alone: a combobox whose list is chosen from with the arrows while the focus stays in the field.

import { api } from "../core/api.js";
import { fill, h, setText, toast } from "../core/dom.js";
import { errorText, plural } from "../core/format.js";
import { appearanceOf, tonedClass } from "../core/kinds.js";
import { address, go, incidentHref, keptName, place } from "../core/route.js";
import { colorTheme } from "../core/theme.js";
import { chartOf, fit } from "./chart_words.js";
import { showKeys } from "./keys.js";

// -- What the search over everything can do on the page that is open: each presses the button that is there for it.

/** `find`: buttons, the first that can be pressed is meant. `also`: other words for it. */
const BUTTONS = [
  {
    words: "Roll back …",
    also: "rollback go back revert",
    find: "#rollback-open, #incident-rollback, [data-do='rollback']",
  },
  {
    words: "Undo the newest rollback …",
    also: "return branch",
    find: "#rollback-undo, [data-return], [data-do='undo']",
  },
  { words: "What changed since the last good run", also: "difference config commit", find: "#about-fold" },
  { words: "Restart the job …", also: "restart kill", find: "#incident-restart" },
  { words: "Acknowledge the incident", also: "ack", find: "#incident-ack" },
  { words: "Acknowledge what is chosen", also: "ack incidents", find: "#incidents-ack" },
  { words: "Dump stacks now", also: "stacks trace", find: "#incident-dump" },
  { words: "Show the batches", also: "samples data", find: "#incident-show-batches" },
  { words: "Checkpoint now", also: "save state", find: "#checkpoint-open" },
  { words: "Stop training …", also: "end kill", find: "#stop-open" },
  { words: "Run a task …", also: "task plug-in", find: "#task-open" },
  { words: "Detectors", also: "settings sensitivity thresholds quieter", find: "#detectors-open" },
  { words: "Half as sensitive", also: "quieter detector fewer alerts sensitivity", find: "#quieter-half" },
  { words: "Mute the detector in this run", also: "quieter fewer alerts sensitivity", find: "#quieter-mute" },
  { words: "Fewer alerts like the newest …", also: "reduce alerts mute quieter sensitivity", find: "[data-less]" },
  { words: "End the zoom", also: "reset zoom", find: "#zoom-reset" },
  { words: "Log out", also: "leave", find: "#log-out" },
];

async function copyAddress() {
  try {
    await navigator.clipboard.writeText(location.href);
    toast("The address of this page is copied.", "good");
  } catch {
    toast("The browser did not let the page copy.", "warning");
  }
}

const ALWAYS = [
  { words: "Switch between dark and light", also: "theme colours", run: () => colorTheme.toggle() },
  { words: "All keys", also: "keyboard shortcuts help", run: showKeys },
  { words: "Copy the address of this page", also: "link share", run: copyAddress },
];

/** What is in a menu can be pressed where the menu could be opened. */
const canBePressed = (element) => {
  const menu = element.closest("[popover]");
  const seen = menu ? document.querySelector(`[popovertarget="${menu.id}"]`) : element;
  return !element.matches(":disabled") && (seen?.checkVisibility?.({ visibilityProperty: true }) ?? true);
};

/** What can be done now: `{words, also, of, run}`; `of`: the run in a list that it is done to, the one with the focus. */
function commands() {
  const focused = document.activeElement?.closest("tr");
  const here = BUTTONS.flatMap(({ words, also, find }) => {
    const every = /** @type {HTMLElement[]} */ ([...document.querySelectorAll(find)]).filter(canBePressed);
    const button = every.find((one) => focused?.contains(one)) || every[0];
    const of = button?.closest("tr")?.querySelector(".run-link")?.textContent || "";
    return button ? [{ words, also, of, run: () => button.click() }] : [];
  });
  return [...here, ...ALWAYS];
}

/** The server is asked when nothing was typed for so long. */
const PAUSE_MS = 90;
/** Choices that are remembered, and where. */
const [RECENT, RECENT_KEY] = [6, keptName("stability-recent")];
/** Of pages and commands at most so many while something is typed. */
const MOST_LOCAL = 5;

/** @typedef {{id: string, group: string, text: string, also?: string, sub?: string, href?: string, run?: () => void, tone?: string}} Choice */

let palette = /** @type {Palette | null} */ (null);

/** Open it, or close the one that is open; `page` is the page that is open. */
export function openPalette(page) {
  if (palette) palette.dialog.close();
  else if (!document.querySelector("dialog[open]") && !document.querySelector("[data-page='login']"))
    palette = new Palette(page);
}

function recent() {
  try {
    const kept = JSON.parse(localStorage.getItem(RECENT_KEY) || "[]");
    return Array.isArray(kept) ? kept.filter((one) => typeof one?.href === "string" && one.href.startsWith("/")) : [];
  } catch {
    return [];
  }
}

/** Remember a choice that leads somewhere. @param {Choice} choice */
function keep({ text, sub, href }) {
  if (!href) return;
  const list = [{ text, sub, href }, ...recent().filter((one) => one.href !== href)].slice(0, RECENT);
  try {
    localStorage.setItem(RECENT_KEY, JSON.stringify(list));
  } catch {
    // not remembered
  }
}

/** The pages of the navigation. @returns {Choice[]} */
const pages = () =>
  [.../** @type {NodeListOf<HTMLAnchorElement>} */ (document.querySelectorAll("#pages a"))].map((link) => ({
    id: place(link.pathname),
    group: "Pages",
    text: link.children[1]?.textContent || link.textContent || "",
    href: place(link.pathname),
  }));

class Palette {
  constructor(page) {
    this.page = page;
    this.run = page?.id && !Array.isArray(page.id) ? String(page.id) : null;
    this.asked = 0;
    this.found = /** @type {any} */ (null);
    this.active = 0;
    /** @type {Choice[]} */
    this.choices = [];
    this.input = h("input", {
      id: "palette-input",
      type: "text",
      role: "combobox",
      "aria-label": "Search everything",
      "aria-expanded": "true",
      "aria-controls": "palette-list",
      "aria-autocomplete": "list",
      autocomplete: "off",
      spellcheck: "false",
      maxlength: 200,
      placeholder: this.run ? "Run, metric, incident, node, page, command" : "Run, incident, node, page, command",
      oninput: () => this.typed(),
      onkeydown: (event) => this.key(event),
    });
    this.list = h("div", { id: "palette-list", role: "listbox", "aria-label": "Found" });
    this.status = h("span.sub", { role: "status", id: "palette-status" });
    this.dialog = h(
      "dialog.dialog.palette",
      { id: "palette", "aria-label": "Search everything" },
      h("div.palette-field", h("span.rail-icon.icon-search"), this.input),
      this.list,
      h(
        "div.dialog-foot",
        this.status,
        h("span.grow"),
        h("span.sub", h("kbd", "↑"), h("kbd", "↓"), " choose ", h("kbd", "Enter"), " open ", h("kbd", "Esc"), " close"),
      ),
    );
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close();
    });
    this.dialog.addEventListener("close", () => {
      clearTimeout(this.timer);
      this.asked = -1;
      this.dialog.remove();
      palette = null;
    });
    document.body.append(this.dialog);
    // Before the dialog is open: what its backdrop covers can't be pressed.
    /** @type {Choice[]} */
    this.commands = commands().map((one, index) => ({
      id: `command-${index}`,
      group: "Commands",
      text: one.words,
      also: one.also,
      sub: one.of,
      run: one.run,
    }));
    this.dialog.showModal();
    this.input.focus();
    this.draw();
  }

  typed() {
    clearTimeout(this.timer);
    this.active = 0;
    const typed = this.input.value.trim();
    if (!typed) this.found = null;
    else this.timer = setTimeout(() => this.ask(typed), PAUSE_MS);
    this.draw();
  }

  async ask(typed) {
    this.asked += 1;
    const mine = this.asked;
    try {
      const found = await api.search(typed, this.run);
      if (mine !== this.asked) return;
      this.found = found;
      this.trouble = "";
    } catch (error) {
      if (mine !== this.asked) return;
      this.found = null;
      this.trouble = errorText(error);
    }
    this.answered = typed;
    this.draw();
  }

  /** What the server found, as choices. @returns {Choice[]} */
  fromServer() {
    const found = this.found;
    if (!found) return [];
    const { run } = this;
    return [
      ...found.runs.map((one) => ({
        id: `run-${one.run_id}`,
        group: "Runs",
        text: one.name || one.run_id,
        sub: [one.project, one.name && one.name !== one.run_id ? one.run_id : ""].filter(Boolean).join(" · "),
        href: `/runs/${encodeURIComponent(one.run_id)}`,
      })),
      ...found.metrics.map((name) => ({
        id: `metric-${name}`,
        group: "Metrics of this run",
        text: name,
        sub: "opens its chart",
        run: () => this.showMetric(run, name),
      })),
      ...found.incidents.map((one) => ({
        id: `incident-${one.run_id}-${one.incident_id}`,
        group: "Incidents",
        text: one.title || one.label,
        sub: `${one.run_name} · ${one.state === "open" ? one.severity : one.state}`,
        tone: one.state === "open" ? one.severity : "",
        href: incidentHref(one.run_id, one.incident_id),
      })),
      ...found.machines.map((one) => ({
        id: `machine-${one.node}-${one.gpu}`,
        group: "Nodes and GPUs",
        text: one.gpu || one.node,
        sub: `${one.gpu ? `${one.node} · ` : ""}in ${one.run_name}`,
        href: `/runs/${encodeURIComponent(one.run_id)}?node=${encodeURIComponent(one.node)}`,
      })),
    ];
  }

  showMetric(run, name) {
    if (this.page?.showMetric) this.page.showMetric(name);
    else location.assign(address(`/runs/${encodeURIComponent(run)}?chart=${encodeURIComponent(name)}`));
  }

  draw() {
    const typed = this.input.value.trim();
    this.choices = typed ? this.fitting(typed) : this.offered();
    this.active = Math.max(0, Math.min(this.active, this.choices.length - 1));
    const groups = new Map();
    this.choices.forEach((one, index) => {
      if (!groups.has(one.group)) groups.set(one.group, []);
      groups.get(one.group).push(this.option(one, index));
    });
    fill(
      this.list,
      [...groups].map(([name, options], index) =>
        h(
          "div",
          { role: "group", "aria-labelledby": `palette-group-${index}` },
          h("div.palette-group", { id: `palette-group-${index}`, role: "presentation" }, name),
          options,
        ),
      ),
    );
    const waits = typed && this.answered !== typed && !this.trouble;
    const count = this.choices.length ? plural(this.choices.length, "result") : `Nothing is called “${typed}”`;
    const reading = this.found && this.found.complete === false ? "; the server still reads what is stored" : "";
    setText(this.status, this.trouble || (waits ? "Searching …" : `${count}${reading}`));
    if (this.choices.length) this.input.setAttribute("aria-activedescendant", `palette-${this.active}`);
    else this.input.removeAttribute("aria-activedescendant");
    this.list.querySelector("[aria-selected='true']")?.scrollIntoView({ block: "nearest" });
  }

  /** Without a word: what was chosen lately, what can be done here, the pages. @returns {Choice[]} */
  offered() {
    const lately = recent().map((one) => ({ ...one, id: `recent-${one.href}`, group: "Lately chosen" }));
    return [...lately, ...pages(), ...this.commands];
  }

  /** The chart that was described: of the run that is open. @returns {Choice[]} */
  charted(typed) {
    const found = this.page?.showMetric ? chartOf(typed, this.page.names || []) : null;
    if (!found) return [];
    return [
      {
        id: "chart",
        group: "Chart",
        text: found.words,
        sub: found.csv ? "opens the chart and saves its rows" : "opens the chart",
        run: () => this.page.showMetric(found.name, found.options, found.csv),
      },
    ];
  }

  /** Of pages and commands what fits, and what the server found, the group with the best first. @returns {Choice[]} */
  fitting(typed) {
    /** @type {Choice[]} */
    const here = [...this.commands, ...pages()];
    const local = here
      .map((one) => ({ one, fits: Math.max(fit(typed, one.text), 0.5 * fit(typed, one.also || "")) }))
      .filter(({ fits }) => fits > 0)
      .sort((a, b) => b.fits - a.fits)
      .slice(0, MOST_LOCAL)
      .map(({ one }) => one);
    const every = [...this.charted(typed), ...this.fromServer(), ...local];
    const best = new Map();
    for (const one of every) best.set(one.group, Math.max(best.get(one.group) || 0, fit(typed, one.text)));
    // Whoever describes a chart means it.
    if (best.has("Chart")) best.set("Chart", Number.POSITIVE_INFINITY);
    const order = [...best.keys()].sort((a, b) => Math.floor(best.get(b)) - Math.floor(best.get(a)));
    return order.flatMap((group) => every.filter((one) => one.group === group));
  }

  option(one, index) {
    return h(
      "div.palette-option",
      {
        role: "option",
        id: `palette-${index}`,
        "aria-selected": String(index === this.active),
        data: { choice: one.id },
        onclick: () => this.choose(index),
        onpointermove: () => {
          if (this.active !== index) {
            this.active = index;
            this.mark();
          }
        },
      },
      one.tone
        ? h("span", {
            class: tonedClass("appearance", appearanceOf({ severity: one.tone, status: "open" })),
            "aria-hidden": "true",
          })
        : null,
      h("span.palette-text", one.text),
      one.sub ? h("span.sub", one.sub) : null,
    );
  }

  mark() {
    for (const option of this.list.querySelectorAll("[role='option']"))
      option.setAttribute("aria-selected", String(option.id === `palette-${this.active}`));
    this.input.setAttribute("aria-activedescendant", `palette-${this.active}`);
    this.list.querySelector("[aria-selected='true']")?.scrollIntoView({ block: "nearest" });
  }

  key(event) {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8 }[event.key];
    const count = this.choices.length;
    if (by && count) {
      const next = this.active + by;
      this.active = Math.abs(by) > 1 ? Math.max(0, Math.min(count - 1, next)) : (next + count) % count;
      this.mark();
    } else if (event.key === "Enter" && !event.isComposing) this.choose(this.active);
    else return;
    event.preventDefault();
  }

  choose(index) {
    const one = this.choices[index];
    if (!one) return;
    this.dialog.close();
    keep(one);
    if (one.run) one.run();
    else if (one.href) {
      const from = location.pathname;
      go(one.href);
      if (location.pathname === from) this.page?.addressChanged?.();
    }
  }
}
