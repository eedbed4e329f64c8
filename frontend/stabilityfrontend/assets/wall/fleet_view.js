// The wall of all runs: how many are sick, which, since when, why, what to do; those that are well stay small.

import { notBackWords, stateOf, wordOf } from "../core/appearance.js";
import { h } from "../core/dom.js";
import { duration, formatCount, steady, toNumber } from "../core/format.js";
import { lastingWords } from "../incident/verdict.js";

/** Sick runs with words of their own, by how many there are; the others are named. */
const [CARDS, NAMED] = [3, 12];
/** Healthy runs that are named; so few have their curves, where none is sick. */
const [WELL, FEW] = [24, 6];

const NUMBERS = ["No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine"];
const inWords = (count) => NUMBERS[count] || formatCount(count);

/** The mark of a state: its shape says what its colour says. */
export const mark = ({ tone, shape }) => h("i", { class: `wall-mark ${tone} shape-${shape}`, "aria-hidden": "true" });

/** The first sentences of an advice: as many as can be read in passing. */
export function brief(text, most = 150) {
  const sentences = String(text || "").match(/[^.]+(?:\.(?=\s|$)|\.\d[^.]*)*\.?/g) || [];
  let words = "";
  for (const one of sentences) {
    if (words && (words + one).length > most) break;
    words += one;
  }
  return words.trim();
}

/** Since when, counting: `12 min 03 s`. */
export const sinceWords = (since, now) => (since ? `for ${duration(Math.max(0, now - since))}` : "");

/** Why, and what to do, of a sick run: what its incident says, else its note. */
export function told(wall, run) {
  const incident = wall.incidentOf(run);
  const title = incident?.title || run.worst_incident?.title || run.note || "";
  const verdict = incident?.evidence?.verdict?.text;
  return { why: lastingWords(verdict || title, incident, wall.now()), remedy: brief(incident?.suggestion?.text) };
}

function sickCard(wall, run) {
  const state = stateOf(run);
  const { why, remedy } = told(wall, run);
  return h(
    "article",
    { class: `wall-card ${state.tone}`, data: { run: run.run_id } },
    h(
      "header",
      h("span", { class: `wall-word ${state.tone}` }, mark(state), wordOf(state)),
      h("span.wall-since", sinceWords(state.since, wall.now())),
    ),
    h("h2", { dir: "auto" }, run.name || run.run_id),
    h("p.wall-why", ...why),
    remedy ? h("p.wall-do", remedy) : null,
    h("div.wall-place", { data: { curve: run.run_id } }),
  );
}

/** A run that is well, with its curve: where there are few. */
const wellCard = (run) =>
  h(
    "article.wall-card",
    { data: { run: run.run_id } },
    wellRun(run),
    h("div.wall-place", { data: { curve: run.run_id } }),
  );

function wellRun(run) {
  const state = stateOf(run);
  const loss = run.loss_metric ? toNumber((run.latest || {})[run.loss_metric]) : null;
  return h(
    "div.wall-well",
    { data: { run: run.run_id } },
    mark(state),
    h("bdi", run.name || run.run_id),
    h("span", notBackWords(state) || wordOf(state)),
    h("b", run.last_step === null || run.last_step === undefined ? "" : formatCount(run.last_step)),
    h("b", loss === null ? "" : steady(loss)),
  );
}

/** How many runs are sick, and how many crashed within a day, as a headline. */
function headOf({ sick, crashed, well }) {
  const runs = (count) => `${inWords(count)} run${count === 1 ? "" : "s"}`;
  if (sick && crashed)
    return `${runs(sick)} ${sick === 1 ? "is" : "are"} sick, ${inWords(crashed).toLowerCase()} crashed`;
  if (sick) return `${runs(sick)} ${sick === 1 ? "is" : "are"} sick`;
  if (crashed) return `${runs(crashed)} crashed`;
  if (well) return `${well === 1 ? "The run is" : `All ${formatCount(well)} runs are`} well`;
  return "No run is under way";
}

/** The view; `{ill, well, counts}` as `counted` of wall_rows.js gives them: what is counted may have no row. */
export function fleetView(wall, { ill, well, counts }) {
  const { sick, crashed, well: wells, past } = counts;
  const count = sick + crashed;
  const worst = ill.length ? stateOf(ill[0]) : { tone: wells ? "good" : "calm", shape: wells ? "disc" : "ring" };
  const few = !count && well.length <= FEW;
  const others = ill.slice(CARDS);
  return [
    h(
      "header.wall-head",
      { data: { place: "head" } },
      h("h1", { class: worst.tone }, mark(worst), headOf(counts)),
      h("p", count && wells ? `${formatCount(wells)} ${wells === 1 ? "is" : "are"} well` : ""),
    ),
    h(
      "section",
      { class: `wall-cards n${Math.min(CARDS, count)}`, data: { place: "cards" } },
      ill.slice(0, CARDS).map((run) => sickCard(wall, run)),
    ),
    others.length
      ? h(
          "p.wall-others",
          { data: { place: "others" } },
          "also: ",
          others
            .slice(0, NAMED)
            .map((run, index) => [index ? ", " : "", h("bdi", run.name || run.run_id), ` (${wordOf(stateOf(run))})`])
            .flat(),
          count > CARDS + NAMED ? ` and ${formatCount(count - CARDS - NAMED)} more` : "",
        )
      : null,
    h(
      "section",
      { class: `wall-wells${count ? "" : " alone"}${few ? " few" : ""}`, data: { place: "wells" } },
      well.slice(0, WELL).map(few ? wellCard : wellRun),
    ),
    h(
      "p.wall-past",
      { data: { place: "past" } },
      [
        wells > WELL ? `${formatCount(wells - WELL)} more are well` : "",
        past ? `${formatCount(past)} ended, have no data yet, or crashed more than a day ago` : "",
      ]
        .filter(Boolean)
        .join(" · "),
    ),
  ];
}
