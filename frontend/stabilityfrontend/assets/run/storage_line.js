// Where a run's points lie: how full the hot window is, what is archived, and what is wrong with it, in one line.

import { api } from "../core/api.js";
import { byId, h, patch, setClass, setShown, setText } from "../core/dom.js";
import { bytes, plural, sentence } from "../core/format.js";

const AGAIN_MS = 20000;
/** Problems named in the strip; the rest is counted. */
const NAMED = 2;

export class StorageLine {
  constructor(page) {
    this.page = page;
    this.problems = [];
    // Nobody may have scrolled to the foot by then: an archive that failed is told at the top.
    this.timer = setTimeout(() => this.fetch(), AGAIN_MS);
  }

  async fetch() {
    clearTimeout(this.timer);
    const { page } = this;
    try {
      const answer = await api.storage(page.id);
      if (page.gone) return;
      this.answer = answer;
      this.draw();
    } catch {
      if (page.gone) return;
      this.draw();
    }
    this.timer = setTimeout(() => this.fetch(), AGAIN_MS);
  }

  /** Parts of the history that could not be read, or are not loaded yet: they are missing from what is shown. */
  addProblems(problems) {
    const known = this.problems.length;
    this.problems = [...new Set([...this.problems, ...problems])];
    if (this.problems.length > known) this.fetch();
  }

  clearProblems() {
    this.problems = [];
    this.fetch();
  }

  draw() {
    const line = byId("storage");
    const { answer, problems } = this;
    if (!line) return;
    if (answer) {
      const { hot, cold, state } = answer;
      const full = hot.limit_bytes ? Math.min(1, hot.bytes / hot.limit_bytes) : 0;
      patch(
        line,
        h("span.gauge", {
          style: { "--share": full },
          title: `${plural(hot.frames, "frame")} in Redis; older ones are moved to the archive`,
        }),
        h("span", `In Redis ${bytes(hot.bytes)}${hot.limit_bytes ? ` of ${bytes(hot.limit_bytes)}` : ""}`),
        h(
          "span",
          { title: cold.location || null },
          cold.parts
            ? `archive ${plural(cold.parts, "part")}, ${bytes(cold.bytes)}${cold.rows ? `, ${plural(cold.rows, "point")}` : ""}`
            : "nothing archived yet",
        ),
        h(
          "span",
          { class: `state ${state === "failed" ? "critical" : state === "behind" ? "warning" : "calm"}` },
          {
            ok: "up to date",
            loading: "loading points",
            archiving: "archiving",
            behind: "archive behind",
            failed: "archive failed",
          }[state] || state,
        ),
      );
    }
    const bad = answer && (answer.state === "behind" || answer.state === "failed");
    // One file that can't be read is one fact, however many of its users say so.
    const loading = answer && answer.state === "loading";
    const fresh = problems.filter((one) => !(bad || loading) || one !== answer.problem);
    const words = [];
    if (loading && problems.includes(answer.problem)) words.push(sentence(answer.problem));
    if (bad)
      words.push(
        `${answer.state === "failed" ? "The archive failed" : "The archive is behind"}: ${sentence(answer.problem || "no reason given")} What is not archived stays in Redis; it is tried again.`,
      );
    if (fresh.length)
      words.push(
        `Part of the history can't be read and is missing here: ${fresh.slice(0, NAMED).map(sentence).join(" ")}${fresh.length > NAMED ? ` And ${fresh.length - NAMED} more.` : ""}`,
      );
    const note = byId("storage-note");
    setText(note, words.join(" "));
    setClass(note, `note ${(bad && answer.state === "failed") || fresh.length ? "critical" : "warning"}`);
    setShown(note, words.length > 0);
  }

  close() {
    clearTimeout(this.timer);
  }
}
