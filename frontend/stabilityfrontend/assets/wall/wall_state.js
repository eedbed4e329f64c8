// What a wall says of runs, without drawing: which are sick, in which order views come, whether the feed can be believed.

import { sickFirst, stateOf } from "../core/appearance.js";

/** A job that crashed longer ago than this is history: it is counted, and takes no place. A day, seconds. */
const HISTORY_S = 86400;
/** Seconds without any sign of the server after which what is shown can't be believed. A healthy one answers each 2 s. */
export const STALE_S = 6;
/** Seconds that a view stays when `rotate` says nothing, and the least that it can be. */
export const ROTATE_S = 30;
const LEAST_ROTATE_S = 3;
/** Runs that are sick or crashed and get a view of their own in a round, and others where none is sick. */
const [SICK_VIEWS, WELL_VIEWS] = [8, 4];

/**
 * Runs by what the server counts them as: `ill` has the `sick` and those that `crashed` within a day, the worst first;
 * `well`: a job is at work; `past`: how many others.
 */
export function heaps(runs, now) {
  const ill = [];
  const well = [];
  const counts = { sick: 0, crashed: 0, well: 0, past: 0 };
  for (const run of runs) {
    const { condition } = stateOf(run);
    const heap =
      condition === "sick" || condition === "well"
        ? condition
        : condition === "crashed" && now - (run.updated || 0) <= HISTORY_S
          ? condition
          : "past";
    counts[heap] += 1;
    if (heap === "well") well.push(run);
    else if (heap !== "past") ill.push(run);
  }
  ill.sort(sickFirst);
  well.sort((a, b) => (b.created || 0) - (a.created || 0));
  return { ill, well, counts };
}

/** Seconds of a view from the address: `30s`, `30`, `2min`; 0 stays on one view; null where it says nothing readable. */
export function rotateSeconds(text) {
  const found = /^(\d+)\s*(s|min)?$/.exec(String(text || "").trim());
  if (!found) return null;
  const seconds = Number(found[1]) * (found[2] === "min" ? 60 : 1);
  return seconds === 0 ? 0 : Math.max(LEAST_ROTATE_S, seconds);
}

/** The views of a round: `""` is the fleet, else a run's id. `own`: the run of the address, which is then the first. */
export function viewsOf({ ill, well }, own) {
  const runs = (ill.length ? ill.slice(0, SICK_VIEWS) : well.slice(0, WELL_VIEWS)).map((run) => run.run_id);
  return own ? [own, ...runs.filter((id) => id !== own)] : ["", ...runs];
}

/** The view after one: views come and go, so it is looked up. */
export const nextView = (views, current) => views[(views.indexOf(current) + 1) % views.length] ?? views[0];

/**
 * Seconds since there was any sign of the server; null while the feed can be believed.
 * `heard`: last message; `answered`: last good answer to a question; milliseconds, as `now`. An answer counts only
 * while the feed is open: a server that answers and sends nothing is no feed.
 */
export function staleSeconds({ heard, answered, open }, now) {
  const sign = Math.max(heard, open ? answered : 0);
  const seconds = (now - sign) / 1000;
  return seconds > STALE_S ? Math.floor(seconds) : null;
}
