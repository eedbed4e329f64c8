// Each interruption of the fleet: who was hit, what was seen, and the category that people may correct.

import { asFinite, asList, asRecord, asText, asTexts } from "../core/as_type.js";
import { h } from "../core/dom.js";
import { ago, duration, formatCount, moment, plural, readable, sentence } from "../core/format.js";
import { incidentHref } from "../core/route.js";
import { factList } from "../incident/facts.js";
import { shortUuid } from "../incident/verdict.js";
import { rankWords } from "../ranks/rank_words.js";

const NAMED = 4;

const WHATS = {
  death: "a process died",
  hang: "the job hung",
  stall: "it stalled and went on by itself",
  node_lost: "a node was lost",
  restart: "it was restarted",
};

/** The first of some names, and how many more there are. */
function some(names, look) {
  const shown = asTexts(names).slice(0, NAMED);
  const more = (Array.isArray(names) ? names.length : 0) - shown.length;
  return shown.map(look || ((name) => name)).join(", ") + (more > 0 ? ` and ${formatCount(more)} more` : "");
}

function whoWords(one) {
  return [rankWords(one.ranks, 3), some(one.nodes), some(one.gpus, shortUuid)].filter(Boolean);
}

function categories(page, one) {
  const rows = asList(page.data.table).map(asRecord);
  const labelOf = (category) =>
    asText((rows.find((entry) => entry.category === category) || {}).label) || readable(asText(category));
  const set = asRecord(one.set_by);
  const select = h(
    "select",
    {
      class: "choice-list",
      "aria-label": `Category of the interruption at ${moment(one.since)}`,
      disabled: Boolean(one.deleted),
      data: { focus: `category ${one.id}` },
      on: {
        change: (event) => page.setCategory(one, event.target.value === one.seen_category ? "" : event.target.value),
      },
    },
    (rows.some((entry) => entry.category === one.category)
      ? rows
      : [{ category: one.category, label: one.label }, ...rows]
    ).map((entry) =>
      h(
        "option",
        { value: asText(entry.category), selected: entry.category === one.category },
        `${asText(entry.label) || readable(asText(entry.category))}${entry.category === one.seen_category ? " (as seen)" : ""}`,
      ),
    ),
  );
  const by = asText(set.who) || (typeof one.set_by === "string" ? one.set_by : "");
  return h(
    "div",
    { class: "category" },
    select,
    by
      ? h(
          "div",
          { class: "sub" },
          `set by ${by}${asFinite(set.time) === null ? "" : `, ${moment(set.time)}`}; seen as ${labelOf(one.seen_category).toLowerCase()}`,
        )
      : one.confidence
        ? h("div", { class: "sub" }, `${asText(one.confidence)} confidence`)
        : null,
  );
}

function details(one) {
  const evidence = asTexts(one.evidence);
  const others = asTexts(one.incidents).filter((id) => id !== one.incident_id);
  const redone = asFinite(one.redone_steps);
  return h(
    "div",
    { class: "interruption-more" },
    evidence.length
      ? h(
          "div",
          {},
          h("h4", {}, "Evidence"),
          h(
            "ul",
            {},
            evidence.map((line) => h("li", {}, line)),
          ),
        )
      : null,
    asText(one.unsure)
      ? h("div", {}, h("h4", {}, "Not sure, because"), h("p", {}, sentence(asText(one.unsure))))
      : null,
    factList([
      ["What happened", WHATS[one.what] || readable(asText(one.what))],
      [
        "Stood",
        asFinite(one.downtime_s) === null
          ? ""
          : `${duration(one.downtime_s)}${one.resumed ? `, on again at ${moment(one.resumed)}` : ", not on again yet"}`,
      ],
      ["Trained twice", redone ? `${plural(redone, "step")}, ${duration(asFinite(one.redone_s))}` : ""],
      [
        "Step",
        asFinite(one.step) === null
          ? ""
          : `${formatCount(one.step)}${asFinite(one.resumed_step) === null ? "" : `, on again from ${formatCount(one.resumed_step)}`}`,
      ],
      ["GPUs", asTexts(one.gpus).map((uuid) => h("div", {}, h("code", {}, uuid)))],
      [
        "Also",
        one.deleted
          ? ""
          : others.map((id, index) =>
              h(
                "span",
                {},
                index ? ", " : "",
                h("a", { href: incidentHref(asText(one.run_id), id) }, `incident ${index + 2}`),
              ),
            ),
      ],
    ]),
  );
}

export function interruptionEntry(page, one) {
  const id = asText(one.id) || asText(one.incident_id);
  const open = page.opened.has(id);
  const run = asText(one.run_name) || asText(one.run_id);
  const who = whoWords(one);
  return h(
    "article",
    {
      class: `interruption${one.counted === false ? " aside" : ""}${one.open ? " open" : ""}`,
      data: { interruption: id },
    },
    h(
      "div",
      { class: "interruption-row" },
      h(
        "button",
        {
          type: "button",
          class: "fold",
          "aria-expanded": String(open),
          "aria-label": `Evidence of the interruption of ${run}, ${moment(one.since)}`,
          data: { focus: `fold ${id}` },
          on: { click: () => (page.opened[open ? "delete" : "add"](id), page.draw()) },
        },
        h("span", { class: "icon icon-fold" }),
      ),
      h("time", { title: ago(page.now() - one.since) }, moment(asFinite(one.since))),
      h(
        "div",
        { class: "interruption-run" },
        one.deleted
          ? h("span", {}, run)
          : h("a", { href: `/runs/${encodeURIComponent(asText(one.run_id))}`, class: "run-link" }, run),
        h("div", { class: "sub" }, one.deleted ? "the run is deleted" : asText(one.project) || "no project"),
      ),
      categories(page, one),
      h(
        "div",
        { class: "interruption-who" },
        who.length ? who.map((words) => h("div", {}, words)) : h("span", { class: "sub" }, "nobody stands out"),
      ),
      h(
        "div",
        { class: "num strong interruption-lost" },
        duration(asFinite(one.time_lost_s)),
        one.open
          ? h("div", { class: "chip critical" }, "not back yet")
          : one.counted === false
            ? h("div", { class: "sub" }, one.category === "user_stop" ? "by hand, not counted" : "not counted")
            : null,
      ),
      h(
        "div",
        { class: "interruption-link" },
        one.incident_id && !one.deleted
          ? h("a", { href: incidentHref(asText(one.run_id), asText(one.incident_id)) }, "Incident")
          : null,
      ),
    ),
    open ? details(one) : null,
  );
}
