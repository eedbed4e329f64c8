// One run over itself: all its attempts by the steps since each began, or the two branches of a fork with their difference.
// What is said of them the server decides. The address has all that is chosen.

import { FORK_AXIS } from "../chart/axis.js";
import { axisRange, robustRange } from "../chart/downsample.js";
import { Plot } from "../chart/line_chart.js";
import { focusMetric } from "../chart/main_chart.js";
import { api } from "../core/api.js";
import { choice, grow, LINEAR_LOG, panelHead, remember, segments, toolPlace } from "../core/controls.js";
import { byId, fill, h, patch, segmented, setHref, setShown, setText, tableHead } from "../core/dom.js";
import { errorText, formatCount, formatValue, plural, toNumber } from "../core/format.js";
import { attemptsHref, incidentHref } from "../core/route.js";
import { colorTheme } from "../core/theme.js";
import { crumbRuns, frame, morePanels } from "../navigation/rail.js";

/** How often new points are asked for while the job runs. */
const AGAIN_MS = 4000;
const MARGIN = { l: 66, r: 18, t: 14, b: 30 };
const SYMBOLS = { Infinity: "up", "-Infinity": "down" };

/** @type {import("../chart/line_chart.js").XAxis} */
const START_AXIS = { ...FORK_AXIS, words: (x) => `${plural(Math.round(x), "step")} after the start` };

/** A curve of the server as a line: what is no number is a gap. */
const lineOf = ({ xs, values }) => ({
  x: xs,
  y: values.map((value) => (Number.isFinite(toNumber(value)) ? toNumber(value) : null)),
});

const skeleton = () =>
  frame(
    [
      crumbRuns(),
      h("h1.crumb-here", h("a.crumb-link", { id: "attempts-run", href: "/" })),
      h("span.crumb-sep", "/"),
      h("span.crumb", "Attempts"),
      grow(),
    ],
    h(
      "main.list.stack",
      h(
        "section.panel",
        h("div.panel-head", h("h2", { id: "attempts-title" }, "Attempts")),
        h("p.attempts-text", { id: "attempts-text", role: "status" }),
        h(
          "div.tools",
          toolPlace("attempts-metric"),
          toolPlace("attempts-modes"),
          grow(),
          segments("attempts-scale", "Value axis", LINEAR_LOG),
        ),
        h("div.legend.wide", { id: "attempts-legend" }),
        h("div.chart.attempts", { id: "attempts-chart" }),
      ),
      h(
        "section.panel",
        { id: "attempts-difference-panel", hidden: true },
        panelHead("Difference"),
        h("div.chart.small", { id: "attempts-difference" }),
      ),
      h("section.panel", h("div.wide-table", { id: "attempts-table" })),
      morePanels(),
    ),
  );

export class AttemptsPage {
  static skeleton = skeleton;

  constructor(root, config) {
    this.root = root;
    this.config = config;
    this.id = root.dataset.run;
    const query = new URLSearchParams(location.search);
    this.fork = /^\d{1,9}$/.test(query.get("fork") || "") ? Number(query.get("fork")) : null;
    this.metric = query.get("metric") || "";
    this.log = query.get("scale") === "log";
    this.off = new Set();
    this.answer = /** @type {any} */ (null);
    this.range = null;
    this.plot = new Plot(byId("attempts-chart"), this.events("Attempts"));
    this.lower = new Plot(byId("attempts-difference"), this.events("Difference"));
    this.metricList = choice(byId("attempts-metric"), "attempts-metric-list", "Metric", (value) => {
      this.metric = value;
      this.range = null;
      this.remember();
      this.fetch();
    });
    segmented(byId("attempts-scale"), (value) => {
      this.log = value === "log";
      this.remember();
      this.draw();
    })(this.log ? "log" : "linear", true);
    this.unwatch = colorTheme.watch(() => this.draw());
    this.sized = new ResizeObserver(() => this.paint());
    this.sized.observe(byId("attempts-chart"));
    setShown(byId("attempts-difference-panel"), this.fork !== null);
    fill(
      byId("attempts-modes"),
      h("a", { class: `toggle${this.fork === null ? " on" : ""}`, href: attemptsHref(this.id) }, "All attempts"),
    );
    setHref(byId("attempts-run"), `/runs/${encodeURIComponent(this.id)}`);
    this.begin();
  }

  events(label) {
    return {
      label,
      onZoom: (range) => {
        this.range = range[1] - range[0] >= 1 ? range : this.range;
        this.paint();
      },
      onReset: () => {
        this.range = null;
        this.paint();
      },
      onCursor: (x) => {
        this.plot.pointer.place(x);
        this.lower.pointer.place(x);
      },
    };
  }

  remember() {
    remember({
      fork: this.fork === null ? null : String(this.fork),
      metric: this.metric,
      scale: this.log ? "log" : null,
    });
  }

  async begin() {
    try {
      this.run = await api.run(this.id);
      if (this.gone) return;
      setText(byId("attempts-run"), this.run.name || this.id);
      document.title = `Attempts · ${this.run.name || this.id}`;
      if (!this.metric) this.metric = focusMetric(this.run.metrics || [], this.run);
      await this.fetch();
    } catch (error) {
      this.say(errorText(error));
    }
  }

  async fetch() {
    clearTimeout(this.timer);
    try {
      const answer =
        this.fork === null
          ? await api.attempts(this.id, this.metric)
          : await api.branches(this.id, this.metric, this.fork);
      if (this.gone) return;
      this.answer = answer;
      this.draw();
    } catch (error) {
      if (this.gone) return;
      this.say(errorText(error));
    }
    if (this.run && this.run.status === "running")
      this.timer = setTimeout(() => (document.hidden ? this.later() : this.fetch()), AGAIN_MS);
  }

  later() {
    this.timer = setTimeout(() => (document.hidden ? this.later() : this.fetch()), AGAIN_MS);
  }

  say(words) {
    setText(byId("attempts-text"), words);
  }

  // -- drawing --------------------------------------------------------------------------------------------------

  /** What is drawn: `{id, name, curve, live, to}` each. */
  lines() {
    if (!this.answer) return [];
    if (this.fork !== null) {
      const { label, left, right } = this.answer;
      return [
        { id: 0, name: `left by ${label}`, curve: left, live: false },
        { id: 1, name: "goes on", curve: right, live: true },
      ];
    }
    return this.answer.attempts.map((one) => ({
      id: one.segment,
      name: one.label || "start",
      curve: one.curve,
      live: !one.ended,
    }));
  }

  colour(index, live) {
    const { colors } = this.config.themes[colorTheme.name()];
    return live ? colors.accent : colors.series[1 + (index % (colors.series.length - 1))];
  }

  draw() {
    if (this.gone || !this.root.isConnected) return;
    const names = this.run?.metrics || [];
    this.metricList.options(
      (names.includes(this.metric) ? names : [this.metric, ...names]).map((name) => ({ value: name, text: name })),
      this.metric,
    );
    if (this.answer) this.say(this.answer.text);
    setText(
      byId("attempts-title"),
      this.fork === null
        ? "Attempts, by steps since each began"
        : `The branches of ${this.answer?.label || "the fork"}, by steps since step ${formatCount(this.answer?.fork_step)}`,
    );
    patch(
      byId("attempts-legend"),
      this.lines().map((line, index) =>
        h(
          "button",
          {
            class: `legend-key${this.off.has(line.id) ? " off" : ""}`,
            "aria-pressed": String(!this.off.has(line.id)),
            data: { line: line.id },
            onclick: () => {
              if (this.off.has(line.id)) this.off.delete(line.id);
              else this.off.add(line.id);
              this.draw();
            },
          },
          h("i", { style: { background: this.colour(index, line.live) } }),
          h("span", line.name),
        ),
      ),
    );
    this.table();
    this.paint();
  }

  paint() {
    const element = byId("attempts-chart");
    if (this.gone || !element || element.clientWidth < 40) return;
    const { colors } = this.config.themes[colorTheme.name()];
    const shown = this.lines().map((line, index) => ({ ...line, color: this.colour(index, line.live) }));
    const drawn = shown.filter((line) => !this.off.has(line.id));
    const all = drawn.map((line) => ({
      ...lineOf(line.curve),
      name: line.name,
      color: line.color,
      width: line.live ? 2 : 1.4,
    }));
    const xRange = this.range || extent(all);
    element.dataset.empty = !this.answer
      ? "Fetching …"
      : all.some((line) => line.x.length)
        ? ""
        : `${this.metric} was not logged in any of them.`;
    const marks = drawn.flatMap((line) =>
      line.curve.values.flatMap((value, index) =>
        Number.isFinite(toNumber(value))
          ? []
          : [
              {
                x: line.curve.xs[index],
                color: line.color,
                symbol: SYMBOLS[value] || "x",
                words: `${value}, ${line.name}`,
              },
            ],
      ),
    );
    const ends = drawn.flatMap((line) =>
      line.live || !line.curve.xs.length
        ? []
        : [{ x: line.curve.xs[line.curve.xs.length - 1], color: line.color, dash: [2, 3], opacity: 0.7, height: 1 }],
    );
    const base = {
      width: element.clientWidth,
      margin: MARGIN,
      xRange,
      axis: this.fork === null ? START_AXIS : FORK_AXIS,
      colors,
      font: this.config.font,
    };
    const inside = (line) =>
      line.y.filter(
        (value, at) => value !== null && (!this.log || value > 0) && line.x[at] >= xRange[0] && line.x[at] <= xRange[1],
      );
    this.plot.draw({
      ...base,
      height: element.clientHeight,
      yRange: axisRange(spread(all.map(inside)), this.log),
      log: this.log,
      lines: all,
      rules: ends,
      marks: marks.slice(0, 400),
    });
    const below = byId("attempts-difference");
    if (this.fork === null || !this.answer || below.clientWidth < 40) return;
    const difference = { ...lineOf(this.answer.difference), name: "difference", color: colors.text, width: 1.4 };
    this.lower.draw({
      ...base,
      height: below.clientHeight,
      yRange: axisRange(robustRange([...inside({ ...difference }), 0], []), false),
      lines: [{ x: [xRange[0], xRange[1]], y: [0, 0], color: colors.strong, width: 1, hover: false }, difference],
      marks: [],
    });
  }

  table() {
    const place = byId("attempts-table");
    if (!this.answer) return;
    if (this.fork !== null) {
      const { label } = this.answer;
      const heads = ["Steps after the fork", "Step", `Left by ${label}`, "Goes on", "Difference"];
      const rows = this.answer.table.map((row) => [
        formatCount(row.after),
        formatCount(row.step),
        ...[row.left, row.right, row.difference].map((value) => formatValue(toNumber(value), 5)),
      ]);
      patch(place, tableOf(heads, rows, 0));
      return;
    }
    const heads = ["Attempt", "How it ended", "Why", "Incident", "From step", "To step", "Steps"];
    const rows = this.answer.attempts.map((one, index) => [
      [h("i.swatch", { style: { background: this.colour(index, !one.ended) } }), ` ${one.label || "start"}`],
      one.how,
      one.why,
      one.incident_id ? h("a", { href: incidentHref(this.id, one.incident_id) }, one.title || one.kind) : "–",
      formatCount(one.start_step + 1),
      formatCount(one.last_step),
      formatCount(one.steps),
    ]);
    patch(
      place,
      tableOf(heads, rows, 4),
      this.answer.left_out ? h("p.sub", `${plural(this.answer.left_out, "older attempt")} not shown`) : null,
    );
  }

  close() {
    this.gone = true;
    clearTimeout(this.timer);
    this.unwatch();
    this.sized.disconnect();
  }
}

/** A table whose columns from `numbers` on are numbers. */
function tableOf(heads, rows, numbers) {
  const kind = (index) => (index >= numbers ? "num" : "");
  return h(
    "table.table.dense",
    tableHead(heads, (_head, index) => kind(index)),
    h(
      "tbody",
      rows.map((row) =>
        h(
          "tr",
          row.map((cell, index) => h("td", { class: kind(index) }, cell)),
        ),
      ),
    ),
  );
}

/** From the first to the last x of some lines. */
function extent(lines) {
  const ends = lines.filter((line) => line.x.length).flatMap((line) => [line.x[0], line.x[line.x.length - 1]]);
  if (!ends.length) return [0, 100];
  const [low, high] = [Math.min(0, ...ends), Math.max(...ends)];
  const span = high - low || 1;
  return [low - 0.005 * span, high + 0.01 * span];
}

/** A range that fits the values of all lines, not their worst peaks. */
function spread(lists) {
  const ranges = lists.filter((list) => list.length).map((list) => robustRange(list, []));
  return ranges.length ? [Math.min(...ranges.map((one) => one[0])), Math.max(...ranges.map((one) => one[1]))] : [0, 1];
}
