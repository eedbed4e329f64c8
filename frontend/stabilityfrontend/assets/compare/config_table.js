// The configs of the compared runs: only the keys that differ, a column for each run.

import { configRows } from "../about/about.js";
import { byId, h, setShown, setText } from "../core/dom.js";
import { plural } from "../core/format.js";
import { patch } from "../core/patch.js";

/** Keys that are shown at most. */
const KEYS = 300;

/**
 * Keys that are not the same in all configs: `[key, [value of each run]]`, by name; a key that a run lacks is null there.
 * @param {any[]} configs
 */
export function differingKeys(configs) {
  const tables = configs.map((config) => new Map(/** @type {[string, string][]} */ (configRows(config))));
  const keys = new Set(tables.flatMap((table) => [...table.keys()]));
  return /** @type {[string, (string | null)[]][]} */ (
    [...keys]
      .sort()
      .map((key) => [key, tables.map((table) => table.get(key) ?? null)])
      .filter(([, values]) => new Set(values).size > 1)
  );
}

/** `page` as in compare_page.js. */
export function drawConfigs(page) {
  const place = byId("compare-configs");
  if (!place) return;
  const runs = page.ids.map((id) => page.all.find((run) => run.run_id === id)).filter(Boolean);
  const rows = runs.length > 1 ? differingKeys(runs.map((run) => run.config)) : [];
  setShown(byId("compare-config-panel"), rows.length > 0);
  if (!rows.length) return;
  setText(byId("compare-config-note"), `${plural(rows.length, "key")} ${rows.length === 1 ? "differs" : "differ"}`);
  const drawn = JSON.stringify([runs.map((run) => run.run_id), rows]);
  if (place.dataset.drawn === drawn) return;
  place.dataset.drawn = drawn;
  patch(
    place,
    h(
      "table.table.dense.about-diff",
      h(
        "thead",
        h(
          "tr",
          h("th", "Key"),
          runs.map((run) =>
            h("th", h("i.swatch", { style: { background: page.colour(run.run_id) } }), " ", page.nameOf(run.run_id)),
          ),
        ),
      ),
      h(
        "tbody",
        rows.slice(0, KEYS).map(([key, values]) =>
          h(
            "tr",
            { data: { key } },
            h("th", { scope: "row" }, key),
            values.map((value) => h("td", value === null ? h("span.sub", "not there") : value)),
          ),
        ),
      ),
    ),
    rows.length > KEYS ? h("p.sub", `and ${rows.length - KEYS} more`) : null,
  );
}
