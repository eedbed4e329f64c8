// A train: one incident and the alike ones that follow it. In lists they are one entry and for alerts one message; on the
// charts each has its mark.

import { h } from "../core/dom.js";
import { formatCount, plural } from "../core/format.js";
import { incidentHref } from "../core/route.js";

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
