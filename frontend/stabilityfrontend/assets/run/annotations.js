// What people noted at steps of a run: fetched with the other lists, followed by the feed, listed beside the charts, and
// made at the cursor of a chart (key `a`) or of the zoomed range.

import { notesOn, stepsOf } from "../chart/traces.js";
import { api } from "../core/api.js";
import { byId, h, patch, setShown, setText, toast } from "../core/dom.js";
import { ago, errorText, moment, randomHex } from "../core/format.js";
import { confirm, smallDialog } from "../dialogs/confirm.js";

// -- The dialog of an annotation: where it is, on which charts, and its text.

/** As the server takes it (schema/annotations.py). */
const MOST_CHARS = 2000;
const MOST_STEP = 2 ** 53 - 1;

/**
 * Ask for an annotation, and hand what the server takes of it to `store`. The form stays, with what was typed, until that
 * is done. `note`: what it begins with. `metrics`: charts that it may be about instead of all.
 */
function annotationDialog({ title, note, metrics, store }) {
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

/** A fork decides which of them are discarded: they are asked for again so long after the newest one. */
const AGAIN_MS = 300;
/** Rows in the list before "All" is pressed. */
const FEW = 8;

/** Where keys are text, or of the dialog that is open. */
const TAKES_TEXT = "input, textarea, select, [contenteditable], dialog";

export class Annotations {
  /** `page` as in run_page.js. */
  constructor(page) {
    this.page = page;
    this.map = new Map();
    /** By step, as the charts draw them. */
    this.list = /** @type {any[]} */ ([]);
    this.button = h(
      "button.toggle",
      {
        id: "annotate",
        title: "Note something at the cursor, or at the zoomed range (key a)",
        data: { needs: "command" },
        onclick: () => this.make(null),
      },
      "Annotate …",
    );
    byId("focus-ghosts")?.before(this.button);
    this.onKey = (event) => this.key(event);
    document.addEventListener("keydown", this.onKey);
    byId("lineage")?.closest("section")?.before(this.panel());
  }

  /** Those that a chart of some metrics shows. */
  on(metrics) {
    return notesOn(this.list, metrics);
  }

  async fetch() {
    try {
      const { annotations } = await api.annotations(this.page.id);
      if (this.page.gone) return;
      this.map = new Map(annotations.map((one) => [one.annotation_id, one]));
      this.changed();
    } catch {
      // An older server has none; one that is away is asked again when the page is in touch again.
    }
  }

  /** Something of the lineage changed: some may lie on a discarded branch now. */
  soon() {
    if (!this.map.size) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.fetch(), AGAIN_MS);
  }

  /** The feed's word about one; `annotation` null: it is deleted. */
  take({ annotation_id: id, annotation }) {
    if (annotation) this.map.set(id, annotation);
    else this.map.delete(id);
    this.changed();
  }

  changed() {
    this.list = [...this.map.values()].sort((a, b) => a.first_step - b.first_step || a.created - b.created);
    this.page.board.markAll();
    this.draw();
  }

  // -- made, changed, deleted -----------------------------------------------------------------------------------

  key(event) {
    const { target } = event;
    if (event.key !== "a" || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (target instanceof Element && target.closest(TAKES_TEXT)) return;
    if (
      document.querySelector("dialog[open]") ||
      this.button.hidden ||
      getComputedStyle(this.button).display === "none"
    )
      return;
    const charts = [...this.page.board.charts.values()];
    const chart = charts.find((one) => one.element === target) || charts.find((one) => one.plot?.pointer.over);
    if (!chart) return;
    event.preventDefault();
    this.make(chart);
  }

  /** Ask for a text. `chart`: the one whose cursor says where, null for the button: the zoomed range, else the newest step. */
  make(chart) {
    const { page } = this;
    const cursor = chart && Number.isFinite(page.board.cursor) ? Math.round(page.board.cursor) : null;
    const range = page.zoom.range;
    const [first, last] =
      cursor !== null
        ? [cursor, cursor]
        : range
          ? [Math.max(0, Math.ceil(range[0])), Math.max(0, Math.floor(range[1]))]
          : [page.lastStep() ?? 0, page.lastStep() ?? 0];
    const metrics = chart && chart.id !== "focus" ? chart.metrics() : [page.metric()];
    const segment = page.look.segment();
    // Named here: where no answer came, saving again makes no second one.
    const id = `a-${randomHex(8)}`;
    annotationDialog({
      title: "Annotate",
      note: { first_step: first, last_step: last, text: "", metric: null },
      metrics,
      store: (given) => this.store(id, segment === null ? given : { ...given, segment }, "Annotated"),
    });
  }

  edit(note) {
    const metrics = note.metric === null ? [this.page.metric()] : [note.metric];
    const store = (given) => this.store(note.annotation_id, given, "Changed");
    annotationDialog({ title: "Change the annotation", note, metrics, store });
  }

  async delete(note) {
    const sure = await confirm({
      title: "Delete the annotation?",
      text: `“${note.text.length > 200 ? `${note.text.slice(0, 199)}…` : note.text}” by ${note.author}. It is gone for everybody.`,
      action: "Delete",
    });
    if (!sure) return;
    try {
      this.take(await api.deleteAnnotation(this.page.id, note.annotation_id));
    } catch (error) {
      toast(errorText(error), "warning");
    }
  }

  async store(id, given, words) {
    const annotation = await api.changeAnnotation(this.page.id, id, given);
    if (this.page.gone) return;
    this.take({ annotation_id: annotation.annotation_id, annotation });
    toast(`${words}: ${stepsOf(annotation)}.`, "good");
  }

  // -- the list -------------------------------------------------------------------------------------------------

  /** The list beside the charts, hidden until there is something in it. */
  panel() {
    const all = () => {
      this.every = !this.every;
      this.draw();
    };
    const toggle = { id: "annotations-all", class: "toggle", hidden: true, onclick: all };
    return h(
      "section.panel",
      { id: "annotations-panel", hidden: true },
      h("div.panel-head", h("h2", "Annotations"), h("span.grow"), h("button", toggle)),
      h("div.scroll", { id: "annotations" }),
    );
  }

  draw() {
    const place = byId("annotations");
    if (!place) return;
    const { list } = this;
    setShown(byId("annotations-panel"), list.length > 0);
    setShown(byId("annotations-all"), list.length > FEW);
    setText(byId("annotations-all"), this.every ? "Newest only" : `All ${list.length}`);
    const newest = [...list].reverse();
    patch(
      place,
      (this.every ? newest : newest.slice(0, FEW)).map((note) => this.row(note)),
    );
  }

  row(note) {
    const facts = [note.author, ago(this.page.now() - note.created), note.metric, note.dead ? "discarded branch" : ""];
    return h(
      "article",
      { class: `annotation${note.dead ? " dead" : ""}`, data: { annotation: note.annotation_id } },
      h(
        "div.annotation-head",
        h("button.link", { title: "Show it on the charts", onclick: () => this.goTo(note) }, stepsOf(note)),
        h(
          "span.sub",
          {
            title: [
              moment(note.created),
              note.edited ? `changed by ${note.edited_by}, ${moment(note.edited)}` : "",
              note.imported_by ? `imported by ${note.imported_by}` : "",
            ]
              .filter(Boolean)
              .join("\n"),
          },
          facts.filter(Boolean).join(" · "),
        ),
      ),
      h("p", { dir: "auto" }, note.text),
      h(
        "div.annotation-foot",
        { data: { needs: "command" } },
        h("button.link", { onclick: () => this.edit(note) }, "Edit …"),
        h("button.link", { onclick: () => this.delete(note) }, "Delete …"),
      ),
    );
  }

  goTo(note) {
    const air = Math.max(20, note.last_step - note.first_step);
    this.page.zoom.set([Math.max(0, note.first_step - air), note.last_step + air]);
    byId("focus-panel").scrollIntoView({ block: "nearest", behavior: "smooth" });
  }

  close() {
    clearTimeout(this.timer);
    document.removeEventListener("keydown", this.onKey);
  }
}
