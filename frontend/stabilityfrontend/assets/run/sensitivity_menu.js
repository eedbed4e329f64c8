// From a noisy incident to fewer like it: one click on the incident, one on how much quieter, and a way back.

import { byId, h, toast } from "../core/dom.js";
import { smallDialog } from "../dialogs/confirm.js";

// -- What the settings of a run's detectors say, as pure functions: the run's panel and the incident's page change them alike.

/** The detector that found an incident, or null. */
export function detectorOf(list, incident) {
  const named = (incident.evidence || {}).detector;
  return (
    list.find((one) => one.name === named) || list.find((one) => !named && one.kinds.includes(incident.kind)) || null
  );
}

export const parameterOf = (detector, name) => detector.parameters.find((one) => one.name === name);

/** What a parameter is set to, in `settings`. */
export function settingOf(settings, detector, name) {
  const own = settings[detector.name];
  return own && own[name] !== undefined ? own[name] : parameterOf(detector, name).default;
}

/** `settings` with one parameter changed; what is the default is not in them. */
export function withSetting(settings, detector, name, value) {
  const next = structuredClone(settings);
  const own = { ...next[detector.name], [name]: value };
  if (value === parameterOf(detector, name).default) delete own[name];
  if (Object.keys(own).length) next[detector.name] = own;
  else delete next[detector.name];
  return next;
}

/** Half of a sensitivity: only what is twice as high is reported. */
export const halfAsSensitive = (detector, now) =>
  Math.max(parameterOf(detector, "sensitivity").low, Number((now / 2).toPrecision(2)));

/** Undo stays this long; the panel's history has it for ever. */
const OFFER_S = 20;

/** A message at the corner with something to do: `action` is `{label, run}` or null. */
export function offer(text, action) {
  const place = byId("toasts");
  if (!place) return;
  if (!action) {
    toast(text, "good");
    return;
  }
  const button = h("button.button", { id: "offer-do" }, action.label);
  const note = h("div.toast.good.offer", h("span", text), button);
  for (const old of place.querySelectorAll(".offer")) old.remove(); // what they would undo is no longer the last thing
  button.addEventListener("click", () => {
    note.remove();
    action.run();
  });
  place.append(note);
  setTimeout(() => note.remove(), 1000 * OFFER_S);
}

/** The button on an incident; null where no detector with settings found it. */
export function lessButton(page, incident) {
  const detector = page.detectors && page.detectors.of(incident);
  if (!detector || incident.dead) return null;
  return h(
    "button.button.quiet",
    {
      title: "Fewer incidents of this kind in this run, from now on",
      data: { less: incident.incident_id },
      onclick: () => ask(page, detector),
    },
    "Reduce alerts …",
  );
}

function ask(page, detector) {
  const panel = page.detectors;
  const now = panel.value(panel.saved, detector, "sensitivity");
  const half = halfAsSensitive(detector, now);
  const set = (value, words) => {
    dialog.close();
    panel.save(panel.changed(panel.saved, detector, "sensitivity", value), words);
  };
  const choice = (id, label, hint, run) =>
    h("button.less-choice", { id, onclick: run }, h("b", label), h("span.sub", hint));
  const choices =
    now === 0
      ? [
          choice("less-default", "Bring it back", "Sensitivity 1, as usual", () =>
            set(1, `${detector.title}: back at the default, from now on.`),
          ),
        ]
      : [
          choice(
            "less-half",
            "Half as sensitive",
            `Sensitivity ${now} → ${half}: only events twice as high are reported`,
            () => set(half, `${detector.title}: sensitivity ${half}, from now on.`),
          ),
          choice("less-mute", "Mute in this run", "Off until it is turned on again; other detectors continue", () =>
            set(0, `${detector.title}: muted in this run, from now on.`),
          ),
        ];
  const look = choice("less-look", "See all settings", "Try others on this run before you save them", () => {
    dialog.close();
    panel.show(detector.name);
  });
  const dialog = smallDialog({
    id: "less",
    title: `Fewer incidents like this: ${detector.title}`,
    body: h(
      "div.dialog-body.less",
      choices,
      look,
      h(
        "p.sub",
        "Only this run, and only what comes from now on. This incident stays. The change is visible to all, with its author.",
      ),
    ),
    buttons: h("button.button", { onclick: () => dialog.close() }, "Cancel"),
  });
  choices[0].focus();
}
