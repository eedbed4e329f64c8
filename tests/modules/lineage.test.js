// Forks, their flags above the large chart, and the lane of events below it.

import assert from "node:assert/strict";
import { test } from "node:test";
import { laneLines } from "../../frontend/stabilityfrontend/assets/chart/health_lane.js";
import { flagGroups } from "../../frontend/stabilityfrontend/assets/chart/main_chart.js";
import { forks } from "../../frontend/stabilityfrontend/assets/chart/traces.js";
import { errorText, sentence } from "../../frontend/stabilityfrontend/assets/core/format.js";
import { kindTable } from "../../frontend/stabilityfrontend/assets/core/kinds.js";

const segment = (id, fork, last, more) => ({
  id,
  fork_step: fork,
  label: fork ? `R${id}` : "",
  last_step: last,
  ...more,
});
const forked = (segments, costs) =>
  forks(new Map(segments.map((one) => [one.id, one])), new Map(costs)).map((one) => [
    one.label,
    one.step,
    one.discarded,
  ]);

test("what a fork discarded is what the rollback costs say", () => {
  const segments = [segment(0, null, 499), segment(1, 300, 449), segment(2, 400, null)];
  const costs = [[1, { steps_lost: 49, last_dead_step: 449 }]];
  assert.deepEqual(forked(segments, costs), [
    ["R1", 300, 49],
    ["R2", 400, 0],
  ]);
});

test("what has no label is no fork", () => {
  const segments = [segment(0, null, 90), segment(1, 29, null, { label: "" }), segment(2, 50, 70, { label: "S1" })];
  assert.deepEqual(forked(segments, [[2, { steps_lost: 40 }]]), [["S1", 50, 40]]);
});

test("flags that would cover each other are one", () => {
  const labels = (marks, scale) => flagGroups(marks, scale).map((group) => group.label);
  const close = Array.from({ length: 10 }, (_, index) => ({ label: `R${index + 1}`, step: 899 - index }));
  close.push({ label: "R11", step: 100 });
  assert.deepEqual(labels(close, 1), ["R11", "R1–R10"]);
  assert.equal(labels(close, 100).length, 11);
  const mixed = ["R1", "S1", "R4"].map((label, index) => ({ label, step: 10 + index }));
  assert.deepEqual(labels(mixed, 1), ["3 forks"]);
});

for (const scale of [0.01, 0.2, 1, 7]) {
  test(`no two flags overlap at any width: ${scale}`, () => {
    const many = Array.from({ length: 200 }, (_, index) => ({ label: `R${index}`, step: (7919 * index) % 2000 }));
    const groups = flagGroups(many, scale);
    for (let at = 1; at < groups.length; at += 1) assert.ok(groups[at - 1].right <= groups[at].left);
  });
}

for (const count of [1, 3, 40, 300]) {
  for (const crowd of [1, 30, 1000]) {
    test(`no mark of the lane lies over another and none is lost: ${count} on ${crowd}`, () => {
      kindTable[""] = { short: "hang" };
      // Some at one place, some at the right edge, the rest anywhere.
      const events = Array.from({ length: count }, (_, index) => ({
        ...{ kind: "hang", tone: "critical", words: "hang 74 s", told: "", at: null, until: null },
        x: index % 7 === 0 ? 1000 : (index * index * 37) % crowd,
      }));
      const lines = laneLines(events, [0, 1000], 500, false);
      assert.ok(lines.length <= 3);
      assert.equal(
        lines.flat().reduce((sum, mark) => sum + mark.events.length, 0),
        count,
      );
      for (const line of lines) {
        assert.ok(line[0].left >= 0);
        assert.ok(line.length === 1 || line.at(-1).left + line.at(-1).width <= 500);
        for (let at = 1; at < line.length; at += 1) assert.ok(line[at - 1].left + line[at - 1].width <= line[at].left);
      }
    });
  }
}

test("what the server says reads as sentences", () => {
  const error = { message: "no agent of this run is connected", hint: "is the job running?" };
  assert.equal(errorText(error), "No agent of this run is connected. Is the job running?");
  assert.equal(sentence("lr_scale is 99, expected (0, 10]"), "lr_scale is 99, expected (0, 10].");
});
