// Name, tags and notes of a run, as they are and while they are edited.

import { byId, h } from "../core/dom.js";
import { moment } from "../core/format.js";
import { may } from "../login/account.js";

/** Tags and characters that the server takes. */
const TAGS = 32;
const TAG_CHARS = 64;
const NOTES_CHARS = 10000;

export const tagChips = (tags) => tags.map((tag) => h("span.chip.accent.tag", { data: { tag } }, tag));

/** The part of the panel that people write. `about` as in about.js. */
export function tagsAndNotes(about) {
  const { answer } = about;
  const mine = may("command");
  if (!mine && !answer.tags.length && !answer.notes) return null;
  const by = answer.edited ? `Changed by ${answer.edited.who}, ${moment(answer.edited.time)}` : "";
  return h(
    "div.about-edit",
    h("h3", "Tags"),
    h(
      "div.about-tags",
      mine ? answer.tags.map((tag) => editableTag(about, tag)) : tagChips(answer.tags),
      mine ? addTag(about) : null,
    ),
    h("div.about-head", h("h3", "Notes"), h("span.grow"), mine ? editButton(about) : null),
    about.editing ? notesForm(about) : answer.notes ? h("p.about-notes", answer.notes) : null,
    by ? h("p.sub", by) : null,
  );
}

function editableTag(about, tag) {
  return h(
    "span.chip.accent.tag",
    { data: { tag } },
    tag,
    h(
      "button",
      {
        "aria-label": `Remove the tag ${tag}`,
        onclick: () => about.save({ remove_tags: [tag] }),
      },
      "×",
    ),
  );
}

function addTag(about) {
  const { tags } = about.answer;
  if (tags.length >= TAGS) return null;
  return h("input.field", {
    id: "about-add-tag",
    maxlength: TAG_CHARS,
    placeholder: "Add a tag",
    "aria-label": "Add a tag",
    onkeydown: async (event) => {
      const tag = event.target.value.trim();
      if (event.key !== "Enter" || !tag) return;
      if (await about.save({ add_tags: [tag] })) byId("about-add-tag").value = "";
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
  return h("button.toggle", { id: "about-edit", onclick: open }, "Edit name and notes");
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
    "div.about-form",
    h("label.tool-label", { for: "about-name" }, "Name"),
    h("input.field", { id: "about-name", maxlength: 200 }),
    h("label.tool-label", { for: "about-notes" }, "Notes"),
    h("textarea.field", { id: "about-notes", rows: 5, maxlength: NOTES_CHARS }),
    h(
      "div.about-buttons",
      h("button.button.primary", { id: "about-save", onclick: save }, "Save"),
      h("button.button", { onclick: end }, "Cancel"),
    ),
  );
}
