// The field for batches that are left out: how many right behind the checkpoint, or those of some steps.

import { asList } from "../core/as_type.js";

/** The most batches that can be left out. */
const MOST = 1e9;

/** What is typed for the steps of a range. */
export const rangeText = (range) => asList(range).join("-");

/**
 * The part of an offered range that lies behind a checkpoint, as the field shows it, "" where nothing of it does.
 * `range`: first and last step, inclusive.
 */
export function rangeBehind(range, toStep) {
  const [first, last] = asList(range);
  return last > toStep ? rangeText([Math.max(first, toStep + 1), last]) : "";
}

/** What the field takes of a job that can't do `cannot`. */
function formWords(cannot) {
  if (cannot.skip_range) return "a number of batches, as in 50";
  return cannot.skip_batches ? "two steps, as in 1200-1250" : "a number, or two steps as in 1200-1250";
}

/**
 * What was typed, as an order: `{skip_batches}` of `70`, `{skip_range}` of `1200-1250`, both null of nothing; `problem`:
 * why it is neither, "" where it is. `toStep`: of the checkpoint, null for none. `cannot`: what the job can't do.
 */
export function readSkip(text, toStep, cannot = {}) {
  const typed = text.trim();
  const none = { skip_batches: null, skip_range: null, problem: "" };
  if (typed === "") return none;
  const found = /^(\d{1,16})(?:\s*[-–]\s*(\d{1,16}))?$/.exec(typed);
  if (!found) return { ...none, problem: formWords(cannot) };
  const [first, last] = [Number(found[1]), found[2] === undefined ? null : Number(found[2])];
  if (last === null) {
    if (first > MOST) return { ...none, problem: "1e9 batches at most" };
    if (first && cannot.skip_batches) return { ...none, problem: "give two steps: the job leaves out a range only" };
    return { ...none, skip_batches: first };
  }
  if (cannot.skip_range) return { ...none, problem: "give a number: the job does not leave out a range" };
  if (last < first) return { ...none, problem: "the last step is before the first" };
  if (toStep !== null && first <= toStep)
    return { ...none, problem: `steps behind the checkpoint only: from step ${toStep + 1} on` };
  return { ...none, skip_range: [first, last] };
}
