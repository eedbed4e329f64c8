// Ranks, their processes and what is not visible of them, as people name them.

import { formatCount, readable } from "../core/format.js";

/** Stretches of ranks that are named before it says how many more there are. */
const STRETCHES = 8;

/** Ranks (any number of them) as sorted whole numbers, once each. */
export const ranksOf = (value) =>
  [
    ...new Set((Array.isArray(value) ? value : []).map(Number).filter((rank) => Number.isInteger(rank) && rank >= 0)),
  ].sort((a, b) => a - b);

/** `0–4, 6, 8–2047`; of many stretches the first ones and how many ranks more. */
export function rankRanges(value, most) {
  const ranks = ranksOf(value);
  const stretches = [];
  for (const rank of ranks) {
    const last = stretches[stretches.length - 1];
    if (last && rank === last[1] + 1) last[1] = rank;
    else stretches.push([rank, rank]);
  }
  const shown = stretches.slice(0, most || STRETCHES);
  const named = shown.reduce((sum, [from, to]) => sum + to - from + 1, 0);
  const words = shown
    .map(([from, to]) => (from === to ? String(from) : to === from + 1 ? `${from}, ${to}` : `${from}–${to}`))
    .join(", ");
  return ranks.length > named ? `${words} and ${formatCount(ranks.length - named)} more` : words;
}

/** `rank 5`, `ranks 0–4, 6`. */
export function rankWords(value, most) {
  const ranks = ranksOf(value);
  return ranks.length ? `${ranks.length === 1 ? "rank" : "ranks"} ${rankRanges(ranks, most)}` : "";
}

const PROCESS_STATES = {
  R: "runs",
  S: "sleeps",
  D: "waits for a disk or a device",
  T: "stopped",
  t: "traced",
  Z: "zombie",
  X: "gone",
  I: "idle",
};

/** A process's state as `ps` has it, in words: `sleeps (S)`. */
export const processWords = (letter) => `${PROCESS_STATES[letter] || "unknown"} (${letter})`;

/** What an agent may not see. */
const BLIND_SPOTS = {
  kernel_log: "kernel log",
  checkpoints: "checkpoints",
  signals: "stacks by signal",
  gpu: "GPUs",
  gpu_events: "GPU events",
  gpu_ecc: "GPU memory errors",
  slot: "ranks' slots",
  spool: "spool",
  numbers: "held-back records",
  exit_status: "exit codes",
  agent: "silent agents",
  dropped: "dropped records",
  clock: "clocks",
};

/** What is not visible, in words. */
export const blindSpot = (what) => BLIND_SPOTS[what] || readable(what);
