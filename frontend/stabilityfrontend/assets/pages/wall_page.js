// A page for a screen on the wall (`?wall=1`): it is read from four metres, nobody touches it, and it must say so when it
// can no longer be believed. One feed for all runs; views come one after the other.

import { STEP_AXIS } from "../chart/axis.js";
import { axisRange, robustRange } from "../chart/downsample.js";
import { Plot } from "../chart/line_chart.js";
import { focusMetric } from "../chart/main_chart.js";
import { noNumber } from "../chart/traces.js";
import { api } from "../core/api.js";
import { fill, h, patch, setShown, setText } from "../core/dom.js";
import { duration, formatAge, formatCount, steady, toNumber } from "../core/format.js";
import { notBackWords, sickFirst, stateOf, wordOf } from "../core/kinds.js";
import { Live } from "../core/live.js";
import { colorTheme } from "../core/theme.js";
import { lastingWords } from "../incident/verdict.js";

// -- What a wall says of runs, without drawing: which are sick, in which order views come, whether the feed can be believed.

/** A job that crashed longer ago than this is history: it is counted, and takes no place. A day, seconds. */
const HISTORY_S = 86400;
/** Seconds without any sign of the server after which what is shown can't be believed. A healthy one answers each 2 s. */
const STALE_S = 6;
/** Seconds that a view stays when `rotate` says nothing, and the least that it can be. */
const ROTATE_S = 30;
const LEAST_ROTATE_S = 3;
/** Runs that are sick or crashed and get a view of their own in a round, and others where none is sick. */
const [SICK_VIEWS, WELL_VIEWS] = [8, 4];

/**
 * Runs by what the server counts them as: `ill` has the `sick` and those that `crashed` within a day, the worst first;
 * `well`: a job is at work; `past`: how many others.
 */
export function heaps(runs, now) {
  const ill = [];
  const well = [];
  const counts = { sick: 0, crashed: 0, well: 0, past: 0 };
  for (const run of runs) {
    const { condition } = stateOf(run);
    const heap =
      condition === "sick" || condition === "well"
        ? condition
        : condition === "crashed" && now - (run.updated || 0) <= HISTORY_S
          ? condition
          : "past";
    counts[heap] += 1;
    if (heap === "well") well.push(run);
    else if (heap !== "past") ill.push(run);
  }
  ill.sort(sickFirst);
  well.sort((a, b) => (b.created || 0) - (a.created || 0));
  return { ill, well, counts };
}

/** Seconds of a view from the address: `30s`, `30`, `2min`; 0 stays on one view; null where it says nothing readable. */
export function rotateSeconds(text) {
  const found = /^(\d+)\s*(s|min)?$/.exec(String(text || "").trim());
  if (!found) return null;
  const seconds = Number(found[1]) * (found[2] === "min" ? 60 : 1);
  return seconds === 0 ? 0 : Math.max(LEAST_ROTATE_S, seconds);
}

/** The views of a round: `""` is the fleet, else a run's id. `own`: the run of the address, which is then the first. */
export function viewsOf({ ill, well }, own) {
  const runs = (ill.length ? ill.slice(0, SICK_VIEWS) : well.slice(0, WELL_VIEWS)).map((run) => run.run_id);
  return own ? [own, ...runs.filter((id) => id !== own)] : ["", ...runs];
}

/** The view after one: views come and go, so it is looked up. */
export const nextView = (views, current) => views[(views.indexOf(current) + 1) % views.length] ?? views[0];

/**
 * Seconds since there was any sign of the server; null while the feed can be believed.
 * `heard`: last message; `answered`: last good answer to a question; milliseconds, as `now`. An answer counts only
 * while the feed is open: a server that answers and sends nothing is no feed.
 */
export function staleSeconds({ heard, answered, open }, now) {
  const sign = Math.max(heard, open ? answered : 0);
  const seconds = (now - sign) / 1000;
  return seconds > STALE_S ? Math.floor(seconds) : null;
}

// -- What a wall asks of the table of all runs: the sick, those that broke down today, and the newest that are well. The
// server counts; of five thousand runs a wall reads the few that have a place on it.

const query = (q, sort) => ({ q, sort, group: "", columns: [] });

/** The three questions, as `api.runTable` takes them. `broke`: as `heaps`, an older crash is history. */
const QUESTIONS = {
  sick: query("state:sick", []),
  broke: query("state:crashed updated<1d", []),
  well: query("state:well", ["age"]),
};

/** A row of the table as a run; what is known of the run beyond the row stays. */
function asRun(row, known = /** @type {any} */ (null)) {
  const metric = row.loss_metric || row.curve?.metric || null;
  const latest = { ...known?.latest };
  if (row.loss_metric && row.loss !== null) latest[row.loss_metric] = row.loss;
  return {
    metrics: metric ? [metric] : [],
    ...known,
    run_id: row.run_id,
    name: row.name,
    status: row.status,
    state: row.state,
    note: row.note,
    last_step: row.step,
    loss_metric: row.loss_metric,
    worst_incident: row.worst_incident,
    world_size: row.ranks,
    created: row.created,
    updated: row.updated,
    latest,
  };
}

/** The runs of the three answers by id; `known`: those of before. */
export function runsOf(answers, known) {
  const rows = answers.flatMap((answer) => answer.rows).filter((row) => !row.gone);
  return new Map(rows.map((row) => [row.run_id, asRun(row, known.get(row.run_id))]));
}

/** How many have no row here, as the server counted: `{sick, crashed, well, past}`. */
export function beyond([sick, broke, well]) {
  const left = (answer) => Math.max(0, answer.fit - answer.rows.length);
  return {
    sick: left(sick),
    crashed: left(broke),
    well: left(well),
    past: Math.max(0, sick.total - sick.fit - broke.fit - well.fit),
  };
}

/** The heaps, and how many each has with those that have no row: `counts`. */
export function counted(runs, now, more, own = "") {
  const found = heaps(
    [...runs].filter((run) => run.run_id !== own || !run.alone),
    now,
  );
  const counts = Object.entries(found.counts).map(([heap, count]) => [heap, count + more[heap]]);
  return { ...found, counts: Object.fromEntries(counts) };
}

// -- The wall of all runs: how many are sick, which, since when, why, what to do; those that are well stay small.

/** Sick runs with words of their own, by how many there are; the others are named. */
const [CARDS, NAMED] = [3, 12];
/** Healthy runs that are named; so few have their curves, where none is sick. */
const [WELL, FEW] = [24, 6];

const NUMBERS = ["No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine"];
const inWords = (count) => NUMBERS[count] || formatCount(count);

/** The mark of a state: its shape says what its colour says. */
const mark = ({ tone, shape }) => h("i", { class: `wall-mark ${tone} shape-${shape}`, "aria-hidden": "true" });

/** The first sentences of an advice: as many as can be read in passing. */
function brief(text, most = 150) {
  const sentences = String(text || "").match(/[^.]+(?:\.(?=\s|$)|\.\d[^.]*)*\.?/g) || [];
  let words = "";
  for (const one of sentences) {
    if (words && (words + one).length > most) break;
    words += one;
  }
  return words.trim();
}

/** Since when, counting: `12 min 03 s`. */
const sinceWords = (since, now) => (since ? `for ${duration(Math.max(0, now - since))}` : "");

/** Why, and what to do, of a sick run: what its incident says, else its note. */
function told(wall, run) {
  const incident = wall.incidentOf(run);
  const title = incident?.title || run.worst_incident?.title || run.note || "";
  const verdict = incident?.evidence?.verdict?.text;
  return { why: lastingWords(verdict || title, incident, wall.now()), remedy: brief(incident?.suggestion?.text) };
}

function sickCard(wall, run) {
  const state = stateOf(run);
  const { why, remedy } = told(wall, run);
  return h(
    "article",
    { class: `wall-card ${state.tone}`, data: { run: run.run_id } },
    h(
      "header",
      h("span", { class: `wall-word ${state.tone}` }, mark(state), wordOf(state)),
      h("span.wall-since", sinceWords(state.since, wall.now())),
    ),
    h("h2", { dir: "auto" }, run.name || run.run_id),
    h("p.wall-why", ...why),
    remedy ? h("p.wall-do", remedy) : null,
    h("div.wall-place", { data: { curve: run.run_id } }),
  );
}

/** A run that is well, with its curve: where there are few. */
const wellCard = (run) =>
  h(
    "article.wall-card",
    { data: { run: run.run_id } },
    wellRun(run),
    h("div.wall-place", { data: { curve: run.run_id } }),
  );

function wellRun(run) {
  const state = stateOf(run);
  const loss = run.loss_metric ? toNumber((run.latest || {})[run.loss_metric]) : null;
  return h(
    "div.wall-well",
    { data: { run: run.run_id } },
    mark(state),
    h("bdi", run.name || run.run_id),
    h("span", notBackWords(state) || wordOf(state)),
    h("b", run.last_step === null || run.last_step === undefined ? "" : formatCount(run.last_step)),
    h("b", loss === null ? "" : steady(loss)),
  );
}

/** How many runs are sick, and how many crashed within a day, as a headline. */
function headOf({ sick, crashed, well }) {
  const runs = (count) => `${inWords(count)} run${count === 1 ? "" : "s"}`;
  if (sick && crashed)
    return `${runs(sick)} need${sick === 1 ? "s" : ""} attention, ${inWords(crashed).toLowerCase()} crashed`;
  if (sick) return `${runs(sick)} need${sick === 1 ? "s" : ""} attention`;
  if (crashed) return `${runs(crashed)} crashed`;
  if (well) return `${well === 1 ? "The run is" : `All ${formatCount(well)} runs are`} well`;
  return "No run is under way";
}

/** The view; `{ill, well, counts}` as `counted` of wall_rows.js gives them: what is counted may have no row. */
function fleetView(wall, { ill, well, counts }) {
  const { sick, crashed, well: wells, past } = counts;
  const count = sick + crashed;
  const worst = ill.length ? stateOf(ill[0]) : { tone: wells ? "good" : "calm", shape: wells ? "disc" : "ring" };
  const few = !count && well.length <= FEW;
  const others = ill.slice(CARDS);
  return [
    h(
      "header.wall-head",
      { data: { place: "head" } },
      h("h1", { class: worst.tone }, mark(worst), headOf(counts)),
      h("p", count && wells ? `${formatCount(wells)} ${wells === 1 ? "is" : "are"} well` : ""),
    ),
    h(
      "section",
      { class: `wall-cards n${Math.min(CARDS, count)}`, data: { place: "cards" } },
      ill.slice(0, CARDS).map((run) => sickCard(wall, run)),
    ),
    others.length
      ? h(
          "p.wall-others",
          { data: { place: "others" } },
          "also: ",
          others
            .slice(0, NAMED)
            .map((run, index) => [index ? ", " : "", h("bdi", run.name || run.run_id), ` (${wordOf(stateOf(run))})`])
            .flat(),
          count > CARDS + NAMED ? ` and ${formatCount(count - CARDS - NAMED)} more` : "",
        )
      : null,
    h(
      "section",
      { class: `wall-wells${count ? "" : " alone"}${few ? " few" : ""}`, data: { place: "wells" } },
      well.slice(0, WELL).map(few ? wellCard : wellRun),
    ),
    h(
      "p.wall-past",
      { data: { place: "past" } },
      [
        wells > WELL ? `${formatCount(wells - WELL)} more are well` : "",
        past ? `${formatCount(past)} ended, have no data yet, or crashed more than a day ago` : "",
      ]
        .filter(Boolean)
        .join(" · "),
    ),
  ];
}

// -- The wall of one run: its state and since when, the curve of its loss, its numbers, the open incident with its advice.

/** Numbers below the curve beside the step. */
const NUMBERS_SHOWN = 4;

/** What the large curve shows: as the server chose. */
const mainMetric = (wall, run) => focusMetric(run.metrics || [], run, wall.headlines.get(run.run_id)?.headline?.main);

/** Whether nothing was logged yet: there is no curve, and no number of a metric. */
const noPoint = (run) => (run.last_step ?? null) === null;

function numbers(wall, run) {
  const cell = (label, value, unit) =>
    h("div", { data: { number: label } }, h("b", value), h("span", { dir: "auto" }, label, unit ? ` (${unit})` : ""));
  if (noPoint(run)) {
    const age = formatAge(Math.max(0, wall.now() - run.created));
    return [cell("ranks", formatCount(run.world_size || 1), ""), cell("since it was started", age, "")];
  }
  const cells = wall.headlineOf(run)?.cells || [];
  return [
    cell("step", formatCount(run.last_step), ""),
    ...cells
      .map(({ metric, unit }) => ({ metric, unit, value: toNumber((run.latest || {})[metric]) }))
      .filter(({ value }) => value !== null)
      .slice(0, NUMBERS_SHOWN)
      .map(({ metric, unit, value }) => cell(metric, steady(value), unit)),
  ];
}

/** The view; `.wall-place` is where its curve goes. */
function runView(wall, run) {
  const state = stateOf(run);
  const { why, remedy } = ["sick", "crashed"].includes(state.condition) ? told(wall, run) : { why: [], remedy: "" };
  return [
    h(
      "header.wall-head.run",
      { data: { place: "head" } },
      h("h1", h("bdi", run.name || run.run_id)),
      h(
        "p",
        { class: `wall-word ${state.tone}` },
        mark(state),
        wordOf(state),
        h("span.wall-since", sinceWords(state.since, wall.now())),
      ),
    ),
    h(
      "section",
      { class: `wall-run${why.length ? " sick" : ""}`, data: { place: "run" } },
      noPoint(run)
        ? h(
            "div.wall-curve.none",
            h("p", `${run.note ? `${run.note} ` : ""}No step yet: the curve begins with the first one.`),
          )
        : h(
            "div.wall-curve",
            h("div.wall-metric", h("bdi", mainMetric(wall, run))),
            h("div.wall-place", { data: { curve: run.run_id } }),
          ),
      why.length
        ? h(
            "article",
            { class: `wall-card ${state.tone}`, data: { card: run.run_id } },
            h("p.wall-why", ...why),
            remedy ? h("p.wall-do", remedy) : null,
          )
        : null,
    ),
    h("section.wall-numbers", { data: { place: "numbers" } }, numbers(wall, run)),
  ];
}

// -- The curve of a run on a wall: fetched every few seconds while it is seen, drawn by the one renderer, as large as the
// wall's letters ask.

/** Points of the curve, and how often it is fetched while it is seen. */
const [POINTS, CURVE_MS] = [700, 5000];
/** Text is drawn as on a desk and then made as much larger as the wall's letters are than these, pixels. */
const LETTER_PX = 13;
const MARGIN = { l: 54, r: 16, t: 12, b: 26 };

class WallCurve {
  /** @param {any} wall the page @param {string} id of the run */
  constructor(wall, id) {
    this.wall = wall;
    this.id = id;
    this.steps = /** @type {number[]} */ ([]);
    this.values = /** @type {(number | null)[]} */ ([]);
    this.fetchedAt = 0;
    this.element = h("div.chart.wall-chart");
    this.plot = new Plot(this.element, { onZoom() {}, onReset() {}, onCursor() {} });
  }

  /** Put it into a place of the page and bring it up to date. @param {Element | null} place */
  show(place, run) {
    if (!place) return;
    if (this.element.parentNode !== place) place.append(this.element);
    const metric = mainMetric(this.wall, run);
    if (metric && Date.now() - this.fetchedAt > CURVE_MS) this.fetch(run, metric);
    this.paint(run);
  }

  async fetch(run, metric) {
    this.fetchedAt = Date.now();
    try {
      const answers = await api.series(this.id, [metric], { view: "effective", points: POINTS });
      const series = answers.flatMap((answer) => answer.series);
      const rankOf = (one) => (one.rank === null ? Number.MAX_SAFE_INTEGER : one.rank);
      const least = Math.min(...series.map(rankOf));
      const own = series.filter((one) => rankOf(one) === least);
      this.steps = own.flatMap((one) => one.steps);
      this.values = own.flatMap((one) => one.values.map(toNumber));
      this.paint(run);
    } catch {
      // The band says it when the server is away; a next look comes by itself.
    }
  }

  paint(run) {
    const place = this.element.parentElement;
    if (!place) return;
    const { width, height } = place.getBoundingClientRect();
    if (width < 50 || height < 50) return;
    const { config, element, incidents } = this.wall;
    const letter = Number.parseFloat(getComputedStyle(element).fontSize) || LETTER_PX;
    const { steps, values } = this;
    const state = stateOf(run);
    const onset = incidents.get(state.incident_id)?.incident?.onset_step;
    const key = [
      width,
      height,
      letter,
      colorTheme.name(),
      steps.length,
      steps.at(-1),
      values.at(-1),
      onset,
      state.tone,
    ];
    if (this.painted === key.join(" ")) return;
    this.painted = key.join(" ");
    const scale = Math.max(1, letter / LETTER_PX);
    this.element.style.transform = `scale(${scale})`;
    const { colors } = config.themes[colorTheme.name()];
    const finite = values.filter((value) => value !== null && Number.isFinite(value));
    const first = steps[0] ?? 0;
    const last = Math.max(first + 1, steps.at(-1) ?? 1);
    const newest = values.at(-1) ?? Number.NaN;
    const tone = colors[state.tone] || colors.warning;
    const shown = typeof onset === "number" && onset > first && onset <= last;
    this.plot.draw({
      width: width / scale,
      height: height / scale,
      scale,
      margin: MARGIN,
      xRange: [first, last + 0.03 * (last - first)],
      axis: STEP_AXIS,
      yRange: axisRange(finite.length ? robustRange(finite, []) : [0, 1], false),
      none: noNumber(values.map((value) => value ?? null)),
      colors,
      font: config.font,
      lines: [
        {
          x: steps,
          y: values.map((value) => (value !== null && Number.isFinite(value) ? value : null)),
          color: colors.series[0],
          width: 2,
        },
      ],
      marks: values.flatMap((value, index) =>
        value === null || Number.isFinite(value) ? [] : [{ x: steps[index], color: colors.critical }],
      ),
      bands: shown ? [{ color: tone, opacity: 0.16, rects: [[onset, last, 1]] }] : [],
      rules: shown ? [{ x: onset, color: tone, dash: [2, 3], opacity: 1, height: 1 }] : [],
      dot: Number.isFinite(newest) ? { x: last, y: newest, color: colors.series[0] } : null,
    });
  }
}

/** Milliseconds between two looks at the clock, and after which a silent server is asked whether it is there. */
const [TICK_MS, ASK_MS] = [500, 2000];
/** Between two looks at the advice of an incident, at what is shown first of a run, and at the counts of all runs. */
const [ADVICE_MS, HEADLINE_MS, COUNTS_MS] = [15000, 5000, 15000];
/** Nobody touched the screen for this long: views go on. */
const TOUCHED_MS = 60000;

/** Whether the address asks for the wall. */
export const wallWanted = () => new URLSearchParams(location.search).get("wall") === "1";

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
