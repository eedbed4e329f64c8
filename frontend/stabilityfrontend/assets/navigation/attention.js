// What the tab says, whatever page is open: of a run its own incidents, elsewhere those of all runs.

import { appearanceOf, stateOf, wordOf } from "../core/appearance.js";
import { incidentKind } from "../core/kinds.js";
import { drawTab } from "./tab.js";

/** What the server said last of all runs: `counts`, the worst open incident, and since when it does not answer. */
const fleet = { counts: null, worst: null, lost: /** @type {number | null} */ (null) };
/** The same of the run that a hidden tab shows; null in a tab that is seen. */
let hiddenRun = /** @type {any} */ (null);
/** The page's own name, before anything is known. */
let name = "";

/** A run as the tab says it. */
function ofRun(run) {
  const state = stateOf(run);
  if (hiddenRun && document.hidden) return { ...ofOpen(hiddenRun, false), name: run.name || run.run_id };
  const worst = state.incident_id ? { ...state, word: wordOf(state), where: "" } : null;
  return { name: run.name || run.run_id, open: run.open_incidents || 0, worst, rest: state.word };
}

/** An incident's page: that incident, and how many of its run are open. */
function ofIncident(page) {
  const { incident } = page;
  const title = incident.title || incidentKind(incident.kind).label;
  if (incident.state !== "open") return { name: `✓ ${title}`, rest: page.name() };
  const worst = { ...appearanceOf(incident), word: title, since: incident.since, where: "" };
  return { name: page.name(), open: Math.max(1, page.run?.open_incidents || 0), worst };
}

/** What is open of what the server answered; `named`: with the name of the run. */
function ofOpen({ counts, worst }, named) {
  const open = counts?.alarms || 0;
  if (!worst || !open) return { open, worst: null };
  const where = named ? worst.run_name : "";
  return { open, worst: { ...appearanceOf(worst), word: worst.label, since: worst.since, where } };
}

const ofAll = () => ({
  ...ofOpen(fleet, true),
  name: name === "Runs" ? "Stabilityboard" : `${name} · Stabilityboard`,
});

/** Draw the tab of the page that is open. `page`: what fills it; of a server's page nothing is known but its name. */
export function drawAttention(page) {
  const lost = page?.live?.lost ?? fleet.lost;
  const facts = page?.incident ? ofIncident(page) : page?.run && page.id ? ofRun(page.run) : ofAll();
  if (page?.id && !page.run) return; // a run that is waited for says so itself
  drawTab({ ...facts, stale: lost });
}

/** Another page is open: its name in the table of pages. */
export function named(words) {
  name = words;
}

/** What the server said of all runs; null: it did not answer. */
/** @param {any} answer @param {number} now @param {any} own */
export function setFleet(answer, now, own = null) {
  const facts = (one) => ({ counts: one.counts, worst: one.incidents[0] || null });
  if (answer) Object.assign(fleet, facts(answer), { lost: null });
  else fleet.lost ??= now;
  hiddenRun = own && facts(own);
}
