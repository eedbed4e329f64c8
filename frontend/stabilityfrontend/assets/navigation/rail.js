// The navigation that every page has: how many incidents are open, and the buttons of search and keys.

import { api } from "../core/api.js";
import { setClass, setText, setTitle } from "../core/dom.js";
import { plural } from "../core/format.js";
import { heard } from "../core/live.js";
import { showKeys } from "./keys.js";
import { openPalette } from "./palette.js";

/** How often the count is asked for; what the page's own feed says of an incident asks for it at once. */
const EVERY_MS = 10000;
/** After a page was opened its own requests come first; and news that come together are asked for once. */
const SOON_MS = 800;
const listeners = new Set();

let counts = /** @type {import("../../../types/api").IncidentCounts | null} */ (null);
let soon = /** @type {any} */ (null);

/** How many incidents are open, as the server said last; null until then. */
export const openIncidents = {
  now: () => counts,
  /** Call `listener` with the counts at each answer; returns what ends that. */
  watch(listener) {
    listeners.add(listener);
    return () => listeners.delete(listener);
  },
};

/** Write the count where the navigation has its place. */
export function drawRail() {
  const place = document.querySelector("[data-count='incidents']");
  if (!place || !counts) return;
  const open = counts.alarms;
  setText(place, open ? (open > 999 ? "999+" : String(open)) : "");
  setClass(place, `rail-count${open ? (counts.critical ? " critical" : " warning") : ""}`);
  setTitle(
    place.parentElement,
    open
      ? `${plural(open, "open incident")}, ${counts.critical} critical, ${counts.unacknowledged} not acknowledged`
      : "No open incident",
  );
}

async function ask() {
  soon = null;
  if (document.hidden || !document.querySelector("[data-count='incidents']")) return;
  try {
    ({ counts } = await api.allIncidents({ limit: 0 }));
  } catch {
    return; // the page itself says that the server is away
  }
  drawRail();
  for (const listener of listeners) listener(counts);
}

/** Ask for the count soon. */
export function askSoon() {
  if (soon === null) soon = setTimeout(ask, SOON_MS);
}

/** From now on keep the count, and open search and keys. */
export function watchRail(openedPage) {
  setInterval(askSoon, EVERY_MS);
  document.addEventListener("visibilitychange", askSoon);
  heard.add((message) => {
    if (message.type === "incident" || message.type === "reset") askSoon();
  });
  document.addEventListener("click", (event) => {
    const target = /** @type {Element} */ (event.target);
    if (target.closest("#palette-open")) openPalette(openedPage());
    else if (target.closest("#keys-open")) showKeys();
  });
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k") {
      event.preventDefault();
      openPalette(openedPage());
    }
  });
}
