// What the server draws, as Dash components: when it is asked again, and the scripts that only some components need.

import { api } from "./api.js";
import { h, patch, toast } from "./dom.js";
import { ago, errorText, inUtc, moment } from "./format.js";
import { address, addressed, changed, go, place } from "./route.js";
import { colorTheme } from "./theme.js";

/** What the server drew is asked for again this often. */
const [AGAIN_MS, ENDED_AGAIN_MS] = [15000, 300000];
/** So long after the end of a run its last rows still come. */
const SETTLES_MS = 60000;

/** HTML that we draw ourselves where a part has nothing else: a table of 50 rows holds Dash up for nearly two seconds. */
const TAGS = new Set(
  "A B Br Code Dd Details Div Dl Dt Em H2 H3 H4 Hr I Li Ol P Pre S Section Small Span Strong Summary Table Tbody Td Th Thead Time Tr Ul".split(
    " ",
  ),
);
/** Properties of Dash's components that are no attributes. */
const NOT_ATTRIBUTES = new Set(["children", "key", "n_clicks", "n_clicks_timestamp", "disable_n_clicks"]);
const SAFE_LINK = /^(https?:|mailto:|[/?#.])/i;

let asked = 0;
let drawnAt = 0;
const loading = new Map();

/** Whether something on the page that is open is drawn by the server. */
const hasParts = () => document.querySelector("[data-part]") !== null;

/** What a part's function is given of the browser. */
export function viewer(path = place(), search = location.search) {
  drawnAt = Date.now();
  asked += 1;
  return { path: path.replace(/\/+$/, "") || "/", search, theme: colorTheme.name(), asked };
}

/** Ask the server for what it draws on this page. */
export function drawParts() {
  if (hasParts()) window.dash_clientside.set_props("viewer", { data: viewer() });
}

/** Ask it again. */
export async function drawAgain() {
  if (!hasParts()) return;
  try {
    await api.me(); // goes to the login where that is needed, which Dash's own request can't
  } catch {
    return; // the server is away: what it drew last stays
  }
  drawParts();
}

function load(url) {
  if (!loading.has(url)) {
    loading.set(
      url,
      new Promise((resolve, reject) => {
        const script = document.createElement("script");
        script.src = address(url);
        script.onload = resolve;
        script.onerror = () => {
          loading.delete(url);
          script.remove();
          reject(new Error(`${url} did not load`));
        };
        document.head.append(script);
      }),
    );
  }
  return loading.get(url);
}

/** Write times where the server left a place for them: only the browser knows the viewer's time zone. */
function withTimes(node) {
  if (Array.isArray(node)) return node.map(withTimes);
  if (!node || typeof node !== "object" || !node.props) return node;
  const unix = node.type === "Time" ? node.props["data-unix"] : undefined;
  if (unix === undefined) return { ...node, props: { ...node.props, children: withTimes(node.props.children) } };
  return {
    ...node,
    props: { ...node.props, children: moment(unix), title: `${inUtc(unix)}, ${ago(Date.now() / 1000 - unix)}` },
  };
}

/** Whether that is text and plain HTML only. */
export function isHtml(node) {
  if (Array.isArray(node)) return node.every(isHtml);
  if (!node || typeof node !== "object") return true;
  const { id, style, children } = node.props;
  return (
    node.namespace === "dash_html_components" &&
    TAGS.has(node.type) &&
    (!id || typeof id === "string") &&
    !Object.values(style || {}).some((rule) => typeof rule === "number") &&
    isHtml(children)
  );
}

/** The attributes of a component of Dash, under their names in HTML. */
export function attributes(props) {
  const found = {};
  for (const [name, value] of Object.entries(props)) {
    if (NOT_ATTRIBUTES.has(name) || (name === "href" && !SAFE_LINK.test(value || ""))) continue;
    if (name === "className") found.class = value || "";
    else if (name === "style")
      found.style = Object.fromEntries(
        Object.entries(value || {}).map(([rule, to]) => [rule.replace(/[A-Z]/g, (one) => `-${one.toLowerCase()}`), to]),
      );
    else found[name.toLowerCase()] = value;
  }
  return found;
}

function elements(node) {
  if (Array.isArray(node)) return node.flatMap(elements);
  if (node === null || node === undefined || typeof node === "boolean") return [];
  if (typeof node !== "object") return [String(node)];
  return [h(node.type.toLowerCase(), attributes(node.props), ...elements(node.props.children))];
}

/** What the server drew, when the scripts of its components are here; plain HTML goes into the page past Dash. */
export async function fill(given, id, config) {
  if (given === null || given === undefined) return window.dash_clientside.no_update;
  const place = [.../** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-part]"))].find(
    (one) => one.dataset.part === id.part,
  );
  const drawn = place?.querySelector(":scope > .own");
  if (place && isHtml(given)) {
    const own = drawn || h("div.part.own");
    if (!drawn) place.prepend(own);
    patch(own, elements(withTimes(given)));
    return null;
  }
  drawn?.remove();
  window._dashPlotlyJSURL = address(config.plotly); // what Dash loads for a figure
  const text = JSON.stringify(given);
  for (const [name, url] of Object.entries(config.later))
    if (!window[name] && text.includes(`"namespace":"${name}"`)) await load(url);
  return withTimes(addressed(given));
}

/** A cell of a table: its text, a second line, where it leads. Text of a run is only ever text. */
function Cell({ value, data, colDef }) {
  const { createElement } = window.React;
  const look = data?.cells?.[colDef.field] || {};
  const missing = value === null || value === undefined || value === "";
  const text = look.text ?? (missing ? "–" : look.moment ? moment(value) : String(value));
  const title =
    look.moment && !missing
      ? `${inUtc(value)}, ${ago(Date.now() / 1000 - value)}`
      : look.title || [text, look.sub].join("\n");
  const line = /^[/?]/.test(look.href || "") ? createElement("a", { href: address(look.href) }, text) : text;
  return createElement(
    "div",
    { className: `cell ${look.tone || ""}`, title },
    createElement("div", {}, line),
    look.sub ? createElement("div", { className: "sub" }, look.sub) : null,
  );
}

/** What is chosen from a list goes into the address, or to the server. */
async function onChange(event) {
  const list = /** @type {HTMLSelectElement} */ (event.target);
  const { name, put, chosen } = list.dataset;
  if (!name) return;
  if (!put) {
    go(changed(`?${name}=${encodeURIComponent(list.value)}`));
    return;
  }
  try {
    await api.put(put, { [name]: list.value || null });
    toast("Saved, with your name.", "good", 3);
  } catch (error) {
    list.value = chosen || "";
    toast(errorText(error), "warning");
  }
  drawAgain();
}

/** Least pause between two drawings, ms: nothing but ages changes once a run has ended and its last rows are in. */
export function pauseBetween(ended, sinceChangeMs) {
  return ended && sinceChangeMs > SETTLES_MS ? ENDED_AGAIN_MS : 0;
}

/** Keep the server's drawings up to date, on whichever page is open; `ended`: whether its run has ended. */
export function watchParts(ended) {
  let [over, changedAt] = [false, 0];
  window.dashAgGridComponentFunctions = { Cell };
  document.addEventListener("change", onChange);
  colorTheme.watch(drawAgain);
  setInterval(() => {
    if (ended() !== over) [over, changedAt] = [ended(), Date.now()];
    if (!document.hidden && Date.now() - drawnAt >= pauseBetween(over, Date.now() - changedAt)) drawAgain();
  }, AGAIN_MS);
}
