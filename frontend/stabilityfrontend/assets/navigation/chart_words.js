// A chart in words: `loss by tokens log csv` is the loss over the tokens on a logarithmic axis, saved as a CSV. Pure.

// -- How well what was typed fits what is here already, pages and commands; the server ranks what it finds alike.

/** From 0 (does not fit) on; a word at the start of the text counts most, then at the start of a word, then anywhere. */
export function fit(typed, text) {
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  const low = text.toLowerCase();
  let total = 0;
  for (const word of words) {
    const at = low.indexOf(word);
    if (at < 0) return 0;
    total += at === 0 ? 8 : /[a-z0-9]/.test(low[at - 1]) ? 3 : 5;
  }
  return words.length ? total + 1 / (1 + low.length) : 0;
}

/** Names under which jobs count the tokens that they have seen. */
export const TOKENS = /(^|[/_.])(total_|num_|train_|consumed_)?tokens(_seen|_total|_processed)?$/;

const AXES = { step: "step", steps: "step", time: "time", "wall time": "time" };

/** The metric that is called so, else the one that fits best; null where none does. */
function metricOf(words, names) {
  if (names.includes(words)) return words;
  let best = /** @type {string | null} */ (null);
  let most = 0;
  for (const name of names) {
    const fits = fit(words, name);
    if (fits > most) [best, most] = [name, fits];
  }
  return best;
}

function axisOf(words, names) {
  if (AXES[words]) return AXES[words];
  if (words === "tokens" && !names.includes(words)) return names.find((one) => TOKENS.test(one)) || null;
  return metricOf(words, names);
}

/**
 * What chart some words mean, null where they mean none. `names`: the run's metrics.
 * @param {string} typed
 * @param {string[]} names
 * @returns {{name: string, options: {x?: string, log?: boolean}, csv: boolean, words: string} | null}
 */
export function chartOf(typed, names) {
  let rest = typed.trim().replace(/,/g, " ").replace(/\s+/g, " ");
  const flags = new Set();
  for (let found; (found = / (log|csv)$/i.exec(rest)); rest = rest.slice(0, found.index))
    flags.add(found[1].toLowerCase());
  const by = / by (.+)$/i.exec(rest);
  if (by) rest = rest.slice(0, by.index);
  if (!rest || (!by && !flags.size)) return null;
  const name = metricOf(rest, names);
  const x = by ? axisOf(by[1], names) : "step";
  if (!name || !x) return null;
  const options = { ...(by ? { x } : {}), ...(flags.has("log") ? { log: true } : {}) };
  const parts = [by ? `${name} by ${x}` : name, flags.has("log") ? "log" : "", flags.has("csv") ? "csv" : ""];
  return { name, options, csv: flags.has("csv"), words: parts.filter(Boolean).join(", ") };
}
