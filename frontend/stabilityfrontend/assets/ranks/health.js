// What agents say of their ranks and GPUs, as a page knows it: whole reports first, then columns of what changed. The
// server takes nothing else than its types (`RankHealth`); a field that it does not know is absent.

/** Agents kept, those away longest go first; as many as the server keeps. */
const AGENTS = 4096;

/** Unix seconds; later than the year 5138 is no time of a job. */
const moment = (value) => (value > 0 && value < 1e11 ? value : null);
const positive = (value) => (value > 0 ? value : null);

/** A rank's entry, null where it names no rank. */
function rankOf(raw) {
  if ((raw.rank ?? null) === null) return null;
  const proc = raw.proc || {};
  return {
    rank: raw.rank,
    source: raw.source,
    pid: raw.pid ?? null,
    alive: raw.alive !== false,
    state: raw.state || "running",
    step: raw.step ?? null,
    step_start: moment(raw.step_start),
    phase: raw.phase || "",
    phase_start: moment(raw.phase_start),
    expect_s: positive(raw.expect_s) || 0,
    budget_s: positive(raw.budget_s),
    status: raw.status || "",
    dropped: raw.dropped || 0,
    gpu: (raw.gpu?.index ?? null) === null ? null : { index: raw.gpu.index, uuid: raw.gpu.uuid || "" },
    trouble: raw.trouble || "",
    cpu: proc.cpu ?? null,
    proc: (proc.state || "").trim(),
    wchan: proc.wchan || "",
    beat_at: null,
  };
}

/** Readings of GPUs as the points that they stand for, of those metrics that `wanted(name)` lets through. */
export function withReadings(block, wanted) {
  if (!block.gpus) return block;
  const { fields, index, values } = block.gpus;
  const named = { ...block.values };
  index.forEach((gpu, row) =>
    fields.forEach((field, at) => {
      const name = `gpu/${gpu}/${field}`;
      if (values[row][at] !== null && wanted(name)) named[name] = [values[row][at]];
    }),
  );
  return { ...block, values: named };
}

export class Health {
  constructor() {
    this.agents = new Map();
    /** Newest readings: node -> GPU's index -> {field: value}. */
    this.gpus = new Map();
    /** How often something was read on a node: who made something of its readings sees whether it still holds. */
    this.reads = new Map();
    /** Ranks of open verdicts for which the others wait. */
    this.waitsFor = [];
    this.order = [];
    /** Whether the server has told all that there is. */
    this.known = false;
    /** Whether somebody follows the run's log, from outside. */
    this.followed = false;
  }

  /** Everything anew: what `GET /runs/{id}/health` says. */
  fill(answer) {
    this.agents = new Map();
    this.known = true;
    this.followed = false;
    this.waitsFor = answer.waits_for;
    for (const agent of answer.agents) {
      this.whole(agent);
      for (const [index, fields] of Object.entries(agent.gpus)) Object.assign(this.gpu(agent.node, index), fields);
      this.noteRead(agent.node);
    }
  }

  whole(raw) {
    const { blind, log, spool, clock_step_s } = raw.agent_state;
    if (log) {
      this.followed = true;
      return; // it is no agent: it sees neither ranks nor GPUs
    }
    this.agents.set(raw.agent, {
      agent: raw.agent,
      node: raw.node || "?",
      time: moment(raw.time) || 0,
      connected: raw.connected,
      gpuText: raw.gpu.text,
      gpuVisible: raw.gpu.visible,
      ranks: raw.ranks.map(rankOf),
      blind: (blind || []).map(({ what, why, do: todo }) => ({ what, why: why || "", do: todo || "" })),
      spool: { error: spool?.error || "", dropped: spool?.dropped || 0 },
      clockStep: clock_step_s || 0,
    });
    if (this.agents.size > AGENTS)
      this.agents.delete([...this.agents.values()].sort((a, b) => a.time - b.time)[0].agent);
  }

  /** A `health` message of the live feed (docs/api.md). */
  take(message) {
    for (const agent of message.whole) this.whole(agent);
    this.waitsFor = message.waits_for;
    const { base, words } = message;
    const at = (tenths) => ((tenths ?? null) === null ? null : moment(base + tenths / 10));
    const word = (index) => words[index] || "";
    for (const news of message.news) {
      const agent = this.agents.get(news.agent);
      if (!agent) continue;
      agent.time = at(news.time) ?? agent.time;
      for (const [name, set] of COLUMNS) column(agent, news[name], set, at, word);
      if (typeof news.proc === "string") column(agent, [...news.proc], setProc);
    }
  }

  /** Points that no rank logged: `gpu/<index>/<field>` of a node. */
  points(block) {
    if (block.rank !== null && block.rank !== undefined) return false;
    let any = false;
    const { fields, index, values } = block.gpus || { fields: [], index: [], values: [] };
    index.forEach((gpu, row) => {
      const known = this.gpu(block.node, String(gpu));
      fields.forEach((field, at) => (known[field] = values[row][at]));
      any = true;
    });
    for (const [name, values] of Object.entries(block.values)) {
      const parts = /^gpu\/(\d+)\/(.+)$/.exec(name);
      if (!parts) continue;
      this.gpu(block.node, parts[1])[parts[2]] = values[values.length - 1];
      any = true;
    }
    if (any) this.noteRead(block.node);
    return any;
  }

  noteRead(node) {
    this.reads.set(node, (this.reads.get(node) || 0) + 1);
  }

  gpu(node, index) {
    if (!this.gpus.has(node)) this.gpus.set(node, new Map());
    const gpus = this.gpus.get(node);
    if (!gpus.has(index)) gpus.set(index, {});
    return gpus.get(index);
  }

  /** The newest agent of each node, by the node's name as people count. */
  nodes() {
    const nodes = new Map();
    for (const agent of this.agents.values()) {
      const known = nodes.get(agent.node);
      if (
        !known ||
        (agent.connected && !known.connected) ||
        (agent.connected === known.connected && agent.time >= known.time)
      )
        nodes.set(agent.node, agent);
    }
    // Sorting as people count costs more than all the rest: only where a node came or went.
    if (nodes.size !== this.order.length || this.order.some((node) => !nodes.has(node)))
      this.order = [...nodes.keys()].sort(collator.compare);
    return this.order.map((node) => nodes.get(node));
  }
}

const collator = new Intl.Collator("en", { numeric: true });

/**
 * Columns of a News: what each sets of a rank. `at` makes a time of tenths, `word` a word of its number.
 *
 * @type {[string, Function][]}
 */
const COLUMNS = [
  ["step", (rank, value) => (rank.step = value)],
  ["start", (rank, value, at) => (rank.step_start = at(value))],
  ["since", (rank, value, at) => (rank.phase_start = at(value))],
  ["phase", (rank, value, _at, word) => (rank.phase = word(value))],
  ["cpu", (rank, value) => (rank.cpu = value === null ? null : value / 100)],
  ["wchan", (rank, value, _at, word) => (rank.wchan = word(value))],
  ["beat", (rank, value, at) => (rank.beat_at = at(value))],
  ["budget", (rank, value) => (rank.budget_s = positive(value))],
  ["status", (rank, value, _at, word) => (rank.status = word(value))],
];
// Not `trim`: Dash brings one of its own that is slow, and there are thousands of these a second.
const setProc = (rank, value) => (rank.proc = value === " " ? "" : value);

/** One value for all ranks of an agent, or one each; a column of another length is of other ranks: left alone. */
function column(agent, values, set, at, word) {
  if (values === undefined) return;
  const { ranks } = agent;
  const each = Array.isArray(values);
  if (each && values.length !== ranks.length) return;
  for (let index = 0; index < ranks.length; index += 1)
    if (ranks[index]) set(ranks[index], each ? values[index] : values, at, word);
}
