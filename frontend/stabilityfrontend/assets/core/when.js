// Every time that a page shows: in the viewer's zone, with the same in UTC under the pointer.

import { h } from "./dom.js";
import { inUtc, moment } from "./format.js";

/** What stands under the pointer of a time: both zones. */
export const whenTitle = (seconds) => (inUtc(seconds) ? `${moment(seconds)}\n${inUtc(seconds)}` : null);

/** Whether the times of a run's log are made up: it was imported from one that has none, and no moment of it is shown. */
export const isUntimed = (run) => Boolean(run?.config?.log_without_times);

/** A time as an element; `words`: what is shown instead of date and clock, an age for example. */
export const when = (seconds, words = moment(seconds), className = "") =>
  h(
    "time",
    {
      class: className || null,
      datetime: inUtc(seconds) ? new Date(seconds * 1000).toISOString() : false,
      title: whenTitle(seconds),
    },
    words,
  );
