// The table itself: a head that stays, and of thousands of lines only those in sight in the page.

import { byId, h, patch, setText } from "../core/dom.js";
import { formatCount, plural } from "../core/format.js";
import { go } from "../core/route.js";
import { ages, column, conditionWord, isNumeric } from "./run_cells.js";
import { lineMap, sortedBy } from "./table_state.js";

/** Lines that are drawn beyond what is in sight, above and below. */
const BEYOND = 5;
/** Width of the column of boxes, pixels. */
const PICK_PX = 34;

/**
 * Draws what its page has: `page.state`, `page.answer`, `page.rowAt(place)`, `page.facts(key)`, `page.chosen`.
 * It tells `page.sortBy(key, kind, add)`, `page.openGroup(label)`, `page.choose(id, on)`, `page.scrolled()`.
 */
export class RunTableView {
  constructor(page) {
    this.page = page;
    this.place = byId("runs-scroll");
    this.head = byId("runs-heads");
    this.body = byId("runs-body");
    this.kept = new Map();
    this.spacers = { above: spacer("above"), below: spacer("below") };
    this.map = lineMap([], new Set(), 0);
    this.frame = 0;
    const soon = () => {
      if (!this.frame)
        this.frame = requestAnimationFrame(() => {
          this.frame = 0;
          this.draw();
          page.scrolled();
        });
    };
    this.place.addEventListener("scroll", soon, { passive: true });
    this.resized = new ResizeObserver(soon);
    this.resized.observe(this.place);
    this.body.addEventListener("keydown", (event) => this.onKey(event));
  }

  close() {
    cancelAnimationFrame(this.frame);
    this.resized.disconnect();
  }

  /** Height of a line, pixels: the style sheet's, which differs on a phone. */
  lineHeight() {
    return Number.parseFloat(getComputedStyle(this.place).getPropertyValue("--line")) || 46;
  }

  columns() {
    return ["state", "name", ...this.page.state.columns].map((key) => column(key, this.page.facts(key)));
  }

  toTop() {
    this.place.scrollTop = 0;
  }

  /** The places of the rows in sight, `[first, last]`, null where there is none. */
  inSight() {
    const [from, to] = this.window();
    let [first, last] = [Number.POSITIVE_INFINITY, -1];
    for (let index = from; index < to; index += 1) {
      const { row } = /** @type {any} */ (this.map.at(index));
      if (row === undefined) continue;
      first = Math.min(first, row);
      last = Math.max(last, row);
    }
    return last < 0 ? null : [first, last];
  }

  /** The lines to draw: from, to. */
  window() {
    const height = this.lineHeight();
    const from = Math.max(0, Math.floor(this.place.scrollTop / height) - BEYOND);
    const to = Math.ceil((this.place.scrollTop + (this.place.clientHeight || 800)) / height) + BEYOND;
    return [Math.min(from, Math.max(0, this.map.count - 1)), Math.min(to, this.map.count)];
  }

  /** Other lines: after an answer, or when a group was opened. */
  relined() {
    const { answer, state } = this.page;
    this.map = lineMap(answer ? answer.groups : [], state.open, answer ? answer.fit : 0);
  }

  draw() {
    const columns = this.columns();
    // Measured before anything is written: the browser would lay out the old lines once more.
    const [from, to] = this.window();
    const height = this.lineHeight();
    this.drawHead(columns);
    const lines = [this.spacer("above", from * height, columns)];
    for (let index = from; index < to; index += 1) {
      const line = /** @type {any} */ (this.map.at(index));
      lines.push(line.group ? this.groupLine(line.group, columns, index) : this.rowLine(line.row, columns, index));
    }
    lines.push(this.spacer("below", Math.max(0, this.map.count - to) * height, columns));
    const now = this.body.children;
    if (lines.length !== now.length || lines.some((line, index) => line !== now[index])) patch(this.body, lines);
    const inSight = new Set(lines);
    for (const [id, { element }] of this.kept) if (!inSight.has(element)) this.kept.delete(id);
  }

  drawHead(columns) {
    const { sort } = this.page.state;
    const key = JSON.stringify([columns.map((one) => [one.key, one.gone]), sort]);
    if (this.headKey === key) return;
    this.headKey = key;
    const width = columns.reduce((sum, one) => sum + one.width, PICK_PX);
    this.body.closest("table").style.minWidth = `${width}px`;
    patch(
      this.head,
      h("th.pick", { scope: "col" }, h("span.unseen", "Chosen to compare")),
      columns.map((one) => this.headCell(one, sort)),
    );
  }

  headCell(one, sort) {
    const { way, place } = sortedBy(sort, one.key);
    const mark = way === "none" ? "" : way === "ascending" ? "↑" : "↓";
    const words = h("bdi.cut", one.label);
    const attributes = {
      class: `${isNumeric(one.kind) ? "num " : ""}c-${one.key.includes(".") ? "more" : one.key}${one.gone ? " gone" : ""}`,
      scope: "col",
      data: { column: one.key },
      // What is left over goes to the name and to the curve.
      style: { width: one.key === "name" || one.key === "curve" ? "auto" : `${one.width}px` },
    };
    if (one.kind === "curve") return h("th", attributes, words);
    return h(
      "th",
      { ...attributes, "aria-sort": way },
      h(
        "button.sort",
        {
          title: `${one.title || one.label}. Press to sort; with Shift behind the other columns.`,
          data: { sort: one.key },
          onclick: (event) => this.page.sortBy(one.key, one.kind, event.shiftKey),
        },
        words,
        one.gone ? h("span.sub", "gone") : null,
        mark ? h("span.mark-sort", { "aria-hidden": "true" }, sort.length > 1 ? `${mark}${place}` : mark) : null,
      ),
    );
  }

  /** The lines out of sight, above or below: the same element all the time. */
  spacer(which, height, columns) {
    const [line, cell] = this.spacers[which];
    if (line.style.height !== `${height}px`) line.style.height = cell.style.height = `${height}px`;
    if (cell.colSpan !== columns.length + 1) cell.colSpan = columns.length + 1;
    return line;
  }

  groupLine(group, columns, index) {
    const open = this.page.state.open.has("*") || this.page.state.open.has(group.label);
    return h(
      "tr.group",
      { data: { group: group.label || " " }, "aria-rowindex": index + 2 },
      h(
        "td",
        { colspan: columns.length + 1 },
        h(
          "button.fold",
          {
            "aria-expanded": String(open),
            onclick: () => this.page.openGroup(group.label),
          },
          h("span.icon.icon-fold", { "aria-hidden": "true" }),
          h("bdi.cut", group.label || "without a value"),
          h("span.sub", plural(group.count, "run")),
          ["sick", "crashed"]
            .filter((name) => group.conditions[name])
            .map((name) =>
              h("span.chip.critical", `${formatCount(group.conditions[name])} ${conditionWord(name, group)}`),
            ),
        ),
      ),
    );
  }

  rowLine(place, columns, index) {
    const row = this.page.rowAt(place);
    if (!row)
      return h(
        "tr.waiting",
        { data: { waiting: String(place) }, "aria-rowindex": index + 2 },
        h("td", { colspan: columns.length + 1 }, h("span.sub", "…")),
      );
    const now = this.page.now();
    const chosen = this.page.chosen.has(row.run_id);
    const known = this.kept.get(row.run_id);
    const key = `${chosen} ${ages(row, now)} ${index} ${this.headKey}`;
    if (known && known.row === row && known.key === key) return known.element;
    const element = known
      ? known.element
      : h("tr", {
          data: { run: row.run_id },
          onclick: (event) => event.target.closest("a, .pick") || this.open(row.run_id),
        });
    element.setAttribute("aria-rowindex", String(index + 2));
    element.classList.toggle("gone", row.gone);
    element.classList.toggle("sick", ["sick", "crashed"].includes(row.state.condition));
    patch(element, row.gone ? this.goneCells(row, columns) : this.cells(row, columns, chosen, now));
    this.kept.set(row.run_id, { row, key, element });
    return element;
  }

  open(id) {
    if (!String(window.getSelection())) go(`/runs/${encodeURIComponent(id)}`);
  }

  goneCells(row, columns) {
    return h("td.sub", { colspan: columns.length + 1 }, `${row.run_id} was deleted`);
  }

  cells(row, columns, chosen, now) {
    const box = h("input", {
      type: "checkbox",
      "aria-label": `Choose ${row.name || row.run_id} to compare`,
      data: { choose: row.run_id },
      onchange: (event) => this.page.choose(row.run_id, event.target.checked),
    });
    box.checked = chosen;
    return [
      h("td.pick", box),
      columns.map((one) =>
        h(
          "td",
          {
            class: `${isNumeric(one.kind) ? "num " : ""}c-${one.key.includes(".") ? "more" : one.key}`,
            data: { cell: one.key },
          },
          one.cell(row, now, this.page.state.columns),
        ),
      ),
    ];
  }

  /** Up and down go from run to run. */
  onKey(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const line = event.target.closest("tr");
    if (!step || !line || event.target.matches("input")) return;
    const next = step > 0 ? line.nextElementSibling : line.previousElementSibling;
    const target = next?.querySelector(".run-link, .fold");
    if (!target) return;
    event.preventDefault();
    target.focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest" });
  }

  drawFoot(words) {
    setText(byId("runs-shown"), words);
  }
}

/** A line that stands for those out of sight, and its cell. */
function spacer(which) {
  const cell = /** @type {HTMLTableCellElement} */ (h("td"));
  return [h("tr.spacer", { data: { spacer: which }, "aria-hidden": "true" }, cell), cell];
}
