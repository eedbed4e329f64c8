// A page for a screen on the wall (`?wall=1`): it is read from four metres, nobody touches it, and it must say so when it
// can no longer be believed. One feed for all runs; views come one after the other.

import { api } from "../core/api.js";
import { stateOf } from "../core/appearance.js";
import { fill, h, setShown, setText } from "../core/dom.js";
import { duration } from "../core/format.js";
import { Live } from "../core/live.js";
import { patch } from "../core/patch.js";
import { colorTheme } from "../core/theme.js";
import { fleetView } from "./fleet_view.js";
import { runView } from "./run_view.js";
import { WallCurve } from "./wall_curve.js";
import { beyond, counted, QUESTIONS, runsOf } from "./wall_rows.js";
import { nextView, ROTATE_S, rotateSeconds, staleSeconds, viewsOf } from "./wall_state.js";

/** Milliseconds between two looks at the clock, and after which a silent server is asked whether it is there. */
const [TICK_MS, ASK_MS] = [500, 2000];
/** Between two looks at the advice of an incident, at what is shown first of a run, and at the counts of all runs. */
const [ADVICE_MS, HEADLINE_MS, COUNTS_MS] = [15000, 5000, 15000];
/** Nobody touched the screen for this long: views go on. */
const TOUCHED_MS = 60000;

/** Whether the address asks for the wall. */
export const wallWanted = () => new URLSearchParams(location.search).get("wall") === "1";

/** The address of the wall of a page. */
export const wallHref = (pathname) => `${pathname}?wall=1`;

export class WallPage {
  constructor(root, config) {
    this.config = config;
    this.own = root.dataset.run || "";
    const asked = rotateSeconds(new URLSearchParams(location.search).get("rotate"));
    this.rotate = asked ?? (this.own ? 0 : ROTATE_S);
    this.view = this.own;
    this.runs = new Map();
    /** How many runs have no row here. */
    this.beyond = { sick: 0, crashed: 0, well: 0, past: 0 };
    /** What is shown first of a run, by run. @type {Map<string, {headline: any, at: number}>} */
    this.headlines = new Map();
    /** Advice of incidents by id. @type {Map<string, {incident: any, at: number}>} */
    this.incidents = new Map();
    /** Curves that are seen, by run. @type {Map<string, WallCurve>} */
    this.curves = new Map();
    this.ready = false;
    this.answered = this.heardAt = Date.now();
    this.shownAt = this.asked = 0;
    this.touched = -TOUCHED_MS;
    this.band = h("div.wall-stale", { role: "alert", hidden: true });
    this.stage = h("div.wall-stage");
    this.foot = h("div.wall-foot");
    this.element = h("main.wall", { id: "wall" }, this.band, this.stage, this.foot);
    document.body.append(this.element);
    document.documentElement.dataset.wall = "";
    this.touch = () => {
      this.touched = performance.now();
    };
    for (const type of ["keydown", "pointerdown", "pointermove"]) window.addEventListener(type, this.touch);
    this.keys = (event) => this.onKey(event);
    window.addEventListener("keydown", this.keys);
    this.resized = () => this.draw();
    window.addEventListener("resize", this.resized);
    this.unwatch = colorTheme.watch(() => this.draw());
    this.visible = () => this.stayAwake();
    document.addEventListener("visibilitychange", this.visible);
    this.stayAwake();
    this.live = new Live(
      null,
      (message) => this.onMessage(message),
      (state) => {
        this.state = state;
      },
    );
    this.fetch();
    this.tick = setInterval(() => this.onTick(Date.now()), TICK_MS);
  }

  /** The screen stays on, where the browser can do that: not all can, and only on https or localhost. */
  async stayAwake() {
    if (document.hidden || !("wakeLock" in navigator)) return;
    try {
      this.lock = await navigator.wakeLock.request("screen");
    } catch {
      // The system said no (its battery is low): the screen's own setting decides.
    }
  }

  now() {
    return this.live.now();
  }

  async fetch() {
    clearTimeout(this.again);
    try {
      const { sick, broke, well } = QUESTIONS;
      const answers = await Promise.all([
        api.runTable(sick, 0, null),
        api.runTable(broke, 0, null),
        api.runTable(well, 0, null),
      ]);
      const runs = runsOf(answers, this.runs);
      // A run that is over has no row: the wall of one run shows it all the same.
      const own = this.own && !runs.has(this.own) ? await this.ownRun() : null;
      if (this.gone) return;
      if (own) runs.set(own.run_id, { ...own, alone: true });
      this.runs = runs;
      this.beyond = beyond(answers);
      this.ready = true;
      this.answered = Date.now();
      this.draw();
    } catch {
      if (!this.gone) this.again = setTimeout(() => this.fetch(), ASK_MS);
      return;
    }
    if (!this.gone) this.again = setTimeout(() => this.fetch(), COUNTS_MS);
  }

  async ownRun() {
    try {
      return await api.run(this.own);
    } catch (error) {
      if (error.status === 404) return null;
      throw error;
    }
  }

  onMessage(message) {
    this.heardAt = Date.now();
    if (message.type === "run") {
      const known = this.runs.get(message.run.run_id);
      const latest = { ...known?.latest, ...message.run.latest }; // that of a list has the loss alone
      this.runs.set(message.run.run_id, { ...known, ...message.run, latest });
      this.stale = true;
    } else if (message.type === "reset" || (message.type === "hello" && this.ready)) {
      this.incidents.clear();
      this.fetch();
      if (message.type === "hello" && message.afterLoss) this.takeNewVersion();
    }
  }

  /** A server that was away may have come back as another version: its scripts have other names then. */
  async takeNewVersion() {
    try {
      const text = await (await fetch(location.pathname, { cache: "no-store" })).text();
      const own = document.querySelector("link[rel=modulepreload]")?.getAttribute("href")?.split("/").pop();
      if (own && text.includes("modulepreload") && !text.includes(own)) location.reload();
    } catch {
      // The band says that it is away again.
    }
  }

  /** A worst open incident with its advice, as far as it is known; asked for where it is not. */
  incidentOf(run) {
    const id = stateOf(run).incident_id;
    if (!id) return null;
    const known = this.incidents.get(id);
    if (!known || Date.now() - known.at > ADVICE_MS) {
      this.incidents.set(id, { incident: known ? known.incident : null, at: Date.now() });
      api
        .incident(run.run_id, id)
        .then((incident) => {
          this.incidents.set(id, { incident, at: Date.now() });
          this.stale = true;
        })
        .catch(() => {}); // asked again by itself
    }
    return known ? known.incident : null;
  }

  /** What is shown first of a run, as the server chose it, with all newest values; null until it is known. */
  headlineOf(run) {
    const known = this.headlines.get(run.run_id);
    if (!known || Date.now() - known.at > HEADLINE_MS) {
      this.headlines.set(run.run_id, { headline: known ? known.headline : null, at: Date.now() });
      Promise.all([api.headlineOf(run.run_id), api.run(run.run_id)])
        .then(([headline, whole]) => {
          this.headlines.set(run.run_id, { headline, at: Date.now() });
          const shown = this.runs.get(run.run_id);
          if (shown) this.runs.set(run.run_id, { ...shown, ...whole });
        })
        .catch(() => {}); // asked again by itself
    }
    return known ? known.headline : null;
  }

  onKey(event) {
    if (event.key === "Escape") location.assign(location.pathname);
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    const views = this.views();
    const at = views.indexOf(this.view);
    this.show(views[(at + step + views.length) % views.length], performance.now());
  }

  heaps() {
    return counted(this.runs.values(), this.now(), this.beyond, this.own);
  }

  views() {
    return viewsOf(this.heaps(), this.own);
  }

  show(view, at) {
    this.view = view;
    this.shownAt = at;
    this.draw();
  }

  /** @param {number} now milliseconds of the wall clock @param {number} at those of the page */
  onTick(now, at = performance.now()) {
    if (this.gone) return;
    if (now - this.asked > ASK_MS && now - Math.max(this.heardAt, this.answered) > ASK_MS / 2) this.ask(now);
    const stale = staleSeconds({ heard: this.heardAt, answered: this.answered, open: this.state === "live" }, now);
    setShown(this.band, stale !== null);
    this.element.classList.toggle("stale", stale !== null);
    if (stale !== null)
      setText(this.band, `NOT LIVE: no word from the server for ${duration(stale)}. What you see is from before.`);
    const due = this.rotate > 0 && at - this.shownAt > 1000 * this.rotate && at - this.touched > TOUCHED_MS;
    if (this.ready && due) this.show(nextView(this.views(), this.view), at);
    else this.draw();
  }

  async ask(now) {
    this.asked = now;
    try {
      if (await api.healthy()) this.answered = Date.now();
    } catch {
      // The band counts.
    }
  }

  draw() {
    if (this.gone || !this.ready) return;
    const run = this.view ? this.runs.get(this.view) : null;
    this.element.dataset.view = run ? "run" : "fleet";
    patch(this.stage, run ? runView(this, run) : fleetView(this, this.heaps()));
    this.drawCurves();
    const views = this.views();
    const paused = this.rotate > 0 && performance.now() - this.touched < TOUCHED_MS;
    fill(
      this.foot,
      h("span", location.host),
      views.length > 1 && this.rotate > 0
        ? h(
            "span.wall-dots",
            { "aria-hidden": "true" },
            views.map((view) => h("i", { class: view === this.view ? "on" : "" })),
          )
        : null,
      paused ? h("span", "paused") : null,
      h("span.grow"),
      h("time", new Date(1000 * this.now()).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" })),
    );
  }

  /** Each place of a curve gets that of its run; one that is seen no more is forgotten. */
  drawCurves() {
    const places = /** @type {HTMLElement[]} */ ([...this.stage.querySelectorAll("[data-curve]")]);
    const seen = new Set(places.map((place) => place.dataset.curve));
    for (const id of [...this.curves.keys()]) if (!seen.has(id)) this.curves.delete(id);
    for (const place of places) {
      const id = place.dataset.curve || "";
      const curve = this.curves.get(id) || new WallCurve(this, id);
      this.curves.set(id, curve);
      curve.show(place, this.runs.get(id));
    }
  }

  close() {
    this.gone = true;
    clearInterval(this.tick);
    clearTimeout(this.again);
    for (const type of ["keydown", "pointerdown", "pointermove"]) window.removeEventListener(type, this.touch);
    window.removeEventListener("keydown", this.keys);
    window.removeEventListener("resize", this.resized);
    document.removeEventListener("visibilitychange", this.visible);
    this.lock?.release?.().catch(() => {});
    this.unwatch();
    this.live.close();
    this.element.remove();
    delete document.documentElement.dataset.wall;
  }
}
