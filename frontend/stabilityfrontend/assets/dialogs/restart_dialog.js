// The restart dialog: what the plan says, what will be ended, from where it goes on; nothing happens before it was typed.

import { api } from "../core/api.js";
import { asFinite, asList, asRecord, asText } from "../core/as_type.js";
import { usable, whatItIs } from "../core/checkpoint.js";
import { fill, h, patch, setText, toast } from "../core/dom.js";
import { ago, errorText, formatCount, plural } from "../core/format.js";
import { verdictOf } from "../incident/verdict.js";
import { CommandDialog, rangeText, readSkip, stageList } from "./command_dialog.js";

/** What has to be typed. Short: it is night, and the keyboard is a phone's. */
const WORD = "restart";
const OFFERED = 40;
/** Nodes named one by one. */
const NODES = 16;

export class RestartDialog extends CommandDialog {
  /** `page` as in incident_page.js. */
  constructor(page) {
    super(page, "restart");
  }

  async show() {
    this.begin();
    this.open = true;
    fill(
      this.dialog,
      this.head("Restart the job", this.page.name()),
      h("div.dialog-body", h("div.collecting", { role: "status" }, h("i.spinner"), "Asking for the plan …")),
    );
    this.dialog.showModal();
    try {
      this.plan = asRecord(await api.plan(this.page.id));
    } catch (error) {
      this.plan = {};
      toast(errorText(error), "warning");
    }
    if (this.open && !this.commandId) this.form();
  }

  usable() {
    return this.page.checkpointList().filter(usable).slice(0, OFFERED);
  }

  /** Nodes that may be left out: those that the plan or the verdict names, and as many of the others as fit. */
  nodes() {
    const planned = this.plan.exclude_nodes;
    const suspects = this.plan.suspects.map((one) => asText(asRecord(one).node));
    const verdict = verdictOf(this.page.incident);
    const agents = this.page.agents.map((agent) => agent.node);
    const all = [...new Set([...planned, ...suspects, ...(verdict ? verdict.nodes : []), ...agents].filter(Boolean))];
    // Without its only node there is no job: nothing to choose, unless the plan says so.
    return all.length > 1 || planned.length ? all.slice(0, NODES) : [];
  }

  /** The fields of the form. */
  makeFields(list, planned, excluded) {
    this.step = h(
      "select.choice-list.wide",
      { id: "restart-step", onchange: () => this.choose() },
      list.map((one) =>
        h(
          "option",
          { value: one.step, selected: one.step === planned },
          `${[`step ${formatCount(one.step)}`, ago(this.page.now() - one.time), whatItIs(one)].filter(Boolean).join(", ")}${one.inside ? " · inside an open incident" : ""}${one.step === planned ? " · planned" : ""}`,
        ),
      ),
      list.length ? null : h("option", { value: "" }, "none is known: the job begins as it does by itself"),
    );
    this.boxes = this.nodes().map((node) => {
      const box = h("input", { type: "checkbox", value: node, onchange: () => this.update() });
      box.checked = box.defaultChecked = excluded.has(node);
      return box;
    });
    const skip = asList(this.plan.skip_range);
    const behind = planned !== null && skip[0] === planned + 1;
    this.skip = h("input.field", {
      id: "restart-skip",
      type: "text",
      maxlength: "40",
      autocomplete: "off",
      placeholder: "0",
      value: skip.length ? (behind ? String(this.plan.skip_batches) : rangeText(skip)) : "",
      oninput: () => this.update(),
    });
    this.seed = h("input.field", {
      id: "restart-seed",
      type: "number",
      min: "0",
      step: "1",
      placeholder: "unchanged",
      inputmode: "numeric",
      oninput: () => this.update(),
    });
    this.reason = h("input.field", {
      id: "restart-reason",
      type: "text",
      maxlength: "300",
      autocomplete: "off",
      value: this.page.incident.title.slice(0, 300),
    });
    this.typed = h("input.field", {
      id: "restart-typed",
      type: "text",
      autocomplete: "off",
      autocapitalize: "none",
      spellcheck: "false",
      "aria-describedby": "restart-sentence",
      oninput: () => this.update(),
    });
    this.sentence = h("p.sentence", { id: "restart-sentence", "aria-live": "polite" });
    this.confirm = h("button.button.danger", { type: "submit", id: "restart-confirm" }, "Restart");
  }

  form() {
    const list = this.usable();
    const planned = asFinite(asRecord(this.plan.checkpoint).step);
    const excluded = new Set(this.plan.exclude_nodes);
    this.makeFields(list, planned, excluded);
    const boxes = this.boxes || [];
    const field = (id, label, hint, input) =>
      h("label.form-field", { for: id }, h("span", label), input, hint ? h("small", hint) : null);
    fill(
      this.dialog,
      this.formOf(
        this.head("Restart the job", this.page.name()),
        [
          this.plan.text
            ? h("p.plan-text", h("b", "The plan: "), this.plan.text)
            : h("p.away", "The server has no plan for this; choose yourself."),
          field("restart-step", "Go on from checkpoint", "", this.step),
          this.makeAccept(),
          boxes.length
            ? h(
                "fieldset.node-choices",
                h("legend", "Leave out these nodes"),
                boxes.map((box) =>
                  h(
                    "label.node-choice",
                    box,
                    h("span", box.value),
                    excluded.has(box.value) ? h("span.chip.accent", "planned") : null,
                  ),
                ),
              )
            : null,
          h(
            "div.form-row",
            field("restart-skip", "Batches to skip", "or steps: 1200-1250", this.skip),
            field("restart-seed", "New seed", "of the data order", this.seed),
            field("restart-reason", "Reason", "saved in the run's history", this.reason),
          ),
          this.sentence,
          field("restart-typed", `Type “${WORD}” to go ahead`, "", this.typed),
          this.makeProblem(),
        ],
        this.confirm,
      ),
    );
    this.update();
    this.beginAt(this.typed);
  }

  choose() {
    this.accept.checked = false;
    this.update();
  }

  /** The checkpoint of a step, null for none. */
  checkpointOf(step) {
    const planned = asRecord(this.plan.checkpoint);
    return planned.step === step ? planned : this.usable().find((one) => one.step === step) || null;
  }

  order() {
    const names = (wanted) => (this.boxes || []).filter(wanted).map((box) => box.value);
    const order = {
      kind: "restart",
      reason: this.reason.value.trim(),
      idempotency_key: this.key,
      exclude_nodes: names((box) => box.checked),
      keep_nodes: names((box) => box.defaultChecked && !box.checked),
    };
    if (this.step.value !== "") order.to_step = Number(this.step.value);
    if (this.accept.checked && this.checkpointOf(order.to_step)?.inside) order.accept_inside_incident = true;
    const { skip_batches, skip_range, problem } = readSkip(this.skip.value, order.to_step ?? null);
    this.skip.setCustomValidity(problem);
    const hint = this.skip.parentElement?.querySelector("small");
    setText(hint, problem || "or steps: 1200-1250");
    hint?.classList.toggle("bad", problem !== "");
    if (skip_batches !== null) order.skip_batches = skip_batches;
    if (skip_range !== null) order.skip_range = skip_range;
    if (this.seed.value.trim() !== "") order.seed = Number(this.seed.value);
    return order;
  }

  update() {
    const order = this.order();
    const { page } = this;
    const size = page.worldSize();
    const last = page.lastStep();
    const ranks = size === 1 ? "The process of the rank is" : `The processes of all ${formatCount(size)} ranks are`;
    const gone = order.to_step === undefined || last === null ? 0 : Math.max(0, last - order.to_step);
    const parts = [`${ranks} ended on every node: asked first (SIGTERM), killed after that.`];
    parts.push(
      "The launcher of the job (torchrun, Slurm, Kubernetes) has to start it again; the plan is written to every node first.",
    );
    if (order.to_step !== undefined)
      parts.push(
        `It goes on from checkpoint ${formatCount(order.to_step)}${gone ? `, ${plural(gone, "step")} are trained again` : ""}.`,
      );
    if (order.seed !== undefined)
      parts.push(`Its data come in the order of seed ${order.seed}, if the job's own code takes it from the plan.`);
    if (order.exclude_nodes.length)
      parts.push(`Without ${order.exclude_nodes.join(", ")}: their places need spares, or the job comes up smaller.`);
    if (order.keep_nodes.length)
      parts.push(
        `Against the plan ${order.keep_nodes.length > 1 ? "these are" : "this is"} used again: ${order.keep_nodes.join(", ")}.`,
      );
    setText(this.sentence, parts.join(" "));
    const unasked = this.askFirst(this.checkpointOf(order.to_step), "Go on from it all the same.");
    const typed = this.typed.value.trim().toLowerCase() === WORD;
    this.confirm.disabled = this.sending || unasked || !typed || !this.dialog.querySelector("form").checkValidity();
    this.setAction(this.sending ? "Ordering …" : "Restart");
  }

  progress() {
    const command = this.page.commands.get(this.commandId);
    if (!command) return;
    const { failed: bad, ended, stages, line } = command.progress;
    const title =
      command.state === "done"
        ? "The job runs again"
        : bad
          ? "Not restarted"
          : command.state === "acted"
            ? "The job is ended"
            : "Ending the job";
    patch(
      this.dialog,
      this.head(title, this.page.name()),
      h(
        "div.dialog-body",
        { id: "restart-progress", data: { state: command.state } },
        stageList(stages),
        h("p", { class: bad ? "problem" : `sentence${command.state === "done" ? " good" : ""}` }, line),
      ),
      this.foot(ended, true),
    );
  }
}
