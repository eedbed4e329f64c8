// The regions of an incident's page, drawn anew only where something in them changed: what somebody selects or unfolds stays.

import { asFinite, asList, asRecord, asText, asTexts, toldStep } from "../core/as_type.js";
import { byId, h, isUntimed, patch, setClass, setHref, setText, whenTitle } from "../core/dom.js";
import { capital, clock, formatCount, moment, plural, sentence } from "../core/format.js";
import { appearanceOf, incidentKind, severityOf, tonedClass } from "../core/kinds.js";
import { incidentHref } from "../core/route.js";
import { blindSpot, rankWords } from "../ranks/rank_words.js";
import { factList } from "./facts.js";
import {
  ageWords,
  cameBack,
  isNote,
  lastingWords,
  looksLike,
  sinceOf,
  tickLasting,
  trainLength,
  trainLine,
  verdictOf,
} from "./verdict.js";

// -- Where repeated data came before, in this run or in another one of its project: facts for the list under the verdict.

/** The comparison that lays the other run over this one, so that the same data stand at the same place. */
function compareHref(run, other, shift) {
  const query = new URLSearchParams([
    ["run", run],
    ["run", other],
  ]);
  if (shift) for (const by of [0, shift]) query.append("shift", String(by));
  return `/compare?${query}`;
}

/** `step 1, 400 steps back`; "" where it is not about data that came before. */
function cameBefore(evidence) {
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
function dataFacts(incident, run) {
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

/** A table that may be wider than its place: a shade at the edge shows that there is more. */
export const wide = (table) => (table ? h("div.wide-table", table) : null);

export function keyed(place, key, build) {
  if (!place) return;
  const words = JSON.stringify(key);
  if (keyOf.get(place) === words) return;
  keyOf.set(place, words);
  patch(place, build());
}
/** Element -> what was last drawn into it. */
const keyOf = new WeakMap();

// -- what is read first ---------------------------------------------------------------------------------------------

function head(page) {
  const { incident } = page;
  const kind = incidentKind(incident.kind);
  const shown = appearanceOf(incident);
  const open = incident.state === "open";
  const step = toldStep(incident.onset_step);
  return [
    h(
      "div.incident-marks",
      h("span", { class: tonedClass("pill", shown) }, open ? severityOf(incident) : shown.word),
      h("span.chip", [kind.sign, kind.label].filter(Boolean).join(" ")),
      open ? h("span.chip", shown.word) : null, // one that is over has lost the severity that it had
      incident.dead ? h("span.chip", "on a discarded branch") : null,
      incident.acknowledged_by ? h("span.chip.accent", `acknowledged by ${asText(incident.acknowledged_by)}`) : null,
    ),
    h("h1", asText(incident.title) || kind.label),
    h(
      "p.incident-sub",
      "Run ",
      h("a", { href: `/runs/${encodeURIComponent(page.id)}` }, page.name()),
      step === null ? null : ` · step ${formatCount(step)}`,
      causeOf(page),
      isUntimed(page.run) ? null : " · ",
      h("span.incident-age"),
    ),
  ];
}

/** What it follows from, as a link. */
function causeOf(page) {
  const cause = page.alike.find((one) => one.incident_id === page.incident.caused_by);
  if (!cause) return null;
  return [
    " · caused by ",
    h("a", { href: incidentHref(page.id, cause.incident_id) }, asText(cause.title) || incidentKind(cause.kind).label),
  ];
}

/** `rank 5 on gpu-03, GPU 2 · GPU-1f…`: who is suspected, with all that names it. */
function suspects(incident, verdict) {
  const gpuOf = (rank) => (verdict ? verdict.gpus.find((gpu) => gpu.rank === rank) : null);
  if (verdict && verdict.culprits.length && verdict.culprits.length <= 4)
    return verdict.culprits.map((rank, index) => {
      const gpu = gpuOf(rank);
      const node =
        (gpu && gpu.node) ||
        (verdict.nodes.length === 1 ? verdict.nodes[0] : verdict.nodes[index]) ||
        (incident.rank === rank ? asText(incident.node) : "");
      const words = [`rank ${rank}`, node, gpu && gpu.index !== null ? `GPU ${gpu.index}` : ""]
        .filter(Boolean)
        .join(" · ");
      return h("div", h("b", words), gpu && gpu.uuid ? h("div", h("code.sub", { title: gpu.uuid }, gpu.uuid)) : null);
    });
  if (verdict && verdict.culprits.length)
    return h(
      "b",
      `${rankWords(verdict.culprits)}${verdict.nodes.length ? ` · ${verdict.nodes.slice(0, 4).join(", ")}` : ""}`,
    );
  const gpu = asRecord(asRecord(incident.evidence).gpu);
  const index = asFinite(gpu.index);
  const words = [
    asFinite(incident.rank) === null ? "" : `rank ${incident.rank}`,
    asText(incident.node || gpu.node) || (verdict ? verdict.nodes.join(", ") : ""),
    index === null ? "" : `GPU ${index}`,
  ]
    .filter(Boolean)
    .join(" · ");
  return words ? [h("b", words), asText(gpu.uuid) ? h("div", h("code.sub", asText(gpu.uuid))) : null] : "";
}

/** What the agents of the nodes concerned can't see, by node. */
function blindNodes(page, verdict) {
  const nodes = new Set(verdict ? verdict.nodes : []);
  if (asText(page.incident.node)) nodes.add(asText(page.incident.node));
  return page.agents
    .map(asRecord)
    .sort((a, b) => Number(Boolean(b.connected)) - Number(Boolean(a.connected)))
    .filter((agent) => nodes.delete(asText(agent.node))) // of two agents of a node, one after the other, the one that is there
    .slice(0, 4)
    .map((agent) => ({
      node: asText(agent.node),
      blind: asList(asRecord(agent.agent_state).blind)
        .map(asRecord)
        .filter((spot) => asText(spot.what)),
    }))
    .filter((found) => found.blind.length);
}

const blindWords = (spot) => blindSpot(asText(spot.what));
const blindLine = (spot) =>
  `${blindWords(spot)}: ${sentence(asText(spot.why)) || "not visible."}${asText(spot.do) ? ` To see it: ${asText(spot.do)}.` : ""}`;

/** The facts of the verdict: who, since when, how sure. */
function verdictFacts(page, verdict, since) {
  const { incident } = page;
  const kind = incidentKind(incident.kind);
  const nobody = verdict && !verdict.culprits.length && kind.of_machine;
  const who = suspects(incident, verdict);
  const detector = !kind.of_machine && kind.about !== "user";
  return factList([
    [kind.blame === "suspect" ? "Suspect" : "Where", who || (nobody ? "no rank stands out" : "")],
    [
      "Since",
      since === null ? "" : h("span", h("b", clock(since)), h("span.sub.since-age", { "aria-live": "off" })),
      since === null ? "" : whenTitle(since),
    ],
    [
      "How sure",
      verdict && verdict.confidence
        ? h(
            "span",
            h("span", { class: `sure ${verdict.confidence}`, "aria-hidden": "true" }, h("i"), h("i"), h("i")),
            h("b", verdict.confidence),
            h("span.sub", ` ${verdict.sure}`),
          )
        : "",
    ],
    ["Training", verdict && verdict.training ? verdict.training : ""],
    [
      "Onset",
      detector && asFinite(incident.onset_step) !== null
        ? `step ${formatCount(incident.onset_step)}${asFinite(incident.peak_step) === null ? "" : `, peak at ${formatCount(incident.peak_step)}`}`
        : "",
    ],
    ["Metric", detector ? asText(incident.metric) : ""],
    ["Data set", asText(incident.dataset)],
    ...dataFacts(incident, page.id),
    ["Recurring", trainLine(incident, page.alike || [], page.id)],
  ]);
}

/** A list with its heading, `tag` of that; null of none. */
const titled = (name, tag, title, lines) =>
  lines.length
    ? h(
        name,
        h(tag, title),
        h(
          "ul",
          lines.map((line) => h("li", line)),
        ),
      )
    : null;

function verdictParts(page) {
  const { incident } = page;
  const verdict = verdictOf(incident);
  const since = isUntimed(page.run) ? null : sinceOf(incident);
  const open = incident.state === "open";
  const kind = incidentKind(incident.kind);
  const words = verdict && verdict.text ? verdict.text : asText(incident.text);
  const more =
    verdict && verdict.text && asText(incident.text) && asText(incident.text) !== verdict.text
      ? asText(incident.text)
      : "";
  return [
    verdict && verdict.label && verdict.class !== "unknown"
      ? h("div.verdict-class", verdict.label.charAt(0).toUpperCase() + verdict.label.slice(1))
      : null,
    h("p.verdict-words", ...lastingWords(words || "No further details.", incident, page.now())),
    verdictFacts(page, verdict, since),
    looksLike(page.config.looks, incident),
    verdict ? titled("div.because", "h2", "Because", verdict.because) : null,
    verdict ? titled("div.not-seen", "h3", "Not visible", verdict.blind) : null,
    open && kind.of_machine
      ? blindNodes(page, verdict).map(({ node, blind }) =>
          h(
            "details.told",
            { data: { node } },
            h("summary", `Not visible on ${node} at the moment: ${blind.map(blindWords).join(", ")}`),
            h(
              "ul",
              blind.map((spot) => h("li", blindLine(spot))),
            ),
          ),
        )
      : null,
    open && more && !more.includes(words) ? h("details.told", h("summary", "As it was reported"), h("p", more)) : null,
    open || !incident.resolved || isNote(incident)
      ? null
      : h(
          "p",
          { class: cameBack(incident) ? "over good" : "over" },
          `${capital(appearanceOf(incident).word)}${isUntimed(page.run) ? "" : ` ${moment(incident.resolved)}`}${since ? `, after ${ageWords(incident)}` : ""}.${more ? ` ${more}` : ""}`,
        ),
  ];
}

/** Head and verdict; the ages in them go on by themselves. */
export function drawIncidentTop(page) {
  const { incident } = page;
  const name = page.name();
  const link = byId("incident-run");
  setText(link, name);
  setHref(link, `/runs/${encodeURIComponent(page.id)}`);
  keyed(byId("incident-head"), [incident, name, causeOf(page)?.length, page.alike.length], () => head(page));
  keyed(
    byId("incident-verdict"),
    [
      incident,
      trainLength((page.alike || []).filter((one) => one.train === incident.train)),
      page.agents.map((agent) => asRecord(asRecord(agent).agent_state).blind),
    ],
    () => verdictParts(page),
  );
  setClass(byId("incident-verdict"), `verdict panel ${incident.state === "open" ? severityOf(incident) : "closed"}`);
  const age = isUntimed(page.run) ? "" : ageWords(incident, page.now());
  tickLasting(byId("incident-verdict"), page.now());
  setText(page.root.querySelector(".since-age"), incident.state === "open" ? `, ${age} ago` : "");
  setText(
    page.root.querySelector(".incident-age"),
    !age ? "" : incident.state === "open" ? `for ${age}` : isNote(incident) ? moment(incident.opened) : `lasted ${age}`,
  );
}

// -- what it rests on -----------------------------------------------------------------------------------------------

/** What has to be corrected before a rollback can help, in words. */
const FIXES = {
  cause: "the cause, in code, data or schedule: rollbacks did not cure it",
  schedule: "the learning-rate schedule",
  mixture: "the mixture of the sampler",
  "data position": "the position in the data",
  resume: "what was not restored",
  change: "find out what changed",
};

/** Steps as people read them, one or a range. */
const stepsOf = (range) => {
  const [first, last] = asList(range);
  return first === last ? `step ${formatCount(first)}` : `steps ${formatCount(first)}–${formatCount(last)}`;
};

/** The advice of the run as facts, each with what it is relative to; null for one that no checkpoint is named with. */
function plan(incident, suggestion) {
  const { to_step: to, skip_range: skip, skip_batches: behind, lr_scale: scale, until_step: until } = suggestion;
  const band = asList(asRecord(incident.evidence).onset_band);
  const waits = asFinite(until) !== null;
  const back = asFinite(to) !== null;
  const uncured = suggestion.fix_first === "cause";
  if (!suggestion.leads) return null;
  return factList([
    ["First", FIXES[suggestion.fix_first] || null],
    ["Wait", waits ? `until step ${formatCount(until)}; the advice then changes by itself` : null],
    [
      uncured ? "Then go on" : waits ? "Else go back" : "Go back",
      back ? `${uncured ? "from" : "to"} the checkpoint of step ${formatCount(to)}` : "no clean checkpoint",
    ],
    [
      "Leave out",
      !back || uncured
        ? null
        : Array.isArray(skip)
          ? `the batches of ${stepsOf(skip)}, or ${formatCount(behind)} right behind the checkpoint where a job can skip no others`
          : "nothing: the data are not the cause",
    ],
    ["Learning rate", scale ? `× ${scale} of what the schedule of that checkpoint gives` : null],
    ["Seed", suggestion.reseed ? "a new one" : null],
    ["May have begun", band.length === 2 ? `in ${stepsOf(band)}; the checkpoint is older` : null],
  ]);
}

export function advice(page) {
  const suggestion = asRecord(page.incident.suggestion);
  const checks = asTexts(suggestion.checklist);
  if (!asText(suggestion.text) && !checks.length) return null;
  return [
    asText(suggestion.text) ? h("p.advice", asText(suggestion.text)) : null,
    plan(page.incident, suggestion),
    checks.length
      ? h(
          "ul.checks",
          checks.map((line) => {
            const box = h("input", {
              type: "checkbox",
              onchange: (event) => page.ticked[event.target.checked ? "add" : "delete"](line),
            });
            box.checked = page.ticked.has(line);
            return h("li", h("label", box, h("span", line)));
          }),
        )
      : null,
    asText(suggestion.source) && suggestion.source !== "rule of thumb"
      ? h("p.source.sub", `Source: ${asText(suggestion.source)}.`)
      : null,
  ];
}
