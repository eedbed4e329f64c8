// The backend over HTTP: one place that knows addresses, errors and what to do without a key.

import { tablePath } from "../runs/table_state.js";
import { runPath, SHARED, seriesPaths, takeAnswer } from "./first_requests.js";
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

/** @typedef {import("../../../types/api").Answers} Answers */

export const api = {
  /** All runs, page after page. */
  runs: async () => {
    const found = { runs: /** @type {Answers["GET /api/v1/runs"]["runs"]} */ ([]) };
    let next = null;
    do {
      const answer = await call(
        "GET",
        next ? `/runs?limit=${RUNS_A_PAGE}&cursor=${encodeURIComponent(next)}` : "/runs",
      );
      found.runs.push(...answer.runs);
      next = answer.next || null;
    } while (next);
    return found;
  },
  /** Some rows of the table of runs; `state`: of table_state.js. */
  /** @returns {Promise<Answers["GET /api/v1/run_table"]>} */
  runTable: (state, offset, order) => call("GET", tablePath(state, offset, order)),
  /** @returns {Promise<Answers["GET /api/v1/run_columns"]>} */
  runColumns: (search, limit) => call("GET", `/run_columns?${new URLSearchParams({ search, limit: String(limit) })}`),
  /** @returns {Promise<Answers["GET /api/v1/runs/{run_id}"]>} */
  run: (id) => call("GET", runPath(id)),
  /** A page of the names of a run's metrics. @returns {Promise<Answers["GET /api/v1/runs/{run_id}/metrics"]>} */
  metrics: (id, after, limit) => call("GET", `${runPath(id)}/metrics?after=${after}&limit=${limit}`),
  /** @returns {Promise<Answers["GET /api/v1/runs/{run_id}/about"]>} */
  about: (id, against) =>
    call("GET", `${runPath(id)}/about${against ? `?against=${encodeURIComponent(against)}` : ""}`),
  /** @returns {Promise<Answers["PUT /api/v1/runs/{run_id}/about"]>} */
  setAbout: (id, changes) => call("PUT", `${runPath(id)}/about`, changes),
  /** @returns {Promise<Answers["GET /api/v1/runs/{run_id}/output"]>} */
  output: (id, query) => call("GET", `${runPath(id)}/output?${new URLSearchParams(query)}`),
  /** @returns {Promise<Answers["GET /api/v1/runs/{run_id}/segments"]>} */
  segments: (id) => call("GET", `${runPath(id)}/segments`),
  series,
  /** @returns {Promise<Answers["GET /api/v1/runs/{run_id}/incidents"]>} */
  incidents: (id) => call("GET", `${runPath(id)}/incidents`),
  /** @returns {Promise<Answers["GET /api/v1/runs/{run_id}/incidents/{incident_id}"]>} */
  incident: (id, incident) => call("GET", `${runPath(id)}/incidents/${encodeURIComponent(incident)}`),
  /** A dump that may be gone: of all that are kept, for whose address has no answer is an error in the browser's console. */
  heldStacks: async (id, request) =>
    ((await call("GET", `${runPath(id)}/stacks`)).dumps || []).find((dump) => dump.request === request) || null,
  /** @returns {Promise<Answers["GET /api/v1/runs/{run_id}/stacks/{request}"]>} */
  stacks: (id, request) =>
    call("GET", `${runPath(id)}/stacks/${encodeURIComponent(request)}`).catch((error) => {
      if (error.status === 404) return null; // it is gone, or nobody has answered yet
      throw error;
    }),
  /** @returns {Promise<Answers["GET /api/v1/runs/{run_id}/batch_samples"]>} */
  batchAnswers: (id) => call("GET", `${runPath(id)}/batch_samples`),
  /** The samples of an answer; `known`, the answer without them, for who may not see them. */
  batchSamples: (id, request, known) =>
    call("GET", `${runPath(id)}/batch_samples/${encodeURIComponent(request)}`).catch((error) => {
      if (error.status === 403 || error.status === 404) return known;
      throw error;
    }),
  /** @returns {Promise<Answers["GET /api/v1/runs/{run_id}/plan"]>} */
  plan: (id) => call("GET", `${runPath(id)}/plan?ordered=true`),
  /** What can be ordered beside it. @returns {Promise<Answers["GET /api/v1/runs/{run_id}/orders"]>} */
  orders: (id) => call("GET", `${runPath(id)}/orders`),
  /** The rollback that the server suggests, and the checkpoints that it offers. */
  /** @returns {Promise<Answers["GET /api/v1/runs/{run_id}/rollback"]>} */
  wayBack: (id, incident) =>
    call("GET", `${runPath(id)}/rollback${incident ? `?incident=${encodeURIComponent(incident)}` : ""}`),
  /** Incidents of all runs; lists in `given` are repeated. @returns {Promise<Answers["GET /api/v1/incidents"]>} */
  allIncidents: (given) => {
    const query = Object.entries(given).flatMap(([name, value]) => [value].flat().map((one) => [name, String(one)]));
    return call("GET", `/incidents?${new URLSearchParams(query)}`);
  },
  /** @returns {Promise<Answers["GET /api/v1/search"]>} */
  search: (words, run) => call("GET", `/search?${new URLSearchParams({ q: words, ...(run ? { run } : {}) })}`),
  /** @returns {Promise<Answers["GET /api/v1/gpus"]>} */
  gpus: () => call("GET", "/gpus"),
  /** Sends what was chosen on a page that the server draws; the path is from there. */
  put: (path, body) => call("PUT", path, body),
  /** @returns {Promise<Answers["GET /api/v1/runs/{run_id}/checkpoints"]>} */
  checkpoints: (id) => call("GET", `${runPath(id)}/checkpoints`),
  /** @returns {Promise<Answers["GET /api/v1/runs/{run_id}/health"]>} */
  health: (id) => call("GET", `${runPath(id)}/health`),
  /** @returns {Promise<Answers["GET /api/v1/runs/{run_id}/gpus"]>} */
  gpusOf: (id) => call("GET", `${runPath(id)}/gpus`),
  /** @returns {Promise<Answers["GET /api/v1/runs/{run_id}/commands"]>} */
  commands: (id) => call("GET", `${runPath(id)}/commands`),
  /** @returns {Promise<Answers["GET /api/v1/runs/{run_id}/commands/{command_id}"]>} */
  command: (id, command) => call("GET", `${runPath(id)}/commands/${encodeURIComponent(command)}`),
  /** @returns {Promise<Answers["GET /api/v1/runs/{run_id}/proposals"]>} */
  proposals: (id) => call("GET", `${runPath(id)}/proposals`),
  /** @returns {Promise<Answers["POST /api/v1/runs/{run_id}/proposals"]>} */
  propose: (id, /** @type {any} */ { idempotency_key: _, ...order }) => call("POST", `${runPath(id)}/proposals`, order),
  /** `how`: approve or decline. @returns {Promise<Answers["POST /api/v1/runs/{run_id}/proposals/{proposal_id}/approve"]>} */
  decideProposal: (id, proposal, how) =>
    call("POST", `${runPath(id)}/proposals/${encodeURIComponent(proposal)}/${how}`, {}),
  /** @returns {Promise<Answers["POST /api/v1/runs/{run_id}/commands"]>} */
  order: (id, order) => call("POST", `${runPath(id)}/commands`, order),
  /** Takes back an order that waits for a worker. */
  /** @returns {Promise<Answers["DELETE /api/v1/runs/{run_id}/commands/{command_id}"]>} */
  takeBack: (id, command) => call("DELETE", `${runPath(id)}/commands/${encodeURIComponent(command)}`),
  /** @returns {Promise<Answers["POST /api/v1/runs/{run_id}/incidents/{incident_id}/ack"]>} */
  acknowledge: (id, incident) => call("POST", `${runPath(id)}/incidents/${encodeURIComponent(incident)}/ack`, {}),
  /** @returns {Promise<Answers["POST /api/v1/runs/{run_id}/segments/{segment}/undo"]>} */
  undo: (id, segment) => call("POST", `${runPath(id)}/segments/${encodeURIComponent(segment)}/undo`, {}),
  /** @returns {Promise<Answers["GET /api/v1/runs/{run_id}/attempts"]>} */
  attempts: (id, metric) => call("GET", `${runPath(id)}/attempts?${new URLSearchParams({ metric })}`),
  /** @returns {Promise<Answers["GET /api/v1/runs/{run_id}/branches"]>} */
  branches: (id, metric, fork) => call("GET", `${runPath(id)}/branches?${new URLSearchParams({ metric, fork })}`),
  /** @returns {Promise<Answers["GET /api/v1/runs/{run_id}/annotations"]>} */
  annotations: (id) => call("GET", `${runPath(id)}/annotations`),
  /** Changes an annotation, or makes it: sent twice it is one. */
  /** @returns {Promise<Answers["PUT /api/v1/runs/{run_id}/annotations/{annotation_id}"]>} */
  changeAnnotation: (id, annotation, body) =>
    call("PUT", `${runPath(id)}/annotations/${encodeURIComponent(annotation)}`, body),
  /** @returns {Promise<Answers["DELETE /api/v1/runs/{run_id}/annotations/{annotation_id}"]>} */
  deleteAnnotation: (id, annotation) => call("DELETE", `${runPath(id)}/annotations/${encodeURIComponent(annotation)}`),
  /** @returns {Promise<Answers["GET /api/v1/runs/{run_id}/rollback_costs"]>} */
  rollbackCosts: (id) => call("GET", `${runPath(id)}/rollback_costs`),
  /** @returns {Promise<Answers["GET /api/v1/runs/{run_id}/spike_score"]>} */
  spikeScore: (id) => call("GET", `${runPath(id)}/spike_score`),
  /** @returns {Promise<Answers["GET /api/v1/runs/{run_id}/detectors"]>} */
  detectorsOf: (id) => call("GET", `${runPath(id)}/detectors`),
  /** @returns {Promise<Answers["GET /api/v1/runs/{run_id}/autopilot"]>} */
  autopilotOf: (id) => call("GET", `${runPath(id)}/autopilot`),
  /** @returns {Promise<Answers["PUT /api/v1/runs/{run_id}/autopilot"]>} */
  setAutopilot: (id, policy) => call("PUT", `${runPath(id)}/autopilot`, { policy }),
  /** @returns {Promise<Answers["DELETE /api/v1/runs/{run_id}/autopilot"]>} */
  stopAutopilot: (id) => call("DELETE", `${runPath(id)}/autopilot`),
  /** @returns {Promise<Answers["GET /api/v1/runs/{run_id}/watched"]>} */
  watchedOf: (id) => call("GET", `${runPath(id)}/watched`),
  /** @returns {Promise<Answers["GET /api/v1/runs/{run_id}/headline"]>} */
  headlineOf: (id) => call("GET", `${runPath(id)}/headline`),
  /** Views of a project and of all projects; without one of every project. @returns {Promise<Answers["GET /api/v1/views"]>} */
  views: (kind, project) => call("GET", `/views?${new URLSearchParams({ kind, ...(project ? { project } : {}) })}`),
  /** @returns {Promise<Answers["PUT /api/v1/views"]>} */
  saveView: (view) => call("PUT", "/views", view),
  /** @returns {Promise<Answers["DELETE /api/v1/views"]>} */
  deleteView: ({ kind, project, name }) => call("DELETE", `/views?${new URLSearchParams({ kind, project, name })}`),
  /** @returns {Promise<Answers["GET /api/v1/alerting"]>} */
  alerting: () => call("GET", "/alerting"),
  /** @returns {Promise<Answers["PUT /api/v1/alerting/routes"]>} */
  saveRoutes: (routes) => call("PUT", "/alerting/routes", routes),
  /** @returns {Promise<Answers["POST /api/v1/alerting/mutes"]>} */
  mute: (mute) => call("POST", "/alerting/mutes", mute),
  /** @returns {Promise<Answers["DELETE /api/v1/alerting/mutes/{mute_id}"]>} */
  endMute: (mute) => call("DELETE", `/alerting/mutes/${encodeURIComponent(mute)}`),
  /** @returns {Promise<Answers["GET /api/v1/alerting/precision"]>} */
  alertPrecision: (days) => call("GET", `/alerting/precision?days=${days}`),
  /** @returns {Promise<Answers["GET /api/v1/runs/{run_id}/incidents/{incident_id}/rating"]>} */
  ratingOf: (id, incident) => call("GET", `${runPath(id)}/incidents/${encodeURIComponent(incident)}/rating`),
  /** @returns {Promise<Answers["PUT /api/v1/runs/{run_id}/incidents/{incident_id}/rating"]>} */
  rate: (id, incident, useful) =>
    call("PUT", `${runPath(id)}/incidents/${encodeURIComponent(incident)}/rating`, { useful }),
  /** @returns {Promise<Answers["POST /api/v1/alerting/preview"]>} */
  alertPreview: (wanted) => call("POST", "/alerting/preview", wanted),
  /** @returns {Promise<Answers["GET /api/v1/runs/{run_id}/mixture"]>} */
  mixtureOf: (id, query) => call("GET", `${runPath(id)}/mixture?${new URLSearchParams(query)}`),
  /** @returns {Promise<Answers["PUT /api/v1/runs/{run_id}/detectors"]>} */
  setDetectors: (id, settings) => call("PUT", `${runPath(id)}/detectors`, { settings }),
  /** Takes as long as it takes, until `signal` ends it. */
  /** @returns {Promise<Answers["POST /api/v1/runs/{run_id}/backtest"]>} */
  tryDetectors: (id, body, signal) => call("POST", `${runPath(id)}/backtest`, body, signal),
  /** @returns {Promise<Answers["GET /api/v1/runs/{run_id}/storage"]>} */
  storage: (id) => call("GET", `${runPath(id)}/storage`),
  /** @returns {Promise<Answers["GET /api/v1/compare"]>} */
  compare: (query) => call("GET", `/compare?${query}`),
  /** @returns {Promise<Answers["GET /api/v1/me"]>} */
  me: () => call("GET", "/me"),
  /** @returns {Promise<Answers["POST /api/v1/logout"]>} */
  logout: async () => {
    leaving = true;
    try {
      return await call("POST", "/logout");
    } catch (error) {
      leaving = false;
      throw error;
    }
  },
  /** Where people sign in besides with a key. @returns {Promise<Answers["GET /api/v1/sign_in"]>} */
  waysIn: (refused) => call("GET", `/sign_in${refused ? `?${new URLSearchParams({ refused })}` : ""}`),
  /** @returns {Promise<Answers["POST /api/v1/login"]>} */
  login: (key) => call("POST", "/login", { key }),
  healthy: async () => {
    const response = await fetch(address("/healthz"), { signal: AbortSignal.timeout(4000), cache: "no-store" });
    return response.ok;
  },
};
