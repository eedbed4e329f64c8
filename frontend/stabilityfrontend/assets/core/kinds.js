// The kinds of incidents, the statuses of runs and ranks, the states of GPUs, the words of verdicts: the server's one
// table of each (in its schema/), which the page's head hands over.

import { h, setClass, setHref, setText, setTitle } from "./dom.js";
import { formatCount, readable } from "./format.js";
import { incidentHref } from "./route.js";

/** Name -> what is known of the kind; the page's head fills it before any page opens. */
export const kindTable = {};

/** What is known of a kind; of one that is not in the table (of a newer server), what its name says. */
export function incidentKind(name) {
  if (name && Object.hasOwn(kindTable, name)) return kindTable[name];
  const short = readable(name);
  return { ...kindTable[""], name, short, label: short.charAt(0).toUpperCase() + short.slice(1) };
}

/** Status of a run -> what follows from it (StatusFacts). */
export const statusTable = {};

/** What follows from a run's status. @returns {{under_way: boolean, ended: boolean, over: boolean}} */
export const statusFacts = (status) => statusTable[status] || { under_way: false, ended: false, over: false };

/** How incidents and runs are shown: severity and status, or phase -> Appearance (word, tone, shape, order). */
export const appearanceTable = { incidents: {}, phases: {} };

/** What ranks do, worst first: status -> RankStatusFacts, and what is so instead of a rank that a verdict names. */
export const rankTable = { statuses: {}, named: {} };

/** States of GPUs, worst first, with label, mark and tone; what classes of faults ask for; why clocks are lowered. */
export const gpuTable = { classes: {}, states: {}, throttles: [] };

/** Words of verdicts: of their classes, of how sure they are, of what the rest of the job does. */
export const verdictWords = { classes: {}, confidences: {}, trainings: {} };

// -- How grave an incident is: its tone, and whether it is an alarm at all.

/** From the worst to the least. */
export const SEVERITIES = ["critical", "warning", "info"];

export const severityOf = (incident) => (SEVERITIES.includes(incident.severity) ? incident.severity : "info");

/** Whether an incident is only worth knowing: shown quietly, never an alarm. */
export const onlyKnown = (incident) => incident.alarm === false;

/** Whether the server offers to do something about an incident: acknowledge, roll_back, restart, dump_stacks. */
export const offers = (incident, action) => (incident.actions || []).includes(action);

// -- How bad something is, for people: word, tone and shape of incidents and of runs, from the server's one table
// (schema/severity.py). Nothing else in the browser decides which word, colour or mark something gets.

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
