// When charts are drawn again, and when a zoom's detail is asked for.

import assert from "node:assert/strict";
import { test } from "node:test";

globalThis.IntersectionObserver = globalThis.ResizeObserver = /** @type {any} */ (
  class {
    observe() {}
  }
);
globalThis.requestAnimationFrame = () => 0;
const { Board, Zoom } = await import("../../frontend/stabilityfrontend/assets/chart/chart_scheduler.js");

/** A zoom whose clock is moved by `wait`, and what its listeners heard. */
function zoomed(t) {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  let now = 5000;
  t.mock.method(performance, "now", () => now);
  const zoom = new Zoom();
  const [each, rested] = [[], []];
  zoom.listeners.add((range) => each.push(range));
  zoom.rested.add((range) => rested.push(range));
  const wait = (ms) => {
    now += ms;
    t.mock.timers.tick(ms);
  };
  return { zoom, each, rested, wait };
}

test("the detail of a drag is asked for at once", (t) => {
  const { zoom, rested, wait } = zoomed(t);
  zoom.set([1, 2]);
  assert.deepEqual(rested, [[1, 2]]);
  wait(1000);
  assert.deepEqual(rested, [[1, 2]]);
});

test("of a wheel's move the detail is asked for at its begin and at its end", (t) => {
  const { zoom, each, rested, wait } = zoomed(t);
  for (let turn = 0; turn < 10; turn += 1) {
    zoom.set([turn, 100]);
    wait(30);
  }
  assert.equal(each.length, 10);
  assert.deepEqual(rested, [[0, 100]]);
  wait(1000);
  assert.deepEqual(rested, [
    [0, 100],
    [9, 100],
  ]);
});

test("a page that is left asks for no detail", (t) => {
  const { zoom, rested, wait } = zoomed(t);
  zoom.set([1, 2]);
  zoom.set([1, 3]);
  zoom.close();
  wait(1000);
  assert.deepEqual(rested, [[1, 2]]);
});

/** A board of charts that each took `cost` ms, without a page. */
function boardOf(count, cost) {
  const board = new Board({ limits: { frame_budget_ms: 10 } }, new Zoom());
  for (let id = 0; id < count; id += 1) {
    board.add({ id, element: {}, interval: 50, metrics: () => ["loss"], first: id === 0 });
    Object.assign(board.charts.get(id), { cost, visible: true, asked: false });
  }
  board.load = count * cost;
  return board;
}

test("the more charts have new points, the longer each rests, the large one half as long and none over two seconds", () => {
  const paces = (board) => [...board.charts.values()].map((chart) => board.pace(chart));
  assert.deepEqual(paces(boardOf(1, 1)), [50]);
  assert.deepEqual(paces(boardOf(3, 2)), [120, 240, 240]);
  assert.deepEqual(paces(boardOf(20, 1)), [400, ...Array(19).fill(800)]);
  assert.deepEqual(paces(boardOf(100, 3)), [1000, ...Array(99).fill(2000)]);
});

test("charts with new points share frames, one that somebody waits for has its own", () => {
  const board = boardOf(20, 1);
  board.liveFrame = 10_000;
  const [large, small] = [0, 5].map((id) => board.charts.get(id));
  assert.deepEqual([board.dueAt(large), board.dueAt(small)], [10_390, 10_390]);
  board.mark(small);
  assert.equal(board.dueAt(small), 50);
});

test("a chart that somebody waits for rests for its own time only", () => {
  const board = boardOf(20, 3);
  board.mark(board.charts.get(5));
  assert.equal(board.pace(board.charts.get(5)), 50);
});
