// Brings a page to life when Dash has put its skeleton there, and ends the one before. All other modules hang on this one.

import { AlertingPage } from "./alerting/alerting_page.js";
import { AttemptsPage } from "./compare/attempts_page.js";
import { ComparePage } from "./compare/compare_page.js";
import { viewer, watchParts } from "./core/parts.js";
import { watchPresses } from "./core/patch.js";
import { place } from "./core/place.js";
import { changed, go, route } from "./core/route.js";
import { colorTheme } from "./core/theme.js";
import { GalleryPage } from "./gallery/gallery_page.js";
import { IncidentPage } from "./incident/incident_page.js";
import { IncidentsPage } from "./incidents/incidents_page.js";
import { watchLost } from "./incidents/lost_so_far.js";
import { admitted, showMe } from "./login/account.js";
import { LoginPage } from "./login/login_page.js";
import { drawAttention, named } from "./navigation/attention.js";
import { watchKeys } from "./navigation/keys.js";
import { drawNotify, watchNotify } from "./navigation/notify.js";
import { askSoon, drawRail, watchRail } from "./navigation/rail.js";
import { RunPage } from "./run/run_page.js";
import { RunsPage } from "./runs/runs_page.js";
import { ServerPage } from "./server_page.js";
import { WallPage, wallWanted } from "./wall/wall_page.js";

/** `data-page` of a skeleton -> what fills it. */
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
  server: ServerPage,
};
/** Pages that ask themselves for what the server draws on them, once their charts stand: it takes longer than those. */
const PARTS_LATER = new Set(["run"]);
/** Pages that have a wall. */
const WALLS = new Set(["runs", "run"]);
/** React may need a frame more to put the skeleton there, and seconds on a machine that has much else to do. */
const FRAMES = 1200;

/** What is open now: the page, and the element that it fills. */
export const opened = { page: /** @type {any} */ (null), root: /** @type {any} */ (null) };
let waiting = 0;
/** The path that Dash was given a skeleton for, and that of the page that has come to life since. */
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
  const Page = wallWanted() && WALLS.has(root.dataset.page || "") ? WallPage : PAGES[root.dataset.page];
  named(name);
  if (root.dataset.run === undefined) drawAttention(null);
  Object.assign(opened, { page: Page ? new Page(root, config) : { close() {} }, root });
  if (root.dataset.page === "login") return;
  showMe();
  drawRail();
  drawNotify();
  askSoon();
}

/**
 * The skeleton of an address for Dash to put there, and what the server draws by. As soon as the skeleton stands, it
 * comes to life; where only the address's parameters are others, it stays. Dash drops an answer where it has asked
 * again since, so a page counts as there only when it lives.
 */
export async function show(_moves, pages, config) {
  const given = viewer();
  if (given.path === shown && shown === alive) return [window.dash_clientside.no_update, given];
  shown = given.path;
  waiting = 0;
  if (given.path !== "/login") await admitted();
  const { name, skeleton } = route(given.path, pages);
  requestAnimationFrame(() => open(config, name, given.path));
  return [skeleton, PARTS_LATER.has(skeleton.props["data-page"]) ? window.dash_clientside.no_update : given];
}
