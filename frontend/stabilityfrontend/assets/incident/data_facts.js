// Where repeated data came before, in this run or in another one of its project: facts for the list under the verdict.

import { asFinite, asRecord, asText } from "../core/as_type.js";
import { h } from "../core/dom.js";
import { formatCount, plural } from "../core/format.js";

/** The comparison that lays the other run over this one, so that the same data stand at the same place. */
export function compareHref(run, other, shift) {
  const query = new URLSearchParams([
    ["run", run],
    ["run", other],
  ]);
  if (shift) for (const by of [0, shift]) query.append("shift", String(by));
  return `/compare?${query}`;
}

/** `step 1, 400 steps back`; "" where it is not about data that came before. */
export function cameBefore(evidence) {
  const step = asFinite(evidence.earlier_step);
  if (step === null) return "";
  const last = asFinite(evidence.earlier_last_step);
  const back = asFinite(evidence.offset_steps);
  const where =
    last === null || last <= step ? `step ${formatCount(step)}` : `steps ${formatCount(step)}–${formatCount(last)}`;
  if (evidence.what === "same") return `${where}, and at each step since`;
  return back === null ? `${where}, in another order` : `${where}, ${plural(back, "step")} back`;
}

/** Entries of a fact list. `run`: id of the incident's run. */
export function dataFacts(incident, run) {
  const evidence = asRecord(incident.evidence);
  const other = asText(evidence.other_run);
  const first = asFinite(incident.onset_step);
  const step = asFinite(evidence.other_step);
  return [
    ["Came before", cameBefore(evidence)],
    [
      "Other run",
      other
        ? h(
            "span",
            h("a", { href: `/runs/${encodeURIComponent(other)}` }, asText(evidence.other_name) || other),
            step === null ? " · " : ` from its step ${formatCount(step)} on · `,
            h("a", { href: compareHref(run, other, step === null || first === null ? 0 : first - step) }, "compare"),
          )
        : "",
    ],
  ];
}
