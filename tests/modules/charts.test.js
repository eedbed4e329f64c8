// What charts make of points: fewer of them, a scale, ticks, shapes.

import assert from "node:assert/strict";
import { test } from "node:test";
import { axisRange, robustRange, thinInto } from "../../frontend/stabilityfrontend/assets/chart/downsample.js";
import { Plot } from "../../frontend/stabilityfrontend/assets/chart/line_chart.js";
import { valueTicks } from "../../frontend/stabilityfrontend/assets/chart/ticks.js";
import { ghostXY, mergeShapes, shapes } from "../../frontend/stabilityfrontend/assets/chart/traces.js";
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

test("a small chart draws a shape as high as it is: what is known and no alarm is a strip at the foot", () => {
  const filled = [];
  const context = { fillRect: (...rect) => filled.push(rect) };
  const inner = { top: 10, bottom: 110 };
  for (const y1 of [1, 0.04])
    Plot.prototype.shape.call({ toX: (x) => x }, context, { type: "rect", x0: 20, x1: 30, y1, opacity: 1 }, inner);
  assert.deepEqual(filled, [
    [20, 10, 10, 100],
    [20, 106, 10, 4],
  ]);
});

test("forty incidents cost as many shapes as they have looks", () => {
  kindTable[""] = { band: true };
  const incidents = Array.from({ length: 40 }, (_, index) => ({
    severity: index % 2 ? "critical" : "warning",
    state: "resolved",
    segment: 0,
    onset_step: 10 * index,
    step: 10 * index + 1,
    recovered_step: 10 * index + 5,
  }));
  const view = { incidents, forks: [{ step: 7 }, { step: 9 }], segments: new Map(), lastStep: 400 };
  const merged = mergeShapes(shapes(view, { critical: "#f00", warning: "#fa0", accent: "#00f" }, true));
  assert.deepEqual(
    merged.map((shape) => shape.type),
    ["path", "path", "path"],
  );
  const moves = merged.map((shape) => shape.path.split("M").length - 1);
  assert.deepEqual(
    moves.sort((a, b) => a - b),
    [2, 20, 20],
  );
  assert.ok(merged[0].path.startsWith("M0,0L5,0L5,1L0,1Z"));
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
