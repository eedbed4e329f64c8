// What became of an order: its stages in words, with the seconds each took.

import { asFinite, asList, asRecord, asText } from "./as_type.js";
import { h } from "./dom.js";
import { duration, formatCount, plural, sentence } from "./format.js";

const ENDED = new Set(["done", "rejected", "failed", "expired"]);
const BAD = new Set(["rejected", "failed", "expired"]);
/** Nodes that are listed one by one. */
const NODES = 64;
export const commandEnded = (command) => ENDED.has(command.state);
/** Whether a node has done what an order of agents asks for. */
export const commandLooked = (command) =>
  Object.values(asRecord(command.nodes)).some((word) => asRecord(word).state === "acted");
export const commandFailed = (command) => BAD.has(command.state);

const ORDER = ["pending", "delivered", "ready", "acted", "done"];

/** Time of the first (or, for ready and acted, the latest) entry of a state in this attempt. */
function timeOf(command, state) {
  const entries = (command.history || []).filter((entry) => entry.state === state);
  return entries.length ? entries[entries.length - 1].time : null;
}

function ranksAt(command, state) {
  const least = ORDER.indexOf(state);
  return Object.values(command.ranks || {}).filter((rank) => ORDER.indexOf(rank.state) >= least).length;
}

/** The stages of a command: `{key, label, done, active, failed, seconds}`. */
export function commandStages(command) {
  const size = command.world_size || Object.keys(command.ranks || {}).length || 1;
  const reached = ORDER.indexOf(command.state);
  const acted = Object.values(command.ranks || {}).find((rank) => rank.state === "acted" || rank.state === "done");
  const ready = Math.max(ranksAt(command, "ready"), reached >= 3 ? size : 0);
  const done = Math.max(ranksAt(command, "acted"), reached >= 4 ? size : 0);
  const boundary = acted && acted.step !== null && acted.step !== undefined ? acted.step : command.apply_at_step;
  const stages = [
    { key: "pending", label: "Requested", done: true },
    { key: "delivered", label: "Delivered to the node", done: reached >= 1 || ready > 0 },
    { key: "ready", label: `Ranks ready: ${ready} of ${size}`, done: ready >= size || reached >= 3 },
    {
      key: "acted",
      label: `Ranks acted: ${done} of ${size}${boundary === null || boundary === undefined || (ENDED.has(command.state) && !done) ? "" : `, at the boundary before step ${formatCount(boundary)}`}`,
      done: done >= size || reached >= 4,
    },
    {
      key: "done",
      label:
        command.first_step === null || command.first_step === undefined
          ? "First new point"
          : `First new point: step ${formatCount(command.first_step)}`,
      done: command.state === "done",
    },
  ];
  let active = !ENDED.has(command.state);
  let failed = BAD.has(command.state);
  for (const stage of stages) {
    const time = stage.done ? timeOf(command, stage.key) : null;
    stage.seconds = time === null || stage.key === "pending" ? null : Math.max(0, time - command.issued);
    stage.active = active && !stage.done;
    stage.failed = failed && !stage.done;
    if (stage.active) active = false;
    if (stage.failed) failed = false;
  }
  return stages;
}

/** Why a command came to nothing, in plain words. */
export function commandTrouble(command) {
  const details = Object.entries(command.ranks || {})
    .filter(([, rank]) => rank.detail && BAD.has(rank.state))
    .map(([rank, said]) => `Rank ${rank}: ${sentence(said.detail)}`);
  const last = [...(command.history || [])].reverse().find((entry) => BAD.has(entry.state) && entry.detail);
  const why = details.length ? details.join(" ") : last ? sentence(last.detail) : "";
  const acted = ranksAt(command, "acted");
  if (command.state === "rejected") return `The job refused. ${why}`.trim();
  if (command.state === "expired") return `No rank took it up in time, so it will not happen any more. ${why}`.trim();
  // Ranks that went back while others did not are no longer one job.
  if (acted)
    return `${plural(acted, "rank")} of ${command.world_size || "?"} went back, the others did not. ${why} Look at the job: its ranks may stand at different steps.`;
  return `Not carried out. ${why} Training goes on as before.`;
}

/** The stages as a list. */
export function commandList(command) {
  return h(
    "ol",
    { class: "stages" },
    commandStages(command).map((stage) =>
      h(
        "li",
        {
          class: `${stage.done ? "done" : ""}${stage.active ? " active" : ""}${stage.failed ? " failed" : ""}`,
          data: { stage: stage.key },
        },
        h("i", {}),
        h("span", {}, stage.label),
        h("span", { class: "grow" }),
        h("span", { class: "num" }, stage.seconds === null ? "" : `+${stage.seconds.toFixed(1)} s`),
      ),
    ),
  );
}

const NODE_STATES = {
  pending: "requested",
  delivered: "delivered",
  acted: "done",
  done: "done",
  failed: "failed",
  rejected: "refused",
};

/** What each node answered to an order that agents carry out, not ranks. */
export function nodeList(command) {
  const nodes = Object.entries(asRecord(command.nodes)).slice(0, NODES);
  const look = { acted: "done", done: "done", failed: "failed", rejected: "failed" };
  return h(
    "ol",
    { class: "stages" },
    h("li", { class: "done" }, h("i", {}), h("span", {}, "Requested")),
    nodes.map(([node, word]) => {
      const { state, time, detail } = asRecord(word);
      return h(
        "li",
        { class: look[state] || "active" },
        h("i", {}),
        h("span", {}, `${node}: ${asText(detail) || NODE_STATES[state] || asText(state)}`),
        h("span", { class: "grow" }),
        h(
          "span",
          { class: "num" },
          asFinite(time) === null ? "" : `+${Math.max(0, time - command.issued).toFixed(1)} s`,
        ),
      );
    }),
  );
}

/** One line about a command that agents carry out. */
function agentLine(command) {
  const restart = command.kind === "restart";
  const task = command.kind === "task" ? asText(command.task) : "";
  const nodes = Object.entries(asRecord(command.nodes)).map(([node, word]) => [node, asRecord(word)]);
  const acted = nodes.filter(([, word]) => word.state === "acted").length;
  const refused = nodes
    .filter(([, word]) => word.state === "failed")
    .slice(0, 4)
    .map(([node, word]) => ` ${node}: ${sentence(asText(word.detail) || "it did not work")}`)
    .join("");
  const answered = `${acted} of ${plural(command.world_size || nodes.length || 1, "node")}`;
  if (BAD.has(command.state)) {
    const last = [...asList(command.history)].reverse().find((entry) => asRecord(entry).detail);
    return `${restart ? "Restart" : task ? `Task ${task}` : "Stacks"}: ${refused.trim() || sentence(last ? asText(last.detail) : "nobody answered in time")}`;
  }
  if (task) return `Task ${task}: ${command.state === "done" ? "done" : "under way"} on ${answered}.${refused}`;
  if (!restart)
    return command.state === "done"
      ? `Stacks collected on ${answered}.${refused}`
      : `Stacks are being collected: ${answered}.${refused}`;
  if (command.state === "done")
    return `The job runs again${asFinite(command.first_step) === null ? "" : `, from step ${formatCount(command.first_step)}`}.${refused}`;
  if (command.state === "acted")
    return `The job's processes are ended on ${answered}. Waiting for its launcher to start it again.${refused}`;
  return `The job is being ended: ${answered}.${refused}`;
}

/** One line about a command, for the strip under the header. */
export function commandLine(command) {
  if (command.kind !== "rollback") return agentLine(command);
  const what = `Rollback to step ${formatCount(command.to_step)}`;
  if (command.state === "done") {
    const end = timeOf(command, "done");
    return `${what} done${end === null ? "" : ` in ${duration(end - command.issued)}`}: training goes on from step ${formatCount(command.first_step)}.`;
  }
  if (BAD.has(command.state)) return `${what}: ${commandTrouble(command)}`;
  const active = commandStages(command).find((stage) => stage.active);
  return `${what} under way${command.attempt > 1 ? ` (attempt ${command.attempt} of 3)` : ""}. Waiting for: ${active ? active.label.charAt(0).toLowerCase() + active.label.slice(1) : "the end"}.`;
}
