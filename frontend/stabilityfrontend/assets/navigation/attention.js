// What the tab says, whatever page is open: of a run its own incidents, elsewhere those of all runs.

import { sinceClock } from "../core/format.js";
import { appearanceOf, incidentKind, stateOf, wordOf } from "../core/kinds.js";

// -- The tab: its title and its icon say what is wrong while another tab is looked at: how many incidents are open, the
// worst one and since when. They go on in a hidden tab.

/** Counts above it are `9+`, so that the icon can be read at 16 pixels. */
const MOST = 9;
/** Fill of the icon by tone: the same in both themes, since a browser's tab bar has its own. */
const FILLS = { critical: "#d61f3c", warning: "#a86200", info: "#0b6aa8", calm: "#6b7686" };
/** Shapes of the table of appearances, in a box of 32: where the number stands in them, and how large. */
const SHAPES = {
  octagon: { path: "M10 1h12l9 9v12l-9 9H10l-9-9V10z", y: 22.5, size: 19 },
  triangle: { path: "M16 1 31.5 30.5H.5z", y: 27, size: 16 },
  disc: { path: "M16 1a15 15 0 1 0 0 30 15 15 0 0 0 0-30z", y: 22.5, size: 19 },
  ring: { path: "M16 1a15 15 0 1 0 0 30 15 15 0 0 0 0-30z", y: 22.5, size: 19 },
};

/**
 * The words of a tab.
 *
 * `name`: what is open; `open`: incidents; `worst`: `{word, since, where}` of the worst one, or null; `rest`: what is
 * said where nothing is open; `stale`: since when the server does not answer, unix seconds, or null.
 *
 * @param {{name: string, open?: number, worst?: any, rest?: string, stale?: number | null}} facts
 */
export function tabTitle({ name, open = 0, worst = null, rest = "", stale = null }) {
  const what = worst
    ? [worst.word, worst.where ? `in ${worst.where}` : "", worst.since ? `since ${sinceClock(worst.since)}` : ""]
    : [rest];
  const words = [name, what.filter(Boolean).join(" ")].filter(Boolean).join(" · ");
  if (stale !== null) return `(?) ${name} · no answer since ${sinceClock(stale)}`;
  return open ? `(${open}) ${words}` : words;
}

/** The icon as a picture in its address; null where nothing is open: then it is the product's mark. */
export function tabIcon({ open, tone, shape, stale = false }) {
  if (!open && !stale) return null;
  const { path, y, size } = SHAPES[stale ? "ring" : shape] || SHAPES.disc;
  const fill = FILLS[stale ? "calm" : tone] || FILLS.calm;
  const words = stale ? "?" : open > MOST ? `${MOST}+` : String(open);
  const small = words.length > 1 ? size - 4 : size;
  const picture =
    `<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'><path d='${path}' fill='${fill}'/>` +
    `<text x='16' y='${y}' font-family='sans-serif' font-size='${small}' font-weight='700' fill='white' ` +
    `text-anchor='middle'>${words}</text></svg>`;
  return `data:image/svg+xml,${encodeURIComponent(picture)}`;
}

let mark = /** @type {string | null} */ (null);

/** Show both; nothing is written where it is so already. */
function drawTab(facts) {
  const title = tabTitle(facts);
  if (document.title !== title) document.title = title;
  const link = /** @type {HTMLLinkElement | null} */ (document.querySelector("link[rel='icon']"));
  if (!link) return;
  mark ??= link.href;
  const { tone = "calm", shape = "ring" } = facts.worst || {};
  const icon = tabIcon({ open: facts.open, tone, shape, stale: facts.stale !== null && facts.stale !== undefined });
  if (link.href !== (icon || mark)) link.href = icon || mark;
}

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
  return { open, worst: { ...appearanceOf(worst), word: worst.label, since: worst.since ?? worst.opened, where } };
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
