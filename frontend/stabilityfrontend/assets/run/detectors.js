// The detectors of a run: how they are set and by whom, editing and saving that. The rows are detector_rows.js, trying
// settings before they are saved is detector_trial.js, what one clicks on an incident is sensitivity_menu.js.

import { api } from "../core/api.js";
import { detectorOf, parameterOf, settingOf, withSetting } from "../core/detector_settings.js";
import { byId, h, setClass, setShown, setText, setTitle, toast } from "../core/dom.js";
import { ago, errorText, plural } from "../core/format.js";
import { incidentKind, statusFacts } from "../core/kinds.js";
import { patch } from "../core/patch.js";
import { when } from "../core/when.js";
import { DetectorRows, settingWords } from "./detector_rows.js";
import { DetectorTrial } from "./detector_trial.js";
import { offer } from "./sensitivity_menu.js";

/** Changes in the history. */
const CHANGES = 6;

const same = (one, other) => JSON.stringify(sorted(one)) === JSON.stringify(sorted(other));
const sorted = (settings) =>
  Object.keys(settings)
    .sort()
    .map((name) => [name, Object.entries(settings[name]).sort()]);

export class Detectors {
  /** `page` as in run_page.js. */
  constructor(page) {
    this.page = page;
    this.list = [];
    this.saved = {};
    this.draft = {};
    this.changes = [];
    this.trial = new DetectorTrial(this);
    this.rows = new DetectorRows(this);
    const on = (id, action) => byId(id).addEventListener("click", action);
    on("detectors-fold", () => this.setOpen(!this.open));
    on("detectors-open", () => this.show());
    on("detectors-badge", () => this.show());
    on("detectors-reset", () => this.reset());
    on("detectors-save", () => this.save(this.draft));
  }

  async fetch() {
    try {
      const set = await api.detectorsOf(this.page.id);
      if (this.page.gone) return;
      const known = JSON.stringify(this.list);
      this.list = set.detectors;
      if (JSON.stringify(this.list) !== known) this.rows.make();
      this.set(set);
      setShown(byId("detectors-panel"), true);
      setShown(byId("detectors-open"), true);
      this.page.dirty("incidents");
    } catch {
      // It is asked again when the page is in touch again.
    }
  }

  /** Take what the server says; what is being edited stays as it is. */
  set(answer) {
    const edited = this.edited();
    this.saved = answer.settings;
    this.changes = answer.changes;
    if (!edited) this.draft = structuredClone(this.saved);
    this.overtaken = edited && this.edited() && this.changes.length > 0;
    this.draw();
  }

  edited() {
    return !same(this.draft, this.saved);
  }

  /** The detector that found an incident, or null. */
  of(incident) {
    return detectorOf(this.list, incident);
  }

  parameter(detector, name) {
    return parameterOf(detector, name);
  }

  value(settings, detector, name) {
    return settingOf(settings, detector, name);
  }

  changed(settings, detector, name, value) {
    return withSetting(settings, detector, name, value);
  }

  edit(detector, name, value) {
    this.draft = this.changed(this.draft, detector, name, value);
    this.trial.forget();
    this.draw();
  }

  setOpen(open) {
    this.open = open;
    byId("detectors-fold").setAttribute("aria-expanded", String(open));
    setShown(byId("detectors-body"), open);
    if (!open) this.trial.forget();
    this.draw();
  }

  /** Open the panel where people see it; `name`: the detector that they came for. */
  show(name) {
    this.setOpen(true);
    const row = typeof name === "string" ? this.rows.row(name) : null;
    (row || byId("detectors-panel")).scrollIntoView({ block: row ? "center" : "nearest", behavior: "smooth" });
    (row ? row.querySelector("button.on, button") : byId("detectors-fold")).focus({ preventScroll: true });
  }

  // -- saving ---------------------------------------------------------------------------------------------------

  /** Save settings and offer the way back, once. */
  async save(settings, words, undoing) {
    const before = this.saved;
    try {
      const answer = await api.setDetectors(this.page.id, settings);
      if (this.page.gone) return;
      if (settings === this.draft) this.draft = structuredClone(answer.settings);
      this.trial.forget();
      this.set(answer);
      const back =
        undoing || same(before, answer.settings)
          ? null
          : { label: "Undo", run: () => this.save(before, "Undone: set as it was before.", true) };
      const waits = answer.changes[0]?.position === "";
      const saved = waits
        ? "Saved. No worker follows this run: it holds from when one does."
        : words || "Saved. It holds for what comes from now on; what was found stays.";
      offer(saved, back);
    } catch (error) {
      toast(errorText(error), "warning");
    }
  }

  reset() {
    this.draft = {};
    this.trial.forget();
    if (Object.keys(this.saved).length) this.save({}, "All detectors are back at their defaults, from now on.");
    else this.draw();
  }

  // -- drawing --------------------------------------------------------------------------------------------------

  draw() {
    if (!this.list.length || this.page.gone) return;
    this.drawHead();
    if (!this.open) return;
    this.rows.draw();
    this.trial.draw();
    this.drawFoot();
    this.drawHistory();
  }

  drawHead() {
    const tuned = Object.keys(this.saved);
    const muted = tuned.filter((name) => this.saved[name].sensitivity === 0);
    const badge = byId("detectors-badge");
    setText(
      badge,
      muted.length
        ? `${muted.length === 1 ? incidentKind(muted[0]).short : muted.length} muted`
        : tuned.length
          ? `${plural(tuned.length, "detector")} tuned`
          : "",
    );
    setClass(badge, `chip press ${muted.length ? "warning" : "accent"}`);
    setTitle(badge, `${tuned.map((name) => settingWords(name, this.saved[name])).join("; ")}. Show the detectors`);
    setShown(badge, tuned.length > 0);
    const last = this.changes[0];
    const who = last ? `${tuned.length ? "set" : "put back"} by ${last.who} ${ago(this.page.now() - last.time)}` : "";
    const state = tuned.length
      ? `${tuned.length} of ${this.list.length} not at their defaults`
      : `${this.list.length}, all at their defaults`;
    const waits = last?.position === "" ? "waits for a worker" : "";
    setText(byId("detectors-note"), [state, who, waits].filter(Boolean).join(" · "));
  }

  drawFoot() {
    const edited = this.edited();
    const words =
      this.overtaken && edited
        ? `${this.changes[0].who} has changed the settings meanwhile: saving replaces them`
        : edited
          ? "Not saved yet"
          : "";
    setText(byId("detectors-draft"), words);
    byId("detectors-save").title =
      this.page.run && statusFacts(this.page.run.status).ended
        ? "This run has ended: it would hold only if the run goes on"
        : "For what comes from now on; what was found stays";
    byId("detectors-save").disabled = !edited;
    byId("detectors-reset").disabled = !Object.keys(this.draft).length && !Object.keys(this.saved).length;
  }

  drawHistory() {
    const place = byId("detectors-history");
    const key = JSON.stringify([this.changes.slice(0, CHANGES), Math.floor(this.page.now() / 60)]);
    if (place.dataset.key === key) return;
    place.dataset.key = key;
    if (!this.changes.length) return patch(place);
    patch(
      place,
      h("h3", "Changes"),
      this.changes.slice(0, CHANGES).map((change, index) =>
        h(
          "div.change",
          { data: { time: String(change.time) } },
          when(change.time, ago(this.page.now() - change.time), "sub"),
          h("b", change.who),
          h(
            "span.grow",
            Object.keys(change.settings).length
              ? Object.entries(change.settings)
                  .map(([name, values]) => settingWords(name, values))
                  .join("; ")
              : "all defaults",
          ),
          index
            ? h(
                "button.link",
                {
                  onclick: () => this.save(change.settings, "Put back, from now on."),
                },
                "Put back",
              )
            : h("span.sub", change.position ? "now" : "waits for a worker"),
        ),
      ),
    );
  }

  /** Incidents that charts show instead of those that were found, while a try is looked at; else null. */
  preview() {
    return this.open && this.trial.found ? this.trial.found.incidents : null;
  }

  close() {
    this.trial.stop();
  }
}
