// The gallery: each pattern with its words and its recorded curve, drawn as all other charts.

import { STEP_AXIS } from "../chart/axis.js";
import { axisRange, robustRange } from "../chart/downsample.js";
import { Plot } from "../chart/line_chart.js";
import { byId, fill, h, WhenNear } from "../core/dom.js";
import { toNumber } from "../core/format.js";
import { incidentKind, severityOf } from "../core/kinds.js";
import { Live } from "../core/live.js";
import { address } from "../core/route.js";
import { colorTheme } from "../core/theme.js";
import { frame, livePill, morePanels } from "../navigation/rail.js";
import { drawBanner, drawPill } from "../run/header.js";

const MARGIN = { l: 64, r: 14, t: 22, b: 26 };
/** Share of the height that the upper one of two rows gets, and the gap between them. */
const [UPPER, GAP] = [0.62, 0.1];

/** @typedef {{name: string, steps: number[], values: (number | string)[], discarded?: boolean}} Recorded */
/** @typedef {{name: string, seed: number, fault: string, rows: Recorded[][], found: any[]}} Curve */

/** A row of the chart from its recorded lines; `ends` are from and to of the plot's height, `window` the steps shown. */
function rowOf(recorded, colors, ends, window) {
  const values = (line) => line.values.map((value) => toNumber(value));
  const seen = (line) => values(line).filter((_, at) => line.steps[at] >= window[0] && line.steps[at] <= window[1]);
  const counted = recorded.filter((line) => !line.discarded);
  const finite = (lines) => lines.flatMap(seen).filter((value) => value !== null && Number.isFinite(value));
  const range = axisRange(robustRange(finite(counted), finite(recorded.filter((line) => line.discarded))), false);
  const line = (one) => ({
    x: one.steps,
    y: values(one).map((value) => (value !== null && Number.isFinite(value) ? value : null)),
    name: one.discarded ? "gone back over" : one.name,
    color: one.discarded ? colors.ghost : colors.series[counted.indexOf(one) % colors.series.length],
    width: one.discarded ? 1.1 : 1.4,
    dash: one.discarded ? [5, 3] : undefined,
  });
  const marks = counted.flatMap((one) =>
    one.values.flatMap((value, index) =>
      Number.isFinite(toNumber(value)) ? [] : [{ x: one.steps[index], color: colors.critical, words: String(value) }],
    ),
  );
  const title = counted.length === 1 ? counted[0].name : "";
  return { ...ends, yRange: range, title, lines: recorded.map(line), marks };
}

/** Bands of what the board found, from the onset to where it was over, and the name of each at its onset. */
function bandsOf(found, last, colors, window) {
  const right = (one) => one.onset_step > (window[0] + window[1]) / 2;
  return {
    bands: found.map((one) => ({
      color: colors[severityOf(one)],
      opacity: 0.16,
      rects: [[one.onset_step, one.recovered_step ?? last, 1]],
    })),
    rules: found.map((one) => ({
      x: one.onset_step,
      color: colors[severityOf(one)],
      dash: [2, 3],
      opacity: 0.9,
      height: 1,
    })),
    labels: found.map((one, index) => ({
      x: one.onset_step,
      top: -10 + 13 * index,
      words: right(one) ? `${nameOf(one)} ` : ` ${nameOf(one)}`,
      color: colors[severityOf(one)],
      align: /** @type {CanvasTextAlign} */ (right(one) ? "right" : "left"),
    })),
  };
}

const nameOf = (one) =>
  incidentKind(one.kind).short +
  (one.recovery && one.recovery !== "pending" ? `, recovery ${one.recovery}` : "") +
  (one.dataset ? ` (${one.dataset})` : "");

const skeleton = () =>
  frame(
    [h("h1.crumb-here", "Gallery"), livePill()],
    h(
      "main.gallery",
      h(
        "header.gallery-intro",
        h("h2", "How curves look when something is wrong"),
        h(
          "p",
          "Each curve is a real run of our laboratory, broken on purpose. A coloured band is a finding of the board, made without knowledge of the fault; grey and dashed are steps that a restart repeated. Drag to zoom; a double click or Escape shows the whole run.",
        ),
      ),
      h("nav.gallery-index", { "aria-label": "Patterns" }),
      h("div.gallery-groups"),
      morePanels(),
    ),
  );

/** The card of a pattern, its words and the place of its curve. */
function card(pattern, curve) {
  const words = [
    ["What it looks like", pattern.look],
    ["Why it happens", pattern.why],
    ["What people do", pattern.remedy],
    ["On this board", pattern.board],
  ];
  return h(
    "article.panel.gallery-card",
    { id: pattern.id },
    h("h3", h("a.anchor", { href: `#${pattern.id}` }, pattern.title)),
    h("div.chart.gallery-chart", { data: { curve: pattern.id, begin: pattern.begin } }),
    h("div.legend", { data: { legend: pattern.id } }),
    h("p.sub.gallery-made", `Laboratory, seed ${curve.seed}: ${curve.fault}.`),
    h(
      "dl",
      words.map(([name, text]) => h("div", h("dt", name), h("dd", text))),
    ),
    h("p.sub", "Read: ", h("cite", pattern.source), "."),
  );
}

export class GalleryPage {
  static skeleton = skeleton;

  constructor(root, config) {
    this.root = root;
    this.config = config;
    this.state = "connecting";
    /** @type {{[id: string]: Curve}} */
    this.curves = {};
    this.plots = new Map();
    /** Steps that a chart shows. */
    this.windows = new Map();
    this.near = [];
    this.unwatch = colorTheme.watch(() => this.draw());
    this.resized = () => this.draw();
    window.addEventListener("resize", this.resized);
    this.hashed = () => this.toPattern();
    window.addEventListener("hashchange", this.hashed);
    this.live = new Live(
      null,
      () => {},
      (state) => (this.state = state),
    );
    this.tick = setInterval(() => {
      if (document.hidden || !root.isConnected) return;
      drawPill(this.live, this.state, null, null, false);
      drawBanner(this.live, this.trouble || null);
    }, 1000);
    this.fetch();
  }

  async fetch() {
    try {
      const answer = await fetch(address(this.config.curves));
      if (!answer.ok) throw new Error(`The curves are not there (${answer.status}).`);
      const { patterns, groups, curves } = await answer.json();
      this.curves = curves;
      this.trouble = null;
      if (!this.gone) this.list(patterns, groups);
    } catch {
      this.trouble = "The curves could not be fetched.";
      if (!this.gone) this.again = setTimeout(() => this.fetch(), 3000);
      return;
    }
    if (this.gone) return;
    for (const place of this.root.querySelectorAll("[data-curve]")) {
      const near = new WhenNear(place, () => this.drawOne(place));
      near.ask();
      this.near.push(near);
    }
  }

  /** Draw the words of all patterns. */
  list(patterns, groups) {
    fill(
      this.root.querySelector(".gallery-index"),
      patterns.map((one) => h("a.chip", { href: `#${one.id}` }, one.title)),
    );
    const cards = (group) => patterns.filter((one) => one.group === group).map((one) => card(one, this.curves[one.id]));
    fill(
      this.root.querySelector(".gallery-groups"),
      Object.entries(groups).map(([group, title]) =>
        h("section.gallery-group", h("h2", title), h("div.gallery-cards", cards(group))),
      ),
    );
    this.toPattern();
  }

  /** Go to the pattern that the address names, and point at it. */
  toPattern() {
    const wanted = decodeURIComponent(location.hash.slice(1));
    for (const card of this.root.querySelectorAll(".gallery-card")) card.classList.toggle("wanted", card.id === wanted);
    byId(wanted)?.scrollIntoView({ block: "start" });
  }

  draw() {
    for (const place of this.plots.keys()) this.drawOne(place);
  }

  drawOne(place) {
    if (this.gone) return;
    const id = place.dataset.curve;
    const curve = this.curves[id];
    if (!curve) return;
    const { colors } = this.config.themes[colorTheme.name()];
    const last = Math.max(...curve.rows.flat().flatMap((line) => line.steps));
    if (!this.plots.has(place)) {
      const label = place.closest(".gallery-card")?.querySelector("h3")?.textContent || id;
      this.windows.set(place, [Number(place.dataset.begin) || 0, 1.02 * last]);
      const show = (range) => {
        this.windows.set(place, range);
        this.drawOne(place);
      };
      const events = {
        onZoom: (range) => range[1] - range[0] > 2 && show(range),
        onReset: () => show([0, 1.02 * last]),
        onCursor: (x) => this.plots.get(place)?.pointer.place(x),
        label,
      };
      this.plots.set(place, new Plot(place, events));
    }
    const window = this.windows.get(place);
    const two = curve.rows.length > 1;
    const ends = two
      ? [
          { from: 1 - UPPER + GAP / 2, to: 1 },
          { from: 0, to: 1 - UPPER - GAP / 2 },
        ]
      : [{}];
    this.plots.get(place).draw({
      width: place.clientWidth,
      height: place.clientHeight,
      margin: MARGIN,
      xRange: window,
      axis: STEP_AXIS,
      colors,
      font: this.config.font,
      rows: curve.rows.map((recorded, index) => rowOf(recorded, colors, ends[index], window)),
      ...bandsOf(curve.found, last, colors, window),
    });
    const named = curve.rows.filter((row) => row.filter((line) => !line.discarded).length > 1);
    fill(
      this.root.querySelector(`[data-legend="${id}"]`),
      named.flatMap((row) =>
        row.map((line, index) => h("span.key", h("i", { style: { background: colors.series[index] } }), line.name)),
      ),
    );
  }

  close() {
    this.gone = true;
    clearInterval(this.tick);
    clearTimeout(this.again);
    window.removeEventListener("resize", this.resized);
    window.removeEventListener("hashchange", this.hashed);
    for (const near of this.near) near.close();
    this.unwatch();
    this.live.close();
  }
}
