// What the page makes of what the server judges of ranks: their words, and the line that says how the job is.

import assert from "node:assert/strict";
import { test } from "node:test";
import { gpuTable, rankTable } from "../../frontend/stabilityfrontend/assets/core/kinds.js";
import { throttlesOf } from "../../frontend/stabilityfrontend/assets/ranks/gpu_map.js";
import { Health } from "../../frontend/stabilityfrontend/assets/ranks/health.js";
import { rankRows, rankSummary } from "../../frontend/stabilityfrontend/assets/ranks/rank_grid.js";

const NOW = 1000;
const STATUSES = ["dead", "over", "unheard", "unread", "behind", "waits", "long", "finished", "running"];
const COUNTED = { waits: "waits", long: "runs", finished: "finished", running: "runs" };
for (const [at, name] of STATUSES.entries())
  rankTable.statuses[name] = {
    tone: at < 2 ? "critical" : at < 6 ? "warning" : "",
    counted: COUNTED[name] || "trouble",
  };
rankTable.named = { tone: "critical", counted: "trouble" };
const tones = (rows) => rows.map((row) => row.facts.tone);

/** Ranks with `{rank: what differs}` on nodes of eight; the nodes in `silent` reported a minute ago. */
function rowsOf(more, { count = 16, silent = [], waitsFor = [] } = {}) {
  const agents = new Map();
  for (let rank = 0; rank < count; rank += 1) {
    const node = `gpu-${String(1 + Math.floor(rank / 8)).padStart(3, "0")}`;
    const time = silent.includes(node) ? NOW - 60 : NOW;
    const agent = { agent: `a-${node}`, node, time, connected: true, gpu: {}, gpus: {}, agent_state: {}, ranks: [] };
    if (!agents.has(node)) agents.set(node, agent);
    const usual = { rank, source: `r${rank}-1-${rank}`, alive: true, state: "running", status: "running", step: 50 };
    agents.get(node).ranks.push({ ...usual, phase: "backward", step_start: 999, phase_start: 999.2, ...more[rank] });
  }
  const health = new Health();
  health.fill({ agents: [...agents.values()], waits_for: waitsFor });
  return rankRows({ health, now: () => NOW });
}

test("what the server judges is what the page shows, also where the page would know better", () => {
  const judged = Object.fromEntries(STATUSES.map((status, rank) => [rank, { status, step: 900, budget_s: 0.1 }]));
  const states = rowsOf(judged).map((row) => row.state);
  assert.deepEqual(states.slice(0, STATUSES.length), STATUSES);
});

test("a process that the server gives no status is no rank", () => {
  assert.equal(rowsOf({ 3: { status: null }, 4: { status: "of another version" } }).length, 14);
});

test("who waits and for whom is said, and whom a verdict names is red", () => {
  const since = { step_start: 925, phase_start: 926 };
  const ranks = { 0: { ...since, status: "waits" }, 1: { ...since, status: "over", phase: "data" } };
  const rows = rowsOf(ranks, { count: 2, waitsFor: [1] });
  assert.deepEqual(tones(rows), ["warning", "critical"]);
  assert.equal(rows[0].words, "waits for rank 1, in backward for 1 min 14 s");
  assert.equal(
    rankSummary(rows, 2),
    "0 of 2 ranks run; 1 waits; rank 1 on gpu-001 has been stalled in data for 1 min 14 s",
  );
});

test("the server's tables say how bad it is, and nothing else does", () => {
  const { over } = rankTable.statuses;
  rankTable.statuses.over = { tone: "info", counted: "runs" };
  const rows = rowsOf({ 0: { status: "over" } }, { count: 2 });
  rankTable.statuses.over = over;
  assert.deepEqual(tones(rows), ["info", ""]);
  assert.equal(rankSummary(rows, 2), "2 of 2 ranks run");
  assert.equal(rankSummary(rows.slice(0, 1), 1), "the rank runs");
  gpuTable.throttles = [{ bit: 0x4, label: "power cap", slows: false }];
  assert.deepEqual(throttlesOf({ throttle_reasons: 0xff }), gpuTable.throttles);
});

test("a silent node that a verdict names is red", () => {
  const rows = rowsOf({ 0: { status: "unheard" } }, { count: 2, silent: ["gpu-001"], waitsFor: [0] });
  assert.deepEqual(tones(rows), ["critical", ""]);
});

for (const [slot, words] of [
  [{}, "runs"],
  [{ step: 40, status: "behind" }, "is 10 steps behind"],
  [{ phase: "save", phase_start: 940, status: "long" }, "has been in save for 1 min 00 s"],
  [{ phase_start: null, step_start: null, status: "waits" }, "waits in backward"],
  [{ state: "finished", status: "finished" }, "finished"],
  [{ status: "dead" }, "is gone"],
  [{ state: "exception", status: "dead" }, "left by an exception"],
  [{ state: "left", status: "dead" }, "left without finish"],
  [{ step: null, status: "unread" }, "has a slot that can't be read"],
]) {
  test(`each state of a rank has its words: ${words}`, () => {
    const rows = rowsOf({ 3: slot });
    assert.deepEqual([rows[3].state, rows[3].words], [slot.status || "running", words]);
  });
}

test("ranks of a silent node are not reporting and their ages stop there", () => {
  const silent = Object.fromEntries(Array.from({ length: 8 }, (_, index) => [8 + index, { status: "unheard" }]));
  assert.equal(rowsOf(silent, { silent: ["gpu-002"] })[8].words, "has not reported for 1 min 00 s");
});

test("columns of the feed become what a whole report would say", () => {
  const health = new Health();
  const rank = (n) => ({ rank: n, source: `r${n}-1-1`, step: 1, phase: "data", proc: { state: "R", cpu: 1 } });
  const whole = [
    { agent: "a", node: "n", time: 99, connected: true, gpu: {}, agent_state: {}, ranks: [0, 1].map(rank) },
  ];
  health.take({ type: "health", base: 100, words: [], waits_for: [], whole, news: [] });
  const more = { step: [7, 8], since: -12, phase: 0, cpu: [90, 0], proc: "SD", wchan: 1, beat: [null, -40] };
  const news = [
    { agent: "a", time: 5, budget: 10, status: [2, 3], ...more },
    { agent: "a", time: 5, step: [1, 2, 3] },
    { agent: "b", step: 1 },
  ];
  const words = ["forward", "futex", "over", "waits"];
  health.take({ type: "health", base: 200, words, waits_for: [1], whole: [], news });
  const agent = health.agents.get("a");
  const fields = ["step", "phase_start", "phase", "cpu", "proc", "wchan", "beat_at", "budget_s", "status"];
  assert.deepEqual([agent.time, health.waitsFor], [200.5, [1]]);
  assert.deepEqual(
    agent.ranks.map((one) => fields.map((name) => one[name])),
    [
      [7, 198.8, "forward", 0.9, "S", "futex", null, 10, "over"],
      [8, 198.8, "forward", 0, "D", "futex", 196, 10, "waits"],
    ],
  );
});
