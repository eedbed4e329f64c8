// What is said of runs that saw the same data in the same order, and by how much they are moved to lie over each other.

import { formatCount } from "../core/format.js";

/** Stretches of a run that are named one by one. */
const NAMED = 3;

/**
 * One text for each of the longest stretches in which a run saw the data of another one.
 *
 * @param {{ run_id: string, same_data: import("../../../types/api").SameData[] }} run
 * @param {(id: string) => string} nameOf
 * @returns {string[]}
 */
export function sameDataWords(run, nameOf) {
  const longest = [...run.same_data].sort((a, b) => b.last_step - b.first_step - (a.last_step - a.first_step));
  const words = longest.slice(0, NAMED).map((stretch) => {
    const steps = `steps ${formatCount(stretch.first_step)} to ${formatCount(stretch.last_step)}`;
    const than =
      stretch.first_step === stretch.other_step ? "" : ` from its step ${formatCount(stretch.other_step)} on`;
    return `${nameOf(run.run_id)}, ${steps}: the data of ${nameOf(stretch.other_run)}${than}, in its order`;
  });
  const more = longest.length - words.length;
  return more > 0 ? [...words, `and ${formatCount(more)} more`] : words;
}

/**
 * By how many steps each run of an address is moved: its `shift` belongs to the `run` at the same place.
 *
 * @param {URLSearchParams} query
 * @returns {Map<string, number>}
 */
export function shiftsOf(query) {
  const shifts = query.getAll("shift").map(Number);
  return new Map(query.getAll("run").map((id, at) => [id, Number.isSafeInteger(shifts[at]) ? shifts[at] : 0]));
}

/**
 * What is said of a run whose steps are moved, "" of one that stays where it is.
 *
 * @param {string} name
 * @param {number} shift
 */
export function shiftWords(name, shift) {
  const steps = `${formatCount(Math.abs(shift))} ${Math.abs(shift) === 1 ? "step" : "steps"}`;
  return shift ? `${name} is moved ${steps} to the ${shift > 0 ? "right" : "left"}` : "";
}
