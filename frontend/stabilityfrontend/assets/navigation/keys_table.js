// All keys of the pages, in one table: what the keyboard does, and what `?` shows.

/** Letter behind `g` -> the page that it goes to, where the navigation has it. */
export const PLACES = {
  r: { href: "/", name: "Runs" },
  i: { href: "/incidents", name: "Incidents" },
  f: { href: "/interruptions", name: "Interruptions" },
  c: { href: "/compare", name: "Compare" },
  l: { href: "/gallery", name: "Gallery" },
};

/** `keys` are pressed one after the other, those joined by + together. @type {{where: string, rows: {keys: string[], what: string}[]}[]} */
export const KEYS = [
  {
    where: "Everywhere",
    rows: [
      { keys: ["Ctrl+K"], what: "Search everything: runs, metrics, incidents, nodes, GPUs, pages, commands" },
      { keys: ["/"], what: "Go to the search field of this page" },
      { keys: ["?"], what: "Show these keys" },
      { keys: ["Esc"], what: "Close what is open, leave a field" },
      { keys: ["u"], what: "One level up: from an incident to its run, from a run to the list" },
    ],
  },
  {
    where: "Pages",
    rows: Object.entries(PLACES).map(([letter, { name }]) => ({ keys: ["g", letter], what: name })),
  },
  {
    where: "Lists and incidents",
    rows: [
      { keys: ["j"], what: "Next row; on an incident's page the next open incident" },
      { keys: ["k"], what: "Previous row, previous open incident" },
      { keys: ["Enter"], what: "Open the row" },
      { keys: ["x"], what: "Choose the row, or not" },
      { keys: ["a"], what: "Acknowledge the incident of the row, or of the page" },
    ],
  },
  {
    where: "In a chart that has the focus",
    rows: [
      { keys: ["←", "→"], what: "From point to point; ten at once with Shift" },
      { keys: ["Home", "End"], what: "The first point, the newest" },
      { keys: ["+", "-"], what: "Zoom in, zoom out" },
      { keys: ["Esc"], what: "End the zoom" },
      { keys: ["a"], what: "Annotate the step at the cursor, on a run's page" },
    ],
  },
];

/**
 * What a key means, by the key before it: `{go}` an address, `{act}` a name, `{wait: true}` for the second of two keys;
 * null for nothing.
 */
export function meaning(key, before) {
  if (before === "g") return PLACES[key] ? { go: PLACES[key].href } : null;
  if (key === "g") return { wait: true };
  const act = { "/": "search", "?": "keys", j: "next", k: "previous", u: "up", x: "choose", a: "acknowledge" }[key];
  return act ? { act } : null;
}
