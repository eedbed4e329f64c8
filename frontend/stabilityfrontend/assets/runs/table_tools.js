// What stands over the table of runs: how many there are in each state, columns to choose, groups.

import { api } from "../core/api.js";
import { byId, fill, h, patch, setShown } from "../core/dom.js";
import { formatCount, plural } from "../core/format.js";
import { appearanceTable, tonedClass } from "../core/kinds.js";
import { column, conditionWord } from "./run_cells.js";
import { DEFAULT_COLUMNS, toggled } from "./table_state.js";

const NAMES_MS = 120;

/** How many runs are in each condition, together all of them: each is a filter. */
export function drawStates(page) {
  const { answer, state } = page;
  if (!answer) return;
  const key = JSON.stringify([answer.conditions, state.q]);
  const place = byId("runs-states");
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  const terms = state.q.split(/\s+/);
  const button = (condition, word, shown) => {
    const term = `state:${condition}`;
    return h(
      "button",
      {
        class: `${tonedClass("count-of toned", shown)}${terms.includes(term) ? " on" : ""}`,
        "aria-pressed": String(terms.includes(term)),
        data: { state: condition },
        onclick: () => page.filterBy(toggled(page.state.q, term)),
      },
      h("b", formatCount(answer.conditions[condition])),
      ` ${word}`,
    );
  };
  const { crashed, training, empty, finished } = appearanceTable.phases;
  const ill = answer.conditions.sick ? { tone: "critical", shape: "octagon" } : { tone: "good", shape: "tick" };
  const shown = { sick: ill, crashed, well: training, empty, over: finished };
  const there = Object.keys(shown).filter((name) => name === "sick" || answer.conditions[name]);
  patch(
    place,
    there.map((name) => button(name, name === "empty" ? empty.word : conditionWord(name, answer), shown[name])),
  );
}

/** A panel that a button opens under it; Escape and a click elsewhere close it. */
export class Popover {
  constructor(place, id, words, draw) {
    this.panel = h("div.popover", { id, role: "group", "aria-label": words, hidden: true });
    this.button = h(
      "button.button",
      {
        id: `${id}-open`,
        "aria-expanded": "false",
        "aria-controls": id,
        onclick: () => this.show(this.panel.hidden),
      },
      words,
    );
    this.draw = draw;
    place.append(h("div.popover-of", this.button, this.panel));
    this.away = (event) => {
      if (!this.panel.hidden && !this.panel.parentElement?.contains(event.target)) this.show(false);
    };
    this.panel.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      this.show(false);
      this.button.focus();
    });
    document.addEventListener("pointerdown", this.away);
  }

  show(open) {
    setShown(this.panel, open);
    this.button.setAttribute("aria-expanded", String(open));
    if (open) {
      this.draw(this.panel);
      this.panel.querySelector("input")?.focus();
    }
  }

  close() {
    document.removeEventListener("pointerdown", this.away);
  }
}

/** Choose the columns: those that are shown first, then what the runs have. */
export class ColumnChooser {
  constructor(place, page) {
    this.page = page;
    this.popover = new Popover(place, "runs-columns", "Columns", (panel) => this.open(panel));
  }

  close() {
    clearTimeout(this.asking);
    this.popover.close();
  }

  open(panel) {
    this.search = h("input.field", {
      type: "search",
      id: "runs-columns-search",
      placeholder: "Config key or metric",
      "aria-label": "Search columns",
      autocomplete: "off",
      oninput: () => {
        clearTimeout(this.asking);
        this.asking = setTimeout(() => this.fetch(), NAMES_MS);
      },
    });
    this.list = h("div.column-list");
    this.words = h("div.sub");
    fill(
      panel,
      this.search,
      this.list,
      h(
        "div.popover-foot",
        this.words,
        h("button.link", { id: "runs-columns-usual", onclick: () => this.set(DEFAULT_COLUMNS) }, "Usual columns"),
      ),
    );
    this.found = null;
    this.fetch();
  }

  async fetch() {
    const word = this.search.value;
    try {
      const found = await api.runColumns(word, 60);
      if (word !== this.search.value) return;
      this.found = found;
      this.draw();
    } catch (error) {
      fill(this.words, error.message);
    }
  }

  set(columns) {
    this.page.setColumns(columns);
    this.draw();
  }

  draw() {
    if (!this.found) return;
    const shown = this.page.state.columns;
    const word = this.search.value.trim().toLowerCase();
    const there = shown.map((key) => column(key, this.page.facts(key)));
    const rest = [...this.found.built_in, ...this.found.found].filter(
      (one) => !shown.includes(one.key) && one.key !== "name" && one.key !== "state",
    );
    const box = (key, label, note, on) => {
      const input = h("input", {
        type: "checkbox",
        onchange: (event) =>
          this.set(
            event.target.checked
              ? [...this.page.state.columns, key]
              : this.page.state.columns.filter((one) => one !== key),
          ),
      });
      input.checked = on;
      return h("label", { data: { column: key } }, input, h("bdi.cut", label), h("span.sub", note));
    };
    const source = (one) => (one.key.startsWith("config.") ? "config" : one.key.startsWith("metric.") ? "metric" : "");
    fill(
      this.list,
      there
        .filter((one) => one.label.toLowerCase().includes(word))
        .map((one) => box(one.key, one.label, one.gone ? "no run has it" : source(one), true)),
      rest.map((one) =>
        box(
          one.key,
          one.label,
          [source(one), one.runs === undefined ? "" : plural(one.runs, "run")].filter(Boolean).join(", "),
          false,
        ),
      ),
    );
    const more = this.found.total - this.found.found.length;
    fill(this.words, more > 0 ? `${formatCount(more)} more: search for them` : "");
  }
}
