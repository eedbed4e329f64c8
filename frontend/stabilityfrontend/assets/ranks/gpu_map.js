// The GPUs of a run, node by node, the eight of a node in one row: what each reads, and by its shape which one is sick.

import { api } from "../core/api.js";
import { grow, panelHead, segments } from "../core/controls.js";
import { byId, fill, h, segmented, setClass, setShown, setText } from "../core/dom.js";
import { clock, formatCount, moment, plural } from "../core/format.js";
import { gpuTable } from "../core/kinds.js";
import { incidentHref } from "../core/route.js";
import { colorTheme } from "../core/theme.js";
import { CellMap } from "./cell_map.js";
import { fillLegend, SIGNS } from "./rank_grid.js";

// -- Readings of a GPU in words and tones: load, memory, temperature, power, throttling, ECC.

const readingOf = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);

const percentOf = (value) => `${Math.round(value)} %`;

const gibOf = (mib) => `${(mib / 1024).toFixed(1)} GiB`;

/** Why its clocks are lowered: entries of the server's table. */
export const throttlesOf = (fields) =>
  gpuTable.throttles.filter(({ bit }) => (readingOf(fields.throttle_reasons) || 0) & bit);

/** One of three, by what the worst of the reasons costs. */
const byThrottle = (fields, none, capped, slowed) => {
  const found = throttlesOf(fields);
  return found.some(({ slows }) => slows) ? slowed : found.length ? capped : none;
};

/** Up to here a GPU is as warm as work makes it: H100 boards slow themselves down between 85 and 95 °C. */
const WARM_C = 75;

const warmth = (celsius) =>
  celsius < WARM_C ? (0.33 * (celsius - 30)) / (WARM_C - 30) : 0.34 + (0.65 * (celsius - WARM_C)) / 20;

/** What can be shown: `share(fields, gpu)` 0 to 1 on the ramp, `words(fields)` in a cell, `legend` of shares. */
const READING_FIELDS = {
  util: {
    share: (f) => (readingOf(f.util_pct) || 0) / 100,
    has: (f) => readingOf(f.util_pct) !== null,
    words: (f) => percentOf(f.util_pct),
    legend: [
      [0, "0 %"],
      [0.5, "50 %"],
      [0.99, "100 %"],
    ],
    cold: true,
  },
  memory: {
    share: (f, gpu) => f.mem_used_mib / (totalMemory(f, gpu) || 81920),
    has: (f) => readingOf(f.mem_used_mib) !== null,
    words: (f) => gibOf(f.mem_used_mib).replace(" GiB", " G"),
    legend: [
      [0, "empty"],
      [0.5, "half"],
      [0.99, "full"],
    ],
    cold: true,
  },
  temp: {
    share: (f) => warmth(f.temp_c),
    has: (f) => readingOf(f.temp_c) !== null,
    words: (f) => `${Math.round(f.temp_c)}°`,
    legend: [
      [0, "30 °C"],
      [0.33, "75"],
      [0.6, "83"],
      [0.99, "95 °C"],
    ],
  },
  power: {
    share: (f) => f.power_w / (readingOf(f.power_limit_w) || 700),
    has: (f) => readingOf(f.power_w) !== null,
    words: (f) => `${Math.round(f.power_w)} W`,
    legend: [
      [0, "0 W"],
      [0.5, "half"],
      [0.99, "its limit"],
    ],
    cold: true,
  },
  throttle: {
    share: (f) => byThrottle(f, 0, 0.5, 0.99),
    has: (f) => readingOf(f.throttle_reasons) !== null,
    words: (f) => byThrottle(f, "–", "cap", "slowed"),
    legend: [
      [0, "full clock"],
      [0.5, "power cap"],
      [0.99, "slowed by heat or a brake"],
    ],
  },
  ecc: {
    share: (f) => (f.ecc_uncorrected > 0 ? 0.99 : f.ecc_corrected > 0 ? 0.34 : 0),
    has: (f) => readingOf(f.ecc_uncorrected) !== null || readingOf(f.ecc_corrected) !== null,
    words: (f) => formatCount((readingOf(f.ecc_uncorrected) || 0) + (readingOf(f.ecc_corrected) || 0)),
    legend: [
      [0, "none"],
      [0.34, "corrected"],
      [0.99, "uncorrected"],
    ],
  },
};

const totalMemory = (fields, gpu) => readingOf(fields.mem_total_mib) || readingOf(gpu && gpu.memory_mib);

/** What the server knows of faults is asked for again so often, and soon after an incident of a GPU. */
const ASK_MS = 60_000;
const SOON_MS = 800;
/** A node that does not report for so long has no current readings, seconds. */
const STALE_S = 30;
/** Names of nodes that are listed in one line. */
const NAMED = 6;

const factsOf = (gpu) => gpuTable.states[gpu.state];
const ranking = (cell) => Object.keys(gpuTable.states).indexOf(cell.gpu.state);
const worstFirst = (a, b) => ranking(a) - ranking(b);
/** The tone of several: the first is the worst one. */
const toneOf = (cells) => (cells.length ? factsOf(cells[0].gpu).tone : "");

const celsius = (degrees) => `${Math.round(degrees)} °C`;
const listed = (...parts) => parts.filter(Boolean).join(", ");

/** All that is known of a GPU, `[name, words]`. */
function story(gpu) {
  const f = gpu.fields;
  const read = (name, words) => (readingOf(f[name]) === null ? "" : words(f[name]));
  const counted = (name, words) => (f[name] > 0 ? words(f[name]) : "");
  /** Errors that were corrected and those that were not; "" where `found` is not. */
  const errors = (kind, found) =>
    found
      ? `${formatCount(f[`${kind}_uncorrected`] || 0)} uncorrected, ${formatCount(f[`${kind}_corrected`] || 0)} corrected`
      : "";
  const most = totalMemory(f, gpu.known);
  const unread = gpu.stale ? "its node is not reporting" : "no reading yet";
  const lines = [
    ["", gpu.state === "none" ? unread : factsOf(gpu).label],
    ["rank", gpu.ranks.join(", ")],
    ["utilisation", read("util_pct", percentOf)],
    ["memory", read("mem_used_mib", (mib) => `${gibOf(mib)}${most ? ` of ${gibOf(most)}` : ""}`)],
    [
      "temperature",
      listed(
        read("temp_c", celsius),
        read("mem_temp_c", (degrees) => `memory ${celsius(degrees)}`),
      ),
    ],
    [
      "power",
      read("power_w", (w) => `${Math.round(w)} W${read("power_limit_w", (most) => ` of ${Math.round(most)}`)}`),
    ],
    [
      "clocks",
      listed(
        read("clock_sm_mhz", (mhz) => `${formatCount(mhz)} MHz`),
        read("clock_mem_mhz", (mhz) => `memory ${formatCount(mhz)}`),
      ),
    ],
    ["throttled", listed(...throttlesOf(f).map(({ label }) => label))],
    ["ECC", errors("ecc", read("ecc_uncorrected", String) || read("ecc_corrected", String))],
    ["remapped rows", errors("remapped", f.remapped_uncorrected > 0 || f.remapped_corrected > 0)],
    ["retired pages", counted("retired_pages", formatCount)],
    [
      "links",
      listed(
        counted("pcie_replays", (times) => plural(times, "PCIe replay")),
        counted("nvlink_errors", (times) => plural(times, "NVLink error")),
      ),
    ],
  ];
  for (const { text, time } of gpu.faults.slice(0, 3)) lines.push(["fault", `${text} (${clock(time)})`]);
  const before = gpu.known?.offences;
  if (before)
    lines.push([
      "before",
      `${plural(before.faults, "fault")} in ${plural(before.runs, "run")}, the last ${moment(before.last)}`,
    ]);
  if (gpu.known) lines.push(["id", gpu.known.uuid]);
  return lines;
}

/** The panel, hidden until GPUs are known. */
export const gpusPanel = () =>
  h(
    "section.panel",
    { id: "gpus-panel", hidden: true },
    panelHead(
      "GPUs",
      h("span.sub", { id: "gpus-note" }),
      grow(),
      segments("gpus-field", "What is shown", [
        ["util", "Load"],
        ["memory", "Memory"],
        ["temp", "Temperature"],
        ["power", "Power"],
        ["throttle", "Throttling"],
        ["ecc", "ECC"],
      ]),
    ),
    h("p.ranks-summary", { id: "gpus-summary", hidden: true }),
    h("div.cell-map", { id: "gpus" }),
    h("div.cell-legend", { id: "gpus-legend" }),
    h("div.gpus-none", { id: "gpus-none" }),
  );

export class GpuMap {
  constructor(page) {
    this.page = page;
    this.field = "util";
    this.known = new Map();
    /** GPUs that the server knows, by node, and how often it was asked. */
    this.indices = new Map();
    this.answers = 0;
    /** What each node shows, and what that was made of. */
    this.made = new Map();
    segmented(byId("gpus-field"), (value) => {
      this.field = value;
      this.draw(true);
    });
    this.visible = true;
    this.seen = new IntersectionObserver((entries) => {
      this.visible = entries[entries.length - 1].isIntersecting; // earlier ones are over
      if (this.visible) this.draw();
    });
    this.seen.observe(byId("gpus-panel"));
    this.timer = setInterval(() => document.hidden || this.fetch(), ASK_MS);
  }

  /** What the server knows of GPUs: identity, faults, offences of earlier runs. */
  async fetch() {
    try {
      const answer = await api.gpusOf(this.page.id);
      if (this.page.gone) return;
      this.known = new Map(answer.gpus.map((gpu) => [`${gpu.node} ${gpu.index}`, gpu]));
      this.indices = new Map();
      for (const { node, index } of this.known.values()) {
        if (index === null) continue;
        if (!this.indices.has(node)) this.indices.set(node, []);
        this.indices.get(node).push(index);
      }
      this.answers += 1;
      this.draw();
    } catch {
      // Readings are shown without it; asked again in a minute.
    }
  }

  /** An incident changed: the GPU that it is about may be another now. */
  soon() {
    clearTimeout(this.again);
    this.again = setTimeout(() => this.fetch(), SOON_MS);
  }

  /** GPUs of all nodes that an agent or the server knows: `[{label, cells}]`, and nodes without any. */
  groups(colors) {
    const { page } = this;
    const nodes = page.health.nodes();
    const now = page.now();
    const groups = [];
    const without = [];
    for (const agent of nodes) {
      // What a silent node read last says nothing of now.
      const stale = now - agent.time > STALE_S;
      const of = [agent, page.health.reads.get(agent.node), stale, this.answers, this.field, colors];
      let made = this.made.get(agent.node);
      // Of thousands of GPUs a few are read at a time.
      if (!made || of.some((one, index) => one !== made.of[index]))
        this.made.set(agent.node, (made = { of, group: this.group(agent, stale, colors) }));
      groups.push(made.group);
      if (!made.group.known) without.push(agent);
    }
    if (this.made.size > nodes.length) this.made.clear();
    return { groups, without };
  }

  /** The GPUs of one node; `known`: whether anybody ever saw one there. */
  group(agent, stale, colors) {
    const { node } = agent;
    const field = READING_FIELDS[this.field];
    const readings = this.page.health.gpus.get(node) || new Map();
    const indices = new Set([...(this.indices.get(node) || []), ...[...readings.keys()].map(Number)]);
    // Where none is known its place stays free: nodes stand where they stand among the ranks.
    /** @type {{label: string, tone: string, cells: any[], bad: any[], known: boolean}} */
    const group = { label: node, tone: "", cells: [], bad: [], known: indices.size > 0 };
    if (!group.known) return group;
    const ranks = new Map();
    for (const slot of agent.ranks) {
      if (!slot || !slot.gpu) continue;
      ranks.set(slot.gpu.index, [slot.rank]);
      // One that is lost from the start has no reading, but a rank says that it has it.
      indices.add(slot.gpu.index);
    }
    for (const index of [...indices].sort((a, b) => a - b)) {
      const key = `${node} ${index}`;
      const known = this.known.get(key);
      const fields = (!stale && readings.get(String(index))) || {};
      const any = field.has(fields);
      const state = known && known.state !== "ok" ? known.state : Object.keys(fields).length ? "ok" : "none";
      const gpu = {
        node,
        index,
        known,
        fields,
        state,
        stale,
        ranks: ranks.get(index) || known?.ranks || [],
        faults: known?.faults || [],
      };
      const facts = factsOf(gpu);
      const share = any ? Math.max(0, Math.min(0.999, field.share(fields, known))) : 0;
      const scale = field.cold ? colors.load : colors.ramp;
      const cell = {
        key,
        gpu,
        fill:
          state === "lost"
            ? colors["rank-dead"]
            : any
              ? scale[Math.floor(share * scale.length)]
              : colors["rank-unheard"],
        hollow: state !== "lost" && !any,
        mark: facts.mark || (any ? "" : "hatch"),
        ring: facts.tone,
        text: any && state !== "lost" ? field.words(fields) : "",
      };
      group.cells.push(cell);
      if (facts.tone) group.bad.push(cell);
    }
    group.tone = toneOf(group.bad.sort(worstFirst));
    return group;
  }

  /** Bring the panel up to date; `anyway`: though nobody sees it. */
  draw(anyway) {
    const { page } = this;
    const place = byId("gpus");
    if (!place || !page.ready) return;
    const { colors, font } = {
      colors: page.config.themes[colorTheme.name()].colors,
      font: page.config.font,
    };
    const { groups, without } = this.groups(colors);
    const count = groups.reduce((sum, group) => sum + group.cells.length, 0);
    const bad = groups.flatMap((group) => group.bad).sort(worstFirst);
    setShown(byId("gpus-panel"), page.health.agents.size > 0);
    setShown(byId("gpus-field"), count > 0);
    setShown(byId("gpus"), count > 0);
    setText(byId("gpus-note"), count ? `${plural(count, "GPU")}${bad.length ? "" : ", none with a fault"}` : "");
    setText(
      byId("gpus-summary"),
      bad.length
        ? `${plural(bad.length, "GPU")} with a fault: ${bad
            .slice(0, 3)
            .map(({ gpu }) => `GPU ${gpu.index} on ${gpu.node} is ${factsOf(gpu).label}`)
            .join("; ")}${bad.length > 3 ? ` and ${bad.length - 3} more` : ""}.`
        : "",
    );
    setClass(byId("gpus-summary"), `ranks-summary ${toneOf(bad)}`);
    setShown(byId("gpus-summary"), bad.length > 0);
    this.drawWithout(without);
    if (!this.visible && !anyway && this.map) return;
    const legend = count
      ? READING_FIELDS[this.field].legend.map(([share, said]) => [
          (READING_FIELDS[this.field].cold ? colors.load : colors.ramp)[Math.floor(share * colors.ramp.length)],
          "",
          said,
        ])
      : [];
    for (const [state, { label, mark, tone }] of Object.entries(gpuTable.states).reverse()) {
      const many = bad.filter((cell) => cell.gpu.state === state).length;
      const color = colors[tone === "critical" ? "rank-over" : "rank-behind"];
      if (many) legend.push([color, SIGNS[mark], `${label} ${formatCount(many)}`]);
    }
    fillLegend(byId("gpus-legend"), legend);
    if (!count) return;
    this.map = this.map || this.makeMap(place);
    this.map.set(groups, colors, font);
  }

  makeMap(place) {
    return new CellMap(place, {
      label: "GPUs by node. Arrow keys go from GPU to GPU, Enter pins its details.",
      name: ({ gpu, text }) => `GPU ${gpu.index} on ${gpu.node} ${factsOf(gpu).label} ${text}`,
      describe: ({ gpu }) => {
        const fault = gpu.faults.find((one) => one.incident_id);
        return {
          title: `GPU ${gpu.index} · ${gpu.node}`,
          tone: factsOf(gpu).tone,
          lines: story(gpu),
          link: fault ? { href: incidentHref(this.page.id, fault.incident_id), text: "Open the incident" } : null,
        };
      },
    });
  }

  /** Nodes on which no GPU is seen, by the reason that their agents give. */
  drawWithout(without) {
    const reasons = new Map();
    for (const agent of without) {
      const why = agent.gpuVisible
        ? "its GPUs are there, but nothing has been read yet"
        : agent.gpuText || "no GPU visible here: the agent has not reported why yet";
      if (!reasons.has(why)) reasons.set(why, []);
      reasons.get(why).push(agent.node);
    }
    const place = byId("gpus-none");
    const key = JSON.stringify([...reasons]);
    if (place.dataset.key === key) return;
    place.dataset.key = key;
    fill(
      place,
      [...reasons].map(([why, nodes]) =>
        h("div", h("b", nodes.length > NAMED ? plural(nodes.length, "node") : nodes.join(", ")), ` ${why}`),
      ),
    );
  }

  close() {
    clearInterval(this.timer);
    clearTimeout(this.again);
    this.seen.disconnect();
    if (this.map) this.map.close();
  }
}
