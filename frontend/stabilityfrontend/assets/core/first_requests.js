// Which lines a run's page asks for first, in which requests. The page's head asks (preload.js) before the other modules
// are there; whoever needs an answer later builds the same address and finds it on its way.

import { address } from "./route.js";

/** An answer that nobody took by then is old news. */
const FRESH_MS = 15000;
/** Metrics per request: keeps the address under what proxies let through (8 kB), at 200 characters a name. */
const METRICS_PER_REQUEST = 24;
/** Panels' metrics that are fetched before somebody opens them. */
const PANEL_METRICS = 80;

/** Of many tabs that show one chart, each takes an answer of the last second, and follows the feed from its cursor. */
export const SHARED = { "Cache-Control": "max-age=1" };

/**
 * Given by the server: `losses` (names that only a loss has), `fine` (names that the large chart may show),
 * `points` of a line. The server's own replace these (`begin`, `takeOver`). `patterns` of the small charts' metrics and
 * `strip` are of the run's headline.
 */
export const firstRequests = {
  losses: ["loss"],
  fine: ["loss", "grad_norm"],
  patterns: [],
  strip: [],
  points: { fine: 2000, panel: 500 },
};

/** What is on its way: address -> `{at, answer}`. The page's head has a copy of this module and hands its own over. */
const preloaded = { answers: new Map() };

/** What the page's head hands to the modules. */
export const handOver = () => ({ firstRequests, preloaded });

/** Take what the page's head has begun. */
export function takeOver(given) {
  Object.assign(firstRequests, given.firstRequests);
  Object.assign(preloaded, given.preloaded);
}

/** Ask for an address of the API and keep the answer for whoever takes it; null where there is none. */
export function ask(path) {
  const answer = fetch(address(`/api/v1${path}`), {
    credentials: "same-origin",
    headers: SHARED,
    priority: "high",
  }).catch(() => null);
  preloaded.answers.set(path, { at: performance.now(), answer });
  return answer;
}

/** The answer to a request that is on its way already, or null. Each is given once. */
export function takeAnswer(path) {
  const asked = preloaded.answers.get(path);
  preloaded.answers.delete(path);
  return asked && performance.now() - asked.at < FRESH_MS ? asked.answer : null;
}

/** Whether the answer of an address is still kept: nobody took it. */
export const isKept = (path) => preloaded.answers.has(path);

/** Forget all answers. */
export const forgetAnswers = () => preloaded.answers.clear();

/** The API's address of a run. */
export const runPath = (id) => `/runs/${encodeURIComponent(id)}`;

/** The addresses that ask for these metrics: one for each group of names. */
export function seriesPaths(id, metrics, options) {
  const paths = [];
  for (let start = 0; start < metrics.length; start += METRICS_PER_REQUEST) {
    const names = metrics.slice(start, start + METRICS_PER_REQUEST);
    const query = new URLSearchParams(names.map((metric) => ["metric", metric]));
    for (const [key, value] of Object.entries(options))
      if (value !== null && value !== undefined) query.set(key, value);
    paths.push({ names, path: `${runPath(id)}/series?${query}` });
  }
  return paths;
}

/** Whether a name is one of these patterns, or begins with what stands before a pattern's `*`. */
const matches = (name, pattern) => (pattern.endsWith("*") ? name.startsWith(pattern.slice(0, -1)) : name === pattern);

/** The names of `metrics` that a panel's patterns match. */
export const matching = (patterns, metrics) =>
  metrics.filter((name) => patterns.some((pattern) => matches(name, pattern)));

/** The names and prefixes that a headline needs points of. */
export const wantedOf = (headline) => [
  ...new Set([
    ...[headline.main, headline.below].filter(Boolean),
    ...headline.cells.map((cell) => cell.metric),
    ...headline.charts.flatMap((chart) => chart.metrics),
  ]),
];

/** Metrics of the panels and the strip: what is kept all the time beside the large chart's. */
export function firstMetrics(names) {
  const named = matching(firstRequests.patterns, [...names].sort()).slice(0, PANEL_METRICS);
  return named.filter((name) => !firstRequests.fine.includes(name));
}

/** How the page's address says that a chart is to be shown: `{x, smooth}` and what else view_state.js reads. */
export function viewOf(search) {
  const query = new URLSearchParams(search);
  const smooth = Number(query.get("smooth"));
  return { x: query.get("x") || "step", smooth: smooth > 0 && smooth < 1 ? smooth : 0 };
}

/** The options of a request for lines that the server makes: another x axis, smoothed. */
export const derivedOptions = ({ x, smooth }, more) => ({
  view: "all",
  points: firstRequests.points.fine,
  x: x === "step" ? null : x,
  smooth: smooth || null,
  ...more,
});
