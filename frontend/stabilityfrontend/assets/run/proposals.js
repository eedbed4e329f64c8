// What somebody or an assistant proposed for the run and a person has to approve: at the top of the page, with two buttons.

import { api } from "../core/api.js";
import { byId, fill, h, patch, setShown, toast } from "../core/dom.js";
import { errorText, formatCount, plural, sentence } from "../core/format.js";
import { confirm } from "../dialogs/confirm.js";
import { may, me } from "../navigation/account.js";

/** One that was decided on stays so long, seconds: whoever waits for it sees what became of it. */
const SHOWN_S = 120;
/** Its time runs down: drawn again so often. */
const AGAIN_MS = 5000;
/** State of one that is over -> words before who decided. */
const ENDED = { approved: "Approved", declined: "Declined", refused: "Refused", expired: "Expired" };

/** Which of a run's proposals are shown at a time (unix seconds), those that wait first, and what is said of each. */
export function shownProposals(all, now) {
  return all
    .map((one) => (one.state === "proposed" && now > one.expires ? { ...one, state: "expired" } : one))
    .filter(
      ({ state, decided, expires }) =>
        state === "proposed" || (ENDED[state] && now - (decided ?? expires) < SHOWN_S && state !== "superseded"),
    )
    .sort((a, b) => Number(b.state === "proposed") - Number(a.state === "proposed") || b.proposed - a.proposed);
}

/** Why whoever looks can't approve it, "" where they may try: the server decides. `who`: as GET /me answers. */
export function whyNot(proposal, who) {
  if (!who || who.by === "local") return "";
  if (who.name === proposal.proposer) return "You proposed this: another person approves it.";
  return "";
}

/** How much time is left, in words. */
export function timeLeft(proposal, now) {
  const seconds = Math.max(0, proposal.expires - now);
  return seconds >= 60 ? `${Math.floor(seconds / 60)} min left` : "less than a minute left";
}

export class Proposals {
  /** `page` as in run_page.js. */
  constructor(page) {
    this.page = page;
    this.map = new Map();
    this.place = h("section", { id: "proposals", hidden: true, "aria-label": "Proposals that wait for a person" });
    byId("command-strip")?.before(this.place);
    this.timer = setInterval(() => this.map.size && this.draw(), AGAIN_MS);
  }

  /** All of them, as they came with the commands; an older server has none. */
  fill(proposals) {
    this.map = new Map(proposals.map((one) => [one.proposal_id, one]));
    this.draw();
  }

  async fetch() {
    try {
      const { proposals } = await api.proposals(this.page.id);
      if (!this.page.gone) this.fill(proposals);
    } catch {
      // One that is away is asked again when the page is in touch again.
    }
  }

  /** The feed's word about one, or the answer to what somebody pressed. */
  take(proposal) {
    this.map.set(proposal.proposal_id, proposal);
    this.draw();
  }

  draw() {
    const now = this.page.now();
    const rows = shownProposals([...this.map.values()], now);
    setShown(this.place, rows.length > 0);
    if (rows.length)
      patch(
        this.place,
        rows.map((one) => this.row(one, now)),
      );
    else fill(this.place);
  }

  row(one, now) {
    const waits = one.state === "proposed";
    const no = whyNot(one, me());
    const by = `${one.by_program ? "An assistant" : "Somebody"} proposed it: ${one.proposer}`;
    const ended = [ENDED[one.state], one.decided_by ? `by ${one.decided_by}` : ""].filter(Boolean).join(" ");
    const reason = one.order.reason || "";
    return h(
      "div",
      {
        class: `note proposal ${waits ? "warning" : one.state === "approved" ? "good" : "calm"}`,
        data: { proposal: one.proposal_id, state: one.state },
      },
      h(
        "div.proposal-words",
        h("b", `${waits ? "Waits for a person" : ended}: ${one.what}`),
        reason ? h("span", { dir: "auto" }, sentence(reason)) : null,
        h("span.sub", [by, waits ? timeLeft(one, now) : ""].filter(Boolean).join(" · ")),
        one.detail ? h("span.sub", sentence(one.detail)) : null,
        waits && no ? h("span.sub", no) : null,
      ),
      waits && may("command")
        ? h(
            "div.proposal-buttons",
            h("button.button", { onclick: () => this.decline(one) }, "Decline"),
            h(
              "button.button.danger",
              {
                disabled: no !== "",
                title: no,
                onclick: () => this.approve(one),
              },
              "Approve …",
            ),
          )
        : null,
    );
  }

  async approve(one) {
    const last = this.page.lastStep();
    const { to_step: to } = one.order;
    const lost = last !== null && Number.isInteger(to) ? Math.max(0, last - to) : 0;
    const sure = await confirm({
      title: `${one.what}?`,
      text: [
        `${one.proposer} proposed it${one.by_program ? " (an assistant)" : ""}${one.order.reason ? `: ${sentence(one.order.reason)}` : "."}`,
        last === null
          ? ""
          : `The job is at step ${formatCount(last)}${lost ? `; ${plural(lost, "step")} are trained again` : ""}.`,
        "It is sent at once, unless the job went elsewhere since it was proposed.",
      ]
        .filter(Boolean)
        .join(" "),
      action: "Approve and send",
    });
    if (sure) await this.decide(one, "approve");
  }

  decline(one) {
    return this.decide(one, "decline");
  }

  async decide(one, how) {
    try {
      this.take(await api[how](this.page.id, one.proposal_id));
    } catch (error) {
      toast(errorText(error), "warning");
      this.fetch();
    }
  }

  close() {
    clearInterval(this.timer);
    this.place.remove();
  }
}
