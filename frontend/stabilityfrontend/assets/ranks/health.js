// What agents say of their ranks and GPUs, as a page knows it: whole words first, then columns of what changed. Agents
// send what they like; here every field becomes what the rest of the page may trust.

/** Agents kept, those away longest go first; as many as the server keeps. */
const AGENTS = 4096;

const number = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);
const step = (value) => (Number.isSafeInteger(value) && value >= -1 ? value : null);
/** Unix seconds; later than the year 5138 is no time of a job. */
const moment = (value) => ((number(value) ?? 0) > 0 && value < 1e11 ? value : null);
const positive = (value) => ((number(value) ?? 0) > 0 ? value : null);
const text = (value) => (typeof value === "string" ? value : "");
const object = (value) => (value && typeof value === "object" && !Array.isArray(value) ? value : {});
const list = (value) => (Array.isArray(value) ? value : []);

/** A rank's entry with fields of the kinds that they should have; null where it names no rank. */
function rankOf(raw) {
  if (!raw || number(raw.rank) === null) return null;
  const proc = object(raw.proc);
  const gpu = object(raw.gpu);
  return {
    rank: raw.rank,
    source: text(raw.source),
    pid: number(raw.pid),
    alive: raw.alive !== false,
    state: text(raw.state) || "running",
    step: step(raw.step),
    step_start: moment(raw.step_start),
    phase: text(raw.phase),
    phase_start: moment(raw.phase_start),
    expect_s: positive(raw.expect_s) || 0,
    budget_s: positive(raw.budget_s),
    status: text(raw.status),
    dropped: number(raw.dropped) || 0,
    local_rank: number(raw.local_rank),
    gpu: number(gpu.index) === null ? null : { index: gpu.index, uuid: text(gpu.uuid) },
    can_dump: raw.can_dump === true,
    trouble: text(raw.trouble),
    cpu: number(proc.cpu),
    proc: text(proc.state).trim(),
    wchan: text(proc.wchan),
    beat_at: null,
  };
}

const ranksOf = (value) => list(value).filter((rank) => number(rank) !== null);
const blindOf = (state) =>
  list(object(state).blind)
    .map(object)
    .filter((one) => text(one.what))
    .map((one) => ({ what: one.what, why: text(one.why), do: text(one.do) }));

/** Readings of GPUs as the points that they stand for, of those metrics that `wanted(name)` lets through. */
export function withReadings(block, wanted) {
  if (!block.gpus) return block;
  const { fields, index, values } = object(block.gpus);
  const named = { ...block.values };
  list(index).forEach((gpu, row) =>
    list(fields).forEach((field, at) => {
      const name = `gpu/${gpu}/${field}`;
      const value = list(list(values)[row])[at];
      if (value !== null && value !== undefined && wanted(name)) named[name] = [value];
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
  }

  /** Everything anew: what `GET /runs/{id}/health` says. */
  fill(answer) {
    this.agents = new Map();
    this.known = true;
    this.waitsFor = ranksOf(answer.waits_for);
    for (const agent of list(answer.agents).map(object)) {
      this.whole(agent);
      for (const [index, fields] of Object.entries(object(agent.gpus)))
        Object.assign(this.gpu(text(agent.node), index), fields);
      this.noteRead(text(agent.node));
    }
  }

  whole(raw) {
    if (!raw || !text(raw.agent)) return;
    const spool = object(object(raw.agent_state).spool);
    this.agents.set(raw.agent, {
      agent: raw.agent,
      node: text(raw.node) || "?",
      time: moment(raw.time) || 0,
      connected: raw.connected !== false,
      gpuText: text(object(raw.gpu).text),
      gpuVisible: object(raw.gpu).visible === true,
      ranks: list(raw.ranks).map(rankOf),
      blind: blindOf(raw.agent_state),
      spool: { error: text(spool.error), dropped: number(spool.dropped) || 0 },
      clockStep: number(object(raw.agent_state).clock_step_s) || 0,
    });
    if (this.agents.size > AGENTS)
      this.agents.delete([...this.agents.values()].sort((a, b) => a.time - b.time)[0].agent);
  }

  /** A `health` message of the live feed (docs/api.md). */
  take(message) {
    for (const agent of list(message.whole)) this.whole(agent);
    this.waitsFor = ranksOf(message.waits_for);
    const base = number(message.base) || 0;
    const words = list(message.words).map(text);
    const at = (tenths) => (number(tenths) === null ? null : moment(base + tenths / 10));
    const word = (index) => words[index] || "";
    for (const news of list(message.news).map(object)) {
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
    const { fields, index, values } = object(block.gpus);
    list(index).forEach((gpu, row) => {
      const known = this.gpu(block.node, String(gpu));
      list(fields).forEach((field, at) => (known[field] = number(list(list(values)[row])[at])));
      any = true;
    });
    for (const [name, values] of Object.entries(block.values)) {
      const parts = /^gpu\/(\d+)\/(.+)$/.exec(name);
      if (!parts) continue;
      this.gpu(block.node, parts[1])[parts[2]] = number(values[values.length - 1]);
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
  ["step", (rank, value) => (rank.step = step(value))],
  ["start", (rank, value, at) => (rank.step_start = at(value))],
  ["since", (rank, value, at) => (rank.phase_start = at(value))],
  ["phase", (rank, value, _at, word) => (rank.phase = word(value))],
  ["cpu", (rank, value) => (rank.cpu = number(value) === null ? null : value / 100)],
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
