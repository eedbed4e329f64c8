// What the dialogs that send an order share: the box, its head, and the sending, once however often one clicks.

import { api } from "../core/api.js";
import { asList } from "../core/as_type.js";
import { byId, fill, h, setShown, setText, toast } from "../core/dom.js";
import { randomHex, sentence } from "../core/format.js";
import { incidentHref } from "../core/route.js";
import { me } from "../navigation/account.js";

// -- The field for batches that are left out: how many right behind the checkpoint, or those of some steps.

/** The most batches that can be left out. */
const MOST = 1e9;

/** What is typed for the steps of a range. */
export const rangeText = (range) => asList(range).join("-");

/**
 * The part of an offered range that lies behind a checkpoint, as the field shows it, "" where nothing of it does.
 * `range`: first and last step, inclusive.
 */
export function rangeBehind(range, toStep) {
  const [first, last] = asList(range);
  return last > toStep ? rangeText([Math.max(first, toStep + 1), last]) : "";
}

/** What the field takes of a job that can't do `cannot`. */
function formWords(cannot) {
  if (cannot.skip_range) return "a number of batches, as in 50";
  return cannot.skip_batches ? "two steps, as in 1200-1250" : "a number, or two steps as in 1200-1250";
}

/**
 * What was typed, as an order: `{skip_batches}` of `70`, `{skip_range}` of `1200-1250`, both null of nothing; `problem`:
 * why it is neither, "" where it is. `toStep`: of the checkpoint, null for none. `cannot`: what the job can't do.
 */
export function readSkip(text, toStep, cannot = {}) {
  const typed = text.trim();
  const none = { skip_batches: null, skip_range: null, problem: "" };
  if (typed === "") return none;
  const found = /^(\d{1,16})(?:\s*[-–]\s*(\d{1,16}))?$/.exec(typed);
  if (!found) return { ...none, problem: formWords(cannot) };
  const [first, last] = [Number(found[1]), found[2] === undefined ? null : Number(found[2])];
  if (last === null) {
    if (first > MOST) return { ...none, problem: "1e9 batches at most" };
    if (first && cannot.skip_batches) return { ...none, problem: "give two steps: the job leaves out a range only" };
    return { ...none, skip_batches: first };
  }
  if (cannot.skip_range) return { ...none, problem: "give a number: the job does not leave out a range" };
  if (last < first) return { ...none, problem: "the last step is before the first" };
  if (toStep !== null && first <= toStep)
    return { ...none, problem: `steps behind the checkpoint only: from step ${toStep + 1} on` };
  return { ...none, skip_range: [first, last] };
}

/** Orders that take two persons where the server's rule says so (commands/proposals.py). */
const OF_TWO = new Set(["rollback", "restart", "stop"]);
const TWO_PERSONS =
  "This server requires two persons: you propose, and another operator or admin approves on the run's page.";

/** The stages of a command as a list. @param {import("../../../types/api").CommandStage[]} stages */
export const stageList = (stages) =>
  h(
    "ol.stages",
    stages.map(({ key, label, state, after_s: after }) =>
      h(
        "li",
        { class: state === "waiting" ? "" : state, data: { stage: key } },
        h("i"),
        h("span", label),
        h("span.grow"),
        h("span.num", after === null ? "" : `+${after.toFixed(1)} s`),
      ),
    ),
  );

/** Take back an order that no worker has taken yet. */
export async function takeBack(page, commandId) {
  try {
    page.setCommand(await api.takeBack(page.id, commandId));
  } catch (error) {
    toast(`${sentence(error.message)} ${sentence(error.hint)}`, "critical");
  }
}

export class CommandDialog {
  /** `page` as in run_page.js; `kind`: "rollback", "restart" or "task", the begin of all ids. */
  constructor(page, kind) {
    this.page = page;
    this.kind = kind;
    this.open = false;
    /** The button that sends. */
    this.confirm = null;
    this.dialog = h("dialog.dialog", { id: `${kind}-dialog`, "aria-labelledby": `${kind}-title` });
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog && this.dialog.matches(":modal")) this.dialog.close();
    });
    // It may be open again by then, beside the page.
    this.dialog.addEventListener("close", () => {
      this.open = this.dialog.open;
      this.page.dirty("command");
    });
    document.body.append(this.dialog);
  }

  /** Whether it is proposed here, and another person approves it. */
  get proposes() {
    return Boolean(me()?.two_persons) && OF_TWO.has(this.kind);
  }

  /** What the button that sends says. */
  setAction(words) {
    setText(this.confirm, this.proposes ? `Propose: ${words}` : words);
  }

  /** Show it over the page, which waits; `aside`: small in a corner, and the page is there for use. */
  raise(aside) {
    if (this.dialog.open) this.dialog.close();
    this.dialog.classList.toggle("aside", aside);
    this.open = true;
    if (aside) this.dialog.show();
    else this.dialog.showModal();
  }

  /** Forget the last order. */
  begin() {
    this.commandId = null;
    this.sending = false;
    this.renew();
  }

  /** What is sent from now on is another order, not the last one again. */
  renew() {
    this.key = randomHex(16);
  }

  head(title, sub, icon) {
    return h(
      "div.dialog-head",
      icon ? h("span", { class: `icon ${icon} big` }) : null,
      h("div", h("h2", { id: `${this.kind}-title`, tabindex: "-1" }, title), h("div.sub", sub)),
      h("span.grow"),
      h("button.icon-button", { "aria-label": "Close", onclick: () => this.dialog.close() }, "×"),
    );
  }

  /** The form that sends on Enter and on its button: `head`, `body`, and `confirm` beside Cancel. */
  formOf(head, body, confirm) {
    const submit = (event) => {
      event.preventDefault();
      this.send();
    };
    const cancel = h("button.button", { onclick: () => this.dialog.close() }, "Cancel");
    return h(
      "form",
      { method: "dialog", onsubmit: submit },
      head,
      h("div.dialog-body", body, this.proposes ? h("p.sub", TWO_PERSONS) : null),
      h("div.dialog-foot", h("span.grow"), cancel, confirm),
    );
  }

  /** What is below the progress of a command: that it goes on by itself, and buttons; `good`: closing is what is left. */
  foot(ended, good, ...more) {
    const command = this.page.commands.get(this.commandId);
    const back = {
      class: "button",
      id: `${this.kind}-take-back`,
      onclick: () => this.takeBack(),
    };
    return h(
      "div.dialog-foot",
      h("span.sub.grow", ended ? "" : "This goes on if you close it."),
      command?.waits && !ended ? h("button", back, "Take it back") : null,
      more,
      h(
        "button",
        {
          class: `button${good ? " primary" : ""}`,
          id: `${this.kind}-close`,
          onclick: () => this.dialog.close(),
        },
        "Close",
      ),
    );
  }

  /** Take back what was sent, while it waits. */
  async takeBack() {
    await takeBack(this.page, this.commandId);
    this.progress();
  }

  /** Where the focus begins: in a field, or on the heading where a field would bring a keyboard over what is to be read. */
  beginAt(field) {
    const touched = window.matchMedia("(pointer: coarse)").matches;
    (touched ? byId(`${this.kind}-title`) : field).focus({ preventScroll: true });
  }

  /** The second yes that a checkpoint takes which something speaks against: hidden until askFirst() needs it. */
  makeAccept() {
    this.accept = h("input", { type: "checkbox", id: `${this.kind}-accept`, onchange: () => this.update() });
    this.insideWords = h("span");
    this.inside = h("label.away.inside", { hidden: true }, this.accept, this.insideWords);
    return this.inside;
  }

  /** Show what speaks against `checkpoint` (as in docs/api.md, or null); return whether that is still to be accepted. */
  askFirst(checkpoint, words) {
    const { inside, unverified, path, unfit } = checkpoint || {};
    const against = inside
      ? `This checkpoint was ${inside.text}`
      : unverified
        ? `${path} is not verified: ${unfit}`
        : "";
    setShown(this.inside, against !== "");
    setText(this.insideWords, against ? `${sentence(against)} ${words}` : "");
    return against !== "" && !this.accept.checked;
  }

  makeProblem() {
    this.problem = h("div.problem", { id: `${this.kind}-problem`, role: "alert", hidden: true });
    if (this.kind === "rollback") this.warnOfHang();
    return this.problem;
  }

  /** The address of the page of the open hang, null where the job does not hang. */
  hangHref() {
    const incidents = this.page.incidents?.() ?? [this.page.incident].filter(Boolean);
    const hang = incidents.find((one) => one.kind === "hang" && one.state === "open");
    return hang ? incidentHref(this.page.id, hang.incident_id) : null;
  }

  /** Ranks that hang come to no boundary: said before somebody fills in the form, with what works. */
  warnOfHang() {
    const href = this.hangHref();
    if (!href) return;
    const words = "This job hangs: it can't go back before it moves again. A restart goes back to a checkpoint too: ";
    fill(this.problem, words, h("a", { href }, "the hang's page has it"), ".");
    setShown(this.problem, true);
  }

  /** What is sent. Like the next two of the class that extends this one. */
  order() {
    return {};
  }

  /** Bring the form up to date. */
  update() {}

  /** Show how far the command is that was sent. */
  progress() {}

  /** The page's state changed. */
  refresh() {
    if (this.open && this.commandId) this.progress();
  }

  async send() {
    if (this.sending || this.confirm.disabled) return;
    this.sending = true;
    setShown(this.problem, false);
    this.update();
    try {
      if (this.proposes) {
        const proposal = await api.propose(this.page.id, this.order());
        this.page.feed?.proposals?.take(proposal);
        this.dialog.close();
        toast("Proposed. Another person approves it on the run's page within 15 minutes.", "good");
        return;
      }
      const command = await api.order(this.page.id, this.order());
      this.commandId = command.command_id;
      this.page.setCommand(command);
      if (command.warning) toast(command.warning, "critical");
      this.progress();
    } catch (error) {
      fill(this.problem, h("b", sentence(error.message)), error.hint ? ` ${sentence(error.hint)}` : null);
      setShown(this.problem, true);
      this.problem.scrollIntoView({ block: "nearest" });
      // A new try is a new order, unless nobody knows whether the first arrived.
      if (error.status !== 0 && error.code !== "redis_away" && error.code !== "unsure") this.renew();
    } finally {
      this.sending = false;
      if (!this.commandId) this.update();
    }
  }

  destroy() {
    this.dialog.remove();
  }
}
