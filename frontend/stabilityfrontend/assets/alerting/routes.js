// The editor of the routes, and who would get an incident by them, saved or not.

import { fill, h, setShown, setText } from "../core/dom.js";
import { ago, errorText } from "../core/format.js";
import { may } from "../login/account.js";

/** What an empty editor offers. */
export const exampleOf = (receivers) => {
  const [first, last] = [receivers[0]?.name || "slack", receivers.at(-1)?.name || "pagerduty"];
  return `# The first route that fits decides. Labels: run, project, kind, severity, about, node, rank, dataset, metric.
routes:
  - match: {severity: critical}
    receivers: [${[...new Set([first, last])].join(", ")}]
  - match: {project: "scratch-*"}
    receivers: []          # on the page only
  - receivers: [${first}]
`;
};

const GETS = { now: ["now", "good"], later: ["later", "warning"], no: ["no", "quiet"] };

/** Who gets an incident: a table, and what it was matched by. */
export function previewOf(answer) {
  const { labels, routes, receivers } = answer;
  const words = Object.entries(labels).map(([label, value]) => `${label} ${value}`);
  return [
    h(
      "p.sub",
      `Matched by ${words.join(", ")}. `,
      routes.length ? `Fits route ${routes.join(", then ")}.` : "No route is set: each receiver gets every alert.",
    ),
    receivers.length === 0
      ? h("p.sub", "No receiver is set up, so no alert would be sent.")
      : h(
          "table.table",
          h("thead", h("tr", ...["Receiver", "Gets it", "Why"].map((one) => h("th", one)))),
          h(
            "tbody",
            receivers.map((one) =>
              h(
                "tr",
                { data: { receiver: one.receiver, gets: one.gets } },
                h("td", one.receiver),
                h("td", h("span", { class: `chip ${GETS[one.gets][1]}` }, GETS[one.gets][0])),
                h("td", one.why || "at once"),
              ),
            ),
          ),
        ),
  ];
}

/** The editor. What is typed is kept until it is saved or given back, whatever comes from the server. */
export class RoutesEditor {
  /** @param {{save: (text: string, version: number) => Promise<any>, edited: () => void}} doing */
  constructor(place, tools, doing) {
    this.doing = doing;
    this.routes = /** @type {any} */ (null);
    this.receivers = /** @type {any[]} */ ([]);
    this.text = h("textarea.field.mono", {
      id: "routes-text",
      rows: 12,
      spellcheck: "false",
      "aria-label": "Routes, YAML",
      oninput: () => this.typed(),
    });
    this.about = h("p.sub", { id: "routes-about" });
    this.trouble = h("p.text-critical", { id: "routes-trouble", role: "alert" });
    const button = (id, words, click, kind) =>
      h("button", { id, class: `button ${kind || ""}`, onclick: click }, words);
    this.save = button("routes-save", "Save", () => this.onSave(), "primary");
    this.revert = button("routes-revert", "Discard changes", () => this.give(this.routes.text));
    this.example = button("routes-example", "Insert an example", () => this.give(exampleOf(this.receivers)));
    fill(tools, this.example, this.revert, this.save);
    fill(place, this.about, this.text, this.trouble);
  }

  /** Whether the text is another one than what is stored. */
  get changed() {
    return this.routes !== null && this.text.value !== this.routes.text;
  }

  give(text) {
    this.text.value = text;
    this.typed();
  }

  typed() {
    setText(this.trouble, "");
    this.draw();
    this.doing.edited();
  }

  /** What the server has now. */
  take(routes, receivers) {
    const untouched = !this.changed;
    const fresh = this.routes === null || this.routes.version !== routes.version;
    this.receivers = receivers;
    if (fresh && !untouched && this.routes !== null)
      setText(
        this.trouble,
        `${routes.changed_by} saved other routes in between: copy yours, and discard your changes.`,
      );
    const before = this.routes;
    this.routes = untouched || before === null ? routes : { ...routes, version: before.version };
    if (untouched) this.text.value = routes.text;
    this.draw();
  }

  draw() {
    const { routes } = this;
    const fixed = routes.source === "file" || !may("command");
    this.text.readOnly = fixed;
    const rows = Math.min(40, Math.max(6, this.text.value.split("\n").length + 1));
    if (this.text.rows !== rows) this.text.rows = rows;
    setShown(this.save, !fixed && this.changed);
    setShown(this.revert, !fixed && this.changed);
    setShown(this.example, !fixed && !this.text.value.trim() && this.receivers.length > 0);
    const written = routes.changed
      ? `, changed by ${routes.changed_by} ${ago(Date.now() / 1000 - routes.changed)}`
      : "";
    const about = {
      file: `From the file ${routes.file}: change it there and restart the server.`,
      none: "No route is set: each receiver gets every alert of its lowest severity and above.",
      page: `Version ${routes.version}${written}.`,
    };
    setText(this.about, about[routes.source]);
    if (routes.problem && !this.changed)
      setText(this.trouble, `Not used, each receiver gets everything. ${routes.problem}`);
  }

  async onSave() {
    this.save.disabled = true;
    try {
      const stored = await this.doing.save(this.text.value, this.routes.version);
      this.routes = stored;
      this.text.value = stored.text;
      setText(this.trouble, "");
    } catch (error) {
      setText(this.trouble, errorText(error));
    }
    this.save.disabled = false;
    this.draw();
  }
}
