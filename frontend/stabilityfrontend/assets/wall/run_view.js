// The wall of one run: its state and since when, the curve of its loss, its numbers, the open incident with its advice.

import { focusMetric } from "../chart/main_chart.js";
import { stateOf, wordOf } from "../core/appearance.js";
import { h } from "../core/dom.js";
import { formatAge, formatCount, steady, toNumber } from "../core/format.js";
import { mark, sinceWords, told } from "./fleet_view.js";

/** Numbers below the curve beside the step. */
const NUMBERS = 4;

/** What the large curve shows: as the server chose. */
export const mainMetric = (wall, run) =>
  focusMetric(run.metrics || [], run, wall.headlines.get(run.run_id)?.headline?.main);

/** Whether nothing was logged yet: there is no curve, and no number of a metric. */
const noPoint = (run) => (run.last_step ?? null) === null;

function numbers(wall, run) {
  const cell = (label, value, unit) =>
    h("div", { data: { number: label } }, h("b", value), h("span", { dir: "auto" }, label, unit ? ` (${unit})` : ""));
  if (noPoint(run)) {
    const age = formatAge(Math.max(0, wall.now() - run.created));
    return [cell("ranks", formatCount(run.world_size || 1), ""), cell("since it was started", age, "")];
  }
  const cells = wall.headlineOf(run)?.cells || [];
  return [
    cell("step", formatCount(run.last_step), ""),
    ...cells
      .map(({ metric, unit }) => ({ metric, unit, value: toNumber((run.latest || {})[metric]) }))
      .filter(({ value }) => value !== null)
      .slice(0, NUMBERS)
      .map(({ metric, unit, value }) => cell(metric, steady(value), unit)),
  ];
}

/** The view; `.wall-place` is where its curve goes. */
export function runView(wall, run) {
  const state = stateOf(run);
  const { why, remedy } = ["sick", "crashed"].includes(state.condition) ? told(wall, run) : { why: [], remedy: "" };
  return [
    h(
      "header.wall-head.run",
      { data: { place: "head" } },
      h("h1", h("bdi", run.name || run.run_id)),
      h(
        "p",
        { class: `wall-word ${state.tone}` },
        mark(state),
        wordOf(state),
        h("span.wall-since", sinceWords(state.since, wall.now())),
      ),
    ),
    h(
      "section",
      { class: `wall-run${why.length ? " sick" : ""}`, data: { place: "run" } },
      noPoint(run)
        ? h(
            "div.wall-curve.none",
            h("p", `${run.note ? `${run.note} ` : ""}No step yet: the curve begins with the first one.`),
          )
        : h(
            "div.wall-curve",
            h("div.wall-metric", h("bdi", mainMetric(wall, run))),
            h("div.wall-place", { data: { curve: run.run_id } }),
          ),
      why.length
        ? h(
            "article",
            { class: `wall-card ${state.tone}`, data: { card: run.run_id } },
            h("p.wall-why", ...why),
            remedy ? h("p.wall-do", remedy) : null,
          )
        : null,
    ),
    h("section.wall-numbers", { data: { place: "numbers" } }, numbers(wall, run)),
  ];
}
