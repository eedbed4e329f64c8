// Browser notifications, turned on with the button: one for each incident that opens or becomes critical, on any page.

import { toast } from "../core/dom.js";
import { Live } from "../core/live.js";
import { go, incidentHref, keptName } from "../core/route.js";

const KEPT = keptName("stability-notify");
/** An incident that opened longer ago is no news: a feed may bring missed ones. */
const NEWS_S = 300;
/** Incidents remembered, against a second notification of the same. */
const REMEMBERED = 500;

/** Incident id -> severity in its newest notification. */
const notified = new Map();
let feed = /** @type {Live | null} */ (null);
let release = /** @type {(() => void) | null} */ (null);

/** Whether an incident is one to tell somebody: just opened, an alarm, and no follower in a train. */
export const isNews = (incident, now) =>
  incident.state === "open" &&
  incident.alarm !== false &&
  !incident.acknowledged_by &&
  (!incident.train || incident.train === incident.incident_id) &&
  now - incident.opened < NEWS_S;

/** Whether an incident of an earlier notification, of severity `before`, has become critical. */
export const isWorse = (incident, before) =>
  incident.state === "open" && incident.severity === "critical" && before !== undefined && before !== "critical";

/** Texts of a notification. */
export const notice = (incident) => ({
  title: `${incident.label}${incident.run_name ? ` · ${incident.run_name}` : ""}`,
  options: {
    body: incident.title || "",
    // Two tabs that both tell it are one notification.
    tag: incident.incident_id,
    requireInteraction: incident.severity === "critical",
  },
});

const supported = () => "Notification" in window;
const kept = () => {
  try {
    return localStorage.getItem(KEPT) === "on";
  } catch {
    return false;
  }
};
const on = () => supported() && Notification.permission === "granted" && kept();

function keep(wanted) {
  try {
    localStorage.setItem(KEPT, wanted ? "on" : "off");
  } catch {
    // Storage is off: it holds for this page.
  }
}

function tell(message) {
  if (message.type !== "incident" || !feed || !on()) return;
  const { incident } = message;
  const before = notified.get(incident.incident_id);
  if (before === undefined ? !isNews(incident, feed.now()) : !isWorse(incident, before)) return;
  notified.set(incident.incident_id, incident.severity);
  if (notified.size > REMEMBERED) notified.delete(notified.keys().next().value);
  const { title, options } = notice(incident);
  try {
    const shown = new Notification(title, options);
    shown.onclick = () => {
      window.focus();
      go(incidentHref(incident.run_id, incident.incident_id));
      shown.close();
    };
  } catch {
    toast("This browser shows notifications of installed apps only.", "warning");
    keep(false);
    follow();
  }
}

/** Hold the feed of all runs while notifications are on; of several tabs of a browser one does. */
function follow() {
  if (!on()) {
    feed?.close();
    feed = null;
    release?.();
    release = null;
    return;
  }
  if (feed || release) return;
  const begin = () => {
    feed = new Live(null, tell, () => {}, null, true);
  };
  if (!navigator.locks) {
    begin();
    return;
  }
  let ended = false;
  release = () => {
    ended = true;
  };
  navigator.locks.request(KEPT, () => {
    if (ended || !on()) return undefined;
    begin();
    return new Promise((resolve) => {
      release = () => resolve(undefined);
    });
  });
}

/** Whether this tab has the feed of all runs, and has heard of the server. */
export const notifying = () => Boolean(feed?.heard);

/** The button: what a click would do, for those who can't see it too. */
export function drawNotify() {
  const button = document.getElementById("notify");
  if (!button) return;
  const blocked = supported() && Notification.permission === "denied";
  button.hidden = !supported();
  button.setAttribute("aria-pressed", String(on()));
  button.title = blocked
    ? "The browser blocks notifications of this page: allow them in its settings"
    : on()
      ? "Notifications are on: one for each incident that opens or becomes critical. Press to turn them off"
      : "Notify me in this browser of each incident that opens or becomes critical";
}

async function press() {
  if (on()) keep(false);
  else {
    const answer = Notification.permission === "granted" ? "granted" : await Notification.requestPermission();
    keep(answer === "granted");
    if (answer === "granted")
      toast(
        "You get a notification for each incident that opens or becomes critical, while a page of this board is open.",
        "good",
      );
    else toast("The browser blocks notifications of this page: allow them in its settings.", "warning");
  }
  follow();
  drawNotify();
}

/** From now on the button works; permission is asked for when it is pressed, never before. */
export function watchNotify() {
  document.addEventListener("click", (event) => {
    if (/** @type {Element} */ (event.target).closest("#notify")) press();
  });
  // Turned on or off in another tab.
  window.addEventListener("storage", (event) => {
    if (event.key !== KEPT) return;
    follow();
    drawNotify();
  });
  follow();
}
