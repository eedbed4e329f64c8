// Ranks and GPUs, node by node: what each rank does, how old that news is, and what its GPUs say, or why none is seen.
(function () {
  "use strict";
  const S = (window.stability = window.stability || {});
  /** Rows drawn of each table: a job of a thousand ranks shows its slowest first and says how many are left out. */
  const ROWS = 64;
  const STATES = ["running", "finished", "left without finish", "left by an exception"];

  const GPU_FIELDS = [
    [/^util_pct$/, "util", (value) => `${Math.round(value)} %`],
    [/^mem_used_mib$/, "memory", (value) => `${(value / 1024).toFixed(1)} GiB`],
    [/^temp_c$/, "temp", (value) => `${Math.round(value)} °C`],
    [/^power_w$/, "power", (value) => `${Math.round(value)} W`],
  ];

  /** Clock throttle reasons that mean trouble, by NVML's bit (nvml.h, nvmlClocksEventReason*); idle and user caps don't. */
  const THROTTLE = [
    [0x4, "power cap"],
    [0x8, "hardware slowdown"],
    [0x20, "thermal, software"],
    [0x40, "thermal, hardware"],
    [0x80, "power brake"],
  ];

  /** What is wrong with a GPU, in words: `[tone, text]` each. */
  function gpuTroubles(fields) {
    const troubles = [];
    const lost = fields.get("ecc_uncorrected");
    if (lost > 0) troubles.push(["critical", `${S.count(lost)} uncorrected ECC errors`]);
    const mask = fields.get("throttle_reasons") || 0;
    const reasons = THROTTLE.filter(([bit]) => mask & bit).map(([, words]) => words);
    if (reasons.length) troubles.push(["warning", `throttled: ${reasons.join(", ")}`]);
    return troubles;
  }

  /** GPUs of a node from the newest `gpu/<i>/<field>` points: `[[index, Map(field, value)]]`. */
  function gpus(page, node) {
    const found = new Map();
    for (const [name, latest] of page.store.latest) {
      const match = /^gpu\/(\d+)\/(.+)$/.exec(name);
      if (!match) continue;
      const point = latest.by.get(node);
      if (!point) continue;
      if (!found.has(match[1])) found.set(match[1], new Map());
      found.get(match[1]).set(match[2], point.value);
    }
    return [...found].sort((a, b) => a[0] - b[0]);
  }

  function gpuTable(list) {
    return S.h(
      "div",
      { class: "gpus" },
      list.slice(0, ROWS).map(([index, fields]) => {
        const used = new Set();
        const cells = GPU_FIELDS.map(([pattern, label, words]) => {
          const hit = [...fields].find(([field]) => pattern.test(field) && !used.has(field));
          if (!hit) return null;
          used.add(hit[0]);
          const load = label === "util" ? hit[1] / 100 : null;
          return S.h("span", { class: "gpu-fact" }, load === null ? null : S.h("i", { class: "load", style: { "--load": Math.max(0, Math.min(1, load)) } }), S.h("b", {}, words(hit[1])), ` ${label}`);
        });
        const rest = [...fields].filter(([field]) => !used.has(field)).map(([field, value]) => `${field} ${S.value(value)}`);
        return S.h("div", { class: "gpu", title: rest.join("\n") }, S.h("span", { class: "gpu-name" }, `GPU ${index}`), cells, gpuTroubles(fields).map(([tone, words]) => S.h("span", { class: `state ${tone}` }, words)));
      }),
    );
  }

  function rankRow(rank, now, slowest) {
    const state = typeof rank.state === "number" ? STATES[rank.state] || String(rank.state) : S.words(rank.state || "");
    const gone = rank.alive === false && state === "running";
    const inStep = rank.step_start ? Math.max(0, now - rank.step_start) : null;
    const heard = rank.time ? Math.max(0, now - rank.time) : null;
    const stale = heard !== null && heard > 5;
    const tone = gone ? "critical" : stale ? "warning" : rank.alive === false ? "calm" : "good";
    const words = gone ? "process is gone" : rank.alive === false ? state : stale ? `not heard for ${S.age(heard)}` : "alive";
    return S.h(
      "tr",
      {},
      S.h("td", { class: "num" }, String(rank.rank ?? "–")),
      S.h("td", { class: "num" }, rank.step === null || rank.step < 0 ? "–" : S.count(rank.step), slowest && rank.step < slowest ? S.h("span", { class: "behind" }, ` −${S.count(slowest - rank.step)}`) : null),
      S.h("td", {}, rank.phase || "–"),
      S.h("td", { class: "num" }, rank.alive === false || inStep === null || rank.step < 0 ? "–" : S.duration(inStep)),
      S.h("td", {}, S.h("span", { class: `state ${tone}` }, words)),
      S.h("td", { class: "num" }, rank.dropped ? S.h("span", { class: "state warning" }, `${S.count(rank.dropped)} dropped`) : String(rank.pid ?? "")),
    );
  }

  /** Bring the panel up to date. */
  S.drawRanks = function (page) {
    const place = S.byId("ranks");
    if (!place) return;
    const now = page.now();
    const nodes = new Map();
    for (const agent of page.health.values()) {
      const known = nodes.get(agent.node);
      if (!known || agent.time >= known.time) nodes.set(agent.node, agent);
    }
    const list = [...nodes.values()].sort((a, b) => a.node.localeCompare(b.node));
    const ranks = list.flatMap((agent) => agent.ranks || []);
    const alive = ranks.filter((rank) => rank.alive !== false).length;
    S.text(S.byId("ranks-note"), list.length ? `${S.plural(list.length, "node")}, ${alive} of ${S.plural(Math.max(ranks.length, page.run?.world_size || 0), "rank")} alive` : "");
    if (!list.length) {
      S.fill(place, S.h("div", { class: "nothing" }, page.ready ? "No agent has spoken for this run. Ranks and GPUs are seen while one is connected." : ""));
      return;
    }
    const slowest = Math.max(...ranks.map((rank) => rank.step ?? -1));
    S.fill(
      place,
      list.slice(0, ROWS).map((agent) => {
        const cards = gpus(page, agent.node);
        const heard = now - agent.time;
        const rows = [...(agent.ranks || [])].sort((a, b) => (a.rank ?? 0) - (b.rank ?? 0));
        return S.h(
          "div",
          { class: "node" },
          S.h(
            "div",
            { class: "node-head" },
            S.h("b", {}, agent.node),
            S.h("span", { class: `state ${agent.connected === false || heard > 10 ? "warning" : "good"}` }, agent.connected === false ? `agent away, heard ${S.ago(heard)}` : heard > 10 ? `silent for ${S.age(heard)}` : "agent connected"),
          ),
          S.h(
            "table",
            { class: "table dense" },
            S.h("thead", {}, S.h("tr", {}, ["rank", "step", "phase", "in this step", "", "pid"].map((head, index) => S.h("th", { class: [0, 1, 3, 5].includes(index) ? "num" : "" }, head)))),
            S.h("tbody", {}, rows.slice(0, ROWS).map((rank) => rankRow(rank, now, slowest))),
          ),
          rows.length > ROWS ? S.h("div", { class: "sub" }, `+ ${S.count(rows.length - ROWS)} more`) : null,
          cards.length ? gpuTable(cards) : S.h("div", { class: "no-gpu" }, (agent.gpu && agent.gpu.text) || "no GPU visible here: the agent has not said why yet"),
        );
      }),
    );
  };
})();
