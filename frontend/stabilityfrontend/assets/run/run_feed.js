// Where the run page's data come from: the charts' points first, then what stands beside them, then the live feed. After
// an outage only what is new is asked for; more detail is fetched where people zoom.

import { ApiError, api } from "../core/api.js";
import { byId, h, patch, setText } from "../core/dom.js";
import { firstMetrics, firstRequests } from "../core/first_requests.js";
import { duration, errorText, sentence } from "../core/format.js";
import { Live } from "../core/live.js";
import { boardUrl } from "../core/route.js";
import { Annotations } from "./annotations.js";
import { Proposals } from "./proposals.js";

// -- A run's page before its job has said a word: what it waits for, and for how long. It turns into the run by itself.

/** Longer than imports, a model's loading and a launcher take together: then something may be wrong. */
const LONG_S = 120;
/** Between two looks at first, and after that time. */
const [SOON_MS, LATER_MS] = [700, 4000];

const began = new WeakMap();
const waited = (page) => (Date.now() - began.get(page)) / 1000;

/** How long a page that waits for its run rests before it looks again, milliseconds. */
const waitingMs = (page) => (began.has(page) && waited(page) > LONG_S ? LATER_MS : SOON_MS);

/** Say what the page waits for, or why the run can't be shown; `error` is what the server said. */
export function drawWaiting(page, error) {
  if (!began.has(page)) began.set(page, Date.now());
  const place = byId("run-empty");
  if (error.status !== 404) {
    patch(
      place,
      h(
        "div.empty.panel",
        h("h2", "This run can't be shown"),
        h("p", errorText(error)),
        h("p", h("a", { href: "/" }, "All runs")),
      ),
    );
    return;
  }
  document.title = `${page.id} · waiting`;
  const long = waited(page) > LONG_S;
  const key = `${error.code} ${long}`;
  if (place.dataset.key !== key || !place.firstChild) patch(place, panel(page, error.code === "not_yet", long));
  place.dataset.key = key;
  setText(place.querySelector(".waited"), duration(Math.max(1, Math.round(waited(page)))).replace(".0", ""));
}

function panel(page, connected, long) {
  const stage = (state, ...words) => h("li", { class: state }, ...words);
  return h(
    "div.empty.panel.waiting",
    h("h2", "Waiting for the job"),
    h("p", "Run ", h("code", page.id), " has not begun here yet. This page turns into the run by itself."),
    h(
      "ol.waits",
      stage("done", "The server is up"),
      stage(
        connected ? "done" : "now",
        "The job starts: imports, model, data. It calls ",
        h("code", "stabilityclient.init()"),
        ", and its agent connects to this server",
      ),
      stage(connected ? "now" : "", "The first step arrives"),
    ),
    long
      ? h(
          "p",
          "That is longer than most jobs take. Is the run's id right? Does the job have ",
          h("code", `STABILITY_URL=${boardUrl()}`),
          ", or another address under which its node reaches this server? On that node ",
          h("code", "stabilityboard doctor"),
          " says what is in the way.",
        )
      : null,
    h("p.sub", "Waiting for ", h("span.waited")),
    h("p", h("a", { href: "/" }, "All runs")),
  );
}

/** Commands and incidents kept. */
const KEPT = 500;
/** Live messages held back while a fetch is under way; more than that and it is fetched again. */
const HELD = 2000;
/** Between two tries to fetch everything, at least. */
const AGAIN_MS = 1500;
/** Steps behind a sparkline of the strip. */
const TAIL_STEPS = 200;
/** Without a live feed by then, the lists are fetched all the same. */
const LATE_MS = 2500;

/** Whether stream id `a` comes before `b`. */
function before(a, b) {
  const [left, right] = [a, b].map((cursor) => String(cursor).split("-").map(Number));
  return left[0] < right[0] || (left[0] === right[0] && (left[1] || 0) < (right[1] || 0));
}

/** Names of metrics in one answer. */
const NAMES_A_PAGE = 5000;

export class Feed {
  constructor(page) {
    this.page = page;
    this.notes = new Annotations(page);
    this.proposals = new Proposals(page);
    this.held = null;
    this.syncing = false;
    // The stream id up to which every point is here; null before the first answer.
    this.cursor = null;
    // Answers said that older points are missing in them.
    this.partial = false;
    // The live feed begins where the charts' points end, so that nothing falls between and nothing waits for it.
    const begin = new Promise((resolve) => (this.begin = resolve));
    this.said = new Promise((resolve) => (this.hello = () => resolve(null)));
    setTimeout(() => this.hello(), LATE_MS); // a proxy that lets no WebSocket through: show what there is
    this.live = new Live(
      page.id,
      (message) => this.onMessage(message),
      (state) => {
        page.onState(state);
        // No feed: ask over HTTP, which also says why (no key, no such run, nobody there).
        if (state === "away") this.hello();
        if (state === "away" && !page.ready && !this.syncing) this.sync();
      },
      begin,
    );
    this.sync();
  }

  /**
   * Fetch what is not here: at first everything, later what came after the cursor. The lists beside the points are
   * asked for when the live feed has begun; its messages wait meanwhile, so that nothing falls between the two.
   */
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
      const run = await api.run(page.id);
      if (!run.run_id) throw new ApiError(404, "not_yet", "The run has only just connected.");
      if (page.gone) return;
      page.setRun(run);
      if (run.metric_count > run.metrics.length) this.fetchNames(run.metrics.length);
      await this.fetchPoints();
      this.begin(this.cursor);
      this.live.subscribe(this.cursor);
      await this.said;
      if (page.gone) return;
      await this.fetchLists();
      if (page.gone) return;
      page.ready = true;
      const { held } = this;
      this.held = null;
      for (const message of held) this.apply(message);
      page.store.relook();
      page.dirtyAll();
      page.board.markAll();
      page.onTick();
      page.onSynced();
    } catch (error) {
      if (page.gone) return;
      this.begin(null);
      this.held = null;
      this.unsynced = true;
      // Not there (yet), or no id at all; a job's address may be opened before its first point.
      // One that the server fails at has nothing to show.
      if ((error.status >= 400 && error.status < 500) || error.code === "failed") page.missing(error);
      else page.trouble = sentence(error.message);
    } finally {
      this.syncing = false;
      // Too much came meanwhile, a reset came, or the server was away: once more, not at once.
      if (this.unsynced && !page.gone)
        this.again = setTimeout(() => this.sync(), (page.lost ? waitingMs(page) : AGAIN_MS) * (1 + Math.random()));
    }
  }

  /** The names of metrics beyond those that come with the run, page by page. @param {number | null} after */
  async fetchNames(after) {
    const { page } = this;
    try {
      while (after !== null && !page.gone) {
        const answer = await api.metrics(page.id, after, NAMES_A_PAGE);
        if (!page.gone) page.setNames(answer.metrics);
        after = answer.next;
      }
    } catch {
      // They are asked for again when the page is in touch again.
    }
  }

  /** Points of the charts: the large chart's are drawn when they are there, the others follow. */
  async fetchPoints() {
    const { page } = this;
    const { store } = page;
    const since = page.charted && !this.partial ? this.cursor : null;
    const known = since ? identity(store.segments) : "";
    const asked = api.segments(page.id);
    if (since) {
      const { head, segments, cursor } = await asked;
      page.setSegments(head, segments);
      // A restart that was taken back moves points from one segment to another: then what is here is wrong.
      if (!identity(store.segments).startsWith(known.slice(0, -1))) return this.fetchWhole(asked);
      const names = [...store.metrics].filter(([, metric]) => metric.asked).map(([name]) => name);
      const answers = await api.series(page.id, names, {
        view: "all",
        points: firstRequests.points.fine,
        cursor: since,
      });
      if (page.gone) return null;
      if (answers.length) this.cursor = cursor;
      this.take(answers, firstRequests.points.panel);
      return this.show();
    }
    return this.fetchWhole(asked);
  }

  async fetchWhole(asked) {
    const { page } = this;
    const { store } = page;
    const { fine: usual, points } = firstRequests;
    if (this.partial) page.storage.clearProblems();
    this.partial = false;
    // The same requests as preload.js makes: their answers may be here already.
    const fine = api.series(page.id, usual, { view: "all", points: points.fine });
    const rest = page.headline.fetch().then(() => {
      const named = firstMetrics(page.names).filter((name) => !usual.includes(name));
      const others = [...store.metrics.keys()].filter(
        (name) =>
          !usual.includes(name) && !named.includes(name) && (page.nameSet.has(name) || name.startsWith("expr:")),
      );
      store.pin(named);
      for (const name of [...named, ...others]) store.want(name); // a chart that comes into sight asks for none of them
      return Promise.all(
        [named, others].map((names) => api.series(page.id, names, { view: "all", points: points.panel })),
      );
    });
    rest.catch(() => {}); // awaited below, unless the first answer is bad news already
    const [{ head, segments, cursor }, first] = await Promise.all([asked, fine]);
    if (page.gone) return;
    this.cursor = cursor;
    page.setSegments(head, segments);
    store.pin(usual.filter((name) => page.names.includes(name)));
    this.take(first, points.fine);
    if (page.run?.loss_metric && usual.includes(page.run.loss_metric)) this.show();
    const large = await rest.then(
      () => [page.metric(), page.below()].filter((name) => name && !usual.includes(name) && page.nameSet.has(name)),
      () => [],
    );
    if (large.length) {
      store.pin(large);
      this.take(await api.series(page.id, large, { view: "all", points: points.fine }), points.fine);
    }
    if (page.gone) return;
    this.show();
    for (const answers of await rest) if (!page.gone) this.take(answers, points.panel);
    if (!page.gone) this.show();
  }

  /** Merge answers; the oldest of their cursors and the segments' is how far all is here. */
  take(answers, points) {
    const { page } = this;
    for (const answer of answers) {
      page.store.take(answer, points);
      if (answer.cursor && (this.cursor === null || before(answer.cursor, this.cursor))) this.cursor = answer.cursor;
      if (!answer.problems?.length) continue;
      this.partial = true; // what is missing may be there at the next sync
      page.storage.addProblems(answer.problems);
    }
  }

  show() {
    const { page } = this;
    if (!page.charted) page.derived.change();
    page.charted = true;
    page.store.relook();
    page.dirtyAll();
    page.board.markAll();
  }

  /** The newest steps one by one, for the strip: what is here may be each bucket's extremes only. */
  async fetchTail() {
    const { page } = this;
    const names = firstRequests.strip.filter((name) => page.store.isThinned(name));
    const last = page.lastStep();
    if (!names.length || last === null) return;
    const answers = await api.series(page.id, names, {
      view: "effective",
      start: Math.max(0, last - TAIL_STEPS),
      points: firstRequests.points.fine,
    });
    if (!page.gone) for (const answer of answers) page.store.merge(answer.series);
  }

  /** What stands beside the charts. */
  async fetchLists() {
    const { page } = this;
    const tail = this.fetchTail();
    this.notes.fetch(); // nothing waits for them
    const [incidents, checkpoints, commands] = await Promise.all([
      api.incidents(page.id),
      api.checkpoints(page.id),
      api.commands(page.id),
      tail,
    ]);
    if (page.gone) return;
    page.incidentMap = new Map(incidents.incidents.slice(0, KEPT).map((one) => [one.incident_id, one]));
    page.checkpoints = checkpoints.checkpoints.slice(0, KEPT);
    this.proposals.fill(commands.proposals);
    page.commands = new Map(commands.commands.slice(0, KEPT).map((one) => [one.command_id, one]));
  }

  /** All agents as they are; what the feed says of them meanwhile holds over that. */
  async fetchHealth() {
    const { page } = this;
    // One at a time: of two, the later answer would take back what the feed said since the earlier one.
    this.healthAsked = true;
    if (this.heldHealth) return;
    while (this.healthAsked && !page.gone) {
      this.healthAsked = false;
      const held = (this.heldHealth = /** @type {any[]} */ ([]));
      try {
        const answer = await api.health(page.id);
        if (page.gone) return;
        page.health.fill(answer);
        page.dirty("ranks", "gpus");
      } catch {
        // Asked again when the page is in touch again.
      } finally {
        this.heldHealth = null;
      }
      for (const message of held) page.health.take(message);
    }
  }

  /** Fetch metrics that came into sight and have no history here yet. */
  async fetchWanted(names) {
    const { page } = this;
    if (!page.charted) return;
    const missing = names.filter((name) => page.store.want(name));
    if (!missing.length) return;
    const points = firstRequests.points.panel;
    try {
      const answers = await api.series(page.id, missing, { view: "all", points });
      if (page.gone) return;
      for (const answer of answers) page.store.fill(answer.names, answer.series, points, answer.level);
      page.board.markAll();
    } catch {
      page.store.unask(missing); // the next time that they come into sight they are asked for again
    }
  }

  /** Fetch a zoomed window in full detail, where what is here was thinned. */
  async fetchDetail(range) {
    const { page } = this;
    const names = [
      ...new Set([...page.board.charts.values()].filter((chart) => chart.visible).flatMap((chart) => chart.metrics())),
    ].filter((name) => page.store.isThinned(name));
    if (!names.length) return;
    const span = range[1] - range[0];
    const start = Math.max(0, Math.floor(range[0] - 0.1 * span));
    const stop = Math.ceil(range[1] + 0.1 * span);
    try {
      const answers = await api.series(page.id, names, { view: "all", start, stop, points: firstRequests.points.fine });
      if (page.gone || page.zoom.range !== range) return;
      const series = answers.flatMap((answer) => answer.series);
      for (const name of names)
        page.store.setDetail(
          name,
          start,
          stop,
          series.filter((one) => one.metric === name),
        );
      page.board.markAll();
    } catch {
      // The thinned points stay on the screen.
    }
  }

  onMessage(message) {
    const { page } = this;
    if (message.type === "hello") {
      this.hello();
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
    // What the answers held already comes again and changes nothing; the cursor never goes back.
    if (message.cursor && this.cursor !== null && before(this.cursor, message.cursor)) this.cursor = message.cursor;
    if (message.type === "points") page.addPoints(message);
    else if (message.type === "segments") {
      // Only those that changed come: the later word about a segment stands.
      page.setSegments(message.head, [...page.store.segments.values(), ...message.segments]);
      this.notes.soon();
      page.store.relook();
      page.board.markAll();
      page.dirtyAll();
    } else if (message.type === "incident") page.setIncident(message.incident);
    else if (message.type === "detectors") page.detectors.set(message.detectors);
    else if (message.type === "autopilot") page.autopilot.set(message.autopilot);
    else if (message.type === "annotation") this.notes.take(message);
    else if (message.type === "proposal") this.proposals.take(message.proposal);
    else if (message.type === "command") page.setCommand(message.command);
    else if (message.type === "checkpoint") page.setCheckpoint(message.checkpoint);
    else if (message.type === "health") {
      if (this.heldHealth) this.heldHealth.push(message);
      else page.health.take(message);
      page.dirty("ranks");
    } else if (message.type === "run") page.setRun(message.run);
  }

  close() {
    clearTimeout(this.again);
    for (const part of [this.notes, this.proposals]) part.close();
    this.live.close();
  }
}

/** What must not change for points to stay in the segments that they are in. */
function identity(segments) {
  return JSON.stringify([...segments.values()].map((one) => [one.id, one.key, Boolean(one.undone)]));
}
