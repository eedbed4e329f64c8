// The navigation that every page has: how many incidents are open, and the buttons of search and keys.

import { api } from "../core/api.js";
import { h, setClass, setText, setTitle } from "../core/dom.js";
import { plural } from "../core/format.js";
import { heard } from "../core/live.js";
import { place } from "../core/route.js";
import { drawAttention, setFleet } from "./attention.js";
import { showKeys } from "./keys.js";
import { openPalette } from "./palette.js";

/** How often the count is asked for; what the page's own feed says of an incident asks for it at once. */
const EVERY_MS = 10000;
/** A hidden tab's title and icon go on; it asks this often. */
const HIDDEN_EVERY_MS = 30000;
/** After a page was opened its own requests come first; and news that come together are asked for once. */
const SOON_MS = 800;

let counts = /** @type {import("../../../types/api").IncidentCounts | null} */ (null);
let soon = /** @type {any} */ (null);
let asked = 0;
let page = /** @type {() => any} */ (() => null);

/** The pages that the navigation lists, as `page_lifecycle.js` takes them from the table: `{name, path}`. */
const listed = /** @type {{name: string, path: string}[]} */ ([]);
export const listPages = (pages) => listed.splice(0, listed.length, ...pages);

/** A page of the navigation; a run's page, and all below it, belong to the list of runs. */
function railLink({ name, path }) {
  const word = name.toLowerCase().replace(" ", "-");
  const here = place() === path || (path === "/" && place().startsWith("/runs"));
  return h(
    "a.rail-item",
    { href: path, "aria-current": here ? "page" : null },
    h("span", { class: `rail-icon page-${word}` }),
    h("span", name),
    h("span.rail-count", { data: { count: word } }),
  );
}

/** A page: the navigation, the bar at the top with `middle`, the place of connection problems, then its own parts. */
export function frame(middle, ...parts) {
  const item = (id, icon, word, title, more) =>
    h("button.rail-item", { id, title, ...more }, h("span", { class: `rail-icon icon-${icon}` }), h("span", word));
  return [
    h(
      "nav",
      { id: "rail", "aria-label": "Pages" },
      h("a", { href: "/", id: "home", "aria-label": "Stabilityboard: all runs" }, h("span.mark")),
      h("div", { id: "pages" }, listed.map(railLink)),
      h("span.grow"),
      item("palette-open", "search", "Search", "Search everything (Ctrl-K)", {
        "aria-keyshortcuts": "Control+K Meta+K",
      }),
      item("notify", "notify", "Notify", null, { hidden: true, "aria-pressed": "false" }),
      item("keys-open", "keys", "Shortcuts", "All keyboard shortcuts (?)"),
    ),
    h(
      "header.topbar",
      middle,
      h("span", { id: "who" }),
      // With a target it is a new page and no change of this one's address.
      h("a", { href: "?wall=1", target: "_self", id: "wall-open", title: "For a large screen on the wall" }, "Wall"),
      h(
        "button.icon-button",
        { id: "theme-toggle", title: "Dark or light", "aria-label": "Switch between dark and light" },
        h("span.icon.icon-theme"),
      ),
    ),
    h("div", { id: "banner", role: "alert", hidden: true }),
    ...parts,
  ];
}

/** The end of a bar: the state of the feed. */
export const livePill = () => [h("span.grow"), h("span.pill.quiet", { id: "live-pill" })];
/** The way back to the list of runs. */
export const crumbRuns = () => [h("a.crumb", { href: "/", id: "crumb-runs" }, "Runs"), h("span.crumb-sep", "/")];
/** Where a page has the panels that are declared for it. */
export const morePanels = () => h("div", { id: "more-panels" });

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
  if (!document.querySelector("[data-count='incidents']")) return;
  if (document.hidden && Date.now() - asked < HIDDEN_EVERY_MS) return;
  asked = Date.now();
  try {
    const answer = await api.allIncidents({ limit: 1, state: "open" });
    ({ counts } = answer);
    const { id } = page() || {};
    // The page's own feed pauses in a hidden tab.
    const own = document.hidden && id ? await api.allIncidents({ limit: 1, state: "open", run: id }) : null;
    setFleet(answer, answer.now, own);
  } catch {
    setFleet(null, Date.now() / 1000); // the page itself says that the server is away, and so does the tab
  }
  drawAttention(page());
  if (!counts) return;
  drawRail();
}

/** Ask for the count soon. */
export function askSoon() {
  if (soon === null) soon = setTimeout(ask, SOON_MS);
}

/** From now on keep the count, and open search and keys. */
export function watchRail(openedPage) {
  page = openedPage;
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
