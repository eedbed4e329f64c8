// Which pattern of the gallery an incident looks like: the table is the server's (gallery/patterns.py), read from the top.

import { h } from "../core/dom.js";

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
