// Zooming, panning, what a range cuts, and a chart in words and in files.

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  cell,
  csvOf,
  fileName,
  legendRows,
  tableOf,
} from "../../frontend/stabilityfrontend/assets/chart/chart_files.js";
import { Gestures, summaryOf, trend } from "../../frontend/stabilityfrontend/assets/chart/chart_pointer.js";
import { excursions, mergedPeaks } from "../../frontend/stabilityfrontend/assets/chart/line_chart.js";
import { fitted, scaled, stepsOf } from "../../frontend/stabilityfrontend/assets/chart/readout.js";

test("what is under the wheel stays there", () => {
  const [low, high] = scaled([100, 300], 150, 0.5);
  assert.deepEqual([low, high, (150 - low) / (high - low)], [125, 225, 0.25]);
});

test("what is under two fingers stays under them", () => {
  const element = {
    addEventListener() {},
    getBoundingClientRect: () => ({ left: 0, top: 0 }),
    classList: { toggle() {} },
  };
  const spec = { xRange: [0, 1000] };
  const plot = { spec, rows: [], inner: { left: 0, right: 100, top: 0, bottom: 50 }, fromX: (x) => 10 * x };
  globalThis.requestAnimationFrame = () => 1;
  const gestures = new Gestures(element, plot, { onZoom() {}, onReset() {}, onCursor() {} });
  const touch = (pointerId, clientX) => ({ pointerId, clientX, clientY: 5, pointerType: "touch", button: 0 });
  assert.equal(gestures.down(touch(1, 40)), false);
  assert.equal(gestures.down(touch(2, 60)), true);
  gestures.move(touch(1, 20));
  gestures.move(touch(2, 80));
  const [low, high] = gestures.wanted;
  assert.deepEqual([low + 0.2 * (high - low), low + 0.8 * (high - low)].map(Math.round), [400, 600]);
  assert.equal(gestures.up(touch(2, 80)), true);
});

test("a zoom never leaves the data, is never narrower than a step, and of everything is none", () => {
  const extent = [0, 1000];
  assert.equal(fitted([-500, 2000], extent), null);
  assert.deepEqual(fitted([990, 1190], extent), [830, 1030]);
  assert.deepEqual(fitted([-90, 10], extent), [-10, 90]);
  assert.deepEqual(fitted([500, 500.2], extent), [499.6, 500.6]);
  assert.deepEqual(fitted([3, 5], null), [3, 5]);
});

test("a range of another axis means steps, beyond its ends too; none where it falls", () => {
  const line = { x: [10, 20, 30, 40], steps: [1, 2, 3, 4] };
  assert.deepEqual(stepsOf([15, 35], line), [2, 3]);
  assert.deepEqual(stepsOf([0, 60], line), [0, 6]);
  assert.equal(stepsOf([15, 35], { x: [10, 30, 20, 40], steps: [1, 2, 3, 4] }), null);
});

test("a line that leaves the range is one arrow with its farthest value, however long it is away", () => {
  const y = [1, 9, 12, 9, 1, -4, 1, null, 8];
  const found = excursions({ x: [...y.keys()], y }, [0, 5]);
  assert.deepEqual(found, [
    { x: 2, value: 12, up: true },
    { x: 8, value: 8, up: true },
    { x: 5, value: -4, up: false },
  ]);
  assert.deepEqual(
    mergedPeaks(found, (x) => 10 * x).map(({ x, value, count }) => [x, value, count]),
    [
      [2, 12, 2],
      [5, -4, 1],
    ],
  );
});

test("arrows of a thinned line are at its extremes and not at its means", () => {
  const band = { low: [0, 0], lowX: [1, 11], high: [2, 30], highX: [3, 17] };
  assert.deepEqual(excursions({ x: [5, 15], y: [1, 1], band }, [0, 5]), [{ x: 17, value: 30, up: true }]);
});

/** An entry of /series with `x=time`. */
const entry = (more) => ({ metric: "loss", segment: 0, rank: 0, node: null, dead: false, stray: false, ...more });

test("a CSV has a row a step and segment, a column a metric and rank, and says what counts", () => {
  const { parts, rows } = csvOf([
    entry({ steps: [1, 2], values: [0.5, "NaN"], xs: [0, 1.5] }),
    entry({ rank: 1, steps: [2], values: ["-Infinity"], xs: [1.6] }),
    entry({ metric: "=lr, 1", steps: [1], values: [1e-7], xs: [0] }),
    entry({ steps: [3], values: [9], xs: [2], dead: true }),
    entry({ segment: 1, steps: [3], values: [2], xs: [60] }),
  ]);
  assert.equal(rows, 4);
  assert.deepEqual(parts.join("").split("\n"), [
    `step,time,segment,state,loss rank 0,loss rank 1,"'=lr, 1"`,
    "1,1970-01-01T00:00:00.000Z,0,effective,0.5,,1e-7",
    "2,1970-01-01T00:00:01.500Z,0,effective,NaN,-Infinity,",
    "3,1970-01-01T00:00:02.000Z,0,discarded,9,,",
    "3,1970-01-01T00:01:00.000Z,1,effective,2,,",
    "",
  ]);
});

test("a cell is text whatever it holds", () => {
  assert.deepEqual(["a", 'say "so"', "+1", "two\nlines"].map(cell), ["a", '"say ""so"""', "'+1", '"two\nlines"']);
});

test("a file has a name that every file system takes", () => {
  assert.deepEqual([fileName("r-1", "loss/å ‮<b>"), fileName("…")], ["r-1-loss-a-b", "chart"]);
});

test("a legend breaks into rows where it does not fit", () => {
  const names = ["one", "two", "three"].map((name) => ({ name, color: "red" }));
  const { placed, rows } = legendRows(names, () => 66, 210);
  const places = placed.map(({ x, row }) => `${x} ${row}`);
  assert.deepEqual([rows, ...places], [2, "0 0", "100 0", "0 1"]);
});

test("a chart says where its lines are, their extremes, and what is no number", () => {
  const spec = {
    xRange: [0, 9],
    axis: { words: (x) => `step ${x}` },
    notes: () => [{ x: 3, to: 4, words: "spike since 3" }],
  };
  const y = [9, 8, 7, 6, 5, 4, 3, 2, null, 1];
  const line = { name: "loss", x: [...y.keys()], y, color: "" };
  assert.equal(
    summaryOf(spec, [{ lines: [line], marks: [{ x: 8 }] }]),
    "From step 0 to step 9. loss: newest 1 at step 9, lowest 1 at step 9, highest 9 at step 0, falling. " +
      "1 value that is NaN or infinite. spike since 3.",
  );
  assert.equal(summaryOf(spec, [{ lines: [], marks: [] }]), "No points here.");
});

test("noise has no trend", () => {
  assert.equal(trend([1, 2, 1, 2, 1, 2, 1, 2, 1, 2]), "about level");
});

test("the table has one row a place, with the extremes where a value is a mean", () => {
  const a = { x: [1, 2, 3], y: [5, null, 6] };
  const b = { x: [1, 2], y: [7, 8], band: { low: [6, 8], high: [9, 8] } };
  const plain = (value) => ({ value, low: null, high: null });
  assert.deepEqual(tableOf([a, b], [1, 2.5]), [
    { x: 1, values: [plain(5), { value: 7, low: 6, high: 9 }] },
    { x: 2, values: [undefined, plain(8)] },
  ]);
});
