// The backend over HTTP: one place that knows addresses, errors and what to do without a key.

import { tablePath } from "../runs/table_state.js";
import { SHARED, seriesPaths, takeAnswer } from "./first_requests.js";
import { address, place } from "./route.js";

/** Runs asked for at once, after the first page. */
const RUNS_A_PAGE = 1000;
/** How long a request may take. A window of ten million points takes a tenth of a second. */
const TIMEOUT_MS = 15000;
/** Of what people sent: no page sends it again by itself. As app.py says it where Redis does not answer. */
const PERHAPS_STORED = "What you sent may not be stored: look, then send it again.";
const hintFor = (method) => (method === "GET" ? "Its data is kept; this page tries again by itself." : PERHAPS_STORED);

/** What the API answered instead: `status` 0 means that it did not answer at all. */
export class ApiError extends Error {
  constructor(status, code, message, hint) {
    super(message);
    this.status = status;
    this.code = code;
    this.hint = hint || "";
  }
}

/** Somebody logs out: what is refused from now on leads nowhere, as the page is on its way to where a logout leads. */
let leaving = false;

/** @returns {Promise<any>} */
async function call(method, path, body, signal) {
  // What the page's head asked for is on its way already.
  let response = method === "GET" ? await takeAnswer(path) : null;
  try {
    response =
      response ||
      (await fetch(address(`/api/v1${path}`), {
        method,
        credentials: "same-origin",
        headers: body === undefined ? SHARED : { "Content-Type": "application/json" },
        body: body === undefined ? undefined : JSON.stringify(body),
        signal: signal || AbortSignal.timeout(TIMEOUT_MS),
      }));
  } catch {
    throw new ApiError(0, "away", "No answer from the server.", hintFor(method));
  }
  let answer = /** @type {any} */ (null);
  try {
    answer = await response.json();
  } catch {
    answer = null;
  }
  if (response.ok && answer !== null) return answer;
  // Its time was over in the middle of the answer, or somebody between answered a page of theirs.
  if (response.ok) throw new ApiError(0, "away", "No answer from the server that can be read.", hintFor(method));
  if (response.status === 401 && !leaving && !place().startsWith("/login")) {
    location.assign(address(`/login?next=${encodeURIComponent(place() + location.search)}`));
  }
  const said = (answer && answer.error) || {};
  const message = said.message || `The server answered ${response.status} ${response.statusText}.`;
  throw new ApiError(response.status, said.code || "", message, said.hint);
}

/**
 * Points of metrics: one answer for each group of names, `{names, series, cursor, complete, level, problems}`.
 * `complete` false: only what came after the `cursor` that was given; `level` above 0: fewer points than there are.
 */
function series(id, metrics, options) {
  return Promise.all(
    seriesPaths(id, metrics, options).map(async ({ names, path }) => ({ ...(await call("GET", path)), names })),
  );
}

/**
 * Call a route: its `{...}` are `ids` in their order; of `query` null and undefined are left out, lists repeat.
 * @template {keyof import("../../../types/api").Answers} Route
 * @param {Route} route @param {any[]} [ids] @param {Record<string, any>} [query] @param {unknown} [body]
 * @param {AbortSignal} [signal]
 * @returns {Promise<import("../../../types/api").Answers[Route]>}
 */
function to(route, ids = [], query = {}, body = undefined, signal = undefined) {
  const [method, pattern] = route.split(" ");
  const left = [...ids];
  const path = pattern.slice("/api/v1".length).replace(/\{\w+\}/g, () => encodeURIComponent(left.shift()));
  const given = Object.entries(query).flatMap(([name, value]) => [value].flat().map((one) => [name, one]));
  const search = new URLSearchParams(given.filter(([, one]) => one !== null && one !== undefined));
  return call(method, search.size ? `${path}?${search}` : path, body, signal);
}

export const api = {
  /** All runs, page after page. */
  runs: async () => {
    const found = { runs: /** @type {import("../../../types/api").RunPage["runs"]} */ ([]) };
    let next = /** @type {string | null} */ (null);
    do {
      const answer = await to("GET /api/v1/runs", [], next ? { limit: RUNS_A_PAGE, cursor: next } : {});
      found.runs.push(...answer.runs);
      next = answer.next || null;
    } while (next);
    return found;
  },
  /** Some rows of the table of runs; `state`: of table_state.js. */
  /** @returns {Promise<import("../../../types/api").RunTable>} */
  runTable: (state, offset, order) => call("GET", tablePath(state, offset, order)),
  runColumns: (search, limit) => to("GET /api/v1/run_columns", [], { search, limit }),
  run: (id) => to("GET /api/v1/runs/{run_id}", [id]),
  /** A page of the names of a run's metrics. */
  metrics: (id, after, limit) => to("GET /api/v1/runs/{run_id}/metrics", [id], { after, limit }),
  about: (id, against) => to("GET /api/v1/runs/{run_id}/about", [id], { against: against || null }),
  setAbout: (id, changes) => to("PUT /api/v1/runs/{run_id}/about", [id], {}, changes),
  output: (id, query) => to("GET /api/v1/runs/{run_id}/output", [id], query),
  segments: (id) => to("GET /api/v1/runs/{run_id}/segments", [id]),
  series,
  incidents: (id) => to("GET /api/v1/runs/{run_id}/incidents", [id]),
  incident: (id, incident) => to("GET /api/v1/runs/{run_id}/incidents/{incident_id}", [id, incident]),
  /** One of the retained dumps, or null: an address without an answer is an error in the browser's console. */
  heldStacks: async (id, request) =>
    ((await to("GET /api/v1/runs/{run_id}/stacks", [id])).dumps || []).find((dump) => dump.request === request) || null,
  stacks: (id, request) =>
    to("GET /api/v1/runs/{run_id}/stacks/{request}", [id, request]).catch((error) => {
      if (error.status === 404) return null; // it is gone, or not answered yet
      throw error;
    }),
  batchAnswers: (id) => to("GET /api/v1/runs/{run_id}/batch_samples", [id]),
  /** The samples of an answer; `known`, the answer without them, where the key may not see them. */
  batchSamples: (id, request, known) =>
    to("GET /api/v1/runs/{run_id}/batch_samples/{request}", [id, request]).catch((error) => {
      if (error.status === 403 || error.status === 404) return known;
      throw error;
    }),
  plan: (id) => to("GET /api/v1/runs/{run_id}/plan", [id], { ordered: true }),
  /** Offered commands beside a rollback. */
  orders: (id) => to("GET /api/v1/runs/{run_id}/orders", [id]),
  /** The suggested rollback, and the offered checkpoints. */
  wayBack: (id, incident) => to("GET /api/v1/runs/{run_id}/rollback", [id], { incident: incident || null }),
  allIncidents: (query) => to("GET /api/v1/incidents", [], query),
  search: (q, run) => to("GET /api/v1/search", [], { q, run: run || null }),
  gpus: () => to("GET /api/v1/gpus"),
  /** Send a choice on a page that the server draws, to the path from there. */
  put: (path, body) => call("PUT", path, body),
  checkpoints: (id) => to("GET /api/v1/runs/{run_id}/checkpoints", [id]),
  health: (id) => to("GET /api/v1/runs/{run_id}/health", [id]),
  gpusOf: (id) => to("GET /api/v1/runs/{run_id}/gpus", [id]),
  commands: (id) => to("GET /api/v1/runs/{run_id}/commands", [id]),
  command: (id, command) => to("GET /api/v1/runs/{run_id}/commands/{command_id}", [id, command]),
  proposals: (id) => to("GET /api/v1/runs/{run_id}/proposals", [id]),
  propose: (id, /** @type {any} */ { idempotency_key: _, ...order }) =>
    to("POST /api/v1/runs/{run_id}/proposals", [id], {}, order),
  approve: (id, proposal) => to("POST /api/v1/runs/{run_id}/proposals/{proposal_id}/approve", [id, proposal], {}, {}),
  decline: (id, proposal) => to("POST /api/v1/runs/{run_id}/proposals/{proposal_id}/decline", [id, proposal], {}, {}),
  order: (id, order) => to("POST /api/v1/runs/{run_id}/commands", [id], {}, order),
  /** Take back a command that waits for a worker. */
  takeBack: (id, command) => to("DELETE /api/v1/runs/{run_id}/commands/{command_id}", [id, command]),
  acknowledge: (id, incident) => to("POST /api/v1/runs/{run_id}/incidents/{incident_id}/ack", [id, incident], {}, {}),
  undo: (id, segment) => to("POST /api/v1/runs/{run_id}/segments/{segment}/undo", [id, segment], {}, {}),
  attempts: (id, metric) => to("GET /api/v1/runs/{run_id}/attempts", [id], { metric }),
  branches: (id, metric, fork) => to("GET /api/v1/runs/{run_id}/branches", [id], { metric, fork }),
  annotations: (id) => to("GET /api/v1/runs/{run_id}/annotations", [id]),
  /** Change an annotation, or make it: sent twice it is one. */
  changeAnnotation: (id, annotation, body) =>
    to("PUT /api/v1/runs/{run_id}/annotations/{annotation_id}", [id, annotation], {}, body),
  deleteAnnotation: (id, annotation) =>
    to("DELETE /api/v1/runs/{run_id}/annotations/{annotation_id}", [id, annotation]),
  rollbackCosts: (id) => to("GET /api/v1/runs/{run_id}/rollback_costs", [id]),
  spikeScore: (id) => to("GET /api/v1/runs/{run_id}/spike_score", [id]),
  detectorsOf: (id) => to("GET /api/v1/runs/{run_id}/detectors", [id]),
  setDetectors: (id, settings) => to("PUT /api/v1/runs/{run_id}/detectors", [id], {}, { settings }),
  /** Takes as long as it takes, until `signal` ends it. */
  tryDetectors: (id, body, signal) => to("POST /api/v1/runs/{run_id}/backtest", [id], {}, body, signal),
  autopilotOf: (id) => to("GET /api/v1/runs/{run_id}/autopilot", [id]),
  setAutopilot: (id, policy) => to("PUT /api/v1/runs/{run_id}/autopilot", [id], {}, { policy }),
  stopAutopilot: (id) => to("DELETE /api/v1/runs/{run_id}/autopilot", [id]),
  watchedOf: (id) => to("GET /api/v1/runs/{run_id}/watched", [id]),
  headlineOf: (id) => to("GET /api/v1/runs/{run_id}/headline", [id]),
  /** Views of a project and of all projects; without one of every project. */
  views: (kind, project) => to("GET /api/v1/views", [], { kind, project: project || null }),
  saveView: (view) => to("PUT /api/v1/views", [], {}, view),
  deleteView: ({ kind, project, name }) => to("DELETE /api/v1/views", [], { kind, project, name }),
  alerting: () => to("GET /api/v1/alerting"),
  saveRoutes: (routes) => to("PUT /api/v1/alerting/routes", [], {}, routes),
  mute: (mute) => to("POST /api/v1/alerting/mutes", [], {}, mute),
  endMute: (mute) => to("DELETE /api/v1/alerting/mutes/{mute_id}", [mute]),
  alertPrecision: (days) => to("GET /api/v1/alerting/precision", [], { days }),
  alertPreview: (wanted) => to("POST /api/v1/alerting/preview", [], {}, wanted),
  ratingOf: (id, incident) => to("GET /api/v1/runs/{run_id}/incidents/{incident_id}/rating", [id, incident]),
  rate: (id, incident, useful) =>
    to("PUT /api/v1/runs/{run_id}/incidents/{incident_id}/rating", [id, incident], {}, { useful }),
  mixtureOf: (id, query) => to("GET /api/v1/runs/{run_id}/mixture", [id], query),
  storage: (id) => to("GET /api/v1/runs/{run_id}/storage", [id]),
  /** @returns {Promise<import("../../../types/api").Comparison>} */
  compare: (query) => call("GET", `/compare?${query}`),
  me: () => to("GET /api/v1/me"),
  logout: async () => {
    leaving = true;
    try {
      return await to("POST /api/v1/logout");
    } catch (error) {
      leaving = false;
      throw error;
    }
  },
  /** Ways to sign in besides a key. */
  waysIn: (refused) => to("GET /api/v1/sign_in", [], { refused: refused || null }),
  login: (key) => to("POST /api/v1/login", [], {}, { key }),
  healthy: async () => {
    const response = await fetch(address("/healthz"), { signal: AbortSignal.timeout(4000), cache: "no-store" });
    return response.ok;
  },
};
