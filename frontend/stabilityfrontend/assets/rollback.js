// The rollback dialog: which checkpoint, what to change, what will happen in plain words, and then what did happen.
(function () {
  "use strict";
  const S = (window.stability = window.stability || {});
  /** Checkpoints in the list. The API gives the newest first. */
  const OFFERED = 40;

  /** The reason that the form begins with; most titles name their step already. */
  function incidentReason(incident) {
    const title = incident.title || S.words(incident.kind);
    return /\bstep\b/.test(title) || S.toldStep(incident.onset_step) === null ? title : `${title} at step ${incident.onset_step}`;
  }

  const everyRank = (size) => (size === 1 ? ["The rank stops", "loads", "discards", "reseeds", "skips", "goes"] : [size === 2 ? "Both ranks stop" : `All ${S.count(size)} ranks stop`, "load", "discard", "reseed", "skip", "go"]);

  /** What an order will do, in one or two sentences. `order` as posted; `facts`: size, lastStep, stepSeconds. */
  S.rollbackSentence = function (order, facts) {
    if (order.to_step === null) return "Without a checkpoint there is nothing to go back to. The job announces each with run.checkpoint(step, path).";
    const [stop, load, discard, reseed, skip, go] = everyRank(facts.size);
    const gone = Math.max(0, facts.lastStep - order.to_step);
    const cost = gone && facts.stepSeconds ? `, about ${S.duration(gone * facts.stepSeconds)} of work` : "";
    const parts = [`${load} checkpoint ${S.count(order.to_step)}`];
    const which = gone === 1 ? `step ${S.count(facts.lastStep)}` : `steps ${S.count(order.to_step + 1)}–${S.count(facts.lastStep)}`;
    if (gone) parts.push(`${discard} ${which} and those trained until then (${S.plural(gone, "step")} so far${cost})`);
    if (order.seed !== null) parts.push(`${reseed} with ${order.seed}`);
    if (order.skip_batches) parts.push(`${skip} ${order.skip_batches === 1 ? "1 batch" : `${S.count(order.skip_batches)} batches`}`);
    if (order.lr_scale !== null && order.lr_scale !== 1) parts.push(`${go} on with the LR × ${order.lr_scale}`);
    const joined = parts.length > 1 ? `${parts.slice(0, -1).join(", ")} and ${parts[parts.length - 1]}` : parts[0];
    const late = facts.onset !== null && facts.onset !== undefined && order.to_step >= facts.onset ? " This checkpoint is not from before the onset: it may hold the damage already." : "";
    return `${stop} at the next common step boundary, ${joined}. Discarded points stay visible as a ghost.${late}`;
  };

  class RollbackDialog extends S.OrderDialog {
    /** `page` as in run.js. */
    constructor(page) {
      super(page, "rollback");
      this.dialog.addEventListener("close", () => this.page.dirty("command"));
    }

    /** Show the form. `incident` brings its suggestion; null is a rollback without one. */
    show(incident) {
      this.incident = incident;
      this.begin();
      this.chosen = null;
      this.form();
      this.open = true;
      this.dialog.showModal();
    }

    usable() {
      const last = this.page.lastStep();
      return this.page.checkpointList().filter((one) => one.available && !one.dead && (last === null || one.step <= last)).slice(0, OFFERED);
    }

    suggested(list) {
      const suggestion = this.incident && this.incident.suggestion;
      const wished = suggestion && suggestion.to_step !== null ? list.find((one) => one.step === suggestion.to_step) : null;
      if (wished) return wished;
      const onset = this.incident && this.incident.onset_step;
      if (onset !== null && onset !== undefined) return list.find((one) => one.step < onset) || list[list.length - 1] || null;
      return list[0] || null;
    }

    field(id, label, hint, props) {
      const input = S.h("input", { id, class: "field", autocomplete: "off", ...props, on: { input: () => this.edited(id) } });
      this[id.replace("rollback-", "")] = input;
      return S.h("label", { class: "form-field", for: id }, S.h("span", {}, label), input, S.h("small", {}, hint));
    }

    /** Someone typed: what they set is theirs from then on. */
    edited(id) {
      if (id === "rollback-skip") this.followsSkip = false;
      this.update();
    }

    form() {
      const { page, incident } = this;
      const list = this.usable();
      const best = this.suggested(list);
      this.chosen = best ? best.step : null;
      this.list = S.h("div", { class: "choices", role: "radiogroup", "aria-label": "Checkpoint" });
      this.drawChoices(list, best);
      this.sentence = S.h("p", { class: "sentence", id: "rollback-sentence", "aria-live": "polite" });
      this.away = S.h("p", { class: "away", hidden: true }, "No agent of this run is connected at the moment, so an order would not reach the job.");
      this.confirm = S.h("button", { type: "submit", class: "button danger", id: "rollback-confirm" }, "Roll back");
      const behind = page.lastStep() !== null && best ? page.lastStep() - best.step : 0;
      S.fill(
        this.dialog,
        this.formOf(
          this.head("Roll back", incident ? incident.title || S.words(incident.kind) : page.name(), "icon-back"),
          [
            S.h("h3", {}, "Back to checkpoint"),
            this.list,
            S.h(
              "div",
              { class: "form-row" },
              this.field("rollback-lr", "LR scale", "blank: unchanged", { type: "number", min: "0", max: "10", step: "any", placeholder: "1.0", inputmode: "decimal" }),
              this.field("rollback-seed", "New seed", "blank: as it was", { type: "number", min: "0", step: "1", placeholder: "unchanged", inputmode: "numeric" }),
              this.field("rollback-skip", "Batches to skip", incident && behind ? "past what went wrong" : "blank: none", { type: "number", min: "0", max: "1000000000", step: "1", placeholder: "0", inputmode: "numeric" }),
            ),
            this.field("rollback-reason", "Reason", "stays with the run for ever", { type: "text", maxlength: "300", value: incident ? incidentReason(incident) : "" }),
            this.sentence,
            this.away,
            this.makeProblem(),
          ],
          this.confirm,
        ),
      );
      const suggestion = (incident && incident.suggestion) || {};
      if (suggestion.lr_scale) this.lr.value = String(suggestion.lr_scale);
      if (suggestion.reseed) this.seed.value = String(crypto.getRandomValues(new Uint16Array(1))[0]);
      // The number grows with the run until someone sets it.
      this.followsSkip = Boolean(incident) && best !== null;
      this.update();
      requestAnimationFrame(() => this.list.querySelector("input:checked")?.closest("label").scrollIntoView({ block: "nearest" }));
    }

    drawChoices(list, best) {
      const onset = this.incident ? this.incident.onset_step : null;
      if (!list.length) {
        S.fill(this.list, S.h("div", { class: "nothing" }, "There is no checkpoint to go back to: the job has announced none that is still on disk and on the effective timeline."));
        return;
      }
      S.fill(
        this.list,
        list.map((one) => {
          const distance = onset === null || onset === undefined ? null : onset - one.step;
          const where = distance === null ? "" : distance > 0 ? `${S.plural(distance, "step")} before the onset` : distance === 0 ? "at the onset" : `${S.plural(-distance, "step")} after the onset`;
          const input = S.h("input", { type: "radio", name: "rollback-step", value: one.step, on: { change: () => this.choose(one.step) } });
          input.checked = one.step === this.chosen;
          input.autofocus = input.checked;
          return S.h(
            "label",
            { class: `choice${distance !== null && distance <= 0 ? " late" : ""}`, title: one.path },
            input,
            S.h("span", { class: "choice-step" }, `step ${S.count(one.step)}`),
            S.h("span", { class: "sub" }, where),
            S.h("span", { class: "grow" }),
            best && one.step === best.step ? S.h("span", { class: "chip accent" }, distance === null ? "newest" : distance > 0 ? "suggested" : "oldest") : null,
            S.h("span", { class: "sub" }, S.ago(this.page.now() - one.time)),
          );
        }),
      );
    }

    choose(step) {
      this.chosen = step;
      this.update();
    }

    /**
     * Batches to skip unless someone says otherwise: up to where the incident's own suggestion ends, and at least all
     * that were trained since the checkpoint, since they hold what went wrong.
     */
    wisestSkip() {
      const { suggestion } = this.page.incidentMap.get(this.incident.incident_id) || this.incident;
      const named = suggestion && suggestion.skip_batches ? suggestion.to_step + suggestion.skip_batches : 0;
      return Math.max(named, this.page.lastStep() ?? 0, this.chosen) - this.chosen;
    }

    order() {
      const number = (input) => (input.value.trim() === "" ? null : Number(input.value));
      return {
        kind: "rollback",
        to_step: this.chosen,
        lr_scale: number(this.lr),
        seed: number(this.seed),
        skip_batches: number(this.skip),
        reason: this.reason.value.trim(),
        idempotency_key: this.key,
      };
    }

    facts() {
      return { onset: this.incident ? this.incident.onset_step : null, size: this.page.worldSize(), lastStep: this.page.lastStep() ?? 0, stepSeconds: this.page.stepSeconds() };
    }

    /** Bring sentence and button up to date with the form and with the steps that go on meanwhile. */
    update() {
      // Never under the hands of someone who types there: 62 and a typed 40 would be 6,240 batches.
      const typing = document.activeElement === this.skip;
      if (this.followsSkip && !typing && this.chosen !== null) this.skip.value = String(this.wisestSkip());
      const order = this.order();
      S.text(this.sentence, S.rollbackSentence(order, this.facts()));
      S.show(this.away, Boolean(this.page.run) && this.page.run.agents === 0 && this.problem.hidden);
      S.text(this.confirm, this.sending ? "Ordering …" : order.to_step === null ? "Roll back" : `Roll back to ${S.count(order.to_step)}`);
      this.confirm.disabled = this.sending || order.to_step === null || !this.dialog.querySelector("form").checkValidity() || (order.lr_scale !== null && order.lr_scale <= 0);
    }

    /** The page's state changed. */
    refresh() {
      if (!this.open) return;
      if (this.commandId) this.progress();
      else if (this.sentence) this.update();
    }

    progress() {
      const command = this.page.commands.get(this.commandId);
      if (!command) return;
      const key = JSON.stringify(command);
      if (key === this.shown && this.dialog.querySelector(".stages")) return;
      this.shown = key;
      const bad = S.commandFailed(command);
      const title = command.state === "done" ? "Rolled back" : bad ? "Not rolled back" : "Rolling back";
      const words = [`to step ${S.count(command.to_step)}`, S.changes({ lr_scale: command.lr_scale, seed: command.seed, skip_batches: command.skip_batches })];
      S.fill(
        this.dialog,
        this.head(title, words.filter(Boolean).join(" · "), "icon-back"),
        S.h(
          "div",
          { class: "dialog-body", id: "rollback-progress", data: { state: command.state } },
          S.commandList(command),
          command.attempt > 1 && !S.commandEnded(command) ? S.h("p", { class: "sub" }, `Attempt ${command.attempt} of 3: not every rank reached the boundary in time, so none acted.`) : null,
          bad ? S.h("div", { class: "problem" }, S.commandTrouble(command)) : null,
          command.state === "done" ? S.h("p", { class: "sentence good" }, S.commandLine(command)) : null,
        ),
        S.h(
          "div",
          { class: "dialog-foot" },
          S.h("span", { class: "sub grow" }, S.commandEnded(command) ? "" : "This goes on if you close the dialog."),
          bad ? S.h("button", { type: "button", class: "button", on: { click: () => this.again() } }, "Try again …") : null,
          S.h("button", { type: "button", class: `button${command.state === "done" ? " primary" : ""}`, id: "rollback-close", on: { click: () => this.dialog.close() } }, "Close"),
        ),
      );
    }

    again() {
      this.begin();
      this.form();
    }
  }

  S.RollbackDialog = RollbackDialog;
})();
