// How numbers and commands are written for people.

import assert from "node:assert/strict";
import { test } from "node:test";
import { formatShare, formatValue, narrow } from "../../frontend/stabilityfrontend/assets/core/format.js";
import { rangeBehind, readSkip } from "../../frontend/stabilityfrontend/assets/dialogs/command_dialog.js";
import { rollbackSentence } from "../../frontend/stabilityfrontend/assets/dialogs/rollback_dialog.js";
import { inOrder, leftWords, placeOf, visible } from "../../frontend/stabilityfrontend/assets/incident/batches.js";
import { reportedWords } from "../../frontend/stabilityfrontend/assets/incident/evidence.js";
import {
  comparedMetric,
  sameDataWords,
  shiftsOf,
  shiftWords,
} from "../../frontend/stabilityfrontend/assets/pages/compare_page.js";

const ORDER = { to_step: 150, lr_scale: null, seed: null, skip_batches: null };

for (const [name, order, facts, sentence] of [
  [
    "everything changed",
    { seed: 7, skip_batches: 40, lr_scale: 0.5 },
    { size: 2, lastStep: 213, stepSeconds: 0.2 },
    "Both ranks stop at the next common step boundary, load checkpoint 150, discard steps 151–213 and those trained " +
      "until then (63 steps so far, about 13 s of work), reseed with 7, skip 40 batches and go on with the LR of its schedule × 0.5",
  ],
  [
    "nothing to discard",
    {},
    { size: 1, lastStep: 150, stepSeconds: null },
    "The rank stops at the next common step boundary, loads checkpoint 150",
  ],
  [
    "the batches of a range",
    { skip_range: [200, 213] },
    { size: 1, lastStep: 150, stepSeconds: null },
    "The rank stops at the next common step boundary, loads checkpoint 150 and skips the batches of steps 200–213",
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

test("a loss fits its cell of the table", () => {
  assert.deepEqual([0.27254, 0.00051261, -0.00051261, 0, Number.NaN].map(narrow), [
    "0.2725",
    "5.13e−4",
    "−5.13e−4",
    "0",
    "NaN",
  ]);
});

test("of runs that saw the same data the longest stretches are named, and how many more there are", () => {
  const stretch = (first_step, last_step, other_step) => ({
    first_step,
    last_step,
    other_step,
    other_run: "a",
    r: 0.9,
  });
  const same_data = [stretch(10, 20, 1), stretch(1, 9000, 1), stretch(30, 60, 5), stretch(100, 101, 1)];
  assert.deepEqual(
    sameDataWords({ run_id: "b", same_data }, (id) => id.toUpperCase()),
    [
      "B, steps 1 to 9,000: the data of A, in its order",
      "B, steps 30 to 60: the data of A from its step 5 on, in its order",
      "B, steps 10 to 20: the data of A from its step 1 on, in its order",
      "and 1 more",
    ],
  );
});

test("a run whose address moves it is moved, and the page says so", () => {
  const shifts = shiftsOf(new URLSearchParams("run=a&run=b&run=c&shift=0&shift=-1500&shift=x"));
  assert.deepEqual(
    [...shifts],
    [
      ["a", 0],
      ["b", -1500],
      ["c", 0],
    ],
  );
  assert.deepEqual(
    [shiftWords("b", -1500), shiftWords("b", 1), shiftWords("a", 0)],
    ["b is moved 1,500 steps to the left", "b is moved 1 step to the right", ""],
  );
});

const INCIDENT = { onset_step: 60, until_step: 63 };

test("the steps of an incident begin at its onset and end before the metric was back; the one before is of interest", () => {
  const places = [58, 59, 60, 62, 63].map((step) => placeOf(step, INCIDENT));
  assert.deepEqual(places, ["", "before", "within", "within", ""]);
  assert.equal(placeOf(99, { onset_step: 60, until_step: null }), "within");
  assert.equal(placeOf(60, { onset_step: 60, until_step: 60 }), "within");
});

for (const [first, last, words] of [
  [41, 60, ""],
  [
    95,
    102,
    "The ranks held steps 95 to 102 when they were asked; this began at 60, so its batch had left. " +
      "To have it next time: run.keep_batches(last=43) or more, with on_spike=True.",
  ],
  [10, 17, "The ranks held steps 10 to 17; this began at 60, after they were asked."],
  [null, null, ""],
]) {
  test(`that the batch of the onset is not there is said: ${first} to ${last}`, () => {
    assert.equal(leftWords({ first, last }, INCIDENT), words);
  });
}

test("samples of the incident's steps are read first, else in the server's order, and nothing in a text is unseen", () => {
  const steps = [99, 60, 59, 98, 61].map((step) => ({ step }));
  assert.deepEqual(
    inOrder(steps, INCIDENT).map((one) => one.step),
    [60, 61, 59, 99, 98],
  );
  assert.equal(visible("a\0b\x1b[31m\tc\nd\x9b"), "a␀b␛[31m\tc\nd\ufffd");
});

test("what is typed for the batches is a number or two steps behind the checkpoint, and else says what is wrong", () => {
  const read = (text, cannot) => {
    const { skip_batches, skip_range, problem } = readSkip(text, 150, cannot);
    return problem || skip_range || skip_batches;
  };
  assert.deepEqual(
    ["", " 40 ", "151-160", "200 – 213"].map((text) => read(text)),
    [null, 40, [151, 160], [200, 213]],
  );
  assert.deepEqual(
    ["150-160", "213-200", "some", "-4"].map((text) => read(text)),
    [
      "steps behind the checkpoint only: from step 151 on",
      "the last step is before the first",
      "a number, or two steps as in 1200-1250",
      "a number, or two steps as in 1200-1250",
    ],
  );
  assert.equal(read("200-213", { skip_range: "no" }), "give a number: the job does not leave out a range");
  assert.equal(read("some", { skip_range: "no" }), "a number of batches, as in 50");
  assert.equal(read("40", { skip_batches: "no" }), "give two steps: the job leaves out a range only");
  assert.equal(read("some", { skip_batches: "no" }), "two steps, as in 1200-1250");
});

test("of a suggested range only what lies behind the checkpoint is left out", () => {
  assert.deepEqual(
    [100, 220, 270].map((step) => rangeBehind([200, 270], step)),
    ["200-270", "221-270", ""],
  );
});

test("what a job reports of an order is told in a line, and that it reports nothing is told by none", () => {
  assert.equal(
    reportedWords({ lr_scale: "0.5", skip_batches: "3" }),
    "The job reports that it applied: lr_scale 0.5, skip_batches 3.",
  );
  assert.equal(reportedWords({}), "The job reports that it applied: nothing.");
  assert.equal(reportedWords(null), "");
});

test("runs that call their loss differently are compared by it, and any other metric by its name alone", () => {
  const ours = { metrics: ["loss", "lr"], loss_metric: "loss" };
  const foreign = { metrics: ["train/loss", "val/loss"], loss_metric: "train/loss" };
  const none = { metrics: ["reward"], loss_metric: null };
  const runs = [ours, foreign, none];
  assert.deepEqual(
    runs.map((run) => comparedMetric(run, "loss", runs)),
    ["loss", "train/loss", null],
  );
  assert.deepEqual(
    runs.map((run) => comparedMetric(run, "lr", runs)),
    ["lr", null, null],
  );
});

for (const [share, words] of [
  [0, "0 %"],
  [0.342, "34.2 %"],
  [0.9949, "99.5 %"],
  [0.9999, "100 %"],
  [1, "100 %"],
])
  test(`${share} is ${words}`, () => assert.equal(formatShare(share), words));
