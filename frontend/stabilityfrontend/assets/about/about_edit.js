// Name, tags and notes of a run, as they are and while they are edited.

import { byId, h } from "../core/dom.js";
import { moment } from "../core/format.js";
import { may } from "../login/account.js";

/** Tags and characters that the server takes. */
const TAGS = 32;
const TAG_CHARS = 64;
const NOTES_CHARS = 10000;

export const tagChips = (tags) => tags.map((tag) => h("span", { class: "chip accent tag", data: { tag } }, tag));

/** The part of the panel that people write. `about` as in about.js. */
export function tagsAndNotes(about) {
  const { answer } = about;
  const mine = may("command");
  if (!mine && !answer.tags.length && !answer.notes) return null;
  const by = answer.edited ? `Changed by ${answer.edited.who}, ${moment(answer.edited.time)}` : "";
  return h(
    "div",
    { class: "about-edit" },
    h("h3", {}, "Tags"),
    h(
      "div",
      { class: "about-tags" },
      mine ? answer.tags.map((tag) => editableTag(about, tag)) : tagChips(answer.tags),
      mine ? addTag(about) : null,
    ),
    h(
      "div",
      { class: "about-head" },
      h("h3", {}, "Notes"),
      h("span", { class: "grow" }),
      mine ? editButton(about) : null,
    ),
    about.editing ? notesForm(about) : answer.notes ? h("p", { class: "about-notes" }, answer.notes) : null,
    by ? h("p", { class: "sub" }, by) : null,
  );
}

function editableTag(about, tag) {
  return h(
    "span",
    { class: "chip accent tag", data: { tag } },
    tag,
    h(
      "button",
      {
        type: "button",
        "aria-label": `Remove the tag ${tag}`,
        on: { click: () => about.save({ remove_tags: [tag] }) },
      },
      "×",
    ),
  );
}

function addTag(about) {
  const { tags } = about.answer;
  if (tags.length >= TAGS) return null;
  return h("input", {
    id: "about-add-tag",
    class: "field",
    maxlength: TAG_CHARS,
    placeholder: "Add a tag",
    "aria-label": "Add a tag",
    on: {
      keydown: async (event) => {
        const tag = event.target.value.trim();
        if (event.key !== "Enter" || !tag) return;
        if (await about.save({ add_tags: [tag] })) byId("about-add-tag").value = "";
      },
    },
  });
}

function editButton(about) {
  if (about.editing) return null;
  const open = () => {
    about.editing = { name: about.answer.name, notes: about.answer.notes };
    about.draw();
    byId("about-notes").value = about.answer.notes;
    byId("about-name").value = about.answer.name;
    byId("about-notes").focus();
  };
  return h("button", { type: "button", class: "toggle", id: "about-edit", on: { click: open } }, "Edit name and notes");
}

function notesForm(about) {
  const end = () => {
    about.editing = null;
    about.draw();
  };
  const save = async () => {
    // What was not touched is not sent: somebody else may have changed it meanwhile.
    const [name, notes] = [byId("about-name").value, byId("about-notes").value];
    const before = about.editing;
    const changes = {
      ...(name === before.name ? {} : { name }),
      ...(notes === before.notes ? {} : { notes, notes_before: before.notes }),
    };
    if (await about.save(changes)) end();
    // Its words say what the notes are by now: saving once more is meant.
    else if (about.refused) before.notes = about.answer.notes;
  };
  return h(
    "div",
    { class: "about-form" },
    h("label", { for: "about-name", class: "tool-label" }, "Name"),
    h("input", { id: "about-name", class: "field", maxlength: 200 }),
    h("label", { for: "about-notes", class: "tool-label" }, "Notes"),
    h("textarea", { id: "about-notes", class: "field", rows: 5, maxlength: NOTES_CHARS }),
    h(
      "div",
      { class: "about-buttons" },
      h("button", { type: "button", class: "button primary", id: "about-save", on: { click: save } }, "Save"),
      h("button", { type: "button", class: "button", on: { click: end } }, "Cancel"),
    ),
  );
}
