// The rollback dialog: what the server suggests, what will happen in plain words, and then, beside the chart, what did.

import { changes } from "../chart/traces.js";
import { api } from "../core/api.js";
import { asList, asRecord, asText, toldStep } from "../core/as_type.js";
import { whatItIs, whyNot } from "../core/checkpoint.js";
import { fill, h, setClass, setShown, setText } from "../core/dom.js";
import { ago, errorText, formatCount, sentence } from "../core/format.js";
import { incidentKind } from "../core/kinds.js";
import { patch } from "../core/patch.js";
import { CommandDialog, stageList } from "./command_dialog.js";
import { rollbackSentence } from "./rollback_sentence.js";
import { rangeBehind, readSkip } from "./skip_field.js";

/** The suggestion grows with the run: it is asked for anew so often. */
const AGAIN_MS = 2000;
/** Fields of the form, by what they change. */
const FIELDS = { lr_scale: "lr", seed: "seed" };

/** The reason that the form begins with; most titles name their step already. */
function incidentReason(incident) {
  const title = incident.title || incidentKind(incident.kind).label;
  return /\bstep\b/.test(title) || toldStep(incident.onset_step) === null
    ? title
    : `${title} at step ${incident.onset_step}`;
}

export class RollbackDialog extends CommandDialog {
  /** `page` as in run_page.js. */
  constructor(page) {
    super(page, "rollback");
    /** The fields of the form. */
    this.lr = this.seed = this.skip = this.reason = null;
  }

  /** Show the form. `incident`: the one that somebody looks at, null for the run. The server says what it suggests. */
  async show(incident) {
    this.incident = incident;
    this.offer = null;
    this.begin();
    fill(
      this.dialog,
      this.head("Roll back", this.about(), "icon-back"),
      h(
        "div",
        { class: "dialog-body" },
        h("div", { class: "collecting", role: "status" }, h("i", { class: "spinner" }), "Asking what is suggested …"),
      ),
    );
    this.raise(false);
    await this.ask();
  }

  about() {
    return this.incident ? this.incident.title || incidentKind(this.incident.kind).label : this.page.name();
  }

  /** Ask for the suggestion, now and while the form is open. */
  async ask() {
    clearTimeout(this.asking);
    const round = (this.round = (this.round || 0) + 1);
    const current = () => this.open && !this.commandId && round === this.round;
    try {
      const offer = await api.wayBack(this.page.id, this.incident && this.incident.incident_id);
      if (current()) this.take(offer);
    } catch (error) {
      // Without the server's word nothing is offered; with an older one the form stays as it is.
      if (current() && !this.offer)
        fill(
          this.dialog.querySelector(".dialog-body"),
          h("div", { class: "problem", role: "alert" }, errorText(error)),
        );
    }
    if (current()) this.asking = setTimeout(() => this.ask(), AGAIN_MS);
  }

  take(offer) {
    const first = this.offer === null;
    const shown = ({ checkpoints, withheld }) =>
      JSON.stringify([checkpoints.map((one) => [one.step, one.path, one.where, one.inside]), withheld]);
    const before = first ? null : shown(this.offer);
    this.offer = offer;
    if (first) return this.form();
    if (before !== shown(offer)) this.drawChoices();
    return this.update();
  }

  checkpoint() {
    return this.offer.checkpoints.find((one) => one.step === this.chosen) || null;
  }

  field(id, label, hint, props) {
    const input = h("input", {
      id,
      class: "field",
      autocomplete: "off",
      ...props,
      on: { input: () => this.edited(id) },
    });
    this[id.replace("rollback-", "")] = input;
    return h("label", { class: "form-field", for: id }, h("span", {}, label), input, h("small", {}, hint));
  }

  /** Someone typed: what they set is theirs from then on. */
  edited(id) {
    if (id === "rollback-skip") this.followsSkip = false;
    this.update();
  }

  form() {
    const { incident, offer } = this;
    const cannot = Object.entries(asRecord(offer.cannot));
    this.chosen = offer.to_step;
    this.list = h("div", { class: "choices", role: "radiogroup", "aria-label": "Checkpoint" });
    this.drawChoices();
    this.sentence = h("p", { class: "sentence", id: "rollback-sentence", "aria-live": "polite" });
    this.why = h("p", { id: "rollback-why" });
    this.away = h(
      "p",
      { class: "away", hidden: true },
      "No agent of this run is connected at the moment, so no command can reach the job.",
    );
    this.confirm = h("button", { type: "submit", class: "button danger", id: "rollback-confirm" }, "Roll back");
    // The number grows with the run until someone sets it.
    this.followsSkip = offer.skip_batches !== null || offer.skip_range !== null;
    fill(
      this.dialog,
      this.formOf(
        this.head("Roll back", this.about(), "icon-back"),
        [
          h("h3", {}, "Back to checkpoint"),
          this.list,
          this.why,
          this.makeAccept(),
          h(
            "div",
            { class: "form-row" },
            this.field("rollback-lr", "LR scale", "× this checkpoint's schedule", {
              type: "number",
              min: "0",
              max: "10",
              step: "any",
              placeholder: "1.0",
              inputmode: "decimal",
            }),
            this.field("rollback-seed", "New seed", "blank: as it was", {
              type: "number",
              min: "0",
              step: "1",
              placeholder: "unchanged",
              inputmode: "numeric",
            }),
            this.field("rollback-skip", "Batches to skip", "", { type: "text", maxlength: "40", placeholder: "0" }),
          ),
          cannot.length
            ? h(
                "p",
                { class: "sub", id: "rollback-cannot" },
                [...new Set(cannot.map(([, why]) => sentence(why)))].join(" "),
              )
            : null,
          this.field("rollback-reason", "Reason", "saved in the run's history", {
            type: "text",
            maxlength: "300",
            value: incident ? incidentReason(incident) : "",
          }),
          this.sentence,
          this.away,
          this.makeProblem(),
        ],
        this.confirm,
      ),
    );
    for (const [name, why] of cannot) if (FIELDS[name]) this.disable(this[FIELDS[name]], why);
    this.noSkip = Boolean(offer.cannot.skip_batches && offer.cannot.skip_range);
    if (this.noSkip) this.disable(this.skip, offer.cannot.skip_batches);
    if (offer.lr_scale) this.lr.value = String(offer.lr_scale);
    if (offer.reseed) this.seed.value = String(crypto.getRandomValues(new Uint16Array(1))[0]);
    this.update();
    requestAnimationFrame(() =>
      this.list.querySelector("input:checked")?.closest("label").scrollIntoView({ block: "nearest" }),
    );
    (this.list.querySelector("input:checked") || this.confirm).focus({ preventScroll: true });
  }

  disable(input, why) {
    input.disabled = true;
    input.title = why;
    this.hint(input, "not offered by the job");
  }

  hint(input, text) {
    setText(input.parentElement.querySelector("small"), text);
  }

  /** Show what the field of the batches means, or what is wrong with it. */
  explainSkip({ skip_batches, skip_range, problem }) {
    this.skip.setCustomValidity(problem);
    this.skip.parentElement.querySelector("small").classList.toggle("bad", problem !== "");
    if (this.noSkip) return;
    const { cannot } = this.offer;
    const forms = cannot.skip_range
      ? "right behind it"
      : cannot.skip_batches
        ? "steps, as 1200-1250"
        : "or steps: 1200-1250";
    const behind = skip_batches ? "right behind the checkpoint" : "";
    this.hint(
      this.skip,
      problem || (skip_range ? "those of these steps" : this.followsSkip ? "past the incident" : behind || forms),
    );
  }

  drawChoices() {
    const { checkpoints, to_step: best, incident_id: about } = this.offer;
    const withheld = asList(this.offer.withheld).map((one) => this.withheld(one));
    if (!checkpoints.length) {
      patch(
        this.list,
        h(
          "div",
          { class: "nothing" },
          "There is no checkpoint to go back to: the job has announced none that is still on disk and on the effective timeline.",
        ),
        withheld,
      );
      return;
    }
    patch(
      this.list,
      checkpoints.map((one) => {
        const input = h("input", {
          type: "radio",
          name: "rollback-step",
          value: one.step,
          on: { change: () => this.choose(one.step) },
        });
        input.checked = one.step === this.chosen;
        return h(
          "label",
          {
            class: `choice${one.inside ? " late" : ""}`,
            data: { checkpoint: `${one.step} ${one.path}` },
            title: one.inside ? sentence(one.inside.text) : one.path,
          },
          input,
          h("span", { class: "choice-step" }, `step ${formatCount(one.step)}`),
          h("span", { class: "sub" }, [one.where, whatItIs(one)].filter(Boolean).join(" · ")),
          h("span", { class: "grow" }),
          one.inside
            ? h("span", { class: "chip warning" }, "inside an incident")
            : one.step === best
              ? h("span", { class: "chip accent" }, about ? "suggested" : "newest")
              : null,
          h("span", { class: "sub" }, ago(this.page.now() - one.time)),
        );
      }),
      withheld,
    );
  }

  /** One that is there and can't be gone back to, and why. */
  withheld(one) {
    return h(
      "div",
      { class: "choice withheld", title: one.path, data: { withheld: one.step } },
      h("span", { class: "choice-step" }, `step ${formatCount(one.step)}`),
      h("span", { class: "sub" }, sentence(one.unfit)),
      h("span", { class: "grow" }),
      h("span", { class: "chip" }, whyNot(one)),
    );
  }

  choose(step) {
    this.chosen = step;
    this.accept.checked = false;
    this.update();
  }

  order() {
    const number = (input) => (input.value.trim() === "" ? null : Number(input.value));
    const inside = this.checkpoint()?.inside && this.accept.checked;
    const { skip_batches, skip_range } = readSkip(this.skip.value, this.chosen, this.offer.cannot);
    return {
      kind: "rollback",
      to_step: this.chosen,
      lr_scale: number(this.lr),
      seed: number(this.seed),
      skip_batches,
      skip_range,
      reason: this.reason.value.trim(),
      idempotency_key: this.key,
      ...(inside ? { accept_inside_incident: true } : {}),
    };
  }

  facts() {
    return {
      none: this.offer.checkpoints.length ? this.offer.text : "",
      size: this.page.worldSize(),
      lastStep: this.page.lastStep() ?? 0,
      stepSeconds: this.page.stepSeconds(),
    };
  }

  /** Bring sentence and button up to date with the form and with the steps that go on meanwhile. */
  update() {
    // Never under the hands of someone who types there: 62 and a typed 40 would be 6,240 batches.
    const typing = document.activeElement === this.skip;
    const checkpoint = this.checkpoint();
    if (this.followsSkip && !typing && checkpoint)
      this.skip.value = this.offer.skip_range
        ? rangeBehind(this.offer.skip_range, checkpoint.step)
        : String(checkpoint.skip_batches);
    this.explainSkip(readSkip(this.skip.value, this.chosen, this.offer.cannot));
    // Why this checkpoint; where something has to be corrected first, whoever reads only this has to see it.
    const { text, incident_id: about, checkpoints } = this.offer;
    const lead = this.incident || this.page.incidentMap?.get(about);
    setText(this.why, text);
    setShown(this.why, checkpoints.length > 0 && text !== "");
    setClass(this.why, asText(asRecord(lead?.suggestion).fix_first) ? "away" : "sub");
    const unasked = this.askInside(checkpoint && checkpoint.inside, "Go back to it all the same.");
    const order = this.order();
    setText(this.sentence, rollbackSentence(order, this.facts()));
    setShown(this.away, Boolean(this.page.run) && this.page.run.agents === 0 && this.problem.hidden);
    setText(
      this.confirm,
      this.sending ? "Sending …" : order.to_step === null ? "Roll back" : `Roll back to ${formatCount(order.to_step)}`,
    );
    this.confirm.disabled =
      this.sending ||
      order.to_step === null ||
      unasked ||
      !this.dialog.querySelector("form").checkValidity() ||
      (order.lr_scale !== null && order.lr_scale <= 0);
  }

  refresh() {
    super.refresh();
    if (this.open && !this.commandId && this.sentence) this.update();
  }

  progress() {
    const command = this.page.commands.get(this.commandId);
    if (!command) return;
    const key = JSON.stringify(command);
    if (key === this.shown && this.dialog.querySelector(".stages")) return;
    this.shown = key;
    const { failed: bad, ended, stages, line, trouble } = command.progress;
    const title = command.state === "done" ? "Rolled back" : bad ? "Not rolled back" : "Rolling back";
    const words = [
      `to step ${formatCount(command.to_step)}`,
      changes(
        {
          lr_scale: command.lr_scale,
          seed: command.seed,
          skip_batches: command.skip_batches,
          skip_range: command.skip_range,
        },
        true,
      ),
    ];
    // Beside the chart, which is being stitched meanwhile.
    if (this.dialog.matches(":modal")) this.raise(true);
    patch(
      this.dialog,
      this.head(title, words.filter(Boolean).join(" · "), "icon-back"),
      h(
        "div",
        { class: "dialog-body", id: "rollback-progress", data: { state: command.state } },
        stageList(stages),
        command.attempt > 1 && !ended
          ? h(
              "p",
              { class: "sub" },
              `Attempt ${command.attempt} of 3: not every rank reached the boundary in time, so none acted.`,
            )
          : null,
        bad ? h("div", { class: "problem" }, trouble) : null,
        command.state === "done" ? h("p", { class: "sentence good" }, line) : null,
      ),
      this.foot(
        ended,
        command.state === "done",
        bad
          ? h(
              "button",
              { type: "button", class: "button", on: { click: () => this.show(this.incident) } },
              "Try again …",
            )
          : null,
      ),
    );
  }

  destroy() {
    clearTimeout(this.asking);
    super.destroy();
  }
}
