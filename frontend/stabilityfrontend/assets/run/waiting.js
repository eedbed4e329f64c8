// A run's page before its job has said a word: what it waits for, and for how long. It turns into the run by itself.

import { byId, h, setText } from "../core/dom.js";
import { duration, errorText } from "../core/format.js";
import { patch } from "../core/patch.js";
import { boardUrl } from "../core/place.js";

/** Longer than imports, a model's loading and a launcher take together: then something may be wrong. */
const LONG_S = 120;
/** Between two looks at first, and after that time. */
const [SOON_MS, LATER_MS] = [700, 4000];

const began = new WeakMap();
const waited = (page) => (Date.now() - began.get(page)) / 1000;

/** How long a page that waits for its run rests before it looks again, milliseconds. */
export const waitingMs = (page) => (began.has(page) && waited(page) > LONG_S ? LATER_MS : SOON_MS);

/** Say what the page waits for, or why the run can't be shown; `error` is what the server said. */
export function drawWaiting(page, error) {
  if (!began.has(page)) began.set(page, Date.now());
  const place = byId("run-empty");
  if (error.status !== 404) {
    patch(
      place,
      h(
        "div.empty.panel",
        h("h2", "This run can't be shown"),
        h("p", errorText(error)),
        h("p", h("a", { href: "/" }, "All runs")),
      ),
    );
    return;
  }
  document.title = `${page.id} · waiting`;
  const long = waited(page) > LONG_S;
  const key = `${error.code} ${long}`;
  if (place.dataset.key !== key || !place.firstChild) patch(place, panel(page, error.code === "not_yet", long));
  place.dataset.key = key;
  setText(place.querySelector(".waited"), duration(Math.max(1, Math.round(waited(page)))).replace(".0", ""));
}

function panel(page, connected, long) {
  const stage = (state, ...words) => h("li", { class: state }, ...words);
  return h(
    "div.empty.panel.waiting",
    h("h2", "Waiting for the job"),
    h("p", "Run ", h("code", page.id), " has not begun here yet. This page turns into the run by itself."),
    h(
      "ol.waits",
      stage("done", "The server is up"),
      stage(
        connected ? "done" : "now",
        "The job starts: imports, model, data. It calls ",
        h("code", "stabilityclient.init()"),
        ", and its agent connects to this server",
      ),
      stage(connected ? "now" : "", "The first step arrives"),
    ),
    long
      ? h(
          "p",
          "That is longer than most jobs take. Is the run's id right? Does the job have ",
          h("code", `STABILITY_URL=${boardUrl()}`),
          ", or another address under which its node reaches this server? On that node ",
          h("code", "stabilityboard doctor"),
          " says what is in the way.",
        )
      : null,
    h("p.sub", "Waiting for ", h("span.waited")),
    h("p", h("a", { href: "/" }, "All runs")),
  );
}
