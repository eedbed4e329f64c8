// Settings tried on what is stored of a run: how many incidents there would have been, which, and where on the chart.

import { api } from "../core/api.js";
import { byId, fill, h, setClass, setShown, setText } from "../core/dom.js";
import { duration, errorText, formatCount, plural } from "../core/format.js";
import { incidentKind } from "../core/kinds.js";
import { severityOf } from "../incident/severity.js";

/** Newest steps that are tried where all of them are too many, one after the other. */
const FEWER = [100000, 10000, 1000];
/** Incidents that would be found, in the list; the rest is counted. */
const LISTED = 40;
/** How often the clock of a try goes on. */
const CLOCK_MS = 250;

const sum = (counts, severities) =>
  Object.values(counts).reduce(
    (all, one) => all + severities.reduce((some, severity) => some + (one[severity] || 0), 0),
    0,
  );

export class DetectorTrial {
  /** `panel` as in detectors.js. */
  constructor(panel) {
    this.panel = panel;
    this.page = panel.page;
    /** The server's answer, while it belongs to what is set in the panel. */
    this.found = null;
    this.trouble = "";
    this.over = "all";
    const steps = ["all", ...FEWER].map((one) =>
      h("option", { value: one }, one === "all" ? "on all steps" : `newest ${formatCount(one)} steps`),
    );
    const over = h("select.field", { id: "detectors-steps", "aria-label": "Steps that are tried" }, steps);
    over.addEventListener("change", () => (this.over = over.value));
    fill(byId("detectors-over"), over);
    byId("detectors-try").addEventListener("click", () => this.attempt());
    byId("detectors-cancel").addEventListener("click", () => this.stop());
  }

  async attempt() {
    this.forget();
    const asked = (this.asked = new AbortController());
    const began = Date.now();
    const clock = () => setText(byId("detectors-cancel"), `Stop (${Math.round((Date.now() - began) / 1000)} s)`);
    const timer = setInterval(clock, CLOCK_MS);
    clock();
    this.panel.draw();
    try {
      this.take(asked, await this.ask(structuredClone(this.panel.draft), asked.signal), "");
    } catch (error) {
      this.take(asked, null, errorText(error));
    } finally {
      clearInterval(timer);
    }
  }

  /** Where all steps are more than the server judges at once, the newest of them. */
  async ask(settings, signal) {
    const offered = this.over === "all" ? [null, ...FEWER] : [Number(this.over)];
    for (const steps of offered) {
      try {
        return await api.tryDetectors(
          this.page.id,
          steps === null ? { settings } : { settings, last_steps: steps },
          signal,
        );
      } catch (error) {
        if (error.code !== "too_many_points" || steps === offered[offered.length - 1]) throw error;
      }
    }
    return null;
  }

  take(asked, found, trouble) {
    if (this.asked !== asked || this.page.gone) return; // stopped, or the settings were changed meanwhile
    this.asked = null;
    this.found = found;
    this.trouble = trouble;
    this.page.board.markAll();
    this.page.dirty("header");
    this.panel.draw();
  }

  stop() {
    if (!this.asked) return;
    this.asked.abort();
    this.asked = null;
    this.panel.draw();
  }

  /** What was tried is no longer what is set in the panel. */
  forget() {
    this.stop();
    if (this.found) {
      this.page.board.markAll();
      this.page.dirty("header");
    }
    this.found = null;
    this.trouble = "";
  }

  draw() {
    setShown(byId("detectors-try"), !this.asked);
    setShown(byId("detectors-cancel"), Boolean(this.asked));
    byId("detectors-steps").disabled = Boolean(this.asked);
    const key = this.found || this.trouble;
    if (this.drawn === key) return;
    this.drawn = key;
    const list = byId("detectors-found");
    const result = byId("detectors-result");
    setShown(list, Boolean(this.found));
    setShown(result, Boolean(key));
    setClass(result, this.trouble ? "found-head problem" : "found-head");
    if (this.trouble) fill(result, this.trouble);
    if (!this.found) return;
    this.drawResult(result);
    this.drawList(list);
  }

  drawResult(place) {
    const { now, then, first_step: first, seconds, points } = this.found;
    const loud = ["warning", "critical"];
    const quiet = sum(then, ["info"]);
    const back = h("button.toggle", { id: "detectors-back" }, "Back to what was found");
    back.addEventListener("click", () => {
      this.forget();
      this.panel.draw();
      byId("detectors-try").focus({ preventScroll: true });
    });
    fill(
      place,
      h("b.found-now", formatCount(sum(now, loud))),
      h("span", sum(now, loud) === 1 ? "incident" : "incidents"),
      h("span.sub", "→"),
      h("b.found-then", formatCount(sum(then, loud))),
      h("span", "with these settings"),
      h(
        "span.sub.found-how",
        [
          first === null ? "" : `from step ${formatCount(first)} on`,
          quiet ? `${plural(quiet, "quiet note")} not counted` : "",
          `${formatCount(points)} points in ${duration(seconds)}`,
        ]
          .filter(Boolean)
          .join(" · "),
      ),
      h("span.grow"),
      back,
    );
  }

  drawList(place) {
    const all = this.found.incidents;
    const list = [
      ...all.filter((one) => one.severity !== "info"),
      ...all.filter((one) => one.severity === "info"),
    ].slice(0, LISTED);
    const head = h("h3", "What would be found, also on the chart");
    if (!list.length) {
      fill(place, head, h("div.sub", "Nothing."));
      return;
    }
    const rows = list.map((one) =>
      h(
        "button.found-one",
        { title: one.text || null, onclick: () => this.page.zoomTo(one) },
        h("span", { class: `state ${severityOf(one)}` }, incidentKind(one.kind).short),
        h("span.found-title", one.title),
      ),
    );
    fill(
      place,
      head,
      h("div.found-list", rows),
      all.length > list.length ? h("div.sub", `and ${formatCount(all.length - list.length)} more`) : null,
    );
  }
}
