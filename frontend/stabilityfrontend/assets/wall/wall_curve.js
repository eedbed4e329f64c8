// The curve of a run on a wall: fetched every few seconds while it is seen, drawn by the one renderer, as large as the
// wall's letters ask.

import { STEP_AXIS } from "../chart/axis.js";
import { axisRange, robustRange } from "../chart/downsample.js";
import { Plot } from "../chart/line_chart.js";
import { noNumber } from "../chart/no_number.js";
import { api } from "../core/api.js";
import { stateOf } from "../core/appearance.js";
import { h } from "../core/dom.js";
import { toNumber } from "../core/format.js";
import { colorTheme } from "../core/theme.js";
import { mainMetric } from "./run_view.js";

/** Points of the curve, and how often it is fetched while it is seen. */
const [POINTS, CURVE_MS] = [700, 5000];
/** Text is drawn as on a desk and then made as much larger as the wall's letters are than these, pixels. */
const LETTER_PX = 13;
const MARGIN = { l: 54, r: 16, t: 12, b: 26 };

export class WallCurve {
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
