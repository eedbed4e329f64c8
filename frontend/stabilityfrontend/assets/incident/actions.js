// What people can do on an incident's page: acknowledge it, look at every rank, restart the job, roll it back; and what became
// of the newest order.

import { api } from "../core/api.js";
import { asList, asRecord, asText } from "../core/as_type.js";
import { byId, fill, h, setClass, setHref, setShown, setText, setTitle, toast } from "../core/dom.js";
import { ago, errorText } from "../core/format.js";
import { incidentKind, offers, statusFacts } from "../core/kinds.js";
import { detectorOf, halfAsSensitive, offer, settingOf, withSetting } from "../run/sensitivity_menu.js";
import { sinceOf, verdictOf } from "./verdict.js";

// -- Too many incidents like this one: half as sensitive or mute, with one click each where the incident is read.

class Quieter {
  /** `page`: the incident's. `element` is what it shows, hidden where no detector with settings found the incident. */
  constructor(page) {
    this.page = page;
    this.set = /** @type {any} */ (null);
    const button = (id, run) => h("button.button.quiet", { id, onclick: run });
    this.half = button("quieter-half", () => this.save(halfAsSensitive(this.detector(), this.now())));
    this.mute = button("quieter-mute", () => this.save(this.now() === 0 ? 1 : 0));
    this.words = h("span.sub");
    this.element = h("span.quieter", { hidden: true, data: { needs: "command" } }, this.words, this.half, this.mute);
  }

  async fetch() {
    try {
      this.set = await api.detectorsOf(this.page.id);
      if (!this.page.gone) this.draw();
    } catch {
      // It is asked again when the page is in touch again.
    }
  }

  detector() {
    return this.set && this.page.incident ? detectorOf(this.set.detectors, this.page.incident) : null;
  }

  now() {
    return settingOf(this.set.settings, this.detector(), "sensitivity");
  }

  draw() {
    const detector = this.detector();
    setShown(this.element, detector !== null && !this.page.incident.dead);
    if (!detector) return;
    const now = this.now();
    const half = halfAsSensitive(detector, now);
    setText(this.words, now === 0 ? "Muted in this run" : now === 1 ? "Too many like this?" : `Sensitivity ${now}`);
    setShown(this.half, now > half);
    setText(this.half, "Half as sensitive");
    setTitle(this.half, `${detector.title}: sensitivity ${now} → ${half} in this run, for what comes from now on`);
    setText(this.mute, now === 0 ? "Bring it back" : "Mute");
    setTitle(this.mute, "For this run and what comes from now on; other detectors go on");
  }

  /** Save a sensitivity and offer the way back, once. */
  async save(value, undoing = false) {
    const detector = this.detector();
    const before = this.now();
    try {
      // Somebody may have changed others meanwhile: only this one becomes another.
      this.set = await api.detectorsOf(this.page.id);
      const settings = withSetting(this.set.settings, detector, "sensitivity", value);
      this.set = { ...this.set, ...(await api.setDetectors(this.page.id, settings)) };
      if (this.page.gone) return;
      this.draw();
      const words = value === 0 ? "muted in this run, from now on" : `sensitivity ${value}, from now on`;
      offer(`${detector.title}: ${words}.`, undoing ? null : { label: "Undo", run: () => this.save(before, true) });
    } catch (error) {
      toast(errorText(error), "warning");
    }
  }
}

// -- Whether the alert was useful: what people say is summed into the precision of each detector.

class AlertRating {
  /** `page`: the incident's. `element` is what it shows, hidden for what alerts nobody. */
  constructor(page) {
    this.page = page;
    this.rating = /** @type {import("../../../types/api").Rating | null} */ (null);
    const button = (id, words, useful) => h("button.button.quiet", { id, onclick: () => this.rate(useful) }, words);
    this.useful = button("rating-useful", "Useful", true);
    this.noise = button("rating-noise", "Noise", false);
    this.words = h("span.sub", "Was this alert useful?");
    this.element = h(
      "span.quieter",
      { id: "incident-rating", hidden: true, data: { needs: "command" } },
      this.words,
      this.useful,
      this.noise,
    );
  }

  async fetch() {
    try {
      this.rating = (await api.ratingOf(this.page.id, this.page.incidentId)).rating;
      if (!this.page.gone) this.draw();
    } catch {
      // It is asked again when the page is in touch again.
    }
  }

  draw() {
    const { incident } = this.page;
    setShown(this.element, Boolean(incident) && incident.alarm !== false);
    const { rating } = this;
    for (const [button, useful] of /** @type {[HTMLElement, boolean][]} */ ([
      [this.useful, true],
      [this.noise, false],
    ])) {
      const on = rating !== null && rating.useful === useful;
      button.setAttribute("aria-pressed", String(on));
      setTitle(button, on ? "Take it back" : useful ? "The alert was right" : "Not worth an alert");
    }
    const said = rating && `${rating.who} called it ${rating.useful ? "useful" : "noise"}`;
    setText(this.words, rating ? `${said} ${ago(Date.now() / 1000 - rating.rated)}` : "Was this alert useful?");
  }

  async rate(useful) {
    const same = this.rating !== null && this.rating.useful === useful;
    try {
      this.rating = (await api.rate(this.page.id, this.page.incidentId, same ? null : useful)).rating;
      if (!this.page.gone) this.draw();
    } catch (error) {
      toast(errorText(error), "warning");
    }
  }
}

/** What became of an order is told this long after its last word, seconds. */
const SHOWN_S = 300;

export class IncidentActions {
  constructor(page) {
    this.page = page;
    const button = (id, look, words, run) => h("button", { id, class: `button ${look}`, onclick: run }, words);
    // Made once: whoever stands on one with the keyboard stays there.
    this.ack = button("incident-ack", "primary", "Acknowledge", () => this.acknowledge());
    this.dump = button("incident-dump", "", "Dump stacks now", () => this.dumpStacks());
    this.batches = button("incident-show-batches", "", "Show the batches", () => page.kept.give());
    this.restart = button("incident-restart", "danger", "Restart the job …", () => page.restart.show());
    this.back = button("incident-rollback", "", [h("span.icon.icon-back"), "Roll back …"], () =>
      page.dialog.show(page.incident),
    );
    this.mute = h("a.button", { id: "incident-mute", data: { needs: "command" } }, "Mute alerts …");
    this.words = h("span.sub.action-words", { role: "status" });
    this.quieter = new Quieter(page);
    this.rating = new AlertRating(page);
    const buttons = [this.ack, this.batches, this.dump, this.restart, this.back, this.mute];
    fill(byId("incident-actions"), buttons, this.words, this.quieter.element, this.rating.element);
  }

  draw() {
    const { incident, run } = this.page;
    const said = incidentKind(incident.kind).about === "user";
    const over = Boolean(run) && statusFacts(run.status).over;
    const unheard = Boolean(run) && run.agents === 0;
    const why = over
      ? "This run has ended: there is no job any more."
      : unheard
        ? "No agent of this run is connected, so no command can reach the job."
        : "";
    setShown(this.ack, offers(incident, "acknowledge"));
    setText(this.ack, said ? "Acknowledge and close" : "Acknowledge");
    this.ack.title = said ? "The job's alert is then closed" : "Tells others that you look after it; it stays open";
    setShown(this.dump, offers(incident, "dump_stacks") && !over);
    this.dump.disabled = Boolean(why) || Boolean(this.asking);
    this.dump.title = why || "Every agent samples its ranks and asks them for their stacks; takes about 3 s";
    const refusal = this.page.kept.refusal();
    setShown(this.batches, refusal !== null && !over);
    this.batches.disabled = Boolean(why || refusal) || Boolean(this.page.kept.giving);
    this.batches.title = why || refusal || "The ranks explain the newest batches that they keep, between two steps";
    setShown(this.restart, offers(incident, "restart") && !over);
    this.restart.disabled = Boolean(why);
    this.restart.title = why || "Shows what would be ended and from where it goes on, then asks";
    const suggestion = asRecord(incident.suggestion);
    setShown(this.back, offers(incident, "roll_back") && !over);
    setClass(this.back, `button${suggestion.action === "roll_back" ? " danger" : ""}`);
    this.back.disabled = Boolean(why);
    setShown(this.mute, incident.state === "open" && incident.alarm !== false);
    const what = new URLSearchParams({ run: this.page.id, kind: incident.kind });
    setHref(this.mute, `/alerting?${what}`);
    this.mute.title = "No alerts of this kind of incident of this run for a while";
    setText(this.words, this.told(why));
    this.quieter.draw();
    this.rating.draw();
    setShown(
      byId("incident-actions"),
      [...byId("incident-actions").children].some((one) => one !== this.words && !one.hidden) ||
        this.words.textContent !== "",
    );
  }

  /** The newest order in a sentence, or why none can be given. */
  told(why) {
    const { page } = this;
    const verdict = verdictOf(page.incident);
    // The stacks that the server asked for by itself stand below; that is no news.
    const [command] = [...page.commands.values()]
      .filter((one) => !(verdict && one.command_id === verdict.dump))
      .sort((a, b) => b.issued - a.issued);
    const last = command && asList(command.history)[asList(command.history).length - 1];
    if (
      command &&
      command.issued >= (sinceOf(page.incident) || 0) - 60 &&
      page.now() - ((last && last.time) || command.issued) < SHOWN_S
    )
      return command.progress.line;
    return page.incident.state === "open" ? why : "";
  }

  async acknowledge() {
    try {
      this.page.setIncident(await api.acknowledge(this.page.id, this.page.incidentId));
      this.page.draw();
    } catch (error) {
      toast(errorText(error), "warning");
    }
  }

  async dumpStacks() {
    if (this.asking) return;
    this.asking = true;
    this.draw();
    try {
      this.page.watchDump(
        await api.order(this.page.id, {
          kind: "dump_stacks",
          reason: `asked for on the page of “${asText(this.page.incident.title).slice(0, 200)}”`,
        }),
      );
    } catch (error) {
      toast(errorText(error), "warning");
    } finally {
      this.asking = false;
      this.page.draw();
    }
  }
}
