// The kinds of incidents, the statuses of runs and ranks, the states of GPUs, the words of verdicts: the server's one
// table of each (in its schema/), which the page's head hands over.

import { readable } from "./format.js";

/** Name -> what is known of the kind; the page's head fills it before any page opens. */
export const kindTable = {};

/** What is known of a kind; of one that is not in the table (of a newer server), what its name says. */
export function incidentKind(name) {
  if (name && Object.hasOwn(kindTable, name)) return kindTable[name];
  const short = readable(name);
  return { ...kindTable[""], name, short, label: short.charAt(0).toUpperCase() + short.slice(1) };
}

/** Status of a run -> what follows from it (StatusFacts). */
export const statusTable = {};

/** What follows from a run's status. @returns {{under_way: boolean, ended: boolean, over: boolean}} */
export const statusFacts = (status) => statusTable[status] || { under_way: false, ended: false, over: false };

/** How incidents and runs are shown: severity and status, or phase -> Appearance (word, tone, shape, order). */
export const appearanceTable = { incidents: {}, phases: {} };

/** What ranks do, worst first: status -> RankStatusFacts, and what is so instead of a rank that a verdict names. */
export const rankTable = { statuses: {}, named: {} };

/** States of GPUs, worst first, with label, mark and tone; what classes of faults ask for; why clocks are lowered. */
export const gpuTable = { classes: {}, states: {}, throttles: [] };

/** Words of verdicts: of their classes, of how sure they are, of what the rest of the job does. */
export const verdictWords = { classes: {}, confidences: {}, trainings: {} };
