// Builds and fills elements. Text is only ever set as text: names, reasons and metrics come from anywhere.

import { inUtc, moment } from "./format.js";
import { address } from "./route.js";

/**
 * Element by id, or null: a region may belong to a page that has gone.
 *
 * @returns {any}
 */
export const byId = (id) => document.getElementById(id);

/** Element -> what it does, by the type of the event. One listener looks it up, so that it can be exchanged (`patch`). */
const handlers = new WeakMap();
const act = (event) => handlers.get(event.currentTarget)[event.type]?.(event);
const handlersOf = (element) => handlers.get(element);
function listen(element, on) {
  if (!on && !handlers.has(element)) return;
  handlers.set(element, on || {});
  for (const type of Object.keys(on || {})) element.addEventListener(type, act);
}

/**
 * Element of a tag with its classes, `"div.panel.wide"`. Properties, where the first part is a plain object, then children.
 * `on...` is a handler, `data` {key: value}, `style` {rule: value}, `class` more classes, `href` a path within the board or
 * an address; any other property is an attribute (false: left out). A button submits no form unless its `type` is that.
 */
export function h(selector, ...parts) {
  const [tag, ...classes] = selector.split(".");
  const element = document.createElement(tag);
  const props = parts[0]?.constructor === Object ? parts.shift() : {};
  if (tag === "button" && !props.type) element.setAttribute("type", "button");
  if (props.class) classes.push(props.class);
  if (classes.length) element.className = classes.join(" ");
  let on = /** @type {Record<string, Function> | null} */ (null);
  for (const [key, value] of Object.entries(props)) {
    if (key === "class") continue;
    if (typeof value === "function") on = { ...on, [key.slice(2)]: value };
    else if (key === "data") Object.assign(element.dataset, value);
    else if (key === "style") for (const [name, rule] of Object.entries(value)) element.style.setProperty(name, rule);
    else if (key === "href") setHref(element, value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, String(value));
  }
  listen(element, on);
  element.append(...shown(parts));
  return element;
}

/** Children that are drawn, of nested lists: `condition && element` leaves nothing. */
const shown = (parts) => parts.flat(4).filter((part) => part !== null && part !== undefined && part !== false);

/** The head of a table; `look` gives the class of a column. */
export const tableHead = (words, look = (/** @type {string} */ _word, /** @type {number} */ _index) => "") =>
  h(
    "thead",
    h(
      "tr",
      words.map((word, index) => h("th", { scope: "col", class: look(word, index) }, word)),
    ),
  );

/** Characters at the end of a name that are always shown; a name of twice as many is never cut. */
const END = 8;

/**
 * A name that loses its middle where there is no place for all of it: names of data sets and metrics often begin alike.
 * `.cut-name` in base.css.
 */
export function cutName(name) {
  const words = String(name);
  if (words.length <= 2 * END) return words;
  return h("span.cut-name", h("span", words.slice(0, -END)), words.slice(-END));
}

/** Replace what an element holds. */
export function fill(element, ...children) {
  element?.replaceChildren(...shown(children));
}

/** Set an element's text, touching the page only when it changed. */
export function setText(element, text) {
  const words = text === null || text === undefined ? "" : String(text);
  if (element && element.textContent !== words) element.textContent = words;
}

/** Set an element's class, touching the page only when it changed. */
export function setClass(element, name) {
  if (element && element.className !== name) element.className = name;
}

/** Set what stands under the pointer, touching the page only when it changed. */
export function setTitle(element, words) {
  if (element && element.title !== words) element.title = words;
}

/** Set where a link leads, touching the page only when it changed: to a path within the board, or nowhere (null). */
export function setHref(element, path) {
  const href = path ? address(String(path)) : null;
  if (!element || href === element.getAttribute("href")) return;
  if (href === null) element.removeAttribute("href");
  else element.setAttribute("href", href);
}

/** Show or hide an element. */
export function setShown(element, shown) {
  if (element && element.hidden === shown) element.hidden = !shown;
}

/** Make the buttons of a segmented control exclusive; `pick` gets the chosen value. */
export function segmented(element, pick) {
  if (!element) return () => {};
  const choose = (value, silent) => {
    for (const button of element.children) {
      const on = button.dataset.value === value;
      button.classList.toggle("on", on);
      button.setAttribute("aria-pressed", String(on));
    }
    if (!silent) pick(value);
  };
  element.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) choose(button.dataset.value, false);
  });
  return choose;
}

/** A short message at the corner that goes by itself. `kind`: info, good, warning or critical. */
export function toast(text, kind, seconds) {
  const place = byId("toasts");
  if (!place) return;
  const note = h("div", { class: `toast ${kind || "info"}` }, text);
  place.append(note);
  // Four at a time: a storm of messages must not cover the page.
  while (place.children.length > 4) place.firstChild.remove();
  setTimeout(() => note.remove(), 1000 * (seconds || 6));
}

// -- Regions that live data draws again and again: what is still the same stays the same element, so that a click, the
// keyboard's focus, a selection or an opened fold survives an update. While a pointer is down pages hold still.

/** A press holds a page still for this long at most: one whose end is never reported must not stop it. */
const HELD_MS = 3000;
let pressedAt = /** @type {number | null} */ (null);

const release = () => (pressedAt = null);

/** Look out for presses from now on. */
export function watchPresses() {
  window.addEventListener("pointerdown", () => (pressedAt = performance.now()), true);
  // The click follows the release at once; its own handlers may draw again.
  window.addEventListener("click", release, true);
  for (const type of ["pointerup", "pointercancel"]) window.addEventListener(type, () => setTimeout(release), true);
}

/** Whether somebody is in the middle of a click: nothing may move under the pointer until it ends. */
export const pressed = () => pressedAt !== null && performance.now() - pressedAt < HELD_MS;

/**
 * Name of an element among its neighbours: its id, its link, the first of its `data`; of a button its words, so that none
 * becomes another under the pointer; of any other its first class.
 */
function identity(node) {
  if (node.nodeType !== Node.ELEMENT_NODE) return "#text";
  const datum = () => node.getAttributeNames().find((name) => name.startsWith("data-"));
  const about = node.id || node.getAttribute("href") || "";
  const first = about || (node.hasAttributes() && datum());
  if (first) return `${node.tagName} ${about || `${first} ${node.getAttribute(first)}`}`;
  return `${node.tagName} ${node.tagName === "BUTTON" ? node.textContent : node.className.split?.(" ")[0]}`;
}

/** Give `old`, which looks the same, the handlers of `fresh`, and the state that no attribute has. */
function settle(old, fresh) {
  listen(old, handlersOf(fresh));
  if (old.tagName === "INPUT" && old.checked !== fresh.checked) old.checked = fresh.checked;
  if (old.tagName === "SELECT" && old.value !== fresh.value) old.value = fresh.value;
}

/** The same of all elements of two equal trees. */
function settleAll(old, fresh) {
  settle(old, fresh);
  let other = fresh.firstElementChild;
  for (let child = old.firstElementChild; child; child = child.nextElementSibling) {
    settleAll(child, other);
    other = other.nextElementSibling;
  }
}

/** Make `old` look and act like `fresh`. */
function become(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.isEqualNode(fresh)) return settleAll(old, fresh);
  const kept = old.tagName === "DETAILS" ? "open" : null; // as people left it
  for (const { name } of [...old.attributes]) if (name !== kept && !fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes)
    if (name !== kept && name !== "style" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  if (old.style.cssText !== fresh.style.cssText) old.style.cssText = fresh.style.cssText;
  children(old, [...fresh.childNodes]);
  settle(old, fresh);
}

function children(parent, fresh) {
  if (!parent.firstChild) return parent.append(...fresh); // nothing is there to stay
  const before = [...parent.childNodes];
  const names = fresh.map(identity);
  if (
    before.length === fresh.length &&
    fresh.every((node, index) => node.parentNode !== parent && names[index] === identity(before[index]))
  )
    return fresh.forEach((node, index) => become(before[index], node));
  const own = new Set(fresh);
  const there = new Map();
  for (const node of before) {
    if (own.has(node)) continue;
    const name = identity(node);
    if (!there.has(name)) there.set(name, []);
    there.get(name).push(node);
  }
  const wanted = fresh.map((node, index) =>
    node.parentNode === parent ? node : (there.get(names[index]) || []).shift() || node,
  );
  const staying = new Set(wanted);
  for (const node of before) if (!staying.has(node)) node.remove();
  let at = parent.firstChild;
  wanted.forEach((node, index) => {
    if (node !== fresh[index]) become(node, fresh[index]);
    if (node === at) at = at.nextSibling;
    else if (parent.moveBefore && node.parentNode === parent) parent.moveBefore(node, at);
    else parent.insertBefore(node, at);
  });
}

/**
 * Bring what an element holds up to date: as `fill`, but what is still the same stays. The children are made anew for
 * each call, and nobody keeps hold of them: those that are there take on what these look like and do.
 */
export function patch(element, ...parts) {
  if (!element) return;
  const active = /** @type {HTMLElement} */ (document.activeElement);
  children(
    element,
    shown(parts).map((part) => (part instanceof Node ? part : document.createTextNode(part))),
  );
  // Where browsers can't move an element without taking it out, its focus goes.
  if (active !== document.activeElement && element.contains(active)) active.focus({ preventScroll: true });
}

// -- Texts for the clipboard.

/** Copy a text; resolves to whether it worked. Plain http beyond loopback has no clipboard, so there is the old way too. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = h("textarea.off-screen", { "aria-hidden": "true" });
    field.value = text;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}

// -- Every time that a page shows: in the viewer's zone, with the same in UTC under the pointer.

/** What stands under the pointer of a time: both zones. */
export const whenTitle = (seconds) => (inUtc(seconds) ? `${moment(seconds)}\n${inUtc(seconds)}` : null);

/** Whether the times of a run's log are made up: it was imported from one that has none, and no moment of it is shown. */
export const isUntimed = (run) => Boolean(run?.config?.log_without_times);

/** A time as an element; `words`: what is shown instead of date and clock, an age for example. */
export const when = (seconds, words = moment(seconds), className = "") =>
  h(
    "time",
    {
      class: className || null,
      datetime: inUtc(seconds) ? new Date(seconds * 1000).toISOString() : false,
      title: whenTitle(seconds),
    },
    words,
  );

// -- What is fetched for a part of a page only once it comes near what is seen: a first load waits for nothing out of sight.

/** How far below the window a part is near, pixels. */
const NEAR_PX = 100;

export class WhenNear {
  /** @param {Element} element @param {() => void} fetch */
  constructor(element, fetch) {
    this.fetch = fetch;
    this.near = this.wanted = false;
    this.seen = new IntersectionObserver(
      (entries) => {
        if (this.near || !entries.some((entry) => entry.isIntersecting)) return;
        this.close();
        this.near = true;
        if (this.wanted) fetch();
      },
      { rootMargin: `${NEAR_PX}px` },
    );
    this.seen.observe(element);
  }

  /** Fetch now if the part has been near, else when it comes. */
  ask() {
    this.wanted = true;
    if (this.near) this.fetch();
  }

  close() {
    this.seen.disconnect();
  }
}
