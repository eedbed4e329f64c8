// The band of a thinned line: its mean is that of all rows, and no extreme and no NaN is lost on the way.

import assert from "node:assert/strict";
import { test } from "node:test";
import { addBuckets, banded, noBuckets } from "../../frontend/stabilityfrontend/assets/chart/buckets.js";
import { thinEntry } from "../../frontend/stabilityfrontend/assets/chart/downsample.js";
import { SeriesStore } from "../../frontend/stabilityfrontend/assets/chart/series_store.js";
import { lineXY } from "../../frontend/stabilityfrontend/assets/chart/traces.js";

/** Numbers that look random and are the same each time. */
function noise(count, seed = 1) {
  let state = seed;
  return Array.from({ length: count }, () => {
    state = (state * 1103515245 + 12345) % 2147483648;
    return state / 2147483648;
  });
}
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const near = (one, other) => assert.ok(Math.abs(one - other) < 1e-9, `${one} is not ${other}`);

/** What the server answers of rows with steps 0, 1, ...: extremes of blocks of `2 ** level`, and their buckets. */
function served(values, level) {
  const size = 2 ** level;
  const entry = { metric: "loss", segment: 0, rank: 0, node: null, dead: false, stray: false, level };
  const points = new Set([0, values.length - 1]);
  const buckets = { last: [], mean: [], count: [] };
  for (let start = 0; start < values.length; start += size) {
    const block = values.slice(start, start + size);
    const finite = block.filter(Number.isFinite);
    for (const one of [Math.min(...finite), Math.max(...finite)])
      if (finite.length) points.add(start + block.indexOf(one));
    if (finite.length < block.length) points.add(start + block.findIndex((one) => !Number.isFinite(one)));
    buckets.last.push(start + block.length - 1);
    buckets.mean.push(finite.length ? mean(finite) : null);
    buckets.count.push(finite.length);
  }
  const steps = [...points].sort((a, b) => a - b);
  return { ...entry, steps, values: steps.map((step) => (Number.isNaN(values[step]) ? "NaN" : values[step])), buckets };
}

/** The line of a store that got this answer, and these rows live after it. */
function lineOf(answer, live = [], limits = { entry_points: 6000, live_metrics: 9 }) {
  const store = new SeriesStore(limits);
  store.want("loss");
  store.setSegments(0, [{ id: 0, parent: null, fork_step: null, dead_after: null, on_head_path: true }]);
  store.fill(["loss"], [answer], 100, answer.level);
  const next = answer.buckets.last.at(-1) + 1;
  const block = { segment: 0, rank: 0, node: "n", steps: live.map((_, index) => next + index), times: live };
  store.append({ ...block, values: { loss: live } });
  return store.effective("loss")[0];
}

test("the mean of a block is that of all rows, wherever the server's buckets end and live rows begin", () => {
  const values = noise(5000);
  for (const [cut, level, columns] of [
    [5000, 4, 100],
    [4321, 5, 40],
    [2500, 3, 500],
  ]) {
    const line = lineOf(served(values.slice(0, cut), level), values.slice(cut));
    const { x, y, band } = lineXY(line, null, 2000, "values", columns);
    const block = 2 ** Math.ceil(Math.log2(5000 / columns));
    for (let index = 0; index * block < 5000; index += 1) {
      const rows = values.slice(index * block, (index + 1) * block);
      near(y[index], mean(rows));
      assert.deepEqual([band.low[index], band.high[index]], [Math.min(...rows), Math.max(...rows)]);
    }
    assert.deepEqual([x.at(-1), y.at(-1)], [4999, values[4999]]);
  }
});

test("a line with fewer points than pixels is no band", () => {
  const piece = { steps: [...Array(50).keys()], values: noise(50), from: 0, to: 50 };
  assert.equal(banded([[piece, 0, 50]], 300, 600), null);
});

test("where a block has nothing finite the band and its mean are open", () => {
  const values = noise(1024);
  for (let index = 256; index < 512; index += 1) values[index] = Number.NaN;
  const { y, band } = lineXY(lineOf(served(values, 4)), null, 2000, "values", 64);
  assert.ok(y.slice(16, 32).every((one) => one === null) && band.high.slice(16, 32).every((one) => one === null));
  assert.ok(y[15] !== null && y[32] !== null);
});

test("a bucket that a fork cut has its extremes and no mean", () => {
  const line = lineOf(served(noise(1024), 6));
  line.pieces[0].to = line.pieces[0].steps.findIndex((step) => step > 500);
  const { y, band } = lineXY(line, null, 2000, "values", 8);
  assert.ok(y.slice(0, -2).every((one) => one !== null));
  assert.ok(band.high.every((one) => one !== null));
});

test("thinned again and again, an entry keeps its extremes, what is no number, and the mean of all its rows", () => {
  const rows = noise(20_000, 3);
  rows[7777] = 50;
  rows[12_345] = -50;
  const entry = { steps: [], values: [] };
  rows.forEach((value, step) => {
    entry.steps.push(step);
    entry.values.push(step === 9000 ? Number.NaN : value);
    if (entry.steps.length > 400) thinEntry(entry, 200);
  });
  assert.ok(entry.steps.length <= 400);
  for (const [step, value] of [
    [7777, 50],
    [12_345, -50],
  ])
    assert.equal(entry.values[entry.steps.indexOf(step)], value);
  assert.ok(Number.isNaN(entry.values[entry.steps.indexOf(9000)]));
  const { buckets } = entry;
  const covered = buckets.last.at(-1);
  const raw = entry.values.filter((_, index) => entry.steps[index] > covered);
  const sum =
    buckets.mean.reduce((all, one, index) => all + (one ?? 0) * buckets.count[index], 0) + mean(raw) * raw.length;
  near(sum / 19_999, mean(rows.filter((_, step) => step !== 9000)));
  assert.ok(buckets.first.every((first, index) => index === 0 || first > buckets.last[index - 1]));
});

test("buckets that came before are not counted twice", () => {
  const known = noBuckets();
  const answer = served(noise(256), 5);
  addBuckets(known, answer);
  addBuckets(known, answer);
  assert.deepEqual([known.last.length, known.first[0], known.last.at(-1)], [8, 0, 255]);
});
