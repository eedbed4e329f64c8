// What rollbacks cost, where other regions say it: steps that a fork discarded, goodput. The panel is the server's.

import { api } from "../core/api.js";
import { formatShare } from "../core/format.js";
import { drawAgain } from "../core/parts.js";

/** While a run goes on its totals change by themselves. */
const AGAIN_MS = 15000;
/** After a fork its first numbers are there when its first points are. */
const SOON_MS = 1500;

export class RollbackCosts {
  constructor(page) {
    this.page = page;
    this.answer = null;
  }

  async fetch() {
    clearTimeout(this.timer);
    const { page } = this;
    try {
      const answer = await api.rollbackCosts(page.id);
      if (page.gone) return;
      const before = this.lost;
      this.answer = answer;
      this.lost = JSON.stringify(
        answer.rollbacks.map((one) => [one.segment, one.steps_lost, one.last_dead_step, one.resume]),
      );
      if (this.lost !== before) {
        page.forksChanged();
        page.board.markAll();
        if (before !== undefined) drawAgain();
      }
      page.dirty("kpis");
    } catch {
      if (page.gone) return; // the server is away: what was said last stays
    }
    this.timer = setTimeout(() => (document.hidden ? this.wait() : this.fetch()), AGAIN_MS);
  }

  wait() {
    this.timer = setTimeout(() => (document.hidden ? this.wait() : this.fetch()), AGAIN_MS);
  }

  soon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.fetch(), SOON_MS);
  }

  /** Segment -> what the server says of the rollback that opened it. */
  rollbacks() {
    return new Map(((this.answer && this.answer.rollbacks) || []).map((one) => [one.segment, one]));
  }

  /** Steps that all rollbacks together discarded; null while that is not known. */
  stepsLost() {
    return this.answer ? this.answer.totals.steps_lost : null;
  }

  /** Goodput as words for the strip; "" while it is not known. */
  goodput() {
    const share = this.answer?.totals.goodput ?? null;
    return share === null ? "" : `goodput ${formatShare(share)}`;
  }

  close() {
    clearTimeout(this.timer);
  }
}
