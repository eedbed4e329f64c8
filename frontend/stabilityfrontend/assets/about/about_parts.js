// Parts of the panel of what a run is: facts as rows, differences as a table, buttons that copy.

import { copyText } from "../core/clipboard.js";
import { h, toast } from "../core/dom.js";
import { plural, sentence } from "../core/format.js";

/** Entries of the environment that come first; the others follow in their order. */
const FIRST = ["python", "torch", "cuda", "nccl", "cudnn", "driver", "gpu"];
/** Shown elsewhere. */
const ELSEWHERE = new Set(["git", "ranks"]);

export const shortCommit = (commit) => commit.slice(0, 12);

/** What is not committed, in words; "" where all is, or nothing is known. */
export function uncommitted(git) {
  if (!git.commit) return "";
  if (git.dirty === null) return "changes not known";
  return git.dirty ? `${plural(git.changed, "file")} not committed` : "";
}

/** A button that copies a text. */
export function copying(label, text) {
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
export function factRows(answer) {
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
export function differenceTable({ found, why }) {
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
