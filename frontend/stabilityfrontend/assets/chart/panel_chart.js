// The small multiples: one chart for a metric or a family of metrics, on the shared x axis.

import { cutName, h } from "../core/dom.js";
import { matching } from "../core/first_requests.js";
import { patch } from "../core/patch.js";
import { colorTheme } from "../core/theme.js";
import { STEP_AXIS } from "./axis.js";
import { differing, readOptions, toggled, usualOptions } from "./chart_options.js";
import { axisRange, robustRange } from "./downsample.js";
import { Plot } from "./line_chart.js";
import { calmRange, visibleValues } from "./main_chart.js";
import { MIXTURE, mixtureShapes } from "./mixture_shapes.js";
import { ghostXY, lineXY, nonFiniteMarks, shapes } from "./traces.js";

const MARGIN = { l: 50, r: 12, t: 8, b: 26 };

/** What tells the lines of one panel apart: `loss/code` among `loss/*` is `code`. */
function shortName(name, patterns) {
  const pattern = patterns.find((one) => one.endsWith("*") && name.startsWith(one.slice(0, -1)));
  return pattern ? name.slice(pattern.length - 1) || name : name;
}

/**
 * A small chart for the Board. `panel` is what the page's skeleton says (run_page.Panel) and `page` as in main_chart.js.
 * `legend` is the element that gets the names, or null.
 */
export function panelChart(element, legend, panel, config, page) {
  const memory = new Map();
  const usual = usualOptions(panel);
  let now = usual;
  const watchers = /** @type {(() => void)[]} */ ([]);
  let legendKey = "";
  const plot = new Plot(element, {
    onZoom: (range) => range[1] - range[0] >= 1 && page.zoom.set(range),
    onReset: () => page.zoom.set(null),
    onCursor: (step) => page.board.pointAt(step),
  });
  const chart = {
    id: panel.id,
    element,
    interval: config.limits.panel_interval_ms,
    /** Called with what `options()` says, after people changed it. */
    onOptions: /** @type {((options: any) => void) | null} */ (null),
    title: () => panel.title || now.metrics.join(", "),
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
      now = readOptions({ ...now, ...changes }, usual);
      if (changes.yRange === null) now = { ...now, yRange: null };
      changed(true);
    },
    watch: (hear) => watchers.push(hear),
    /** The y range that is drawn, as values. */
    shownRange: () => {
      const [row] = plot.rows;
      if (!row) return [0, 1];
      return row.log ? row.yRange.map((one) => 10 ** one) : row.yRange;
    },
    metrics: () => matching(now.metrics, page.names),
    forget: () => memory.clear(),
    plot,
    hasLine: () => Boolean(plot.spec?.lines?.length),
    pointAt: (step) => plot.pointer.place(step),
    paint(width, height) {
      const { colors } = config.themes[colorTheme.name()];
      const window = page.look.window();
      const budget = config.limits.panel_points;
      const declared =
        panel.id === MIXTURE
          ? mixtureShapes(page.mixture?.curves, colors, {
              limit: config.limits.lines,
              ghosts: page.settings.ghosts,
              off: page.mixture?.off || [],
            })
          : null;
      if (declared) return drawMixture(declared, width, height, colors);
      const names = chart.metrics();
      const lines = [];
      const named = [];
      const ghosts = [];
      const marks = [];
      const ranges = [];
      const deadValues = [];
      let left = 0;
      for (const name of names) {
        const found = page.store.effective(name, window);
        const lowest = found.length ? found[0].rank : null;
        if (page.settings.ghosts) {
          const dead = page.store
            .dead(name, window)
            .filter((stretch) => panel.per_rank || !found.length || stretch.rank === lowest);
          if (dead.length) {
            const opacity = names.length > 1 || panel.per_rank ? 0.5 : 0.85;
            ghosts.push({
              ...ghostXY(dead, window, budget / 2),
              color: colors.ghost,
              width: 1.1,
              dash: [5, 3],
              opacity,
              hover: false,
            });
            deadValues.push(...visibleValues(dead, window));
          }
        }
        for (const line of panel.per_rank ? found : found.slice(0, 1)) {
          if (named.length >= config.limits.lines) {
            left += 1;
            continue;
          }
          const color = colors.series[named.length % colors.series.length];
          const words = lineWords(name, line, names.length > 1);
          named.push({ name: words, color });
          if (now.hidden.includes(words)) continue;
          const xy = lineXY(line, window, budget);
          lines.push({ ...xy, name: words, color, width: xy.x.length > width ? 1 : 1.5 });
          const values = visibleValues(line.pieces, window);
          if (values.length) ranges.push(robustRange(values, []));
          for (const mark of nonFiniteMarks([line], [], window).slice(0, 100))
            marks.push({ ...mark, color: colors.critical });
        }
      }
      let range = ranges.length
        ? [Math.min(...ranges.map((one) => one[0])), Math.max(...ranges.map((one) => one[1]))]
        : [0, 1];
      if (ranges.length && deadValues.length) range = robustRange(range, deadValues);
      plot.draw({
        width,
        height,
        margin: MARGIN,
        xRange: page.look.stepRange(),
        axis: STEP_AXIS,
        yRange: yRange(range),
        log: now.log,
        colors,
        font: config.font,
        lines: [...ghosts, ...lines],
        ...shapes(page.view(), colors, false),
        marks,
      });
      writeLegend(named, left);
    },
  };

  /** What a line is called among the others. */
  function lineWords(name, line, several) {
    const short = shortName(name, now.metrics);
    if (!panel.per_rank) return short;
    const who = line.rank === null ? line.node : `rank ${line.rank}`;
    return several ? `${short} ${who}` : who;
  }

  /** The y axis: what people zoomed to, else what shows the lines. */
  function yRange(range) {
    if (!now.yRange) return calmRange(memory, "y", axisRange(range, now.log));
    if (!now.log) return now.yRange;
    return now.yRange[1] > 0 ? axisRange(now.yRange, true) : calmRange(memory, "y", axisRange(range, true));
  }

  function changed(told) {
    memory.clear();
    page.board.mark(chart);
    for (const hear of watchers) hear();
    if (told && chart.onOptions) chart.onOptions(chart.options());
  }

  function drawMixture({ lines, areas, marks, range }, width, height, colors) {
    plot.draw({
      width,
      height,
      margin: MARGIN,
      xRange: page.look.stepRange(),
      axis: STEP_AXIS,
      yRange: now.yRange || axisRange(range, false),
      colors,
      font: config.font,
      lines,
      areas,
      marks,
      ...shapes(page.view(), colors, false),
    });
    const named = lines.filter((line) => line.name);
    writeLegend(named, page.mixture.curves.sets.length - named.length);
  }

  function writeLegend(lines, left) {
    if (!legend) return;
    const shown = lines.length > 1 || left || lines.some(({ name }) => now.hidden.includes(name)) ? lines : [];
    const key = JSON.stringify([shown.map(({ name, color }) => [name, color]), left, now.hidden]);
    if (key === legendKey) return;
    legendKey = key;
    const all = shown.map(({ name }) => name);
    const toggle = (name, alone) => chart.set({ hidden: toggled(now.hidden, name, all, alone) });
    patch(
      legend,
      shown.map(({ name, color }) => {
        const on = !now.hidden.includes(name);
        return h(
          "button",
          {
            type: "button",
            class: on ? "key" : "key off",
            title: `${name}: click to ${on ? "hide" : "show"}, Alt and click for this line alone`,
            "aria-pressed": String(on),
            data: { line: name },
            on: {
              click: (event) => toggle(name, event.altKey),
              dblclick: () => toggle(name, true),
            },
          },
          h("i", { style: { background: color } }),
          cutName(name),
        );
      }),
      left ? h("span", { class: "key" }, `+ ${left} more`) : null,
    );
  }
  return chart;
}
