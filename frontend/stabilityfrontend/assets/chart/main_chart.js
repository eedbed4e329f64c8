// The large chart: the loss on the effective timeline, what was discarded as ghosts, forks, incidents, and the gradient
// norm beneath on the same x axis.

import { byId, setShown } from "../core/dom.js";
import { firstRequests } from "../core/first_requests.js";
import { plotlyText, plural } from "../core/format.js";
import { incidentKind } from "../core/kinds.js";
import { colorTheme } from "../core/theme.js";
import { severityOf } from "../incident/severity.js";
import { axisOf } from "./axis.js";
import { axisRange, lowerBound, robustRange } from "./downsample.js";
import { flags } from "./fork_markers.js";
import { logTicks, valueTicks } from "./ticks.js";
import {
  bandEnd,
  ghostTrace,
  ghostXY,
  hasBand,
  lineTrace,
  lineXY,
  mergeShapes,
  nonFiniteMarks,
  shapes,
} from "./traces.js";

const GRAD = "grad_norm";

/** Names that only the loss has, where the server does not say which metric it watches as the loss. */
const LOSSES = ["loss", "train/loss", "train_loss"];

/** The metric that is the run's loss, null where it logs none: what the server watches as one, else what is called so. */
export const lossMetric = (metrics, run) =>
  (run && run.loss_metric) || LOSSES.find((name) => metrics.includes(name)) || null;

/** The metric that the large chart shows: the loss, else what is named like one, else the first there is. */
export const focusMetric = (metrics, run) =>
  lossMetric(metrics, run) || metrics.find((name) => /(^|[/_.])loss$/.test(name)) || metrics[0] || "loss";

/** Values of the lines inside the window, for the range of an axis. */
export function visibleValues(pieces, window) {
  const values = [];
  for (const piece of pieces) {
    const from = window ? Math.max(piece.from, lowerBound(piece.steps, window[0])) : piece.from;
    const to = window ? Math.min(piece.to, lowerBound(piece.steps, window[1] + 1)) : piece.to;
    for (let index = from; index < to; index += 1) values.push(piece.values[index]);
  }
  return values;
}

/** A range that grows at once and shrinks only when it is much too large: axes must not tremble. */
export function calmRange(memory, key, range) {
  const held = memory.get(key);
  if (held) {
    const span = held[1] - held[0];
    const inside = range[0] >= held[0] && range[1] <= held[1];
    if (inside && range[1] - range[0] > 0.82 * span) return held;
  }
  const air = 0.03 * (range[1] - range[0]);
  const fresh = held ? [range[0] < 0 || range[0] - air > 0 ? range[0] - air : range[0], range[1] + air] : range;
  memory.set(key, fresh);
  return fresh;
}

/** Segments that get a line of their own where all are shown; older ones share one. */
const OWN = 24;
/** The raw line behind a smoothed one. */
const BEHIND = 0.28;

/**
 * A chart for the Board. `page` gives: store, derived, view() ({incidents, segments, forks, lastStep}), look (View),
 * settings, metric() (the loss), hasGrad(), zoom, resetZoom().
 */
export function focusChart(element, config, page) {
  const memory = new Map();
  /** The effective line that was drawn last: where on the x axis which step is. */
  let drawn = null;
  const chart = {
    id: "focus",
    element,
    first: true,
    // Where the x axis does not rise with the steps, a zoom is of this chart alone.
    localRange: null,
    interval: config.limits.focus_interval_ms,
    metrics: () => [page.metric(), GRAD],
    forget: () => memory.clear(),
    hasLine: () => Boolean(drawn && drawn.x.length),
    stepOf: (point) => (drawn && drawn.steps ? (point.customdata ?? null) : point.x),
    onZoom(low, high) {
      const axis = axisOf(page);
      const [from, to] = [axis.number(low), axis.number(high)];
      if (!(to > from)) return;
      if (!drawn || !drawn.steps) {
        if (to - from >= 1) page.zoom.set([from, to]);
        else page.board.mark(chart);
        return;
      }
      const { x, steps } = drawn;
      if (x.every((one, index) => index === 0 || one >= x[index - 1])) {
        const first = Math.min(x.length - 1, lowerBound(x, from));
        const last = Math.max(first, lowerBound(x, to) - 1);
        if (steps[last] - steps[first] >= 1) page.zoom.set([steps[first], steps[last]]);
        return;
      }
      chart.localRange = [from, to];
      setShown(byId("zoom-reset"), true);
      page.board.mark(chart);
    },
    onReset: () => page.resetZoom(),
    build(width) {
      const theme = config.themes[colorTheme.name()];
      const { colors } = theme;
      const layout = structuredClone(theme.focus);
      const axis = axisOf(page);
      const window = page.look.window();
      const view = page.view();
      const data = [];
      const both = page.hasGrad();
      if (!both) layout.yaxis.domain = layout.yaxis3.domain = [0, 1];
      layout.plotWidth = width - layout.margin.l - layout.margin.r;
      const draw = { page, config, colors, layout, data, window, memory };
      const top = panel(draw, page.metric(), "y", colors.accent);
      const range = chart.localRange || axis.range(top, window);
      if (both) panel(draw, GRAD, "y2", colors.series[3]);
      else layout.yaxis2.visible = false;
      marks(data, nonFiniteMarks(top.lines.slice(0, config.limits.lines), top.shown, window), colors);
      tip(data, top.main, colors, range);
      drawn = top.main;
      Object.assign(layout.xaxis, axis.layout(range, width - layout.margin.l - layout.margin.r));
      layout.shapes = shapes(view, colors, true, axis);
      layout.annotations = [title(page.metric(), 1, colors)];
      if (both) layout.annotations.push(title(GRAD, layout.yaxis2.domain[1], colors));
      flags(layout, view.forks, colors, range, width, axis);
      bandNames(layout, view, colors, range, width, axis.place);
      layout.shapes = mergeShapes(layout.shapes);
      page.lane.draw(axis, range, layout.margin.l, layout.plotWidth);
      // An axis that nothing stands on costs Plotly a fifth of a drawing.
      if (!data.some((trace) => trace.yaxis === "y3")) delete layout.yaxis3;
      delete layout.plotWidth;
      return { data, layout };
    },
  };
  return chart;
}

/** One of the two panels: a metric's lines into the figure. */
function panel({ page, config, colors, layout, data, window, memory }, metric, axis, color) {
  const { log, ghosts, view } = page.settings;
  const smooth = page.derived.ready() && page.settings.smooth > 0;
  const column = smooth ? "smoothed" : "values";
  const source = page.derived.ready() ? page.derived : page.store;
  const alone = page.look.segment();
  const lines = alone === null ? source.effective(metric, window) : source.alone(metric, alone, window);
  const dead = alone === null ? source.dead(metric, window) : [];
  const shown = view === "all" || ghosts ? dead : [];
  const budget = firstRequests.points.fine;
  const mine = { yaxis: axis };
  if (view === "all") everySegment(data, dead, page, colors, { metric, axis, window, budget, column });
  else if (shown.length)
    data.push(
      ghostTrace(ghostXY(shown, window, budget / 2, column), colors, {
        ...mine,
        hoverinfo: axis === "y" ? undefined : "skip",
      }),
    );
  for (const line of lines.slice(1, config.limits.lines)) {
    data.push(
      lineTrace(lineXY(line, window, budget / 4, column), lineName(metric, line), color, {
        ...mine,
        opacity: 0.3,
        line: { color, width: 1 },
      }),
    );
  }
  if (smooth && lines[0])
    data.push(
      lineTrace(lineXY(lines[0], window, budget), "raw", color, {
        ...mine,
        opacity: BEHIND,
        line: { color, width: 1 },
        hovertemplate: "%{y:.5~g}",
      }),
    );
  const main = lines[0] ? lineXY(lines[0], window, budget, column) : { x: [], y: [] };
  // Where points are denser than pixels the line is a band: a fine one shows its shape.
  const dense = main.x.length > layout.plotWidth;
  const width = dense ? 1.2 : axis === "y" ? 2 : 1.5;
  data.push(
    lineTrace(main, lines.length > 1 ? lineName(metric, lines[0]) : metric, color, {
      ...mine,
      meta: axis === "y" ? "effective" : undefined,
      line: { color, width },
      customdata: main.steps || undefined,
      hovertemplate: main.steps ? "%{y:.5~g} · step %{customdata:,d}" : undefined,
    }),
  );
  const live = lines.flatMap((line) => visibleValues(line.pieces, window));
  const rest = visibleValues(shown, window);
  const wanted = axisRange(robustRange(log ? live.filter((value) => value > 0) : live, rest), log);
  const range = calmRange(memory, `${axis}${log}${ghosts}${view}`, wanted);
  const rows = axis === "y" ? Math.round((layout.yaxis.domain[1] - layout.yaxis.domain[0]) * 9) : 3;
  const ticks = log ? logTicks(range) : valueTicks(range, rows);
  Object.assign(layout[axis === "y" ? "yaxis" : "yaxis2"], {
    type: log ? "log" : "linear",
    range,
    tickvals: ticks.map((one) => one.value),
    ticktext: ticks.map((one) => one.words),
  });
  return { lines, dead, shown, main };
}

/** Every discarded stretch as a line of its own, with a name under the pointer. */
function everySegment(data, dead, page, colors, { metric, axis, window, budget, column }) {
  const labels = new Map(page.forkList.map((fork) => [fork.segment.id, fork.label]));
  const newest = [...new Set(dead.map((one) => one.segment))].sort((a, b) => b - a);
  const share = Math.max(60, budget / Math.max(1, Math.min(OWN, newest.length)));
  newest.slice(0, OWN).forEach((segment) => {
    const color = colors.series[1 + (segment % (colors.series.length - 1))];
    const lowest = dead.filter((one) => one.segment === segment);
    const name = `${labels.get(segment) || "start"} (discarded)`;
    data.push(
      lineTrace(ghostXY(lowest.slice(0, 1), window, share, column), name, color, {
        yaxis: axis,
        mode: "lines",
        opacity: 0.9,
        line: { color, width: 1.3 },
        hoverinfo: axis === "y" ? undefined : "skip",
      }),
    );
  });
  const older = dead.filter((one) => !newest.slice(0, OWN).includes(one.segment));
  if (older.length)
    data.push(
      ghostTrace(ghostXY(older, window, budget / 2, column), colors, {
        yaxis: axis,
        hoverinfo: "skip",
        name: `${metric} of ${plural(newest.length - OWN, "older segment")}`,
      }),
    );
}

const lineName = (metric, line) => (line.rank === null ? `${metric} ${line.node}` : `${metric} rank ${line.rank}`);

function marks(data, found, colors) {
  if (!found.x.length) return;
  data.push({
    type: "scatter",
    mode: "markers",
    x: found.x,
    y: found.y,
    yaxis: "y3",
    name: "not a number",
    text: found.text.map(plotlyText),
    hovertemplate: "%{text}<extra></extra>",
    marker: {
      symbol: found.symbols,
      size: 9,
      color: found.dead.map((dead) => (dead ? colors.ghost : colors.critical)),
      line: { width: 2, color: found.dead.map((dead) => (dead ? colors.ghost : colors.critical)) },
    },
    cliponaxis: false,
  });
}

/** A dot and the number at the live end of the line. */
function tip(data, main, colors, range) {
  let at = main.x.length - 1;
  while (at >= 0 && main.y[at] === null) at -= 1;
  if (at < 0 || (range && main.x[at] > range[1])) return;
  data.push({
    type: "scatter",
    mode: "markers",
    x: [main.x[at]],
    y: [main.y[at]],
    yaxis: "y",
    hoverinfo: "skip",
    marker: { color: colors.accent, size: 8, line: { color: colors.panel, width: 2 } },
    cliponaxis: false,
  });
}

/** The name of a panel, left of the plot and above its axis: nothing is ever drawn there. */
function title(name, top, colors) {
  return {
    xref: "paper",
    yref: "paper",
    x: 0,
    y: top,
    xanchor: "right",
    yanchor: "bottom",
    xshift: -4,
    yshift: 3,
    showarrow: false,
    text: plotlyText(name.length > 9 ? `${name.slice(0, 8)}…` : name),
    font: { size: 11, color: colors.soft },
  };
}

/** The kind of an incident inside its band, where the band is wide enough to hold it. */
function bandNames(layout, view, colors, range, width, place) {
  if (!range) return;
  const scale = (width - layout.margin.l - layout.margin.r) / (range[1] - range[0]);
  let free = -Infinity;
  for (const incident of view.incidents
    .filter(hasBand)
    .slice(0, 40)
    .sort((a, b) => a.onset_step - b.onset_step)) {
    const [onset, until] = [incident.onset_step, bandEnd(incident, view.segments, view.lastStep)].map((step) =>
      place(step, incident.segment),
    );
    if (incident.onset_step === null || onset === null || until === null) continue;
    const start = Math.max(onset, range[0]);
    const end = Math.min(until, range[1]);
    const words = incidentKind(incident.kind).short;
    const need = 7 * words.length + 8;
    if ((end - start) * scale < need || (start - range[0]) * scale < free) continue;
    free = (start - range[0]) * scale + need;
    layout.annotations.push({
      x: start,
      xref: "x",
      y: 0.985,
      yref: "paper",
      yanchor: "top",
      xanchor: "left",
      xshift: 3,
      showarrow: false,
      text: plotlyText(words),
      font: { size: 11, color: colors[severityOf(incident)] },
    });
  }
}
