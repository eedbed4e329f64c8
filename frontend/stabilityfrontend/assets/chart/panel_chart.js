// The small multiples: one chart for a metric or a family of metrics, on the shared range of steps.

import { cutName, h } from "../core/dom.js";
import { matching } from "../core/first_requests.js";
import { patch } from "../core/patch.js";
import { colorTheme } from "../core/theme.js";
import { notesOf } from "../pointer/readout.js";
import { fitted, indexAt, isRising, stepsOf } from "../pointer/zoom_range.js";
import { axisOf } from "./axis.js";
import { differing, readOptions, toggled, usualOptions } from "./chart_options.js";
import { axisRange, robustRange } from "./downsample.js";
import { Plot } from "./line_chart.js";
import { calmRange, visibleValues } from "./main_chart.js";
import { MIXTURE, mixtureShapes } from "./mixture_shapes.js";
import { noNumber } from "./no_number.js";
import { panelLines } from "./panel_lines.js";
import { ghostXY, lineXY, nonFiniteMarks, shapes } from "./traces.js";

const MARGIN = { l: 50, r: 12, t: 8, b: 26 };
/** The raw line behind a smoothed one. */
const BEHIND = 0.35;
/** Marks of one line. */
const MARKS = 100;

/** How much higher than the lines what was discarded may make a range. */
const DEAD = 0.4;

/**
 * A range of values that shows discarded ones, too, where they are not far above.
 * @param {[number, number]} range
 * @param {number[]} dead
 * @returns {[number, number]}
 */
function withDead([low, high], dead) {
  const top = dead.reduce((most, value) => (Number.isFinite(value) && value > most ? value : most), high);
  return [low, Math.min(top, high + DEAD * (high - low || Math.abs(high) * 0.1 || 1))];
}

/** Whether all of a chart's metrics count their own steps. */
export const hasOwnSteps = (metrics, run) =>
  metrics.length > 0 && metrics.every((name) => (run?.own_steps || []).includes(name));

/** The range of x of lines. @returns {[number, number]} */
export function spanOf(lines) {
  const every = lines.flatMap((line) => [line.x[0], line.x[line.x.length - 1]]).filter(Number.isFinite);
  if (!every.length) return [0, 1];
  const [low, high] = [Math.min(...every), Math.max(...every)];
  const span = Math.max(1, high - low);
  return [low - 0.02 * span, high + 0.03 * span];
}

/** What tells the lines of one panel apart: `loss/code` among `loss/*` is `code`. */
function shortName(name, patterns) {
  const pattern = patterns.find((one) => one.endsWith("*") && name.startsWith(one.slice(0, -1)));
  return pattern ? name.slice(pattern.length - 1) || name : name;
}

/**
 * A small chart for the Board. `panel` is what the page's skeleton says (run_page.Panel) and `page` as in main_chart.js.
 * `legend` is the element that gets the names, or null. What people can set up of it is in `chart_options.js`.
 */
export function panelChart(element, legend, panel, config, page) {
  const memory = new Map();
  const usual = usualOptions(panel);
  let now = usual;
  const watchers = /** @type {(() => void)[]} */ ([]);
  let legendKey = "";
  /** Whether its steps are its metrics' own, as batches of a validation: no step of the run has a place on it. */
  let own = false;
  /** A line on another axis than steps, as it was drawn last: where which step is. */
  let drawn = /** @type {{x: number[], steps: number[]} | null} */ (null);
  const plot = new Plot(element, {
    label: nameOf(),
    onZoom(range) {
      const steps = own ? null : drawn ? stepsOf(range, drawn) : /** @type {number[] | null} */ (range);
      if (steps) page.zoom.set(fitted(steps, page.store.extent(chart.metrics())));
      else {
        chart.localRange = range;
        page.board.mark(chart);
      }
    },
    onReset() {
      chart.localRange = null;
      if (now.yRange) chart.set({ yRange: null });
      if (own) page.board.mark(chart);
      else page.zoom.set(null);
    },
    onY: (range) => chart.set({ yRange: range }),
    onCursor(x) {
      if (own) return plot.pointer.place(x);
      page.board.pointAt(x === null || !drawn ? x : (drawn.steps[indexAt(drawn.x, x)] ?? null));
      if (drawn) plot.pointer.place(x);
    },
  });
  function nameOf() {
    return `Chart ${panel.title || now.metrics.join(", ")}`;
  }
  const chart = {
    id: panel.id,
    element,
    plot,
    panel,
    interval: config.limits.panel_interval_ms,
    // Where x does not rise with the steps, a zoom is of this chart alone.
    localRange: /** @type {number[] | null} */ (null),
    /** Why it is drawn otherwise than its options say, "" where it is not. */
    trouble: "",
    /** Called with what `options()` says, after people changed it. */
    onOptions: /** @type {((options: any) => void) | null} */ (null),
    title: () => panel.title || now.metrics.join(", "),
    /** Whose points are shown, as /series calls them. */
    ranks: panel.per_rank ? "all" : "primary",
    /** The options as they are, and those that differ from the usual ones. */
    now: () => now,
    options: () => differing(now, usual),
    /** Take options that somebody kept; `told`: people did it, and `onOptions` hears of it. */
    setOptions(given, told = false) {
      now = readOptions(given, usual);
      changed(told);
    },
    /** People changed some of the options. */
    set(changes) {
      now = { ...readOptions({ ...now, ...changes }, usual), ...(changes.yRange === null ? { yRange: null } : {}) };
      changed(true);
    },
    watch: (hear) => watchers.push(hear),
    /** The y range that is drawn, as values. */
    shownRange() {
      const [row] = plot.rows;
      if (!row) return [0, 1];
      return row.log ? row.yRange.map((one) => 10 ** one) : row.yRange;
    },
    metrics: () => matching(now.metrics, page.names),
    forget: () => memory.clear(),
    close: () => plot.close(),
    hasLine: () => Boolean(plot.spec?.lines?.length),
    pointAt(step) {
      if (own && !plot.pointer.over) plot.pointer.place(null);
      else if (own) return;
      else if (!drawn) plot.pointer.place(step);
      else if (!plot.pointer.over) plot.pointer.place(step === null ? null : drawn.x[indexAt(drawn.steps, step)]);
    },
    paint(width, height) {
      const { colors } = config.themes[colorTheme.name()];
      const declared =
        panel.id === MIXTURE
          ? mixtureShapes(page.mixture?.curves, colors, {
              limit: config.limits.lines,
              ghosts: page.settings.ghosts,
              off: page.mixture?.off || [],
            })
          : null;
      if (declared) drawMixture(declared, width, height, colors);
      else drawLines(width, height, colors);
    },
  };

  function changed(told) {
    memory.clear();
    chart.localRange = null;
    page.board.mark(chart);
    plot.pointer.name(nameOf());
    for (const hear of watchers) hear();
    if (told && chart.onOptions) chart.onOptions(chart.options());
  }

  function drawLines(width, height, colors) {
    own = hasOwnSteps(chart.metrics(), page.run);
    const window = own ? null : page.look.window();
    const view = page.view(chart.metrics());
    // What people added may not be here yet.
    page.feed?.fetchWanted(chart.metrics());
    const { lines: server, trouble } = panelLines(page).of(chart, now);
    chart.trouble = trouble;
    const found = collect(server, window, width - MARGIN.l - MARGIN.r, colors);
    const axis = axisOf(page, now.x, server, found.first || page.metric());
    const [line] = found.lines;
    drawn = line?.steps ? line : null;
    // On an axis that goes up and down lines are a tangle, and no stretch of steps has one place.
    const rising = !drawn || isRising(/** @type {{x: number[]}} */ (drawn).x);
    if (!rising) for (const one of found.lines) one.dots = true;
    /** @type {[number, number]} */
    let range = found.ranges.length
      ? [Math.min(...found.ranges.map((one) => one[0])), Math.max(...found.ranges.map((one) => one[1]))]
      : [0, 1];
    if (found.ranges.length) range = withDead(range, found.dead);
    plot.draw({
      width,
      height,
      margin: MARGIN,
      xRange: chart.localRange || (own ? spanOf(found.lines) : axis.range(found, window)),
      axis: axis.axis,
      yRange: yRange(range),
      log: now.log,
      colors,
      font: config.font,
      lines: [...found.ghosts, ...found.behind, ...found.lines],
      ...(rising && !own ? shapes(view, colors, false, axis) : {}),
      notes: () => (rising && !own ? notesOf(view, colors, axis) : []),
      marks: found.marks,
      none: found.seen.every(Boolean) ? [...new Set(found.seen)].join(", ") : "",
    });
    writeLegend(found.named, found.left);
  }

  /** The lines of the chart's metrics, and what stands around them. */
  function collect(server, window, columns, colors) {
    const budget = config.limits.panel_points;
    const column = server && now.smooth > 0 ? "smoothed" : "values";
    const source = server || page.store;
    const names = chart.metrics();
    const found = {
      first: /** @type {string | null} */ (null),
      lines: /** @type {any[]} */ ([]),
      behind: /** @type {any[]} */ ([]),
      ghosts: /** @type {any[]} */ ([]),
      named: /** @type {{name: string, color: string}[]} */ ([]),
      marks: /** @type {any[]} */ ([]),
      ranges: /** @type {number[][]} */ ([]),
      dead: /** @type {number[]} */ ([]),
      seen: /** @type {string[]} */ ([]),
      thinned: false,
      effective: /** @type {any[]} */ ([]),
      discarded: /** @type {any[]} */ ([]),
      left: 0,
    };
    for (const name of names) {
      const lines = source.effective(name, window);
      if (lines.length) found.first ||= name;
      if (page.settings.ghosts) addGhosts(found, source, name, window, lines, { budget, column, colors, names });
      for (const line of panel.per_rank ? lines : lines.slice(0, 1)) {
        if (found.named.length >= config.limits.lines) {
          found.left += 1;
          continue;
        }
        const color = colors.series[found.named.length % colors.series.length];
        const words = lineWords(name, line, names.length > 1);
        found.named.push({ name: words, color });
        if (now.hidden.includes(words)) continue;
        found.effective.push(line);
        const xy = lineXY(line, window, budget, column, columns);
        if (column === "smoothed") {
          const raw = lineXY(line, window, budget, "values", columns);
          found.behind.push({ ...raw, name: "raw", color, opacity: BEHIND, width: 1, hover: false });
        }
        const thick = column === "smoothed" || xy.band || xy.x.length <= columns;
        const more = { metric: name, rank: line.rank, node: line.node };
        found.lines.push({ ...xy, ...more, name: words, color, width: thick ? 1.5 : 1 });
        const values = visibleValues(line.pieces, window);
        found.thinned ||= Boolean(source.isThinned?.(name));
        found.seen.push(noNumber(values, !found.thinned));
        if (values.length) found.ranges.push(robustRange(values, []));
        for (const mark of nonFiniteMarks([line], [], window).slice(0, MARKS))
          found.marks.push({ ...mark, color: colors.critical });
      }
    }
    return found;
  }

  function addGhosts(found, source, name, window, lines, { budget, column, colors, names }) {
    const lowest = lines.length ? lines[0].rank : null;
    const dead = source
      .dead(name, window)
      .filter((stretch) => panel.per_rank || !lines.length || stretch.rank === lowest);
    if (!dead.length) return;
    found.ghosts.push({
      ...ghostXY(dead, window, budget / 2, column),
      color: colors.ghost,
      width: 1.1,
      dash: [5, 3],
      opacity: names.length > 1 || panel.per_rank ? 0.5 : 0.85,
      hover: false,
    });
    found.dead.push(...visibleValues(dead, window));
    found.discarded.push(...dead);
  }

  /** What a line is called among the others. */
  function lineWords(name, line, several) {
    const short = shortName(name, now.metrics);
    if (!panel.per_rank) return short;
    const who = line.rank === null ? line.node : `rank ${line.rank}`;
    return several ? `${short} ${who}` : who;
  }

  /** The y axis: what people zoomed to, else what shows the lines. */
  function yRange(range) {
    const wanted = now.yRange && (!now.log || now.yRange[1] > 0) ? now.yRange : null;
    if (wanted) return now.log ? axisRange(wanted, true) : wanted;
    return calmRange(memory, "y", axisRange(range, now.log));
  }

  function drawMixture({ lines, areas, marks, range }, width, height, colors) {
    const axis = axisOf(page, "step");
    drawn = null;
    plot.draw({
      width,
      height,
      margin: MARGIN,
      xRange: page.look.stepRange(),
      axis: axis.axis,
      yRange: now.yRange || axisRange(range, false),
      colors,
      font: config.font,
      lines: lines.filter((line) => !now.hidden.includes(line.name)),
      areas,
      marks,
      ...shapes(page.view(), colors, false),
      notes: () => notesOf(page.view(), colors, axis),
    });
    const named = lines.filter((line) => line.name);
    writeLegend(named, page.mixture.curves.sets.length - named.length);
  }

  function writeLegend(lines, left) {
    if (!legend) return;
    const shown = lines.length > 1 || left || lines.some(({ name }) => now.hidden.includes(name)) ? lines : [];
    const key = JSON.stringify([shown.map(({ name, color }) => [name, color]), left, now.hidden, chart.trouble]);
    if (key === legendKey) return;
    legendKey = key;
    const all = shown.map(({ name }) => name);
    const toggle = (name, alone) => chart.set({ hidden: toggled(now.hidden, name, all, alone) });
    patch(
      legend,
      chart.trouble ? h("span.key.chart-trouble", { title: chart.trouble }, "x axis: step") : null,
      shown.map(({ name, color }) => {
        const on = !now.hidden.includes(name);
        return h(
          "button",
          {
            class: on ? "key" : "key off",
            title: `${name}: click to ${on ? "hide" : "show"}, Alt and click for this line alone`,
            "aria-pressed": String(on),
            data: { line: name },
            onclick: (event) => toggle(name, event.altKey),
            ondblclick: () => toggle(name, true),
          },
          h("i", { style: { background: color } }),
          cutName(name),
        );
      }),
      left ? h("span.key", `+ ${left} more`) : null,
    );
  }
  return chart;
}
