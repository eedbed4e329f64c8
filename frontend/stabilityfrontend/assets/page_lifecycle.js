// Brings a page to life when Dash has put its skeleton there, and ends the one before. All other modules hang on this one.

import { ComparePage } from "./compare/compare_page.js";
import { go, route } from "./core/route.js";
import { colorTheme } from "./core/theme.js";
import { FleetPage } from "./fleet/fleet_page.js";
import { IncidentPage } from "./incident/incident_page.js";
import { showMe } from "./login/account.js";
import { LoginPage } from "./login/login_page.js";
import { RunPage } from "./run/run_page.js";
import { RunsPage } from "./runs/runs_page.js";

/** `data-page` of a skeleton -> what fills it; a run's page has a run instead. */
const PAGES = { runs: RunsPage, login: LoginPage, compare: ComparePage, incident: IncidentPage, fleet: FleetPage };
/** React may need a frame more to put the skeleton there; two seconds are a hundred times what that takes. */
const FRAMES = 120;

/** What is open now: the page, and the element that it fills. */
export const opened = { page: null, root: null };
let waiting = 0;

document.addEventListener("click", (event) => {
  const target = /** @type {Element} */ (event.target);
  if (target.closest("#theme-toggle")) colorTheme.toggle();
  const link = /** @type {HTMLAnchorElement | null} */ (target.closest("a[href^='/']"));
  if (!link || event.defaultPrevented || event.button !== 0 || link.target) return;
  if (event.metaKey || event.ctrlKey || event.shiftKey) return;
  event.preventDefault();
  go(link.getAttribute("href"));
});

function open(config) {
  const root = /** @type {HTMLElement | null} */ (document.querySelector("#page > .page"));
  if (!root || root === opened.root) {
    if (waiting < FRAMES) {
      waiting += 1;
      requestAnimationFrame(() => open(config));
    }
    return;
  }
  opened.page?.close();
  Object.assign(opened, { page: null, root: null });
  const Page = root.dataset.page ? PAGES[root.dataset.page] : RunPage;
  if (root.dataset.run === undefined) document.title = "Stabilityboard";
  Object.assign(opened, { page: Page ? new Page(root, config) : { close() {} }, root });
  if (root.dataset.page !== "login") showMe();
}

/** The skeleton of an address for Dash to put there; as soon as it stands, it comes to life. */
export function show(pathname, skeletons, config) {
  waiting = 0;
  requestAnimationFrame(() => open(config));
  return route(pathname, skeletons);
}
