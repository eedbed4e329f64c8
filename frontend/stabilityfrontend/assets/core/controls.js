// Controls that pages share: a choice from a list, a slider for smoothing, and the page's address as its memory.

import { fill, h, setText } from "./dom.js";
import { formatCount } from "./format.js";

/** Positions of the slider: 0 is off, then evenly in the count of points that the average looks back over. */
const POSITIONS = 100;
/** At the end of the slider the weight is 1 - 10^-4: an average over ten thousand points. */
const DECADES = 4;

/** The smoothing weight of a slider's position: half-way is 0.99, about a hundred points. */
export const smoothWeight = (position) =>
  position <= 0 ? 0 : Number((1 - 10 ** ((-DECADES * position) / POSITIONS)).toFixed(position > 50 ? 5 : 3));
export const smoothPosition = (weight) =>
  weight <= 0 ? 0 : Math.max(1, Math.min(POSITIONS, Math.round((-POSITIONS * Math.log10(1 - weight)) / DECADES)));

/** A choice from a list. `options` of what it returns: `[{value, text}]`, with `group` for a heading; `bare`: no label beside it. */
export function choice(place, id, label, pick, bare) {
  const select = h("select.choice-list", {
    id,
    "aria-label": label,
    onchange: () => pick(select.value),
  });
  fill(place, bare ? null : h("label.tool-label", { for: id }, label), select);
  let key = "";
  return {
    options(list, value) {
      const now = JSON.stringify(list);
      if (now !== key && document.activeElement !== select) {
        key = now;
        const groups = new Map();
        const parts = [];
        for (const { value: one, text, group } of list) {
          const option = h("option", { value: one }, text);
          if (!group) parts.push(option);
          else {
            if (!groups.has(group)) {
              groups.set(group, h("optgroup", { label: group }));
              parts.push(groups.get(group));
            }
            groups.get(group).append(option);
          }
        }
        fill(select, parts);
      }
      if (select.value !== value) select.value = value;
    },
  };
}

/** A slider for the weight of an exponential moving average. Returns what sets it without being heard. */
export function smoothing(place, id, pick) {
  const words = h("output.tool-value", { for: id });
  const slider = h("input", {
    id,
    type: "range",
    min: 0,
    max: POSITIONS,
    step: 1,
    value: 0,
    "aria-label": "Smoothing",
  });
  const show = () => {
    const weight = smoothWeight(Number(slider.value));
    setText(words, weight ? String(weight) : "off");
    slider.title = weight
      ? `Exponential moving average with weight ${weight}, about ${formatCount(1 / (1 - weight))} points, over every point that was logged; the line itself stays behind it`
      : "No smoothing";
    slider.style.setProperty("--share", `${(100 * slider.value) / POSITIONS}%`);
  };
  slider.addEventListener("input", () => {
    show();
    pick(smoothWeight(Number(slider.value)));
  });
  fill(place, h("label.tool-label", { for: id }, "Smoothing"), slider, words);
  show();
  return (weight) => {
    slider.value = smoothPosition(weight);
    show();
  };
}

/** Head of a panel: its title, then the rest of that line. */
export const panelHead = (title, ...parts) => h("div.panel-head", h("h2", title), parts);

/** A row of buttons of which one is on, `options`: `[value, text]`; the first is on at the start. `segmented` listens. */
export const segments = (id, label, options) =>
  h(
    "div.segmented",
    { id, role: "group", "aria-label": label },
    options.map(([value, text], index) =>
      h("button", { class: index ? "" : "on", data: { value }, "aria-pressed": String(!index) }, text),
    ),
  );

/** A panel that its head folds, hidden until there is something in it: `name-panel`, `name-fold`, `name-body`. */
export const foldedPanel = (name, title, head, ...body) =>
  h(
    "section.panel",
    { id: `${name}-panel`, hidden: true },
    h(
      "div.panel-head",
      h(
        "button.fold",
        { id: `${name}-fold`, "aria-expanded": "false", "aria-controls": `${name}-body` },
        h("span.icon.icon-fold"),
        title,
      ),
      head,
    ),
    h("div", { id: `${name}-body`, hidden: true }, body),
  );

/** Options of the scale of an axis. */
export const LINEAR_LOG = [
  ["linear", "Linear"],
  ["log", "Log"],
];

/** A place that is filled later, a tool of a panel. */
export const toolPlace = (id) => h("div.tool", { id });
/** The space that pushes what follows to the end of a line. */
export const grow = () => h("span.grow");

/** Keep something in the page's address: null takes it out. A link then shows the same view. */
export function remember(entries) {
  const query = new URLSearchParams(location.search);
  for (const [key, value] of Object.entries(entries)) {
    query.delete(key);
    for (const one of Array.isArray(value) ? value : [value])
      if (one !== null && one !== undefined && one !== "") query.append(key, one);
  }
  const search = query.toString().replaceAll("%2F", "/");
  if (`?${search}` !== location.search && (search || location.search))
    history.replaceState(history.state, "", `${location.pathname}${search ? `?${search}` : ""}`);
}
