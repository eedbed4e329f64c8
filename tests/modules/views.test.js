// How a run is looked at: addresses, order, smoothing, requests, what is merged, time.

import assert from "node:assert/strict";
import { test } from "node:test";
import { SeriesStore } from "../../frontend/stabilityfrontend/assets/chart/series_store.js";
import { Derived } from "../../frontend/stabilityfrontend/assets/chart/server_series.js";
import { clockTicks, durationTicks } from "../../frontend/stabilityfrontend/assets/chart/ticks.js";
import { usable, whatItIs, whyNot } from "../../frontend/stabilityfrontend/assets/core/checkpoint.js";
import { smoothPosition, smoothWeight } from "../../frontend/stabilityfrontend/assets/core/controls.js";
import {
  firstMetrics,
  firstRequests,
  seriesPaths,
} from "../../frontend/stabilityfrontend/assets/core/first_requests.js";
import { bytes } from "../../frontend/stabilityfrontend/assets/core/format.js";
import { appearanceTable } from "../../frontend/stabilityfrontend/assets/core/kinds.js";
import { route } from "../../frontend/stabilityfrontend/assets/core/route.js";
import { ageWords, trainLength, withoutFollowers } from "../../frontend/stabilityfrontend/assets/incident/verdict.js";
import { noteOf } from "../../frontend/stabilityfrontend/assets/run/header.js";

for (const [path, page] of [
  ["/", "runs"],
  ["", "runs"],
  ["/runs/abc", { "data-run": "abc" }],
  ["/runs/a%20b/", { "data-run": "a b" }],
  ["/runs/%3Cscript%3E", { "data-run": "<script>" }],
  ["/runs/%E0%A4%A", { "data-run": "%E0%A4%A" }],
  ["/runs/a/b", "missing"],
  ["/runs/a%20b/incidents/i-1/", { "data-run": "a b", "data-incident": "i-1" }],
  ["/runs/a/incidents", "missing"],
  ["/somewhere", "missing"],
]) {
  test(`an address gives its page: ${path}`, () => {
    const found = route(path, [
      { pattern: "^/$", ids: [], name: "runs", skeleton: {} },
      { pattern: "^/runs/([^/]+)$", ids: ["run"], skeleton: {} },
      { pattern: "^/runs/([^/]+)/incidents/([^/]+)$", ids: ["run", "incident"], skeleton: {} },
      { pattern: ".*", ids: [], name: "missing", skeleton: {} },
    ]);
    assert.deepEqual(found.name || found.skeleton.props, page);
  });
}

test("of a train a list shows the first and what is open; its line counts all of them", () => {
  const one = (id, nth, state, train = "a") => ({ incident_id: id, nth, state, train, onset_step: 100 * nth });
  const train = [one("a", 1, "recovered"), one("b", 2, "resolved"), one("c", 3, "open")];
  const others = [one("x", 1, "resolved", "x"), one("y", 5, "resolved", "dropped"), one("z", 1, "open", "")];
  assert.deepEqual(
    withoutFollowers([...train, ...others]).map((found) => found.incident_id),
    ["a", "c", "x", "y", "z"],
  );
  assert.equal(trainLength(train), 3);
});

test("the slider and the address name the same weight", () => {
  for (let at = 0; at <= 100; at += 1) assert.equal(smoothPosition(smoothWeight(at)), at);
  assert.deepEqual([0, 25, 50, 75, 100].map(smoothWeight), [0, 0.9, 0.99, 0.999, 0.9999]);
});

test("the same requests are made early and later", () => {
  firstRequests.patterns = ["loss/*", "lr"];
  const names = ["zeta", "loss/b", "lr", "loss", "loss/a", "gpu/0/temp_c"];
  for (const one of [names, [...names].reverse()]) assert.deepEqual(firstMetrics(one), ["loss/a", "loss/b", "lr"]);
  const [{ path }] = seriesPaths("r 1", ["loss", "a/b&c"], { view: "all", points: 5, x: null });
  assert.equal(path, "/runs/r%201/series?metric=loss&metric=a%2Fb%26c&view=all&points=5");
});

/** A store of one segment, and what its line of `loss` has. */
function storeOf() {
  const store = new SeriesStore({ entry_points: 400, live_metrics: 50 });
  store.pin(["loss"]);
  store.setSegments(0, [{ id: 0, dead_after: null, on_head_path: true }]);
  const take = (complete, segment, steps) => {
    const part = { metric: "loss", segment, rank: 0, node: "", dead: false, steps, values: steps };
    store.take({ names: ["loss"], series: steps.length ? [part] : [], complete }, 100);
  };
  const cut = (one) => one.steps.slice(one.from, one.to);
  return { store, take, cut, line: () => store.effective("loss").flatMap((one) => one.pieces.flatMap(cut)) };
}

test("an increment adds to what is there and a complete answer replaces it", () => {
  const { take, line } = storeOf();
  take(true, 0, [1, 2, 3]);
  take(false, 0, [3, 4, 5]);
  take(false, 0, []);
  assert.deepEqual(line(), [1, 2, 3, 4, 5]);
  take(true, 0, [7, 8]);
  assert.deepEqual(line(), [7, 8]);
});

test("an increment of a segment that is news is grouped again when its fork is known", () => {
  const { store, take, line, cut } = storeOf();
  take(true, 0, [1, 2, 3, 4, 5]);
  take(false, 1, [4, 5, 6]);
  store.setSegments(1, [
    { id: 0, dead_after: 3, on_head_path: true },
    { id: 1, parent: 0, fork_step: 3, dead_after: null, on_head_path: true },
  ]);
  assert.deepEqual(line(), [1, 2, 3, 4, 5, 6]);
  assert.deepEqual(store.dead("loss").map(cut), [[4, 5]]);
  assert.deepEqual(store.alone("loss", 0)[0].pieces[0].steps, [1, 2, 3, 4, 5]);
});

test("on a clock a step is where its own segment logged it", () => {
  const derived = new Derived({ store: { aliveUpTo: () => Infinity }, settings: { x: "t", smooth: 0 } }, () => {});
  const entry = (segment, steps, xs) => [segment, { segment, rank: 0, steps, xs, values: steps, stray: false }];
  const entries = new Map([entry(0, [1, 3, 5], [10, 30, 50]), entry(1, [4, 5, 6], [100, 110, 120])]);
  derived.whole = new Map([["loss", entries]]);
  const places = [
    [4, 0],
    [4, 1],
    [5, 0],
    [6, 0],
    [9, 1],
    [0, 0],
  ].map(([step, segment]) => derived.place("loss", step, segment));
  assert.deepEqual(places, [40, 100, 50, 120, 120, 10]);
});

for (const [ticks, range, words] of [
  [durationTicks, [0, 480], "0, 2 min, 4 min, 6 min, 8 min"],
  [durationTicks, [0, 40], "0, 10 s, 20 s, 30 s, 40 s"],
  [durationTicks, [-3600, 259_200], "0, 1 d, 2 d, 3 d"],
  [clockTicks, [1_763_654_400_000, 1_763_697_600_000], "18:00, 21:00, Nov 21, 03:00"],
]) {
  test(`the ticks of time are round: ${words}`, () => {
    const found = ticks(range, 4).map((tick) => tick.words);
    assert.equal(found.join(", "), words);
  });
}

const CHECKPOINT = { available: true, dead: false, unfit: "", kind: "dcp", size_bytes: 3 * 2 ** 30, took_s: 12.4 };

test("a checkpoint says what it is, and why it is not offered", () => {
  const cases = [
    [{}, true, "", "DCP · 3 GiB · took 12 s"],
    [{ kind: "file", took_s: 0.2 }, true, "", "3 GiB"],
    [{ kind: null, size_bytes: null, took_s: null }, true, "", ""],
    [{ kind: undefined, size_bytes: undefined, took_s: undefined, unfit: undefined }, true, "", ""],
    [{ dead: true, unfit: "it is incomplete" }, false, "on a discarded branch", "DCP · 3 GiB · took 12 s"],
    [{ available: false }, false, "no longer on disk", "DCP · 3 GiB · took 12 s"],
    [{ unfit: "it is", complete: false }, false, "incomplete", "DCP · 3 GiB · took 12 s"],
    [{ unfit: "it is", complete: false, writing: true }, false, "still being written", "DCP · 3 GiB · took 12 s"],
    [{ unfit: "4 ranks wrote it", complete: true, world_size: 4 }, false, "of 4 ranks", "DCP · 3 GiB · took 12 s"],
  ];
  for (const [changes, offered, why, what] of cases) {
    const one = { ...CHECKPOINT, ...changes };
    const lines = whatItIs(one).replaceAll("\u00a0", " "); // a number and its unit are not parted
    assert.deepEqual([usable(one), whyNot(one), lines], [offered, why, what]);
  }
});

test("bytes are written in binary units", () => {
  const words = [0, 1023, 1536, 12_900_000, 3 * 2 ** 30].map(bytes);
  assert.deepEqual(words, ["0 B", "1023 B", "1.5 KiB", "12.3 MiB", "3 GiB"]);
});

appearanceTable.phases = {
  stalled: { tone: "critical" },
  crashed: { tone: "critical" },
  finished: { tone: "calm" },
  training: { tone: "good" },
};
const PHASES = { running: "training" };
const TWINS = "Two processes say that they are rank 0.";

for (const [run, tone] of [
  [{ status: "stalled", note: "Rank 1 has not come.", note_incident: "i-7" }, "critical"],
  [{ status: "crashed", note: "Rank 1 is gone.", note_incident: "i-7" }, "critical"],
  [{ status: "stalled", note: "Rank 1 has not come.", note_incident: null }, "critical"],
  [{ status: "running", note: TWINS, twins: true }, "warning"],
  [{ status: "finished", note: TWINS, twins: true }, "warning"],
  [{ status: "crashed", note: TWINS, twins: true }, "critical"],
]) {
  test(`the note leads to the incident that it is about: ${run.status}, ${run.note_incident || "none"}`, () => {
    const href = run.note_incident ? "/runs/r%201/incidents/i-7" : null;
    assert.deepEqual(noteOf({ ...run, run_id: "r 1", state: { phase: PHASES[run.status] || run.status } }), {
      words: run.note,
      tone,
      href,
    });
  });
}

for (const note of ["", "In eval.", TWINS]) {
  test(`of a run that is well a note stays under the pointer: “${note}”`, () => {
    assert.equal(noteOf({ status: "running", note, twins: false, run_id: "r 1" }), null);
  });
}

test("a run that lacks rows says so, while it runs and after its end", () => {
  const unrecorded = { text: "7 of 9 records were dropped on node a." };
  const run = { run_id: "r", note: unrecorded.text, twins: false, unrecorded };
  for (const status of ["running", "finished"])
    assert.deepEqual(noteOf({ ...run, status }), { words: unrecorded.text, tone: "warning", href: null });
});

test("how long an incident lasted is one number wherever it is said, and an open one counts seconds", () => {
  const incident = { opened: 100, resolved: 100.243, state: "resolved", evidence: {} };
  assert.equal(ageWords(incident, 500), "243 ms");
  assert.equal(ageWords({ ...incident, state: "open" }, 107.9), "7.0 s");
});
