// The large chart: the loss on the effective timeline, what was discarded as ghosts, forks, incidents, and the gradient
// norm beneath on the same x axis.
(function () {
  "use strict";
  const S = (window.stability = window.stability || {});
  const GRAD = "grad_norm";

  /** The metric that the large chart shows: `loss`, else what is named like one, else the first there is. */
  S.focusMetric = function (metrics) {
    return ["loss", "train/loss", "train_loss"].find((name) => metrics.includes(name)) || metrics.find((name) => /(^|[/_.])loss$/.test(name)) || metrics[0] || "loss";
  };

  /** Values of the lines inside the window, for the range of an axis. */
  S.visibleValues = function (pieces, window) {
    const values = [];
    for (const piece of pieces) {
      const from = window ? Math.max(piece.from, S.lowerBound(piece.steps, window[0])) : piece.from;
      const to = window ? Math.min(piece.to, S.lowerBound(piece.steps, window[1] + 1)) : piece.to;
      for (let index = from; index < to; index += 1) values.push(piece.values[index]);
    }
    return values;
  };

  /** A range that grows at once and shrinks only when it is much too large: axes must not tremble. */
  S.calmRange = function (memory, key, range) {
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
  };

  /**
   * A chart for the Board. `page` gives: store, view() ({incidents, segments, forks, lastStep}), xRange(), settings
   * ({log, ghosts}), metric() (the loss), hasGrad().
   */
  S.focusChart = function (element, config, page) {
    const memory = new Map();
    const chart = {
      id: "focus",
      element,
      first: true,
      interval: config.limits.focus_interval_ms,
      metrics: () => [page.metric(), GRAD],
      forget: () => memory.clear(),
      build(width) {
        const theme = config.themes[S.theme.name()];
        const colors = theme.colors;
        const layout = structuredClone(theme.focus);
        const window = page.window();
        const range = page.xRange();
        const view = page.view();
        const { log, ghosts } = page.settings;
        const data = [];
        layout.shapes = S.shapes(view, colors, true);
        layout.annotations = [];

        const both = page.hasGrad();
        if (!both) layout.yaxis.domain = layout.yaxis3.domain = [0, 1];
        const panel = (metric, axis, color) => {
          const lines = page.store.effective(metric, window);
          const dead = page.store.dead(metric, window);
          const axisName = axis === "y" ? "yaxis" : "yaxis2";
          const budget = config.limits.focus_points;
          if (ghosts && dead.length) data.push(S.ghostTrace(S.ghostXY(dead, window, budget / 2), colors, { yaxis: axis, hoverinfo: axis === "y" ? undefined : "skip" }));
          for (const line of lines.slice(1, config.limits.lines)) {
            data.push(S.lineTrace(S.lineXY(line, window, budget / 4), lineName(metric, line), color, { yaxis: axis, opacity: 0.3, line: { color, width: 1 } }));
          }
          const main = lines[0] ? S.lineXY(lines[0], window, budget) : { x: [], y: [] };
          data.push(S.lineTrace(main, lines.length > 1 ? lineName(metric, lines[0]) : metric, color, { yaxis: axis, line: { color, width: axis === "y" ? 2 : 1.5 } }));
          const live = lines.flatMap((line) => S.visibleValues(line.pieces, window));
          const rest = ghosts ? S.visibleValues(dead, window) : [];
          const wanted = S.axisRange(S.robustRange(log ? live.filter((value) => value > 0) : live, rest), log);
          Object.assign(layout[axisName], { type: log ? "log" : "linear", range: S.calmRange(memory, `${axis}${log}${ghosts}`, wanted) });
          if (log) Object.assign(layout[axisName], { dtick: wanted[1] - wanted[0] < 1.2 ? "D2" : 1, nticks: 0 });
          return { lines, dead, main };
        };

        const top = panel(page.metric(), "y", colors.accent);
        if (both) panel(GRAD, "y2", colors.series[3]);
        else layout.yaxis2.visible = false;
        marks(data, S.marks(top.lines.slice(0, config.limits.lines), ghosts ? top.dead : [], window), colors);
        tip(data, layout, top.main, colors, range);
        layout.xaxis.range = range;
        layout.annotations.push(title(page.metric(), 1, colors));
        if (both) layout.annotations.push(title(GRAD, layout.yaxis2.domain[1], colors));
        S.flags(layout, view.forks, colors, range, width);
        bandNames(layout, view, colors, range, width);
        layout.shapes = S.mergeShapes(layout.shapes);
        return { data, layout };
      },
    };
    return chart;
  };

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
      text: found.text.map(S.plotlyText),
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
  function tip(data, layout, main, colors, range) {
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
      text: S.plotlyText(name.length > 9 ? `${name.slice(0, 8)}…` : name),
      font: { size: 11, color: colors.soft },
    };
  }

  /** The kind of an incident inside its band, where the band is wide enough to hold it. */
  function bandNames(layout, view, colors, range, width) {
    if (!range) return;
    const scale = (width - layout.margin.l - layout.margin.r) / (range[1] - range[0]);
    let free = -Infinity;
    for (const incident of [...view.incidents.slice(0, 40)].sort((a, b) => a.onset_step - b.onset_step)) {
      const start = Math.max(incident.onset_step, range[0]);
      const end = Math.min(S.bandEnd(incident, view.segments, view.lastStep), range[1]);
      const words = S.words(incident.kind);
      const need = 7 * words.length + 8;
      if ((end - start) * scale < need || start * scale < free) continue;
      free = start * scale + need;
      layout.annotations.push({
        x: start,
        xref: "x",
        y: 0.985,
        yref: "paper",
        yanchor: "top",
        xanchor: "left",
        xshift: 3,
        showarrow: false,
        text: S.plotlyText(words),
        font: { size: 11, color: colors[S.severity(incident)] },
      });
    }
  }
})();
