// The rows of the panel of detectors: what each finds, how often it did in this run, and the controls that set it. Rows
// are made once and brought up to date, so that nobody loses the field that they type in.

import { byId, fill, h, setShown } from "../core/dom.js";
import { formatCount, plural, readable } from "../core/format.js";
import { incidentKind } from "../core/kinds.js";
import { SEVERITIES } from "../incident/severity.js";

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
export const settingWords = (name, values) =>
  `${incidentKind(name).short}: ${Object.entries(values)
    .map(([key, value]) => (key === "sensitivity" && value === 0 ? "muted" : `${readable(key)} ${value}`))
    .join(", ")}`;

export class DetectorRows {
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
