// "Checkpoint now" and "Stop …": what this job can do, what will happen in plain words, and then how far it is.

import { api } from "../core/api.js";
import { byId, fill, h, patch, setText } from "../core/dom.js";
import { duration, errorText, formatCount, plural, sentence } from "../core/format.js";
import { CommandDialog, stageList } from "./command_dialog.js";

// -- The menu of orders in the top bar: what people seldom ask of a job, so that the bar has room for the run's name.

/** Px that the menu keeps off the window's edges. */
const AIR = 8;

/** Put the buttons of orders into a menu that their button opens; each closes it. */
export function ordersMenu() {
  const open = byId("orders-open");
  const menu = h(
    "div.chart-menu",
    { id: "orders-menu", popover: "auto", role: "group", "aria-label": "Actions" },
    ["checkpoint-open", "stop-open", "task-open"].map((id) => byId(id)),
  );
  // Before the button opens its dialog, which gives the focus back to where it was: no place in a menu that is shut.
  menu.addEventListener(
    "click",
    () => {
      menu.hidePopover();
      open.focus();
    },
    { capture: true },
  );
  menu.addEventListener("toggle", (event) => {
    if (/** @type {ToggleEvent} */ (event).newState !== "open") return;
    const box = open.getBoundingClientRect();
    const left = Math.max(AIR, Math.min(box.right - menu.offsetWidth, innerWidth - menu.offsetWidth - AIR));
    Object.assign(menu.style, { left: `${left}px`, top: `${box.bottom + AIR / 2}px` });
  });
  open.after(menu);
  open.setAttribute("popovertarget", menu.id);
}

// -- The task dialog: a function that the owner of the nodes put there is run on each of them, and what each answered.

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

/** What has to be typed before a stop, as before a restart. */
const WORD = "stop";
/** @type {Record<string, {title: string, order: string, action: string, failed: string}>} */
const KINDS = {
  stop: { title: "Stop training", order: "stop", action: "Stop", failed: "Not stopped" },
  checkpoint: { title: "Save a checkpoint now", order: "checkpoint_now", action: "Save", failed: "No checkpoint" },
};
/** What reaches a job that hangs. */
const WORKS = { dump_stacks: "collect the stacks of all ranks", restart: "restart the job" };

export class OrderDialog extends CommandDialog {
  /** `page` as in run_page.js; `kind`: a key of KINDS. */
  constructor(page, kind) {
    super(page, kind);
    this.words = KINDS[kind];
    /** What the job can do, as the server said when it was opened. @type {any} */
    this.offer = null;
  }

  async show() {
    this.begin();
    this.box(h("div.collecting", { role: "status" }, h("i.spinner"), "Asking what it can do …"));
    this.raise(false);
    try {
      this.offer = await api.orders(this.page.id);
    } catch (error) {
      if (this.open) this.box(h("p.problem", { role: "alert" }, errorText(error)));
      return;
    }
    if (!this.open || this.commandId) return;
    if (this.able().possible) this.form();
    else this.refuse();
  }

  box(...body) {
    fill(this.dialog, this.head(this.words.title, this.page.name()), h("div.dialog-body", body));
  }

  able() {
    return this.offer[this.words.order];
  }

  /** Why it can't be ordered, and what works instead. */
  refuse() {
    const { why, works } = this.able();
    const instead = works.map((kind) => WORKS[kind] || kind).join(", or ");
    const hang = this.hangHref();
    this.box(
      h("p.away", sentence(`Not possible now: ${why}`)),
      instead ? h("p.sentence", `What works: ${instead}. The agents do that, not the ranks.`) : null,
      hang ? h("p", h("a", { href: hang }, "Open the hang's page, which has both")) : null,
    );
    this.dialog.append(this.foot(true, true));
    this.dialog.querySelector(`#${this.kind}-close`)?.focus();
  }

  form() {
    const stops = this.kind === "stop";
    const saves = this.offer.checkpoint_now;
    const label = (id, words, hint, input) =>
      h("label.form-field", { for: id }, h("span", words), input, hint ? h("small", hint) : null);
    const input = (id, more) => h("input.field", { id, type: "text", autocomplete: "off", maxlength: "300", ...more });
    this.reason = input(`${this.kind}-reason`, {});
    this.save = h("input", { type: "checkbox", id: "stop-save", onchange: () => this.update() });
    this.save.checked = saves.possible;
    this.save.disabled = !saves.possible;
    this.typed = input("stop-typed", {
      autocapitalize: "none",
      spellcheck: "false",
      "aria-describedby": "stop-sentence",
      oninput: () => this.update(),
    });
    this.told = h("p.sentence", { id: `${this.kind}-sentence`, "aria-live": "polite" });
    this.confirm = h(
      "button",
      { type: "submit", class: `button ${stops ? "danger" : "primary"}`, id: `${this.kind}-confirm` },
      this.words.action,
    );
    const choice = h(
      "label.order-choice",
      { for: "stop-save" },
      this.save,
      h("span", "Save a checkpoint first", saves.possible ? "" : h("small.sub", ` (not possible: ${saves.why})`)),
    );
    fill(
      this.dialog,
      this.formOf(
        this.head(this.words.title, this.page.name()),
        [
          stops ? choice : null,
          label(`${this.kind}-reason`, "Reason", "saved in the run's history", this.reason),
          this.told,
          stops ? label("stop-typed", `Type “${WORD}” to go ahead`, "", this.typed) : null,
          this.makeProblem(),
        ],
        this.confirm,
      ),
    );
    this.update();
    this.beginAt(stops ? this.typed : this.confirm);
  }

  order() {
    const order = { kind: this.words.order, reason: this.reason.value.trim(), idempotency_key: this.key };
    return this.kind === "stop" && this.save.checked ? { ...order, save: true } : order;
  }

  update() {
    setText(this.told, this.kind === "stop" ? this.stopWords() : this.saveWords());
    const typed = this.kind !== "stop" || this.typed.value.trim().toLowerCase() === WORD;
    this.confirm.disabled = this.sending || !typed;
    this.setAction(this.sending ? "Ordering …" : this.words.action);
  }

  ranks() {
    const { ranks } = this.offer;
    return ranks === 1 ? "The rank" : `All ${formatCount(ranks)} ranks`;
  }

  saveWords() {
    const one = this.offer.ranks === 1;
    return `${this.ranks()} ${one ? "saves" : "save"} the state after the same step${one ? "" : ", or none does"}; training goes on as soon as it is saved.`;
  }

  stopWords() {
    const { ranks, last_checkpoint: last, steps_lost: lost, seconds_lost: seconds } = this.offer;
    const begin = `${this.ranks()} ${ranks === 1 ? "stops" : "stop"} after one step${ranks === 1 ? "" : ", or none does"}. The script goes on to its own end, and no launcher is asked to start it again.`;
    if (this.save.checked) return `${begin} A checkpoint is saved first, so no step is lost.`;
    if (!lost) return begin;
    const took = seconds ? `, ${duration(seconds)} of training` : "";
    const since = last === null ? "there is no checkpoint" : `since the checkpoint of step ${formatCount(last)}`;
    return `${begin} About ${plural(lost, "step")} are lost (${since}${took}), unless the script saves at its end.`;
  }

  progress() {
    const command = this.page.commands.get(this.commandId);
    if (!command) return;
    const { failed, ended, stages, line } = command.progress;
    const done = this.kind === "stop" ? "Training is stopped" : "The checkpoint is saved";
    const title = failed ? this.words.failed : ended ? done : this.words.title;
    patch(
      this.dialog,
      this.head(title, this.page.name()),
      h(
        "div.dialog-body",
        { id: `${this.kind}-progress`, data: { state: command.state } },
        stageList(stages),
        h("p", { class: failed ? "problem" : `sentence${ended ? " good" : ""}`, role: "status" }, line),
      ),
      this.foot(ended, ended),
    );
  }
}
