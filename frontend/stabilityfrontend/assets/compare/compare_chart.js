// The chart of a comparison: a line a run, on the axis by which they are aligned.

import { DURATION_AXIS, FORK_AXIS, STEP_AXIS } from "../chart/axis.js";
import { axisRange, robustRange } from "../chart/downsample.js";
import { calmRange } from "../chart/main_chart.js";
import { toNumber } from "../core/format.js";
import { colorTheme } from "../core/theme.js";

/** How strong the true values are behind the smoothed ones. */
const BEHIND = 0.25;

/** Marks of what is no number, as the server writes it. */
const SYMBOLS = { Infinity: "up", "-Infinity": "down" };

/** The lines of a run in one: its segments in step order, cut where each stopped counting. */
function lineOf(run, column, align) {
  const x = [];
  const y = [];
  const parts = [...run.series].filter((one) => !one.dead && one.steps.length).sort((a, b) => a.steps[0] - b.steps[0]);
  for (const part of parts) {
    const xs = part.xs || part.steps;
    const values = part[column] || part.values;
    // In time a fork is a gap: what was discarded took its time, and the restart took some.
    if (align === "time" && x.length) {
      x.push(x[x.length - 1]);
      y.push(null);
    }
    for (let index = 0; index < xs.length; index += 1) {
      const value = toNumber(values[index]);
      x.push(xs[index]);
      y.push(Number.isFinite(value) ? value : null);
    }
  }
  return { x, y };
}

/** Draw the lines of the runs that are shown. */
export function drawChart(page, element) {
  if (element.clientWidth < 40) return;
  const { settings } = page;
  const { colors } = page.config.themes[colorTheme.name()];
  const lines = [];
  const marks = [];
  const ranges = [];
  let low = Infinity;
  let high = -Infinity;
  for (const run of page.runs) {
    if (!page.ids.includes(run.run_id) || page.off.has(run.run_id)) continue;
    const color = page.colour(run.run_id);
    const raw = lineOf(run, "values", settings.align);
    const main = settings.smooth ? lineOf(run, "smoothed", settings.align) : raw;
    if (settings.smooth) lines.push({ ...raw, color, opacity: BEHIND, width: 1, hover: false, name: "" });
    lines.push({ ...main, color, width: 1.8, name: page.nameOf(run.run_id), run: run.run_id });
    const inside = main.y.filter(
      (value, index) =>
        value !== null &&
        (!settings.log || value > 0) &&
        (!page.range || (main.x[index] >= page.range[0] && main.x[index] <= page.range[1])),
    );
    if (inside.length) ranges.push(robustRange(inside, []));
    for (const part of run.series)
      part.values.forEach(
        (value, index) =>
          Number.isFinite(toNumber(value)) ||
          marks.push({ x: (part.xs || part.steps)[index], color, symbol: SYMBOLS[value] || "x" }),
      );
    if (raw.x.length) {
      low = Math.min(low, raw.x[0]);
      high = Math.max(high, raw.x[raw.x.length - 1]);
    }
  }
  const there = lines.some((line) => line.x.length);
  element.dataset.empty = there
    ? ""
    : page.ids.length
      ? page.refused ||
        (page.runs.length
          ? `None of these runs has logged ${settings.metric}.`
          : page.all.length && !page.asked().length
            ? "None of these runs has forked: there is nothing to align by."
            : "Fetching …")
      : "";
  const span = high - low || 1;
  const y = axisRange(
    ranges.length ? [Math.min(...ranges.map((one) => one[0])), Math.max(...ranges.map((one) => one[1]))] : [0, 1],
    settings.log,
  );
  page.plot.draw({
    width: element.clientWidth,
    height: element.clientHeight,
    margin: { l: 62, r: 18, t: 14, b: 30 },
    xRange: page.range || (there ? [low - 0.005 * span, high + 0.01 * span] : [0, 100]),
    yRange: calmRange(page.memory, "y", y),
    log: settings.log,
    colors,
    font: page.config.font,
    lines,
    rules:
      settings.align === "fork" && there ? [{ x: 0, color: colors.muted, dash: [6, 4], opacity: 0.8, height: 1 }] : [],
    marks: marks.slice(0, 400),
    axis: { time: DURATION_AXIS, fork: FORK_AXIS }[settings.align] || STEP_AXIS,
  });
}
