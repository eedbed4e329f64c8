// How numbers and commands are written for people.

import assert from "node:assert/strict";
import { test } from "node:test";
import { formatValue } from "../../frontend/stabilityfrontend/assets/core/format.js";
import { rollbackSentence } from "../../frontend/stabilityfrontend/assets/dialogs/rollback_sentence.js";

const ORDER = { to_step: 150, lr_scale: null, seed: null, skip_batches: null };

for (const [name, order, facts, sentence] of [
  [
    "everything changed",
    { seed: 7, skip_batches: 40, lr_scale: 0.5 },
    { size: 2, lastStep: 213, stepSeconds: 0.2 },
    "Both ranks stop at the next common step boundary, load checkpoint 150, discard steps 151–213 and those trained " +
      "until then (63 steps so far, about 13 s of work), reseed with 7, skip 40 batches and go on with the LR × 0.5",
  ],
  [
    "nothing to discard",
    {},
    { size: 1, lastStep: 150, stepSeconds: null },
    "The rank stops at the next common step boundary, loads checkpoint 150",
  ],
  [
    "one of each",
    { skip_batches: 1 },
    { size: 1024, lastStep: 151, stepSeconds: null },
    "All 1,024 ranks stop at the next common step boundary, load checkpoint 150, discard step 151 and those trained " +
      "until then (1 step so far) and skip 1 batch",
  ],
]) {
  test(`the sentence says what will happen: ${name}`, () => {
    const said = rollbackSentence({ ...ORDER, ...order }, facts);
    assert.equal(said, `${sentence}. Discarded points stay visible, dashed.`);
  });
}

for (const [value, words] of [
  [1.23456, "1.235"],
  [0, "0"],
  [41234.5, "41,235"],
  [-0.5, "−0.5"],
  [1.2e-7, "1.20e−7"],
  [2.5e7, "25.00 M"],
  [null, "–"],
]) {
  test(`a value is written with four digits: ${words}`, () => assert.equal(formatValue(value), words));
}
