// How useful alerts were, as people rated them on the pages of incidents.

import { h } from "../core/dom.js";
import { formatCount } from "../core/format.js";

const percent = (share) => (share === null ? "–" : `${Math.round(100 * share)} %`);
/** Alerts a day are few or very few: two digits tell enough. */
const perDay = (rate) => (rate === null ? "–" : rate === 0 ? "0" : Number(rate.toPrecision(2)).toString());

const table = (heads, rows) =>
  h("table.table", h("thead", h("tr", ...heads.map((one) => h("th", one)))), h("tbody", rows));

/** The tables by kind and by receiver. */
export function precisionOf(answer) {
  const { days, job_days, noise_per_job_day, kinds, receivers } = answer;
  if (!kinds.length) return [h("p.empty", `No incident alerted anybody in the last ${days} days.`)];
  const rated = kinds.reduce((sum, one) => sum + one.useful + one.noise, 0);
  const summary = h(
    "p.sub",
    { id: "precision-summary" },
    !rated
      ? "No alert is rated yet: “Useful” and “Noise” are on the page of each incident."
      : noise_per_job_day === null
        ? "No job ran in that time."
        : `${perDay(noise_per_job_day)} alerts rated as noise a job and day, over ${job_days.toFixed(1)} days of jobs.`,
  );
  const rows = kinds.map((one) =>
    h(
      "tr",
      { data: { kind: one.kind } },
      h("td", one.label),
      h("td", formatCount(one.incidents)),
      h("td", formatCount(one.useful)),
      h("td", formatCount(one.noise)),
      h("td", percent(one.precision)),
      h("td", perDay(one.useful + one.noise ? one.noise_per_job_day : null)),
    ),
  );
  const by = receivers.map((one) =>
    h(
      "tr",
      { data: { receiver: one.name } },
      h("td", one.name),
      h("td", formatCount(one.useful)),
      h("td", formatCount(one.noise)),
      h("td", percent(one.precision)),
    ),
  );
  return [
    summary,
    table(["Kind", "Incidents", "Useful", "Noise", "Precision", "Noise a job and day"], rows),
    receivers.length ? table(["Receiver", "Useful", "Noise", "Precision"], by) : null,
  ];
}
