// Too many incidents like this one: half as sensitive or mute, with one click each where the incident is read.

import { api } from "../core/api.js";
import { detectorOf, halfAsSensitive, settingOf, withSetting } from "../core/detector_settings.js";
import { h, setShown, setText, setTitle, toast } from "../core/dom.js";
import { errorText } from "../core/format.js";
import { offer } from "../run/sensitivity_menu.js";

export class Quieter {
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
