// The run page: fetches what there is, then lives on the feed. Regions are redrawn a few times a second, charts by the
// Board, and nothing else happens per message but writing it down.

import { About } from "../about/about.js";
import { Board, Zoom } from "../chart/chart_scheduler.js";
import { chartTools } from "../chart/chart_tools.js";
import { HealthLane } from "../chart/health_lane.js";
import { focusChart, focusMetric } from "../chart/main_chart.js";
import { SeriesStore } from "../chart/series_store.js";
import { Derived } from "../chart/server_series.js";
import { byId, setShown } from "../core/dom.js";
import { firstMetrics, firstRequests } from "../core/first_requests.js";
import { statusFacts } from "../core/kinds.js";
import { drawAgain, drawParts } from "../core/parts.js";
import { pressed } from "../core/patch.js";
import { colorTheme } from "../core/theme.js";
import { WhenNear } from "../core/when_near.js";
import { OrderDialog } from "../dialogs/order_dialog.js";
import { ordersMenu } from "../dialogs/orders_menu.js";
import { RollbackDialog } from "../dialogs/rollback_dialog.js";
import { TaskDialog } from "../dialogs/task_dialog.js";
import { ExpressionFeed } from "../metrics/expression_feed.js";
import { Headline } from "../metrics/headline.js";
import { MetricSections } from "../metrics/metric_sections.js";
import { GpuMap } from "../ranks/gpu_map.js";
import { Health } from "../ranks/health.js";
import { RankGrid } from "../ranks/rank_grid.js";
import { actions } from "./actions.js";
import { Asked } from "./asked.js";
import { AutopilotPanel } from "./autopilot.js";
import { Detectors } from "./detectors.js";
import { drawCommandStrip, drawHeader } from "./header.js";
import { drawKpis, median } from "./kpis.js";
import { drawLineage, forgetLineage } from "./lineage.js";
import { MixtureCurves } from "./mixture.js";

import { Output } from "./output.js";
import { RollbackCosts } from "./rollback_cost.js";
import { Feed } from "./run_feed.js";
import { news } from "./run_news.js";
import { drawCheckpoints, drawIncidents, forgetRail } from "./sidebar.js";
import { StorageLine } from "./storage_line.js";
import { View } from "./view_state.js";
import { drawBlind } from "./visibility_gaps.js";
import { drawWaiting } from "./waiting.js";
import { Watched } from "./watched.js";

/** Regions other than charts are brought up to date this often at most. */
const TICK_MS = 250;
/** Ages change each second, those of a run that has ended are minutes and days. */
const BEATS = 1000 / TICK_MS;
/** Ranks and GPUs: less than the second in which agents speak, so that a word never waits for long. */
const HEALTH_MS = 700;

export class RunPage {
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
    this.focus = focusChart(byId("chart-focus"), config, this);
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
  /** What is never evicted: the large chart's, the panels' and the strip's. */
  alwaysKept() {
    return [...firstRequests.fine, ...firstMetrics(this.names), this.metric(), this.below()];
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
}

Object.assign(RunPage.prototype, actions, news);
