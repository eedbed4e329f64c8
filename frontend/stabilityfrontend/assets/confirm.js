// Asks before something that can't be taken back.
(function () {
  "use strict";
  const S = (window.stability = window.stability || {});

  /** Ask; resolves to whether it was confirmed. Escape, a click beside it and Cancel all mean no. */
  S.confirm = function ({ title, text, action }) {
    return new Promise((resolve) => {
      const cancel = S.h("button", { type: "button", class: "button", on: { click: () => dialog.close() } }, "Cancel");
      const confirm = S.h(
        "button",
        { type: "button", class: "button primary", id: "confirm-yes", on: { click: () => dialog.close("yes") } },
        action,
      );
      const dialog = S.h(
        "dialog",
        {
          id: "confirm-dialog",
          class: "dialog small",
          "aria-labelledby": "confirm-title",
          "aria-describedby": "confirm-text",
        },
        S.h("div", { class: "dialog-head" }, S.h("h2", { id: "confirm-title" }, title)),
        S.h("div", { class: "dialog-body" }, S.h("p", { id: "confirm-text" }, text)),
        S.h("div", { class: "dialog-foot" }, S.h("span", { class: "grow" }), cancel, confirm),
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
  };
})();
