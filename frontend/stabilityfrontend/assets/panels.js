// The small multiples: one chart for a metric or a family of metrics, on the shared x axis.
(function () {
  "use strict";
  const S = (window.stability = window.stability || {});

  /** The names of `metrics` that a panel's patterns match: equal, or beginning with what stands before a `*`. */
  S.matching = function (patterns, metrics) {
    return metrics.filter((name) => patterns.some((pattern) => (pattern.endsWith("*") ? name.startsWith(pattern.slice(0, -1)) : name === pattern)));
  };

  /** What tells the lines of one panel apart: `loss/code` among `loss/*` is `code`. */
  function shortName(name, patterns) {
    const pattern = patterns.find((one) => one.endsWith("*") && name.startsWith(one.slice(0, -1)));
    return pattern ? name.slice(pattern.length - 1) || name : name;
  }

  /**
   * A small chart for the Board. `panel` is what the page's skeleton says (run_page.Panel) and `page` as in focus.js.
   * `legend` is the element that gets the names, or null.
   */
  S.panelChart = function (element, legend, panel, config, page) {
    const memory = new Map();
    let legendKey = "";
    const chart = {
      id: panel.id,
      element,
      interval: config.limits.panel_interval_ms,
      metrics: () => S.matching(panel.metrics, page.metrics()),
      forget: () => memory.clear(),
      build() {
        const theme = config.themes[S.theme.name()];
        const colors = theme.colors;
        const layout = structuredClone(theme.panel);
        const window = page.window();
        const budget = config.limits.panel_points;
        const names = chart.metrics();
        const data = [];
        const shown = [];
        const values = [];
        const ghosts = [];
        let left = 0;
        for (const name of names) {
          const lines = page.store.effective(name, window);
          if (page.settings.ghosts) {
            const dead = page.store.dead(name, window).filter((stretch) => panel.per_rank || !lines.length || stretch.rank === lines[0].rank);
            if (dead.length) {
              data.unshift(S.ghostTrace(S.ghostXY(dead, window, budget / 2), colors, { hoverinfo: "skip", opacity: names.length > 1 ? 0.45 : 0.8 }));
              ghosts.push(...S.visibleValues(dead, window));
            }
          }
          for (const line of panel.per_rank ? lines : lines.slice(0, 1)) {
            if (shown.length >= config.limits.lines) {
              left += 1;
              continue;
            }
            const color = colors.series[(names.length === 1 && !panel.per_rank ? panel.color || 0 : shown.length) % colors.series.length];
            const words = panel.per_rank ? (line.rank === null ? line.node : `rank ${line.rank}`) : shortName(name, panel.metrics);
            data.push(S.lineTrace(S.lineXY(line, window, budget), words, color));
            values.push(S.visibleValues(line.pieces, window));
            shown.push({ words, color });
          }
        }
        const ranges = values.filter((list) => list.length).map((list) => S.robustRange(list, []));
        let range = ranges.length ? [Math.min(...ranges.map((one) => one[0])), Math.max(...ranges.map((one) => one[1]))] : [0, 1];
        if (ranges.length && ghosts.length) range = S.robustRange([...range], ghosts);
        layout.yaxis.type = panel.log ? "log" : "linear";
        layout.yaxis.range = S.calmRange(memory, "y", S.axisRange(range, panel.log));
        layout.xaxis.range = page.xRange();
        layout.shapes = S.shapes(page.view(), colors, false);
        writeLegend(shown, left);
        return { data, layout };
      },
    };

    function writeLegend(shown, left) {
      if (!legend) return;
      const lines = shown.length > 1 || left ? shown : [];
      const key = JSON.stringify([lines, left]);
      if (key === legendKey) return;
      legendKey = key;
      S.fill(
        legend,
        lines.map(({ words, color }) => S.h("span", { class: "key", title: words }, S.h("i", { style: { background: color } }), words)),
        left ? S.h("span", { class: "key" }, `+ ${left} more`) : null,
      );
    }
    return chart;
  };
})();
