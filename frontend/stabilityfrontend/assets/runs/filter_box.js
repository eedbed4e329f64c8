// The filter over the table of runs: a field that completes keys and values, and says what is wrong with what stands there.

import { api } from "../core/api.js";
import { fill, h, setShown, setText } from "../core/dom.js";
import { plural } from "../core/format.js";
import { appearanceTable } from "../core/kinds.js";
import { quoted, termAt } from "./table_state.js";

/** So long after the last key the filter holds, and names are asked for, milliseconds. */
const [HOLDS_MS, NAMES_MS] = [250, 120];
const OFFERED = 12;
const STATES = ["sick", "well", "over", "critical", "warning"];
const KINDS = { text: "text", tags: "text", state: "state", age: "time, e.g. 2h", any: "config", number: "number" };

/** Makes the field in its place; `holds(text)` gets a filter. */
export class FilterBox {
  constructor(place, trouble, holds) {
    this.holds = holds;
    this.trouble = trouble;
    this.offers = [];
    this.at = -1;
    this.input = h("input.field", {
      id: "runs-filter",
      type: "search",
      placeholder: "Filter: state:sick project:llm lr>3e-4",
      "aria-label": "Filter runs",
      title:
        "Words, key:value, key>number; - before one turns it round; quotes for spaces. Keys: columns, config keys, metrics.",
      role: "combobox",
      "aria-expanded": "false",
      "aria-controls": "runs-offers",
      "aria-autocomplete": "list",
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => this.typed(),
      onkeydown: (event) => this.onKey(event),
      onfocus: () => this.ask(),
      onclick: () => this.ask(),
      onblur: () => this.show([]),
    });
    this.list = h("div.offers", {
      id: "runs-offers",
      role: "listbox",
      "aria-label": "Possible",
      hidden: true,
    });
    fill(place, this.input, this.list);
  }

  get value() {
    return this.input.value;
  }

  set value(text) {
    if (this.input.value !== text) this.input.value = text;
  }

  close() {
    clearTimeout(this.holding);
    clearTimeout(this.asking);
  }

  /** Say what is wrong with the filter; null: nothing. */
  say(words) {
    setText(this.trouble, words || "");
    setShown(this.trouble, Boolean(words));
    this.input.setAttribute("aria-invalid", String(Boolean(words)));
  }

  typed() {
    clearTimeout(this.holding);
    this.holding = setTimeout(() => this.holds(this.value), HOLDS_MS);
    this.ask();
  }

  ask() {
    clearTimeout(this.asking);
    this.asking = setTimeout(() => this.complete().catch(() => {}), NAMES_MS);
  }

  async complete() {
    const caret = this.input.selectionStart ?? this.value.length;
    const term = termAt(this.value, caret);
    const match = /^(-?)("(?:[^"\\]|\\.)*"|[^\s":=<>!]*)(<=|>=|!=|[:=<>])?(.*)$/s.exec(term.text);
    if (!match) return this.show([]);
    const [, sign, rawKey, operator, value] = match;
    const key = rawKey.replace(/^"|"$/g, "");
    if (operator) return this.show(await this.values(term, sign + rawKey + operator, key, value));
    const { built_in, found } = await api.runColumns(key, 30);
    if (document.activeElement !== this.input || this.value.slice(term.begin, term.end) !== term.text) return;
    const names = [
      ...built_in.filter((one) => one.kind !== "curve"),
      ...found.map((one) => ({ ...one, key: one.label })),
    ];
    this.show(
      names.slice(0, OFFERED).map((one) => ({
        term,
        text:
          sign +
          quoted(one.key) +
          (["count", "number", "share"].includes(one.kind) ? ">" : one.kind === "age" ? "<" : ":"),
        words: one.key,
        note: one.runs === undefined ? one.what || KINDS[one.kind] || one.kind : plural(one.runs, "run"),
        goesOn: true,
      })),
    );
  }

  async values(term, before, key, value) {
    const part = value
      .slice(value.lastIndexOf(",") + 1)
      .replace(/^"/, "")
      .toLowerCase();
    const kept = before + value.slice(0, value.lastIndexOf(",") + 1);
    let known = [...STATES, ...Object.keys(appearanceTable.phases)];
    if (key !== "state") {
      const bare = key.replace(/^(?:config|metric)\./, "");
      const { built_in, found } = await api.runColumns(bare, 30);
      const one = [...built_in, ...found].find((other) => other.key === key || other.label === bare);
      known = one?.values || [];
    }
    return known
      .filter((one) => one.toLowerCase().includes(part))
      .slice(0, OFFERED)
      .map((one) => ({ term, text: kept + quoted(one), words: one, note: "", goesOn: false }));
  }

  show(offers) {
    this.offers = offers;
    this.at = -1;
    fill(
      this.list,
      offers.map((offer, index) =>
        h(
          "div",
          {
            id: `runs-offer-${index}`,
            role: "option",
            "aria-selected": "false",
            // Before the field loses its focus.
            onpointerdown: (event) => (event.preventDefault(), this.take(offer)),
          },
          h("bdi.cut", offer.words),
          h("span.sub", offer.note),
        ),
      ),
    );
    setShown(this.list, offers.length > 0);
    this.input.setAttribute("aria-expanded", String(offers.length > 0));
    this.input.removeAttribute("aria-activedescendant");
  }

  mark(at) {
    this.at = at;
    [...this.list.children].forEach((one, index) => {
      one.setAttribute("aria-selected", String(index === at));
      if (index === at) one.scrollIntoView({ block: "nearest" });
    });
    if (at >= 0) this.input.setAttribute("aria-activedescendant", `runs-offer-${at}`);
    else this.input.removeAttribute("aria-activedescendant");
  }

  take({ term, text, goesOn }) {
    const end = goesOn ? "" : " ";
    const now = this.value;
    this.input.value = now.slice(0, term.begin) + text + end + now.slice(term.end).replace(/^ /, "");
    const caret = term.begin + text.length + end.length;
    this.input.setSelectionRange(caret, caret);
    this.input.focus();
    clearTimeout(this.holding);
    if (!goesOn) this.holds(this.value);
    this.show([]);
    this.ask();
  }

  onKey(event) {
    const open = this.offers.length > 0;
    if ((event.key === "ArrowDown" || event.key === "ArrowUp") && open) {
      const step = event.key === "ArrowDown" ? 1 : -1;
      this.mark((this.at + step + this.offers.length + (this.at < 0 && step < 0 ? 1 : 0)) % this.offers.length);
    } else if (event.key === "Enter" && this.at >= 0) this.take(this.offers[this.at]);
    else if (event.key === "Tab" && this.at >= 0) this.take(this.offers[this.at]);
    else if (event.key === "Escape" && open) this.show([]);
    else if (event.key === "Enter") {
      clearTimeout(this.holding);
      this.show([]);
      this.holds(this.value);
      return;
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
