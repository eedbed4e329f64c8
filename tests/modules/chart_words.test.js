// A chart in words: which metric, over what, on which axis, saved or not.

import assert from "node:assert/strict";
import { test } from "node:test";

import { chartOf } from "../../frontend/stabilityfrontend/assets/navigation/chart_words.js";

const NAMES = ["loss", "loss/code", "train/tokens_seen", "attention/entropy/m5"];

test("words say metric, axis, scale and file, in any order of the last two", () => {
  const said = { name: "loss", options: { x: "train/tokens_seen", log: true }, csv: true };
  for (const words of ["loss by tokens log csv", "loss by tokens, csv, log", "LOSS by tokens log csv".toLowerCase()]) {
    const { words: _, ...found } = chartOf(words, NAMES);
    assert.deepEqual(found, said);
  }
  assert.deepEqual(chartOf("entropy m5 log", NAMES).options, { log: true });
  assert.equal(chartOf("entropy m5 by time", NAMES).words, "attention/entropy/m5 by time");
});

test("a plain name, a metric that is not there and an axis that is not there describe no chart", () => {
  for (const words of ["loss", "csv", "nothing log", "loss by nothing", ""]) assert.equal(chartOf(words, NAMES), null);
});
