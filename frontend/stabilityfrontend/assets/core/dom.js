// Builds and fills elements. Text is only ever set as text: names, reasons and metrics come from anywhere.

import { address } from "./place.js";

/**
 * Element by id, or null: a region may belong to a page that has gone.
 *
 * @returns {any}
 */
export const byId = (id) => document.getElementById(id);

/** Element -> what it does, by the type of the event. One listener looks it up, so that it can be exchanged (`patch`). */
const handlers = new WeakMap();
const act = (event) => handlers.get(event.currentTarget)[event.type]?.(event);
export const handlersOf = (element) => handlers.get(element);
export function listen(element, on) {
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
export const shown = (parts) => parts.flat(4).filter((part) => part !== null && part !== undefined && part !== false);

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
