// Which metrics of a run are watched as what and why, and which are not.

import { api } from "../core/api.js";
import { byId, h, patch, setShown, setText, tableHead } from "../core/dom.js";
import { formatCount, plural } from "../core/format.js";

/** A new metric is told apart after some rows: the list is asked for again this long after one came. */
const AGAIN_MS = 5000;
/** Names of metrics that nobody watches in the list. */
const UNWATCHED = 60;

const ROLES = {
  loss: "loss",
  grad_norm: "gradient norm",
  lr: "learning rate",
  batch_size: "batch size",
  val_loss: "loss of an evaluation",
  tokens_per_s: "speed",
  step_time_s: "step time",
  ratio: "share",
  tokens: "tokens",
  samples: "samples",
};
const WHY = { name: "known name", declared: "declared by run.names()", values: "by its values" };

export class Watched {
  /** `page` as in run_page.js. */
  constructor(page) {
    this.page = page;
    /** @type {any} */
    this.answer = null;
    byId("watched-fold").addEventListener("click", () => this.setOpen(!this.open));
  }

  async fetch() {
    try {
      const answer = await api.watchedOf(this.page.id);
      if (this.page.gone) return;
      const known = JSON.stringify(this.answer?.watched);
      this.answer = answer;
      setShown(byId("watched-panel"), true);
      if (known !== undefined && JSON.stringify(answer.watched) !== known) this.page.headline.fetch();
      this.draw();
      if (answer.mixture) this.page.mixture.fetch();
      else this.page.mixture.draw();
    } catch {
      // It is asked again when the page is in touch again.
    }
  }

  /** There is a new metric, or what the run says of them changed. */
  soon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.fetch(), AGAIN_MS);
  }

  setOpen(open) {
    this.open = open;
    byId("watched-fold").setAttribute("aria-expanded", String(open));
    setShown(byId("watched-body"), open);
    this.draw();
  }

  draw() {
    const { answer } = this;
    if (!answer || this.page.gone) return;
    const rest = answer.unwatched_count ? `${formatCount(answer.unwatched_count)} not watched` : "";
    const notes = answer.notes.length ? `${plural(answer.notes.length, "thing")} to put right` : "";
    setText(byId("watched-note"), [plural(answer.watched.length, "metric"), rest, notes].filter(Boolean).join(" · "));
    if (!this.open) return;
    patch(
      byId("watched-body"),
      answer.notes.map((note) => h("p.watched-warning", note)),
      answer.watched.length
        ? h(
            "table.watched-table",
            tableHead(["Metric", "Watched as", "Why", "By"]),
            h("tbody", answer.watched.map(row)),
          )
        : h(
            "p.sub.watched-none",
            answer.unwatched_count ? "Nothing that this run logs is watched." : "This run has not logged a metric yet.",
          ),
      answer.unwatched_count
        ? h(
            "p.sub.watched-rest",
            `Not watched: ${answer.unwatched.slice(0, UNWATCHED).join(", ")}`,
            answer.unwatched_count > UNWATCHED ? ` and ${answer.unwatched_count - UNWATCHED} more` : "",
          )
        : null,
    );
  }

  close() {
    clearTimeout(this.timer);
  }
}

function row(one) {
  const role = (ROLES[one.role] || one.role || "other metric") + (one.dataset === null ? "" : ` of ${one.dataset}`);
  return h(
    "tr",
    { data: { metric: one.metric } },
    h("td.watched-name", one.metric),
    h("td", role, one.text ? h("span.sub", ` (${one.text})`) : null),
    h("td.sub", WHY[one.why] || one.why),
    h("td.sub", one.detectors.join(", ") || "looked up only"),
  );
}
