// Counts on what an interruption has cost so far, where the server left a place for it: each second, not each 15.

import { setText } from "../core/dom.js";
import { duration } from "../core/format.js";

const EVERY_MS = 1000;

/** Lost time now, seconds: what it was when the server said so, and what went by since, until it counts no more. */
export const lostNow = (lost, since, now, until) => lost + Math.max(0, Math.min(now, until) - since);

/** Count from now on, on whatever page is open. */
export function watchLost() {
  const seen = new WeakMap();
  setInterval(() => {
    if (document.hidden) return;
    for (const place of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-lost]"))) {
      const said = Number(place.dataset.lost);
      const known = seen.get(place);
      const now = Date.now() / 1000;
      const since = known && known.said === said ? known.since : now;
      seen.set(place, { said, since });
      setText(place, duration(lostNow(said, since, now, Number(place.dataset.until))));
    }
  }, EVERY_MS);
}
