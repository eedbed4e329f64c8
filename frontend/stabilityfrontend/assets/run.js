// The run page: fetches what there is, then lives on the feed. Regions are redrawn a few times a second, charts by the
// Board, and nothing else happens per message but writing it down.
(function () {
  "use strict";
  const S = (window.stability = window.stability || {});
  /** Regions other than charts are brought up to date this often at most. */
  const TICK_MS = 250;
  /** Commands and incidents kept. */
  const KEPT = 500;
  /** Live messages held back while the first fetch is under way; more than that and it is fetched again. */
  const HELD = 2000;

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
      this.held = null;
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
      S.loadPlotly(config.plotly).then(
        () => !this.gone && this.board.markAll(),
        () => S.toast("The charts' library did not load; reload the page to try again.", "critical", 30),
      );
      this.live = new S.Live(this.id, (message) => this.onMessage(message), (state) => this.onState(state));
      // Without a feed (a proxy that lets no WebSocket through) the page still shows what there is.
      this.late = setTimeout(() => !this.ready && !this.syncing && this.sync(), 2500);
      this.tick = setInterval(() => this.onTick(), TICK_MS);
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
        if (range) this.detailTimer = setTimeout(() => this.fetchDetail(range), 180);
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

    // -- data ---------------------------------------------------------------------------------------------------

    /** Fetch everything; live messages wait meanwhile. */
    async sync() {
      this.syncing = true;
      this.held = [];
      try {
        const [run, segments, incidents, checkpoints, health, commands] = await Promise.all([
          S.api.run(this.id),
          S.api.segments(this.id),
          S.api.incidents(this.id),
          S.api.checkpoints(this.id),
          S.api.health(this.id),
          S.api.commands(this.id),
        ]);
        if (this.gone) return;
        this.setRun(run);
        this.setSegments(segments.head, segments.segments);
        this.incidentMap = new Map(incidents.incidents.slice(0, KEPT).map((one) => [one.incident_id, one]));
        this.checkpoints = checkpoints.checkpoints;
        this.health = new Map(health.agents.map((agent) => [agent.agent, agent]));
        this.commands = new Map(commands.commands.slice(0, KEPT).map((one) => [one.command_id, one]));
        await this.fetchSeries();
        if (this.gone) return;
        this.ready = true;
        const held = this.held;
        this.held = null;
        for (const message of held) this.apply(message);
        this.store.relook();
        this.dirtyAll();
        this.board.markAll();
        this.onTick();
      } catch (error) {
        if (this.gone) return;
        this.held = null;
        if (error.status === 404) this.missing();
        else {
          this.trouble = error.message;
          clearTimeout(this.again);
          this.again = setTimeout(() => !this.gone && this.sync(), 2000 + 2000 * Math.random());
        }
      } finally {
        this.syncing = false;
      }
    }

    /** Metrics whose points are kept all the time: the focus chart, the panels, the strip, GPUs. */
    pinned() {
      const named = this.panels.flatMap(({ panel }) => S.matching(panel.metrics, this.names));
      const gpus = this.names.filter((name) => name.startsWith("gpu/")).slice(0, 64);
      return [...new Set([this.metric(), "grad_norm", "tokens_per_s", "step_time_s", "ratio/image_text", ...named.slice(0, 80), ...gpus])];
    }

    async fetchSeries() {
      const { limits } = this.config;
      const fine = [this.metric(), "grad_norm"].filter((name) => this.names.includes(name));
      const pinned = this.pinned();
      this.store.pin(pinned);
      const rest = pinned.filter((name) => !fine.includes(name) && this.names.includes(name));
      const ask = (names, points) => (names.length ? S.api.series(this.id, names, { view: "all", points }) : []);
      const [focus, others] = await Promise.all([ask(fine, limits.focus_points), ask(rest, limits.panel_points)]);
      if (this.gone) return;
      this.store.clear();
      this.store.fill(fine, focus, limits.focus_points);
      this.store.fill(rest, others, limits.panel_points);
    }

    /** Fetch metrics that came into sight and have no history here yet. */
    async fetchWanted(names) {
      const missing = names.filter((name) => this.store.want(name));
      if (!missing.length || !this.ready) return;
      const points = this.config.limits.panel_points;
      try {
        const series = await S.api.series(this.id, missing, { view: "all", points });
        if (this.gone) return;
        this.store.fill(missing, series, points);
        this.dirty("cards");
        this.board.markAll();
      } catch (error) {
        // The next time that they come into sight they are asked for again.
      }
    }

    /** Fetch a zoomed window in full detail, where what is here was thinned. */
    async fetchDetail(range) {
      const names = [...new Set([...this.board.charts.values()].filter((chart) => chart.visible).flatMap((chart) => chart.metrics()))].filter((name) => this.store.isThinned(name));
      if (!names.length) return;
      const span = range[1] - range[0];
      const start = Math.max(0, Math.floor(range[0] - 0.1 * span));
      const stop = Math.ceil(range[1] + 0.1 * span);
      try {
        const series = await S.api.series(this.id, names, { view: "all", start, stop, points: this.config.limits.focus_points });
        if (this.gone || this.zoom.range !== range) return;
        for (const name of names) this.store.setDetail(name, start, stop, series.filter((one) => one.metric === name));
        this.board.markAll();
      } catch (error) {
        // The thinned points stay on the screen.
      }
    }

    onState(state) {
      this.state = state;
      this.dirty("pill");
    }

    onMessage(message) {
      if (message.type === "hello") {
        if (!this.ready && !this.syncing) this.sync();
        else if (this.ready && this.unsynced) this.sync();
        this.unsynced = false;
        return;
      }
      if (message.type === "reset") {
        this.sync();
        return;
      }
      if (this.held) {
        if (this.held.length >= HELD) this.unsynced = true;
        else this.held.push(message);
        return;
      }
      if (!this.ready) {
        this.unsynced = true;
        return;
      }
      this.apply(message);
    }

    apply(message) {
      if (message.type === "points") this.addPoints(message);
      else if (message.type === "segments") {
        this.setSegments(message.head, message.segments);
        this.store.relook();
        this.board.markAll();
        this.dirtyAll();
      } else if (message.type === "incident") this.setIncident(message.incident);
      else if (message.type === "command") this.setCommand(message.command);
      else if (message.type === "checkpoint") this.setCheckpoint(message.checkpoint);
      else if (message.type === "health") {
        this.health.set(message.agent.agent, message.agent);
        // Agents come and go with restarts: the newest 256 are enough.
        if (this.health.size > 256) this.health.delete(this.health.keys().next().value);
        this.dirty("ranks");
      } else if (message.type === "run") this.setRun(message.run);
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
        const pinned = this.pinned().filter((name) => fresh.includes(name));
        this.store.pin(pinned);
        this.fetchWanted(pinned);
        this.board.markAll();
      }
    }

    setRun(run) {
      this.run = run;
      this.setNames([...this.names, ...(run.metrics || [])]);
      document.title = `${this.name()} · ${run.status}`;
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
        S.toast(`${error.message} ${error.hint}`.trim(), "warning");
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
      if (this.gone || document.hidden) return;
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

    missing() {
      this.lost = true;
      S.show(S.byId("run-main"), false);
      S.show(S.byId("kpis"), false);
      S.fill(S.byId("run-empty"), S.h("div", { class: "empty panel" }, S.h("h2", {}, "No run has this id"), S.h("p", {}, `“${this.id}” is not known to this server. `, S.h("a", { href: "/" }, "All runs"))));
      S.show(S.byId("run-empty"), true);
    }

    close() {
      this.gone = true;
      for (const timer of [this.tick]) clearInterval(timer);
      for (const timer of [this.late, this.again, this.detailTimer]) clearTimeout(timer);
      this.unwatch();
      this.live.close();
      this.cards.close();
      this.board.close();
      this.dialog.destroy();
      S.forgetRail();
    }
  }

  S.RunPage = RunPage;
})();
