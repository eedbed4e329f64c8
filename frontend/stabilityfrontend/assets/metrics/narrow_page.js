// The page as a chart of a few metrics sees it: only their names count, however many the run has.

import { EXPRESSION } from "./metric_tree.js";

/** A page whose `names` are those of the chart's metrics that the run has; `set(chart)` says of which. */
export function narrowPage(page, metrics) {
  let chart = /** @type {any} */ (null);
  const own = Object.create(page, {
    whole: { value: page },
    names: {
      get() {
        const now = chart ? chart.now().metrics : metrics;
        if (now.some((name) => name.endsWith("*"))) return page.names;
        return now.filter((name) => name.startsWith(EXPRESSION) || page.nameSet.has(name));
      },
    },
  });
  return { own, set: (made) => (chart = made) };
}
