// What each rank does, in one word: running, standing past its budget, waiting for whoever stands, gone. Worst first.
(function () {
  "use strict";
  const S = (window.stability = window.stability || {});
  /** An agent speaks once a second; not heard for so long is news, seconds. */
  const SILENT_S = 10;
  /** A rank that stands where others stand too is only told apart from them when it stands for so long, seconds. */
  const STANDS_S = 5;
  /** Ranks are looked at once a second, not in one moment: so much may lie between two looks, seconds. */
  const LOOKS_S = 1.5;
  /** Order of the usual phases in a step: who is furthest back is whom the others wait for (liveness/rank_watch.py). */
  const ORDER = ["data", "forward", "backward", "optimizer"];
  /** Kinds of incidents whose verdict says for whom the others wait. */
  const STOPS = new Set(["hang", "process_death"]);

  /** `[state, words of the legend, mark]`, worst first; colours are `rank-<state>` of theme.py. */
  S.RANK_STATES = [
    ["dead", "gone", "cross"],
    ["over", "stands past its budget", "bang"],
    ["unheard", "not heard", "hatch"],
    ["unread", "unreadable", "question"],
    ["behind", "behind", "down"],
    ["waits", "waits", "dash"],
    ["long", "long phase", "dots"],
    ["finished", "finished", "tick"],
    ["running", "runs", ""],
  ];
  const RANKING = new Map(S.RANK_STATES.map(([name], index) => [name, index]));
  const MARKS = new Map(S.RANK_STATES.map(([name, , mark]) => [name, mark]));

  /** The shape that stands for a state. */
  S.rankMark = (state) => MARKS.get(state) || "";

  /** Which entry of a rank counts where several processes had it: one that lives, then the later start. */
  function newer(one, other) {
    if (one.slot.alive !== other.slot.alive) return one.slot.alive;
    return startOf(one.slot.source) >= startOf(other.slot.source);
  }
  const startOf = (source) => parseInt(source.split("-")[1], 16) || 0;

  function stateOf(row) {
    const { slot, agent } = row;
    if (slot.state === "finished") return "finished";
    if (!slot.alive || slot.state === "exception" || slot.state === "left") return "dead";
    if (!agent.connected || row.heardS > SILENT_S) return "unheard";
    if (slot.trouble) return "unread";
    if (row.stoodS !== null && slot.budget_s !== null && row.stoodS > slot.budget_s) return "over";
    if (slot.long) return "long"; // as the server says: it knows which phases may be
    return "running";
  }

  /** What is known of a rank. Its words are made when somebody reads them: of thousands one or two stand in a sentence. */
  class Row {
    constructor(slot, agent, heardS) {
      this.rank = slot.rank;
      this.node = agent.node;
      this.agent = agent;
      this.slot = slot;
      this.state = "";
      /** Whether an open verdict names it; and whom it waits for, in words, where that is known. */
      this.named = false;
      this.whom = "";
      this.lag = null;
      this.heardS = heardS;
      // What a silent node's rank did since is not known: its ages stop with its agent's last word.
      const at = agent.time;
      const entered = Math.max(slot.step_start || 0, slot.phase_start || 0);
      this.stoodS = entered ? Math.max(0, at - entered) : null;
      this.phaseS = slot.phase_start ? Math.max(0, at - slot.phase_start) : null;
      this.beatS = slot.beat_at === null ? null : Math.max(0, at - slot.beat_at);
    }

    get words() {
      return wordsOf(this);
    }
  }

  /**
   * A row for each rank, by rank: `{rank, node, agent, slot, state, words, lag, stoodS, phaseS, heardS, beatS}`.
   * Times are on the agents' clocks: a node's clock that is off changes no age.
   */
  S.rankRows = function (page) {
    const now = page.now();
    const found = new Map();
    for (const agent of page.health.nodes()) {
      const heardS = Math.max(0, now - agent.time);
      for (const slot of agent.ranks) {
        if (!slot) continue;
        const row = new Row(slot, agent, heardS);
        const known = found.get(slot.rank);
        if (!known || newer(row, known)) found.set(slot.rank, row);
      }
    }
    leave(found, page.worldSize ? page.worldSize() : 0);
    const rows = [...found.values()].sort((a, b) => a.rank - b.rank);
    for (const row of rows) row.state = stateOf(row);
    lags(rows, page.stepSeconds());
    blame(rows, named(page));
    return rows;
  };

  /** Forget ranks of an earlier start that the job has no more, unless one is seen: then two jobs run at once. */
  function leave(found, world) {
    const more = world ? [...found.values()].filter((row) => row.rank >= world) : [];
    if (!more.length || more.some((row) => ["running", "over", "long"].includes(stateOf(row)))) return;
    let newest = 0;
    for (const row of found.values()) newest = Math.max(newest, startOf(row.slot.source));
    for (const row of more) if (startOf(row.slot.source) < newest) found.delete(row.rank);
  }

  /** The ranks that open verdicts name. */
  function named(page) {
    const open = page.incidents ? page.incidents().filter((one) => one.state === "open" && !one.dead && STOPS.has(one.kind)) : [];
    return new Set(open.flatMap((one) => S.ranksOf(S.record(S.record(one.evidence).verdict).culprits)));
  }

  /** Steps behind the foremost rank; more than what lies between two looks is behind. */
  function lags(rows, stepSeconds) {
    const alive = rows.filter((row) => row.state !== "dead" && row.state !== "finished");
    let front = -Infinity;
    for (const row of alive) if (row.slot.step !== null && row.slot.step > front) front = row.slot.step;
    const slack = 1 + Math.ceil(stepSeconds > 0 ? LOOKS_S / stepSeconds : 1);
    for (const row of rows) {
      row.lag = row.slot.step === null || !Number.isFinite(front) || row.slot.step < 0 ? null : Math.max(0, front - row.slot.step);
      if (row.state === "running" && row.lag > slack) row.state = "behind";
    }
  }

  /** Those of `rows` that are furthest back in the order of steps and phases; none where that is not the few. */
  function furthestBack(rows) {
    const place = (row) => (row.slot.step ?? -1) * 16 + (ORDER.includes(row.slot.phase) ? ORDER.indexOf(row.slot.phase) : 8);
    let least = Infinity;
    for (const row of rows) least = Math.min(least, place(row));
    const last = new Set(rows.filter((row) => place(row) === least));
    return last.size <= rows.length / 2 ? last : new Set();
  }

  /** Who stands and who only waits: as an open verdict says; else those furthest back are whom the others wait for. */
  function blame(rows, culprits) {
    const standing = rows.filter((row) => row.state === "over" || (["running", "behind"].includes(row.state) && row.stoodS > STANDS_S));
    const over = standing.filter((row) => row.state === "over");
    if (over.length && culprits.size && judged(rows, over, culprits)) return;
    if (over.length < 2) return;
    // A rank that is gone or not heard is whom all others wait for; else the few who are furthest back, if they are few.
    const gone = rows.some((row) => row.state === "dead" || row.state === "unheard");
    const last = furthestBack(standing);
    if (last.size || gone) for (const row of over) if (!last.has(row)) row.state = "waits";
  }

  /**
   * As the verdict says, which knows stacks and collectives; false where none that it names is in trouble any more.
   * Where it names none that is seen, the few who are seen to be furthest back stand all the same.
   */
  function judged(rows, over, culprits) {
    const guilty = rows.filter((row) => culprits.has(row.rank) && (row.state !== "running" || row.stoodS > STANDS_S));
    const whom = S.rankWords(guilty.map((row) => row.rank), 3);
    const beside = guilty.every((row) => row.state === "unheard") ? furthestBack(over) : new Set();
    for (const row of guilty) {
      row.named = true;
      if (row.state === "running" || row.state === "behind") row.state = "over";
    }
    if (guilty.length) for (const row of over.filter((one) => !one.named && !beside.has(one))) [row.state, row.whom] = ["waits", whom];
    return guilty.length > 0;
  }

  /** What a rank does, as it stands behind its name. */
  function wordsOf(row) {
    const { slot } = row;
    switch (row.state) {
      case "dead":
        return slot.state === "exception" ? "left by an exception" : slot.state === "left" ? "left without finish" : "is gone";
      case "over":
        return `stands in ${slot.phase || "this step"} for ${S.duration(row.stoodS)}`;
      case "unheard":
        return row.agent.connected ? `is not heard for ${S.duration(row.heardS)}` : `is not seen: its agent is away, heard ${S.ago(row.heardS)}`;
      case "unread":
        return "has a slot that can't be read";
      case "behind":
        return `is ${S.plural(row.lag, "step")} behind`;
      case "waits":
        return `waits ${row.whom ? `for ${row.whom}, ` : ""}in ${slot.phase || "this step"} for ${S.duration(row.stoodS)}`;
      case "long":
        return `is in ${slot.phase || "a long phase"} for ${S.duration(row.phaseS)}`;
      default:
        return row.state === "finished" ? "finished" : "runs";
    }
  }

  /** Worst first, then furthest behind, then longest in its phase. */
  S.worstFirst = (a, b) => RANKING.get(a.state) - RANKING.get(b.state) || (b.lag || 0) - (a.lag || 0) || (b.stoodS || 0) - (a.stoodS || 0) || a.rank - b.rank;

  /** `"2,047 of 2,048 ranks run; rank 517 on gpu-064 stands in data for 74 s"`. */
  S.rankSummary = function (rows, worldSize) {
    if (!rows.length) return "";
    const total = Math.max(rows.length, worldSize || 0);
    const fine = rows.filter((row) => !row.named && (row.state === "running" || row.state === "long")).length;
    const waits = rows.filter((row) => row.state === "waits").length;
    const done = rows.filter((row) => row.state === "finished").length;
    const parts = [done === rows.length ? `all ${S.plural(done, "rank")} finished` : `${S.count(fine)} of ${S.plural(total, "rank")} run`];
    if (waits) parts.push(`${S.count(waits)} ${waits === 1 ? "waits" : "wait"}`);
    const bad = rows.filter((row) => row.named || !["running", "waits", "long", "finished"].includes(row.state)).sort(S.worstFirst);
    for (const row of bad.slice(0, 2)) parts.push(`rank ${row.rank} on ${row.node} ${row.words}`);
    if (bad.length > 2) parts.push(`${S.count(bad.length - 2)} more in trouble`);
    if (total > rows.length) parts.push(`${S.plural(total - rows.length, "rank")} unseen`);
    return parts.join("; ");
  };
})();
