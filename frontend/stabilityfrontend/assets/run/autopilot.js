// The autopilot of a run: what it does now and why, its policy, what it did; setting it and stopping it.

import { api } from "../core/api.js";
import { foldedPanel, grow } from "../core/controls.js";
import { byId, h, patch, setClass, setShown, setText, setTitle, tableHead, toast, when } from "../core/dom.js";
import { ago, errorText } from "../core/format.js";
import { incidentKind } from "../core/kinds.js";

/** What somebody begins with who has no policy: all defaults, and nothing is ordered. */
const FIRST = `dry_run: true  # notes what it would do; false: it does it
act_on: [spike, divergence, nonfinite]
wait_steps: 40
changes: [skip_batches, lr_scale, seed]
checkpoints: verified
limit: {actions: 3, in_steps: 1000}
`;
/** Phase -> tone of the chip. */
const TONES = { "handed over": "critical", waits: "warning", "under way": "warning" };
const grouped = (step) => step.toLocaleString("en-US");

/** What an entry did or would have done, a few words. */
export function done(entry) {
  if (entry.action === "gave_up") return entry.dry_run ? "Would have asked people" : "Asked people";
  const to = `${entry.dry_run ? "Would have rolled back" : "Rolled back"} to ${grouped(entry.to_step)}`;
  const changes = [
    entry.skip_range ? `left out batches of ${entry.skip_range.map(grouped).join(" to ")}` : "",
    entry.skip_batches ? `left out ${grouped(entry.skip_batches)} batches` : "",
    entry.lr_scale === null ? "" : `LR x ${entry.lr_scale}`,
    entry.seed === null ? "" : "new seed",
  ];
  return [to, ...changes].filter(Boolean).join(", ");
}

/** What the mode and the phase are called in the chip. */
export function chip(answer) {
  const held = answer.phase === "idle" || answer.phase === "off" ? "" : ` · ${answer.phase}`;
  return `${answer.mode}${held}`;
}

/** The panel, folded. */
export const autopilotPanel = () =>
  foldedPanel("autopilot", "Autopilot", [
    h("span.chip", { id: "autopilot-mode", hidden: true }),
    h("span.sub", { id: "autopilot-note", role: "status", "aria-live": "polite" }),
    grow(),
    h(
      "button.button",
      { id: "autopilot-stop", title: "No further actions from now on", hidden: true },
      "Stop autopilot",
    ),
  ]);

export class AutopilotPanel {
  /** `page` as in run_page.js. */
  constructor(page) {
    this.page = page;
    /** @type {any} */
    this.answer = null;
    /** What somebody typed here, null for nothing. */
    this.draft = null;
    byId("autopilot-fold").addEventListener("click", () => this.setOpen(!this.open));
    byId("autopilot-stop").addEventListener("click", () => this.stop());
    byId("autopilot-badge").addEventListener("click", () => this.show());
  }

  async fetch() {
    try {
      const answer = await api.autopilotOf(this.page.id);
      if (!this.page.gone) this.set(answer);
    } catch {
      // It is asked again when the page is in touch again.
    }
  }

  /** Take what the server says; what is being typed stays. */
  set(answer) {
    this.answer = answer;
    setShown(byId("autopilot-panel"), true);
    this.draw();
  }

  setOpen(open) {
    this.open = open;
    byId("autopilot-fold").setAttribute("aria-expanded", String(open));
    setShown(byId("autopilot-body"), open);
    this.draw();
  }

  /** Open the panel where people see it. */
  show() {
    this.setOpen(true);
    byId("autopilot-panel").scrollIntoView({ block: "nearest", behavior: "smooth" });
    byId("autopilot-fold").focus({ preventScroll: true });
  }

  async stop() {
    try {
      const answer = await api.stopAutopilot(this.page.id);
      this.trouble = null;
      this.set(answer);
      toast("The autopilot is off. A rollback that was sent before goes on.");
    } catch (error) {
      toast(errorText(error), "warning");
    }
  }

  async save() {
    const text = this.draft ?? this.answer.policy ?? FIRST;
    try {
      const answer = await api.setAutopilot(this.page.id, text);
      this.trouble = null;
      this.set(answer);
    } catch (error) {
      this.trouble = errorText(error);
      this.draw();
    }
  }

  draw() {
    const { answer } = this;
    if (!answer || this.page.gone) return;
    const on = answer.mode !== "off";
    const mode = byId("autopilot-mode");
    setText(mode, chip(answer));
    setClass(mode, `chip ${on ? TONES[answer.phase] || "accent" : ""}`.trim());
    setShown(mode, true);
    const badge = byId("autopilot-badge");
    setText(badge, `Autopilot ${chip(answer)}`);
    setClass(badge, `chip press ${TONES[answer.phase] || "accent"}`);
    setTitle(badge, answer.text);
    setShown(badge, on);
    setText(byId("autopilot-note"), on ? answer.text : "Acts only when a person does");
    setShown(byId("autopilot-stop"), on);
    if (this.open) patch(byId("autopilot-body"), this.policy(), this.entries());
  }

  policy() {
    const { answer } = this;
    const saved = answer.policy ?? FIRST;
    const edited = this.draft !== null && this.draft !== answer.policy;
    const by = answer.set_by ? `${answer.policy ? "set" : "ended"} by ${answer.set_by}` : "";
    return h(
      "div.autopilot-policy",
      h("label.label", { for: "autopilot-text" }, "Policy"),
      h(
        "textarea.field",
        {
          id: "autopilot-text",
          rows: 7,
          spellcheck: "false",
          "aria-describedby": "autopilot-trouble",
          oninput: (event) => {
            this.draft = event.target.value;
            this.draw();
          },
        },
        saved, // what is typed stays in its place
      ),
      h("p.autopilot-trouble", { id: "autopilot-trouble", role: "alert" }, this.trouble || ""),
      h(
        "div.autopilot-foot",
        h("span.sub.grow", by, answer.set_at ? " " : "", answer.set_at ? this.age(answer.set_at) : ""),
        h(
          "button.button.primary",
          {
            id: "autopilot-save",
            data: { needs: "command" },
            disabled: answer.policy !== null && !edited,
            onclick: () => this.save(),
          },
          answer.policy === null ? "Turn on" : "Save policy",
        ),
      ),
    );
  }

  entries() {
    const { entries } = this.answer;
    if (!entries.length) return h("p.sub.autopilot-none", "It has done nothing yet.");
    return h(
      "table.autopilot-table",
      tableHead(["Step", "What", "About", "Why", "When"]),
      h(
        "tbody",
        entries.map((one) => this.entry(one)),
      ),
    );
  }

  entry(one) {
    const about = `${incidentKind(one.kind).short} of step ${grouped(one.onset_step)}`;
    return h(
      "tr",
      { data: { entry: one.entry_id } },
      h("td.number", grouped(one.step)),
      h("td", done(one), one.command ? h("span.sub", ` (${one.command})`) : null),
      h("td", h("a", { href: `/runs/${this.page.id}/incidents/${one.incident_id}` }, about)),
      h("td.autopilot-why", one.text),
      h("td.sub", this.age(one.time)),
    );
  }

  age(time) {
    return when(time, ago(this.page.now() - time), "sub");
  }
}
