// All incidents of all runs, live: open ones first, by severity, as the server orders them; acknowledged one by one or many
// at once. What is chosen stands in the address.

import { api } from "../core/api.js";
import { choice, grow, remember, segments } from "../core/controls.js";
import {
  byId,
  fill,
  h,
  patch,
  pressed,
  segmented,
  setClass,
  setShown,
  setText,
  toast,
  whenTitle,
} from "../core/dom.js";
import { ago, duration, errorText, formatCount, moment, plural } from "../core/format.js";
import { appearanceOf, kindTable, tonedClass } from "../core/kinds.js";
import { Live } from "../core/live.js";
import { incidentHref } from "../core/route.js";
import { askSoon, frame, livePill, morePanels } from "../navigation/rail.js";
import { drawBanner, drawPill } from "../run/header.js";

// -- Equal incidents of one run as one row: the list of all runs shows what there is, not how often it was said.

/**
 * Groups of a list, in its order: of one run, one kind, one severity, and open or not. `first` stands for the group, the
 * others are `more`.
 */
function grouped(incidents) {
  const groups = new Map();
  for (const one of incidents) {
    const open = one.state === "open";
    const key = `${one.run_id} ${one.kind} ${open ? one.severity : "over"}`;
    const known = groups.get(key);
    if (known) known.more.push(one);
    else groups.set(key, { key, first: one, more: [] });
  }
  return [...groups.values()];
}

/** Filters of the page from its address, and back: `state` is open where it is left out. */
const FILTERS = ["state", "severity", "kind", "project", "run", "ack"];

function filtersOf(search) {
  const query = new URLSearchParams(search);
  const found = Object.fromEntries(FILTERS.map((name) => [name, query.get(name) || ""]));
  found.state = query.has("state") ? found.state.replace("all", "") : "open";
  return found;
}

/** What the server is asked for. */
function askedFor(filters) {
  const { state, severity, kind, project, run, ack } = filters;
  return {
    ...(state === "open" ? { state: "open" } : state === "over" ? { state: ["recovered", "resolved"] } : {}),
    ...(severity ? { severity: severity === "warning" ? ["critical", "warning"] : severity } : {}),
    ...(kind ? { kind } : {}),
    ...(project ? { project } : {}),
    ...(run ? { run } : {}),
    ...(ack ? { acknowledged: ack === "yes" } : {}),
  };
}

/** Whether an incident has all words that were typed. */
function hasWords(incident, typed) {
  const text = [incident.title, incident.label, incident.run_name, incident.run_id, incident.project, incident.node]
    .join(" ")
    .toLowerCase();
  return typed
    .toLowerCase()
    .split(/\s+/)
    .filter(Boolean)
    .every((word) => text.includes(word));
}

// -- The rows of the list of all incidents: what it is, of which run, since when, who looks after it.

const ADVICE = { roll_back: "roll back", restart: "restart", wait: "wait", inspect: "look into it" };

/** Where an incident is in words. */
const place = (one) =>
  [
    one.project || "no project",
    one.onset_step >= 0 ? `step ${formatCount(one.onset_step)}` : null,
    one.dataset,
    one.node,
    one.rank === null ? null : `rank ${one.rank}`,
    one.dead ? "on a discarded branch" : null,
  ].filter(Boolean);

/**
 * A group's row, and its others where it is unfolded. `page`: unfolded, chosen, busy, live, and what is done: `draw`, `choose`,
 * `acknowledge`.
 */
function rowsOf(page, { key, first, more }) {
  const unfolded = page.unfolded.has(key);
  const fold = more.length
    ? h(
        "button.link.fold-more",
        {
          "aria-expanded": String(unfolded),
          data: { fold: key },
          onclick: () => {
            if (unfolded) page.unfolded.delete(key);
            else page.unfolded.add(key);
            page.draw();
          },
        },
        unfolded ? "fold" : `and ${formatCount(more.length)} more`,
      )
    : null;
  const ids = unfolded ? [first] : [first, ...more];
  return [row(page, first, fold, ids), ...(unfolded ? more.map((one) => row(page, one, null, [one], true)) : [])];
}

/** One row; what is done with it is done with all of `same`. */
function row(page, one, fold, same, within = false) {
  const open = one.state === "open";
  const waiting = same.filter((other) => other.state === "open" && !other.acknowledged_by && other.alarm);
  const look = appearanceOf(one);
  const { tone } = look;
  const box = h("input", {
    type: "checkbox",
    "aria-label": `Choose ${one.title || one.label} of ${one.run_name}`,
    data: { needs: "command" },
    onchange: (event) =>
      page.choose(
        waiting.map((other) => other.incident_id),
        event.target.checked,
      ),
  });
  box.checked = waiting.length > 0 && waiting.every((other) => page.chosen.has(other.incident_id));
  box.disabled = waiting.length === 0;
  const busy = same.some((other) => page.busy.has(other.incident_id));
  const by = same.find((other) => other.acknowledged_by);
  const href = incidentHref(one.run_id, one.incident_id);
  const now = page.live.now();
  return h(
    "li",
    { data: { rowOf: one.incident_id, tone }, class: `incident-row ${tone}${within ? " within" : ""}` },
    box,
    h(
      "div.row-what",
      h("a.row-title", { href, data: { row: one.incident_id } }, one.title || one.label),
      h(
        "div.sub",
        h("span", { class: tonedClass("appearance", look) }, open ? one.severity : look.word),
        ` · ${one.label}`,
        fold ? " · " : null,
        fold,
      ),
    ),
    h(
      "div.row-run",
      h("a", { href: `/runs/${encodeURIComponent(one.run_id)}` }, one.run_name),
      h("div.sub", place(one).join(" · ")),
    ),
    h(
      "div.row-when",
      { title: whenTitle(one.since) },
      h("div", ago(now - one.since)),
      h("div.sub", open || one.resolved === null ? moment(one.since) : `lasted ${duration(one.resolved - one.since)}`),
    ),
    h(
      "div.row-do",
      waiting.length
        ? h(
            "button.button",
            {
              disabled: busy,
              title: "Tells others that you look after it; it stays open",
              data: { acknowledge: one.incident_id, needs: "command" },
              onclick: () => page.acknowledge(waiting),
            },
            busy ? "…" : waiting.length > 1 ? `Acknowledge ${formatCount(waiting.length)}` : "Acknowledge",
          )
        : by
          ? h("span.sub", { title: whenTitle(by.acknowledged) }, `${by.acknowledged_by}, ${ago(now - by.acknowledged)}`)
          : null,
      open && ADVICE[one.advice] ? h("span.sub", `advice: ${ADVICE[one.advice]}`) : null,
    ),
  );
}

/** Incidents asked for at once, and groups drawn at first and with each press of the button under them. */
const [AT_ONCE, GROUPS] = [500, 100];
/** What comes live is asked for together after so long. */
const SOON_MS = 700;
/** Acknowledged at a time: a run that is over may have to be read from its archive first. */
const TOGETHER = 4;

/** How many incidents are open, as the rail counts them, and beside that those that are only for information. */
const openWords = (counts) =>
  [
    counts?.alarms ? `${formatCount(counts.alarms)} open` : "",
    counts?.open > counts?.alarms ? `${formatCount(counts.open - counts.alarms)} for information` : "",
  ]
    .filter(Boolean)
    .join(" · ");

const skeleton = () =>
  frame(
    [h("h1.crumb-here", "Incidents"), h("span.chip", { id: "incidents-open" }), livePill()],
    h(
      "main.list.stack",
      h(
        "section.panel",
        { "aria-label": "Incidents" },
        h(
          "div.panel-head.wrap",
          h("div", { id: "incidents-search" }),
          segments("incidents-state", "Which incidents", [
            ["open", "Open"],
            ["", "All"],
            ["over", "Over"],
          ]),
          segments("incidents-severity", "Severity", [
            ["", "Any"],
            ["critical", "Critical"],
            ["warning", "Warning and up"],
          ]),
          h("div.tools-row", { id: "incidents-more-filters" }),
          grow(),
          h("div.tools-row", { id: "incidents-chosen" }),
        ),
        h("div", { id: "incidents-list" }),
        h("div.runs-more", { id: "incidents-foot", hidden: true }),
        h("div", { id: "incidents-empty", hidden: true }),
      ),
      morePanels(),
    ),
  );

export class IncidentsPage {
  static skeleton = skeleton;

  constructor(root) {
    this.root = root;
    this.filters = filtersOf(location.search);
    this.incidents = /** @type {import("../../../types/api").ListedIncident[]} */ ([]);
    this.answer = /** @type {any} */ (null);
    this.next = null;
    this.state = "connecting";
    this.shownGroups = GROUPS;
    this.unfolded = new Set();
    this.chosen = new Set();
    this.busy = new Set();
    this.search = h("input.field", {
      id: "incidents-filter",
      type: "search",
      placeholder: "Search title, run, project, node",
      "aria-label": "Search incidents",
      autocomplete: "off",
      value: new URLSearchParams(location.search).get("q") || "",
      oninput: () => {
        remember({ q: this.search.value.trim() || null });
        this.draw();
      },
    });
    fill(byId("incidents-search"), this.search);
    const set = (name) => (value) => {
      this.filters[name] = value;
      this.changed();
    };
    this.setState = segmented(byId("incidents-state"), set("state"));
    this.setSeverity = segmented(byId("incidents-severity"), set("severity"));
    this.removeRun = h("button.toggle.on", { id: "incidents-run", onclick: () => set("run")("") }, "");
    this.lists = this.makeLists(set);
    this.ack = h(
      "button.button.primary",
      {
        id: "incidents-ack",
        data: { needs: "command" },
        onclick: () => this.acknowledge(this.incidents.filter((one) => this.chosen.has(one.incident_id))),
      },
      "Acknowledge",
    );
    this.none = h("button.link", { onclick: () => this.choose([...this.chosen], false) }, "None");
    fill(byId("incidents-chosen"), this.none, this.ack);
    this.more = h("button.button", { onclick: () => this.showMore() }, "Show more");
    this.words = h("span.sub");
    fill(byId("incidents-foot"), this.words, this.more);
    this.live = new Live(
      null,
      (message) => this.onMessage(message),
      (state) => (this.state = state),
    );
    this.fetch();
    this.draw();
    this.tick = setInterval(() => this.onTick(), 1000);
  }

  makeLists(set) {
    const places = ["kind", "ack", "project"].map((name) => h("div.tool", { data: { filter: name } }));
    fill(byId("incidents-more-filters"), places, this.removeRun);
    return {
      kind: choice(places[0], "incidents-kind", "Kind", set("kind"), true),
      ack: choice(places[1], "incidents-acknowledged", "Acknowledged", set("ack"), true),
      project: choice(places[2], "incidents-project", "Project", set("project"), true),
    };
  }

  drawFilters() {
    const { filters } = this;
    this.setState(filters.state, true);
    this.setSeverity(filters.severity, true);
    const kinds = Object.values(kindTable).filter((kind) => kind.name);
    this.lists.kind.options(
      [{ value: "", text: "Every kind" }, ...kinds.map((kind) => ({ value: kind.name, text: kind.label }))],
      filters.kind,
    );
    this.lists.ack.options(
      [
        { value: "", text: "Acknowledged or not" },
        { value: "no", text: "Not acknowledged" },
        { value: "yes", text: "Acknowledged" },
      ],
      filters.ack,
    );
    const projects = [...new Set([...this.incidents.map((one) => one.project), filters.project])]
      .filter(Boolean)
      .sort();
    this.lists.project.options(
      [{ value: "", text: "Every project" }, ...projects.map((one) => ({ value: one, text: one }))],
      filters.project,
    );
    setShown(this.removeRun, Boolean(filters.run));
    setText(this.removeRun, `Only of run ${this.incidents[0]?.run_name || filters.run} ×`);
  }

  /** Another filter: the address remembers it, and the list begins anew. */
  changed() {
    remember(
      Object.fromEntries(
        FILTERS.map((name) => [
          name,
          name === "state" ? (this.filters.state === "open" ? null : this.filters.state || "all") : this.filters[name],
        ]),
      ),
    );
    this.shownGroups = GROUPS;
    this.chosen.clear();
    this.fetch();
    this.draw();
  }

  /** The address was changed by a link. */
  addressChanged() {
    this.filters = filtersOf(location.search);
    this.changed();
  }

  /** Ask anew for as many as are here, all that are open at least. */
  async fetch() {
    this.asking = (this.asking || 0) + 1;
    const mine = this.asking;
    const wanted = Math.max(this.incidents.length, 1);
    const found = [];
    let answer = /** @type {any} */ (null);
    try {
      do {
        answer = await api.allIncidents({
          ...askedFor(this.filters),
          limit: AT_ONCE,
          ...(answer ? { cursor: answer.next } : {}),
        });
        if (this.gone || mine !== this.asking) return;
        found.push(...answer.incidents);
      } while (answer.next && (found.length < wanted || found[found.length - 1].state === "open"));
    } catch (error) {
      if (this.gone || mine !== this.asking) return;
      this.trouble = errorText(error);
      this.again = setTimeout(() => this.fetch(), 2000 + 2000 * Math.random());
      return;
    }
    this.trouble = null;
    Object.assign(this, { incidents: found, answer, next: answer.next });
    const there = new Set(found.map((one) => one.incident_id));
    for (const id of this.chosen) if (!there.has(id)) this.chosen.delete(id);
    if (!answer.complete) this.soon();
    this.draw();
  }

  soon() {
    clearTimeout(this.again);
    this.again = setTimeout(() => this.fetch(), SOON_MS);
  }

  onMessage(message) {
    const after = message.type === "hello" && (message.afterLoss || this.trouble);
    if (message.type === "incident" || message.type === "reset" || after) this.soon();
  }

  async showMore() {
    this.shownGroups += GROUPS;
    if (this.next && grouped(this.incidents).length < this.shownGroups) {
      try {
        const answer = await api.allIncidents({ ...askedFor(this.filters), limit: AT_ONCE, cursor: this.next });
        if (this.gone) return;
        this.incidents.push(...answer.incidents);
        this.next = answer.next;
      } catch (error) {
        toast(errorText(error), "warning");
      }
    }
    this.draw();
  }

  /** Choose incidents to acknowledge them together, or not any more. */
  choose(ids, on) {
    for (const id of ids) {
      if (on) this.chosen.add(id);
      else this.chosen.delete(id);
    }
    this.draw();
  }

  async acknowledge(incidents) {
    const wanted = incidents.filter(
      (one) => one.state === "open" && !one.acknowledged_by && !this.busy.has(one.incident_id),
    );
    const rest = [...wanted];
    let failed = /** @type {any} */ (null);
    for (const one of wanted) this.busy.add(one.incident_id);
    this.draw();
    const work = async () => {
      for (let one = rest.shift(); one; one = rest.shift()) {
        try {
          const answer = await api.acknowledge(one.run_id, one.incident_id);
          Object.assign(one, {
            state: answer.state,
            acknowledged_by: answer.acknowledged_by,
            acknowledged: answer.acknowledged,
          });
          this.chosen.delete(one.incident_id);
        } catch (error) {
          failed = error;
        }
        this.busy.delete(one.incident_id);
        this.draw();
      }
    };
    await Promise.all(Array.from({ length: TOGETHER }, work));
    if (failed) toast(errorText(failed), "critical");
    else if (wanted.length > 1) toast(`${plural(wanted.length, "incident")} acknowledged.`, "good");
    askSoon();
    this.soon();
  }

  onTick() {
    if (this.gone || document.hidden || !this.root.isConnected || pressed()) return;
    drawPill(this.live, this.state, null, null, false);
    drawBanner(this.live, this.trouble);
    this.draw();
  }

  draw() {
    if (this.gone || !this.root.isConnected) return;
    this.drawFilters();
    const typed = this.search.value.trim();
    const list = typed ? this.incidents.filter((one) => hasWords(one, typed)) : this.incidents;
    const groups = grouped(list);
    const shown = groups.slice(0, this.shownGroups);
    const counts = this.answer?.counts;
    const badge = byId("incidents-open");
    setText(badge, openWords(counts));
    setClass(badge, `chip ${counts?.critical ? "critical" : counts?.warning ? "warning" : ""}`);
    patch(
      byId("incidents-list"),
      h(
        "ul.incident-rows",
        shown.flatMap((group) => rowsOf(this, group)),
      ),
    );
    setShown(byId("incidents-list"), shown.length > 0);
    const more = groups.length > shown.length || this.next !== null;
    setShown(byId("incidents-foot"), more || Boolean(this.answer?.left_out && this.filters.state !== "open"));
    setShown(this.more, more);
    const total = this.answer ? this.answer.total : 0;
    const left = this.answer?.left_out
      ? `; ${formatCount(this.answer.left_out)} older ones are on their runs' pages`
      : "";
    setText(this.words, `${formatCount(list.length)} of ${plural(total, "incident")}${left}`);
    setText(this.ack, `Acknowledge ${formatCount(this.chosen.size)}`);
    setShown(byId("incidents-chosen"), this.chosen.size > 0);
    this.drawEmpty(shown.length === 0, Boolean(typed));
  }

  drawEmpty(empty, typed) {
    const where = byId("incidents-empty");
    setShown(where, empty);
    if (!empty) return;
    const { state, ...others } = this.filters;
    const narrowed = typed || Object.values(others).some(Boolean);
    const loading = this.answer === null || !this.answer.complete;
    const kind = `${loading ? "loading" : narrowed ? "filter" : state} ${this.trouble || ""}`;
    if (where.dataset.kind === kind) return;
    where.dataset.kind = kind;
    const all = h("a", { href: "/incidents?state=all" }, "All incidents");
    if (loading) fill(where, h("p.nothing", this.trouble || "Reading the incidents of all runs …"));
    else if (narrowed)
      fill(
        where,
        h("p.nothing", "No incident fits. ", h("button.link", { onclick: () => this.clear() }, "Clear the filters")),
      );
    else if (state === "open")
      fill(
        where,
        h("div.empty", h("h2", "No open incident"), h("p", "A new incident appears here by itself. ", all, ".")),
      );
    else fill(where, h("p.nothing", "No incident yet."));
  }

  clear() {
    this.search.value = "";
    remember({ q: null });
    for (const name of FILTERS) if (name !== "state") this.filters[name] = "";
    this.changed();
  }

  close() {
    this.gone = true;
    clearInterval(this.tick);
    clearTimeout(this.again);
    this.live.close();
  }
}
