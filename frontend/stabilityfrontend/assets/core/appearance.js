// How bad something is, for people: word, tone and shape of incidents and of runs, from the server's one table
// (schema/severity.py). Nothing else in the browser decides which word, colour or mark something gets.

import { severityOf } from "../incident/severity.js";
import { h, setClass, setHref, setText, setTitle } from "./dom.js";
import { formatCount } from "./format.js";
import { appearanceTable } from "./kinds.js";
import { incidentHref } from "./route.js";

/** What is shown of something that the table does not know: of a newer server. */
const UNKNOWN = { tone: "calm", shape: "ring", order: 50 };

/** How an incident is shown. @returns {{word: string, tone: string, shape: string, order: number}} */
export function appearanceOf(incident) {
  const status = incident.status || incident.state || "";
  const states = appearanceTable.incidents[severityOf(incident)] || {};
  return states[status] || { ...UNKNOWN, word: incident.status_word || status };
}

/** How a run is shown: `Run.state`; of a run that is not known yet nothing. */
export const stateOf = (run) => run?.state || { ...UNKNOWN, word: run?.status || "", incident_id: null, since: null };

/** How a run's phase is shown, whatever is open. */
export const phaseAppearance = (run) =>
  appearanceTable.phases[stateOf(run).phase] || { ...UNKNOWN, word: run?.status || "" };

/** Lists of runs: the sick first, of equals the latest; then the newest. */
export const sickFirst = (a, b) => {
  const [one, two] = [stateOf(a), stateOf(b)];
  const since = one.incident_id && two.incident_id ? (two.since || 0) - (one.since || 0) : 0;
  return one.order - two.order || since || b.created - a.created;
};

/** Class names of a pill, chip or mark of this tone. */
export const tonedClass = (base, one) => `${base} ${one.tone} shape-${one.shape}`;

/** The pill of a run's state: a link where it is an incident. */
export function statePill(run) {
  const state = stateOf(run);
  const props = { class: tonedClass("pill", state), title: titleOf(run, state) };
  return state.incident_id
    ? h("a", { ...props, href: incidentHref(run.run_id, state.incident_id) }, wordOf(state))
    : h("span", props, wordOf(state));
}

/** Bring a pill that is there up to date. */
export function drawStatePill(pill, run, stale = false) {
  const state = stateOf(run);
  setText(pill, wordOf(state));
  // What was so when the server was last heard is no news.
  setClass(pill, tonedClass("pill", stale ? { tone: "calm", shape: "ring" } : state));
  setTitle(pill, titleOf(run, state));
  setHref(pill, state.incident_id ? incidentHref(run.run_id, state.incident_id) : null);
}

/** `Hang, acknowledged`: the word of a state with what somebody did about it. */
export const wordOf = (state) => (state.status === "acknowledged" ? `${state.word}, acknowledged` : state.word);

/** Which metric has not come back though no alarm is open; "" where all came back. */
export function notBackWords({ not_back: missing, condition }) {
  if (!missing) return "";
  const step = formatCount(missing.step);
  return condition === "over" || condition === "crashed"
    ? `${missing.what} did not come back after step ${step}`
    : `${missing.what} has not come back since step ${step}`;
}

const titleOf = (run, state) =>
  [state.incident_id ? run?.worst_incident?.title : "", notBackWords(state), run?.note].filter(Boolean).join("\n");
