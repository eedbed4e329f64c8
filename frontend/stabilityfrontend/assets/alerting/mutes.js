// Mutes: which alerts nobody gets for a while, by whom and why; a form for a new one.

import { fill, h, setText } from "../core/dom.js";
import { ago, duration, inUtc, moment } from "../core/format.js";
import { may } from "../login/account.js";

/** How long a new mute may last, seconds. */
const LENGTHS = [
  [3600, "1 hour"],
  [4 * 3600, "4 hours"],
  [12 * 3600, "12 hours"],
  [86400, "1 day"],
  [7 * 86400, "7 days"],
  [30 * 86400, "30 days"],
];
const STATES = { active: "Active", pending: "Planned", expired: "Ended" };
/** Labels that the form has a field for, and what stands in it while it is empty. */
const FIELDS = [
  ["run", "any run, or nightly-*"],
  ["project", "any project"],
  ["kind", "any kind, or spike"],
  ["node", "any node, or rack7-*"],
];

/** What a mute covers, in words. */
export const matchWords = (match) =>
  Object.entries(match)
    .map(([label, value]) => `${label} ${[value].flat().join(" or ")}`)
    .join(", ");

function row(mute, now, end) {
  const left = mute.state === "active" ? `${duration(mute.ends - now)} left` : ago(now - mute.ends);
  return h(
    "tr",
    { data: { mute: mute.mute_id }, class: mute.state === "expired" ? "past" : "" },
    h("td", h("span", { class: `chip ${mute.state === "active" ? "accent" : ""}` }, STATES[mute.state])),
    h("td.mono", matchWords(mute.match)),
    h("td", mute.reason),
    h("td", mute.owner),
    h(
      "td",
      { title: `${inUtc(mute.starts)} to ${inUtc(mute.ends)}` },
      mute.state === "pending" ? `from ${moment(mute.starts)}` : `${moment(mute.ends)} (${left})`,
    ),
    h(
      "td.end",
      mute.state !== "expired" && may("command") && h("button.button", { onclick: () => end(mute) }, "End now"),
    ),
  );
}

/** The table of mutes; `end` ends one. */
export function mutesOf({ mutes }, end) {
  if (!mutes.length) return h("p.empty", "Nothing is muted.");
  const now = Date.now() / 1000;
  return h(
    "table.table",
    h("thead", h("tr", ...["State", "Covers", "Reason", "By", "Until", ""].map((one) => h("th", one)))),
    h(
      "tbody",
      mutes.map((mute) => row(mute, now, end)),
    ),
  );
}

/** The form for a new mute. `given`: label -> pattern to begin with; `save` gets `{match, reason, ends}`, may throw. */
export function muteForm(place, given, save) {
  const fields = FIELDS.map(([label, hint]) => [
    label,
    h("input.field", { id: `mute-${label}`, placeholder: hint, autocomplete: "off", value: given[label] || "" }),
  ]);
  const length = h(
    "select.choice-list",
    { id: "mute-length" },
    LENGTHS.map(([seconds, text]) => h("option", { value: seconds }, text)),
  );
  const reason = h("input.field", {
    id: "mute-reason",
    placeholder: "Why, for whoever is on call next",
    autocomplete: "off",
    maxlength: 300,
  });
  const trouble = h("span.text-critical", { id: "mute-trouble", role: "alert" });
  const submit = async (event) => {
    event.preventDefault();
    const match = Object.fromEntries(
      fields.map(([label, field]) => [label, field.value.trim()]).filter(([, value]) => value),
    );
    if (!Object.keys(match).length) {
      setText(trouble, "Say what to mute: fill in at least one of run, project, kind and node. * stands for all.");
      return;
    }
    if (!reason.value.trim()) {
      setText(trouble, "Say why: whoever is on call next reads it.");
      reason.focus();
      return;
    }
    setText(trouble, "");
    try {
      await save({ match, reason: reason.value, ends: Date.now() / 1000 + Number(length.value) });
      for (const [, field] of fields) field.value = "";
      reason.value = "";
    } catch (error) {
      setText(trouble, [error.message, error.hint].filter(Boolean).join(". "));
    }
  };
  const labelled = (words, id, field) => h("label.alerting-field", { for: id }, h("span", words), field);
  fill(
    place,
    h(
      "form.alerting-form",
      { id: "mute-form", data: { needs: "command" }, onsubmit: submit },
      fields.map(([label, field]) => labelled(label, field.id, field)),
      labelled("for", "mute-length", length),
      labelled("reason", "mute-reason", reason),
      h("button.button.primary", { type: "submit", id: "mute-save" }, "Mute"),
      trouble,
    ),
  );
  if (Object.keys(given).length) reason.focus();
}
