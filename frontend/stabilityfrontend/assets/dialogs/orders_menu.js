// The menu of orders in the top bar: what people seldom ask of a job, so that the bar has room for the run's name.

import { byId, h } from "../core/dom.js";

/** Px that the menu keeps off the window's edges. */
const AIR = 8;

/** Put the buttons of orders into a menu that their button opens; each closes it. */
export function ordersMenu() {
  const open = byId("orders-open");
  const menu = h(
    "div.chart-menu",
    { id: "orders-menu", popover: "auto", role: "group", "aria-label": "Orders" },
    ["checkpoint-open", "stop-open", "task-open"].map((id) => byId(id)),
  );
  // Before the button opens its dialog, which gives the focus back to where it was: no place in a menu that is shut.
  menu.addEventListener(
    "click",
    () => {
      menu.hidePopover();
      open.focus();
    },
    { capture: true },
  );
  menu.addEventListener("toggle", (event) => {
    if (/** @type {ToggleEvent} */ (event).newState !== "open") return;
    const box = open.getBoundingClientRect();
    const left = Math.max(AIR, Math.min(box.right - menu.offsetWidth, innerWidth - menu.offsetWidth - AIR));
    Object.assign(menu.style, { left: `${left}px`, top: `${box.bottom + AIR / 2}px` });
  });
  open.after(menu);
  open.setAttribute("popovertarget", menu.id);
}
