// How the charts of a run's metrics are laid out: pins, order, sizes, folds, options of charts. Plain JSON that a browser
// keeps for each project, that is saved under a name, and of which the essential part is in the page's address.

import { asRecord } from "../core/as_type.js";

/** Bounds of what is kept: an address and 64 KiB on the server hold it. */
const [PINS, ORDERED, SECTIONS, SIZED, NAME] = [48, 2000, 240, 400, 500];
/** Characters of sizes and options in the address; a longer one is in saved layouts alone. */
const ADDRESS = 1500;
/** Characters that a saved layout may have, as JSON. */
const SAVED = 60_000;

/** Sizes of a chart, small to full width. */
export const SIZES = ["S", "M", "L", "W"];
export const SIZE_WORDS = { S: "small", M: "medium", L: "large", W: "full width" };

/**
 * @typedef {{pins: string[], order: Record<string, string[]>, sizes: Record<string, string>,
 *   open: Record<string, boolean>, options: Record<string, any>, find: string}} State
 */

/** @returns {State} */
export const emptyLayout = () => ({ pins: [], order: {}, sizes: {}, open: {}, options: {}, find: "" });

const isName = (one) => typeof one === "string" && one !== "" && one.length <= NAME;
const names = (given, most) => (Array.isArray(given) ? [...new Set(given.filter(isName))].slice(0, most) : []);
const entries = (given, fits, most) =>
  Object.fromEntries(
    Object.entries(asRecord(given))
      .filter(([key, value]) => key.length <= NAME && key !== "__proto__" && fits(value))
      .slice(0, most),
  );

/** A layout out of JSON that somebody kept: what is unknown or malformed is left out. @returns {State} */
export function readLayout(given) {
  const one = asRecord(given);
  const order = entries(one.order, Array.isArray, SECTIONS);
  for (const key of Object.keys(order)) order[key] = names(order[key], ORDERED);
  return {
    pins: names(one.pins, PINS),
    order,
    sizes: entries(one.sizes, (size) => SIZES.includes(size), SIZED),
    open: entries(one.open, (open) => typeof open === "boolean", SECTIONS),
    options: entries(one.options, (options) => options && typeof options === "object", SIZED),
    find: typeof one.find === "string" ? one.find.slice(0, NAME) : "",
  };
}

/** The parameters of the address that say how the metrics are laid out. */
export function addressOf(layout) {
  const rest = Object.fromEntries(
    ["sizes", "options"].filter((key) => Object.keys(layout[key]).length).map((key) => [key, layout[key]]),
  );
  const text = Object.keys(rest).length ? JSON.stringify(rest) : "";
  const open = Object.entries(layout.open).map(([prefix, open]) => `${open ? "" : "-"}${prefix}`);
  return {
    chart: layout.pins,
    find: layout.find || null,
    open: open.length && open.length <= 24 ? open.join(",") : null,
    charts: text && text.length <= ADDRESS ? text : null,
  };
}

/** The layout in an address, null where it has none. @returns {State | null} */
export function layoutIn(search) {
  const query = new URLSearchParams(search);
  if (!["chart", "find", "open", "charts"].some((key) => query.has(key))) return null;
  let more = {};
  try {
    more = asRecord(JSON.parse(query.get("charts") || "{}"));
  } catch {
    // A link that was cut: the rest of it holds.
  }
  const open = Object.fromEntries(
    (query.get("open") ?? "")
      .split(query.has("open") ? "," : /(?!)/)
      .filter((one) => query.has("open") && one !== undefined)
      .map((one) => [one.replace(/^-/, ""), !one.startsWith("-")]),
  );
  return readLayout({ ...more, pins: query.getAll("chart"), find: query.get("find") || "", open });
}

/** Whether a layout can be saved. */
export const fitsSaving = (layout) => JSON.stringify(layout).length <= SAVED;

const KEY = "stabilityboard.layout.";

/** What this browser kept for a project. @returns {State | null} */
export function keptLayout(project) {
  try {
    const text = localStorage.getItem(KEY + project);
    return text ? readLayout(JSON.parse(text)) : null;
  } catch {
    return null; // no storage, or not ours
  }
}

/** Keep a layout in this browser; an empty one is taken out. */
export function keepLayout(project, layout) {
  try {
    const text = JSON.stringify(layout);
    if (text === JSON.stringify(emptyLayout())) localStorage.removeItem(KEY + project);
    else if (text.length <= SAVED) localStorage.setItem(KEY + project, text);
  } catch {
    // A browser that keeps nothing: the address still does.
  }
}

/** Metrics that a layout names and the run does not have. */
export function missingOf(layout, known) {
  return layout.pins.filter((name) => !name.startsWith("expr:") && !name.endsWith("*") && !known.has(name));
}
