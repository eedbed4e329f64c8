// The detectors of a run: how they are set and by whom, editing and saving that. The rows are detector_rows.js, trying
// settings before they are saved is detector_trial.js, what one clicks on an incident is sensitivity_menu.js.

import { api } from "../core/api.js";
import { foldedPanel, toolPlace } from "../core/controls.js";
import { byId, fill, h, patch, setClass, setShown, setText, setTitle, toast, when } from "../core/dom.js";
import { ago, duration, errorText, formatCount, plural, readable } from "../core/format.js";
import { incidentKind, SEVERITIES, severityOf, statusFacts } from "../core/kinds.js";
import { detectorOf, offer, parameterOf, settingOf, withSetting } from "./sensitivity_menu.js";

// -- The rows of the panel of detectors: what each finds, how often it did in this run, and the controls that set it. Rows
// are made once and brought up to date, so that nobody loses the field that they type in.

/** Steps of the sensitivity that have a button; others are typed. */
const STEPS = [
  [0, "off", "Finds nothing new"],
  [0.25, "¼", "Only events four times as high"],
  [0.5, "½", "Only events twice as high"],
  [1, "1", "As the published scores are made"],
  [2, "2", "Events half as high too"],
  [4, "4", "Events a quarter as high too"],
];

/** `spike: sensitivity 0.5, candidate sigmas 9`. */
const settingWords = (name, values) =>
  `${incidentKind(name).short}: ${Object.entries(values)
    .map(([key, value]) => (key === "sensitivity" && value === 0 ? "muted" : `${readable(key)} ${value}`))
    .join(", ")}`;

class DetectorRows {
  /** `panel` as in detectors.js. */
  constructor(panel) {
    this.panel = panel;
    this.made = new Map();
  }

  row(name) {
    const row = this.made.get(name);
    return row ? row.element : null;
  }

  make() {
    this.made = new Map(this.panel.list.map((detector) => [detector.name, this.makeRow(detector)]));
    fill(
      byId("detectors-rows"),
      h(
        "div.detector.heads",
        { "aria-hidden": "true" },
        h("span", "What it finds"),
        h("span", "In this run"),
        h("span", "Sensitivity: left is quieter"),
      ),
      [...this.made.values()].map((row) => row.element),
    );
  }

  makeRow(detector) {
    const [first, ...rest] = detector.text.split("\n");
    const counts = h("div.counts");
    const sensitivity = this.control(detector, this.panel.parameter(detector, "sensitivity"), true);
    const others = detector.parameters
      .filter((one) => one.name !== "sensitivity")
      .map((one) => this.control(detector, one, false));
    const more = h(
      "details.detector-more",
      h("summary", others.length ? `How it works, ${plural(others.length, "more setting")}` : "How it works"),
      rest.map((paragraph) => h("p.sub", paragraph)),
      h("p.sub", `Reports: ${detector.kinds.map(readable).join(", ")}.`),
      others.map((one) => one.element),
    );
    const element = h(
      "div.detector",
      { role: "group", "aria-label": detector.title, data: { detector: detector.name } },
      h("div.detector-words", h("h3", detector.title), h("p.sub", first)),
      counts,
      h("div.detector-set", sensitivity.element),
      more,
    );
    return { detector, element, counts, controls: [sensitivity, ...others] };
  }

  /** A field for one parameter, with buttons beside it for the sensitivity. */
  control(detector, parameter, stepped) {
    const { panel } = this;
    const field = h("input.field", {
      type: "number",
      min: parameter.low,
      max: parameter.high,
      step: "any",
      inputmode: "decimal",
      "aria-label": `${readable(parameter.name)} of ${detector.title}`,
      title: parameter.text,
      data: { parameter: parameter.name },
    });
    const take = () => {
      const value = field.value.trim() === "" ? parameter.default : Number(field.value);
      if (Number.isFinite(value) && value >= parameter.low && value <= parameter.high)
        panel.edit(detector, parameter.name, value);
    };
    field.addEventListener("input", take);
    field.addEventListener("change", () => this.draw(true));
    const back = h(
      "button.link",
      {
        hidden: true,
        onclick: () => panel.edit(detector, parameter.name, parameter.default),
      },
      "default",
    );
    back.setAttribute("aria-label", `${readable(parameter.name)} of ${detector.title} back to its default`);
    const range = `${parameter.low} to ${parameter.high}${parameter.unit ? ` ${parameter.unit}` : ""}`;
    let buttons = [];
    let element;
    if (stepped) {
      const fitting = STEPS.filter(([value]) => value >= parameter.low && value <= parameter.high);
      buttons = fitting.map(([value, text, title]) =>
        h(
          "button",
          {
            title,
            "aria-label": `${title} (${value})`,
            data: { value },
            onclick: () => panel.edit(detector, parameter.name, value),
          },
          text,
        ),
      );
      element = h(
        "div.setting-line",
        h("div.segmented", { role: "group", "aria-label": `Sensitivity of ${detector.title}` }, buttons),
        field,
        back,
      );
    } else {
      element = h(
        "div.setting",
        h("span.setting-name", readable(parameter.name)),
        h("span.setting-line", field, h("span.sub", parameter.unit), back),
        h("span.sub.setting-text", `${parameter.text} Default ${parameter.default}; ${range}.`),
      );
    }
    return { parameter, field, back, buttons, element };
  }

  /** Bring values and counts up to date. `all`: also the field that has the focus. */
  draw(all) {
    const { panel } = this;
    const counted = this.counted();
    const { found } = panel.trial;
    const then = found ? found.then : null;
    const now = found ? found.now : null;
    for (const { detector, element, counts, controls } of this.made.values()) {
      for (const control of controls) this.drawControl(detector, control, all);
      const own = (now && now[detector.name]) || counted.get(detector.name) || {};
      const key = JSON.stringify([own, then && then[detector.name]]);
      if (counts.dataset.key !== key) {
        counts.dataset.key = key;
        const next = (then && then[detector.name]) || {};
        const both = then && [own, next].some((one) => SEVERITIES.some((severity) => one[severity]));
        fill(counts, this.chips(own), both ? h("span.sub", "→") : null, both ? this.chips(next) : null);
      }
      element.classList.toggle("off", panel.value(panel.draft, detector, "sensitivity") === 0);
    }
  }

  drawControl(detector, { parameter, field, back, buttons }, all) {
    const { panel } = this;
    const value = panel.value(panel.draft, detector, parameter.name);
    if ((all || document.activeElement !== field) && Number(field.value) !== value) field.value = String(value);
    if (all && field.value === "") field.value = String(value);
    field.classList.toggle("changed", value !== parameter.default);
    field.classList.toggle("unsaved", value !== panel.value(panel.saved, detector, parameter.name));
    setShown(back, value !== parameter.default);
    for (const button of buttons) {
      const on = Number(button.dataset.value) === value;
      button.classList.toggle("on", on);
      button.setAttribute("aria-pressed", String(on));
    }
  }

  /** Incidents of this run by detector and severity. */
  counted() {
    const counts = new Map();
    for (const incident of this.panel.page.incidentMap.values()) {
      const detector = this.panel.of(incident);
      if (!detector) continue;
      const own = counts.get(detector.name) || {};
      own[incident.severity] = (own[incident.severity] || 0) + 1;
      counts.set(detector.name, own);
    }
    return counts;
  }

  chips(counts) {
    const shown = SEVERITIES.filter((severity) => counts[severity]);
    if (!shown.length) return [h("span.sub", "none")];
    return shown.map((severity) =>
      h(
        "span",
        {
          class: `count ${severity}`,
          role: "img",
          "aria-label": `${formatCount(counts[severity])} ${severity}`,
          title: `${formatCount(counts[severity])} ${severity}`,
        },
        formatCount(counts[severity]),
      ),
    );
  }
}

// -- Settings tried on what is stored of a run: how many incidents there would have been, which, and where on the chart.

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

class DetectorTrial {
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

/** Changes in the history. */
const CHANGES = 6;

const same = (one, other) => JSON.stringify(sorted(one)) === JSON.stringify(sorted(other));
const sorted = (settings) =>
  Object.keys(settings)
    .sort()
    .map((name) => [name, Object.entries(settings[name]).sort()]);

/** The panel, folded. */
export function detectorsPanel() {
  const button = (id, words, title, more) => h("button.button", { id: `detectors-${id}`, title, ...more }, words);
  return foldedPanel(
    "detectors",
    "Detectors",
    h("span.sub", { id: "detectors-note" }),
    h("div", { id: "detectors-rows" }),
    h("div", { id: "detectors-found", hidden: true }),
    h(
      "div.detectors-foot",
      h("div", { id: "detectors-result", role: "status", hidden: true }),
      h("span.sub", { id: "detectors-draft", role: "status", "aria-live": "polite" }),
      toolPlace("detectors-over"),
      button("try", "Try on this run", "See what would have been found; nothing is changed"),
      button("cancel", "Stop trying", "", { hidden: true }),
      button("reset", "Reset to defaults", "Take back everything that was set for this run"),
      button("save", "Save", "For what comes from now on; what was found stays", { class: "primary" }),
    ),
    h("div", { id: "detectors-history" }),
  );
}

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
