// How bad things are, in one order everywhere: runs, incidents, causes and alike ones.

import assert from "node:assert/strict";
import test from "node:test";
import {
  appearanceOf,
  appearanceTable,
  notBackWords,
  sickFirst,
  tonedClass,
  wordOf,
} from "../../frontend/stabilityfrontend/assets/core/kinds.js";
import { folded, inOrder } from "../../frontend/stabilityfrontend/assets/run/sidebar.js";

const look = (tone, order, word = "open") => ({ word, tone, shape: "disc", order });
const over = { accepted: look("calm", 40, "Accepted as the new level"), resolved: look("calm", 41, "resolved") };
appearanceTable.incidents = {
  critical: { open: look("critical", 0), acknowledged: look("critical", 1, "acknowledged"), ...over },
  warning: { open: look("warning", 3), acknowledged: look("warning", 4, "acknowledged"), ...over },
  info: { open: look("info", 6), ...over },
};

const one = (words, more = {}) => {
  const [severity, status, opened] = words.split(" ");
  return { incident_id: words, severity, status, opened: Number(opened), kind: "spike", words, ...more };
};
const words = (list) => list.map((incident) => incident.words);

test("the gravest open incident is on top and what is resolved below", () => {
  const listed = ["warning open 9", "critical resolved 8", "critical open 3", "warning open 5", "info open 7"];
  assert.deepEqual(words(inOrder(listed.map((line) => one(line)))), [
    "critical open 3",
    "warning open 9",
    "warning open 5",
    "info open 7",
    "critical resolved 8",
  ]);
});

test("an acknowledged incident stands behind an open one that is as bad, and before milder ones", () => {
  const listed = ["warning open 9", "critical acknowledged 8", "critical open 1"].map((line) => one(line));
  assert.deepEqual(words(inOrder(listed)), ["critical open 1", "critical acknowledged 8", "warning open 9"]);
});

test("a cause stands before what follows from it, where the worse of both would stand", () => {
  const cause = one("warning open 1");
  const hang = one("critical open 2", { caused_by: cause.incident_id });
  const other = one("warning open 9");
  assert.deepEqual(words(inOrder([other, hang, cause])), ["warning open 1", "critical open 2", "warning open 9"]);
});

test("incidents that name each other as causes, or one that is gone, are all listed once", () => {
  const a = one("critical open 1", { caused_by: "critical open 2" });
  const b = one("critical open 2", { caused_by: "critical open 1" });
  const c = one("critical open 3", { caused_by: "gone" });
  assert.deepEqual(words(inOrder([a, b, c])).sort(), ["critical open 1", "critical open 2", "critical open 3"]);
});

test("three alike are one row with a count, two are two rows", () => {
  const rows = (count) =>
    folded(Array.from({ length: count }, (_, at) => one(`critical open ${at}`))).map((row) => row.alike.length);
  assert.deepEqual([rows(1), rows(2), rows(3), rows(8)], [[0], [0, 0], [2], [7]]);
});

test("what differs in kind, severity or state is no one row", () => {
  const list = [one("critical open 1"), one("critical open 2"), one("critical resolved 3"), one("warning open 4")];
  assert.equal(folded([...list, one("critical open 5", { kind: "hang" })]).length, 5);
});

test("an incident of a newer server is shown by its own words", () => {
  const strange = { severity: "dire", status: "melted", status_word: "melted down" };
  assert.deepEqual([appearanceOf(strange).word, appearanceOf(strange).tone], ["melted down", "calm"]);
});

const run = (created, state) => ({ run_id: `r${created}`, created, state });

test("the sick runs come first, of equals the latest, and healthy ones by age", () => {
  const since = (order, at) => ({ order, since: at, incident_id: "i" });
  const runs = [
    run(9, { order: 20 }),
    run(1, since(0, 5)),
    run(2, since(0, 7)),
    run(8, { order: 20 }),
    run(3, since(3, 99)),
  ];
  assert.deepEqual(
    runs.sort(sickFirst).map((one) => one.created),
    [2, 1, 3, 9, 8],
  );
});

test("a pill says what somebody did about it, and its shape goes with its tone", () => {
  assert.equal(wordOf({ word: "Hang", status: "acknowledged" }), "Hang, acknowledged");
  assert.equal(wordOf({ word: "Hang", status: "open" }), "Hang");
  assert.equal(tonedClass("pill", { tone: "critical", shape: "octagon" }), "pill critical shape-octagon");
});

test("a metric that has not come back is named, of a run that is over in the past", () => {
  const not_back = { what: "loss of code", step: 1250 };
  assert.equal(notBackWords({ not_back, condition: "well" }), "loss of code has not come back since step 1,250");
  assert.equal(notBackWords({ not_back, condition: "over" }), "loss of code did not come back after step 1,250");
  assert.equal(notBackWords({ condition: "well" }), "");
});
