// What a run is: commit, command line, hosts, versions, tags, notes, config; and what changed to another run.

import { api } from "../core/api.js";
import { byId, copyText, h, patch, setShown, toast } from "../core/dom.js";
import { errorText, moment, plural, sentence } from "../core/format.js";
import { may } from "../navigation/account.js";

// -- Parts of the panel of what a run is: facts as rows, differences as a table, buttons that copy.

/** Entries of the environment that come first; the others follow in their order. */
const FIRST = ["python", "torch", "cuda", "nccl", "cudnn", "driver", "gpu"];
/** Shown elsewhere. */
const ELSEWHERE = new Set(["git", "ranks"]);

const shortCommit = (commit) => commit.slice(0, 12);

/** What is not committed, in words; "" where all is, or nothing is known. */
function uncommitted(git) {
  if (!git.commit) return "";
  if (git.dirty === null) return "changes not known";
  return git.dirty ? `${plural(git.changed, "file")} not committed` : "";
}

/** A button that copies a text. */
function copying(label, text) {
  return h(
    "button.toggle.copy",
    {
      onclick: async () => {
        const done = await copyText(text());
        toast(done ? "Copied." : "The browser does not let a page copy.", done ? "good" : "warning", 2);
      },
    },
    label,
  );
}

const row = (name, what) => (what ? h("div", h("dt", name), h("dd", what)) : null);
const long = (text) => (text ? h("code.about-long", text) : null);

/** The facts of the newest launch; nothing of those that are not known. */
function factRows(answer) {
  const [launch] = answer.launches;
  if (!launch)
    return h(
      "p.sub",
      "No facts of a launch came: the job's client is older, STABILITY_FACTS is off, or the run was imported.",
    );
  const { git, environment } = launch;
  const commit = git.commit || environment.git || "";
  const dirty = uncommitted(git);
  const names = Object.keys(environment).filter((name) => !ELSEWHERE.has(name));
  names.sort((a, b) => rankOf(a) - rankOf(b));
  return h(
    "dl.about-facts",
    row(
      "Commit",
      commit && [
        h("code", shortCommit(commit)),
        git.branch ? h("span.sub", ` on ${git.branch} `) : " ",
        dirty ? h("span.chip.warning", { title: git.why || git.files.join("\n") }, dirty) : null,
        git.commit && !dirty ? h("span.chip", "all committed") : null,
        copying("Copy", () => commit),
        git.subject ? h("div.sub", git.subject) : null,
        git.dirty
          ? h(
              "div.sub.about-files",
              git.files.slice(0, 6).join(", "),
              git.changed > 6 ? ` and ${git.changed - 6} more` : "",
            )
          : null,
      ],
    ),
    row("Repository", long(git.remote)),
    row("Command", launch.command && [long(launch.command), copying("Copy", () => launch.command)]),
    row("Script", long(launch.script)),
    row("Folder", long(launch.folder)),
    row("Hosts", launch.hosts.length ? hosts(launch) : null),
    row("Ranks", String(launch.ranks)),
    row("User", launch.user),
    row("Image", long(launch.image)),
    row("Interpreter", long(launch.python)),
    row("Versions", names.length ? pairs(environment, names) : null),
    row("Launcher", Object.keys(launch.launcher).length ? pairs(launch.launcher, Object.keys(launch.launcher)) : null),
  );
}

const rankOf = (name) => (FIRST.includes(name) ? FIRST.indexOf(name) : name.startsWith("$") ? 200 : 100);

const hosts = (launch) =>
  launch.hosts.slice(0, 8).join(", ") + (launch.host_count > 8 ? ` and ${launch.host_count - 8} more` : "");

const pairs = (table, names) =>
  h(
    "span.about-pairs",
    names.map((name) => h("span", { data: { name } }, h("span.sub", name), " ", table[name])),
  );

/** What differs, as a table; in words where nothing does. `diff`: `{found, why}`. */
function differenceTable({ found, why }) {
  if (!found) return h("p.sub.about-none", sentence(why));
  const facts = found.facts.map((one) => ({ ...one, of: "" }));
  const rows = [
    ...facts.filter((one) => one.name === "commit"),
    ...found.config.map((one) => ({ ...one, of: "config " })),
    ...facts.filter((one) => one.name !== "commit"),
  ];
  const words = [
    h("a", { href: `/runs/${encodeURIComponent(found.run_id)}` }, found.name),
    found.why ? `: ${found.why}.` : ".",
    ` ${plural(found.equal, "config key")} ${found.equal === 1 ? "is" : "are"} the same.`,
    found.no_facts ? ` ${sentence(found.no_facts)}` : "",
    found.left_out ? ` ${plural(found.left_out, "further difference")} of the config not shown.` : "",
  ];
  return [
    h("p.sub.about-none", words),
    rows.length
      ? h(
          "div.about-scroll",
          h(
            "table.table.dense.about-diff",
            h("thead", h("tr", h("th", "What"), h("th", found.name), h("th", "This run"))),
            h(
              "tbody",
              rows.map((one) =>
                h(
                  "tr",
                  { data: { name: one.of + one.name } },
                  h("th", { scope: "row" }, one.of ? h("span.sub", "config ") : null, one.name),
                  h("td", value(one.before)),
                  h("td", value(one.now)),
                ),
              ),
            ),
          ),
        )
      : h("p.about-none", "Nothing that is known of both differs."),
  ];
}

const value = (text) =>
  text === null ? h("span.sub", "not there") : text === "" ? h("span.sub", "set, no value") : text;

// -- Name, tags and notes of a run, as they are and while they are edited.

/** Tags and characters that the server takes. */
const TAGS = 32;
const TAG_CHARS = 64;
const NOTES_CHARS = 10000;

const tagChips = (tags) => tags.map((tag) => h("span.chip.accent.tag", { data: { tag } }, tag));

/** The part of the panel that people write. `about` as in about.js. */
function tagsAndNotes(about) {
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

/** Rows of the config that are shown at once: the filter finds the others. */
const CONFIG_ROWS = 300;
/** Runs of the project that are offered for a comparison, newest first. */
const OFFERED = 100;
const LAST_GOOD = "last_good";

/** A config as rows of dotted keys. Nested tables are opened, lists are one value. */
export function configRows(config, before = "") {
  return Object.entries(config || {}).flatMap(([key, value]) =>
    value && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length
      ? configRows(value, `${before}${key}.`)
      : [[before + key, typeof value === "string" ? value : JSON.stringify(value)]],
  );
}

/** The rows that hold every word of a search, in key or value. */
export function matchingRows(rows, search) {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter((row) => words.every((word) => row.join(" ").toLowerCase().includes(word)));
}

export class About {
  /** `page` as in run_page.js. */
  constructor(page) {
    this.page = page;
    this.answer = /** @type {any} */ (null);
    this.diff = /** @type {any} */ (null);
    this.search = "";
    this.against = "";
    this.offered = /** @type {any[]} */ ([]);
    byId("about-fold").addEventListener("click", () => this.setOpen(!this.open));
  }

  /** The line is in what the page knows of the run; all else is asked for when somebody opens the panel. */
  async fetch() {
    this.draw();
    if (!this.open) return;
    try {
      const answer = await api.about(this.page.id);
      if (this.page.gone) return;
      this.answer = answer;
      this.draw();
    } catch {
      // It is asked again when the page is in touch again.
    }
  }

  setOpen(open) {
    this.open = open;
    byId("about-fold").setAttribute("aria-expanded", String(open));
    setShown(byId("about-body"), open);
    this.draw();
    if (!open) return;
    this.fetch();
    this.fetchOffered();
    if (!this.against) this.compare(LAST_GOOD);
    byId("about-panel").scrollIntoView({ block: "start" });
  }

  /** The runs that may be compared with: those of the same project, newest first. */
  async fetchOffered() {
    try {
      const { runs } = await api.runs();
      const project = this.answer?.project;
      this.offered = runs.filter((run) => run.run_id !== this.page.id && run.project === project).slice(0, OFFERED);
      this.draw();
    } catch {
      // The last good run can be compared with all the same.
    }
  }

  async compare(against) {
    this.against = against;
    try {
      const answer = await api.about(this.page.id, against);
      if (this.page.gone || this.against !== against) return;
      this.diff = { found: answer.diff, why: answer.no_diff };
    } catch (error) {
      this.diff = { found: null, why: errorText(error) };
    }
    this.draw();
  }

  async save(changes) {
    try {
      this.refused = false;
      this.answer = await api.setAbout(this.page.id, changes);
      this.draw();
      return true;
    } catch (error) {
      toast(errorText(error), "warning");
      this.refused = error.code === "notes_changed";
      const fetched = this.fetch();
      if (this.refused) await fetched;
      return false;
    }
  }

  draw() {
    const { answer } = this;
    const { run } = this.page;
    if (!run?.about || this.page.gone) return;
    setShown(byId("about-panel"), true);
    patch(byId("about-line"), summary(run.about, (answer || run).tags));
    if (!this.open || !answer) return;
    const rows = configRows(answer.config);
    patch(
      byId("about-body"),
      // First: it is what this is opened for while a run is sick.
      this.changes(),
      h("div.about-grid.about-part", factRows(answer), tagsAndNotes(this)),
      launchList(answer),
      rows.length ? this.config(rows) : null,
    );
  }

  config(rows) {
    const found = matchingRows(rows, this.search);
    const shown = found.slice(0, CONFIG_ROWS);
    return h(
      "section.about-part",
      { data: { part: "config" } },
      h(
        "div.about-head",
        h("h3", "Config"),
        h("span.sub", found.length < rows.length ? `${found.length} of ${rows.length}` : plural(rows.length, "key")),
        h("span.grow"),
        h("input.field.search", {
          id: "about-search",
          type: "search",
          placeholder: "Filter keys and values",
          "aria-label": "Filter the config",
          oninput: (event) => {
            this.search = event.target.value;
            this.draw();
          },
        }),
        copying("Copy as JSON", () => JSON.stringify(this.answer.config, null, 2)),
      ),
      h(
        "div.about-scroll",
        h(
          "table.table.dense.about-config",
          h(
            "tbody",
            shown.map(([key, value]) => h("tr", { data: { key } }, h("th", { scope: "row" }, key), h("td", value))),
          ),
        ),
      ),
      found.length > shown.length ? h("p.sub", `and ${found.length - shown.length} more: filter them`) : null,
    );
  }

  changes() {
    const { diff, offered } = this;
    const chosen = diff?.found ? diff.found.run_id : "";
    const listed = offered.map((run) => ({
      value: run.run_id,
      text: run.name === run.run_id ? run.name : `${run.name} · ${run.run_id}`,
    }));
    if (this.against !== LAST_GOOD && !listed.some((one) => one.value === this.against))
      listed.unshift({ value: this.against, text: this.against });
    const select = h(
      "select.choice-list",
      {
        id: "about-against",
        "aria-label": "Compare with",
        onchange: (event) => this.compare(event.target.value),
      },
      h("option", { value: LAST_GOOD }, "the last good run"),
      listed.filter((one) => one.value).map((one) => h("option", { value: one.value }, one.text)),
    );
    select.value = this.against || LAST_GOOD;
    return h(
      "section.about-part",
      { data: { part: "changes" } },
      h(
        "div.about-head",
        h("h3", "What changed since"),
        select,
        h("span.grow"),
        chosen
          ? h(
              "a.toggle",
              { href: `/compare?run=${encodeURIComponent(this.page.id)}&run=${encodeURIComponent(chosen)}` },
              "Compare curves",
            )
          : null,
      ),
      diff ? differenceTable(diff) : h("p.sub", "Comparing …"),
    );
  }
}

/** The folded line: commit, what is not committed, hosts, tags. */
function summary({ git, host_count, launches, commit_changed }, tags) {
  const dirty = uncommitted(git);
  return [
    git.commit ? h("code", { title: git.subject || git.commit }, shortCommit(git.commit)) : null,
    dirty ? h("span.chip.warning", { title: git.files.join("\n") }, dirty) : null,
    host_count ? h("span.sub", plural(host_count, "host")) : null,
    launches > 1 ? h("span.sub", `${launches} launches`) : null,
    commit_changed ? h("span.chip.warning", "another commit since the restart") : null,
    tagChips(tags),
  ];
}

/** Launches, newest first, with what changed from one to the next; nothing where there was one. */
function launchList(answer) {
  if (answer.launches.length < 2) return null;
  return h(
    "section.about-part",
    { data: { part: "launches" } },
    h("div.about-head", h("h3", "Launches"), h("span.sub", "newest first")),
    h(
      "ol.about-launches",
      answer.launches.map((launch, at) =>
        h(
          "li",
          { data: { launch: String(launch.started) } },
          h("span.about-when", moment(launch.started)),
          h("span.sub", plural(launch.ranks, "rank")),
          launch.git.commit ? h("code", shortCommit(launch.git.commit)) : null,
          launch.changed.length
            ? h(
                "span",
                launch.changed
                  .slice(0, 6)
                  .map((one) => h("span.chip", { title: `${one.before ?? "none"} → ${one.now ?? "none"}` }, one.name)),
                launch.changed.length > 6 ? h("span.sub", ` and ${launch.changed.length - 6} more`) : null,
              )
            : h("span.sub", at === answer.launches.length - 1 ? "" : "nothing changed"),
        ),
      ),
    ),
    answer.older ? h("p.sub", `${plural(answer.older, "older one")} not shown`) : null,
  );
}
