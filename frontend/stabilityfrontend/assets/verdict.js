// What an incident's verdict says, read with care: every field may be absent, of an older server, or nonsense.
(function () {
  "use strict";
  const S = (window.stability = window.stability || {});
  /** Entries of a list and characters of a text that are shown; the server sends fewer. */
  const MOST = 64;
  const LONGEST = 4000;
  /** Stretches of ranks that are named before it says how many more there are. */
  const STRETCHES = 8;

  /** Class of a verdict -> its few words (docs/liveness.md). */
  const CLASSES = {
    data_loader: "stuck in the data loader",
    peer_missing: "a peer is missing",
    livelock: "Python runs, no step is made",
    gil_held: "a C call holds Python's lock",
    stopped: "the process is stopped",
    blocked: "blocked outside Python",
    io: "waits for a disk or file system",
    collective_stuck: "a collective is stuck",
    desync: "ranks run different collectives",
    overdue: "a long phase is overdue",
    node_lost: "a node is silent",
    oom_kill: "killed for memory",
    signal: "killed from outside",
    crash: "crashed",
    exit_code: "ended with an error code",
    exception: "an exception ended it",
    agent_dead: "the agent died",
    partition: "the node does not reach us",
    unknown: "cause unknown",
  };
  const CONFIDENCES = {
    high: "the evidence leaves no other reading that we know of",
    medium: "the evidence fits, others are possible",
    low: "a suspicion: look before you act",
  };
  const TRAININGS = { "goes on": "goes on", stands: "stalled", unknown: "not known" };

  /** A list, whatever came. */
  S.list = (value) => (Array.isArray(value) ? value.slice(0, MOST) : []);
  /** An object, whatever came. */
  S.record = (value) => (value && typeof value === "object" && !Array.isArray(value) ? value : {});
  /** A text or a number as text; "" for anything else. */
  S.str = (value) =>
    typeof value === "string"
      ? value.slice(0, LONGEST)
      : typeof value === "number" && Number.isFinite(value)
        ? String(value)
        : "";
  /** A text of any length, for where it may be long. */
  S.whole = (value) => (typeof value === "string" ? value : "");
  const finite = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);
  S.finite = finite;
  /** A step that a process has told; null for -1, before its first one. */
  S.toldStep = (value) => (finite(value) === null || value < 0 ? null : value);
  const texts = (value) => S.list(value).map(S.str).filter(Boolean);
  S.texts = texts;

  /** Ranks (any number of them) as sorted whole numbers, once each. */
  S.ranksOf = (value) =>
    [
      ...new Set((Array.isArray(value) ? value : []).map(Number).filter((rank) => Number.isInteger(rank) && rank >= 0)),
    ].sort((a, b) => a - b);

  /** `0–4, 6, 8–2047`; of many stretches the first ones and how many ranks more. */
  S.rankRanges = function (value, most) {
    const ranks = S.ranksOf(value);
    const stretches = [];
    for (const rank of ranks) {
      const last = stretches[stretches.length - 1];
      if (last && rank === last[1] + 1) last[1] = rank;
      else stretches.push([rank, rank]);
    }
    const shown = stretches.slice(0, most || STRETCHES);
    const named = shown.reduce((sum, [from, to]) => sum + to - from + 1, 0);
    const words = shown
      .map(([from, to]) => (from === to ? String(from) : to === from + 1 ? `${from}, ${to}` : `${from}–${to}`))
      .join(", ");
    return ranks.length > named ? `${words} and ${S.count(ranks.length - named)} more` : words;
  };

  /** `rank 5`, `ranks 0–4, 6`. */
  S.rankWords = function (value, most) {
    const ranks = S.ranksOf(value);
    return ranks.length ? `${ranks.length === 1 ? "rank" : "ranks"} ${S.rankRanges(ranks, most)}` : "";
  };

  /** An incident's verdict with every field in its shape; null where there is none. */
  S.verdictOf = function (incident) {
    const found = S.record(S.record(incident.evidence).verdict);
    if (!S.str(found.text) && !S.str(found.class)) return null;
    return {
      class: S.str(found.class),
      label: CLASSES[found.class] || S.words(S.str(found.class)),
      text: S.str(found.text),
      parts: S.list(found.parts).filter((part) => typeof part === "string" || finite(part) !== null),
      confidence: CONFIDENCES[found.confidence] ? found.confidence : "",
      sure: CONFIDENCES[found.confidence] || "",
      culprits: S.ranksOf(found.culprits),
      nodes: texts(found.nodes),
      gpus: S.list(found.gpus)
        .map(S.record)
        .map((gpu) => ({
          rank: finite(gpu.rank),
          node: S.str(gpu.node),
          index: finite(gpu.index),
          uuid: S.str(gpu.uuid),
        })),
      because: texts(found.because),
      blind: S.list(found.blind).map(blindWords).filter(Boolean),
      since: finite(found.since),
      decidedAfter: finite(found.decided_after_s),
      dump: S.str(found.dump) || null,
      training: TRAININGS[found.training] || "",
    };
  };

  /** A blind spot as one sentence; agents tell theirs in three parts. */
  function blindWords(blind) {
    const { what, why, do: remedy } = S.record(blind);
    return (
      S.str(blind) ||
      [S.words(S.str(what)), S.str(why)].filter(Boolean).join(": ") + (S.str(remedy) ? ` (${S.str(remedy)})` : "")
    );
  }

  /** Since when, unix seconds: of the last progress where that is known. */
  S.sinceOf = (incident) => {
    const verdict = S.verdictOf(incident);
    return (verdict && verdict.since) || finite(S.record(incident.evidence).since) || finite(incident.opened);
  };

  const lasted = (seconds) => S.duration(Math.max(0, Math.floor(seconds)));

  /**
   * Words about an incident, as children of an element. A verdict says how long something lasts as of when it was told;
   * where its text stands in the words, an open one's durations are elements of their own, which `S.tickLasting` keeps true.
   */
  S.lastingWords = function (words, incident, now) {
    const verdict = incident && incident.state === "open" ? S.verdictOf(incident) : null;
    const at = verdict && verdict.text && verdict.parts.length ? words.indexOf(verdict.text) : -1;
    if (at < 0) return [words];
    const parts = verdict.parts.map((part) =>
      typeof part === "string"
        ? part
        : S.h("span", { class: "lasts", data: { since: part }, "aria-live": "off" }, lasted(now - part)),
    );
    return [words.slice(0, at), ...parts, words.slice(at + verdict.text.length)];
  };

  /** Bring the durations of `S.lastingWords` within an element up to date. */
  S.tickLasting = function (root, now) {
    if (root)
      for (const part of root.querySelectorAll(".lasts")) S.text(part, lasted(now - Number(part.dataset.since)));
  };

  /** The beginning of a GPU's UUID: enough to tell eight apart. */
  S.shortUuid = (uuid) => (S.str(uuid).length > 16 ? `${S.str(uuid).slice(0, 16)}…` : S.str(uuid));

  /** Copy a text; resolves to whether it worked. Plain http beyond loopback has no clipboard, so there is the old way too. */
  S.copy = async function (text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch (error) {
      const field = S.h("textarea", { "aria-hidden": "true", class: "off-screen" });
      field.value = text;
      document.body.append(field);
      field.select();
      const done = document.execCommand("copy");
      field.remove();
      return done;
    }
  };
})();
