// In which order people read incidents: the worst first, a cause before what follows from it, alike ones as one.

import { appearanceOf } from "../core/appearance.js";

/** So many alike ones are one row with a count. */
const FOLDED_FROM = 3;

const byAppearance = (a, b) => appearanceOf(a).order - appearanceOf(b).order || b.opened - a.opened;

/** Incidents, the worst first; what follows from another one of them stands right behind it. */
export function inOrder(incidents) {
  const known = new Map(incidents.map((one) => [one.incident_id, one]));
  const causeOf = (one) => {
    const seen = new Set();
    let cause = one;
    while (known.has(cause.caused_by) && !seen.has(cause)) {
      seen.add(cause);
      cause = known.get(cause.caused_by);
    }
    return cause;
  };
  const groups = new Map();
  for (const one of [...incidents].sort(byAppearance)) {
    const cause = causeOf(one);
    // The group stands where its worst one would: that is the first that comes.
    if (!groups.has(cause)) groups.set(cause, [cause]);
    if (one !== cause) groups.get(cause).push(one);
  }
  return [...groups.values()].flat();
}

/** What is one row: of its kind, as bad, and with the same cause. */
const rowOf = (one) => JSON.stringify([one.kind, appearanceOf(one), one.severity, one.dead, one.caused_by || ""]);

/** Rows of incidents in their order: `{incident, alike}`; `alike` are further ones, none below three of a row. */
export function folded(incidents) {
  const rows = new Map();
  for (const one of incidents) rows.set(rowOf(one), [...(rows.get(rowOf(one)) || []), one]);
  return incidents.flatMap((one) => {
    const row = rows.get(rowOf(one));
    if (row.length < FOLDED_FROM) return [{ incident: one, alike: [] }];
    return row[0] === one ? [{ incident: one, alike: row.slice(1) }] : [];
  });
}
