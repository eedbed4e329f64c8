// The kinds of incidents: the server's one table (schema/kinds.py, docs/api.md), which stands in the page's head.

import { readable } from "./format.js";

const table = kindTable || {};

/** What is known of a kind; of one that is not in the table (of a newer server), what its name says. */
export function incidentKind(name) {
  if (name && Object.hasOwn(table, name)) return table[name];
  const short = readable(name);
  return { ...table[""], name, short, label: short.charAt(0).toUpperCase() + short.slice(1) };
}
