import assert from "node:assert/strict";
import { test } from "node:test";
import { valueTicks } from "../../frontend/stabilityfrontend/assets/chart/ticks.js";
import { noNumber } from "../../frontend/stabilityfrontend/assets/chart/traces.js";

const [nan, inf] = [Number.NaN, Number.POSITIVE_INFINITY];

test("a line without a number says what it has instead, and one with a number says nothing", () => {
  assert.equal(noNumber([nan, nan, nan]), "NaN at all 3 points");
  assert.equal(noNumber([nan]), "NaN at the only point");
  assert.equal(noNumber([nan, inf]), "NaN or infinite at all 2 points");
  assert.equal(noNumber([nan, nan], false), "NaN at every point");
  assert.equal(noNumber([nan, 1, null]), "");
  assert.equal(noNumber([null]), "");
});

test("an axis has two numbers, however flat it is", () => {
  for (const range of [
    [0.55, 1.45],
    [0.7, 1.3],
    [3, 3.9],
  ])
    assert.ok(valueTicks(range, 2).length >= 2, String(range));
});
