// The declared mixture of the data: fetches what its small chart draws, and says in the chart's head what it is.

import { MIXTURE } from "../chart/panel_chart.js";
import { api } from "../core/api.js";
import { byId, setText, setTitle } from "../core/dom.js";

/** Buckets of the chart: about one in four pixels. */
const BUCKETS = 120;
/** Asked for again this often while the run goes on: a bucket is 16 rows. */
const AGAIN_MS = 5000;
/** A zoom rests this long before its curves are fetched. */
const REST_MS = 250;
const LOOKS = "Realised share, declared share (dashed), and the band in which it lies by chance.";

/** What the head of the panel says of the mixture. */
function mixtureWords(mixture) {
  if (!mixture) return "mixture not declared";
  if (mixture.note) return `declared in ${mixture.unit}, not compared`;
  const unit = mixture.measure === "ratio" ? `${mixture.unit}, as logged` : mixture.unit;
  return `share of ${unit}`;
}

export class MixtureCurves {
  /** `page` as in run_page.js. */
  constructor(page) {
    this.page = page;
    /** @type {any} */
    this.answer = null;
    this.curves = null;
    this.timer = 0;
  }

  /** The mixture that the chart shows: the newest one that is compared, else the newest one. */
  get mixture() {
    const all = this.answer ? this.answer.mixtures : [];
    return all.findLast((one) => one.curves) || all[all.length - 1] || null;
  }

  /** Names of the data sets about which an incident is open. */
  get off() {
    return (this.mixture?.sets || []).filter((set) => set.off).map((set) => set.dataset);
  }

  async fetch() {
    clearTimeout(this.timer);
    const { page } = this;
    const range = page.zoom.range;
    const steps = range ? { start: Math.floor(range[0]), stop: Math.ceil(range[1]) } : {};
    try {
      const answer = await api.mixtureOf(page.id, { buckets: BUCKETS, ...steps });
      if (page.gone) return;
      this.answer = answer;
      this.curves = this.mixture && this.mixture.curves;
      this.draw();
      page.headline.show();
      for (const one of page.panels) if (one.panel.id === MIXTURE) one.chart.forget();
      page.board.markAll();
    } catch {
      // It is asked again below, and when the page is in touch again.
    }
    if (!page.gone && this.mixture) this.timer = setTimeout(() => this.again(), AGAIN_MS);
  }

  again() {
    if (document.hidden || this.page.run?.status !== "running") this.timer = setTimeout(() => this.again(), AGAIN_MS);
    else this.fetch();
  }

  /** The zoom is another one. */
  soon() {
    if (!this.mixture) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.fetch(), REST_MS);
  }

  draw() {
    const note = byId(`note-${MIXTURE}`);
    if (note) {
      setText(note, mixtureWords(this.mixture));
      setTitle(
        note,
        this.mixture ? this.mixture.note || LOOKS : "The job declares it by run.mixture({data set: share}).",
      );
    }
  }

  close() {
    clearTimeout(this.timer);
  }
}
