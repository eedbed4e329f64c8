// Makes a page when Dash has put its element there, and ends the one before. All other modules hang on this one.

import { grow } from "./core/controls.js";
import { h, setText, watchPresses } from "./core/dom.js";
import { duration } from "./core/format.js";
import { Live } from "./core/live.js";
import { drawAgain, viewer, watchParts } from "./core/parts.js";
import { changed, go, place, route } from "./core/route.js";
import { colorTheme } from "./core/theme.js";
import { IncidentPage } from "./incident/incident_page.js";
import { admitted, showMe } from "./navigation/account.js";
import { drawAttention, named } from "./navigation/attention.js";
import { watchKeys } from "./navigation/keys.js";
import { drawNotify, watchNotify } from "./navigation/notify.js";
import { askSoon, drawRail, frame, listPages, livePill, morePanels, watchRail } from "./navigation/rail.js";
import { AlertingPage } from "./pages/alerting_page.js";
import { AttemptsPage } from "./pages/attempts_page.js";
import { ComparePage } from "./pages/compare_page.js";
import { GalleryPage } from "./pages/gallery_page.js";
import { IncidentsPage } from "./pages/incidents_page.js";
import { LoginPage } from "./pages/login_page.js";
import { WallPage, wallWanted } from "./pages/wall_page.js";
import { drawBanner, drawPill } from "./run/header.js";
import { RunPage } from "./run/run_page.js";
import { RunsPage } from "./runs/runs_page.js";

// -- Counts on what an interruption has cost so far, where the server left a place for it: each second, not each 15.

const EVERY_MS = 1000;

/** Lost time now, seconds: what it was when the server said so, and what went by since, until it counts no more. */
const lostNow = (lost, since, now, until) => lost + Math.max(0, Math.min(now, until) - since);

/** Count from now on, on whatever page is open. */
function watchLost() {
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

// -- A page that the server draws: how live the server is, and when to ask it again before the usual time.

/** This soon after a run's state changed. */
const SOON_MS = 1500;

class ServerPage {
  static skeleton = (name) => frame([h("h1.crumb-here", name), livePill()], h("main.list.stack", morePanels()));

  constructor(root) {
    this.root = root;
    this.state = "connecting";
    this.seen = new Map();
    /** @type {any} */
    this.soon = null;
    this.live = new Live(
      null,
      (message) => this.onMessage(message),
      (state) => (this.state = state),
    );
    this.tick = setInterval(() => {
      if (document.hidden || !root.isConnected) return;
      drawPill(this.live, this.state, null, null, false);
      drawBanner(this.live, null);
    }, 1000);
  }

  onMessage(message) {
    if (message.type === "reset" || (message.type === "hello" && message.afterLoss)) drawAgain();
    if (message.type !== "run") return;
    const { run } = message;
    const state = `${run.status} ${run.open_incidents}`;
    const known = this.seen.get(run.run_id);
    this.seen.set(run.run_id, state);
    if (known === state || this.soon) return;
    this.soon = setTimeout(() => {
      this.soon = null;
      drawAgain();
    }, SOON_MS);
  }

  close() {
    clearInterval(this.tick);
    clearTimeout(this.soon);
    this.live.close();
  }
}

/** An address that means nothing here. */
class MissingPage {
  static skeleton = () =>
    frame(
      [grow()],
      h(
        "main.list",
        h(
          "div.empty.panel",
          h("h1", "Page not found"),
          h("p", "There is no page at this address. The run may be deleted, or the link cut off."),
          h("p", "Search for it with ", h("kbd", "Ctrl K"), ", or go to ", h("a", { href: "/" }, "all runs"), "."),
        ),
      ),
    );

  close() {}
}

/** `data-page` of a page's element -> what fills it. */
const PAGES = {
  runs: RunsPage,
  run: RunPage,
  incident: IncidentPage,
  incidents: IncidentsPage,
  alerting: AlertingPage,
  attempts: AttemptsPage,
  compare: ComparePage,
  gallery: GalleryPage,
  login: LoginPage,
  missing: MissingPage,
  server: ServerPage,
};
/** Pages that ask themselves for what the server draws on them, once their charts stand: it takes longer than those. */
const PARTS_LATER = new Set(["run"]);
/** Pages that have a wall. */
const WALLS = new Set(["runs", "run"]);
/** React may need a frame more to put the element there, and seconds on a machine that has much else to do. */
const FRAMES = 1200;

/** What is open now: the page, and the element that it fills. */
export const opened = { page: /** @type {any} */ (null), root: /** @type {any} */ (null) };
let waiting = 0;
/** The path that Dash was given an element for, and that of the page that was made since. */
let shown = /** @type {any} */ (null);
let alive = /** @type {any} */ (null);
let moves = 0;

colorTheme.followSystem();
colorTheme.redrawWithFont();
watchPresses();
watchParts(() => opened.page?.ended === true);
watchLost();
watchRail(() => opened.page);
watchKeys(() => opened.page);
watchNotify();

document.addEventListener("click", (event) => {
  const target = /** @type {Element} */ (event.target);
  if (target.closest("#theme-toggle")) colorTheme.toggle();
  const link = /** @type {HTMLAnchorElement | null} */ (target.closest("a[href^='/'], a[href^='?']"));
  if (!link || event.defaultPrevented || event.button !== 0 || link.target) return;
  if (event.metaKey || event.ctrlKey || event.shiftKey) return;
  event.preventDefault();
  const href = link.getAttribute("href") || "";
  go(href.startsWith("?") ? changed(href) : place(link.pathname) + link.search + link.hash);
  if (href.startsWith("?")) opened.page?.addressChanged?.();
});

/** The address is another one: by `go`, by the browser's arrows, or by a `dcc.Link` of a plug-in. */
function moved() {
  moves += 1;
  window.dash_clientside?.set_props?.("address", { data: moves });
}
for (const kind of ["popstate", "_dashprivate_pushstate"]) window.addEventListener(kind, moved);

function open(config, name, path) {
  if (path !== shown) return;
  const root = /** @type {HTMLElement | null} */ (document.querySelector("#page > .page"));
  if (!root || root === opened.root) {
    if (waiting < FRAMES) {
      waiting += 1;
      requestAnimationFrame(() => open(config, name, path));
    }
    return;
  }
  alive = path;
  const before = opened.page;
  Object.assign(opened, { page: null, root: null });
  try {
    before?.close();
  } catch (error) {
    reportError(error); // a page that can't end keeps nobody from the next one
  }
  const Page = PAGES[root.dataset.page];
  root.append(...Page.skeleton(name));
  // What the server draws stands where the page has a place for it.
  root.querySelector("#more-panels")?.append(...root.querySelectorAll(":scope > [data-panels]"));
  named(name);
  if (root.dataset.run === undefined) drawAttention(null);
  Object.assign(opened, {
    page: new (wallWanted() && WALLS.has(root.dataset.page || "") ? WallPage : Page)(root, config),
    root,
  });
  if (root.dataset.page === "login") return;
  showMe();
  drawRail();
  drawNotify();
  askSoon();
}

/**
 * The element of an address for Dash to put there, and the input of what the server draws. As soon as it stands, its
 * page is made; where only the address's parameters changed, it stays. Dash drops an answer where it has asked again
 * since, so a page counts as there only when it is made.
 */
export async function show(_moves, pages, config) {
  const given = viewer();
  if (given.path === shown && shown === alive) return [window.dash_clientside.no_update, given];
  shown = given.path;
  waiting = 0;
  if (given.path !== "/login") await admitted();
  const { name, skeleton } = route(given.path, pages);
  listPages(pages.filter((one) => one.order !== null).sort((a, b) => a.order - b.order));
  requestAnimationFrame(() => open(config, name, given.path));
  return [skeleton, PARTS_LATER.has(skeleton.props["data-page"]) ? window.dash_clientside.no_update : given];
}
