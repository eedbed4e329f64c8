// The laws of the store: what becomes of points when lineage changes, in whichever order both come.

import assert from "node:assert/strict";
import { test } from "node:test";
import { SeriesStore } from "../../frontend/stabilityfrontend/assets/chart/series_store.js";

const LIMITS = { entry_points: 400, live_metrics: 50 };
const ROOT = segment(0, null, null, null);

/** A segment as the API sends it. */
function segment(id, parent, fork, deadAfter, more) {
  return {
    id,
    parent,
    fork_step: fork,
    dead_after: deadAfter,
    on_head_path: true,
    cause: parent === null ? "start" : "command",
    first_step: null,
    last_step: null,
    changes: {},
    ...more,
  };
}

/** Live points of `loss`. */
const block = (id, steps, values, rank = 0) => ({
  segment: id,
  rank,
  node: "n",
  steps,
  times: steps.map(Number),
  values: { loss: values },
});

/** A store that holds these, `loss` wanted. */
function filled(head, segments, blocks) {
  const store = new SeriesStore(LIMITS);
  store.want("loss");
  store.setSegments(head, segments);
  for (const one of blocks) store.append(one);
  return store;
}

/** The effective lines of `loss`, whole. */
const lines = (store) =>
  store.effective("loss").map((line) => ({
    rank: line.rank,
    steps: line.pieces.flatMap((piece) => piece.steps.slice(piece.from, piece.to)),
    values: line.pieces.flatMap((piece) => piece.values.slice(piece.from, piece.to)),
  }));
const discarded = (store) => store.dead("loss").map((one) => [one.segment, one.steps.slice(one.from, one.to)]);
const count = (first, last) => Array.from({ length: last - first + 1 }, (_, index) => first + index);

test("a rollback moves points from the line to the discarded branch", () => {
  const segments = [segment(0, null, null, 3), segment(1, 0, 3, null)];
  const store = filled(1, segments, [block(0, [1, 2, 3, 4, 5], [1, 1, 1, 9, 9]), block(1, [4, 5, 6], [2, 2, 2])]);
  assert.deepEqual(lines(store), [{ rank: 0, steps: count(1, 6), values: [1, 1, 1, 2, 2, 2] }]);
  assert.deepEqual(discarded(store), [[0, [4, 5]]]);
});

test("a nested rollback leaves a segment without any point on the line", () => {
  const segments = [segment(0, null, null, 2), segment(1, 0, 4, -1, { on_head_path: false }), segment(2, 0, 2, null)];
  const blocks = [block(0, [1, 2, 3, 4], [1, 1, 1, 1]), block(1, [5, 6], [5, 5]), block(2, [3, 4], [3, 3])];
  const store = filled(2, segments, blocks);
  assert.deepEqual(lines(store), [{ rank: 0, steps: [1, 2, 3, 4], values: [1, 1, 3, 3] }]);
  assert.deepEqual(discarded(store), [
    [0, [3, 4]],
    [1, [5, 6]],
  ]);
});

for (const seed of count(1, 20)) {
  test(`the line has each step once, in order, whatever comes first (seed ${seed})`, () => {
    const random = mulberry32(seed);
    const between = (low, high) => low + Math.floor(random() * (high - low + 1));
    const segments = [segment(0, null, null, null)];
    const blocks = [];
    let [begin, last] = [1, 0];
    for (const id of count(0, 3)) {
      last = begin + between(5, 40);
      for (const step of count(begin, last)) for (const rank of [0, 1]) blocks.push(block(id, [step], [id], rank));
      if (id === 3) break;
      const fork = between(0, last);
      for (const older of segments) older.dead_after = Math.min(older.dead_after ?? fork, fork);
      segments.push(segment(id + 1, id, fork, null));
      begin = fork + 1;
    }
    const twice = Array.from({ length: 20 }, () => blocks[between(0, blocks.length - 1)]);
    const shuffled = blocks.map((one) => [random(), one]).sort((a, b) => a[0] - b[0]);
    const found = lines(filled(3, segments, [...shuffled.map(([, one]) => one), ...twice]));
    assert.deepEqual(
      found.map((line) => [line.rank, line.steps]),
      [0, 1].map((rank) => [rank, count(1, last)]),
    );
  });
}

test("points that come before the news of their fork do not double a step", () => {
  const store = filled(0, [ROOT], [block(0, [1, 2, 3, 4], [1, 1, 1, 1]), block(1, [3, 4], [2, 2])]);
  assert.deepEqual(lines(store), [{ rank: 0, steps: [1, 2, 3, 4], values: [1, 1, 2, 2] }]);
});

test("NaN, both infinities and missing stay four facts", () => {
  const store = filled(0, [ROOT], [block(0, [1, 2, 3, 4, 5], [1.5, "NaN", "Infinity", "-Infinity", null])]);
  assert.deepEqual(lines(store), [
    { rank: 0, steps: [1, 2, 3, 4], values: [1.5, Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY] },
  ]);
});

test("memory is bounded, and the extremes and what is not a number are kept", () => {
  const values = count(1, 5000).map(Math.sin);
  Object.assign(values, { 1234: 50, 2000: "NaN", 3000: -50 });
  const store = filled(
    0,
    [ROOT],
    values.map((value, index) => block(0, [index + 1], [value])),
  );
  const [{ steps, values: held }] = lines(store);
  assert.ok(steps.length <= LIMITS.entry_points);
  assert.deepEqual(
    [1235, 2001, 3001].map((step) => held[steps.indexOf(step)]),
    [50, Number.NaN, -50],
  );
  assert.deepEqual(
    steps,
    [...new Set(steps)].sort((a, b) => a - b),
  );
  assert.deepEqual(steps.slice(-50), count(4951, 5000));
});

/** A part of an answer of `/series`. */
const part = (dead, steps, values) => ({ metric: "loss", segment: 0, rank: 0, node: "n", dead, steps, values });

test("a fetched history and live points of the same steps are one", () => {
  const store = filled(0, [ROOT], [block(0, [4, 5], [8, 9])]);
  store.fill(["loss"], [part(true, [3, 4], ["NaN", 8]), part(false, [1, 2], [1, 2])], 100);
  const [entry] = store.metrics.get("loss").entries.values();
  assert.deepEqual([entry.steps, entry.values], [count(1, 5), [1, 2, Number.NaN, 8, 9]]);
});

test("low steps that nothing followed are discarded and no part of the line", () => {
  const store = filled(0, [ROOT], []);
  store.fill(["loss"], [part(false, [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]), part(true, [2, 3], [2, 3])], 100);
  assert.deepEqual(
    lines(store).map((line) => line.steps),
    [[1, 2, 3, 4, 5]],
  );
  assert.deepEqual(discarded(store), [[0, [2, 3]]]);
});

test("metrics that nobody looks at are forgotten first", () => {
  const store = filled(0, [ROOT], []);
  store.pin(["loss"]);
  for (const index of count(0, 199)) store.want(`m${index}`);
  assert.equal(store.metrics.size, LIMITS.live_metrics);
  assert.deepEqual(
    ["loss", "m199", "m0"].map((name) => store.metrics.has(name)),
    [true, true, false],
  );
});

/** Random numbers from 0 to 1 with a seed (mulberry32, public domain). */
function mulberry32(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

test("each row of a step is drawn, whether it came by the feed, in an answer or in both", () => {
  const store = filled(0, [ROOT], [block(0, [1, 1, 2, 2], [1, NaN, 2, 40])]);
  store.fill(["loss"], [{ ...part(false, [1, 1, 2], [1, "NaN", 2]), level: 0 }], 100, 0);
  store.append(block(0, [2, 3, 3], [40, 3, 3.5]));
  store.merge([part(false, [3, 3, 3], [3, 3.5, "Infinity"])]);
  assert.deepEqual(lines(store), [
    { rank: 0, steps: [1, 1, 2, 2, 3, 3, 3], values: [1, NaN, 2, 40, 3, 3.5, Infinity] },
  ]);
});
