// The cells of the strip: which there are, and their elements. What is in them is drawn by kpis.js.

import { usable } from "../core/checkpoint.js";
import { byId, fill, h, setText, setTitle } from "../core/dom.js";

/** Numbers side by side: fewer look lost, more are not read. */
const [LEAST, MOST] = [4, 8];

/** Cells that are computed: id and the words above. */
const COMPUTED = {
  ranks: "Ranks",
  last: "Last report",
  checkpoint: "Last checkpoint",
  incidents: "Open incidents",
  rollbacks: "Rollbacks",
};

/**
 * The cells that a run has: of its metrics those with a point, then what stands beside them. Nothing to show, no cell;
 * where that leaves too few, what is always known fills up.
 *
 * @param {{id: string, metric: string, unit: string, median: boolean}[]} chosen the headline's, with a point
 * @param {{checkpoints: number, forks: number, ranks: number, point: boolean}} facts
 */
export function cellsOf(chosen, facts) {
  const computed = ["incidents"];
  if (facts.checkpoints) computed.unshift("checkpoint");
  if (facts.forks) computed.push("rollbacks");
  const metrics = chosen.slice(0, MOST - computed.length);
  const fill = ["rollbacks", "ranks", ...(facts.point ? ["last"] : [])].filter((id) => !computed.includes(id));
  while (metrics.length + computed.length < LEAST && fill.length) computed.push(/** @type {string} */ (fill.shift()));
  return [
    ...metrics.map((cell) => ({ ...cell, label: cell.metric })),
    ...computed.map((id) => ({ id, label: COMPUTED[id], metric: "", unit: "", median: false })),
  ];
}

/** Bring the elements of the strip up to date. Returns its cells. */
export function makeStrip(page) {
  const place = byId("kpis");
  if (!place) return [];
  const { cells: chosen } = page.headline.now;
  const cells = cellsOf(
    chosen.filter((cell) => page.store.tail(cell.metric, 1).steps.length),
    {
      checkpoints: page.checkpointList().filter(usable).length,
      forks: page.view().forks.length,
      ranks: page.worldSize(),
      point: page.store.lastTime !== null || Boolean(page.run?.updated),
    },
  );
  const key = JSON.stringify(cells);
  if (place.dataset.cells !== key || !place.firstChild) {
    place.dataset.cells = key;
    const there = new Map([...place.children].map((element) => [element.id, element]));
    fill(
      place,
      cells.map((cell) => there.get(`kpi-${cell.id}`) || make(cell)),
    );
    for (const cell of cells) name(cell);
  }
  return cells;
}

function make(cell) {
  return h(
    "div.kpi",
    { id: `kpi-${cell.id}` },
    h("div.kpi-label", { dir: "auto" }),
    h("div.kpi-line", h("span.kpi-value"), h("span.kpi-unit")),
    h("div.kpi-note"),
    h("div.kpi-spark"),
  );
}

function name(cell) {
  const element = byId(`kpi-${cell.id}`);
  const label = element.querySelector(".kpi-label");
  setText(label, cell.label);
  setTitle(label, cell.metric);
  setText(element.querySelector(".kpi-unit"), cell.unit);
  Object.assign(element.dataset, { metric: cell.metric, median: cell.median ? "yes" : "" });
}
