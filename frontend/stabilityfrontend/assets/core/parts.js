// What the server draws, as Dash components: when it is asked again, and the scripts that only some components need.

import { colorTheme } from "./theme.js";

/** What the server drew is asked for again this often. */
const AGAIN_MS = 15000;

let asked = 0;
const loading = new Map();

/** Whether something on the page that is open is drawn by the server. */
const drawn = () => document.querySelector("[data-part]") !== null;

/** What a part's function is given of the browser. */
export const viewer = (path = location.pathname, search = location.search) => ({
  path: path.replace(/\/+$/, "") || "/",
  search,
  theme: colorTheme.name(),
  asked: ++asked,
});

/** Ask the server again for what it draws on this page. */
export function drawAgain() {
  if (drawn()) window.dash_clientside.set_props("viewer", { data: viewer() });
}

function load(url) {
  if (!loading.has(url)) {
    loading.set(
      url,
      new Promise((resolve, reject) => {
        const script = document.createElement("script");
        script.src = url;
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

/** What the server drew, when the scripts of its components are here. */
export async function fill(given, config) {
  if (given === null || given === undefined) return window.dash_clientside.no_update;
  const text = JSON.stringify(given);
  for (const [name, url] of Object.entries(config.later))
    if (!window[name] && text.includes(`"namespace":"${name}"`)) await load(url);
  return given;
}

/** A cell of a table: its text, a second line, where it leads. Text of a run is only ever text. */
function Cell({ value, data, colDef }) {
  const { createElement } = window.React;
  const look = data?.cells?.[colDef.field] || {};
  const text = look.text ?? (value === null || value === undefined || value === "" ? "–" : String(value));
  const line = look.href?.startsWith("/") ? createElement("a", { href: look.href }, text) : text;
  return createElement(
    "div",
    { className: `cell ${look.tone || ""}`, title: look.title },
    createElement("div", {}, line),
    look.sub ? createElement("div", { className: "sub" }, look.sub) : null,
  );
}

colorTheme.watch(drawAgain);
setInterval(() => {
  if (!document.hidden) drawAgain();
}, AGAIN_MS);
window.dashAgGridComponentFunctions = { Cell };
