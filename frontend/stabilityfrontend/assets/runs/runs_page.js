// The list of runs, live: one row each, those in trouble first, and a first step for who has none yet.

import { focusMetric, lossMetric } from "../chart/main_chart.js";
import { sparkline } from "../chart/sparkline.js";
import { api } from "../core/api.js";
import { sickFirst, stateOf, statePill } from "../core/appearance.js";
import { byId, fill, h, setClass, setShown, setText, toast } from "../core/dom.js";
import { ago, formatAge, formatCount, plural, steady, toNumber } from "../core/format.js";
import { Live } from "../core/live.js";
import { patch, pressed } from "../core/patch.js";
import { go } from "../core/route.js";
import { colorTheme } from "../core/theme.js";
import { drawBanner, drawPill, lastWord } from "../run/header.js";

/** Rows drawn at first, and with each press of the button under them; the search goes through all. */
const ROWS = 100;
/** Runs whose sparkline is fetched at once, and kept. */
const [SPARKS, SPARKS_KEPT] = [60, 400];
/** Runs that are compared at once. */
const COMPARED = 8;
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

export class RunsPage {
  constructor(root) {
    this.root = root;
    this.runs = new Map();
    this.rows = new Map();
    this.sparks = new Map();
    this.rowsWanted = ROWS;
    this.total = 0;
    this.state = "connecting";
    this.ready = false;
    this.filter = h("input", {
      id: "runs-filter",
      type: "search",
      class: "field",
      placeholder: "Search by name, project or status",
      "aria-label": "Search runs",
      autocomplete: "off",
      on: { input: () => this.redraw() },
    });
    this.more = h(
      "button",
      { type: "button", class: "button", id: "runs-more-open", on: { click: () => this.showMore() } },
      "Show more",
    );
    this.moreWords = h("span", { class: "sub", id: "runs-shown" });
    fill(byId("runs-more"), this.moreWords, this.more);
    fill(byId("runs-search"), this.filter);
    this.chosen = new Set();
    this.compare = h(
      "button",
      {
        type: "button",
        class: "button",
        id: "compare-open",
        on: { click: () => go(`/compare?${new URLSearchParams([...this.chosen].map((id) => ["run", id]))}`) },
      },
      "Compare",
    );
    this.compareWords = h("span", { class: "sub" });
    fill(byId("runs-compare"), this.compareWords, this.compare);
    this.unwatch = colorTheme.watch(() => this.draw());
    this.live = new Live(
      null,
      (message) => this.onMessage(message),
      (state) => {
        this.state = state;
        this.drawTop();
      },
    );
    this.fetch();
    this.tick = setInterval(() => this.onTick(), 1000);
  }

  async fetch() {
    try {
      const fresh = new Map();
      await api.runs(({ runs, total }) => {
        if (this.gone) return false;
        // A run that was heard of a moment ago may have nothing to say about itself yet.
        for (const run of runs.slice(fresh.size)) fresh.set(run.run_id || `no id ${fresh.size}`, run);
        this.total = total;
        if (this.ready) return true;
        this.take(fresh);
        return true;
      });
      if (this.gone) return;
      this.take(fresh);
      this.fetchSparks();
    } catch (error) {
      this.trouble = error.message;
      this.again = setTimeout(() => !this.gone && this.fetch(), 2000 + 2000 * Math.random());
    }
  }

  /** Show these runs; what came live about one meanwhile is newer. */
  take(runs) {
    const news = this.ready ? new Map() : this.runs;
    this.runs = new Map(
      [...runs]
        .filter(([, run]) => run.run_id)
        .map(([id, run]) => [id, news.has(id) ? { ...run, ...news.get(id) } : run]),
    );
    this.ready = true;
    this.trouble = null;
    this.redraw();
  }

  async fetchSparks() {
    const wanted = this.shown()
      .slice(0, this.rowsWanted)
      .filter((run) => !this.sparks.has(run.run_id))
      .slice(0, SPARKS);
    for (const run of wanted) {
      if (this.gone) return;
      if (this.sparks.size >= SPARKS_KEPT) this.sparks.delete(this.sparks.keys().next().value);
      const metric = focusMetric(run.metrics || [], run);
      this.sparks.set(run.run_id, { metric, values: [] });
      try {
        const start = Math.max(0, (run.last_step || 0) - 200);
        const series = (await api.series(run.run_id, [metric], { view: "effective", points: 400, start })).flatMap(
          (answer) => answer.series,
        );
        const rank = series.reduce((least, one) => Math.min(least, one.rank === null ? 1e9 : one.rank), 1e9);
        const values = series
          .filter((one) => (one.rank === null ? 1e9 : one.rank) === rank)
          .flatMap((one) => one.values.map(toNumber));
        this.sparks.set(run.run_id, { metric, values });
      } catch {
        this.sparks.delete(run.run_id);
      }
      this.draw();
    }
  }

  onMessage(message) {
    if (message.type === "run") {
      const known = this.runs.get(message.run.run_id);
      // What did not change since the last message may be left out of it.
      this.runs.set(message.run.run_id, { ...known, ...message.run });
      const spark = this.sparks.get(message.run.run_id);
      if (spark && known && known.last_step !== message.run.last_step) {
        const value = toNumber((message.run.latest || {})[spark.metric]);
        if (value !== null) spark.values.push(value);
        if (spark.values.length > 200) spark.values.shift();
      }
      this.list = null;
      if (!known) {
        this.total = Math.max(this.total, this.runs.size);
        this.fetchSparks();
      }
    } else if (message.type === "reset" || (message.type === "hello" && this.ready)) this.fetch();
  }

  onTick() {
    if (this.gone || document.hidden || !this.root.isConnected || pressed()) return;
    this.drawTop();
    this.draw();
  }

  /** The runs that the search lets through, the sick first. */
  shown() {
    if (this.list) return this.list;
    const words = this.filter.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (run) => {
      const text = `${run.name} ${run.run_id} ${run.project} ${run.status} ${stateOf(run).word}`.toLowerCase();
      return words.every((word) => text.includes(word));
    };
    this.list = [...this.runs.values()].filter(fits).sort(sickFirst);
    return this.list;
  }

  /** Another search, or other runs: make the list anew. */
  redraw() {
    this.list = null;
    this.draw();
  }

  showMore() {
    this.rowsWanted += ROWS;
    this.draw();
    this.fetchSparks();
  }

  drawTop() {
    const newest = [...this.runs.values()].reduce((best, run) => Math.max(best, run.updated || 0), 0);
    drawPill(this.live, this.state, null, newest || null, false);
    drawBanner(this.live, this.ready ? null : this.trouble);
  }

  draw() {
    if (this.gone || !this.ready || !this.root.isConnected || pressed()) return;
    const list = this.shown();
    const total = Math.max(this.total, this.runs.size);
    setText(byId("runs-count"), total ? formatCount(total) : "");
    setShown(byId("runs-table"), list.length > 0);
    setShown(byId("runs-head"), this.runs.size > 0);
    this.drawChosen();
    const empty = byId("runs-empty");
    setShown(empty, list.length === 0);
    if (!list.length) this.drawEmpty(empty);
    const rows = list.slice(0, this.rowsWanted).map((run) => this.row(run));
    const loading = total > this.runs.size ? `, ${formatCount(total - this.runs.size)} are still being fetched` : "";
    setShown(byId("runs-more"), list.length > rows.length || Boolean(loading));
    setShown(this.more, list.length > rows.length);
    setText(this.moreWords, `${formatCount(rows.length)} of ${plural(list.length, "run")} shown${loading}`);
    const body = byId("runs-body");
    if (rows.length !== body.children.length || rows.some((row, index) => row !== body.children[index]))
      patch(body, rows);
  }

  /** Choose a run for the comparison, or not. */
  choose(id, on) {
    if (on && this.chosen.size < COMPARED) this.chosen.add(id);
    else this.chosen.delete(id);
    if (on && !this.chosen.has(id)) toast(`${COMPARED} runs at most are compared at once.`, "warning");
    this.draw();
  }

  drawChosen() {
    for (const id of this.chosen) if (!this.runs.has(id)) this.chosen.delete(id);
    const count = this.chosen.size;
    setText(
      this.compareWords,
      count === 0 ? "Tick runs to compare them" : count === 1 ? "1 chosen, tick another" : `${count} chosen`,
    );
    this.compare.disabled = count < 2;
    setClass(this.compare, `button${count > 1 ? " primary" : ""}`);
    setShown(byId("runs-compare"), this.runs.size > 1);
  }

  row(run) {
    const age = this.live.now() - lastWord(run);
    const spark = this.sparks.get(run.run_id);
    const chosen = this.chosen.has(run.run_id);
    const known = this.rows.get(run.run_id);
    // What is heard of a run makes a new object of it.
    const key = `${chosen} ${formatAge(age)} ${colorTheme.name()} ${spark && spark.values.length}`;
    if (known && known.run === run && known.key === key) return known.element;
    const metric = spark ? spark.metric : focusMetric(run.metrics || [], run);
    const loss = lossMetric(run.metrics || [], run);
    const href = `/runs/${encodeURIComponent(run.run_id)}`;
    const box = h("input", {
      type: "checkbox",
      "aria-label": `Choose ${run.name || run.run_id} to compare`,
      data: { choose: run.run_id },
      on: { change: (event) => this.choose(run.run_id, event.target.checked) },
    });
    box.checked = chosen;
    const cells = [
      h("td", { class: "pick" }, box),
      h(
        "td",
        {},
        h("a", { href, class: "run-link" }, run.name || run.run_id),
        h("div", { class: "sub" }, run.project || "no project"),
      ),
      h("td", {}, statePill(run)),
      h("td", { class: "num" }, formatCount(run.last_step)),
      h(
        "td",
        { class: "num strong", title: loss || "no loss is logged" },
        steady(loss === null ? null : toNumber((run.latest || {})[loss])),
      ),
      h(
        "td",
        { class: "spark-cell", title: metric },
        spark ? sparkline(spark.values, "var(--accent)", 160, 28) : null,
        loss === null && (run.metrics || []).length ? h("div", { class: "sub spark-name" }, metric) : null,
      ),
      h(
        "td",
        { class: "num" },
        run.open_incidents
          ? h("span", { class: `chip ${stateOf(run).tone}` }, `${run.open_incidents} open`)
          : h("span", { class: "sub" }, "none"),
      ),
      h("td", { class: "num" }, run.rollbacks ? formatCount(run.rollbacks) : h("span", { class: "sub" }, "0")),
      h("td", { class: "num sub" }, ago(age)),
    ];
    const element = known
      ? known.element
      : h("tr", { data: { run: run.run_id }, on: { click: (event) => event.target.closest("a, .pick") || go(href) } });
    patch(element, cells);
    this.rows.set(run.run_id, { run, key, element });
    return element;
  }

  drawEmpty(place) {
    const kind = this.runs.size ? "filter" : "none";
    if (place.dataset.kind === kind) return;
    place.dataset.kind = kind;
    if (kind === "filter") {
      fill(place, h("div", { class: "nothing" }, "No run fits the filter."));
      return;
    }
    const code = SNIPPET.replace("ORIGIN", location.origin);
    fill(
      place,
      h(
        "div",
        { class: "empty" },
        h("h2", {}, "No run yet"),
        h(
          "p",
          {},
          "See a real training job spike and get rolled back: ",
          h("code", {}, "make demo"),
          ". Or put these lines into your own:",
        ),
        h("pre", {}, h("code", {}, code)),
        h("p", { class: "sub" }, "The page changes by itself when the first point arrives."),
      ),
    );
  }

  close() {
    this.gone = true;
    clearInterval(this.tick);
    clearTimeout(this.again);
    this.unwatch();
    this.live.close();
  }
}
