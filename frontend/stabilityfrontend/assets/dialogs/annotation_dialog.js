// The dialog of an annotation: where it is, on which charts, and its text.

import { h, setText, toast } from "../core/dom.js";
import { errorText } from "../core/format.js";
import { smallDialog } from "./confirm.js";

/** As the server takes it (schema/annotations.py). */
const MOST_CHARS = 2000;
const MOST_STEP = 2 ** 53 - 1;

/**
 * Ask for an annotation, and hand what the server takes of it to `store`. The form stays, with what was typed, until that
 * is done. `note`: what it begins with. `metrics`: charts that it may be about instead of all.
 */
export function annotationDialog({ title, note, metrics, store }) {
  const number = (id, value) =>
    h("input.field", { id, type: "number", min: 0, max: MOST_STEP, step: 1, value, required: true });
  const first = /** @type {HTMLInputElement} */ (number("annotation-first", note.first_step));
  const last = /** @type {HTMLInputElement} */ (number("annotation-last", note.last_step));
  const text = /** @type {HTMLTextAreaElement} */ (
    h("textarea.field", {
      id: "annotation-text",
      rows: 4,
      maxlength: MOST_CHARS,
      dir: "auto",
      placeholder: "What is to be seen here?",
    })
  );
  text.value = note.text;
  const charts = /** @type {HTMLSelectElement} */ (
    h(
      "select.field",
      { id: "annotation-metric" },
      h("option", { value: "" }, "all charts"),
      metrics.map((name) => h("option", { value: name }, name)),
    )
  );
  charts.value = note.metric || "";
  const problem = h("p.problem", { role: "alert", hidden: true });
  const field = (label, inner) => h("label.form-field", { for: inner.id }, h("span", label), inner);
  const cancel = h("button.button", { onclick: () => dialog.close() }, "Cancel");
  const save = h("button.button.primary", { id: "annotation-save" }, "Save");
  const say = (words) => {
    setText(problem, words);
    problem.hidden = !words;
  };
  const send = async () => {
    if (save.disabled) return;
    const bad = [first, last, text].find((one) => !one.checkValidity()) || (text.value.trim() === "" ? text : null);
    const [from, to] = [Number(first.value), Number(last.value)];
    const why =
      bad === text
        ? "Say what is to be seen there."
        : bad
          ? "Steps are whole numbers from 0 on."
          : to < from
            ? "The last step is before the first."
            : "";
    say(why);
    if (why) {
      (bad || last).focus();
      return;
    }
    save.disabled = true;
    setText(save, "Saving …");
    try {
      await store({ first_step: from, last_step: to, text: text.value.trim(), metric: charts.value || null });
      dialog.close();
    } catch (error) {
      if (dialog.open) say(errorText(error));
      else toast(errorText(error), "warning");
    }
    save.disabled = false;
    setText(save, "Save");
  };
  save.addEventListener("click", send);
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send();
  });
  const dialog = smallDialog({
    id: "annotation",
    title,
    body: h(
      "div.dialog-body",
      field("Note", text),
      h("div.form-row", field("First step", first), field("Last step", last), field("On", charts)),
      problem,
    ),
    buttons: [cancel, save],
  });
  text.focus();
}
