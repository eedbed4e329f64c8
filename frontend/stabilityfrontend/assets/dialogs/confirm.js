// Asks before something that can't be taken back.

import { h } from "../core/dom.js";

/** Ask; resolves to whether it was confirmed. Escape, a click beside it and Cancel all mean no. */
export function confirm({ title, text, action }) {
  return new Promise((resolve) => {
    const cancel = h("button", { type: "button", class: "button", on: { click: () => dialog.close() } }, "Cancel");
    const confirm = h(
      "button",
      { type: "button", class: "button primary", id: "confirm-yes", on: { click: () => dialog.close("yes") } },
      action,
    );
    const dialog = h(
      "dialog",
      {
        id: "confirm-dialog",
        class: "dialog small",
        "aria-labelledby": "confirm-title",
        "aria-describedby": "confirm-text",
      },
      h("div", { class: "dialog-head" }, h("h2", { id: "confirm-title" }, title)),
      h("div", { class: "dialog-body" }, h("p", { id: "confirm-text" }, text)),
      h("div", { class: "dialog-foot" }, h("span", { class: "grow" }), cancel, confirm),
    );
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close();
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
    cancel.focus();
  });
}
