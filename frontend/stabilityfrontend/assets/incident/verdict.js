// What an incident's verdict says, read with care: every field may be absent, of an older server, or nonsense.

import { asFinite, asList, asRecord, asText, asTexts } from "../core/as_type.js";
import { h, setText } from "../core/dom.js";
import { duration, readable } from "../core/format.js";
import { verdictWords } from "../core/kinds.js";
import { ranksOf } from "../ranks/rank_words.js";

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
