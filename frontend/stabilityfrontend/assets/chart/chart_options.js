// How people set up one chart, as plain JSON: what layouts, the page's address and templates keep of it.

/**
 * `log`: y axis; `smooth`: weight of the past, 0 for none; `x`: step, time or a metric; `yRange`: null follows the data;
 * `hidden`: names of lines; `metrics`: names, or prefixes that end with `*`.
 * @typedef {{log: boolean, smooth: number, x: string, yRange: number[] | null, hidden: string[], metrics: string[]}} Options
 */

/** Weights of the past that the server takes. */
const MAX_SMOOTH = 0.9999;
/** Metrics of one chart, hidden lines of one chart, characters of a name: what an address can hold. */
const [METRICS, HIDDEN, NAME] = [24, 64, 500];

/** What a chart is before anybody sets it up. @returns {Options} */
export const usualOptions = (panel) => ({
  log: Boolean(panel.log),
  smooth: 0,
  x: "step",
  yRange: null,
  hidden: [],
  metrics: [...panel.metrics],
});

const isName = (one) => typeof one === "string" && one !== "" && one.length <= NAME;
const isRange = (one) =>
  Array.isArray(one) && one.length === 2 && one.every((end) => Number.isFinite(end)) && one[1] > one[0];
const names = (given, most) => [...new Set(given.filter(isName))].slice(0, most);

/** Options out of JSON that somebody kept: what is unknown or malformed is as in `usual`. @returns {Options} */
export function readOptions(given, usual) {
  const one = given && typeof given === "object" && !Array.isArray(given) ? given : {};
  const metrics = Array.isArray(one.metrics) ? names(one.metrics, METRICS) : [];
  return {
    log: typeof one.log === "boolean" ? one.log : usual.log,
    smooth: Number.isFinite(one.smooth) && one.smooth >= 0 && one.smooth <= MAX_SMOOTH ? one.smooth : usual.smooth,
    x: isName(one.x) ? one.x : usual.x,
    yRange: isRange(one.yRange) ? [...one.yRange] : usual.yRange,
    hidden: Array.isArray(one.hidden) ? names(one.hidden, HIDDEN) : usual.hidden,
    metrics: metrics.length ? metrics : usual.metrics,
  };
}

/** What of the options differs from the usual ones: `{}` of a chart that nobody set up. */
export const differing = (options, usual) =>
  Object.fromEntries(
    Object.entries(options).filter(([key, value]) => JSON.stringify(value) !== JSON.stringify(usual[key])),
  );

/** Hide or show a line; `alone`: hide all others, or show all where it is alone already. */
export function toggled(hidden, name, all, alone) {
  if (!alone) return hidden.includes(name) ? hidden.filter((one) => one !== name) : [...hidden, name];
  const others = all.filter((one) => one !== name);
  return others.length && others.every((one) => hidden.includes(one)) && !hidden.includes(name) ? [] : others;
}
