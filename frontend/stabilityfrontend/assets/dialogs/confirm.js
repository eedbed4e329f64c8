// Small dialogs, that go when they are closed; and the one that asks before something that can't be taken back.

import { h } from "../core/dom.js";

/**
 * Open a dialog of a title, what is in its body, and its buttons; `done` gets what it was closed with. Escape and a click
 * beside it close it.
 */
export function smallDialog({ id, title, body, buttons, describedBy = "", done = (_answer) => {} }) {
  const dialog = h(
    "dialog.dialog.small",
    {
      id: `${id}-dialog`,
      "aria-labelledby": `${id}-title`,
      "aria-describedby": describedBy || null,
    },
    h("div.dialog-head", h("h2", { id: `${id}-title` }, title)),
    body,
    h("div.dialog-foot", h("span.grow"), buttons),
  );
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  dialog.addEventListener("close", () => {
    dialog.remove();
    done(dialog.returnValue);
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** Ask; resolves to whether it was confirmed. Escape, a click beside it and Cancel all mean no. */
export function confirm({ title, text, action }) {
  return new Promise((resolve) => {
    const cancel = h("button.button", { onclick: () => dialog.close() }, "Cancel");
    const confirm = h("button.button.primary", { id: "confirm-yes", onclick: () => dialog.close("yes") }, action);
    const dialog = smallDialog({
      id: "confirm",
      title,
      body: h("div.dialog-body", h("p", { id: "confirm-text" }, text)),
      buttons: [cancel, confirm],
      describedBy: "confirm-text",
      done: (answer) => resolve(answer === "yes"),
    });
    cancel.focus();
  });
}
