// The right rail: incidents and checkpoints; lineage.js draws the tree between them.

import { toldStep } from "../core/as_type.js";
import { unchecked, usable, whatItIs, whyNot } from "../core/checkpoint.js";
import { byId, h, isUntimed, patch, setClass, setShown, setText, when } from "../core/dom.js";
import { ago, formatAge, formatCount, plural, sentence } from "../core/format.js";
import { appearanceOf, incidentKind, offers, onlyKnown, severityOf, statusFacts, tonedClass } from "../core/kinds.js";
import { incidentHref } from "../core/route.js";
import { dataSets, evidence, knownList } from "../incident/evidence.js";
import { lastingWords, looksLike, tickLasting, trainLine, verdictOf, withoutFollowers } from "../incident/verdict.js";
import { lessButton } from "./sensitivity_menu.js";

// -- In which order people read incidents: the worst first, a cause before what follows from it, alike ones as one.

/** So many alike ones are one row with a count. */
const FOLDED_FROM = 3;

const byAppearance = (a, b) => appearanceOf(a).order - appearanceOf(b).order || b.opened - a.opened;

/** Incidents, the worst first; what follows from another one of them stands right behind it. */
export function inOrder(incidents) {
  const known = new Map(incidents.map((one) => [one.incident_id, one]));
  const causeOf = (one) => {
    const seen = new Set();
    let cause = one;
    while (known.has(cause.caused_by) && !seen.has(cause)) {
      seen.add(cause);
      cause = known.get(cause.caused_by);
    }
    return cause;
  };
  const groups = new Map();
  for (const one of [...incidents].sort(byAppearance)) {
    const cause = causeOf(one);
    // The group stands where its worst one would: that is the first that comes.
    if (!groups.has(cause)) groups.set(cause, [cause]);
    if (one !== cause) groups.get(cause).push(one);
  }
  return [...groups.values()].flat();
}

/** What is one row: of its kind, as bad, and with the same cause. */
const rowOf = (one) => JSON.stringify([one.kind, appearanceOf(one), one.severity, one.dead, one.caused_by || ""]);

/** Rows of incidents in their order: `{incident, alike}`; `alike` are further ones, none below three of a row. */
export function folded(incidents) {
  const rows = new Map();
  for (const one of incidents) rows.set(rowOf(one), [...(rows.get(rowOf(one)) || []), one]);
  return incidents.flatMap((one) => {
    const row = rows.get(rowOf(one));
    if (row.length < FOLDED_FROM) return [{ incident: one, alike: [] }];
    return row[0] === one ? [{ incident: one, alike: row.slice(1) }] : [];
  });
}

/** Cards in the list before "All" is pressed, and at most ever. */
const FEW = 6;
const MOST = 200;

const facts = (...words) =>
  h(
    "div.facts",
    words.filter(Boolean).map((word) => (typeof word === "string" ? h("span.fact-chip", word) : word)),
  );

/** `open, may recover`, `recovered (fast)`: what became of it, and how it recovers. */
function stateWords(incident, { word }) {
  if (incident.state === "open") return incident.recovery === "pending" ? `${word}, may recover` : word;
  return incident.state === "recovered" && incident.recovery ? `${word} (${incident.recovery})` : word;
}

/** What it follows from, as a link. */
function causeLine(page, incident) {
  const cause = page.incidents().find((one) => one.incident_id === incident.caused_by);
  if (!cause) return null;
  const href = incidentHref(page.id, cause.incident_id);
  return h("p.cause-line", "Caused by ", h("a", { href }, cause.title || incidentKind(cause.kind).label));
}

/** The others of a row, a line each. */
function alikeFold(page, incident, alike) {
  if (!alike.length) return null;
  const open = page.alikeShown.has(incident.incident_id);
  const line = (one) =>
    h(
      "li",
      h("a", { href: incidentHref(page.id, one.incident_id) }, one.title || incidentKind(one.kind).label),
      " ",
      isUntimed(page.run) ? null : when(one.opened, ago(page.now() - one.opened), "sub"),
    );
  return h(
    "details.alike",
    {
      open,
      ontoggle: (event) =>
        event.target.open ? page.alikeShown.add(incident.incident_id) : page.alikeShown.delete(incident.incident_id),
    },
    h("summary", `and ${formatCount(alike.length)} more like it`),
    h("ul", alike.slice(0, MOST).map(line)),
  );
}

/** Where an incident is, for the chips of its card. */
function whereOf(incident, verdict, curve) {
  const delay = incident.step !== null && incident.onset_step !== null ? incident.step - incident.onset_step : null;
  return [
    toldStep(incident.onset_step) === null ? null : `${curve ? "onset" : "step"} ${formatCount(incident.onset_step)}`,
    !curve || delay === null || !Number.isFinite(delay)
      ? null
      : `detected ${delay === 0 ? "at once" : `${plural(delay, "step")} later`}`,
    incident.rank === null || incident.rank === undefined ? null : `rank ${incident.rank}`,
    incident.node && (incident.rank === null || incident.rank === undefined) ? incident.node : null,
    incident.dataset
      ? h(
          "span.fact-chip.dataset",
          { title: "The data set that caused it" },
          h("span", "data set"),
          ` ${incident.dataset}`,
        )
      : null,
    incident.dataset ? null : dataSets(incident),
    verdict && verdict.confidence ? `${verdict.confidence} confidence` : null,
    incident.dead ? "on a discarded branch" : null,
  ];
}

/** State and buttons of an incident's card; `said`: the job itself raised it. */
function incidentFoot(page, incident, said) {
  const shown = appearanceOf(incident);
  const { suggestion } = incident;
  return h(
    "div.incident-foot",
    h("span", { class: tonedClass("state", shown) }, stateWords(incident, shown)),
    h("span.grow"),
    page.id
      ? h(
          "a.details-link",
          { href: incidentHref(page.id, incident.incident_id), data: { details: incident.incident_id } },
          "Details",
        )
      : null,
    lessButton(page, incident),
    incident.acknowledged_by
      ? h("span.sub", `acknowledged by ${incident.acknowledged_by}`)
      : offers(incident, "acknowledge")
        ? h(
            "button.button.quiet",
            {
              title: said ? "The job's alert is then closed" : "Tells others that you look after it; it stays open",
              data: { needs: "command" },
              onclick: () => page.acknowledge(incident),
            },
            said ? "Acknowledge and close" : "Acknowledge",
          )
        : null,
    offers(incident, "roll_back")
      ? h(
          "button",
          {
            class: `button${suggestion && suggestion.action === "roll_back" ? " danger" : ""}`,
            data: { rollback: incident.incident_id },
            onclick: () => page.openRollback(incident),
          },
          "Roll back …",
        )
      : null,
  );
}

function incidentCard(page, incident, first, alike) {
  const severity = severityOf(incident);
  const open = incident.state === "open";
  const kind = incidentKind(incident.kind);
  const said = kind.about === "user";
  const curve = !said && !kind.stops_job; // what stops a job has its onset in no curve
  const verdict = verdictOf(incident);
  return h(
    "article",
    {
      class: `incident ${severity}${open ? "" : " closed"}`,
      tabindex: "0",
      data: { incident: incident.incident_id },
      onclick: (event) => {
        if (!event.target.closest("button, a")) page.zoomTo(incident);
      },
      onkeydown: (event) => {
        if (event.key === "Enter" && event.target === event.currentTarget) page.zoomTo(incident);
      },
    },
    h(
      "div.incident-head",
      h("h3", incident.title || kind.label),
      isUntimed(page.run) ? null : when(incident.opened, formatAge(page.now() - incident.opened)),
    ),
    verdict && verdict.text
      ? h("p.verdict-line", ...lastingWords(verdict.text, incident, page.now()))
      : incident.text
        ? h("p", incident.text)
        : null,
    causeLine(page, incident),
    facts(...whereOf(incident, verdict, curve)),
    trainLine(incident, page.incidents(), page.id),
    alikeFold(page, incident, alike),
    looksLike(page.config.looks, incident),
    evidence(page, incident, first),
    incidentFoot(page, incident, said),
  );
}

let keyOf = new WeakMap();

/** Bring the list of incidents up to date. Cards are looked at only when something in them changed. */
export function drawIncidents(page, all) {
  const place = byId("incidents");
  if (!place) return;
  const every = inOrder(withoutFollowers(page.incidents()));
  const list = every.filter((incident) => !onlyKnown(incident));
  const known = every.filter(onlyKnown).slice(0, MOST);
  const open = list.filter((incident) => incident.state === "open").length;
  const badge = byId("incidents-count");
  setText(badge, open ? `${open} open` : list.length ? `${list.length}` : "");
  setClass(badge, open ? tonedClass("chip", appearanceOf(list[0])) : "chip");
  const rows = folded(list);
  const toggle = byId("incidents-all");
  setShown(toggle, rows.length > FEW);
  setText(toggle, all ? "Fewer" : `All ${list.length}`);
  const shown = rows.slice(0, all ? MOST : FEW);
  const key = JSON.stringify([
    page.ready,
    page.detectors.list.length,
    page.incidents().length,
    page.knownShown,
    known.length,
    page.evidenceFolds && [...page.evidenceFolds],
    [...shown.flatMap((row) => [row.incident, ...row.alike]), ...(page.knownShown ? known : [])].map((one) => [
      one.incident_id,
      one.version,
      one.state,
      one.acknowledged_by,
      one.dead,
      one.updated,
      formatAge(page.now() - one.opened),
    ]),
  ]);
  if (keyOf.get(place) === key) {
    tickLasting(place, page.now());
    return;
  }
  keyOf.set(place, key);
  // The gravest alarm that is open shows all that is known of it: that is what people came for.
  const first = shown.find((row) => row.incident.state === "open");
  page.alikeShown ||= new Set();
  const nothing = list.length
    ? null
    : h(
        "div.nothing",
        page.ready ? `Nothing ${statusFacts(page.run?.status).ended ? "went wrong" : "has gone wrong so far"}.` : "",
      );
  patch(
    place,
    nothing,
    shown.map((row) => incidentCard(page, row.incident, row === first, row.alike)),
    knownList(page, known),
  );
}

/** Bring the list of checkpoints up to date. */
export function drawCheckpoints(page) {
  const place = byId("checkpoints");
  if (!place) return;
  const list = page.checkpointList();
  const shown = list.slice(0, 40);
  const key = JSON.stringify([page.ready, shown.map((one) => [one, formatAge(page.now() - one.time)])]);
  if (keyOf.get(place) === key) return;
  keyOf.set(place, key);
  const fit = list.filter(usable).length;
  setText(byId("checkpoints-note"), list.length ? `${fit} of ${list.length} usable` : "");
  if (!shown.length) {
    patch(
      place,
      h("div.nothing", page.ready ? "None yet. The job announces each with run.checkpoint(step, path)." : ""),
    );
    return;
  }
  patch(
    place,
    shown.map((one) =>
      h(
        "div",
        {
          class: `checkpoint${usable(one) ? "" : " off"}`,
          title: [one.path, sentence(one.unfit || unchecked(one))].filter(Boolean).join("\n"),
        },
        h("i.tick"),
        h("b", formatCount(one.step)),
        h("span.sub", whyNot(one) || whatItIs(one, false)),
        h("span.grow"),
        when(one.time, ago(page.now() - one.time), "sub"),
      ),
    ),
  );
}

export const forgetRail = () => {
  keyOf = new WeakMap();
};
