// The rollback dialog: what the server suggests, what will happen in plain words, and then, beside the chart, what did.

import { changes } from "../chart/traces.js";
import { api } from "../core/api.js";
import { asRecord, asText, toldStep } from "../core/as_type.js";
import { whatItIs, whyNot } from "../core/checkpoint.js";
import { fill, h, patch, setClass, setShown, setText } from "../core/dom.js";
import { ago, duration, errorText, formatCount, plural, sentence } from "../core/format.js";
import { incidentKind } from "../core/kinds.js";
import { CommandDialog, rangeBehind, readSkip, stageList } from "./command_dialog.js";

// -- The checkpoints of the rollback dialog: those that can be gone back to, and those that are there and can't.

/** The rows of a dialog (rollback_dialog.js); `choose` is told the step that somebody takes. */
function checkpointChoices(dialog, choose) {
  const { checkpoints, withheld, to_step: best, incident_id: about, none } = dialog.offered();
  const radio = (one) => {
    const input = h("input", {
      type: "radio",
      name: "rollback-step",
      value: one.step,
      onchange: () => choose(one.step),
    });
    input.checked = one.step === dialog.chosen;
    return input;
  };
  const others = withheld.map((one) => withheldRow(one, one.unverified ? radio(one) : null));
  if (!checkpoints.length) return [h("div.nothing", none), others];
  const rows = checkpoints.map((one) => {
    return h(
      "label",
      {
        class: `choice${one.inside ? " late" : ""}`,
        data: { checkpoint: `${one.step} ${one.path}` },
        title: one.inside ? sentence(one.inside.text) : one.path,
      },
      radio(one),
      h("span.choice-step", `step ${formatCount(one.step)}`),
      h("span.sub", [one.where, whatItIs(one)].filter(Boolean).join(" · ")),
      h("span.grow"),
      one.inside
        ? h("span.chip.warning", "inside an incident")
        : one.step === best
          ? h("span.chip.accent", about ? "suggested" : "newest")
          : null,
      h("span.sub", ago(dialog.page.now() - one.time)),
    );
  });
  return [rows, others];
}

/** One that is there and is not offered, and why; `input` chooses it all the same, where only that is against it. */
function withheldRow(one, input) {
  return h(
    input ? "label" : "div",
    { class: "choice withheld", title: one.path, data: { withheld: one.step } },
    input,
    h("span.choice-step", `step ${formatCount(one.step)}`),
    h("span.sub", sentence(one.unfit)),
    h("span.grow"),
    h("span.chip", whyNot(one)),
  );
}

// -- What a rollback will do, in words, before it is sent.

const everyRank = (size) =>
  size === 1
    ? ["The rank stops", "loads", "discards", "reseeds", "skips", "goes"]
    : [
        size === 2 ? "Both ranks stop" : `All ${formatCount(size)} ranks stop`,
        "load",
        "discard",
        "reseed",
        "skip",
        "go",
      ];

/**
 * What an order will do, in one or two sentences. `order` as posted; `facts`: size, lastStep, stepSeconds, none: why no
 * checkpoint is chosen, aliveUntil: the last effective step of the branch that is gone back to.
 */
export function rollbackSentence(order, facts) {
  if (order.to_step === null)
    return (
      facts.none ||
      "Without a checkpoint there is nothing to go back to. The job announces each with run.checkpoint(step, path)."
    );
  const [stop, load, discard, reseed, skip, go] = everyRank(facts.size);
  const returns = order.branch !== undefined;
  const first = returns ? facts.aliveUntil : order.to_step;
  const gone = Math.max(0, facts.lastStep - first);
  const cost = gone && facts.stepSeconds ? `, about ${duration(gone * facts.stepSeconds)} of work` : "";
  const parts = [`${load} checkpoint ${formatCount(order.to_step)}${returns ? " of the branch that was left" : ""}`];
  const which =
    gone === 1
      ? `step ${formatCount(facts.lastStep)}`
      : `steps ${formatCount(first + 1)}–${formatCount(facts.lastStep)}`;
  if (gone) parts.push(`${discard} ${which} and those trained until then (${plural(gone, "step")} so far${cost})`);
  if (order.seed !== null) parts.push(`${reseed} with ${order.seed}`);
  if (order.skip_batches)
    parts.push(`${skip} ${order.skip_batches === 1 ? "1 batch" : `${formatCount(order.skip_batches)} batches`}`);
  if (order.skip_range) {
    const [from, to] = order.skip_range;
    const steps = from === to ? `step ${formatCount(from)}` : `steps ${formatCount(from)}–${formatCount(to)}`;
    parts.push(`${skip} the batches of ${steps}`);
  }
  if (order.lr_scale !== null && order.lr_scale !== 1)
    parts.push(`${go} on with the LR of its schedule × ${order.lr_scale}`);
  const joined = parts.length > 1 ? `${parts.slice(0, -1).join(", ")} and ${parts[parts.length - 1]}` : parts[0];
  const again = returns
    ? ` Steps ${formatCount(first + 1)}–${formatCount(order.to_step)} of that branch count again, and training goes on with step ${formatCount(order.to_step + 1)}.`
    : "";
  return `${stop} at the next common step boundary, ${joined}.${again} Discarded points stay visible, dashed.`;
}

/** The suggestion grows with the run: it is asked for anew so often. */
const AGAIN_MS = 2000;
/** Fields of the form, by what they change. */
const FIELDS = { lr_scale: "lr", seed: "seed" };

/** Why there is nothing to choose. */
const NONE =
  "There is no checkpoint to go back to: the job has announced none that is still on disk and among the learned steps.";
const NONE_LEFT = "No checkpoint of this branch is still on disk, so it can't be gone back to.";

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

  /**
   * Show the form. `incident`: the one that somebody looks at, null for the run. `branch`: the discarded segment to go back
   * to, which undoes a rollback; null for the effective timeline. The server says what it suggests.
   */
  async show(incident, branch = null) {
    this.incident = incident;
    this.branch = branch;
    this.offer = this.sentence = null;
    this.begin();
    fill(
      this.dialog,
      this.head(this.title(), this.about(), "icon-back"),
      h("div.dialog-body", h("div.collecting", { role: "status" }, h("i.spinner"), "Asking what is suggested …")),
    );
    this.raise(false);
    await this.ask();
  }

  title() {
    return this.branch === null ? "Roll back" : "Undo the rollback";
  }

  /** What is offered to choose from: of the effective timeline, or of the branch; `none` says why there is nothing. */
  offered() {
    const { offer, branch } = this;
    if (branch === null) return { ...offer, withheld: offer.withheld, none: NONE };
    const found = offer.branches.find((one) => one.segment === branch);
    const none = { checkpoints: [], to_step: null, text: "", none: NONE_LEFT };
    return { ...(found || none), withheld: [], incident_id: null, none: NONE_LEFT };
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
        fill(this.dialog.querySelector(".dialog-body"), h("div.problem", { role: "alert" }, errorText(error)));
    }
    if (current()) this.asking = setTimeout(() => this.ask(), AGAIN_MS);
  }

  take(offer) {
    const first = this.offer === null;
    const shown = ({ checkpoints, withheld }) =>
      JSON.stringify([checkpoints.map((one) => [one.step, one.path, one.where, one.inside]), withheld]);
    const before = first ? null : shown(this.offered());
    this.offer = offer;
    if (first) return this.form();
    if (before !== shown(this.offered())) this.drawChoices();
    return this.update();
  }

  checkpoint() {
    const { checkpoints, withheld } = this.offered();
    const unverified = withheld.filter((one) => one.unverified);
    return [...checkpoints, ...unverified].find((one) => one.step === this.chosen) || null;
  }

  field(id, label, hint, props) {
    const input = h("input.field", {
      id,
      autocomplete: "off",
      ...props,
      oninput: () => this.edited(id),
    });
    this[id.replace("rollback-", "")] = input;
    return h("label.form-field", { for: id }, h("span", label), input, h("small", hint));
  }

  /** Someone typed: what they set is theirs from then on. */
  edited(id) {
    if (id === "rollback-skip") this.followsSkip = false;
    this.update();
  }

  form() {
    const { incident, offer } = this;
    const cannot = Object.entries(offer.cannot);
    this.chosen = this.offered().to_step;
    this.list = h("div.choices", { role: "radiogroup", "aria-label": "Checkpoint" });
    this.drawChoices();
    this.sentence = h("p.sentence", { id: "rollback-sentence", "aria-live": "polite" });
    this.why = h("p", { id: "rollback-why" });
    this.away = h(
      "p.away",
      { hidden: true },
      "No agent of this run is connected at the moment, so no command can reach the job.",
    );
    this.confirm = h("button.button.danger", { type: "submit", id: "rollback-confirm" }, this.title());
    // The number grows with the run until someone sets it.
    const back = this.branch !== null;
    this.followsSkip = !back && (offer.skip_batches !== null || offer.skip_range !== null);
    fill(
      this.dialog,
      this.formOf(
        this.head(this.title(), this.about(), "icon-back"),
        [
          h("h3", back ? "Back to the branch's checkpoint" : "Back to checkpoint"),
          this.list,
          this.why,
          this.makeAccept(),
          h(
            "div.form-row",
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
            ? h("p.sub", { id: "rollback-cannot" }, [...new Set(cannot.map(([, why]) => sentence(why)))].join(" "))
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
    if (back) {
      this.noSkip = true;
      this.disable(this.skip, "The branch goes on with the batches that it had.", "as the branch had them");
    } else if (offer.lr_scale) this.lr.value = String(offer.lr_scale);
    if (!back && offer.reseed) this.seed.value = String(crypto.getRandomValues(new Uint16Array(1))[0]);
    this.update();
    requestAnimationFrame(() =>
      this.list.querySelector("input:checked")?.closest("label").scrollIntoView({ block: "nearest" }),
    );
    (this.list.querySelector("input:checked") || this.confirm).focus({ preventScroll: true });
  }

  disable(input, why, words = "not offered by the job") {
    input.disabled = true;
    input.title = why;
    this.hint(input, words);
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
    patch(
      this.list,
      checkpointChoices(this, (step) => this.choose(step)),
    );
  }

  choose(step) {
    this.chosen = step;
    this.accept.checked = false;
    this.update();
  }

  order() {
    const number = (input) => (input.value.trim() === "" ? null : Number(input.value));
    const { inside, unverified } = (this.accept.checked && this.checkpoint()) || {};
    const { skip_batches, skip_range } = readSkip(this.skip.value, this.chosen, this.offer.cannot);
    return {
      kind: "rollback",
      to_step: this.chosen,
      ...(this.branch === null ? {} : { branch: this.branch }),
      lr_scale: number(this.lr),
      seed: number(this.seed),
      skip_batches,
      skip_range,
      reason: this.reason.value.trim(),
      idempotency_key: this.key,
      ...(inside ? { accept_inside_incident: true } : {}),
      ...(unverified ? { accept_unverified: true } : {}),
    };
  }

  facts() {
    return {
      none: this.offered().checkpoints.length ? this.offered().text : "",
      aliveUntil: this.offered().alive_until ?? 0,
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
        : String(checkpoint.skip_batches ?? "");
    this.explainSkip(readSkip(this.skip.value, this.chosen, this.offer.cannot));
    // Why this checkpoint; where something has to be corrected first, whoever reads only this has to see it.
    const { text, incident_id: about, checkpoints } = this.offered();
    const no = asText(this.branch === null ? this.offer.no_rollback : this.offer.no_return);
    const lead = this.incident || this.page.incidentMap?.get(about);
    setText(this.why, no ? sentence(no) : text);
    setShown(this.why, checkpoints.length > 0 && text !== "");
    setClass(this.why, no || asText(asRecord(lead?.suggestion).fix_first) ? "away" : "sub");
    const unasked = this.askFirst(checkpoint, "Go back to it all the same.");
    const order = this.order();
    setText(this.sentence, rollbackSentence(order, this.facts()));
    setShown(this.away, Boolean(this.page.run) && this.page.run.agents === 0 && this.problem.hidden);
    this.setAction(
      this.sending
        ? "Sending …"
        : order.to_step === null
          ? this.title()
          : `${this.branch === null ? "Roll back" : "Go back"} to ${formatCount(order.to_step)}`,
    );
    this.confirm.disabled =
      this.sending ||
      order.to_step === null ||
      no !== "" ||
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
    const back = Boolean(command.branch);
    const titles = back
      ? ["Rollback undone", "Not undone", "Undoing"]
      : ["Rolled back", "Not rolled back", "Rolling back"];
    const waits = command.waits && !ended;
    const title = waits ? "Rollback waits" : titles[command.state === "done" ? 0 : bad ? 1 : 2];
    const words = [
      `to step ${formatCount(command.to_step)}${back ? " of the discarded branch" : ""}`,
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
        "div.dialog-body",
        { id: "rollback-progress", data: { state: command.state } },
        stageList(stages),
        command.attempt > 1 && !ended
          ? h("p.sub", `Attempt ${command.attempt} of 3: not every rank reached the boundary in time, so none acted.`)
          : null,
        bad ? h("div.problem", trouble) : null,
        command.state === "done" ? h("p.sentence.good", line) : null,
        waits ? h("p.sentence", { role: "status" }, line) : null,
      ),
      this.foot(
        ended,
        command.state === "done",
        bad
          ? h("button.button", { onclick: () => this.show(this.incident, this.branch) }, "Try again …")
          : command.state === "done" && !back
            ? h(
                "button.button",
                {
                  id: "rollback-undo",
                  onclick: () => this.show(null, command.fence.segment),
                },
                "Undo this rollback …",
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
