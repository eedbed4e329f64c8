// Lines of small charts that the server makes, on another x axis or smoothed. Charts that wish the same share one request,
// its live updates and its memory; only so many different wishes are kept.

import { firstRequests } from "../core/first_requests.js";
import { Derived } from "./server_series.js";

/** Different x axes and smoothings at a time, and metrics of one of them. */
const [WISHES, NAMES] = [6, 96];
/** Wait for a slider to rest. */
const REST_MS = 120;

/** @type {WeakMap<object, PanelLines>} */
const byPage = new WeakMap();

/** Those of a page; of one that a chart sees narrowly (metrics/narrow_page.js) the whole one's. */
export function panelLines(given) {
  const page = given.whole || given;
  const known = byPage.get(page) || new PanelLines(page);
  byPage.set(page, known);
  return known;
}

class PanelLines {
  constructor(page) {
    this.page = page;
    /** @type {Map<string, any>} */
    this.wishes = new Map();
    page.zoom.rested.add((range) => range && this.detail(range));
  }

  detail(range) {
    if (!this.page.gone) for (const { lines } of this.wishes.values()) lines.fetchDetail(range);
  }

  /**
   * What a chart draws with these options now: `{lines, trouble}`. `lines` as a store, null while they are on their way
   * and where none are wished; `trouble`: why they can't be had, "" where they can.
   */
  of(chart, { x, smooth }) {
    const key = `${x} ${smooth}`;
    for (const [other, wish] of this.wishes) {
      if (other !== key) wish.charts.delete(chart);
      for (const one of wish.charts) if (this.page.board.charts.get(one.id) !== one) wish.charts.delete(one);
      if (!wish.charts.size && other !== key) this.drop(other);
    }
    if (x === "step" && !smooth) return { lines: null, trouble: "" };
    if (!this.wishes.has(key) && !this.room())
      return { lines: null, trouble: `More than ${WISHES} different x axes and smoothings at a time.` };
    const wish = this.wishes.get(key) || this.make(key, x, smooth);
    wish.charts.add(chart);
    this.want(wish);
    // The board draws the chart when its points came: then there are new ones of these lines, too.
    const { lastTime } = this.page.store;
    if (wish.seen !== lastTime && wish.lines.ready()) {
      wish.seen = lastTime;
      wish.lines.onPoints();
    }
    return { lines: wish.lines.ready() ? wish.lines : null, trouble: wish.trouble };
  }

  /** Whether there is room for one more, after one that nobody sees has gone. */
  room() {
    if (this.wishes.size < WISHES) return true;
    const unseen = [...this.wishes].find(([, wish]) => ![...wish.charts].some((chart) => chart.visible));
    if (unseen) this.drop(unseen[0]);
    return Boolean(unseen);
  }

  make(key, x, smooth) {
    const wish = {
      charts: new Set(),
      asked: new Set(),
      trouble: "",
      seen: this.page.store.lastTime,
      rest: 0,
      lines: /** @type {any} */ (null),
    };
    const mark = () => {
      for (const chart of wish.charts) this.page.board.mark(chart);
    };
    wish.lines = new Derived(
      this.page,
      (words) => {
        wish.trouble = words;
        mark();
      },
      {
        settings: { x, smooth },
        names: () => [...wish.asked],
        points: firstRequests.points.panel,
        shown() {
          wish.trouble = "";
          mark();
        },
      },
    );
    this.wishes.set(key, wish);
    return wish;
  }

  /** Ask for the metrics of a wish's charts, those in sight first, where one of them was not asked for yet. */
  want(wish) {
    const charts = [...wish.charts].sort((a, b) => Number(b.visible) - Number(a.visible));
    const names = [...new Set(charts.flatMap((chart) => chart.metrics()))].slice(0, NAMES);
    if (names.every((name) => wish.asked.has(name)) || wish.rest) return;
    wish.rest = window.setTimeout(() => {
      wish.rest = 0;
      if (this.page.gone || ![...this.wishes.values()].includes(wish)) return;
      const now = [...wish.charts].flatMap((chart) => chart.metrics());
      wish.asked = new Set([...names, ...now].slice(0, NAMES));
      wish.lines.change();
    }, REST_MS);
  }

  drop(key) {
    const wish = this.wishes.get(key);
    clearTimeout(wish.rest);
    wish.lines.clear();
    this.wishes.delete(key);
  }
}
