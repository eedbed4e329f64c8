// The regions of an incident's page, drawn anew only where something in them changed: what somebody selects or unfolds stays.
(function () {
  "use strict";
  const S = (window.stability = window.stability || {});

  /** A table that may be wider than its place: a shade at the edge shows that there is more. */
  S.wide = (table) => (table ? S.h("div", { class: "wide-table" }, table) : null);

  function keyed(place, key, build) {
    if (!place) return;
    const words = JSON.stringify(key);
    if (S.keyOf.get(place) === words) return;
    S.keyOf.set(place, words);
    S.patch(place, build());
  }
  /** Element -> what was last drawn into it. */
  S.keyOf = new WeakMap();
  S.keyed = keyed;

  /** Draw into a panel's body and show the panel, or hide it where there is nothing. Garbage in one region leaves the others. */
  function panel(id, key, build) {
    const place = S.byId(id);
    if (!place) return;
    keyed(place, key, () => {
      let parts = null;
      try {
        parts = build();
      } catch (error) {
        console.debug(error);
        parts = [S.h("div", { class: "nothing" }, `This part can't be shown: ${error.message}`)];
      }
      const shown = [parts].flat(3).filter((part) => part !== null && part !== undefined && part !== false);
      S.show(S.byId(`${id}-panel`), shown.length > 0);
      return shown;
    });
  }

  // -- what is read first ---------------------------------------------------------------------------------------------

  function stateWords(incident) {
    if (incident.state === "open") return "open";
    return incident.state === "recovered" ? "recovered" : "over";
  }

  function head(page) {
    const { incident } = page;
    const kind = S.kind(incident.kind);
    const severity = S.severity(incident);
    const open = incident.state === "open";
    const step = S.toldStep(incident.onset_step);
    return [
      S.h(
        "div",
        { class: "incident-marks" },
        S.h("span", { class: `pill ${open ? severity : "calm"}` }, open ? severity : stateWords(incident)),
        S.h("span", { class: "chip" }, [kind.sign, kind.label].filter(Boolean).join(" ")),
        open ? S.h("span", { class: "chip" }, "open") : null, // one that is over has lost the severity that it had
        incident.dead ? S.h("span", { class: "chip" }, "on a discarded branch") : null,
        incident.acknowledged_by
          ? S.h("span", { class: "chip accent" }, `acknowledged by ${S.str(incident.acknowledged_by)}`)
          : null,
      ),
      S.h("h1", {}, S.str(incident.title) || kind.label),
      S.h(
        "p",
        { class: "incident-sub" },
        "Run ",
        S.h("a", { href: `/runs/${encodeURIComponent(page.id)}` }, page.name()),
        step === null ? null : ` · step ${S.count(step)}`,
        " · ",
        S.h("span", { class: "incident-age" }),
      ),
    ];
  }

  /** `rank 5 on gpu-03, GPU 2 · GPU-1f…`: who is suspected, with all that names it. */
  function suspects(incident, verdict) {
    const gpuOf = (rank) => (verdict ? verdict.gpus.find((gpu) => gpu.rank === rank) : null);
    if (verdict && verdict.culprits.length && verdict.culprits.length <= 4)
      return verdict.culprits.map((rank, index) => {
        const gpu = gpuOf(rank);
        const node =
          (gpu && gpu.node) ||
          (verdict.nodes.length === 1 ? verdict.nodes[0] : verdict.nodes[index]) ||
          (incident.rank === rank ? S.str(incident.node) : "");
        const words = [`rank ${rank}`, node, gpu && gpu.index !== null ? `GPU ${gpu.index}` : ""]
          .filter(Boolean)
          .join(" · ");
        return S.h(
          "div",
          {},
          S.h("b", {}, words),
          gpu && gpu.uuid ? S.h("div", {}, S.h("code", { class: "sub", title: gpu.uuid }, gpu.uuid)) : null,
        );
      });
    if (verdict && verdict.culprits.length)
      return S.h(
        "b",
        {},
        `${S.rankWords(verdict.culprits)}${verdict.nodes.length ? ` · ${verdict.nodes.slice(0, 4).join(", ")}` : ""}`,
      );
    const gpu = S.record(S.record(incident.evidence).gpu);
    const index = S.finite(gpu.index);
    const words = [
      S.finite(incident.rank) === null ? "" : `rank ${incident.rank}`,
      S.str(incident.node || gpu.node) || (verdict ? verdict.nodes.join(", ") : ""),
      index === null ? "" : `GPU ${index}`,
    ]
      .filter(Boolean)
      .join(" · ");
    return words
      ? [S.h("b", {}, words), S.str(gpu.uuid) ? S.h("div", {}, S.h("code", { class: "sub" }, S.str(gpu.uuid))) : null]
      : "";
  }

  /** What the agents of the nodes concerned can't see, by node. */
  function blindNodes(page, verdict) {
    const nodes = new Set(verdict ? verdict.nodes : []);
    if (S.str(page.incident.node)) nodes.add(S.str(page.incident.node));
    return page.agents
      .map(S.record)
      .sort((a, b) => Boolean(b.connected) - Boolean(a.connected))
      .filter((agent) => nodes.delete(S.str(agent.node))) // of two agents of a node, one after the other, the one that is there
      .slice(0, 4)
      .map((agent) => ({
        node: S.str(agent.node),
        blind: S.list(S.record(agent.agent_state).blind)
          .map(S.record)
          .filter((spot) => S.str(spot.what)),
      }))
      .filter((found) => found.blind.length);
  }

  const BLIND = {
    gpu: "GPUs",
    gpu_events: "GPU events",
    kernel_log: "kernel log",
    signals: "stacks by signal",
    slot: "slots of ranks",
    exit_status: "exit codes",
  };
  const blindWords = (spot) => BLIND[S.str(spot.what)] || S.words(S.str(spot.what));
  const blindLine = (spot) =>
    `${blindWords(spot)}: ${S.sentence(S.str(spot.why)) || "not visible."}${S.str(spot.do) ? ` To see it: ${S.str(spot.do)}.` : ""}`;

  function verdictParts(page) {
    const { incident } = page;
    const verdict = S.verdictOf(incident);
    const since = S.sinceOf(incident);
    const open = incident.state === "open";
    const kind = S.kind(incident.kind);
    const nobody = verdict && !verdict.culprits.length && kind.of_machine;
    const who = suspects(incident, verdict);
    const detector = !kind.of_machine && kind.about !== "user";
    const facts = S.factList([
      [kind.blames === "suspect" ? "Suspect" : "Where", who || (nobody ? "no rank stands out" : "")],
      [
        "Since",
        since === null
          ? ""
          : S.h("span", {}, S.h("b", {}, S.clock(since)), S.h("span", { class: "sub since-age", "aria-live": "off" })),
        since === null ? "" : S.moment(since),
      ],
      [
        "How sure",
        verdict && verdict.confidence
          ? S.h(
              "span",
              {},
              S.h(
                "span",
                { class: `sure ${verdict.confidence}`, "aria-hidden": "true" },
                S.h("i", {}),
                S.h("i", {}),
                S.h("i", {}),
              ),
              S.h("b", {}, verdict.confidence),
              S.h("span", { class: "sub" }, ` ${verdict.sure}`),
            )
          : "",
      ],
      ["Training", verdict && verdict.training ? verdict.training : ""],
      [
        "Onset",
        detector && S.finite(incident.onset_step) !== null
          ? `step ${S.count(incident.onset_step)}${S.finite(incident.peak_step) === null ? "" : `, peak at ${S.count(incident.peak_step)}`}`
          : "",
      ],
      ["Metric", detector ? S.str(incident.metric) : ""],
      ["Data set", S.str(incident.dataset)],
    ]);
    const words = verdict && verdict.text ? verdict.text : S.str(incident.text);
    const more =
      verdict && verdict.text && S.str(incident.text) && S.str(incident.text) !== verdict.text
        ? S.str(incident.text)
        : "";
    return [
      verdict && verdict.label && verdict.class !== "unknown"
        ? S.h("div", { class: "verdict-class" }, verdict.label.charAt(0).toUpperCase() + verdict.label.slice(1))
        : null,
      S.h(
        "p",
        { class: "verdict-words" },
        ...S.lastingWords(words || "The server says no more about it.", incident, page.now()),
      ),
      facts,
      verdict && verdict.because.length
        ? S.h(
            "div",
            { class: "because" },
            S.h("h3", {}, "Because"),
            S.h(
              "ul",
              {},
              verdict.because.map((line) => S.h("li", {}, line)),
            ),
          )
        : null,
      verdict && verdict.blind.length
        ? S.h(
            "div",
            { class: "not-seen" },
            S.h("h3", {}, "Not visible"),
            S.h(
              "ul",
              {},
              verdict.blind.map((line) => S.h("li", {}, line)),
            ),
          )
        : null,
      open && kind.of_machine
        ? blindNodes(page, verdict).map(({ node, blind }) =>
            S.h(
              "details",
              { class: "told", data: { node } },
              S.h("summary", {}, `Not visible on ${node} at the moment: ${blind.map(blindWords).join(", ")}`),
              S.h(
                "ul",
                {},
                blind.map((spot) => S.h("li", {}, blindLine(spot))),
              ),
            ),
          )
        : null,
      open && more && !more.includes(words)
        ? S.h("details", { class: "told" }, S.h("summary", {}, "As it was reported"), S.h("p", {}, more))
        : null,
      open || !incident.resolved
        ? null
        : S.h(
            "p",
            { class: "over" },
            `Over since ${S.moment(incident.resolved)}${since ? `, after ${S.duration(incident.resolved - since)}` : ""}.${more ? ` ${more}` : ""}`,
          ),
    ];
  }

  /** Head and verdict; the ages in them go on by themselves. */
  S.drawIncidentTop = function (page) {
    const { incident } = page;
    const name = page.name();
    const link = S.byId("incident-run");
    S.text(link, name);
    if (link) link.href = `/runs/${encodeURIComponent(page.id)}`;
    keyed(S.byId("incident-head"), [incident, name], () => head(page));
    keyed(
      S.byId("incident-verdict"),
      [incident, page.agents.map((agent) => S.record(S.record(agent).agent_state).blind)],
      () => verdictParts(page),
    );
    S.cls(S.byId("incident-verdict"), `verdict panel ${incident.state === "open" ? S.severity(incident) : "closed"}`);
    const since = S.sinceOf(incident);
    const age =
      since === null
        ? ""
        : S.duration(
            Math.max(0, Math.floor((incident.state === "open" ? page.now() : incident.resolved || page.now()) - since)),
          );
    S.tickLasting(S.byId("incident-verdict"), page.now());
    S.text(page.root.querySelector(".since-age"), incident.state === "open" ? `, ${age} ago` : "");
    S.text(page.root.querySelector(".incident-age"), incident.state === "open" ? `for ${age}` : `lasted ${age}`);
  };

  // -- what it rests on -----------------------------------------------------------------------------------------------

  function advice(page) {
    const suggestion = S.record(page.incident.suggestion);
    const checks = S.texts(suggestion.checklist);
    if (!S.str(suggestion.text) && !checks.length) return null;
    return [
      S.str(suggestion.text) ? S.h("p", { class: "advice" }, S.str(suggestion.text)) : null,
      checks.length
        ? S.h(
            "ul",
            { class: "checks" },
            checks.map((line) => {
              const box = S.h("input", {
                type: "checkbox",
                on: { change: (event) => page.ticked[event.target.checked ? "add" : "delete"](line) },
              });
              box.checked = page.ticked.has(line);
              return S.h("li", {}, S.h("label", {}, box, S.h("span", {}, line)));
            }),
          )
        : null,
      S.str(suggestion.source) && suggestion.source !== "rule of thumb"
        ? S.h("p", { class: "source sub" }, `Source: ${S.str(suggestion.source)}.`)
        : null,
    ];
  }

  function stacks(page) {
    const asked = page.request();
    const dump = page.dump();
    if (!asked)
      return page.incident.kind === "hang" && page.incident.state === "open"
        ? S.h("div", { class: "nothing" }, "No stacks have been asked for yet.")
        : null;
    const command = page.commands.get(asked.request);
    // An order that is over brings nothing more: an agent that was killed in its middle must not keep people waiting.
    const over = Boolean(command) && (dump ? S.commandEnded(command) : S.commandFailed(command));
    const waiting = page.awaited(asked) && !over && (!dump || dump.complete === false);
    const failed = command
      ? Object.entries(S.record(command.nodes)).filter(([, word]) => S.record(word).state === "failed")
      : [];
    return [
      waiting
        ? S.h(
            "div",
            { class: "collecting", role: "status" },
            S.h("i", { class: "spinner" }),
            dump
              ? `Collecting stacks … ${Object.keys(S.record(dump.ranks)).length} of ${S.plural(page.worldSize(), "rank")} so far.`
              : "Collecting stacks …",
          )
        : null,
      dump
        ? S.stackParts(dump)
        : waiting
          ? null
          : S.h("div", { class: "nothing" }, "No stacks have arrived: no agent answered in time."),
      failed.map(([node, word]) =>
        S.h(
          "div",
          { class: "nothing bad" },
          `${node}: ${S.sentence(S.str(word.detail) || "the agent could not collect them")}`,
        ),
      ),
    ];
  }

  function chooseDump(page) {
    const list = page.requests();
    const asked = page.request();
    const verdict = S.verdictOf(page.incident);
    keyed(S.byId("stacks-choose"), [list, asked && asked.request], () => {
      if (list.length < 2) return [];
      const select = S.h(
        "select",
        {
          class: "choice-list",
          "aria-label": "Which stacks",
          on: { change: (event) => ((page.chosen = event.target.value), page.fetchDump(), page.draw()) },
        },
        list.map((one) =>
          S.h(
            "option",
            { value: one.request, selected: asked && one.request === asked.request },
            `${S.clock(one.issued)}${verdict && one.request === verdict.dump ? " · of the verdict" : ""}`,
          ),
        ),
      );
      return [select];
    });
  }

  /** Everything below the verdict. */
  S.drawIncidentParts = function (page) {
    const { incident } = page;
    const dump = page.dump();
    const asked = page.request();
    const commands = [...page.commands.values()];
    const verdict = S.verdictOf(incident);
    const process = S.kind(incident.kind).of_machine;
    panel("incident-advice", [incident.suggestion], () => advice(page));
    panel("incident-death", [incident.version, incident.kind], () => S.deathParts(incident));
    panel("incident-gpu", [incident.version, page.gpu], () => S.gpuParts(incident, page.gpu));
    chooseDump(page);
    // The dump itself is not compared: it is another object when it was fetched anew.
    panel(
      "incident-stacks",
      [
        asked && asked.request,
        dump && [dump.time, dump.complete, Object.keys(S.record(dump.ranks)).length, S.list(dump.groups).length],
        asked && page.awaited(asked),
        asked && page.commands.get(asked.request)?.nodes,
        asked && page.commands.get(asked.request)?.state,
      ],
      () => stacks(page),
    );
    S.text(
      S.byId("stacks-note"),
      dump
        ? `${S.plural(S.stackedRanks(dump), "rank")} in ${S.plural(S.stackGroups(dump).length, "group")}, ${S.clock(dump.time)}`
        : "",
    );
    panel("incident-collectives", [asked && asked.request, dump && dump.collectives, page.worldSize()], () =>
      dump ? S.wide(S.collectivesTable(dump, page.worldSize())) : null,
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
        dump && [dump.time, dump.complete, Object.keys(S.record(dump.ranks)).length],
        process && !dump && page.agents.length,
      ],
      () => ranks(page, suspects, process),
    );
    panel("incident-evidence", [incident.version, [...page.evidenceFolds]], () =>
      process && !S.record(incident.evidence).window ? null : S.evidence(page, { ...incident, suggestion: null }, true),
    );
    panel("incident-timeline", [incident, dump && dump.time, commands.map((one) => [one.command_id, one.state])], () =>
      S.timelineList(S.timelineOf(incident, dump, commands)),
    );
  };

  function ranks(page, suspects, process) {
    const dump = page.dump();
    if (!process) return null;
    const rows = S.rankFacts(page.incident, dump, page.agents);
    if (!rows.size) return null;
    S.text(S.byId("incident-ranks-note"), dump && dump.time ? `as they were at ${S.clock(dump.time)}` : "");
    const more =
      rows.size > 8
        ? S.h(
            "button",
            {
              type: "button",
              class: "toggle",
              "aria-pressed": String(Boolean(page.allRanks)),
              on: { click: () => ((page.allRanks = !page.allRanks), page.draw()) },
            },
            page.allRanks ? "Grouped" : `All ${S.count(rows.size)} ranks`,
          )
        : null;
    return [
      S.wide(S.rankTable(rows, suspects, page.allRanks)),
      more ? S.h("div", { class: "group-foot" }, more) : null,
    ];
  }
})();
