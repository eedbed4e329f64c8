// The facts behind an incident as lists and tables: what the timeline was, how a process ended, what the GPU said, where each
// rank stood when it was looked at.

import { asFinite, asRecord, asText, toldStep } from "../core/as_type.js";
import { h, tableHead, whenTitle } from "../core/dom.js";
import { capital, clock, duration, formatCount, plural, readable } from "../core/format.js";
import { appearanceOf, incidentKind, severityOf } from "../core/kinds.js";
import { processWords, rankRanges, ranksOf } from "../ranks/rank_words.js";
import { median } from "../run/kpis.js";
import { stackedRanks, stackGroups } from "./stacks.js";
import { cameBack, sinceOf, verdictOf } from "./verdict.js";

/** Ranks with a row of their own before the rest is one row per place. */
const OWN_ROWS = 16;
/** Rows of a table that shows every rank. */
const ALL_ROWS = 4096;

/** How an agent knows of a death (docs/wire.md). */
export const HOWS = {
  pidfd: "the kernel's notice of its end (pidfd)",
  zombie: "its exit status, read from the process",
  "kernel log": "the kernel log",
  slot: "its slot: there was no clean exit",
  none: "nothing but its absence",
};

const COMMANDS = {
  checkpoint_now: "Checkpoint",
  dump_stacks: "Stacks",
  restart: "Restart",
  rollback: "Rollback",
  show_batches: "Batches",
  stop: "Stop",
  task: "Task",
};

/** A list of facts; entries without a value are left out. */
export function factList(entries) {
  const shown = entries.filter(
    ([, value]) => value !== null && value !== undefined && value !== "" && !(Array.isArray(value) && !value.length),
  );
  return shown.length
    ? h(
        "dl.fact-list",
        shown.map(([name, value, title]) => h("div", h("dt", name), h("dd", { title: title || null }, value))),
      )
    : null;
}

// -- timeline ---------------------------------------------------------------------------------------------------

/** What happened when: `{time, words, tone}` in order; `time` null where only the fact is known. */
export function timelineOf(incident, dump, commands) {
  const verdict = verdictOf(incident);
  const since = sinceOf(incident);
  const entries = [];
  const add = (time, words, tone) => entries.push({ time: asFinite(time), words, tone: tone || "" });
  const step = toldStep(incident.onset_step);
  const kind = incidentKind(incident.kind);
  if (verdict && verdict.since)
    add(verdict.since, `${kind.since}${step === null ? "" : `, step ${formatCount(step)}`}`);
  else if (since !== null && since < incident.opened) add(since, kind.since);
  // Nobody judges before anything is seen: the verdict's time is made of two clocks, to a tenth.
  add(incident.opened, verdict && kind.blame === "suspect" ? "Suspected" : "Detected", severityOf(incident));
  if (dump && dump.time) add(dump.time, `Stacks of ${plural(stackedRanks(dump), "rank")} taken`);
  if (verdict && verdict.since && verdict.decidedAfter !== null)
    add(
      Math.max(verdict.since + verdict.decidedAfter, asFinite(incident.opened) || 0),
      `Verdict: ${verdict.label || "known"}${verdict.confidence ? `, ${verdict.confidence} confidence` : ""}`,
    );
  for (const command of commands) {
    if (!(command.issued >= (since || 0) - 60)) continue;
    const who = asText(command.issuer);
    // The server's own order is told by what it brought.
    if (
      command.kind === "dump_stacks" &&
      dump &&
      (command.command_id === dump.request || (verdict && command.command_id === verdict.dump))
    )
      continue;
    add(
      command.issued,
      `${COMMANDS[command.kind] || readable(command.kind)} requested${who ? ` by ${who}` : ""}`,
      command.progress.failed ? "critical" : "",
    );
  }
  if (incident.acknowledged_by) add(incident.acknowledged, `Acknowledged by ${asText(incident.acknowledged_by)}`);
  if (incident.resolved) add(incident.resolved, capital(appearanceOf(incident).word), cameBack(incident) ? "good" : "");
  return entries.sort((a, b) => (a.time === null ? Infinity : a.time) - (b.time === null ? Infinity : b.time));
}

/** The timeline as a list: clock, how long after the first entry, what. */
export function timelineList(entries, untimed = false) {
  const first = entries.find((entry) => entry.time !== null);
  return h(
    "ol.timeline",
    entries.map((entry) =>
      h(
        "li",
        { class: entry.tone },
        untimed ? null : h("time", { title: whenTitle(entry.time) }, entry.time === null ? "–" : clock(entry.time)),
        h("span", entry.words),
        h(
          "span.sub.num",
          !untimed && first && entry.time !== null && entry.time > first.time
            ? `+${duration(entry.time - first.time)}`
            : "",
        ),
      ),
    ),
  );
}

// -- death and GPU ------------------------------------------------------------------------------------------------

export const LISTED = 12;

// -- ranks --------------------------------------------------------------------------------------------------------

/** Where each rank stood: of the dump; else what the incident says; else what agents say now. */
export function rankFacts(incident, dump, agents) {
  const rows = new Map();
  const told = asRecord(asRecord(incident.evidence).ranks);
  for (const [rank, facts] of Object.entries(told)) {
    const { step, phase, stood_s: stood, node } = asRecord(facts);
    rows.set(Number(rank), {
      step: asFinite(step),
      phase: asText(phase),
      seconds: asFinite(stood),
      node: asText(node),
      state: "",
      cpu: null,
      place: "",
      missing: "",
    });
  }
  const places = new Map();
  for (const group of stackGroups(dump || {}))
    for (const rank of ranksOf(group.ranks)) places.set(rank, asText(group.what));
  for (const [rank, found] of Object.entries(asRecord(dump && dump.ranks))) {
    const facts = asRecord(found);
    const slot = asRecord(facts.slot);
    const proc = asRecord(facts.proc);
    const known = rows.get(Number(rank)) || {};
    const begin = asFinite(slot.phase ? slot.phase_start : slot.step_start);
    rows.set(Number(rank), {
      step: asFinite(slot.step) === null ? (known.step ?? null) : slot.step,
      phase: asText(slot.phase) || known.phase || "",
      seconds: begin && dump.time ? Math.max(0, dump.time - begin) : (known.seconds ?? null),
      node: asText(facts.node) || known.node || "",
      state: asText(proc.state),
      cpu: asFinite(proc.cpu),
      place: places.get(Number(rank)) || "",
      missing: asText(facts.missing),
    });
  }
  if (!rows.size)
    for (const agent of agents)
      for (const slot of Array.isArray(agent.ranks) ? agent.ranks.map(asRecord) : []) {
        const proc = asRecord(slot.proc);
        const begin = asFinite(slot.phase ? slot.phase_start : slot.step_start);
        rows.set(Number(slot.rank), {
          step: asFinite(slot.step),
          phase: asText(slot.phase),
          seconds: begin && agent.time ? Math.max(0, agent.time - begin) : null,
          node: asText(agent.node),
          state: slot.alive === false ? "X" : asText(proc.state),
          cpu: asFinite(proc.cpu),
          place: "",
          missing: asText(slot.trouble),
        });
      }
  return new Map([...rows].filter(([rank]) => Number.isInteger(rank)).sort((a, b) => a[0] - b[0]));
}

/** Ranks as rows: suspects one by one, the others one row per place where they stand. `all`: each its own row. */
export function rankTable(rows, suspects, all) {
  const guilty = new Set(suspects);
  const own = [];
  const places = new Map();
  for (const [rank, row] of rows) {
    const alone = all ? own.length < ALL_ROWS : guilty.has(rank) && own.length < OWN_ROWS;
    if (alone || rows.size <= 8) own.push({ ranks: [rank], ...row });
    else {
      const key = JSON.stringify([row.step, row.phase, row.state, row.place]);
      if (!places.has(key)) places.set(key, { ...row, ranks: [], nodes: new Set(), seconds: row.seconds, cpus: [] });
      const place = places.get(key);
      place.ranks.push(rank);
      place.nodes.add(row.node);
      place.seconds = Math.max(place.seconds ?? 0, row.seconds ?? 0);
      if (row.cpu !== null) place.cpus.push(row.cpu);
    }
  }
  const grouped = [...places.values()].map((place) => ({
    ...place,
    cpu: median(place.cpus),
    node: place.nodes.size > 1 ? plural(place.nodes.size, "node") : [...place.nodes][0] || "",
  }));
  const lines = [
    ...own.sort((a, b) => Number(guilty.has(b.ranks[0])) - Number(guilty.has(a.ranks[0])) || a.ranks[0] - b.ranks[0]),
    ...grouped.sort((a, b) => a.ranks.length - b.ranks.length),
  ];
  const head = ["Rank", "Step", "Phase", "For", "Process", "CPU", "Waits in", "Node"];
  return h(
    "table.table.dense.rank-table",
    tableHead(head, (word) => (["Step", "For", "CPU"].includes(word) ? "num" : "")),
    h(
      "tbody",
      lines.map((line) =>
        h(
          "tr",
          { class: line.ranks.some((rank) => guilty.has(rank)) ? "suspect" : "" },
          h(
            "td.strong",
            line.ranks.length === 1
              ? String(line.ranks[0])
              : `${plural(line.ranks.length, "rank")}: ${rankRanges(line.ranks, 3)}`,
          ),
          h("td.num", line.step !== null && line.step < 0 ? "none yet" : formatCount(line.step)),
          h("td", line.phase || "–"),
          h("td.num", line.seconds === null ? "–" : duration(line.seconds)),
          h(
            "td",
            { title: line.missing || null },
            (line.state && processWords(line.state)) || (line.missing ? "not seen" : "–"),
          ),
          h("td.num", line.cpu === null || line.cpu === undefined ? "–" : `${Math.round(100 * line.cpu)} %`),
          h("td", line.place || "–"),
          h("td", line.node || "–"),
        ),
      ),
    ),
  );
}
