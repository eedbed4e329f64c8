// The facts behind an incident as lists and tables: what the timeline was, how a process ended, what the GPU said, where each
// rank stood when it was looked at.
(function () {
  "use strict";
  const S = (window.stability = window.stability || {});
  /** Ranks with a row of their own before the rest is one row per place. */
  const OWN_ROWS = 16;
  /** Rows of a table that shows every rank. */
  const ALL_ROWS = 4096;

  const PROCESS_STATES = {
    R: "runs",
    S: "sleeps",
    D: "waits for the kernel (D)",
    T: "stopped (T)",
    t: "traced (t)",
    Z: "dead (zombie)",
    X: "gone",
    I: "idle",
  };
  /** How an agent knows of a death (docs/wire.md). */
  const HOWS = {
    pidfd: "the kernel's notice of its end (pidfd)",
    zombie: "the exit status that its zombie keeps",
    "kernel log": "the kernel log",
    slot: "its slot, which says no goodbye",
    none: "nothing but its absence",
  };
  const COMMANDS = { dump_stacks: "Stacks", restart: "Restart", rollback: "Rollback" };

  /** A list of facts; entries without a value are left out. */
  S.factList = function (entries) {
    const shown = entries.filter(
      ([, value]) => value !== null && value !== undefined && value !== "" && !(Array.isArray(value) && !value.length),
    );
    return shown.length
      ? S.h(
          "dl",
          { class: "fact-list" },
          shown.map(([name, value, title]) =>
            S.h("div", {}, S.h("dt", {}, name), S.h("dd", { title: title || null }, value)),
          ),
        )
      : null;
  };

  // -- timeline ---------------------------------------------------------------------------------------------------

  /** What happened when: `{time, words, tone}` in order; `time` null where only the fact is known. */
  S.timelineOf = function (incident, dump, commands) {
    const verdict = S.verdictOf(incident);
    const since = S.sinceOf(incident);
    const entries = [];
    const add = (time, words, tone) => entries.push({ time: S.finite(time), words, tone: tone || "" });
    const step = S.toldStep(incident.onset_step);
    const kind = S.kind(incident.kind);
    if (verdict && verdict.since) add(verdict.since, `${kind.since}${step === null ? "" : `, step ${S.count(step)}`}`);
    else if (since !== null && since < incident.opened) add(since, kind.since);
    // Nobody judges before anything is seen: the verdict's time is made of two clocks, to a tenth.
    const judged =
      verdict && verdict.since && verdict.decidedAfter !== null
        ? Math.max(verdict.since + verdict.decidedAfter, S.finite(incident.opened) || 0)
        : null;
    add(incident.opened, verdict && kind.blames === "suspect" ? "Suspected" : "Detected", S.severity(incident));
    if (dump && dump.time) add(dump.time, `Stacks of ${S.plural(S.stackedRanks(dump), "rank")} taken`);
    if (judged !== null)
      add(
        judged,
        `Verdict: ${verdict.label || "known"}${verdict.confidence ? `, ${verdict.confidence} confidence` : ""}`,
      );
    for (const command of commands) {
      if (!(command.issued >= since - 60)) continue;
      const who = S.str(command.issuer);
      // The server's own order is told by what it brought.
      if (
        command.kind === "dump_stacks" &&
        dump &&
        (command.command_id === dump.request || (verdict && command.command_id === verdict.dump))
      )
        continue;
      add(
        command.issued,
        `${COMMANDS[command.kind] || S.words(command.kind)} ordered${who ? ` by ${who}` : ""}`,
        S.commandFailed(command) ? "critical" : "",
      );
    }
    if (incident.acknowledged_by) add(incident.acknowledged, `Acknowledged by ${S.str(incident.acknowledged_by)}`);
    if (incident.resolved) add(incident.resolved, incident.state === "recovered" ? "Recovered" : "Over", "good");
    return entries.sort((a, b) => (a.time === null ? Infinity : a.time) - (b.time === null ? Infinity : b.time));
  };

  /** The timeline as a list: clock, how long after the first entry, what. */
  S.timelineList = function (entries) {
    const first = entries.find((entry) => entry.time !== null);
    return S.h(
      "ol",
      { class: "timeline" },
      entries.map((entry) =>
        S.h(
          "li",
          { class: entry.tone },
          S.h(
            "time",
            { title: entry.time === null ? null : S.moment(entry.time) },
            entry.time === null ? "–" : S.clock(entry.time),
          ),
          S.h("span", {}, entry.words),
          S.h(
            "span",
            { class: "sub num" },
            first && entry.time !== null && entry.time > first.time ? `+${S.duration(entry.time - first.time)}` : "",
          ),
        ),
      ),
    );
  };

  // -- death and GPU ------------------------------------------------------------------------------------------------

  const LISTED = 12;
  /** Deaths of one incident that are described. */
  const DEATHS = 8;

  function nested(record) {
    return Object.entries(S.record(record))
      .slice(0, LISTED)
      .map(([name, value]) => `${S.words(name)} ${S.str(value) || JSON.stringify(value)}`)
      .join(" · ");
  }

  /** An exception in its own lines: those of a DataLoader quote a traceback. */
  function exceptionPart(exception) {
    const text = [S.str(exception.type), S.whole(exception.message || exception.text).trim()]
      .filter(Boolean)
      .join(": ");
    return text.includes("\n") ? S.h("span", { class: "lines" }, text) : text;
  }

  /** One death: `{node, rank, ...}` as the agent told it, or the whole evidence of an older server. */
  function deathPart(found, several, told) {
    const death = { ...S.record(found.evidence), ...found };
    const exception = S.record(death.exception);
    const signal = [S.str(death.signal_name), S.str(death.signal) ? `(${S.str(death.signal)})` : ""]
      .filter(Boolean)
      .join(" ");
    const facts = S.factList([
      [
        "Process",
        [
          S.str(death.rank) && several ? `rank ${S.str(death.rank)}` : "",
          S.str(death.pid) ? `pid ${S.str(death.pid)}` : "",
          S.str(death.node),
        ]
          .filter(Boolean)
          .join(" · "),
      ],
      [
        "When",
        S.finite(death.time) === null
          ? ""
          : `${S.moment(death.time)}${S.toldStep(death.step) === null ? "" : `, step ${S.count(death.step)}`}`,
      ],
      ["Signal", signal],
      ["Exit code", S.str(death.exit_code)],
      [
        "Out of memory",
        S.str(S.record(death.oom).line)
          ? S.h(
              "span",
              {},
              S.str(death.oom.line),
              S.str(death.oom.source) ? S.h("span", { class: "sub" }, ` (${S.str(death.oom.source)})`) : null,
            )
          : nested(death.oom),
      ],
      ["Exception", exceptionPart(exception)],
      ["Last phase", S.str(death.last_phase)],
      ["What was seen", told.includes(S.str(death.text)) ? "" : S.str(death.text)],
      ["Known by", HOWS[death.how] || S.words(S.str(death.how))],
    ]);
    const fatal = S.whole(death.fatal) || S.whole(exception.traceback);
    return [
      facts,
      fatal
        ? S.h(
            "details",
            { class: "fatal", open: fatal.length < 4000 },
            S.h("summary", {}, "What it left behind when it died"),
            S.h(
              "pre",
              { class: "stack-text", tabindex: "0", "aria-label": "Trace of the fatal error" },
              culpritFirst(fatal),
            ),
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
  S.deathParts = function (incident) {
    if (incident.kind !== "process_death") return null;
    const evidence = S.record(incident.evidence);
    const deaths = S.list(evidence.deaths).map(S.record);
    const shown = deaths.length ? deaths.slice(0, DEATHS) : [{ ...evidence, ...S.record(evidence.death) }];
    const verdict = S.verdictOf(incident);
    const more = deaths.length - shown.length + (S.finite(evidence.not_described) || 0);
    return [
      shown.map((death) =>
        S.h("div", { class: "death" }, deathPart(death, deaths.length > 1, verdict ? verdict.because : [])),
      ),
      more > 0 ? S.h("div", { class: "sub" }, `and ${S.count(more)} deaths more`) : null,
    ];
  };

  const CLASSES = {
    application: "the program's own error: the GPU should be healthy",
    reset: "the GPU has to be reset",
    reboot: "the node has to be started anew",
    drain: "take the node out of service",
    watch: "watch it",
    symptom: "a symptom of something else",
  };

  const gpuLine = (gpu, node) =>
    [
      S.finite(gpu.index) === null ? "" : `GPU ${gpu.index}`,
      S.str(gpu.node) || S.str(node),
      S.str(gpu.name),
      S.rankWords(gpu.ranks),
    ]
      .filter(Boolean)
      .join(" · ");

  /** What was seen of the GPUs, sign by sign, the first one first; of several it is said which one each is of. */
  function signTable(signs, gpus) {
    const whose = (sign) => gpus.length > 1 && gpus.find((gpu) => S.str(gpu.uuid) && gpu.uuid === sign.gpu);
    return S.h(
      "table",
      { class: "table dense signs" },
      S.h(
        "thead",
        {},
        S.h(
          "tr",
          {},
          ["Seen", "Sign", "Times"].map((word) =>
            S.h("th", { scope: "col", class: word === "Times" ? "num" : "" }, word),
          ),
        ),
      ),
      S.h(
        "tbody",
        {},
        signs.map((sign) =>
          S.h(
            "tr",
            {},
            S.h(
              "td",
              { title: S.finite(sign.first) === null ? null : S.moment(sign.first) },
              S.finite(sign.first) === null ? "–" : S.clock(sign.first),
            ),
            S.h(
              "td",
              { class: "words" },
              whose(sign) && S.finite(whose(sign).index) !== null ? S.h("b", {}, `GPU ${whose(sign).index} `) : null,
              S.finite(sign.xid) === null || /^Xid /.test(S.str(sign.text)) ? null : S.h("b", {}, `Xid ${sign.xid} `),
              S.str(sign.text) || S.words(S.str(sign.what)),
              S.str(sign.said) && S.str(sign.said) !== S.str(sign.text) && !/^Xid \d+$/.test(S.str(sign.said))
                ? S.h("div", { class: "sub" }, `“${S.str(sign.said)}”`)
                : null,
            ),
            S.h("td", { class: "num" }, sign.on === true ? "lasts" : S.count(S.finite(sign.count) || 1)),
          ),
        ),
      ),
    );
  }

  /** What is remembered of a GPU, this incident's own faults left out. `known`: of `GET /gpus`. */
  function historyOf(known, incident) {
    const faults = S.list(known.faults)
      .map(S.record)
      .filter((fault) => fault.incident_id !== incident.incident_id);
    const offences = S.record(known.offences);
    const own = S.list(known.faults).length - faults.length; // what is told here is no repetition of itself
    const count = (S.finite(known.count) ?? S.finite(offences.faults) ?? faults.length) - own;
    if (count <= 0) return null;
    const runs = S.finite(known.runs) ?? S.finite(offences.runs) ?? 1;
    const last = faults.length ? S.finite(faults[0].time) : (S.finite(offences.last) ?? S.finite(known.last));
    return S.h(
      "div",
      {},
      S.h(
        "b",
        { class: "bad" },
        `${S.plural(count, "fault")} on record, ${S.plural(runs, "run")} in all${last === null ? "" : `, last ${S.moment(last)}`}`,
      ),
      faults
        .slice(0, 4)
        .map((fault) =>
          S.h(
            "div",
            { class: "sub" },
            S.str(fault.run_id) && S.str(fault.incident_id)
              ? S.h(
                  "a",
                  { href: S.incidentHref(S.str(fault.run_id), S.str(fault.incident_id)) },
                  S.str(fault.title) || S.words(S.str(fault.what)),
                )
              : S.str(fault.title) || S.words(S.str(fault.what)),
            ` · ${S.str(fault.run_name) || S.str(fault.run_id)}`,
          ),
        ),
    );
  }

  /** The GPUs that an incident is about: of a fault all that it struck, else the one that the verdict names. */
  S.gpusOf = function (incident) {
    const evidence = S.record(incident.evidence);
    const struck = S.list(evidence.gpus).map(S.record);
    const verdict = S.verdictOf(incident);
    if (struck.length) return struck;
    if (S.str(S.record(evidence.gpu).uuid) || incident.kind === "gpu_fault") return [S.record(evidence.gpu)];
    return verdict ? verdict.gpus.filter((gpu) => gpu.uuid) : [];
  };

  /** What a GPU said, and whether it did so before. `known`: its entry of `GET /gpus`, null: none, undefined: not asked. */
  S.gpuParts = function (incident, known) {
    const evidence = S.record(incident.evidence);
    const gpus = S.gpusOf(incident);
    const fault = incident.kind === "gpu_fault";
    const history = known ? historyOf(known, incident) : null;
    if (!gpus.length || (!fault && !history)) return null;
    const [gpu] = gpus;
    const signs = S.list(evidence.signs).map(S.record);
    const xids = signs.length
      ? []
      : S.list(evidence.xids).map((one) => (typeof one === "object" ? S.record(one) : { xid: one, text: "" }));
    const action = (value) =>
      value === "RESTART_BM" ? "restart the machine (bare metal)" : S.words(S.str(value).toLowerCase());
    return [
      S.factList([
        [
          gpus.length > 1 ? "GPUs" : "GPU",
          gpus.length > 1
            ? gpus.slice(0, 16).map((one) => S.h("div", {}, gpuLine(one, incident.node)))
            : gpuLine(gpu, incident.node),
        ],
        ["UUID", gpus.length === 1 && S.str(gpu.uuid) ? S.h("code", {}, S.str(gpu.uuid)) : ""],
        ["Bus", gpus.length === 1 && S.str(gpu.bus_id) ? S.h("code", {}, S.str(gpu.bus_id)) : ""],
        [
          "Class",
          S.str(evidence.class)
            ? S.h(
                "span",
                {},
                S.h("b", {}, S.str(evidence.class)),
                CLASSES[evidence.class] ? `: ${CLASSES[evidence.class]}` : "",
              )
            : "",
        ],
        ["The driver asks", S.str(evidence.driver_asks), "NVML's own recovery action for this GPU"],
        [
          "NVIDIA's catalog",
          action(evidence.nvidia_action),
          "What NVIDIA's catalog of Xids tells to do about the first one",
        ],
        ["Before", history || (fault && known !== undefined ? "nothing else is on record of this GPU" : "")],
      ]),
      signs.length || xids.length ? signTable(signs.length ? signs : xids, gpus) : null,
      S.str(evidence.source) && fault ? S.h("p", { class: "source sub" }, `Source: ${S.str(evidence.source)}.`) : null,
    ];
  };

  // -- ranks --------------------------------------------------------------------------------------------------------

  /** Where each rank stood: of the dump; else what the incident says; else what agents say now. */
  S.rankFacts = function (incident, dump, agents) {
    const rows = new Map();
    const told = S.record(S.record(incident.evidence).ranks);
    for (const [rank, facts] of Object.entries(told)) {
      const { step, phase, stood_s: stood, node } = S.record(facts);
      rows.set(Number(rank), {
        step: S.finite(step),
        phase: S.str(phase),
        seconds: S.finite(stood),
        node: S.str(node),
        state: "",
        cpu: null,
        place: "",
        missing: "",
      });
    }
    const places = new Map();
    for (const group of S.stackGroups(dump || {}))
      for (const rank of S.ranksOf(group.ranks)) places.set(rank, S.str(group.what));
    for (const [rank, found] of Object.entries(S.record(dump && dump.ranks))) {
      const facts = S.record(found);
      const slot = S.record(facts.slot);
      const proc = S.record(facts.proc);
      const known = rows.get(Number(rank)) || {};
      const begin = S.finite(slot.phase ? slot.phase_start : slot.step_start);
      rows.set(Number(rank), {
        step: S.finite(slot.step) === null ? (known.step ?? null) : slot.step,
        phase: S.str(slot.phase) || known.phase || "",
        seconds: begin && dump.time ? Math.max(0, dump.time - begin) : (known.seconds ?? null),
        node: S.str(facts.node) || known.node || "",
        state: S.str(proc.state),
        cpu: S.finite(proc.cpu),
        place: places.get(Number(rank)) || "",
        missing: S.str(facts.missing),
      });
    }
    if (!rows.size)
      for (const agent of agents)
        for (const slot of Array.isArray(agent.ranks) ? agent.ranks.map(S.record) : []) {
          const proc = S.record(slot.proc);
          const begin = S.finite(slot.phase ? slot.phase_start : slot.step_start);
          rows.set(Number(slot.rank), {
            step: S.finite(slot.step),
            phase: S.str(slot.phase),
            seconds: begin && agent.time ? Math.max(0, agent.time - begin) : null,
            node: S.str(agent.node),
            state: slot.alive === false ? "X" : S.str(proc.state),
            cpu: S.finite(proc.cpu),
            place: "",
            missing: S.str(slot.trouble),
          });
        }
    return new Map([...rows].filter(([rank]) => Number.isInteger(rank)).sort((a, b) => a[0] - b[0]));
  };

  /** Ranks as rows: suspects one by one, the others one row per place where they stand. `all`: each its own row. */
  S.rankTable = function (rows, suspects, all) {
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
      cpu: S.median(place.cpus),
      node: place.nodes.size > 1 ? S.plural(place.nodes.size, "node") : [...place.nodes][0] || "",
    }));
    const lines = [
      ...own.sort((a, b) => guilty.has(b.ranks[0]) - guilty.has(a.ranks[0]) || a.ranks[0] - b.ranks[0]),
      ...grouped.sort((a, b) => a.ranks.length - b.ranks.length),
    ];
    const head = ["Rank", "Step", "Phase", "For", "Process", "CPU", "Waits in", "Node"];
    return S.h(
      "table",
      { class: "table dense rank-table" },
      S.h(
        "thead",
        {},
        S.h(
          "tr",
          {},
          head.map((word) =>
            S.h("th", { scope: "col", class: ["Step", "For", "CPU"].includes(word) ? "num" : "" }, word),
          ),
        ),
      ),
      S.h(
        "tbody",
        {},
        lines.map((line) =>
          S.h(
            "tr",
            { class: line.ranks.some((rank) => guilty.has(rank)) ? "suspect" : "" },
            S.h(
              "td",
              { class: "strong" },
              line.ranks.length === 1
                ? String(line.ranks[0])
                : `${S.plural(line.ranks.length, "rank")}: ${S.rankRanges(line.ranks, 3)}`,
            ),
            S.h("td", { class: "num" }, line.step !== null && line.step < 0 ? "none yet" : S.count(line.step)),
            S.h("td", {}, line.phase || "–"),
            S.h("td", { class: "num" }, line.seconds === null ? "–" : S.duration(line.seconds)),
            S.h(
              "td",
              { title: line.missing || null },
              PROCESS_STATES[line.state] || line.state || (line.missing ? "not seen" : "–"),
            ),
            S.h(
              "td",
              { class: "num" },
              line.cpu === null || line.cpu === undefined ? "–" : `${Math.round(100 * line.cpu)} %`,
            ),
            S.h("td", {}, line.place || "–"),
            S.h("td", {}, line.node || "–"),
          ),
        ),
      ),
    );
  };
})();
