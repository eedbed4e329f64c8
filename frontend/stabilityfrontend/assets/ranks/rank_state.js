// What each rank does, as the server judges it (docs/api.md, Health): its rows and sentences.

import { ago, duration, formatCount, plural } from "../core/format.js";
import { rankTable } from "../core/kinds.js";
import { rankWords } from "./rank_words.js";

/** What is known of a rank. Its words are made when somebody reads them: of thousands one or two stand in a sentence. */
class Row {
  constructor(slot, agent, heardS, waitsFor, named, place) {
    this.rank = slot.rank;
    this.node = agent.node;
    this.agent = agent;
    this.slot = slot;
    this.state = slot.status;
    /** The worst is 0. */
    this.place = place;
    /** What follows from that; otherwise for one that an open verdict names. Colours are `rank-<state>` of theme.py. */
    this.facts = named ? { ...rankTable.statuses[this.state], ...rankTable.named } : rankTable.statuses[this.state];
    /** The ranks that it waits for, where they are known. */
    this.waitsFor = waitsFor;
    this.lag = null;
    this.heardS = heardS;
    // What a silent node's rank did since is not known: its ages stop with its agent's last word.
    const at = agent.time;
    const entered = Math.max(slot.step_start || 0, slot.phase_start || 0);
    this.stoodS = entered ? Math.max(0, at - entered) : null;
    this.phaseS = slot.phase_start ? Math.max(0, at - slot.phase_start) : null;
    this.beatS = slot.beat_at === null ? null : Math.max(0, at - slot.beat_at);
  }

  get words() {
    return wordsOf(this);
  }
}

/**
 * A row for each rank, by rank: `{rank, node, agent, slot, state, facts, words, lag, stoodS, phaseS, heardS, beatS}`.
 * Times are on the agents' clocks: a node's clock that is off changes no age.
 */
export function rankRows(page) {
  const now = page.now();
  const { waitsFor } = page.health;
  const named = new Set(waitsFor);
  const statuses = Object.keys(rankTable.statuses);
  const found = new Map();
  for (const agent of page.health.nodes()) {
    const heardS = Math.max(0, now - agent.time);
    // A process without a status is one that another has replaced, or of a rank that the job has no more.
    for (const slot of agent.ranks) {
      const place = slot ? statuses.indexOf(slot.status) : -1;
      if (place >= 0 && !found.has(slot.rank))
        found.set(slot.rank, new Row(slot, agent, heardS, waitsFor, named.has(slot.rank), place));
    }
  }
  const rows = [...found.values()].sort((a, b) => a.rank - b.rank);
  let front = -Infinity;
  for (const { state, slot } of rows)
    if (state !== "dead" && state !== "finished" && slot.step > front) front = slot.step;
  for (const row of rows)
    row.lag =
      row.slot.step === null || row.slot.step < 0 || !Number.isFinite(front)
        ? null
        : Math.max(0, front - row.slot.step);
  return rows;
}

const since = (seconds) => (seconds === null ? "" : ` for ${duration(seconds)}`);

/** What a rank does, to be read after its name. */
function wordsOf(row) {
  const { slot } = row;
  switch (row.state) {
    case "dead":
      return slot.state === "exception"
        ? "left by an exception"
        : slot.state === "left"
          ? "left without finish"
          : "is gone";
    case "over":
      return `has been stalled in ${slot.phase || "this step"}${since(row.stoodS)}`;
    case "unheard":
      return row.agent.connected
        ? `has not reported for ${duration(row.heardS)}`
        : `is not visible: its agent is disconnected, last report ${ago(row.heardS)}`;
    case "unread":
      return "has a slot that can't be read";
    case "behind":
      return `is ${plural(row.lag, "step")} behind`;
    case "waits":
      return `waits ${row.waitsFor.length ? `for ${rankWords(row.waitsFor, 3)}, ` : ""}in ${slot.phase || "this step"}${since(row.stoodS)}`;
    case "long":
      return `has been in ${slot.phase || "a long phase"}${since(row.phaseS)}`;
    default:
      return row.state === "finished" ? "finished" : "runs";
  }
}

/** Worst first, then furthest behind, then longest in its phase. */
export const worstFirst = (a, b) =>
  a.place - b.place || (b.lag || 0) - (a.lag || 0) || (b.stoodS || 0) - (a.stoodS || 0) || a.rank - b.rank;

/** `"2,047 of 2,048 ranks run; rank 517 on gpu-064 has been stalled in data for 74 s"`. */
export function rankSummary(rows, worldSize) {
  if (!rows.length) return "";
  const total = Math.max(rows.length, worldSize || 0);
  const counted = (as) => rows.filter((row) => row.facts.counted === as);
  const [fine, waits, done] = ["runs", "waits", "finished"].map((as) => counted(as).length);
  // Before the first step all compile or load: that says more than that they run.
  const phase = rows[0].slot?.phase;
  const together = phase && rows.every(({ state, slot }) => state === "long" && slot?.phase === phase);
  const parts = [
    done === rows.length
      ? `all ${plural(done, "rank")} finished`
      : together && total === rows.length
        ? `all ${plural(total, "rank")} are in ${phase}`
        : total === 1
          ? `the rank ${fine ? "runs" : "does not run"}`
          : `${formatCount(fine)} of ${plural(total, "rank")} run`,
  ];
  if (waits) parts.push(`${formatCount(waits)} ${waits === 1 ? "waits" : "wait"}`);
  const bad = counted("trouble").sort(worstFirst);
  for (const row of bad.slice(0, 2)) parts.push(`rank ${row.rank} on ${row.node} ${row.words}`);
  if (bad.length > 2) parts.push(`${formatCount(bad.length - 2)} more in trouble`);
  if (total > rows.length) parts.push(`${plural(total - rows.length, "rank")} unseen`);
  return parts.join("; ");
}
