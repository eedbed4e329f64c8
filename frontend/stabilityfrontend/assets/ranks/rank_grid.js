// The ranks of a run: a wall of cells by node for many, cards with words for a few. Colour by state, phase, steps behind
// or age; every rank's whole story under the pointer, and one line that says it all.

import { grow, panelHead, segments } from "../core/controls.js";
import { byId, fill, h, segmented, setClass, setShown, setText } from "../core/dom.js";
import { ago, duration, formatAge, formatCount, plural, sentence } from "../core/format.js";
import { incidentKind, rankTable } from "../core/kinds.js";
import { incidentHref } from "../core/route.js";
import { colorTheme } from "../core/theme.js";
import { CellMap, inkOn } from "./cell_map.js";
import { processWords, rankWords } from "./rank_words.js";

// -- What each rank does, as the server judges it (docs/api.md, Health): its rows and sentences.

/** What is known of a rank. Its words are made when somebody reads them: of thousands one or two stand in a sentence. */
class Row {
  constructor(slot, agent, heardS, waitsFor, named, place) {
    this.rank = slot.rank;
    this.node = agent.node;
    this.agent = agent;
    this.slot = slot;
    this.state = slot.status;
    /** The worst is 0. */
    this.place = place;
    /** What follows from that; otherwise for one that an open verdict names. Colours are `rank-<state>` of theme.py. */
    this.facts = named ? { ...rankTable.statuses[this.state], ...rankTable.named } : rankTable.statuses[this.state];
    /** The ranks that it waits for, where they are known. */
    this.waitsFor = waitsFor;
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
 * A row for each rank, by rank: `{rank, node, agent, slot, state, facts, words, lag, stoodS, phaseS, heardS, beatS}`.
 * Times are on the agents' clocks: a node's clock that is off changes no age.
 */
export function rankRows(page) {
  const now = page.now();
  const { waitsFor } = page.health;
  const named = new Set(waitsFor);
  const statuses = Object.keys(rankTable.statuses);
  const found = new Map();
  for (const agent of page.health.nodes()) {
    const heardS = Math.max(0, now - agent.time);
    // A process without a status is one that another has replaced, or of a rank that the job has no more.
    for (const slot of agent.ranks) {
      const place = slot ? statuses.indexOf(slot.status) : -1;
      if (place >= 0 && !found.has(slot.rank))
        found.set(slot.rank, new Row(slot, agent, heardS, waitsFor, named.has(slot.rank), place));
    }
  }
  const rows = [...found.values()].sort((a, b) => a.rank - b.rank);
  let front = -Infinity;
  for (const { state, slot } of rows)
    if (state !== "dead" && state !== "finished" && slot.step > front) front = slot.step;
  for (const row of rows)
    row.lag =
      row.slot.step === null || row.slot.step < 0 || !Number.isFinite(front)
        ? null
        : Math.max(0, front - row.slot.step);
  return rows;
}

const since = (seconds) => (seconds === null ? "" : ` for ${duration(seconds)}`);

/** What a rank does, to be read after its name. */
function wordsOf(row) {
  const { slot } = row;
  switch (row.state) {
    case "dead":
      return slot.state === "exception"
        ? "left by an exception"
        : slot.state === "left"
          ? "left without finish"
          : "is gone";
    case "over":
      return `has been stalled in ${slot.phase || "this step"}${since(row.stoodS)}`;
    case "unheard":
      return row.agent.connected
        ? `has not reported for ${duration(row.heardS)}`
        : `is not visible: its agent is disconnected, last report ${ago(row.heardS)}`;
    case "unread":
      return "has a slot that can't be read";
    case "behind":
      return `is ${plural(row.lag, "step")} behind`;
    case "waits":
      return `waits ${row.waitsFor.length ? `for ${rankWords(row.waitsFor, 3)}, ` : ""}in ${slot.phase || "this step"}${since(row.stoodS)}`;
    case "long":
      return `has been in ${slot.phase || "a long phase"}${since(row.phaseS)}`;
    default:
      return row.state === "finished" ? "finished" : "runs";
  }
}

/** Worst first, then furthest behind, then longest in its phase. */
const worstFirst = (a, b) =>
  a.place - b.place || (b.lag || 0) - (a.lag || 0) || (b.stoodS || 0) - (a.stoodS || 0) || a.rank - b.rank;

/** `"2,047 of 2,048 ranks run; rank 517 on gpu-064 has been stalled in data for 74 s"`. */
export function rankSummary(rows, worldSize) {
  if (!rows.length) return "";
  const total = Math.max(rows.length, worldSize || 0);
  const counted = (as) => rows.filter((row) => row.facts.counted === as);
  const [fine, waits, done] = ["runs", "waits", "finished"].map((as) => counted(as).length);
  // Before the first step all compile or load: that says more than that they run.
  const phase = rows[0].slot?.phase;
  const together = phase && rows.every(({ state, slot }) => state === "long" && slot?.phase === phase);
  const parts = [
    done === rows.length
      ? `all ${plural(done, "rank")} finished`
      : together && total === rows.length
        ? `all ${plural(total, "rank")} are in ${phase}`
        : total === 1
          ? `the rank ${fine ? "runs" : "does not run"}`
          : `${formatCount(fine)} of ${plural(total, "rank")} run`,
  ];
  if (waits) parts.push(`${formatCount(waits)} ${waits === 1 ? "waits" : "wait"}`);
  const bad = counted("trouble").sort(worstFirst);
  for (const row of bad.slice(0, 2)) parts.push(`rank ${row.rank} on ${row.node} ${row.words}`);
  if (bad.length > 2) parts.push(`${formatCount(bad.length - 2)} more in trouble`);
  if (total > rows.length) parts.push(`${plural(total - rows.length, "rank")} unseen`);
  return parts.join("; ");
}

/** Up to so many ranks each has a card with words. */
const CARDS = 16;
/** Cells of a group where ranks stand worst first and not by node. */
const ROW = 8;
/** Phases that get a colour of their own. */
const PHASES = 8;
/** Ages of a phase that get the next colour, seconds. */
const AGES = [2, 5, 15, 60, 300];
/** The marks of cells where there is text. */
export const SIGNS = {
  ...{ cross: "×", bang: "!", hatch: "", question: "?", down: "▾", up: "▴", dash: "–", dots: "…", tick: "✓" },
  "": "",
};
/** Open incidents by the ranks that they blame. */
function blamed(page) {
  const found = new Map();
  for (const incident of page.incidents()) {
    if (incident.state !== "open" || !incidentKind(incident.kind).blame) continue;
    const verdict = (incident.evidence && incident.evidence.verdict) || {};
    const culprits = Array.isArray(verdict.culprits) ? verdict.culprits : [];
    for (const rank of [...culprits, incident.rank])
      if (typeof rank === "number" && !found.has(rank)) found.set(rank, incident);
  }
  return found;
}

const ramp = (colors, share) =>
  colors.ramp[Math.max(0, Math.min(colors.ramp.length - 1, Math.floor(share * colors.ramp.length)))];

/** How cells are coloured: `paint(row) -> {fill, mark, hollow}` and `legend: [[fill, sign, words, hollow]]`. */
function painter(kind, rows, colors) {
  const base = ({ state, facts: { hollow, mark } }, fill) => ({
    fill: hollow ? colors["rank-unheard"] : fill,
    hollow,
    mark: hollow || state === "dead" ? mark : "",
  });
  if (kind === "phase") {
    const counts = new Map();
    for (const row of rows) counts.set(row.slot.phase, (counts.get(row.slot.phase) || 0) + 1);
    const names = [...counts.keys()].filter(Boolean).sort().slice(0, PHASES);
    const color = new Map(names.map((name, index) => [name, colors.series[index % colors.series.length]]));
    return {
      paint: (row) => base(row, color.get(row.slot.phase) || colors["rank-finished"]),
      legend: names.map((name) => [color.get(name), "", `${name} ${formatCount(counts.get(name))}`]),
    };
  }
  if (kind === "lag") {
    const most = Math.max(1, ...rows.map((row) => row.lag || 0));
    const levels = [...new Set([0, 1, 3, 10, 30, 100, 1000].filter((lag) => lag < most).concat(most))].slice(
      -colors.ramp.length,
    );
    const share = (lag) => (lag <= 0 ? 0 : 0.17 + (0.82 * Math.log1p(lag)) / Math.log1p(Math.max(most, 3)));
    return {
      paint: (row) => base(row, row.lag === null ? colors["rank-finished"] : ramp(colors, share(row.lag))),
      legend: levels.map((lag) => [ramp(colors, share(lag)), "", lag === 0 ? "at the front" : `−${formatCount(lag)}`]),
    };
  }
  if (kind === "age") {
    const level = (seconds) => AGES.filter((age) => seconds >= age).length / AGES.length - 0.01;
    return {
      paint: (row) => base(row, row.stoodS === null ? colors["rank-finished"] : ramp(colors, level(row.stoodS))),
      legend: [0, ...AGES].map((age) => [ramp(colors, level(age)), "", age ? `≥ ${formatAge(age)}` : `< ${AGES[0]} s`]),
    };
  }
  const counts = new Map();
  for (const row of rows) counts.set(row.state, (counts.get(row.state) || 0) + 1);
  return {
    paint: ({ state, facts: { hollow, mark } }) => ({ fill: colors[`rank-${state}`], hollow, mark }),
    legend: Object.entries(rankTable.statuses)
      .filter(([state]) => counts.has(state))
      .reverse()
      .map(([state, { label, mark, hollow }]) => [
        colors[`rank-${state}`],
        SIGNS[mark],
        `${label} ${formatCount(counts.get(state))}`,
        hollow,
      ]),
  };
}
export function fillLegend(place, legend) {
  const key = JSON.stringify(legend);
  if (!place || place.dataset.key === key) return;
  place.dataset.key = key;
  fill(
    place,
    legend.map(([fill, sign, said, hollow]) =>
      h(
        "span.cell-key",
        h(
          "i",
          {
            class: hollow ? (sign ? "hollow" : "hollow hatched") : "",
            style: hollow ? { "border-color": fill, color: fill } : { background: fill, color: inkOn(fill) },
          },
          sign,
        ),
        said,
      ),
    ),
  );
}

/** All that is known of a rank, `[name, words]`. */
function story(row, blamed) {
  const { slot } = row;
  const proc = [
    slot.proc ? processWords(slot.proc) : "",
    slot.cpu === null ? "" : `${Math.round(100 * slot.cpu)} % of a core`,
    slot.wchan && slot.wchan !== "0" ? `in ${slot.wchan}` : "",
  ]
    .filter(Boolean)
    .join(", ");
  return [
    ["", row.words],
    [
      "step",
      slot.step === null
        ? ""
        : slot.step < 0
          ? "none yet"
          : `${formatCount(slot.step)}${row.lag ? `, ${formatCount(row.lag)} behind` : ""}`,
    ],
    ["phase", slot.phase ? `${slot.phase}${row.phaseS === null ? "" : ` for ${duration(row.phaseS)}`}` : ""],
    [
      "budget",
      slot.budget_s === null
        ? ""
        : `${duration(slot.budget_s)}${slot.expect_s ? `, declared ${duration(slot.expect_s)}` : ""}`,
    ],
    ["heartbeat", !slot.alive ? "" : row.beatS === null ? "regular" : `stalled for ${duration(row.beatS)}`],
    ["process", proc],
    ["pid", slot.pid === null ? "" : String(slot.pid)],
    ["GPU", slot.gpu ? `${slot.gpu.index}${slot.gpu.uuid ? ` · ${slot.gpu.uuid.slice(0, 12)}` : ""}` : ""],
    ["last report", row.heardS < 5 ? "" : ago(row.heardS)],
    ["slot", slot.trouble],
    ["dropped", slot.dropped ? `${plural(slot.dropped, "record")}: its disk or its agent could not keep up` : ""],
    ["incident", blamed ? blamed.title || incidentKind(blamed.kind).label : ""],
  ];
}

const nothingSeen = (health) =>
  health.followed
    ? "Only the log of this run is followed. Ranks and GPUs are shown where an agent runs beside the job."
    : "No agent is connected. Ranks and GPUs are shown while one is.";

/** The worst of some tones; that something is long is none of them. */
const worstTone = (rows) => ["critical", "warning"].find((tone) => rows.some((row) => row.facts.tone === tone)) || "";

/** The panel. */
export const ranksPanel = () =>
  h(
    "section.panel",
    { id: "ranks-panel" },
    panelHead(
      "Ranks",
      h("span.sub", { id: "ranks-note" }),
      grow(),
      segments("ranks-order", "Order", [
        ["node", "By node"],
        ["worst", "Worst first"],
      ]),
      segments("ranks-color", "Colour by", [
        ["state", "State"],
        ["phase", "Phase"],
        ["lag", "Step lag"],
        ["age", "Age"],
      ]),
    ),
    h("p.ranks-summary", { id: "ranks-summary", hidden: true }),
    h("div.cell-map", { id: "ranks" }),
    h("div.cell-legend", { id: "ranks-legend" }),
    h("div.blind", { id: "blind", hidden: true }),
  );

export class RankGrid {
  constructor(page) {
    this.page = page;
    this.color = "state";
    this.order = "node";
    this.rows = [];
    this.blamed = new Map();
    this.cards = new Map();
    /** Cells by rank, as they were drawn last. */
    this.cells = new Map();
    segmented(byId("ranks-color"), (value) => this.change("color", value));
    segmented(byId("ranks-order"), (value) => this.change("order", value));
    this.visible = true;
    this.seen = new IntersectionObserver((entries) => {
      this.visible = entries[entries.length - 1].isIntersecting; // earlier ones are over
      if (this.visible) this.draw();
    });
    this.seen.observe(byId("ranks-panel"));
  }

  change(what, value) {
    this[what] = value;
    this.draw(true);
  }

  /** Bring the panel up to date; `anyway`: though nobody sees it. */
  draw(anyway) {
    const { page } = this;
    const place = byId("ranks");
    if (!place) return;
    const rows = (this.rows = rankRows(page));
    this.blamed = blamed(page);
    const some = rows.length > 0;
    setText(byId("ranks-summary"), some ? `${sentence(rankSummary(rows, page.worldSize()))}` : "");
    setClass(byId("ranks-summary"), `ranks-summary ${worstTone(rows)}`);
    setText(byId("ranks-note"), some ? plural(new Set(rows.map((row) => row.node)).size, "node") : "");
    setShown(byId("ranks-summary"), some);
    const large = rows.length > CARDS;
    setShown(byId("ranks-color"), large);
    setShown(byId("ranks-order"), large);
    // Once in any case, so that the wall has its height before somebody scrolls to it.
    if (!this.visible && !anyway && this.map && !page.asked?.unseen) return;
    if (!some) {
      this.leave();
      fillLegend(byId("ranks-legend"), []);
      fill(place, h("div.nothing", page.ready && page.health.known ? nothingSeen(page.health) : ""));
    } else if (large) this.drawWall(place, rows);
    else this.drawCards(place, rows);
    page.asked?.showNode(rows);
  }

  /** Forget what stood there. */
  leave() {
    if (this.map) this.map.close();
    this.map = null;
    this.cards.clear();
    this.cells.clear();
    this.shape = "";
  }

  drawWall(place, rows) {
    const { page } = this;
    if (!this.map) {
      this.leave();
      this.map = new CellMap(place, {
        label: "Ranks by node. Arrow keys go from rank to rank, Enter pins its details.",
        name: ({ row }) => `rank ${row.rank} on ${row.node} ${row.words}`,
        describe: ({ row }) => {
          const blamed = this.blamed.get(row.rank);
          return {
            title: `Rank ${row.rank} · ${row.node}`,
            tone: row.facts.tone,
            lines: story(row, blamed),
            link: blamed ? { href: incidentHref(page.id, blamed.incident_id), text: "Open the incident" } : null,
          };
        },
      });
    }
    const theme = page.config.themes[colorTheme.name()];
    const { paint, legend } = painter(this.color, rows, theme.colors);
    fillLegend(byId("ranks-legend"), legend);
    const cell = (row) => this.cell(row, paint(row));
    let groups;
    if (this.order === "worst") {
      const sorted = [...rows].sort(worstFirst);
      groups = [];
      for (let at = 0; at < sorted.length; at += ROW)
        groups.push({ label: "", cells: sorted.slice(at, at + ROW).map(cell) });
    } else {
      const nodes = new Map();
      for (const row of rows) {
        if (!nodes.has(row.node)) nodes.set(row.node, []);
        nodes.get(row.node).push(row);
      }
      groups = page.health
        .nodes()
        .filter(({ node }) => nodes.has(node))
        .map(({ node }) => {
          const there = nodes.get(node);
          return { label: node, cells: there.map(cell), tone: worstTone(there.filter((row) => row.facts.on_node)) };
        });
    }
    this.map.set(groups, theme.colors, this.page.config.font);
  }

  /** The cell of a rank: the very one of before where it looks the same, so that the wall passes over it. */
  cell(row, { fill, mark, hollow }) {
    const ring = this.blamed.has(row.rank) ? "text" : row.node === this.page.asked?.node ? "accent" : "";
    const letter = row.slot.phase.slice(0, 1);
    let cell = this.cells.get(row.rank);
    if (
      !cell ||
      cell.fill !== fill ||
      cell.mark !== mark ||
      cell.hollow !== hollow ||
      cell.ring !== ring ||
      cell.letter !== letter
    ) {
      cell = { key: row.rank, row, fill, mark, hollow, ring, letter, text: `${row.rank}`, x: 0, y: 0 };
      this.cells.set(row.rank, cell);
    }
    cell.row = row;
    return cell;
  }

  drawCards(place, rows) {
    const { colors } = this.page.config.themes[colorTheme.name()];
    const shape = JSON.stringify(rows.map((row) => [row.node, row.rank]));
    if (shape !== this.shape) {
      this.leave();
      this.shape = shape;
      const nodes = new Map();
      for (const row of rows) {
        if (!nodes.has(row.node)) nodes.set(row.node, []);
        nodes.get(row.node).push(this.makeCard(row));
      }
      fill(
        place,
        [...nodes].map(([node, cards]) =>
          h(
            "div",
            { class: `rank-node${node === this.page.asked?.node ? " chosen" : ""}`, data: { node } },
            h("h3", node),
            h("div.rank-cards", cards),
          ),
        ),
      );
    }
    fillLegend(byId("ranks-legend"), []);
    for (const row of rows) this.fillCard(this.cards.get(row.rank), row, colors);
  }

  makeCard(row) {
    const parts = {
      head: h("b", `Rank ${row.rank}`),
      sign: h("i"),
      said: h("div.rank-said"),
      list: h("dl"),
      link: h("span"),
    };
    const element = h(
      "article.rank-card",
      { tabindex: "0", data: { rank: String(row.rank) } },
      h("div.rank-head", parts.sign, parts.head, h("span.grow"), parts.link),
      parts.said,
      parts.list,
    );
    this.cards.set(row.rank, { element, ...parts });
    return element;
  }

  fillCard(card, row, colors) {
    const blamed = this.blamed.get(row.rank);
    const { state, facts } = row;
    card.element.dataset.state = state;
    setClass(card.element, `rank-card ${facts.tone}`);
    const color = colors[`rank-${facts.tone === "critical" && state !== "dead" ? "over" : state}`];
    setText(card.sign, SIGNS[facts.mark]);
    card.sign.style.background = facts.hollow ? "transparent" : color;
    card.sign.style.borderColor = color;
    card.sign.style.color = facts.hollow ? color : inkOn(color);
    setText(card.said, sentence(row.words));
    const href = blamed ? incidentHref(this.page.id, blamed.incident_id) : "";
    if (card.href !== href) {
      card.href = href;
      fill(card.link, href ? h("a", { href }, "incident") : null);
    }
    const lines = story(row, null).filter(([name, said]) => name && said);
    const names = lines.map(([name]) => name).join();
    if (card.names !== names) {
      card.names = names;
      fill(card.list, lines.map(([name]) => [h("dt", name), h("dd")]).flat());
    }
    lines.forEach(([, said], index) => setText(card.list.children[2 * index + 1], said));
  }

  close() {
    this.seen.disconnect();
    this.leave();
  }
}
