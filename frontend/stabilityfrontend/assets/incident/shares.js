// A declared mixture that is off: declared and taken share of each data set, as a table.

import { asFinite, asText } from "../core/as_type.js";
import { cutName, h } from "../core/dom.js";
import { formatCount } from "../core/format.js";

/** Data sets before it says how many more there are. */
const FEW = 8;

const share = (value) => `${(100 * (asFinite(value) ?? 0)).toFixed(1)} %`;

/** How many tokens or samples too many or too few: `+8,192`, `−4,096`, `0`. */
export function offWords(amount) {
  const words = formatCount(Math.round(Math.abs(amount)));
  return words === "0" ? words : `${amount > 0 ? "+" : "−"}${words}`;
}

/** The table; null for an incident that is of no declared mixture. */
export function sharesTable(incident) {
  const { sets, unit, measure } = incident.evidence;
  if (!Array.isArray(sets) || !sets.length) return null;
  const counted = measure !== "ratio"; // a bare share has no amount
  const heads = ["Data set", "declared", "taken", ...(counted ? [`${asText(unit)} off`] : [])];
  return h(
    "table.moved.shares",
    h(
      "thead",
      h(
        "tr",
        heads.map((word, at) => h("th", { class: at ? "num" : "" }, word)),
      ),
    ),
    h(
      "tbody",
      sets
        .slice(0, FEW)
        .map((one) =>
          h(
            "tr",
            h("td.name", { title: asText(one.dataset) }, cutName(asText(one.dataset))),
            h("td.num", share(one.declared)),
            h("td.num", share(one.realised)),
            counted ? h("td.num", offWords(asFinite(one.off) ?? 0)) : null,
          ),
        ),
    ),
    sets.length > FEW ? h("caption", `and ${sets.length - FEW} more`) : null,
  );
}
