// What a rollback was to change and did not: what was ordered beside what came instead, as a table.

import { asList, asRecord, asText } from "../core/as_type.js";
import { h } from "../core/dom.js";

const CHANGES = { lr_scale: "Learning rate", seed: "Seed", skip_batches: "Batches", skip_range: "Batches" };

/** What the job reports that it applied, in a line; "" where it reports nothing. */
export function reportedWords(applied) {
  if (applied === null || applied === undefined) return "";
  const said = Object.entries(asRecord(applied)).map(([name, value]) => `${name} ${asText(value)}`);
  return `The job reports that it applied: ${said.join(", ") || "nothing"}.`;
}

/** The table; null for an incident that is of no order. */
export function ordersTable(incident) {
  const { not_followed: rows, applied } = incident.evidence;
  if (!asList(rows).length) return null;
  return h(
    "table.moved.orders",
    h(
      "thead",
      h(
        "tr",
        ["Change", "ordered", "came instead"].map((word) => h("th", word)),
      ),
    ),
    h(
      "tbody",
      asList(rows).map((one) =>
        h(
          "tr",
          h("td.name", CHANGES[asText(one.change)] || asText(one.change)),
          h("td", asText(one.ordered)),
          h("td", asText(one.observed)),
        ),
      ),
    ),
    h("caption", reportedWords(applied)),
  );
}
