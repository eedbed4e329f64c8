// The table of all runs: sick ones first, live, filtered and sorted by the server. The address has all that is chosen.

import { api } from "../core/api.js";
import { choice, remember } from "../core/controls.js";
import { byId, fill, h, pressed, setClass, setShown, setText, toast } from "../core/dom.js";
import { errorText, formatCount, plural } from "../core/format.js";
import { Live } from "../core/live.js";
import { boardUrl, go } from "../core/route.js";
import { colorTheme } from "../core/theme.js";
import { frame, livePill, morePanels } from "../navigation/rail.js";
import { drawBanner, drawPill } from "../run/header.js";
import { FilterBox } from "./filter_box.js";
import { column } from "./run_cells.js";
import { RunTableView } from "./run_table.js";
import { keptState, nextSort, PAGE_ROWS, readState, viewState, written } from "./table_state.js";
import { ColumnChooser, drawStates, Popover } from "./table_tools.js";

// -- What stands in the place of the table where it has no row: the first lines of code, or a way out of a filter.

const SNIPPET = [
  "import stabilityclient",
  "",
  "run = stabilityclient.init(",
  '    project="vlm", name="interleaved-7b", url="ORIGIN"',
  ")",
  "",
  "@run.on_rollback  # can=(...): what it can change beside the step",
  "def restore(rollback):",
  "    load_checkpoint(model, optimizer, step=rollback.to_step)",
  "",
  "for step in run.steps(0, 10_000):",
  '    run.log(step, {"loss": loss, "grad_norm": norm, "lr": lr})',
  "run.finish()",
].join("\n");

/** `kind`: `none`, no run at all; `filter`: none fits; `clear()` takes the filter away. */
function drawNoRuns(place, kind, clear) {
  if (place.dataset.kind === kind) return;
  place.dataset.kind = kind;
  if (kind === "filter") {
    fill(
      place,
      h(
        "div.empty",
        h("h2", "No run fits the filter"),
        h("p", "All runs are still there."),
        h("button.button.primary", { id: "runs-clear", onclick: clear }, "Clear the filter"),
      ),
    );
    return;
  }
  fill(
    place,
    h(
      "div.empty",
      h("h2", "No run yet"),
      h(
        "p",
        "See a real training job spike and get rolled back: ",
        h("code", "make demo"),
        ". Or put these lines into your own:",
      ),
      h("pre", h("code", SNIPPET.replace("ORIGIN", boardUrl()))),
      h("p.sub", "The page changes by itself when the first point arrives."),
    ),
  );
}

// -- Named views of the table of runs, kept by the server for everybody of a project.

class SavedViews {
  constructor(place, page) {
    this.page = page;
    this.views = [];
    this.popover = new Popover(place, "runs-views", "Views", (panel) => this.open(panel));
  }

  close() {
    this.popover.close();
  }

  open(panel) {
    this.list = h("div.view-list");
    this.name = h("input.field", {
      id: "runs-views-name",
      maxlength: 80,
      placeholder: "Save what is shown as …",
      "aria-label": "Name of the view",
      autocomplete: "off",
      onkeydown: (event) => event.key === "Enter" && this.save(),
    });
    const save = h(
      "button.button.primary",
      {
        id: "runs-views-save",
        data: { needs: "command" },
        onclick: () => this.save(),
      },
      "Save",
    );
    fill(panel, this.list, h("div.popover-foot", this.name, save));
    this.fetch();
  }

  async fetch() {
    try {
      this.views = (await api.views("runs")).views;
      this.draw();
    } catch (error) {
      fill(this.list, h("p.sub", errorText(error)));
    }
  }

  draw() {
    if (!this.views.length) {
      fill(this.list, h("p.sub", "No saved views yet. A view keeps filter, order, groups and columns."));
      return;
    }
    fill(
      this.list,
      this.views.map((view) =>
        h(
          "div.view",
          { data: { view: view.name } },
          h(
            "button.link",
            {
              title: `Saved by ${view.saved_by}`,
              onclick: () => this.take(view),
            },
            h("bdi.cut", view.name),
          ),
          view.project ? h("span.sub", h("bdi", view.project)) : null,
          h(
            "button.link",
            {
              data: { needs: "command" },
              "aria-label": `Delete view ${view.name}`,
              onclick: () => this.drop(view),
            },
            "Delete",
          ),
        ),
      ),
    );
  }

  take(view) {
    this.popover.show(false);
    this.popover.button.focus();
    this.page.takeView(view.state);
  }

  /** A key of one project saves for that project, any other for all. */
  async save() {
    const name = this.name.value.trim();
    if (!name) {
      this.name.focus();
      return;
    }
    try {
      const me = await api.me();
      await api.put("/views", { kind: "runs", project: me.project || "", name, state: keptState(this.page.state) });
      this.name.value = "";
      toast(`View “${name}” is saved.`, "good");
      await this.fetch();
    } catch (error) {
      toast(errorText(error), "critical");
    }
  }

  async drop(view) {
    try {
      await api.deleteView(view);
      await this.fetch();
      toast(`View “${view.name}” is deleted.`, "info");
    } catch (error) {
      toast(errorText(error), "critical");
    }
  }
}

/** Runs that are compared at once. */
const COMPARED = 8;
/** What is shown is asked for again so long after something changed, and at the latest after the second time, ms. */
const [SOON_MS, LATE_MS] = [2000, 30000];
/** The order is held while somebody points at the table, until the pointer has rested so long, milliseconds. */
const HELD_MS = 60000;

const skeleton = () =>
  frame(
    [h("h1.crumb-here", "Runs"), h("span.chip", { id: "runs-count" }), livePill()],
    h(
      "main.list.all-runs",
      h(
        "section.panel.runs-panel",
        h("div", { id: "runs-states", role: "group", "aria-label": "Runs by state" }),
        h(
          "div.panel-head",
          { id: "runs-head", hidden: true },
          h("div", { id: "runs-search" }),
          h("div", { id: "runs-tools" }),
          h("span.grow"),
          h("div", { id: "runs-compare" }),
        ),
        h("div.note.critical", { id: "runs-trouble", role: "alert", hidden: true }),
        h("div.note.warning", { id: "runs-notes", role: "status", hidden: true }),
        h(
          "div",
          { id: "runs-scroll", hidden: true, tabindex: "-1" },
          h(
            "table.table.run-table",
            { id: "runs-table" },
            h("thead", h("tr", { id: "runs-heads" })),
            h("tbody", { id: "runs-body" }),
          ),
        ),
        h("div.runs-more", { id: "runs-more", hidden: true }, h("span.sub", { id: "runs-shown" })),
        h("div", { id: "runs-empty", hidden: true }),
      ),
      morePanels(),
    ),
  );

export class RunsPage {
  static skeleton = skeleton;

  constructor(root) {
    this.root = root;
    this.state = readState(location.search);
    this.answer = null;
    this.pages = new Map();
    this.fetching = new Set();
    this.asked = 0;
    this.at = 0;
    this.dirty = false;
    this.touched = Number.NEGATIVE_INFINITY;
    this.connection = "connecting";
    this.ready = false;
    this.chosen = new Map();
    this.filter = new FilterBox(byId("runs-search"), byId("runs-trouble"), (text) => this.filterBy(text));
    this.filter.value = this.state.q;
    this.table = new RunTableView(this);
    const tools = byId("runs-tools");
    const group = h("div.tool");
    fill(tools, group);
    this.group = choice(group, "runs-group", "Group", (value) => this.groupBy(value), false);
    this.columns = new ColumnChooser(tools, this);
    this.views = new SavedViews(tools, this);
    this.compare = h(
      "button.button",
      {
        id: "compare-open",
        onclick: () => go(`/compare?${new URLSearchParams([...this.chosen.keys()].map((id) => ["run", id]))}`),
      },
      "Compare",
    );
    this.compareWords = h("span.sub");
    fill(byId("runs-compare"), this.compareWords, this.compare);
    const scroll = byId("runs-scroll");
    for (const type of ["pointermove", "wheel", "keydown"])
      scroll.addEventListener(type, () => (this.touched = performance.now()), { passive: true });
    scroll.addEventListener("pointerleave", () => (this.touched = Number.NEGATIVE_INFINITY));
    this.unwatch = colorTheme.watch(() => this.table.draw());
    this.live = new Live(
      null,
      (message) => this.onMessage(message),
      (state) => {
        this.connection = state;
        this.drawTop();
      },
    );
    this.tick = setInterval(() => this.onTick(), 1000);
    this.begin();
  }

  now() {
    return this.live.now();
  }

  /** Somebody is at the table: nothing may move under the pointer. */
  held() {
    return pressed() || performance.now() - this.touched < HELD_MS;
  }

  // --- what is fetched ---------------------------------------------------------------------------------------------

  /** Another filter, order or group: from the top. */
  async begin() {
    this.table.toTop();
    await this.fetch(0, null, true);
  }

  /** Rows from a place on. `order`: go on in that one. `whole`: a new one; `keep`: the rows of others stay for now. */
  async fetch(offset, order, whole, keep = false) {
    const turn = whole ? ++this.asked : this.asked;
    if (whole) this.at = performance.now();
    try {
      const answer = await api.runTable(this.state, offset, order);
      if (this.gone || turn !== this.asked) return;
      if (whole && !keep) this.pages.clear();
      if (!whole && this.answer?.order !== answer.order) return;
      this.pages.set(offset / PAGE_ROWS, answer.rows);
      this.answer = answer;
      this.trouble = null;
      this.ready = true;
      this.filter.say(null);
      this.draw();
    } catch (error) {
      if (this.gone || turn !== this.asked) return;
      if (error.code === "order_gone") await this.fetch(offset, null, true);
      else if (error.status === 422) {
        this.filter.say(errorText(error));
        if (!this.answer && this.state.q) await this.without();
      } else {
        this.trouble = error.message;
        this.drawTop();
        if (!this.answer) this.again = setTimeout(() => !this.gone && this.begin(), 2000 + 2000 * Math.random());
      }
    }
  }

  /** A filter of the address that is none: the runs are shown without it, and what is wrong stays in sight. */
  async without() {
    const words = byId("runs-trouble").textContent;
    this.state = { ...this.state, q: "" };
    await this.fetch(0, null, true);
    this.filter.say(words);
  }

  /** The rows of a place in the order, undefined while they are on their way. */
  rowAt(place) {
    return this.pages.get(Math.floor(place / PAGE_ROWS))?.[place % PAGE_ROWS];
  }

  /** What the server said of a column. */
  facts(key) {
    return this.answer?.columns.find((one) => one.key === key);
  }

  /** Ask for what came into sight. */
  async scrolled() {
    const range = this.table.inSight();
    if (!range || !this.answer) return;
    for (let page = Math.floor(range[0] / PAGE_ROWS); page <= Math.floor(range[1] / PAGE_ROWS); page += 1) {
      if (this.pages.has(page) || this.fetching.has(page)) continue;
      this.fetching.add(page);
      await this.fetch(page * PAGE_ROWS, this.answer.order, false);
      this.fetching.delete(page);
      if (this.gone) return;
    }
  }

  /** Ask again for what is in sight: in the order that stands while somebody is at the table, else in a new one. */
  async refresh() {
    const range = this.table.inSight() || [0, 0];
    const first = Math.floor(range[0] / PAGE_ROWS) * PAGE_ROWS;
    this.dirty = false;
    if (!this.held()) {
      await this.fetch(first, null, true, true);
      // What is out of sight is asked for again when it comes into sight.
      for (const page of [...this.pages.keys()]) if (page * PAGE_ROWS !== first) this.pages.delete(page);
      await this.scrolled();
      return;
    }
    this.at = performance.now();
    for (let at = first; at <= range[1]; at += PAGE_ROWS) await this.fetch(at, this.answer?.order || null, false);
  }

  onMessage(message) {
    if (message.type === "run") this.dirty = true;
    else if (message.type === "reset" || (message.type === "hello" && this.ready && message.afterLoss))
      this.dirty = true;
  }

  onTick() {
    if (this.gone || document.hidden || !this.root.isConnected) return;
    this.drawTop();
    if (!this.ready) return;
    const age = performance.now() - this.at;
    if ((this.dirty && age > SOON_MS) || age > LATE_MS) this.refresh();
    else if (!pressed()) this.table.draw();
  }

  // --- what people do ----------------------------------------------------------------------------------------------

  change(part) {
    this.state = { ...this.state, ...part };
    remember(written(this.state));
    this.drawGroups();
    return this.begin();
  }

  filterBy(q) {
    this.filter.value = q;
    if (q.trim() !== this.state.q) this.change({ q: q.trim() });
  }

  sortBy(key, kind, add) {
    return this.change({ sort: nextSort(this.state.sort, key, kind, add) });
  }

  groupBy(group) {
    return this.change({ group, open: new Set() });
  }

  openGroup(label) {
    const open = new Set(this.state.open);
    if (open.delete("*")) for (const group of this.answer?.groups || []) open.add(group.label);
    if (!open.delete(label)) open.add(label);
    this.state = { ...this.state, open };
    remember(written(this.state));
    this.draw();
    this.scrolled();
  }

  setColumns(columns) {
    this.state = { ...this.state, columns: [...new Set(columns)] };
    remember(written(this.state));
    // The cells that are here are of other columns: they are drawn when the server has answered.
    return this.fetch(Math.floor((this.table.inSight() || [0])[0] / PAGE_ROWS) * PAGE_ROWS, null, true);
  }

  takeView(saved) {
    this.filter.value = viewState(saved).q;
    return this.change(viewState(saved));
  }

  /** The address was changed by a link. */
  addressChanged() {
    this.state = readState(location.search);
    this.filter.value = this.state.q;
    this.begin();
  }

  /** Choose a run for the comparison, or not. */
  choose(id, on) {
    if (on && this.chosen.size < COMPARED) this.chosen.set(id, true);
    else this.chosen.delete(id);
    if (on && !this.chosen.has(id)) toast(`${COMPARED} runs at most are compared at once.`, "warning");
    this.drawChosen();
    this.table.draw();
  }

  // --- what is drawn -----------------------------------------------------------------------------------------------

  drawTop() {
    const newest = this.answer?.rows.reduce((best, row) => Math.max(best, row.updated || 0), 0);
    drawPill(this.live, this.connection, null, newest || null, false);
    drawBanner(this.live, this.trouble || null);
    this.root.classList.toggle("stale", this.live.lost !== null && Date.now() / 1000 - this.live.lost > 2);
  }

  draw() {
    if (this.gone || !this.answer || !this.root.isConnected) return;
    const { fit, total, groups, notes } = this.answer;
    setText(byId("runs-count"), total ? formatCount(total) : "");
    setShown(byId("runs-head"), total > 0);
    setShown(byId("runs-scroll"), fit > 0);
    setShown(byId("runs-more"), total > 0);
    const empty = byId("runs-empty");
    setShown(empty, fit === 0);
    if (!fit) drawNoRuns(empty, total ? "filter" : "none", () => this.filterBy(""));
    drawStates(this);
    this.drawGroups();
    this.drawChosen();
    const gone = this.state.columns.filter((key) => this.facts(key)?.gone).map((key) => column(key).label);
    const words = [...notes];
    if (gone.length) words.push(`No run has “${gone.join("”, “")}” any more: the column is empty.`);
    setText(byId("runs-notes"), words.join(" "));
    setShown(byId("runs-notes"), words.length > 0);
    this.table.relined();
    this.table.draw();
    const grouped = groups.length ? ` in ${plural(groups.length, "group")}` : "";
    setText(
      byId("runs-shown"),
      fit === total
        ? `All ${plural(total, "run")}${grouped}`
        : `${formatCount(fit)} of ${plural(total, "run")}${grouped}`,
    );
    byId("runs-table").setAttribute("aria-rowcount", String(this.table.map.count + 1));
  }

  drawGroups() {
    const offered = ["", "state", "project", "status", "tag", "gpus", "ranks", ...this.state.columns, this.state.group];
    const keys = [...new Set(offered)].filter((key) => !["curve", "progress", "age", "updated", "since"].includes(key));
    this.group.options(
      keys.map((key) => ({ value: key, text: key ? column(key).label : "none" })),
      this.state.group,
    );
  }

  drawChosen() {
    const count = this.chosen.size;
    setText(
      this.compareWords,
      count === 0 ? "Tick runs to compare them" : count === 1 ? "1 chosen, tick another" : `${count} chosen`,
    );
    this.compare.disabled = count < 2;
    setClass(this.compare, `button${count > 1 ? " primary" : ""}`);
    setShown(byId("runs-compare"), (this.answer?.total || 0) > 1);
  }

  close() {
    this.gone = true;
    clearInterval(this.tick);
    clearTimeout(this.again);
    this.unwatch();
    this.filter.close();
    this.columns.close();
    this.views.close();
    this.table.close();
    this.live.close();
  }
}
