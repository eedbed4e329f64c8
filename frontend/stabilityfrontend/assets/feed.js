// Where the run page's data come from: one fetch of everything, then the live feed; more detail where people zoom.
(function () {
  "use strict";
  const S = (window.stability = window.stability || {});
  /** Commands and incidents kept. */
  const KEPT = 500;
  /** Live messages held back while the first fetch is under way; more than that and it is fetched again. */
  const HELD = 2000;
  /** Agents kept: they come and go with restarts. */
  const AGENTS = 256;
  /** Between two tries to fetch everything, at least. */
  const AGAIN_MS = 1500;
  /** The same for a run that nobody knows. */
  const MISSING_MS = 4000;

  class Feed {
    constructor(page) {
      this.page = page;
      this.held = null;
      this.syncing = false;
      this.live = new S.Live(page.id, (message) => this.onMessage(message), (state) => {
        page.onState(state);
        // No feed: ask over HTTP, which also says why (no key, no such run, nobody there).
        if (state === "away" && !page.ready && !this.syncing) this.sync();
      });
      // Without a feed (a proxy that lets no WebSocket through) the page still shows what there is.
      this.late = setTimeout(() => !page.ready && this.sync(), 2500);
    }

    /** Fetch everything; live messages wait meanwhile, so that nothing falls between the two. */
    async sync() {
      const { page } = this;
      if (this.syncing) {
        this.unsynced = true;
        return;
      }
      this.syncing = true;
      this.unsynced = false;
      this.held = [];
      clearTimeout(this.again);
      try {
        // First alone: an id that nobody knows is one wrong address, not six.
        const run = await S.api.run(page.id);
        if (!run.run_id) throw new S.ApiError(404, "not_yet", "The run has only just said hello.");
        page.setRun(run);
        const [segments, incidents, checkpoints, health, commands] = await Promise.all([
          S.api.segments(page.id),
          S.api.incidents(page.id),
          S.api.checkpoints(page.id),
          S.api.health(page.id),
          S.api.commands(page.id),
          this.fetchSeries(),
        ]);
        if (page.gone) return;
        page.setSegments(segments.head, segments.segments);
        page.incidentMap = new Map(incidents.incidents.slice(0, KEPT).map((one) => [one.incident_id, one]));
        page.checkpoints = checkpoints.checkpoints.slice(0, KEPT);
        page.health = new Map(health.agents.slice(0, AGENTS).map((agent) => [agent.agent, agent]));
        page.commands = new Map(commands.commands.slice(0, KEPT).map((one) => [one.command_id, one]));
        page.ready = true;
        const { held } = this;
        this.held = null;
        for (const message of held) this.apply(message);
        page.store.relook();
        page.dirtyAll();
        page.board.markAll();
        page.onTick();
      } catch (error) {
        if (page.gone) return;
        this.held = null;
        this.unsynced = true;
        // Not there (yet), or no id at all; a job's address may be opened before its first point.
        if (error.status >= 400 && error.status < 500) page.missing(error);
        else page.trouble = error.message;
      } finally {
        this.syncing = false;
        // Too much came meanwhile, a reset came, or the server was away: once more, not at once.
        if (this.unsynced && !page.gone) this.again = setTimeout(() => this.sync(), (page.lost ? MISSING_MS : AGAIN_MS) * (1 + Math.random()));
      }
    }

    /** Metrics whose points are kept all the time: the focus chart, the panels, the strip, GPUs. */
    pinned() {
      const { page } = this;
      const named = page.panels.flatMap(({ panel }) => S.matching(panel.metrics, page.names));
      const gpus = page.names.filter((name) => name.startsWith("gpu/")).slice(0, 64);
      return [...new Set([page.metric(), "grad_norm", "tokens_per_s", "step_time_s", "ratio/image_text", ...named.slice(0, 80), ...gpus])];
    }

    async fetchSeries() {
      const { page } = this;
      const { limits } = page.config;
      const fine = [page.metric(), "grad_norm"].filter((name) => page.names.includes(name));
      const pinned = this.pinned();
      page.store.pin(pinned);
      // After a reset also what people opened by hand, which the store still keeps.
      const kept = new Set([...pinned, ...page.store.metrics.keys()]);
      const rest = [...kept].filter((name) => !fine.includes(name) && page.names.includes(name));
      const ask = (names, points) => (names.length ? S.api.series(page.id, names, { view: "all", points }) : []);
      const [focus, others] = await Promise.all([ask(fine, limits.focus_points), ask(rest, limits.panel_points)]);
      if (page.gone) return;
      page.store.clear();
      page.store.fill(fine, focus, limits.focus_points);
      page.store.fill(rest, others, limits.panel_points);
    }

    /** Fetch metrics that came into sight and have no history here yet. */
    async fetchWanted(names) {
      const { page } = this;
      if (!page.ready) return;
      const missing = names.filter((name) => page.store.want(name));
      if (!missing.length) return;
      const points = page.config.limits.panel_points;
      try {
        const series = await S.api.series(page.id, missing, { view: "all", points });
        if (page.gone) return;
        page.store.fill(missing, series, points);
        page.dirty("cards");
        page.board.markAll();
      } catch (error) {
        page.store.unask(missing); // the next time that they come into sight they are asked for again
      }
    }

    /** Fetch a zoomed window in full detail, where what is here was thinned. */
    async fetchDetail(range) {
      const { page } = this;
      const names = [...new Set([...page.board.charts.values()].filter((chart) => chart.visible).flatMap((chart) => chart.metrics()))].filter((name) => page.store.isThinned(name));
      if (!names.length) return;
      const span = range[1] - range[0];
      const start = Math.max(0, Math.floor(range[0] - 0.1 * span));
      const stop = Math.ceil(range[1] + 0.1 * span);
      try {
        const series = await S.api.series(page.id, names, { view: "all", start, stop, points: page.config.limits.focus_points });
        if (page.gone || page.zoom.range !== range) return;
        for (const name of names) page.store.setDetail(name, start, stop, series.filter((one) => one.metric === name));
        page.board.markAll();
      } catch (error) {
        // The thinned points stay on the screen.
      }
    }

    onMessage(message) {
      const { page } = this;
      if (message.type === "hello") {
        if (!this.syncing && (!page.ready || this.unsynced || message.afterLoss)) this.sync();
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
      if (!page.ready) {
        this.unsynced = true;
        return;
      }
      this.apply(message);
    }

    apply(message) {
      const { page } = this;
      if (message.type === "points") page.addPoints(message);
      else if (message.type === "segments") {
        page.setSegments(message.head, message.segments);
        page.store.relook();
        page.board.markAll();
        page.dirtyAll();
      } else if (message.type === "incident") page.setIncident(message.incident);
      else if (message.type === "command") page.setCommand(message.command);
      else if (message.type === "checkpoint") page.setCheckpoint(message.checkpoint);
      else if (message.type === "health") {
        page.health.set(message.agent.agent, message.agent);
        if (page.health.size > AGENTS) page.health.delete(page.health.keys().next().value);
        page.dirty("ranks");
      } else if (message.type === "run") page.setRun(message.run);
    }

    close() {
      clearTimeout(this.late);
      clearTimeout(this.again);
      this.live.close();
    }
  }

  S.Feed = Feed;
})();
