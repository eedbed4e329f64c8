// How a chart is set up: what is kept of it, and what is made of what somebody kept.

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  differing,
  readOptions,
  toggled,
  usualOptions,
} from "../../frontend/stabilityfrontend/assets/chart/panel_chart.js";

const usual = usualOptions({ metrics: ["loss/*"], log: true });

test("a chart that nobody set up keeps nothing", () => {
  assert.deepEqual(differing(readOptions({}, usual), usual), {});
});

test("what was kept comes back", () => {
  const kept = { log: false, smooth: 0.9, x: "tokens", yRange: [0, 2], hidden: ["code"], metrics: ["loss/web", "lr"] };
  assert.deepEqual(differing(readOptions(JSON.parse(JSON.stringify(kept)), usual), usual), kept);
});

test("what is unknown or malformed is as usual", () => {
  const bad = [null, 7, "x", [], { log: "yes", smooth: 2, x: 7, yRange: [2, 1], hidden: "code", metrics: [] }];
  const worse = [{ yRange: [Number.NaN, 1] }, { yRange: [1] }, { metrics: [7, ""] }, { colour: "red" }];
  for (const given of [...bad, ...worse]) assert.deepEqual(readOptions(given, usual), usual);
});

test("a line is hidden and shown, alone and with all", () => {
  const all = ["a", "b", "c"];
  assert.deepEqual(toggled([], "a", all, false), ["a"]);
  assert.deepEqual(toggled(["a"], "a", all, false), []);
  assert.deepEqual(toggled(["a"], "a", all, true), ["b", "c"]);
  assert.deepEqual(toggled(["b", "c"], "a", all, true), []);
});
