// Whether the alert was useful: what people say is summed into the precision of each detector.

import { api } from "../core/api.js";
import { h, setShown, setText, setTitle, toast } from "../core/dom.js";
import { ago, errorText } from "../core/format.js";

export class AlertRating {
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
      setTitle(button, on ? "Take it back" : useful ? "It was right to alert somebody" : "Nobody needed to know");
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
