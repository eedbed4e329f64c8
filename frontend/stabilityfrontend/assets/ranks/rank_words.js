// Ranks as people name them.

import { formatCount } from "../core/format.js";

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
