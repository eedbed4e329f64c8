// Expressions of metrics follow the run: the server makes what is new of them, and this asks for it, once a second.

import { api } from "../core/api.js";
import { firstRequests } from "../core/first_requests.js";

const ASK_MS = 1000;

export class ExpressionFeed {
  /** `page` as in run_page.js. */
  constructor(page) {
    this.page = page;
    /** @type {any} */
    this.timer = null;
    /** The stream id up to which they are here. An old one costs an answer with everything, nothing else. */
    this.cursor = null;
  }

  /** Points came: whoever draws an expression needs its own. */
  onPoints() {
    this.cursor ??= this.page.feed.cursor;
    if (this.timer || document.hidden || !this.page.metrics.expressions().length) return;
    this.timer = setTimeout(() => {
      this.timer = null;
      this.fetch();
    }, ASK_MS);
  }

  async fetch() {
    const { page } = this;
    const names = page.metrics.expressions().filter((name) => page.store.follows(name));
    const { cursor } = this;
    if (!names.length || !cursor) return;
    const points = firstRequests.points.panel;
    try {
      const answers = await api.series(page.id, names, { view: "all", points, cursor });
      if (page.gone) return;
      for (const answer of answers) page.store.take(answer, points);
      this.cursor = answers[0].cursor || cursor;
      const made = new Set(names);
      for (const chart of page.board.charts.values())
        if (chart.metrics().some((name) => made.has(name))) page.board.mark(chart);
    } catch {
      // With the next point it is asked again.
    }
  }

  close() {
    clearTimeout(this.timer);
  }
}
