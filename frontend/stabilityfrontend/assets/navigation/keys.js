// The keyboard: from row to row, from page to page. What each key does is in keys_table.js.

import { api } from "../core/api.js";
import { h } from "../core/dom.js";
import { address, go, incidentHref, place } from "../core/route.js";
import { smallDialog } from "../dialogs/confirm.js";

// -- All keys of the pages, in one table: what the keyboard does, and what `?` shows.

/** Letter behind `g` -> the page that it goes to, where the navigation has it. */
const PLACES = {
  r: { href: "/", name: "Runs" },
  i: { href: "/incidents", name: "Incidents" },
  f: { href: "/interruptions", name: "Interruptions" },
  e: { href: "/alerting", name: "Alerting" },
  c: { href: "/compare", name: "Compare" },
  d: { href: "/audit", name: "Audit" },
  l: { href: "/gallery", name: "Gallery" },
};

/** `keys` are pressed one after the other, those joined by + together. @type {{where: string, rows: {keys: string[], what: string}[]}[]} */
const KEYS = [
  {
    where: "Everywhere",
    rows: [
      {
        keys: ["Ctrl+K"],
        what: "Search everything: runs, metrics, incidents, nodes, GPUs, pages, commands; on a run also a chart in words: loss by tokens log csv",
      },
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
function meaning(key, before) {
  if (before === "g") return PLACES[key] ? { go: PLACES[key].href } : null;
  if (key === "g") return { wait: true };
  const act = { "/": "search", "?": "keys", j: "next", k: "previous", u: "up", x: "choose", a: "acknowledge" }[key];
  return act ? { act } : null;
}

/** The second of two keys has so long, milliseconds. */
const SECOND_MS = 1500;
/** What j and k go through, the first of these that a page has. `data-row` is for whoever makes a list. */
const ROWS = ["[data-row]", "#runs-body .run-link", "#incidents .incident"];
const FIELDS = "input, textarea, select, [contenteditable=''], [contenteditable='true'], [role='combobox']";
/** Of those, what has no text: a key there is no typing. */
const BUTTONS = "input:is([type='checkbox'], [type='radio'], [type='button'])";

let before = "";
let beforeAt = 0;

/** Whether somebody is typing there, so that a letter is a letter. */
const isTyping = (target) => target instanceof Element && target.matches(FIELDS) && !target.matches(BUTTONS);

const isShown = (element) => element.checkVisibility?.() ?? element.offsetParent !== null;

/** What j and k go through on this page. @returns {HTMLElement[]} */
function rows() {
  for (const selector of ROWS) {
    const found = /** @type {HTMLElement[]} */ ([...document.querySelectorAll(`main ${selector}`)]).filter(isShown);
    if (found.length) return found;
  }
  return [];
}

function step(by) {
  const every = rows();
  const at = every.findIndex((row) => row.contains(document.activeElement));
  const next = every[at < 0 ? (by > 0 ? 0 : every.length - 1) : at + by];
  if (!next) return;
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

/** From an incident's page to the next open one, in the order of the list of all. */
async function otherIncident(page, by) {
  const { incidents } = await api.allIncidents({ state: "open", limit: 1000 });
  const at = incidents.findIndex((one) => one.incident_id === page.incidentId && one.run_id === page.id);
  const next = incidents[at < 0 ? 0 : at + by];
  if (next) go(incidentHref(next.run_id, next.incident_id));
}

function up() {
  const found = /^(\/runs\/[^/]+)\/incidents\//.exec(place());
  if (found) go(found[1]);
  else if (place() !== "/") go("/");
}

/** In the row that has the focus press what `selector` names; without a row, on the page. Whether there was any. */
function press(selector, place) {
  const row = document.activeElement?.closest("[data-row-of], tr, article");
  const target = /** @type {HTMLElement | null} */ (
    row?.querySelector(selector) || (place ? document.querySelector(place) : null)
  );
  if (!target || !isShown(target) || target.matches(":disabled")) return false;
  target.click();
  return true;
}

/** Show all keys. */
export function showKeys() {
  if (document.getElementById("keys-dialog")) return;
  const close = h("button.button", { onclick: () => dialog.close() }, "Close");
  const dialog = smallDialog({
    id: "keys",
    title: "Keys",
    body: h(
      "div.dialog-body.keys-body",
      { tabindex: "0", role: "region", "aria-label": "Keys, by where they work" },
      KEYS.map(({ where, rows: some }) =>
        h(
          "section",
          h("h3", where),
          h(
            "dl.keys-list",
            some.map(({ keys, what }) =>
              h(
                "div",
                h(
                  "dt",
                  keys
                    .flatMap((key) => (key.split("+").length > 1 && key !== "+" ? key.split("+") : [key]))
                    .map((key) => h("kbd", key)),
                ),
                h("dd", what),
              ),
            ),
          ),
        ),
      ),
    ),
    buttons: [close],
  });
  close.focus();
}

/** Whether it was done: a key that has nothing to press here is left to the charts. @param {() => any} openedPage */
function act(name, openedPage) {
  const page = openedPage();
  if (name === "search") {
    const field = /** @type {HTMLElement[]} */ ([...document.querySelectorAll("#page input[type='search']")]).find(
      isShown,
    );
    field?.focus();
  } else if (name === "keys") showKeys();
  else if (name === "up") up();
  else if (name === "choose") return press("input[type='checkbox']", null);
  else if (name === "acknowledge") return press("[data-acknowledge]", "#incident-ack");
  else if (page?.incidentId) otherIncident(page, name === "next" ? 1 : -1).catch(() => {});
  else step(name === "next" ? 1 : -1);
  return true;
}

/** Listen from now on; `openedPage` returns the page that is open. */
export function watchKeys(openedPage) {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.isComposing) return;
    const target = event.target;
    if (event.key === "Escape" && isTyping(target) && !document.querySelector("dialog[open]")) {
      /** @type {HTMLElement} */ (target).blur();
      event.preventDefault(); // a search field would be emptied, and the rows that were searched for be gone
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(target)) return;
    if (document.querySelector("dialog[open]") || document.querySelector("[data-page='login']")) return;
    const found = meaning(event.key, performance.now() - beforeAt < SECOND_MS ? before : "");
    before = found && "wait" in found ? event.key : "";
    beforeAt = performance.now();
    if (!found) return;
    if ("go" in found) {
      if (!document.querySelector(`#pages a[href="${address(found.go)}"]`)) return;
      go(found.go);
    } else if ("act" in found && !act(found.act, openedPage)) return;
    event.preventDefault();
  });
}
