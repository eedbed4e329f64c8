// The run page: fetches what there is, then lives on the feed. Regions are redrawn a few times a second, charts by the
// Board, and nothing else happens per message but writing it down.
(function () {
  "use strict";
  const S = (window.stability = window.stability || {});
  /** Regions other than charts are brought up to date this often at most. */
  const TICK_MS = 250;
  /** Between two tries to load plotly.js. */
  const PLOTLY_AGAIN_MS = 3000;
  /** Incidents and checkpoints kept. */
  const KEPT = 500;

  class RunPage {
    constructor(root, config) {
      this.root = root;
      this.id = root.dataset.run;
      this.config = config;
      this.store = new S.SeriesStore(config.limits);
      this.run = null;
      this.ready = false;
      this.checkpoints = [];
      this.incidentMap = new Map();
      this.commands = new Map();
      this.health = new Map();
      this.settings = { log: false, ghosts: true, newest: 0 };
      this.names = [];
      this.dirt = new Set();
      this.state = "connecting";
      this.latency = null;
      this.forkList = [];
      this.zoom = new S.Zoom();
      this.board = new S.Board(config, this.zoom);
      this.board.onDrawn = (shown) => this.onDrawn(shown);
      this.dialog = new S.RollbackDialog(this);
      this.makeCharts();
      this.cards = new S.Cards(this, config);
      this.listen();
      this.loadPlotly();
      this.feed = new S.Feed(this);
      this.live = this.feed.live;
      this.tick = setInterval(() => this.onTick(), TICK_MS);
    }

    /** Load plotly.js, again and again while the server is away: the large chart waits for it. */
    async loadPlotly() {
      try {
        await S.loadPlotly(this.config.plotly);
        if (!this.gone) this.board.markAll();
      } catch (error) {
        if (!this.gone) this.plotlyTimer = setTimeout(() => this.loadPlotly(), PLOTLY_AGAIN_MS);
      }
    }

    makeCharts() {
      this.focus = S.focusChart(S.byId("chart-focus"), this.config, this);
      this.board.add(this.focus);
      this.panels = [];
      for (const section of this.root.querySelectorAll("[data-panel]")) {
        const panel = JSON.parse(section.dataset.panel);
        const chart = S.panelChart(section.querySelector(".chart"), section.querySelector(".legend"), panel, this.config, this);
        this.panels.push({ panel, section, chart });
        section.hidden = true;
        this.board.add(chart);
      }
      S.fitPanels(this.root);
    }

    listen() {
      const redraw = () => {
        for (const chart of this.board.charts.values()) chart.forget();
        this.board.markAll();
      };
      this.unwatch = S.theme.watch(() => {
        redraw();
        this.dirtyAll();
      });
      S.segmented(S.byId("focus-scale"), (value) => {
        this.settings.log = value === "log";
        redraw();
      });
      this.chooseWindow = S.segmented(S.byId("focus-window"), (value) => {
        this.settings.newest = Number(value);
        this.zoom.set(null);
      });
      const ghosts = S.byId("focus-ghosts");
      ghosts.addEventListener("click", () => {
        this.settings.ghosts = !this.settings.ghosts;
        ghosts.classList.toggle("on", this.settings.ghosts);
        ghosts.setAttribute("aria-pressed", String(this.settings.ghosts));
        redraw();
      });
      S.byId("zoom-reset").addEventListener("click", () => this.zoom.set(null));
      S.byId("rollback-open").addEventListener("click", () => this.openRollback(null));
      S.byId("incidents-all").addEventListener("click", () => {
        this.allIncidents = !this.allIncidents;
        this.dirty("incidents");
      });
      this.zoom.listeners.add((range) => {
        S.show(S.byId("zoom-reset"), range !== null);
        redraw();
        clearTimeout(this.detailTimer);
        if (range) this.detailTimer = setTimeout(() => this.feed.fetchDetail(range), 180);
      });
    }

    // -- what the charts and regions ask for --------------------------------------------------------------------

    metrics() {
      return this.names;
    }
    metric() {
      return S.focusMetric(this.names);
    }
    focusMetric() {
      return this.metric();
    }
    hasGrad() {
      return this.names.includes("grad_norm") && this.metric() !== "grad_norm";
    }
    head() {
      return this.store.head;
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
      const logged = S.median(this.store.tail("step_time_s", 50).values);
      return logged || null;
    }
    incidents() {
      return [...this.incidentMap.values()].sort((a, b) => (b.state === "open") - (a.state === "open") || b.opened - a.opened);
    }
    view() {
      return { incidents: this.incidents(), segments: this.store.segments, forks: this.forkList, lastStep: this.lastStep() };
    }
    /** Checkpoints, newest first, each dead as soon as its branch is: the news of a fork is enough to know. */
    checkpointList() {
      return this.checkpoints.map((one) => (one.dead || one.step <= this.store.aliveUpTo(one.segment) ? one : { ...one, dead: true }));
    }
    /** Median value of a metric on the effective line in the 40 points before a step; null where there are none. */
    levelBefore(name, step) {
      const { steps, values } = this.store.tail(name, this.config.limits.entry_points);
      const to = S.lowerBound(steps, step);
      return S.median(values.slice(Math.max(0, to - 40), to));
    }
    discarded() {
      return this.forkList.reduce((sum, fork) => sum + fork.discarded, 0);
    }

    /** The shared x range: the zoom, else the newest steps asked for, else everything. */
    xRange() {
      if (this.zoom.range) return this.zoom.range;
      const extent = this.store.extent([this.metric(), "grad_norm", "step_time_s"]);
      if (!extent) return [0, 100];
      const [low, high] = extent;
      const from = this.settings.newest && this.lastStep() !== null ? Math.max(low, this.lastStep() - this.settings.newest) : low;
      const to = this.settings.newest && this.lastStep() !== null ? Math.min(high, Math.max(this.lastStep(), from + 1)) : high;
      const span = Math.max(10, to - from);
      return [from - 0.01 * span, from + span * 1.03];
    }

    /** Steps that have to be in what is drawn, or null for everything. */
    window() {
      return this.zoom.range || this.settings.newest ? this.xRange() : null;
    }

    // -- news ---------------------------------------------------------------------------------------------------

    onState(state) {
      this.state = state;
      this.dirty("pill");
    }

    addPoints(message) {
      const touched = new Set();
      let step = null;
      for (const block of message.blocks) {
        for (const name of this.store.append(block)) touched.add(name);
        step = block.steps[block.steps.length - 1];
      }
      const known = new Set(this.names);
      const fresh = [...touched].filter((name) => !known.has(name));
      if (fresh.length) this.setNames([...this.names, ...fresh]);
      this.board.markMetrics(touched, step, message.time);
      this.dirty("kpis", "header", "cards");
      if (!this.sawPoints) this.dirtyAll();
      this.sawPoints = true;
    }

    setNames(names) {
      const sorted = [...new Set(names)].sort();
      if (sorted.length === this.names.length && sorted.every((name, index) => name === this.names[index])) return;
      const fresh = sorted.filter((name) => !this.names.includes(name));
      this.names = sorted;
      for (const { panel, section } of this.panels) section.hidden = S.matching(panel.metrics, sorted).length === 0;
      S.fitPanels(this.root);
      this.cards.list();
      if (this.ready) {
        const pinned = this.feed.pinned().filter((name) => fresh.includes(name));
        this.store.pin(pinned);
        this.feed.fetchWanted(pinned);
        this.board.markAll();
      }
    }

    /** What the run says of itself; what did not change since the last message may be left out of it. */
    setRun(run) {
      this.run = { ...this.run, ...run };
      if (this.lost) this.setLost(false);
      this.setNames([...this.names, ...(run.metrics || [])]);
      document.title = `${this.name()} · ${this.run.status}`;
      this.dirty("header", "kpis");
    }

    setSegments(head, segments) {
      this.store.setSegments(head, segments);
      this.forkList = S.forks(this.store.segments);
      this.dirty("lineage", "kpis", "header");
    }

    setIncident(incident) {
      const known = this.incidentMap.get(incident.incident_id);
      if (known && known.version > incident.version) return;
      this.incidentMap.set(incident.incident_id, incident);
      if (this.incidentMap.size > KEPT) this.incidentMap.delete([...this.incidentMap.values()].sort((a, b) => a.opened - b.opened)[0].incident_id);
      this.board.markAll();
      this.dirty("incidents", "kpis");
    }

    setCommand(command) {
      const known = this.commands.get(command.command_id);
      if (known && (known.history || []).length > (command.history || []).length) return;
      this.commands.set(command.command_id, command);
      this.watched = command.command_id;
      this.dirty("command");
      this.dialog.refresh();
    }

    setCheckpoint(checkpoint) {
      this.checkpoints = [checkpoint, ...this.checkpoints.filter((one) => one.step !== checkpoint.step || one.segment !== checkpoint.segment || one.path !== checkpoint.path)]
        .sort((a, b) => b.step - a.step || b.time - a.time)
        .slice(0, KEPT);
      this.dirty("checkpoints", "kpis");
    }

    // -- what people do ------------------------------------------------------------------------------------------

    openRollback(incident) {
      this.dialog.show(incident);
    }

    async acknowledge(incident) {
      try {
        this.setIncident(await S.api.acknowledge(this.id, incident.incident_id));
      } catch (error) {
        S.toast(S.errorText(error), "warning");
      }
    }

    /** Take back a segment that was only inferred. The server says `reset` then, and everything is fetched anew. */
    async undo(segment, label) {
      const sure = await S.confirm({
        title: `${label ? `${label} was` : "This was"} not a rollback`,
        text: `Nobody declared it: the steps went back to ${S.count(segment.fork_step + 1)} and went on, so a restart was assumed. Taken back, the line goes on as it was before, and what came twice is left out of it. It can't be put back.`,
        action: "Take it back",
      });
      if (!sure || this.gone) return;
      try {
        await S.api.undo(this.id, segment.id);
        S.toast(`${label || "The restart"} is taken back.`, "good");
        if (this.state !== "live") this.feed.sync();
      } catch (error) {
        S.toast(S.errorText(error), "warning");
      }
    }

    zoomTo(incident) {
      if (incident.onset_step === null || incident.onset_step === undefined) return;
      const end = S.bandEnd(incident, this.store.segments, this.lastStep());
      const air = Math.max(20, 0.6 * (end - incident.onset_step));
      this.zoom.set([Math.max(0, incident.onset_step - air), end + air]);
      S.byId("focus-panel").scrollIntoView({ block: "nearest", behavior: "smooth" });
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
      this.dirty("header", "kpis", "incidents", "lineage", "checkpoints", "ranks", "command", "cards", "pill");
    }

    onTick() {
      // Between two pages the regions are gone a moment before we are told.
      if (this.gone || document.hidden || !this.root.isConnected) return;
      this.beats = (this.beats || 0) + 1;
      // Ages go on by themselves.
      if (this.beats % 4 === 0) this.dirty("header", "kpis", "incidents", "checkpoints", "ranks", "pill");
      const dirt = this.dirt;
      this.dirt = new Set();
      S.drawHeader(this);
      if (dirt.has("kpis")) S.drawKpis(this);
      if (dirt.has("incidents")) S.drawIncidents(this, this.allIncidents);
      if (dirt.has("lineage") || dirt.has("header")) S.drawLineage(this);
      if (dirt.has("checkpoints")) S.drawCheckpoints(this);
      if (dirt.has("ranks")) S.drawRanks(this);
      if (dirt.has("command")) S.drawCommandStrip(this);
      if (dirt.has("cards")) this.cards.draw();
      if (dirt.has("header")) this.dialog.refresh();
    }

    /** There is no such run; `error` is what the server said. */
    missing(error) {
      this.setLost(true);
      S.fill(
        S.byId("run-empty"),
        S.h(
          "div",
          { class: "empty panel" },
          S.h("h2", {}, "No run has this id"),
          S.h("p", {}, `“${this.id}” is not known to this server. If its job is just starting, stay: this page looks again every few seconds.`),
          error.status === 404 ? null : S.h("p", { class: "sub" }, error.message),
          S.h("p", {}, S.h("a", { href: "/" }, "All runs")),
        ),
      );
    }

    setLost(lost) {
      this.lost = lost;
      S.show(S.byId("run-main"), !lost);
      S.show(S.byId("kpis"), !lost);
      S.show(S.byId("run-empty"), lost);
    }

    close() {
      this.gone = true;
      clearInterval(this.tick);
      clearTimeout(this.detailTimer);
      clearTimeout(this.plotlyTimer);
      this.unwatch();
      this.feed.close();
      this.cards.close();
      this.board.close();
      this.dialog.destroy();
      S.forgetRail();
    }
  }

  S.RunPage = RunPage;
})();
