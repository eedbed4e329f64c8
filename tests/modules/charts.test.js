// What charts make of points: fewer of them, a scale, ticks, shapes.

import assert from "node:assert/strict";
import { test } from "node:test";
import { STEP_AXIS } from "../../frontend/stabilityfrontend/assets/chart/axis.js";
import { ChartPointer } from "../../frontend/stabilityfrontend/assets/chart/chart_pointer.js";
import { axisRange, robustRange, thinInto } from "../../frontend/stabilityfrontend/assets/chart/downsample.js";
import { Plot } from "../../frontend/stabilityfrontend/assets/chart/line_chart.js";
import { mixtureShapes } from "../../frontend/stabilityfrontend/assets/chart/panel_chart.js";
import { valueTicks } from "../../frontend/stabilityfrontend/assets/chart/ticks.js";
import { ghostXY, shapes } from "../../frontend/stabilityfrontend/assets/chart/traces.js";
import { kindTable } from "../../frontend/stabilityfrontend/assets/core/kinds.js";

const wave = (length) => Array.from({ length }, (_, step) => Math.sin(step / 50));

test("thinning keeps the ends and each bucket's extremes", () => {
  const values = wave(10_000);
  values[4321] = 7;
  const [x, y] = [[], []];
  thinInto([...values.keys()], values, 0, values.length, 200, x, y);
  assert.ok(x.length <= 200);
  assert.deepEqual([x[0], x.at(-1), y[x.indexOf(4321)], Math.min(...y)], [0, 9999, 7, Math.min(...values)]);
  assert.deepEqual(
    x,
    [...new Set(x)].sort((a, b) => a - b),
  );
});

test("two discarded branches are never joined", () => {
  const branches = [
    { steps: [4, 5, 6], values: [9, 9, 9], from: 0, to: 3 },
    { steps: [5, 6], values: [8, Number.NaN], from: 0, to: 2 },
  ];
  assert.deepEqual(ghostXY(branches, null, 100), { x: [4, 5, 6, 5, 5, 6], y: [9, 9, 9, null, 8, null] });
});

test("a discarded spike does not set the scale and one on the line does", () => {
  const calm = wave(500).map((value) => 2 + 0.05 * value);
  const [low, high] = robustRange(calm, Array(30).fill(100));
  assert.ok(1.9 < low && low < 2 && 2.05 <= high && high < 2.2, `${low} to ${high}`);
  assert.equal(robustRange([...calm, 30, 30, 30, 30, 30], [])[1], 30);
});

/** The steps, bands and forks of a view with resolved incidents `[severity, onset, end]`. */
function drawn(bands, forks = []) {
  kindTable[""] = { band: true };
  const incidents = bands.map(([severity, onset_step, until_step]) => ({
    severity,
    alarm: severity !== "info",
    onset_step,
    until_step,
    step: onset_step,
    state: "resolved",
    segment: 0,
  }));
  const view = { incidents, forks, segments: new Map(), lastStep: 400 };
  return shapes(view, { critical: "#f00", warning: "#fa0", accent: "#00f" }, true);
}

/** How many of the bands' groups lie over each step: each of them darkens it once. */
const depths = (bands, steps) =>
  steps.map((step) => drawn(bands).bands.filter(({ rects }) => rects.some(([a, b]) => a < step && step < b)).length);

test("what is known and no alarm is a strip at the foot", () => {
  const heights = drawn([
    ["critical", 0, 9],
    ["info", 0, 9],
  ]).bands.map(({ rects }) => rects[0][2]);
  assert.deepEqual(heights, [1, 0.02]);
});

test("forty incidents are as many groups as they have looks", () => {
  const { bands, rules } = drawn(
    Array.from({ length: 40 }, (_, index) => [index % 2 ? "critical" : "warning", 10 * index, 10 * index + 5]),
    [{ step: 7 }, { step: 9 }],
  );
  assert.deepEqual(
    bands.map(({ rects }) => rects.length),
    [20, 20],
  );
  assert.deepEqual(bands[0].rects[0], [0, 5, 1]);
  assert.deepEqual(
    rules.map(({ x }) => x),
    [7, 9],
  );
});

test("bands that overlap add up", () => {
  const alike = [
    ["critical", 10, 40],
    ["critical", 20, 60],
    ["critical", 30, 50],
  ];
  assert.deepEqual(depths(alike, [5, 15, 25, 35, 45, 55, 65]), [0, 1, 2, 3, 2, 1, 0]);
});

test("of many bands over each other the curve can still be seen", () => {
  const many = Array.from({ length: 40 }, (_, onset) => ["critical", onset, 99]);
  assert.deepEqual(depths(many, [2.5, 50]), [3, 4]);
});

/** A chart without an element, of one row 100 pixels wide and high. */
function plotted(row) {
  const spec = { xRange: [0, 10], axis: STEP_AXIS, colors: {}, ...row };
  const inner = { left: 0, right: 100, top: 0, bottom: 100 };
  return Object.assign(Object.create(Plot.prototype), { spec, rows: [spec], inner, flags: [] });
}

test("what is read out is the nearest point, and of what was discarded only what is near", () => {
  const lines = [
    { name: "discarded", near: true, x: [0, 1], y: [9, 9] },
    { name: "loss", x: [0, 4, 8], y: [3, 2, 1] },
  ];
  const marks = [{ x: 4, words: "NaN at step 4" }];
  const read = (at) => {
    const { x, points, marks: said } = ChartPointer.prototype.found.call({ plot: plotted({ lines, marks }) }, at);
    return [x, points.map(({ line, point }) => [line.name, point.value]), said.length];
  };
  const near = ["discarded", 9];
  assert.deepEqual(read(0.4), [0, [near, ["loss", 3]], 0]);
  assert.deepEqual(read(5), [4, [["loss", 2]], 1]);
});

test("a value of zero or less is below a logarithmic axis", () => {
  const row = { log: true, yRange: [0, 2], lines: [], marks: [] };
  const plot = plotted(row);
  assert.deepEqual(
    [100, 10, 1].map((value) => plot.toY(row, value)),
    [0, 50, 100],
  );
  assert.ok(plot.toY(row, 0) > 100);
});

for (const [range, words] of [
  [[0, 0.00032], "0 1e−4 2e−4 3e−4"],
  [[0, 0.0011], "0 0.0002 0.0004 0.0006 0.0008 0.0010"],
  [[1.95, 2.31], "2.0 2.1 2.2 2.3"],
  [[36_000, 44_500], "36k 38k 40k 42k 44k"],
  [[-1, 1], "−1.0 −0.5 0 0.5 1.0"],
]) {
  test(`the ticks of an axis are round and alike: ${range}`, () => {
    const ticks = valueTicks(range, 4).map((tick) => tick.words);
    assert.equal(ticks.join(" "), words);
  });
}

for (const [value, words] of [
  [1e-3, "0.0008 0.0010 0.0012"],
  [12.5, "10 12 14"],
]) {
  test(`a constant has ticks that fit beside it: ${value}`, () => {
    const ticks = valueTicks(axisRange([value, value], false), 3).map((tick) => tick.words);
    assert.equal(ticks.join(" "), words);
  });
}

const COLORS = { series: ["#111", "#555", "#999", "#222"], critical: "#f00", ghost: "#777" };

test("a declared mixture is steps and bands, and what is no number is a mark and a gap", () => {
  const set = { dataset: "web", declared: [0.7, 0.5], realised: [0.69, "NaN"], low: [null, 0.4], high: [null, 0.6] };
  const curves = { bucket_steps: 16, first: [0, 16], last: [15, 31], rows: [16, 16], sets: [set], discarded: [] };
  const { lines, areas, marks } = mixtureShapes(curves, COLORS, { limit: 8, ghosts: true, off: [] });
  assert.deepEqual(
    lines.map((line) => [line.name, line.x, line.y]),
    [
      [undefined, [0, 16, 16, 32], [0.7, 0.7, 0.5, 0.5]],
      ["web", [7.5, 23.5], [0.69, null]],
    ],
  );
  assert.deepEqual(areas[0].rects, [[16, 32, 0.4, 0.6]]);
  assert.deepEqual(
    marks.map((mark) => mark.x),
    [23.5],
  );
  assert.equal(mixtureShapes({ ...curves, first: [] }, COLORS, { limit: 8, ghosts: true, off: [] }), null);
});

test("a share that is far off for a moment stays within the chart of the mixture", () => {
  const first = Array.from({ length: 100 }, (_, at) => 16 * at);
  const shares = first.map((_, at) => (at === 50 ? 0.9 : 0.3));
  const set = {
    dataset: "web",
    declared: shares.map(() => 0.3),
    realised: shares,
    low: first.map(() => null),
    high: [],
  };
  const curves = {
    bucket_steps: 16,
    first,
    last: first.map((step) => step + 15),
    rows: [],
    sets: [set],
    discarded: [],
  };
  assert.deepEqual(mixtureShapes(curves, COLORS, { limit: 8, ghosts: true, off: [] }).range, [0.3, 0.9]);
});

test("of many data sets the chart draws those that are off and the largest, and what a discarded branch took of them", () => {
  const of = (dataset, share) => ({ dataset, declared: [share], realised: [share], low: [null], high: [null] });
  const sets = [of("chat", 0.1), of("math", 0.2), of("code", 0.3), of("web", 0.4)];
  const left = {
    segment: 0,
    first: [16],
    last: [31],
    realised: { chat: [0.5], math: [0], code: [0.25], web: ["NaN"] },
  };
  const curves = { bucket_steps: 16, first: [0], last: [15], rows: [16], sets, discarded: [left] };
  const named = (ghosts) =>
    mixtureShapes(curves, COLORS, { limit: 2, ghosts, off: ["chat"] }).lines.map(({ name, color, y }) => [
      name,
      color,
      y,
    ]);
  assert.deepEqual(named(false), [
    [undefined, "#111", [0.1, 0.1]],
    ["chat", "#111", [0.1]],
    [undefined, "#222", [0.4, 0.4]],
    ["web", "#222", [0.4]],
  ]);
  assert.deepEqual(named(true).slice(0, 2), [
    [undefined, "#777", [0.5]],
    [undefined, "#777", [null]],
  ]);
});

test("an incident of a discarded branch stands where that branch had it, and not at the newest step that counts", () => {
  kindTable[""] = { band: true };
  const slow = { severity: "warning", alarm: true, onset_step: 437, step: 600, state: "open", segment: 0 };
  const segments = new Map([[0, { id: 0, last_step: 752 }]]);
  const rects = (dead) =>
    shapes({ incidents: [{ ...slow, dead }], forks: [], segments, lastStep: 251 }, { warning: "#fa0" }, true).bands[0]
      .rects;
  assert.deepEqual(rects(true), [[437, 752, 1]]);
  // Ranks stop in the middle of a step: what counts and came after the newest logged one is drawn there.
  assert.equal(rects(false)[0][0], 251);
});
