// What the job's ranks answered about the batches that they keep: which order is looked at, asking for it, and giving one.

import { api } from "../core/api.js";
import { asList, asText } from "../core/as_type.js";
import { toast } from "../core/dom.js";
import { errorText } from "../core/format.js";
import { offers } from "./severity.js";

/** Between two tries for what is not there yet. */
const AGAIN_MS = 3000;

export class KeptBatches {
  constructor(page) {
    this.page = page;
    /** Who keeps batches, and the newest answers without their samples. @type {import("../../../types/api").BatchAnswers | null} */
    this.offer = null;
    /** Order -> its answer: with samples, or without where this viewer may not see them, or it is too long ago. */
    this.answers = new Map();
    /** The order that somebody chose. */
    this.chosen = null;
    /** All samples are shown, not the first ones. */
    this.all = false;
  }

  /** The orders about this incident, the newest first. */
  orders() {
    return [...this.page.commands.values()]
      .filter((one) => one.kind === "show_batches" && one.incident_id === this.page.incidentId)
      .sort((a, b) => b.issued - a.issued);
  }

  /** The order that is looked at: what somebody chose, else the first that has the step where it began, else the newest. */
  order() {
    const orders = this.orders();
    const chosen = orders.find((one) => one.command_id === this.chosen);
    const { onset_step: onset } = this.page.incident;
    const holds = (one) => {
      const answer = this.answered(one.command_id);
      return answer !== null && answer.first !== null && answer.first <= onset && onset <= answer.last;
    };
    return chosen || orders.find(holds) || orders[0] || null;
  }

  /** What was answered to an order, as far as it is known. */
  answered(request) {
    return (
      this.answers.get(request) ||
      asList(this.offer && this.offer.answers).find((one) => one.request === request) ||
      null
    );
  }

  /** Why nobody can look at batches here, "" where somebody can, null where it is not offered at all. */
  refusal() {
    if (!this.offer || !asList(this.offer.ranks).length || !offers(this.page.incident, "show_batches")) return null;
    const under = this.orders().find((one) => !one.progress.ended);
    return under ? under.progress.line : "";
  }

  /** Ask who keeps batches, and for the samples that are looked at. */
  async refresh() {
    const { page } = this;
    if (!offers(page.incident, "show_batches") || this.asking) return;
    this.asking = true;
    clearTimeout(this.again);
    try {
      this.offer = await api.batchAnswers(page.id);
      const order = this.order();
      const known = order && asList(this.offer.answers).find((one) => one.request === order.command_id);
      if (order && order.progress.ended && known && !this.answers.has(order.command_id))
        this.answers.set(order.command_id, await api.batchSamples(page.id, order.command_id, known));
    } catch {
      if (!page.gone) this.again = setTimeout(() => this.refresh(), AGAIN_MS);
    } finally {
      this.asking = false;
    }
    if (!page.gone) page.draw();
  }

  async give() {
    const { page } = this;
    if (this.giving) return;
    this.giving = true;
    page.draw();
    try {
      const command = await api.order(page.id, {
        kind: "show_batches",
        incident_id: page.incidentId,
        reason: `asked for on the page of “${asText(page.incident.title).slice(0, 200)}”`,
      });
      this.chosen = command.command_id;
      page.setCommand(command);
    } catch (error) {
      toast(errorText(error), "warning");
    } finally {
      this.giving = false;
      page.draw();
    }
  }

  choose(request) {
    this.chosen = request;
    this.all = false;
    this.refresh();
  }

  close() {
    clearTimeout(this.again);
  }
}
