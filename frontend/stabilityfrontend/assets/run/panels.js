// The panels of a run's page: the sections that the server's layout has, a chart in each, those without a metric hidden.

import { chartTools } from "../chart/chart_tools.js";
import { MIXTURE } from "../chart/mixture_shapes.js";
import { panelChart } from "../chart/panel_chart.js";
import { byId } from "../core/dom.js";
import { matching } from "../core/first_requests.js";

/** Give each panel its chart; none has a metric yet. Returns them as `{panel, section, chart}`. */
export function makePanels(page) {
  const panels = [...page.root.querySelectorAll("[data-panel]")].map((section) => {
    const panel = JSON.parse(section.dataset.panel);
    const places = [section.querySelector(".chart"), section.querySelector(".legend")];
    const chart = panelChart(...places, panel, page.config, page);
    section.hidden = true;
    page.board.add(chart);
    chartTools(section.querySelector(".panel-head"), chart, page);
    return { panel, section, chart };
  });
  fitPanels(page.root);
  return panels;
}

/** Show the panels that have one of the run's metrics. */
export function showPanels(page) {
  for (const { panel, section } of page.panels) {
    const declared = panel.id === MIXTURE && page.mixture?.curves;
    section.hidden = !declared && matching(panel.metrics, page.names).length === 0;
  }
  fitPanels(page.root);
}

/** Hide the panels' grid while none of them has a metric. */
export function fitPanels(root) {
  const grid = byId("panels");
  if (grid) grid.hidden = ![...root.querySelectorAll("#panels > section")].some((section) => !section.hidden);
}
