// What a wall says: who is sick, which view comes next, when it can no longer be believed; which pattern an incident looks like.

import assert from "node:assert/strict";
import { test } from "node:test";
import { kindTable } from "../../frontend/stabilityfrontend/assets/core/kinds.js";
import { patternOf } from "../../frontend/stabilityfrontend/assets/incident/verdict.js";
import {
  beyond,
  counted,
  heaps,
  nextView,
  rotateSeconds,
  runsOf,
  staleSeconds,
  viewsOf,
} from "../../frontend/stabilityfrontend/assets/pages/wall_page.js";

Object.assign(kindTable, { "": {} });
const NOW = 1_000_000;
const WELL = { word: "training", tone: "good", order: 20, incident_id: null, since: null, condition: "well" };
const spike = { word: "Spike", tone: "warning", order: 3, incident_id: "i", since: NOW - 60, condition: "sick" };
const nan = { word: "NaN or Inf", tone: "critical", order: 1, incident_id: "n", since: NOW - 60, condition: "sick" };
const crash = { ...nan, condition: "crashed" };
const run = (run_id, status, more = {}) => ({ run_id, status, created: 1, updated: NOW - 5, state: WELL, ...more });

test("the worst run comes first, the well and the past are apart", () => {
  const found = heaps(
    [
      run("well", "running"),
      run("spike", "running", { state: spike }),
      run("nan", "running", { state: nan }),
      run("done", "finished", { state: { ...nan, condition: "over" } }),
      run("crashed", "crashed", { state: crash, created: 0 }),
      run("long ago", "crashed", { state: crash, updated: NOW - 90_000 }),
    ],
    NOW,
  );
  assert.deepEqual(
    found.ill.map((one) => one.run_id),
    ["nan", "crashed", "spike"],
  );
  assert.deepEqual(
    found.well.map((one) => one.run_id),
    ["well"],
  );
  assert.deepEqual(found.counts, { sick: 2, crashed: 1, well: 1, past: 2 });
});

for (const [text, seconds] of [
  ["30s", 30],
  ["2min", 120],
  ["1", 3],
  ["0", 0],
  ["", null],
  [null, null],
  ["soon", null],
  ["-5", null],
]) {
  test(`rotate=${text} means ${seconds} seconds`, () => assert.equal(rotateSeconds(text), seconds));
}

test("views go round over the fleet and its sick runs, and over well ones where none is sick", () => {
  const [one, two] = [run("one", "running"), run("two", "running")];
  const views = viewsOf({ ill: [one, two], well: [] }, "");
  assert.deepEqual(views, ["", "one", "two"]);
  assert.equal(nextView(views, "two"), "");
  assert.equal(nextView(views, "one that is gone"), "");
  assert.deepEqual(viewsOf({ ill: [], well: [one] }, ""), ["", "one"]);
  assert.deepEqual(viewsOf({ ill: [one, two], well: [] }, "two"), ["two", "one"]);
});

test("a feed is stale after six seconds without a sign, and an answer of the server is no feed", () => {
  assert.equal(staleSeconds({ heard: 0, answered: 0, open: true }, 5_000), null);
  assert.equal(staleSeconds({ heard: 0, answered: 0, open: true }, 9_500), 9);
  assert.equal(staleSeconds({ heard: 0, answered: 9_000, open: true }, 9_500), null);
  assert.equal(staleSeconds({ heard: 0, answered: 9_000, open: false }, 9_500), 9);
});

const LOOKS = [
  { id: "one-data-set", title: "", kinds: ["spike"], recovery: "", dataset: true },
  { id: "fast", title: "", kinds: ["spike"], recovery: "fast", dataset: false },
  { id: "none", title: "", kinds: ["spike"], recovery: "none", dataset: false },
  { id: "nan", title: "", kinds: ["nonfinite"], recovery: "", dataset: false },
];
for (const [incident, id] of [
  [{ kind: "spike", recovery: "none" }, "none"],
  [{ kind: "spike", recovery: "pending" }, "fast"],
  [{ kind: "spike", recovery: "none", dataset: "code" }, "one-data-set"],
  [{ kind: "nonfinite", recovery: null }, "nan"],
  [{ kind: "hang" }, undefined],
]) {
  test(`an incident looks like a pattern: ${JSON.stringify(incident)}`, () =>
    assert.equal(patternOf(LOOKS, incident)?.id, id));
}

const row = (run_id, more = {}) => ({ ...run(run_id, "running"), step: 7, loss: 2, loss_metric: "loss", ...more });

test("of five thousand runs the wall has the rows of the first, and the server's counts", () => {
  const sick = { rows: [row("nan", { state: nan })], fit: 1, total: 5000 };
  const broke = { rows: [], fit: 0, total: 5000 };
  const well = { rows: [row("well"), row("gone", { gone: true })], fit: 3000, total: 5000 };
  const runs = runsOf([sick, broke, well], new Map([["well", { latest: { lr: 1 } }]]));
  assert.deepEqual([...runs.keys()], ["nan", "well"]);
  assert.deepEqual(runs.get("well").latest, { lr: 1, loss: 2 });
  const { counts } = counted(runs.values(), NOW, beyond([sick, broke, well]));
  assert.deepEqual(counts, { sick: 1, crashed: 0, well: 2999, past: 1999 });
});

test("a run without a step has as many ranks on the wall as the table says", () => {
  const none = { rows: [], fit: 0, total: 1 };
  const well = { rows: [row("compiles", { step: null, ranks: 512 })], fit: 1, total: 1 };
  assert.equal(runsOf([none, none, well], new Map()).get("compiles").world_size, 512);
});
