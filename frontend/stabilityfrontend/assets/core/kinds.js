// The kinds of incidents: the server's one table (schema/kinds.py, docs/api.md), which the page's head hands over.

import { readable } from "./format.js";

/** Name -> what is known of the kind; the page's head fills it before any page opens. */
export const kindTable = {};

/** What is known of a kind; of one that is not in the table (of a newer server), what its name says. */
export function incidentKind(name) {
  if (name && Object.hasOwn(kindTable, name)) return kindTable[name];
  const short = readable(name);
  return { ...kindTable[""], name, short, label: short.charAt(0).toUpperCase() + short.slice(1) };
}
