// The run page: fetches what there is, then lives on the feed. Regions are redrawn a few times a second, charts by the
// Board, and nothing else happens per message but writing it down.

import { saveCsv } from "../chart/chart_files.js";
import { Board, Zoom } from "../chart/chart_scheduler.js";
import { chartTools } from "../chart/chart_tools.js";
import { HealthLane } from "../chart/health_lane.js";
import { FocusChart, focusMetric } from "../chart/main_chart.js";
import { SeriesStore } from "../chart/series_store.js";
import { Derived } from "../chart/server_series.js";
import { bandEnd, forks } from "../chart/traces.js";
import { api } from "../core/api.js";
import { foldedPanel, grow, LINEAR_LOG, panelHead, remember, segments, toolPlace } from "../core/controls.js";
import { byId, h, pressed, setShown, toast, WhenNear } from "../core/dom.js";
import { firstMetrics, firstRequests } from "../core/first_requests.js";
import { errorText, formatCount, plural } from "../core/format.js";
import { statusFacts } from "../core/kinds.js";
import { drawAgain, drawParts } from "../core/parts.js";
import { colorTheme } from "../core/theme.js";
import { confirm } from "../dialogs/confirm.js";
import { OrderDialog, ordersMenu, TaskDialog } from "../dialogs/order_dialog.js";
import { RollbackDialog } from "../dialogs/rollback_dialog.js";
import { Headline } from "../metrics/headline.js";
import { ExpressionFeed } from "../metrics/layout.js";
import { allMetrics, MetricSections } from "../metrics/metric_sections.js";
import { fullScreen } from "../metrics/metric_tile.js";
import { drawAttention } from "../navigation/attention.js";
import { crumbRuns, frame, morePanels } from "../navigation/rail.js";
import { GpuMap, gpusPanel } from "../ranks/gpu_map.js";
import { Health, withReadings } from "../ranks/health.js";
import { RankGrid, ranksPanel } from "../ranks/rank_grid.js";
import { About } from "./about.js";
import { AutopilotPanel, autopilotPanel } from "./autopilot.js";
import { Detectors, detectorsPanel } from "./detectors.js";
import { drawCommandStrip, drawHeader } from "./header.js";
import { drawKpis, median } from "./kpis.js";
import { drawLineage, forgetLineage } from "./lineage.js";
import { MixtureCurves } from "./mixture.js";
import { Output, outputPanel } from "./output.js";
import { RollbackCosts } from "./rollback_cost.js";
import { drawWaiting, Feed } from "./run_feed.js";
import { drawCheckpoints, drawIncidents, forgetRail } from "./sidebar.js";
import { StorageLine } from "./storage_line.js";
import { View } from "./view_state.js";
import { drawBlind } from "./visibility_gaps.js";
import { Watched } from "./watched.js";

// -- What an address asks of a run's page beside how its charts look: `do=rollback`, `undo` or `changes` opens what is meant,
// once; `node=` marks a node's ranks. Nothing is ordered by an address: the dialogs ask.

/** The ranks of a node stay in sight so long after they were first drawn, milliseconds, unless somebody does one of these. */
const FOLLOWED_MS = 10_000;
const ACTS = ["wheel", "touchmove", "pointerdown", "keydown"];

class Asked {
  /** `page` as in run_page.js. */
  constructor(page) {
    this.page = page;
    this.read();
  }

  read() {
    const query = new URLSearchParams(location.search);
    this.what = query.get("do");
    this.node = query.get("node") || "";
    this.unseen = this.node !== "";
    this.since = /** @type {number | null} */ (null);
  }

  /** Everything is here: do what was asked for. */
  act() {
    const { page, what } = this;
    if (!what || !page.run) return;
    this.what = null;
    remember({ do: null }); // opened again by nobody who loads the page anew
    const over = statusFacts(page.run.status).over;
    if (what === "changes") page.about.setOpen(true);
    else if (over) toast("This run has ended: there is no job to roll back.", "warning");
    else if (what === "rollback") page.dialog.show(page.incidentMap.get(page.run.worst_incident?.incident_id) || null);
    else if (what === "undo" && typeof page.run.undo === "number") page.dialog.show(null, page.run.undo);
    else if (what === "undo")
      toast("No rollback of the last day can be undone; the lineage has older ones.", "warning");
  }

  /**
   * The ranks were drawn: go to those of the node. What loads above moves them: for some seconds they are gone to again,
   * until somebody scrolls or presses something.
   */
  showNode(rows) {
    if (!this.unseen || !rows.length) return;
    if (this.since === null) {
      this.since = performance.now();
      for (const act of ACTS) addEventListener(act, () => this.leave(), { once: true, passive: true });
    }
    if (!rows.some((row) => row.node === this.node)) {
      toast(`No rank of this run is on ${this.node} now.`, "warning");
      return this.leave();
    }
    if (performance.now() - (this.since || 0) > FOLLOWED_MS) return this.leave();
    const place = [.../** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("#ranks .rank-node"))];
    const one = /** @type {HTMLElement} */ (
      place.find((each) => each.dataset.node === this.node) || byId("ranks-panel")
    );
    const { top, bottom } = one.getBoundingClientRect();
    if (top < 0 || bottom > innerHeight) one.scrollIntoView({ block: one.dataset.node ? "center" : "start" });
    return undefined;
  }

  leave() {
    this.unseen = false;
  }
}

/** Incidents and checkpoints kept. */
const KEPT = 500;
/** Beyond so many names of metrics new ones are taken up once in NAMES_MS. */
const [MANY_NAMES, NAMES_MS] = [1000, 1000];

/** The bar of the page. */
function bar() {
  const fact = (id, word) => h("span.fact", h("span.label", word), h("span.value", { id }));
  const button = (id, ...words) => h("button.button", { id, disabled: true }, words);
  return [
    crumbRuns(),
    h("h1.crumb-here", { id: "run-name", dir: "auto" }),
    h("span.chip", { id: "run-segment" }),
    h("a.pill", { id: "run-status" }),
    h("button.chip.press", { id: "detectors-badge", hidden: true }),
    h("button.chip.press", { id: "autopilot-badge", hidden: true }),
    grow(),
    fact("run-step", "step"),
    fact("run-elapsed", "elapsed"),
    h("span.pill.quiet", { id: "live-pill" }),
    button("orders-open", "Actions"),
    button("task-open", "Run a task …"),
    button("checkpoint-open", "Checkpoint now"),
    button("stop-open", "Stop …"),
    button("rollback-open", h("span.icon.icon-back"), "Roll back …"),
  ];
}

/** The regions below the bar, in the order in which they are read. */
function body() {
  const note = (id, label) => h("section", { id, hidden: true, "aria-label": label });
  const railPanel = (title, id, ...parts) => h("section.panel", panelHead(title, parts), h("div.scroll", { id }));
  const all = (id) => h("button.toggle", { id, hidden: true }, "All");
  const detectors = "What finds incidents in this run, and how sensitive it is";
  return [
    note("command-strip", "The command that is under way"),
    note("run-note", "What is wrong now"),
    note("storage-note", "Storage"),
    h("section.kpis.panel", { id: "kpis", "aria-label": "Now" }),
    h(
      "main.columns",
      { id: "run-main" },
      h(
        "aside.rail",
        railPanel(
          "Incidents",
          "incidents",
          h("span.chip", { id: "incidents-count" }),
          grow(),
          h("button.toggle", { id: "detectors-open", title: detectors, hidden: true }, "Detectors"),
          all("incidents-all"),
        ),
        railPanel("Lineage", "lineage", h("span.sub", { id: "lineage-note" }), grow(), all("lineage-all")),
        h(
          "section.panel",
          panelHead("Checkpoints", grow(), h("span.sub", { id: "checkpoints-note" })),
          h("div.scroll.short", { id: "checkpoints" }),
        ),
      ),
      h(
        "div.column",
        focusPanel(),
        outputPanel(),
        foldedPanel("about", "About this run", h("div.about-line", { id: "about-line" })),
        autopilotPanel(),
        detectorsPanel(),
        foldedPanel("watched", "Watched", h("span.sub", { id: "watched-note" })),
        h("p.sub", { id: "log-notes", hidden: true }),
        h("section.panels", { id: "panels", hidden: true, "aria-label": "Charts" }),
        allMetrics(),
        h("div.walls", { id: "walls" }, ranksPanel(), gpusPanel()),
        morePanels(),
      ),
    ),
    h("main", { id: "run-empty", hidden: true }),
    h(
      "section.foot",
      { "aria-label": "Where its points are" },
      h("div", { id: "run-foot" }),
      h("div.storage", { id: "storage" }),
    ),
  ];
}

/** The large chart. */
const focusPanel = () =>
  h(
    "section.panel",
    { id: "focus-panel" },
    h(
      "div.panel-head",
      h("h2", { id: "focus-title" }, "Learned steps"),
      // In full, where the chart has no room for it (chart/line_chart.js).
      h("span.sub", { id: "focus-metric" }),
      h("span.sub", { id: "focus-note" }),
      grow(),
      h("div.legend", { id: "focus-legend" }),
      h("button.toggle", { id: "zoom-reset", hidden: true }, "Reset zoom"),
      segments("focus-window", "Newest steps shown", [
        ["0", "All"],
        ["2000", "2k"],
        ["500", "500"],
        ["100", "100"],
      ]),
    ),
    h(
      "div.tools",
      toolPlace("focus-view"),
      toolPlace("focus-x"),
      toolPlace("focus-smooth"),
      grow(),
      h("button.toggle.on", { id: "focus-ghosts", "aria-pressed": "true" }, "Discarded"),
      segments("focus-scale", "Y axis", LINEAR_LOG),
    ),
    h("div.chart.focus", { id: "chart-focus" }),
    // Machines and processes, on the chart's own x axis (chart/health_lane.js).
    h("div.health-lane", { id: "health-lane", hidden: true }),
  );

/** Regions other than charts are brought up to date this often at most. */
const TICK_MS = 250;
/** Ages change each second, those of a run that has ended are minutes and days. */
const BEATS = 1000 / TICK_MS;
/** Ranks and GPUs: less than the second in which agents speak, so that a word never waits for long. */
const HEALTH_MS = 700;

export class RunPage {
  static skeleton = () => frame(bar(), ...body());

  constructor(root, config) {
    this.root = root;
    this.id = root.dataset.run;
    this.config = config;
    this.store = new SeriesStore(config.limits);
    this.run = null;
    this.ready = this.charted = false;
    this.checkpoints = [];
    this.incidentMap = new Map();
    this.commands = new Map();
    this.health = new Health();
    this.names = [];
    this.nameSet = new Set();
    this.freshNames = [];
    /** @type {any} */
    this.namesTimer = null;
    this.dirt = new Set();
    this.state = "connecting";
    this.latency = null;
    this.forkList = [];
    this.wallsDrawn = { ranks: -HEALTH_MS, gpus: -HEALTH_MS };
    this.zoom = new Zoom();
    this.board = new Board(config, this.zoom);
    this.board.onDrawn = (shown) => this.onDrawn(shown);
    this.board.onFrame = () => this.beat(TICK_MS - 70);
    this.dialog = new RollbackDialog(this);
    this.task = new TaskDialog(this);
    this.orders = { stop: new OrderDialog(this, "stop"), checkpoint: new OrderDialog(this, "checkpoint") };
    this.look = new View(this);
    this.settings = this.look.settings;
    this.derived = new Derived(this, (words) => this.look.giveUp(words));
    this.lane = new HealthLane(this);
    this.mixture = new MixtureCurves(this);
    this.headline = new Headline(this);
    this.focus = new FocusChart(byId("chart-focus"), config, this);
    this.board.add(this.focus);
    chartTools(byId("focus-panel").querySelector(".panel-head"), this.focus, this);
    this.grid = new RankGrid(this);
    this.gpus = new GpuMap(this);
    this.metrics = new MetricSections(this);
    this.expressions = new ExpressionFeed(this);
    this.rollbackCosts = new RollbackCosts(this);
    this.storage = new StorageLine(this);
    this.detectors = new Detectors(this);
    this.watched = new Watched(this);
    this.autopilot = new AutopilotPanel(this);
    this.about = new About(this);
    this.output = new Output(this);
    this.asked = new Asked(this);
    this.belowCharts = new WhenNear(byId("walls"), () => {
      this.feed.fetchHealth();
      this.gpus.fetch();
      this.rollbackCosts.fetch();
    });
    this.foot = new WhenNear(byId("storage").parentElement, () => this.storage.fetch());
    this.listen();
    this.feed = new Feed(this);
    this.live = this.feed.live;
    this.ticked = performance.now(); // the first frame is the charts' alone
    this.tick = setInterval(() => this.beat(TICK_MS - 10), TICK_MS);
  }

  /** Whether its job has ended, as far as is known. */
  get ended() {
    return Boolean(this.run && statusFacts(this.run.status).ended);
  }

  /** The small charts that the headline chose. */
  get panels() {
    return this.headline.panels;
  }

  redraw() {
    for (const chart of this.board.charts.values()) chart.forget();
    this.board.markAll();
    this.dirty("header");
  }

  resetZoom() {
    if (this.focus) this.focus.localRange = null;
    this.zoom.set(null);
  }

  listen() {
    this.unwatch = colorTheme.watch(() => {
      this.redraw();
      this.dirtyAll();
    });
    byId("rollback-open").addEventListener("click", () => this.dialog.show(null));
    byId("task-open").addEventListener("click", () => this.task.show());
    ordersMenu();
    for (const [kind, dialog] of Object.entries(this.orders))
      byId(`${kind}-open`).addEventListener("click", () => dialog.show());
    byId("incidents-all").addEventListener("click", () => {
      this.allIncidents = !this.allIncidents;
      this.dirty("incidents");
    });
    byId("lineage-all").addEventListener("click", () => {
      this.allSegments = !this.allSegments;
      this.dirty("lineage");
    });
    this.zoom.listeners.add((range) => {
      setShown(byId("zoom-reset"), range !== null);
      this.redraw();
      this.look.remember();
      this.mixture.soon();
    });
    this.zoom.rested.add((range) => range && this.fetchDetail(range));
  }

  fetchDetail(range) {
    this.feed.fetchDetail(range);
    this.derived.fetchDetail(range);
  }

  /** The charts' points are here; `onSynced`: everything else too. */
  onSynced() {
    if (this.derived.active() && this.derived.ready()) this.derived.fetchMore();
    else if (this.derived.active()) this.derived.change();
    if (!this.zoom.range && this.look.segment() !== null) this.look.showSegment();
    else if (this.zoom.range) this.fetchDetail(this.zoom.range);
    this.belowCharts.ask();
    // What forks discarded stands above the charts, too.
    if (this.forkList.length && !this.belowCharts.near) this.rollbackCosts.fetch();
    this.foot.ask();
    for (const part of [this.detectors, this.watched, this.autopilot, this.about, this.output]) part.fetch();
    drawParts();
    if (this.asked.unseen) this.feed.fetchHealth(); // the ranks are far below the charts
    this.asked.act();
  }

  // -- what the charts and regions ask for --------------------------------------------------------------------

  metric() {
    return focusMetric(this.names, this.run, this.headline.now.main);
  }
  /** The metric of the row below it. */
  below() {
    const { main, below } = this.headline.now;
    if (main) return below;
    return this.names.includes("grad_norm") ? "grad_norm" : null;
  }
  hasGrad() {
    return this.below() !== null && this.below() !== this.metric();
  }
  now() {
    return this.live.now();
  }
  name() {
    return (this.run && (this.run.name || this.run.run_id)) || this.id;
  }
  lastStep() {
    return this.store.lastStep !== null ? this.store.lastStep : this.run ? this.run.last_step : null;
  }
  worldSize() {
    return (this.run && this.run.world_size) || 1;
  }
  stepSeconds() {
    const logged = this.headline.stepScale();
    return (logged && logged.scale * (median(this.store.tail(logged.metric, 50).values) || 0)) || null;
  }
  incidents() {
    return [...this.incidentMap.values()].sort(
      (a, b) => Number(b.state === "open") - Number(a.state === "open") || b.opened - a.opened,
    );
  }
  view(metrics) {
    return {
      incidents: this.detectors.preview() || this.incidents(),
      segments: this.store.segments,
      forks: this.forkList,
      notes: this.feed?.notes.on(metrics),
      lastStep: this.lastStep(),
    };
  }
  /** Checkpoints, newest first, each dead or alive as its branch is: the news of a fork is enough to know. */
  checkpointList() {
    return this.checkpoints.map((one) => ({ ...one, dead: one.step > this.store.aliveUpTo(one.segment) }));
  }

  // -- drawing --------------------------------------------------------------------------------------------------

  onDrawn(shown) {
    const newest = shown.reduce((best, one) => Math.max(best, one.logTime || 0), 0);
    if (!newest) return;
    const delay = this.now() - newest;
    this.latency = this.latency === null || delay > 5 ? delay : 0.8 * this.latency + 0.2 * delay;
  }

  dirty(...regions) {
    for (const region of regions) this.dirt.add(region);
  }
  dirtyAll() {
    this.dirty("header", "kpis", "incidents", "lineage", "checkpoints", "ranks", "gpus", "command", "pill");
  }

  /** Bring the regions up to date unless they were a moment ago: in a frame with charts, if there are any. */
  beat(apart) {
    const now = performance.now();
    if (now - this.ticked < apart) return;
    this.ticked = now;
    this.onTick();
  }

  onTick() {
    // Between two pages the regions are gone a moment before we are told.
    if (this.gone || document.hidden || !this.root.isConnected || pressed()) return;
    this.beats = (this.beats || 0) + 1;
    // Ages go on by themselves. Those of ranks come with agents' words, and go on by themselves where none come.
    const second = this.ended && this.live.lost === null ? 10 * BEATS : BEATS;
    if (this.beats % second === 0) this.dirty("header", "kpis", "incidents", "checkpoints", "gpus", "pill");
    if (this.beats % (2 * second) === 0) this.dirty("ranks");
    // Numbers that each point changes are read by people: twice a second.
    const [points, now] = [this.dirt.delete("points"), this.beats % 2 === 0];
    if (points && now) this.dirty("header", "kpis");
    const dirt = this.dirt;
    this.dirt = new Set(points && !now ? ["points"] : []);
    if (dirt.has("lineage") || dirt.has("header")) drawLineage(this); // first: it asks where it is scrolled to, after other writes a layout
    if (dirt.has("header") || dirt.has("pill")) drawHeader(this);
    if (dirt.has("header")) this.look.draw();
    if (dirt.has("kpis")) drawKpis(this);
    if (dirt.has("incidents")) drawIncidents(this, this.allIncidents);
    if (dirt.has("incidents")) this.detectors.draw();
    if (dirt.has("checkpoints")) drawCheckpoints(this);
    for (const wall of ["ranks", "gpus"]) if (dirt.has(wall)) this.drawWall(wall);
    if (dirt.has("command")) drawCommandStrip(this);
    if (dirt.has("header")) this.dialog.refresh();
  }

  /** What is known of ranks or of GPUs: at once, then once a second, however often something of it changes. */
  drawWall(wall) {
    const now = performance.now();
    if (now - this.wallsDrawn[wall] < HEALTH_MS) return this.dirty(wall);
    this.wallsDrawn[wall] = now;
    if (wall === "gpus") return this.gpus.draw();
    this.grid.draw();
    return drawBlind(this);
  }

  /** There is no such run, or not yet; `error` is what the server said. */
  missing(error) {
    this.setLost(true);
    drawWaiting(this, error);
  }

  setLost(lost) {
    if (this.lost && !lost) drawAgain();
    this.lost = lost;
    setShown(byId("run-main"), !lost);
    setShown(byId("kpis"), !lost);
    setShown(byId("run-empty"), lost);
  }

  close() {
    this.gone = true;
    clearInterval(this.tick);
    this.zoom.close();
    this.unwatch?.();
    this.feed.close();
    this.metrics.close();
    this.headline.close();
    this.expressions.close();
    this.grid.close();
    this.gpus.close();
    this.derived.clear();
    this.belowCharts.close();
    this.foot.close();
    this.rollbackCosts.close();
    this.storage.close();
    for (const part of [this.detectors, this.watched, this.output, this.mixture]) part.close();
    this.board.close();
    this.dialog.destroy();
    for (const dialog of [this.task, ...Object.values(this.orders)]) dialog.destroy();
    forgetRail();
    forgetLineage();
  }

  // -- actions of a person ---------------------------------------------------------------------------------------

  openRollback(incident) {
    this.dialog.show(incident);
  }

  async acknowledge(incident) {
    try {
      this.setIncident(await api.acknowledge(this.id, incident.incident_id));
    } catch (error) {
      toast(errorText(error), "warning");
    }
  }

  /** Take back a segment that was only inferred, and all like it: the server says `reset`, and all is fetched anew. */
  async undo(segment, label) {
    const inferred = [...this.store.segments.values()].filter((one) => one.inferred === "steps" && !one.undone);
    const count = inferred.length > 1 ? ` (${plural(inferred.length - 1, "other")})` : "";
    const others = ` All like it in this run${count} are taken back with it, later ones too.`;
    const sure = await confirm({
      title: `${label ? `${label} was` : "This was"} not a rollback`,
      text: `It was not declared: the steps went back to ${formatCount(segment.fork_step + 1)} and continued, so a restart was assumed. Taken back, the line continues as before, without the repeated steps.${segment.inferred === "steps" ? others : ""} It can't be put back.`,
      action: "Take it back",
    });
    if (!sure || this.gone) return;
    try {
      await api.undo(this.id, segment.id);
      toast(`${label || "The restart"} is taken back.`, "good");
      if (this.state !== "live") this.feed.sync();
    } catch (error) {
      toast(errorText(error), "warning");
    }
  }

  /** Show the chart of a metric over the whole window, with these options; `csv`: its rows are saved too. */
  showMetric(name, options = {}, csv = false) {
    const chart = fullScreen(this.metrics, name, options);
    if (csv) saveCsv(chart, this);
  }

  /** A link in a panel names other steps, or the search a node of this run. */
  addressChanged() {
    this.asked.read();
    if (this.asked.unseen) this.feed.fetchHealth();
    this.asked.act();
    const query = new URLSearchParams(location.search);
    const [from, to] = ["from", "to"].map((key) => (query.has(key) ? Number(query.get(key)) : NaN));
    if (!(to > from)) return;
    this.zoom.set([from, to]);
    byId("focus-panel").scrollIntoView({ block: "nearest", behavior: "smooth" });
  }

  zoomTo(incident) {
    if (incident.onset_step === null || incident.onset_step === undefined) return;
    const end = bandEnd(incident, this.store.segments, this.lastStep());
    const air = Math.max(20, 0.6 * (end - incident.onset_step));
    this.zoom.set([Math.max(0, incident.onset_step - air), end + air]);
    byId("focus-panel").scrollIntoView({ block: "nearest", behavior: "smooth" });
  }

  // -- news of the run: each is written down and the regions of it are drawn again --------------------------------

  onState(state) {
    this.state = state;
    this.dirty("pill");
  }

  addPoints(message) {
    const touched = new Set();
    let step = null;
    for (const block of message.blocks) {
      if (this.health.points(block)) this.dirty("gpus");
      // Hardly any of a thousand GPUs' readings has a chart: nothing is kept of the others.
      for (const name of this.store.append(withReadings(block, (one) => this.store.follows(one)))) touched.add(name);
      step = block.steps[block.steps.length - 1];
    }
    const fresh = [...touched].filter((name) => !this.nameSet.has(name));
    if (fresh.length) this.setNames(fresh);
    // Most messages of a large job are readings of GPUs that no chart shows: nothing else is drawn for them.
    if (touched.size) {
      this.derived.onPoints();
      this.expressions.onPoints();
      this.board.markMetrics(touched, step, message.time);
      this.dirty("points");
    }
    if (!this.sawPoints) this.dirtyAll();
    this.sawPoints = true;
  }

  setNames(names) {
    const fresh = names.filter((name) => !this.nameSet.has(name));
    if (!fresh.length) return;
    for (const name of fresh) this.nameSet.add(name);
    this.freshNames.push(...fresh);
    // Of very many a second in which some come is worth one look at all, not ten.
    if (this.nameSet.size <= MANY_NAMES) this.takeNames();
    else this.namesTimer = this.namesTimer || setTimeout(() => this.takeNames(), NAMES_MS);
  }

  /** Put new names in their places. */
  takeNames() {
    this.namesTimer = null;
    if (this.gone) return;
    const fresh = this.freshNames;
    this.freshNames = [];
    this.names = [...this.nameSet].sort();
    this.watched.soon();
    this.headline.soon();
    this.namesShown(fresh);
  }

  /** Show `fresh` among the names of the run, in the panels that want them. */
  namesShown(fresh) {
    this.headline.show();
    this.metrics.list();
    if (this.charted) {
      const added = new Set(fresh);
      const pinned = [...firstRequests.fine, ...firstMetrics(this.names)].filter((name) => added.has(name));
      this.store.pin(pinned);
      this.feed.fetchWanted(pinned);
      this.board.markAll();
    }
  }

  /** What the run says of itself; what did not change since the last message may be left out of it. */
  setRun(run) {
    this.run = { ...this.run, ...run };
    if (this.lost) this.setLost(false);
    this.setNames(run.metrics || []);
    drawAttention(this);
    this.dirty("header", "kpis");
  }

  /** There is another fork, or the server has worked out what one discarded. */
  forksChanged() {
    this.forkList = forks(this.store.segments, this.rollbackCosts.rollbacks());
    this.dirty("lineage", "kpis", "header");
  }

  setSegments(head, segments) {
    this.store.setSegments(head, segments);
    const forks = this.forkList.length;
    this.forksChanged();
    if (this.ready && forks !== this.forkList.length) this.rollbackCosts.soon();
  }

  setIncident(incident) {
    if (this.incidentMap.get(incident.incident_id)?.version > incident.version) return;
    this.incidentMap.set(incident.incident_id, incident);
    if (this.incidentMap.size > KEPT)
      this.incidentMap.delete([...this.incidentMap.values()].sort((a, b) => a.opened - b.opened)[0].incident_id);
    this.board.markAll();
    this.dirty("incidents", "kpis", "ranks");
    if (incident.kind === "gpu_fault") this.gpus.soon();
  }

  setCommand(command) {
    const known = this.commands.get(command.command_id);
    if (known && (known.history || []).length > (command.history || []).length) return;
    this.commands.set(command.command_id, command);
    this.dirty("command");
    this.dialog.refresh();
    for (const dialog of [this.task, ...Object.values(this.orders)]) dialog.refresh();
  }

  setCheckpoint(checkpoint) {
    this.checkpoints = [
      checkpoint,
      ...this.checkpoints.filter(
        (one) => one.step !== checkpoint.step || one.segment !== checkpoint.segment || one.path !== checkpoint.path,
      ),
    ]
      .sort((a, b) => b.step - a.step || b.time - a.time)
      .slice(0, KEPT);
    this.dirty("checkpoints", "kpis");
  }
}
