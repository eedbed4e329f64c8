// Regions that live data draws again and again: what is still the same stays the same element, so that a click, the
// keyboard's focus, a selection or an opened fold survives an update. While a pointer is down pages hold still.

import { handlersOf, listen, shown } from "./dom.js";

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
 * By what an element is found again among its neighbours: its id, where it leads, what it is about (the first of its `data`);
 * a button by its words, so that none becomes another under the pointer; anything else by its look.
 */
function identity(node) {
  if (node.nodeType !== Node.ELEMENT_NODE) return "#text";
  const about =
    node.id ||
    node.getAttribute("href") ||
    Object.entries(node.dataset)[0]?.join(" ") ||
    (node.tagName === "BUTTON" ? node.textContent : "");
  return `${node.tagName} ${about || (node.getAttribute("class") || "").split(" ")[0]}`;
}

/** Make `old` look and act like `fresh`. */
function become(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  const kept = old.tagName === "DETAILS" ? "open" : null; // as people left it
  for (const { name } of [...old.attributes]) if (name !== kept && !fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes)
    if (name !== kept && name !== "style" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  if (old.style.cssText !== fresh.style.cssText) old.style.cssText = fresh.style.cssText;
  listen(old, handlersOf(fresh));
  children(old, [...fresh.childNodes]);
  if (old.tagName === "INPUT" && old.checked !== fresh.checked) old.checked = fresh.checked;
  if (old.tagName === "SELECT" && old.value !== fresh.value) old.value = fresh.value;
}

function children(parent, fresh) {
  if (!parent.firstChild) return parent.append(...fresh); // nothing is there to stay
  const own = new Set(fresh);
  const there = new Map();
  for (const node of parent.childNodes) {
    if (own.has(node)) continue;
    const name = identity(node);
    if (!there.has(name)) there.set(name, []);
    there.get(name).push(node);
  }
  const wanted = fresh.map((node) =>
    node.parentNode === parent ? node : (there.get(identity(node)) || []).shift() || node,
  );
  const staying = new Set(wanted);
  for (const node of [...parent.childNodes]) if (!staying.has(node)) node.remove();
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
