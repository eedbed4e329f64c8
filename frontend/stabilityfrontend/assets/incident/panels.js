// The panels of an incident's page below its verdict: each is drawn anew only where what it shows has changed.

import { asFinite, asList, asRecord, asText, asWholeText, toldStep } from "../core/as_type.js";
import { byId, h, isUntimed, setShown, setText, tableHead, whenTitle } from "../core/dom.js";
import { clock, formatCount, moment, plural, readable, sentence } from "../core/format.js";
import { gpuTable, incidentKind } from "../core/kinds.js";
import { incidentHref } from "../core/route.js";
import { rankWords } from "../ranks/rank_words.js";
import { answerNote, batchParts } from "./batches.js";
import { evidence } from "./evidence.js";
import { factList, HOWS, LISTED, rankFacts, rankTable, timelineList, timelineOf } from "./facts.js";
import { advice, keyed, wide } from "./parts.js";
import { collectivesTable, stackedRanks, stackGroups, stackParts } from "./stacks.js";
import { verdictOf } from "./verdict.js";

// -- How processes ended: exit codes, signals, exceptions, and the evidence of a kill for memory.

/** Deaths of one incident that are described. */
const DEATHS = 8;

function nested(record) {
  return Object.entries(asRecord(record))
    .slice(0, LISTED)
    .map(([name, value]) => `${readable(name)} ${asText(value) || JSON.stringify(value)}`)
    .join(" · ");
}

/** An exception in its own lines: those of a DataLoader quote a traceback. */
function exceptionPart(exception) {
  const text = [asText(exception.type), asWholeText(exception.message || exception.text).trim()]
    .filter(Boolean)
    .join(": ");
  return text.includes("\n") ? h("span.lines", text) : text;
}

/** An exception's traceback as Python prints it, "" where it has none. */
function traceback(exception) {
  const frames = asWholeText(exception.traceback).trimEnd();
  const said = [asText(exception.type), asWholeText(exception.message)].filter(Boolean).join(": ");
  return frames && ["Traceback (most recent call last):", frames, said].filter(Boolean).join("\n");
}

/** One death: `{node, rank, ...}` as the agent told it, or the whole evidence of an older server. */
function deathPart(found, several, told, explained) {
  const death = { ...asRecord(found.evidence), ...found };
  const exception = asRecord(death.exception);
  const signal = [asText(death.signal_name), asText(death.signal) ? `(${asText(death.signal)})` : ""]
    .filter(Boolean)
    .join(" ");
  const facts = factList([
    [
      "Process",
      [
        asText(death.rank) && several ? `rank ${asText(death.rank)}` : "",
        asText(death.pid) ? `pid ${asText(death.pid)}` : "",
        asText(death.node),
      ]
        .filter(Boolean)
        .join(" · "),
    ],
    [
      "When",
      asFinite(death.time) === null
        ? ""
        : `${moment(death.time)}${toldStep(death.step) === null ? "" : `, step ${formatCount(death.step)}`}`,
    ],
    ["Signal", signal],
    ["Exit code", asText(death.exit_code)],
    [
      "Out of memory",
      asText(asRecord(death.oom).line)
        ? h(
            "span",
            asText(death.oom.line),
            asText(death.oom.source) ? h("span.sub", ` (${asText(death.oom.source)})`) : null,
          )
        : nested(death.oom),
    ],
    ["Exception", exceptionPart(exception)],
    ["Meaning", asText(explained.name) && `${asText(explained.name)}: ${asText(explained.means)}`],
    ["Usual cause", asText(explained.cause) && sentence(asText(explained.cause))],
    ["Last phase", asText(death.last_phase)],
    ["What was seen", told.includes(asText(death.text)) ? "" : asText(death.text)],
    ["Known by", HOWS[death.how] || readable(asText(death.how))],
  ]);
  const fatal = asWholeText(death.fatal) || traceback(exception);
  return [
    facts,
    fatal
      ? h(
          "details.fatal",
          { open: fatal.length < 4000 },
          h("summary", "Output of the crash"),
          h("pre.stack-text", { tabindex: "0", "aria-label": "Trace of the fatal error" }, culpritFirst(fatal)),
        )
      : null,
  ];
}

/** The thread that ended the process before the others: faulthandler writes it last. */
function culpritFirst(text) {
  const parts = text.split(/\n{2,}/);
  const at = parts.findIndex((part) => /^Current thread /.test(part));
  if (at > 1) parts.splice(1, 0, ...parts.splice(at, 1));
  return parts.join("\n\n");
}

/** How processes ended; null for incidents that are not of a death. */
function deathParts(incident) {
  if (incident.kind !== "process_death") return null;
  const evidence = asRecord(incident.evidence);
  const deaths = asList(evidence.deaths).map(asRecord);
  const shown = deaths.length ? deaths.slice(0, DEATHS) : [{ ...evidence, ...asRecord(evidence.death) }];
  const verdict = verdictOf(incident);
  const more = deaths.length - shown.length + (asFinite(evidence.not_described) || 0);
  return [
    shown.map((death, at) =>
      h(
        "div.death",
        deathPart(
          death,
          deaths.length > 1,
          verdict ? verdict.because : [],
          at === 0 ? asRecord(evidence.explained) : {}, // of the death that the others follow from
        ),
      ),
    ),
    more > 0 ? h("div.sub", `and ${formatCount(more)} deaths more`) : null,
  ];
}

// -- The GPUs that an incident names: what was seen of each, and what else is on record.

const gpuLine = (gpu, node) =>
  [
    asFinite(gpu.index) === null ? "" : `GPU ${gpu.index}`,
    asText(gpu.node) || asText(node),
    asText(gpu.name),
    rankWords(gpu.ranks),
  ]
    .filter(Boolean)
    .join(" · ");

/** What was seen of the GPUs, sign by sign, the first one first; of several it is said which one each is of. */
function signTable(signs, gpus) {
  const whose = (sign) => gpus.length > 1 && gpus.find((gpu) => asText(gpu.uuid) && gpu.uuid === sign.gpu);
  return h(
    "table.table.dense.signs",
    tableHead(["Seen", "Sign", "Times"], (word) => (word === "Times" ? "num" : "")),
    h(
      "tbody",
      signs.map((sign) =>
        h(
          "tr",
          h("td", { title: whenTitle(asFinite(sign.first)) }, asFinite(sign.first) === null ? "–" : clock(sign.first)),
          h(
            "td.words",
            whose(sign) && asFinite(whose(sign).index) !== null ? h("b", `GPU ${whose(sign).index} `) : null,
            asFinite(sign.xid) === null || /^Xid /.test(asText(sign.text)) ? null : h("b", `Xid ${sign.xid} `),
            asText(sign.text) || readable(asText(sign.what)),
            asText(sign.said) && asText(sign.said) !== asText(sign.text) && !/^Xid \d+$/.test(asText(sign.said))
              ? h("div.sub", `“${asText(sign.said)}”`)
              : null,
          ),
          h("td.num", sign.on === true ? "lasts" : formatCount(asFinite(sign.count) || 1)),
        ),
      ),
    ),
  );
}

/** What is remembered of a GPU, this incident's own faults left out. `known`: of `GET /gpus`. */
function historyOf(known, incident) {
  const faults = known.faults.filter((fault) => fault.incident_id !== incident.incident_id);
  const count = known.count - (known.faults.length - faults.length); // what is reported here does not repeat itself
  if (count <= 0) return null;
  const last = faults.length ? faults[0].time : known.last;
  return h(
    "div",
    h("b.bad", `${plural(count, "fault")} on record, ${plural(known.runs, "run")} in all, last ${moment(last)}`),
    faults
      .slice(0, 4)
      .map((fault) =>
        h(
          "div.sub",
          h("a", { href: incidentHref(fault.run_id, fault.incident_id) }, fault.title),
          ` · ${fault.run_name || fault.run_id}`,
        ),
      ),
  );
}

/** The GPUs that an incident is about: of a fault all that it struck, else the one that the verdict names. */
export function gpusOf(incident) {
  const evidence = asRecord(incident.evidence);
  const struck = asList(evidence.gpus).map(asRecord);
  const verdict = verdictOf(incident);
  if (struck.length) return struck;
  if (asText(asRecord(evidence.gpu).uuid) || incident.kind === "gpu_fault") return [asRecord(evidence.gpu)];
  return verdict ? verdict.gpus.filter((gpu) => gpu.uuid) : [];
}

/** What a GPU said, and whether it did so before. `known`: its entry of `GET /gpus`, null: none, undefined: not asked. */
function gpuParts(incident, known) {
  const evidence = asRecord(incident.evidence);
  const gpus = gpusOf(incident);
  const fault = incident.kind === "gpu_fault";
  const history = known ? historyOf(known, incident) : null;
  if (!gpus.length || (!fault && !history)) return null;
  const [gpu] = gpus;
  const signs = asList(evidence.signs).map(asRecord);
  const action = (value) =>
    value === "RESTART_BM" ? "restart the machine (bare metal)" : readable(asText(value).toLowerCase());
  return [
    factList([
      [
        gpus.length > 1 ? "GPUs" : "GPU",
        gpus.length > 1
          ? gpus.slice(0, 16).map((one) => h("div", gpuLine(one, incident.node)))
          : gpuLine(gpu, incident.node),
      ],
      ["UUID", gpus.length === 1 && asText(gpu.uuid) ? h("code", asText(gpu.uuid)) : ""],
      ["Bus", gpus.length === 1 && asText(gpu.bus_id) ? h("code", asText(gpu.bus_id)) : ""],
      [
        "Class",
        asText(evidence.class)
          ? h(
              "span",
              h("b", asText(evidence.class)),
              gpuTable.classes[evidence.class] ? `: ${gpuTable.classes[evidence.class]}` : "",
            )
          : "",
      ],
      ["The driver asks", asText(evidence.driver_asks), "NVML's own recovery action for this GPU"],
      [
        "NVIDIA's catalog",
        action(evidence.nvidia_action),
        "What NVIDIA's catalog of Xids tells to do about the first one",
      ],
      ["Before", history || (fault && known !== undefined ? "nothing else is on record of this GPU" : "")],
    ]),
    signs.length ? signTable(signs, gpus) : null,
    asText(evidence.source) && fault ? h("p.source.sub", `Source: ${asText(evidence.source)}.`) : null,
  ];
}

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
