// The small multiples: one chart for a metric or a family of metrics, on the shared x axis.

import { cutName, fill, h } from "../core/dom.js";
import { matching } from "../core/first_requests.js";
import { colorTheme } from "../core/theme.js";
import { STEP_AXIS } from "./axis.js";
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
    metrics: () => matching(panel.metrics, page.names),
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
          if (lines.length >= config.limits.lines) {
            left += 1;
            continue;
          }
          const color = colors.series[lines.length % colors.series.length];
          const words = panel.per_rank
            ? line.rank === null
              ? line.node
              : `rank ${line.rank}`
            : shortName(name, panel.metrics);
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
        yRange: calmRange(memory, "y", axisRange(range, panel.log)),
        log: panel.log,
        colors,
        font: config.font,
        lines: [...ghosts, ...lines],
        ...shapes(page.view(names), colors, false),
        marks,
      });
      writeLegend(lines, left);
    },
  };

  function drawMixture({ lines, areas, marks, range }, width, height, colors) {
    plot.draw({
      width,
      height,
      margin: MARGIN,
      xRange: page.look.stepRange(),
      axis: STEP_AXIS,
      yRange: axisRange(range, false),
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
    const shown = lines.length > 1 || left ? lines.map(({ name, color }) => ({ name, color })) : [];
    const key = JSON.stringify([shown, left]);
    if (key === legendKey) return;
    legendKey = key;
    fill(
      legend,
      shown.map(({ name, color }) =>
        h("span", { class: "key", title: name }, h("i", { style: { background: color } }), cutName(name)),
      ),
      left ? h("span", { class: "key" }, `+ ${left} more`) : null,
    );
  }
  return chart;
}
