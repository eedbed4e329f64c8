// What a rank printed, beside the curve: the lines around the step under the pointer, else the newest as they come.

import { api } from "../core/api.js";
import { choice, foldedPanel, grow, segments, toolPlace } from "../core/controls.js";
import { byId, h, patch, segmented, setShown, setText } from "../core/dom.js";
import { clock, formatCount, plural } from "../core/format.js";
import { may } from "../navigation/account.js";

/** The newest lines are asked for this often while the panel is open and live. */
const LIVE_MS = 2000;
/** The pointer rests this long before lines of its step are asked for. */
const REST_MS = 150;
/** Lines of one answer, and lines kept while it is live. */
const LINES = 200;
const KEPT = 500;

/** Lines with those of a newer answer behind them, each once. */
export function joined(lines, newer) {
  const known = new Set(lines.map((one) => one.id));
  return [...lines, ...newer.filter((one) => !known.has(one.id))].slice(-KEPT);
}

/** The panel, folded, and hidden until a line is there; whoever may not read lines has none. */
export const outputPanel = () =>
  foldedPanel(
    "output",
    "Output",
    [
      h("span.sub", { id: "output-note" }),
      grow(),
      h(
        "div",
        { id: "output-tools", hidden: true },
        toolPlace("output-rank"),
        segments("output-stream", "Which stream", [
          ["", "Both"],
          ["out", "stdout"],
          ["err", "stderr"],
        ]),
        h("button.toggle.on", { id: "output-live", "aria-pressed": "true" }, "Live"),
      ),
    ],
    h("ol", { id: "output-lines", tabindex: "0", "aria-label": "Lines that the rank printed" }),
  );

export class Output {
  /** `page` as in run_page.js. */
  constructor(page) {
    this.page = page;
    this.answer = /** @type {any} */ (null);
    this.rank = /** @type {number | null} */ (null);
    this.stream = "";
    this.live = true;
    this.step = /** @type {number | null} */ (null);
    this.asks = 0;
    byId("output-fold").addEventListener("click", () => this.setOpen(!this.open));
    byId("output-live").addEventListener("click", () => this.setLive(true));
    this.list = choice(byId("output-rank"), "output-rank-list", "Rank", (value) => {
      this.chosen = true;
      this.rank = Number(value);
      this.fetch();
    });
    segmented(byId("output-stream"), (value) => {
      this.stream = value;
      this.fetch();
    });
    // The board tells every chart where the pointer is: to it this is one that draws nothing.
    page.board.add({
      id: "output",
      element: byId("output-body"),
      interval: LIVE_MS,
      metrics: () => [],
      paint() {},
      forget() {},
      pointAt: (step) => this.pointAt(step),
    });
    this.timer = setInterval(() => this.open && this.live && !document.hidden && this.fetchNewer(), LIVE_MS);
  }

  /** The pointer is at a step, or nowhere: then the lines stay as they are until somebody asks for the newest. */
  pointAt(step) {
    const whole = step === null ? null : Math.round(step);
    if (whole === null || whole === this.step || !this.open) return; // a hand that trembles within a step waits no longer
    this.step = whole;
    this.setLive(false);
    clearTimeout(this.rest);
    this.rest = setTimeout(() => this.fetch(), REST_MS);
  }

  setLive(live) {
    if (this.live === live) return;
    this.live = live;
    byId("output-live").classList.toggle("on", live);
    byId("output-live").setAttribute("aria-pressed", String(live));
    if (!live) return;
    this.step = null;
    this.fetch();
  }

  setOpen(open) {
    this.open = open;
    byId("output-fold").setAttribute("aria-expanded", String(open));
    setShown(byId("output-body"), open);
    setShown(byId("output-tools"), open);
    if (open) this.fetch();
  }

  query(more) {
    return { rank: this.rank, stream: this.stream || null, ...more };
  }

  /** Whether there are lines, and those that are to be shown. */
  async fetch() {
    if (!may("command")) return;
    if (!this.open) return setShown(byId("output-panel"), this.page.run?.about?.printed === true);
    this.asks += 1;
    const ask = this.asks;
    try {
      const answer = await api.output(this.page.id, this.query({ limit: LINES, step: this.step }));
      if (this.page.gone || ask !== this.asks) return;
      this.take(answer);
    } catch {
      // It is asked again when the page is in touch again.
    }
  }

  async fetchNewer() {
    const last = this.answer?.lines.at(-1);
    if (!last) return this.fetch();
    const ask = this.asks;
    try {
      const answer = await api.output(this.page.id, this.query({ after: last.id, limit: LINES }));
      if (this.page.gone || ask !== this.asks || !this.live) return undefined;
      // More came than one answer holds: the newest are shown, and not what was new some time ago.
      if (answer.newer) return this.fetch();
      this.take({ ...answer, lines: joined(this.answer.lines, answer.lines), older: this.answer.older });
    } catch {
      // It is asked again in a moment.
    }
  }

  take(answer) {
    this.answer = answer;
    setShown(byId("output-panel"), answer.total > 0);
    if (this.rank === null && answer.ranks.length) {
      this.rank = answer.first_rank;
      if (this.open && answer.ranks.length > 1) return void this.fetch();
    }
    this.draw();
  }

  draw() {
    const { answer } = this;
    if (!answer || this.page.gone) return;
    const where = this.step === null ? "newest" : `at step ${formatCount(this.step)}`;
    const skipped = answer.skipped ? `about ${plural(answer.skipped, "line")} left out: too many at once` : "";
    setText(
      byId("output-note"),
      this.open
        ? [this.rank === null ? "" : `rank ${this.rank}`, where, skipped].filter(Boolean).join(" · ")
        : `${plural(answer.total, "line")} of ${plural(answer.ranks.length, "rank")}`,
    );
    if (!this.open) return;
    this.list.options(
      answer.ranks.map((rank) => ({ value: String(rank), text: String(rank) })),
      String(this.rank),
    );
    const list = byId("output-lines");
    const atEnd = list.scrollTop + list.clientHeight >= list.scrollHeight - 40;
    patch(
      list,
      answer.lines.length
        ? answer.lines.map((line) => row(line, line.id === answer.at))
        : h("li.sub", "Nothing recorded yet."),
    );
    if (this.live && (atEnd || this.shownOnce !== true)) list.scrollTop = list.scrollHeight;
    else if (answer.at) {
      const mark = /** @type {HTMLElement | null} */ (list.querySelector(".at"));
      if (mark) list.scrollTop = mark.offsetTop - list.clientHeight / 2;
    }
    this.shownOnce = true;
  }

  close() {
    clearInterval(this.timer);
    clearTimeout(this.rest);
  }
}

const row = (line, at) =>
  h(
    "li",
    {
      class: [line.level, line.stream === "err" ? "stderr" : "", at ? "at" : ""].filter(Boolean).join(" "),
      data: { line: line.id },
    },
    h(
      "span.output-step",
      { title: `${clock(line.time)} on ${line.node}` },
      line.step === null ? "–" : formatCount(line.step),
    ),
    line.level ? h("span.unseen", `${line.level}: `) : null,
    h("span.output-text", line.text),
  );
