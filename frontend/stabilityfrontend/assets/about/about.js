// What a run is: commit, command line, hosts, versions, tags, notes, config; and what changed to another run.

import { api } from "../core/api.js";
import { byId, h, setShown, toast } from "../core/dom.js";
import { errorText, moment, plural } from "../core/format.js";
import { patch } from "../core/patch.js";
import { tagChips, tagsAndNotes } from "./about_edit.js";
import { copying, differenceTable, factRows, shortCommit, uncommitted } from "./about_parts.js";

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
