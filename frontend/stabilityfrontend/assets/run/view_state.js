// How the run's charts are looked at: which part of the tree, which x axis, how smooth, which steps. The address of the
// page remembers it.

import { choice, remember, smoothing } from "../core/controls.js";
import { byId, segmented, setShown, setText, setTitle, toast } from "../core/dom.js";
import { viewOf } from "../core/first_requests.js";
import { formatCount } from "../core/format.js";
import { TOKENS } from "../navigation/chart_words.js";

/** Segments and metrics offered in the lists. */
const SEGMENTS = 200;
const METRICS = 300;

const KINDS = { effective: "Learned steps", all: "All segments" };

export class View {
  /** `page`: zoom, store, names, forkList, lastStep(), redraw(), focus. */
  constructor(page) {
    this.page = page;
    const query = new URLSearchParams(location.search);
    const newest = Number(query.get("newest"));
    const view = query.get("view") || "";
    this.settings = {
      ...viewOf(location.search),
      view: view === "all" || /^segment:\d+$/.test(view) ? view : "effective",
      log: query.get("scale") === "log",
      ghosts: query.get("ghosts") !== "off",
      newest: newest > 0 ? newest : 0,
    };
    const [from, to] = ["from", "to"].map((key) => (query.has(key) ? Number(query.get(key)) : NaN));
    if (to > from) page.zoom.range = [from, to];
    this.listen();
  }

  listen() {
    const { page, settings } = this;
    const changed = () => {
      this.remember();
      page.redraw();
    };
    const setScale = segmented(byId("focus-scale"), (value) => {
      settings.log = value === "log";
      changed();
    });
    setScale(settings.log ? "log" : "linear", true);
    const setWindow = segmented(byId("focus-window"), (value) => {
      settings.newest = Number(value);
      page.zoom.set(null);
    });
    setWindow(String(settings.newest), true);
    const ghosts = byId("focus-ghosts");
    const drawGhosts = () => {
      ghosts.classList.toggle("on", settings.ghosts);
      ghosts.setAttribute("aria-pressed", String(settings.ghosts));
    };
    ghosts.addEventListener("click", () => {
      settings.ghosts = !settings.ghosts;
      drawGhosts();
      changed();
    });
    drawGhosts();
    this.part = choice(
      byId("focus-view"),
      "view-part",
      "What is shown",
      (value) => {
        settings.view = value;
        changed();
        this.showSegment();
        this.draw();
      },
      true,
    );
    this.axis = choice(byId("focus-x"), "view-x", "X axis", (value) => {
      settings.x = value;
      page.focus.localRange = null;
      page.derived.change();
      changed();
    });
    this.setSmooth = smoothing(byId("focus-smooth"), "view-smooth", (weight) => {
      settings.smooth = weight;
      page.derived.change();
      changed();
    });
    this.setSmooth(settings.smooth);
    byId("zoom-reset").addEventListener("click", () => page.resetZoom());
    setShown(byId("zoom-reset"), page.zoom.range !== null);
  }

  /** The server can't make these lines: back to what it can. */
  giveUp(words) {
    toast(`The chart stays as it was: ${words}`, "warning");
    Object.assign(this.settings, { x: "step", smooth: 0 });
    this.setSmooth?.(0);
    this.page.derived.clear();
    this.remember();
    this.page.redraw();
    this.draw();
  }

  remember() {
    const { view, x, smooth, log, ghosts, newest } = this.settings;
    const { range } = this.page.zoom;
    remember({
      view: view === "effective" ? null : view,
      x: x === "step" ? null : x,
      smooth: smooth || null,
      scale: log ? "log" : null,
      ghosts: ghosts ? null : "off",
      newest: newest || null,
      from: range ? Math.floor(range[0]) : null,
      to: range ? Math.ceil(range[1]) : null,
      ...this.page.metrics.address(),
    });
  }

  /** The segment that is shown alone, or null. */
  segment() {
    const { view } = this.settings;
    return view.startsWith("segment:") ? Number(view.slice(8)) : null;
  }

  /** Go to the steps of the segment that is shown alone, and back when it no longer is. */
  showSegment() {
    const { page } = this;
    const id = this.segment();
    const segment = id === null ? null : page.store.segments.get(id);
    if (!segment) {
      if (page.zoom.range && page.zoom.range === this.segmentZoom) page.resetZoom();
      return;
    }
    const first = segment.first_step ?? (segment.fork_step ?? -1) + 1;
    const last = Math.max(
      id === page.store.head ? (page.lastStep() ?? first) : (segment.last_step ?? first),
      first + 10,
    );
    const air = 0.02 * (last - first);
    this.segmentZoom = [Math.max(0, first - air), last + air];
    page.zoom.set(this.segmentZoom);
  }

  /** Bring the lists and the title up to date. */
  draw() {
    const { page, settings } = this;
    const labels = new Map(page.forkList.map((fork) => [fork.segment.id, fork.label]));
    const name = (id) => labels.get(id) || (id === 0 ? "Start" : `Segment ${id}`);
    const segments = [...page.store.segments.values()].filter((one) => !one.undone).sort((a, b) => b.id - a.id);
    /** @type {{value: string, text: string, group?: string}[]} */
    const parts = Object.entries(KINDS).map(([value, text]) => ({ value, text }));
    for (const one of segments.slice(0, SEGMENTS)) {
      const from = one.first_step ?? (one.fork_step === null || one.fork_step === undefined ? 0 : one.fork_step + 1);
      parts.push({
        value: `segment:${one.id}`,
        text: `${name(one.id)} · from ${formatCount(from)}${one.id === page.store.head ? " · now" : ""}`,
        group: "One segment",
      });
    }
    if (!parts.some((one) => one.value === settings.view))
      parts.push({ value: settings.view, text: settings.view.replace(":", " ") });
    this.part?.options(parts, settings.view);
    const tokens = page.names.find((one) => TOKENS.test(one));
    const axes = [
      { value: "step", text: "Step" },
      { value: "time", text: "Wall time" },
      ...(tokens ? [{ value: tokens, text: tokens === "tokens" ? "Tokens" : `Tokens (${tokens})` }] : []),
    ];
    for (const one of page.names.filter((metric) => metric !== tokens).slice(0, METRICS))
      axes.push({ value: one, text: one, group: "Any logged metric" });
    if (!axes.some((one) => one.value === settings.x)) axes.push({ value: settings.x, text: settings.x });
    this.axis?.options(axes, settings.x);
    const alone = this.segment();
    const metric = byId("focus-metric");
    setText(metric, [page.metric(), page.hasGrad() ? page.below() : ""].filter((one) => one.length > 9).join(" · "));
    setTitle(metric, metric?.textContent || "");
    setText(byId("focus-title"), alone === null ? KINDS[settings.view] : `Segment ${name(alone)}`);
  }

  /** The shared range of steps: the zoom, else the newest steps asked for, else everything. */
  stepRange() {
    const { page, settings } = this;
    if (page.zoom.range) return page.zoom.range;
    const drawn = [page.metric(), ...page.headline.first, ...page.metrics.names()];
    const extent = page.store.extent(drawn.filter((name) => !(page.run?.own_steps || []).includes(name)));
    if (!extent) return [0, 100];
    const [low, high] = extent;
    const last = page.lastStep();
    const from = settings.newest && last !== null ? Math.max(low, last - settings.newest) : low;
    const to = settings.newest && last !== null ? Math.min(high, Math.max(last, from + 1)) : high;
    const span = Math.max(10, to - from);
    return [from - 0.01 * span, from + span * 1.03];
  }

  /** Steps that have to be in what is drawn, or null for everything. */
  window() {
    return this.page.zoom.range || this.settings.newest ? this.stepRange() : null;
  }
}
