// The panels of an incident's page below its verdict: each is drawn anew only where what it shows has changed.

import { asList, asRecord, asText } from "../core/as_type.js";
import { byId, h, setShown, setText } from "../core/dom.js";
import { clock, formatCount, plural, sentence } from "../core/format.js";
import { incidentKind } from "../core/kinds.js";
import { isUntimed } from "../core/when.js";
import { answerNote, batchParts } from "./batch_table.js";
import { deathParts } from "./deaths.js";
import { evidence } from "./evidence.js";
import { rankFacts, rankTable, timelineList, timelineOf } from "./facts.js";
import { gpuParts } from "./gpus.js";
import { advice, keyed, wide } from "./parts.js";
import { collectivesTable, stackedRanks, stackGroups, stackParts } from "./stacks.js";
import { verdictOf } from "./verdict.js";

/** Issuer of the server's own orders. */
const OURSELVES = "stabilityboard";
const GONE = "What was answered is no longer kept: a run keeps the newest 8 answers.";

/** Draw into a panel's body and show the panel, or hide it where there is nothing. Garbage in one region leaves the others. */
function panel(id, key, build) {
  const place = byId(id);
  if (!place) return;
  keyed(place, key, () => {
    let parts = /** @type {any} */ (null);
    try {
      parts = build();
    } catch (error) {
      console.debug(error);
      parts = [h("div.nothing", `This part can't be shown: ${error.message}`)];
    }
    const shown = [parts].flat(3).filter((part) => part !== null && part !== undefined && part !== false);
    setShown(byId(`${id}-panel`), shown.length > 0);
    return shown;
  });
}

function stacks(page) {
  const asked = page.request();
  const dump = page.dump();
  if (!asked)
    return page.incident.kind === "hang" && page.incident.state === "open"
      ? h("div.nothing", "No stacks have been asked for yet.")
      : null;
  const command = page.commands.get(asked.request);
  // An order that is over brings nothing more: an agent that was killed in its middle must not keep people waiting.
  const over = Boolean(command) && command.progress[dump ? "ended" : "failed"];
  const waiting = page.awaited(asked) && !over && (!dump || dump.complete === false);
  const failed = command
    ? Object.entries(asRecord(command.nodes)).filter(([, word]) => asRecord(word).state === "failed")
    : [];
  return [
    waiting
      ? h(
          "div.collecting",
          { role: "status" },
          h("i.spinner"),
          dump
            ? `Collecting stacks … ${Object.keys(asRecord(dump.ranks)).length} of ${plural(page.worldSize(), "rank")} so far.`
            : "Collecting stacks …",
        )
      : null,
    dump ? stackParts(dump) : waiting ? null : h("div.nothing", "No stacks have arrived: no agent answered in time."),
    failed.map(([node, word]) =>
      h("div.nothing.bad", `${node}: ${sentence(asText(word.detail) || "the agent could not collect them")}`),
    ),
  ];
}

function batches(page) {
  const { kept, incident } = page;
  const order = kept.order();
  if (!order) return null;
  const answer = kept.answered(order.command_id);
  if (!order.progress.ended) return h("div.collecting", { role: "status" }, h("i.spinner"), order.progress.line);
  if (!answer) return h("div.nothing", order.progress.failed ? order.progress.line : GONE);
  return batchParts(answer, incident, kept.all, () => ((kept.all = !kept.all), page.draw()));
}

function drawBatches(page) {
  const { kept } = page;
  const order = kept.order();
  const answer = order && kept.answered(order.command_id);
  keyed(byId("batches-choose"), [kept.orders().map((one) => one.command_id), order && order.command_id], () =>
    chooseOne(
      kept
        .orders()
        .map((one) => [one.command_id, `${clock(one.issued)}${one.issuer === OURSELVES ? " · when found" : ""}`]),
      order && order.command_id,
      "Which answer",
      (request) => kept.choose(request),
    ),
  );
  panel(
    "incident-batches",
    [
      order && [order.command_id, order.progress],
      answer && [answer.ranks.length, answer.samples?.length],
      kept.all,
      page.incident.until_step,
    ],
    () => batches(page),
  );
  setText(byId("batches-note"), answer ? answerNote(answer, order) : "");
}

/** A list of `[value, words]` to choose from, where there are several. */
function chooseOne(list, chosen, label, pick) {
  if (list.length < 2) return [];
  return [
    h(
      "select.choice-list",
      { "aria-label": label, onchange: (event) => pick(event.target.value) },
      list.map(([value, words]) => h("option", { value, selected: value === chosen }, words)),
    ),
  ];
}

function chooseDump(page) {
  const list = page.requests();
  const asked = page.request();
  const verdict = verdictOf(page.incident);
  keyed(byId("stacks-choose"), [list, asked && asked.request], () => {
    return chooseOne(
      list.map((one) => [
        one.request,
        `${clock(one.issued)}${verdict && one.request === verdict.dump ? " · of the verdict" : ""}`,
      ]),
      asked && asked.request,
      "Which stacks",
      (request) => ((page.chosen = request), page.fetchDump(), page.draw()),
    );
  });
}

/** Everything below the verdict. */
export function drawIncidentParts(page) {
  const { incident } = page;
  const dump = page.dump();
  const asked = page.request();
  const commands = [...page.commands.values()];
  const verdict = verdictOf(incident);
  const process = incidentKind(incident.kind).of_machine;
  panel("incident-advice", [incident.suggestion], () => advice(page));
  drawBatches(page);
  panel("incident-death", [incident.version, incident.kind], () => deathParts(incident));
  panel("incident-gpu", [incident.version, page.gpu], () => gpuParts(incident, page.gpu));
  chooseDump(page);
  // The dump itself is not compared: it is another object when it was fetched anew.
  panel(
    "incident-stacks",
    [
      asked && asked.request,
      dump && [dump.time, dump.complete, Object.keys(asRecord(dump.ranks)).length, asList(dump.groups).length],
      asked && page.awaited(asked),
      asked && page.commands.get(asked.request)?.nodes,
      asked && page.commands.get(asked.request)?.state,
    ],
    () => stacks(page),
  );
  setText(
    byId("stacks-note"),
    dump
      ? `${plural(stackedRanks(dump), "rank")} in ${plural(stackGroups(dump).length, "group")}, ${clock(dump.time)}`
      : "",
  );
  panel("incident-collectives", [asked && asked.request, dump && dump.collectives], () =>
    dump ? wide(collectivesTable(dump)) : null,
  );
  const suspects = verdict
    ? verdict.culprits
    : incident.rank === null || incident.rank === undefined
      ? []
      : [incident.rank];
  panel(
    "incident-ranks",
    [
      incident.version,
      page.allRanks,
      asked && asked.request,
      dump && [dump.time, dump.complete, Object.keys(asRecord(dump.ranks)).length],
      process && !dump && page.agents.length,
    ],
    () => ranks(page, suspects, process),
  );
  panel("incident-evidence", [incident.version, [...page.evidenceFolds]], () =>
    process && !asRecord(incident.evidence).window ? null : evidence(page, { ...incident, suggestion: null }, true),
  );
  panel("incident-timeline", [incident, dump && dump.time, commands.map((one) => [one.command_id, one.state])], () =>
    timelineList(timelineOf(incident, dump, commands), isUntimed(page.run)),
  );
}

function ranks(page, suspects, process) {
  const dump = page.dump();
  if (!process) return null;
  const rows = rankFacts(page.incident, dump, page.agents);
  if (!rows.size) return null;
  setText(byId("incident-ranks-note"), dump && dump.time ? `as they were at ${clock(dump.time)}` : "");
  const more =
    rows.size > 8
      ? h(
          "button.toggle",
          {
            "aria-pressed": String(Boolean(page.allRanks)),
            onclick: () => ((page.allRanks = !page.allRanks), page.draw()),
          },
          page.allRanks ? "Grouped" : `All ${formatCount(rows.size)} ranks`,
        )
      : null;
  return [wide(rankTable(rows, suspects, page.allRanks)), more ? h("div.group-foot", more) : null];
}
