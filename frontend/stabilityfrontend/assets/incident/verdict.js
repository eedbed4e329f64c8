// What an incident's verdict says, read with care: every field may be absent, of an older server, or nonsense.

import { asFinite, asList, asRecord, asText, asTexts } from "../core/as_type.js";
import { h, setText } from "../core/dom.js";
import { duration, formatCount, plural, readable } from "../core/format.js";
import { verdictWords } from "../core/kinds.js";
import { incidentHref } from "../core/route.js";
import { ranksOf } from "../ranks/rank_words.js";

// -- Which pattern of the gallery an incident looks like: the table is the server's (gallery/patterns.py), read from the top.

/**
 * @typedef {{id: string, title: string, kinds: string[], recovery: string, dataset: boolean}} Look
 * A spike that may still recover is looked up as one that does.
 * @param {Look[] | undefined} looks @param {{kind: string, recovery?: string | null, dataset?: string | null}} incident
 */
export function patternOf(looks, { kind, recovery, dataset }) {
  const ends = recovery === "pending" || !recovery ? "fast" : recovery;
  return (looks || []).find(
    (one) => one.kinds.includes(kind) && (!one.dataset || Boolean(dataset)) && (!one.recovery || one.recovery === ends),
  );
}

/** The link from an incident to its pattern; null where none fits. */
export function looksLike(looks, incident) {
  const pattern = patternOf(looks, incident);
  if (!pattern) return null;
  return h(
    "p.looks-like.sub",
    "Looks like: ",
    h("a", { href: `/gallery#${pattern.id}`, data: { looks: pattern.id } }, pattern.title),
    " in the gallery",
  );
}

// -- A train: one incident and the alike ones that follow it. In lists they are one entry and for alerts one message; on the
// charts each has its mark.

/** Steps named of a train, the newest ones. */
const NAMED = 12;

const follows = (incident) => Boolean(incident.train) && incident.train !== incident.incident_id;

/** What a list shows of many incidents: of each train the first one, and those that are open. */
export function withoutFollowers(incidents) {
  const known = new Set(incidents.map((one) => one.incident_id));
  return incidents.filter((one) => !follows(one) || one.state === "open" || !known.has(one.train));
}

/** How many belong to a train; more than are known here where the oldest were dropped. */
export const trainLength = (incidents) => incidents.reduce((most, one) => Math.max(most, one.nth || 1), 0);

/** "37 alike: steps 100, 150, …" as links to each, the newest first; null for one on its own. */
export function trainLine(incident, incidents, run) {
  const train = incident.train ? incidents.filter((one) => one.train === incident.train) : [];
  const length = trainLength(train);
  if (length < 2) return null;
  const newest = [...train].sort((a, b) => b.onset_step - a.onset_step).slice(0, NAMED);
  const links = newest.map((one, index) => [
    index ? ", " : "",
    one.incident_id === incident.incident_id || !run
      ? h("b", formatCount(one.onset_step))
      : h("a", { href: incidentHref(run, one.incident_id) }, formatCount(one.onset_step)),
  ]);
  const more = length - newest.length;
  return h(
    "span.train",
    { title: "Alike, each within four hours of the last: one message for all of them" },
    h("b", `${formatCount(length)} alike`),
    `, at ${length === 1 ? "step" : "steps"} `,
    ...links.flat(),
    more > 0 ? ` and ${plural(more, "earlier one")}` : null,
  );
}

/** An incident's verdict with every field in its shape; null where there is none. */
export function verdictOf(incident) {
  const found = asRecord(asRecord(incident.evidence).verdict);
  if (!asText(found.text) && !asText(found.class)) return null;
  return {
    class: asText(found.class),
    label: verdictWords.classes[found.class] || readable(asText(found.class)),
    text: asText(found.text),
    parts: asList(found.parts).filter((part) => typeof part === "string" || asFinite(part) !== null),
    confidence: verdictWords.confidences[found.confidence] ? found.confidence : "",
    sure: verdictWords.confidences[found.confidence] || "",
    culprits: ranksOf(found.culprits),
    nodes: asTexts(found.nodes),
    gpus: asList(found.gpus)
      .map(asRecord)
      .map((gpu) => ({
        rank: asFinite(gpu.rank),
        node: asText(gpu.node),
        index: asFinite(gpu.index),
        uuid: asText(gpu.uuid),
      })),
    because: asTexts(found.because),
    blind: asList(found.blind).map(blindWords).filter(Boolean),
    since: asFinite(found.since),
    decidedAfter: asFinite(found.decided_after_s),
    dump: asText(found.dump) || null,
    training: verdictWords.trainings[found.training] || "",
  };
}

/** A blind spot as one sentence; agents tell theirs in three parts. */
function blindWords(blind) {
  const { what, why, do: remedy } = asRecord(blind);
  return (
    asText(blind) ||
    [readable(asText(what)), asText(why)].filter(Boolean).join(": ") + (asText(remedy) ? ` (${asText(remedy)})` : "")
  );
}

/** Since when, unix seconds, as the server says it. */
export const sinceOf = (incident) => asFinite(incident.since) ?? asFinite(incident.opened);

/** Whether its end is good news: it came back, or was put right. The end of the job is none. */
export const cameBack = (incident) => ["recovered", "resolved"].includes(incident.status);

/** Whether it was told as something that is over: a fact worth knowing, which has no duration. */
export const isNote = (incident) => incident.state !== "open" && incident.resolved === incident.opened;

/** How long it has lasted, in words: of an open one in whole seconds, since they are counted; "" where that is not known. */
export function ageWords(incident, now) {
  const since = sinceOf(incident);
  if (since === null) return "";
  return incident.state === "open" ? lasted(now - since) : duration(Math.max(0, (incident.resolved || now) - since));
}

/** The verbs that stand before a duration, of what is over. */
const PAST = { is: "was", are: "were", has: "had", have: "had", wait: "waited", waits: "waited" };
const past = (words) => words.replace(/\b(is|are|has|have|waits?)\b/g, (verb) => PAST[verb]);

const lasted = (seconds) => duration(Math.max(0, Math.floor(seconds)));

/**
 * Words about an incident, as children of an element. A verdict says how long something lasts as of when it was told;
 * where its text stands in the words, an open one's durations are elements of their own, which `tickLasting` keeps true.
 * Of one that is over they end with it, and so does the sentence.
 */
export function lastingWords(words, incident, now) {
  const verdict = incident ? verdictOf(incident) : null;
  const at = verdict && verdict.text && verdict.parts.length ? words.indexOf(verdict.text) : -1;
  if (!verdict || at < 0) return [words];
  const open = incident.state === "open";
  const until = incident.resolved || now;
  const parts = verdict.parts.map((part) =>
    typeof part === "string"
      ? open
        ? part
        : past(part)
      : !open
        ? lasted(until - part)
        : h("span.lasts", { data: { since: part }, "aria-live": "off" }, lasted(now - part)),
  );
  return [words.slice(0, at), ...parts, words.slice(at + verdict.text.length)];
}

/** Bring the durations of `lastingWords` within an element up to date. */
export function tickLasting(root, now) {
  if (root) for (const part of root.querySelectorAll(".lasts")) setText(part, lasted(now - Number(part.dataset.since)));
}
