// The task dialog: a function that the owner of the nodes put there is run on each of them, and what each answered.

import { fill, h, setText } from "../core/dom.js";
import { plural } from "../core/format.js";
import { patch } from "../core/patch.js";
import { CommandDialog, stageList } from "./command_dialog.js";

export class TaskDialog extends CommandDialog {
  /** `page` as in run_page.js. */
  constructor(page) {
    super(page, "task");
  }

  show() {
    this.begin();
    const input = (id, more) => h("input.field", { id, type: "text", autocomplete: "off", maxlength: "300", ...more });
    const field = (label, hint, inner) =>
      h("label.form-field", { for: inner.id }, h("span", label), inner, h("small", hint));
    const known = [...this.page.commands.values()].filter((one) => one.kind === "task").map((one) => one.task);
    this.name = input("task-name", { list: "task-names", spellcheck: "false", oninput: () => this.update() });
    this.reason = input("task-reason", {});
    this.confirm = h("button.button.primary", { type: "submit", id: "task-confirm" }, "Run");
    const { agents } = this.page.run;
    fill(
      this.dialog,
      this.formOf(
        this.head("Run a task", this.page.name()),
        [
          field("Task", "a function that the nodes have: STABILITY_AGENT_PLUGINS of the job", this.name),
          h(
            "datalist",
            { id: "task-names" },
            [...new Set(known)].map((value) => h("option", { value })),
          ),
          field("Reason", "saved in the run's history", this.reason),
          h(
            "p.sentence",
            `It runs once on ${agents ? plural(agents, "node") : "each node"}, beside the ranks, which train on.`,
          ),
          this.makeProblem(),
        ],
        this.confirm,
      ),
    );
    this.raise(false);
    this.update();
    this.beginAt(this.name);
  }

  order() {
    return {
      kind: "task",
      task: this.name.value.trim(),
      reason: this.reason.value.trim(),
      idempotency_key: this.key,
    };
  }

  update() {
    this.confirm.disabled = this.sending || this.name.value.trim() === "";
    setText(this.confirm, this.sending ? "Sending …" : "Run");
  }

  progress() {
    const command = this.page.commands.get(this.commandId);
    if (!command) return;
    const { failed, ended, stages, line } = command.progress;
    patch(
      this.dialog,
      this.head(`Task ${command.task}`, this.page.name()),
      h(
        "div.dialog-body",
        { id: "task-progress", data: { state: command.state } },
        stageList(stages),
        h("p", { class: failed ? "problem" : `sentence${ended ? " good" : ""}` }, line),
      ),
      this.foot(ended, ended),
    );
  }
}
