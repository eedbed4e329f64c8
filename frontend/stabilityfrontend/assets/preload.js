// What stands in the page's head: it loads the modules, and meanwhile asks for what a run's page will need, so that the
// answers wait for the scripts and not the other way round. It is put there with a copy of what it imports.

import {
  ask,
  derivedOptions,
  firstMetrics,
  firstRequests,
  forgetAnswers,
  handOver,
  isKept,
  runPath,
  seriesPaths,
  viewOf,
  wantedOf,
} from "./core/first_requests.js";
import { place } from "./core/route.js";
import { readState, tablePath } from "./runs/table_state.js";

const RUNS = /^\/(?:runs\/?)?$/;
const RUN = /^\/runs\/([^/]+)\/?$/;
const WALL_PX = 1600;

/**
 * Load the modules and tell Dash what to call when it has an address.
 *
 * `first`: the first requests (`first_requests.js`); `kinds`, `statuses`, `verdicts`, `ranks`,
 * `gpus` and `appearances`: tables of `kinds.js`. Where the modules are, a link above the script says.
 */
export function begin({ first, kinds, statuses, verdicts, ranks, gpus, appearances }) {
  Object.assign(firstRequests, first);
  // A wall shows twice as much of a line as a desk.
  if (window.innerWidth > WALL_PX) firstRequests.points.fine *= 2;
  const url = /** @type {HTMLLinkElement} */ (document.querySelector("link[rel=modulepreload]")).href;
  const loaded = import(url).then(({ modules }) => {
    modules["core/first_requests.js"].takeOver(handOver());
    const tables = modules["core/kinds.js"];
    Object.assign(tables.kindTable, kinds);
    Object.assign(tables.statusTable, statuses);
    Object.assign(tables.verdictWords, verdicts);
    Object.assign(tables.rankTable, ranks);
    Object.assign(tables.gpuTable, gpus);
    Object.assign(tables.appearanceTable, appearances);
    return modules;
  });
  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.stability = {
    show: async (...given) => (await loaded)["page_lifecycle.js"].show(...given),
    fill: async (...given) => (await loaded)["core/parts.js"].fill(...given),
  };
  const found = RUN.exec(place());
  try {
    if (found) askForRun(decodeURIComponent(found[1]));
  } catch {
    // An id that can't be decoded: the page says so.
  }
  if (RUNS.test(place())) ask(tablePath(readState(location.search)));
  if (place() !== "/login") ask("/me"); // a page waits for it; the first chart comes first
}

function askForRun(id) {
  const { fine, panel } = firstRequests.points;
  const view = viewOf(location.search);
  const run = ask(runPath(id));
  ask(`${runPath(id)}/segments`);
  for (const { path } of seriesPaths(id, firstRequests.fine, { view: "all", points: fine })) ask(path);
  if (view.x !== "step" || view.smooth)
    for (const { path } of seriesPaths(id, firstRequests.fine, derivedOptions(view))) ask(path);
  const headline = ask(`${runPath(id)}/headline`);
  run
    .then((response) => {
      if (response?.ok) return response.clone().json();
      forgetAnswers(); // the others are as bad, and would be old news when the run is there
      return null;
    })
    .then(async (facts) => {
      const chosen = await headline;
      const shown = chosen?.ok ? await chosen.clone().json() : null;
      // Whoever took the headline asks for the rest by itself.
      if (!facts || !shown || !isKept(`${runPath(id)}/headline`)) return;
      Object.assign(firstRequests, { patterns: wantedOf(shown) });
      const names = firstMetrics(facts.metrics || []);
      for (const { path } of seriesPaths(id, names, { view: "all", points: panel })) ask(path);
    })
    .catch(() => {}); // whoever takes the answer says what is wrong with it
}
