// Builds and fills elements. Text is only ever set as text: names, reasons and metrics come from anywhere.
(function () {
  "use strict";
  const S = (window.stability = window.stability || {});

  /** Element by id, or null: a region may belong to a page that has gone. */
  S.byId = (id) => document.getElementById(id);

  /** Element -> what it does, by the type of the event. One listener looks it up, so that it can be exchanged (`S.patch`). */
  const handlers = new WeakMap();
  const act = (event) => handlers.get(event.currentTarget)[event.type]?.(event);
  S.handlersOf = (element) => handlers.get(element);
  S.listen = function (element, on) {
    if (!on && !handlers.has(element)) return;
    handlers.set(element, on || {});
    for (const type of Object.keys(on || {})) element.addEventListener(type, act);
  };

  /**
   * An element with properties and children.
   * `props`: `class`, `on` ({event: handler}), `data` ({key: value}), anything else is an attribute (false: left out).
   */
  S.h = function (tag, props, ...children) {
    const element = document.createElement(tag);
    for (const [key, value] of Object.entries(props || {})) {
      if (key === "class") element.className = value;
      else if (key === "on") S.listen(element, value);
      else if (key === "data") Object.assign(element.dataset, value);
      else if (key === "style") for (const [name, rule] of Object.entries(value)) element.style.setProperty(name, rule);
      else if (value === true) element.setAttribute(key, "");
      else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, String(value));
    }
    element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
    return element;
  };

  /** Replace what an element holds. */
  S.fill = function (element, ...children) {
    if (element)
      element.replaceChildren(
        ...children.flat().filter((child) => child !== null && child !== undefined && child !== false),
      );
  };

  /** Set an element's text, touching the page only when it changed. */
  S.text = function (element, text) {
    const words = text === null || text === undefined ? "" : String(text);
    if (element && element.textContent !== words) element.textContent = words;
  };

  /** Set an element's class, touching the page only when it changed. */
  S.cls = function (element, name) {
    if (element && element.className !== name) element.className = name;
  };

  /** Set what stands under the pointer, touching the page only when it changed. */
  S.title = function (element, words) {
    if (element && element.title !== words) element.title = words;
  };

  /** Show or hide an element. */
  S.show = function (element, shown) {
    if (element && element.hidden === shown) element.hidden = !shown;
  };

  /** Make the buttons of a segmented control exclusive; `pick` gets the chosen value. */
  S.segmented = function (element, pick) {
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
  };

  const SVG = "http://www.w3.org/2000/svg";

  /** A line without axes. `values` may hold null for gaps; the colour is a CSS colour. */
  S.sparkline = function (values, color, width, height, dash) {
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    svg.setAttribute("class", "spark");
    const finite = values.filter((value) => Number.isFinite(value));
    if (finite.length < 2) return svg;
    const [low, high] = S.robustRange(finite);
    const span = high - low || 1;
    const clamp = (value) => Math.min(1, Math.max(0, (value - low) / span));
    let path = "";
    let open = false;
    values.forEach((value, index) => {
      if (!Number.isFinite(value)) {
        open = false;
        return;
      }
      const x = (index / (values.length - 1)) * width;
      const y = height - 2 - clamp(value) * (height - 4);
      path += `${open ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`;
      open = true;
    });
    const line = document.createElementNS(SVG, "path");
    line.setAttribute("d", path);
    line.setAttribute("fill", "none");
    line.setAttribute("stroke", color);
    line.setAttribute("stroke-width", "1.5");
    line.setAttribute("stroke-linejoin", "round");
    line.setAttribute("vector-effect", "non-scaling-stroke");
    if (dash) line.setAttribute("stroke-dasharray", dash);
    svg.append(line);
    return svg;
  };

  /** A short message at the corner that goes by itself. `kind`: info, good, warning or critical. */
  S.toast = function (text, kind, seconds) {
    const place = S.byId("toasts");
    if (!place) return;
    const note = S.h("div", { class: `toast ${kind || "info"}` }, text);
    place.append(note);
    // Four at a time: a storm of messages must not cover the page.
    while (place.children.length > 4) place.firstChild.remove();
    setTimeout(() => note.remove(), 1000 * (seconds || 6));
  };
})();
