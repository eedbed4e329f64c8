// The ledger of rollbacks: what each one cost and why it was done, newest first, and what all of them leave of the time.

import { changes } from "../chart/traces.js";
import { api } from "../core/api.js";
import { byId, h, setShown, setText } from "../core/dom.js";
import { ago, duration, formatCount, plural, sentence } from "../core/format.js";
import { incidentKind } from "../core/kinds.js";
import { patch } from "../core/patch.js";

/** Rows before "Show all" is pressed, and at most ever. */
const FEW = 8;
const MOST = 500;
/** While a run goes on its totals change by themselves. */
const AGAIN_MS = 15000;
/** After a fork its first numbers are there when its first points are. */
const SOON_MS = 1500;

const CAUSES = { command: "ordered", declared: "by the job", restart: "restart" };

const missing = (value) => value === null || value === undefined;
const percent = (share) => (missing(share) ? "–" : `${(100 * share).toFixed(share > 0.9995 || share === 0 ? 0 : 1)} %`);
/** GPU-hours: seconds matter in a small job, hours in a large one. */
const hours = (value) =>
  missing(value)
    ? "–"
    : value === 0
      ? "0"
      : value < 0.01
        ? "< 0.01"
        : value < 10
          ? value.toFixed(2)
          : formatCount(value);
const seconds = (value) => (missing(value) ? "–" : value === 0 ? "0" : duration(value));

export class Ledger {
  constructor(page) {
    this.page = page;
    this.all = false;
    this.answer = null;
    byId("ledger-all").addEventListener("click", () => {
      this.all = !this.all;
      this.draw();
    });
  }

  async fetch() {
    clearTimeout(this.timer);
    const { page } = this;
    try {
      const answer = await api.ledger(page.id);
      if (page.gone) return;
      const before = this.lost;
      this.answer = answer;
      this.lost = JSON.stringify(answer.rollbacks.map((one) => [one.segment, one.steps_lost, one.last_dead_step]));
      if (this.lost !== before) {
        page.forksChanged();
        page.board.markAll();
      }
      this.draw();
      page.dirty("kpis");
    } catch {
      if (page.gone) return; // the server is away: what was said last stays
    }
    this.timer = setTimeout(() => (document.hidden ? this.wait() : this.fetch()), AGAIN_MS);
  }

  wait() {
    this.timer = setTimeout(() => (document.hidden ? this.wait() : this.fetch()), AGAIN_MS);
  }

  soon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.fetch(), SOON_MS);
  }

  /** Segment -> what the server's ledger says of the rollback that opened it. */
  rollbacks() {
    return new Map(((this.answer && this.answer.rollbacks) || []).map((one) => [one.segment, one]));
  }

  /** Steps that all rollbacks together discarded; null while that is not known. */
  stepsLost() {
    return this.answer ? this.answer.totals.steps_lost : null;
  }

  /** Goodput as words for the strip; "" while it is not known. */
  goodput() {
    const totals = this.answer && this.answer.totals;
    return totals && !missing(totals.goodput) ? `goodput ${percent(totals.goodput)}` : "";
  }

  draw() {
    const { page, answer } = this;
    const panel = byId("ledger-panel");
    if (!panel || !answer) return;
    setShown(panel, true);
    const { totals } = answer;
    const rollbacks = [...answer.rollbacks].sort((a, b) => b.segment - a.segment);
    const counted = rollbacks.filter((one) => !one.undone);
    this.drawTotals(totals, counted.length);
    setText(byId("ledger-note"), counted.length ? plural(counted.length, "rollback") : "");
    const toggle = byId("ledger-all");
    setShown(toggle, rollbacks.length > FEW);
    setText(toggle, this.all ? "Newest only" : `Show all ${formatCount(rollbacks.length)}`);
    const shown = rollbacks.slice(0, this.all ? MOST : FEW);
    const key = JSON.stringify([shown, this.all, page.forkList.map((fork) => fork.label)]);
    if (key === this.key) return;
    this.key = key;
    const place = byId("ledger");
    if (!rollbacks.length) {
      patch(
        place,
        h(
          "div",
          { class: "nothing" },
          "No rollback so far. Each one is listed here: what it discarded, what that cost, who asked for it and why.",
        ),
      );
      return;
    }
    const heads = [
      ["", ""],
      ["From → to", "The newest step before it and the step whose state training went back to"],
      ["Steps lost", "Steps that this rollback killed; one that an earlier rollback had killed is not counted again"],
      [
        "Time lost",
        "From the log time of the fork step to that of the last dead step, without the time that the job was down",
      ],
      ["Down", "From the last row of the old segment to the first row of the new one"],
      ["GPU-hours", "(Time lost + down) × GPUs"],
      ["Skipped", "Batches that were skipped, as reported by the job"],
      ["Ordered", "What was asked for beside the step"],
      ["Done", "What the job says that it changed (what its handler returned)"],
      ["Who and why", ""],
      ["Incident", "The incident that it answers"],
    ];
    patch(
      place,
      h(
        "table",
        { class: "table dense ledger" },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            heads.map(([head, title], index) =>
              h("th", { class: index >= 1 && index <= 6 ? "num" : "", title: title || null }, head),
            ),
          ),
        ),
        h(
          "tbody",
          {},
          shown.map((one) => this.row(one)),
        ),
      ),
    );
  }

  row(one) {
    const { page } = this;
    const fork = page.forkList.find((each) => each.segment.id === one.segment);
    const label = fork ? fork.label : `#${one.segment}`;
    const ordered = one.cause === "command" ? changes(one.changes, true) : "";
    const done = one.applied ? changes(one.applied) || "nothing" : ordered ? "not reported" : "";
    const notes = (one.notes || []).map(sentence).join(" ");
    const why = [one.issuer ? `${one.issuer}: ` : "", one.reason || ""].join("");
    const num = (words, title) => h("td", { class: "num", title: title || null }, words);
    return h(
      "tr",
      { class: one.undone ? "undone" : "", data: { rollback: one.segment } },
      h(
        "td",
        {},
        h(
          "button",
          { type: "button", class: "flag", title: "Show its steps", on: { click: () => this.zoom(one) } },
          label,
        ),
      ),
      num([
        h("span", { class: "sub" }, `${formatCount(one.last_dead_step)} → `),
        h("b", {}, formatCount(one.fork_step)),
      ]),
      num(formatCount(one.steps_lost)),
      num([seconds(one.wall_lost_s), notes ? h("span", { class: "sub" }, " *") : ""], notes),
      num(seconds(one.downtime_s)),
      num(hours(one.gpu_hours_lost)),
      num(
        one.batches_skipped
          ? formatCount(one.batches_skipped)
          : h("span", { class: "sub" }, missing(one.batches_skipped) ? "?" : "–"),
        missing(one.batches_skipped) ? "Ordered; the job did not report whether it skipped any" : "",
      ),
      h("td", { class: "words" }, ordered || h("span", { class: "sub" }, "–")),
      h("td", { class: "words" }, done === "not reported" || !done ? h("span", { class: "sub" }, done || "–") : done),
      h(
        "td",
        { class: "words wide", title: why || null },
        h("span", { class: "fact-chip" }, one.undone ? "taken back" : CAUSES[one.cause] || one.cause),
        why ? ` ${why}` : "",
        h("span", { class: "sub" }, one.created ? ` ${ago(page.now() - one.created)}` : ""),
      ),
      h("td", {}, this.incidents(one)),
    );
  }

  incidents(one) {
    const { page } = this;
    const found = (one.incidents || []).map((id) => page.incidentMap.get(id) || { incident_id: id, title: "incident" });
    if (!found.length) return h("span", { class: "sub" }, "–");
    return found
      .slice(0, 2)
      .map((incident) =>
        h(
          "button",
          { type: "button", class: "link", title: incident.text || null, on: { click: () => page.zoomTo(incident) } },
          incident.kind ? incidentKind(incident.kind).short : incident.title,
        ),
      );
  }

  /** Show what a rollback threw away. */
  zoom(one) {
    const end = Math.max(one.last_dead_step ?? one.fork_step, one.fork_step + 10);
    const air = Math.max(20, 0.6 * (end - one.fork_step));
    this.page.zoom.set([Math.max(0, one.fork_step - air), end + air]);
    byId("focus-panel").scrollIntoView({ block: "nearest", behavior: "smooth" });
  }

  drawTotals(totals, count) {
    setShown(byId("ledger-totals"), count > 0);
    const set = (id, value, unit, note) => {
      const cell = byId(`total-${id}`);
      if (!cell) return;
      setText(cell.querySelector(".kpi-value"), value);
      setText(cell.querySelector(".kpi-unit"), unit);
      setText(cell.querySelector(".kpi-note"), note);
    };
    const share = (value) => percent(value).replace(" %", "");
    set(
      "goodput",
      share(totals.goodput),
      missing(totals.goodput) ? "" : "%",
      missing(totals.wall_s) ? "" : `${duration(totals.effective_s)} of ${duration(totals.wall_s)}`,
    );
    set(
      "ettr",
      share(totals.ettr),
      missing(totals.ettr) ? "" : "%",
      missing(totals.startup_s) ? "" : `${seconds(totals.startup_s)} of start-up`,
    );
    set("steps", formatCount(totals.steps_lost), "", plural(count, "rollback"));
    set(
      "wall",
      seconds(totals.wall_lost_s),
      "",
      missing(totals.downtime_s) ? "" : `and ${seconds(totals.downtime_s)} down`,
    );
    set(
      "gpu",
      hours(totals.gpu_hours_lost),
      "",
      totals.gpus
        ? totals.gpus_from === "agents"
          ? `on ${plural(totals.gpus, "GPU")}`
          : `one GPU a rank: ${formatCount(totals.gpus)}`
        : "",
    );
    set("data", formatCount(totals.batches_skipped), "", "");
  }

  close() {
    clearTimeout(this.timer);
  }
}
