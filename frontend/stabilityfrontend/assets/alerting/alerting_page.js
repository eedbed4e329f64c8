// Alerting: where alerts go, which of them nobody gets for now, and who would get an incident.

import { api } from "../core/api.js";
import { choice } from "../core/controls.js";
import { byId, fill, h, setClass, setShown, setText, toast } from "../core/dom.js";
import { errorText } from "../core/format.js";
import { Live } from "../core/live.js";
import { patch, pressed } from "../core/patch.js";
import { drawBanner, drawPill } from "../run/header.js";
import { matchWords, muteForm, mutesOf } from "./mutes.js";
import { precisionOf } from "./precision.js";
import { receiversOf } from "./receivers.js";
import { previewOf, RoutesEditor } from "./routes.js";

/** The server is asked again this often. */
const AGAIN_MS = 5000;
/** After the last key in the editor. */
const TYPED_MS = 400;
/** Precision is of the last so many days. */
const PRECISION_DAYS = 30;
/** Incidents to try routes on. */
const INCIDENTS = 50;

export class AlertingPage {
  constructor(root) {
    this.root = root;
    this.state = "connecting";
    this.incidents = /** @type {any[]} */ ([]);
    this.tried = /** @type {any} */ (null);
    this.asking = 0;
    this.typing = /** @type {any} */ (null);
    this.again = /** @type {any} */ (null);
    this.editor = new RoutesEditor(byId("alerting-routes"), byId("routes-tools"), {
      save: (text, version) => this.saveRoutes(text, version),
      edited: () => {
        clearTimeout(this.typing);
        this.typing = setTimeout(() => this.preview(), TYPED_MS);
      },
    });
    this.mutes = h("div");
    const place = h("div");
    fill(byId("alerting-mutes"), this.mutes, place);
    muteForm(place, Object.fromEntries(new URLSearchParams(location.search)), (mute) => this.mute(mute));
    this.choice = choice(
      byId("preview-tools"),
      "preview-incident",
      "Incident",
      (value) => {
        this.tried = this.incidents.find((one) => one.incident_id === value);
        this.preview();
      },
      true,
    );
    this.live = new Live(
      null,
      () => {},
      (state) => (this.state = state),
    );
    this.fetch();
    this.fetchIncidents();
    this.fetchPrecision();
    this.tick = setInterval(() => {
      drawPill(this.live, this.state, null, null, false);
      drawBanner(this.live, null);
    }, 1000);
  }

  async fetch() {
    clearTimeout(this.again);
    try {
      this.take(await api.alerting());
      setShown(byId("alerting-trouble"), false);
    } catch (error) {
      if (this.gone) return;
      setText(byId("alerting-trouble"), errorText(error));
      setShown(byId("alerting-trouble"), true);
    }
    if (!this.gone) this.again = setTimeout(() => this.fetch(), AGAIN_MS);
  }

  take(answer) {
    if (this.gone) return;
    this.answer = answer;
    const active = answer.mutes.filter((mute) => mute.state === "active").length;
    const words = [answer.receivers.length ? (answer.sending ? "Sending" : "Not sending") : "No receiver"];
    if (active) words.push(`${active} muted`);
    setText(byId("alerting-state"), words.join(" · "));
    setClass(byId("alerting-state"), `chip ${answer.sending || !answer.receivers.length ? "" : "warning"}`);
    if (!pressed()) {
      patch(byId("alerting-receivers"), receiversOf(answer));
      patch(
        this.mutes,
        mutesOf(answer, (mute) => this.endMute(mute)),
      );
    }
    this.editor.take(answer.routes, answer.receivers);
  }

  async fetchIncidents() {
    try {
      this.incidents = (await api.allIncidents({ limit: INCIDENTS })).incidents;
    } catch {
      return; // the trouble is on the page already; the next look asks again
    }
    if (this.gone) return;
    this.tried = this.tried || this.incidents[0] || null;
    this.choice.options(
      this.incidents.map((one) => ({
        value: one.incident_id,
        text: `${one.title} · ${one.run_name || one.run_id}`,
      })),
      this.tried?.incident_id || "",
    );
    this.preview();
  }

  async fetchPrecision() {
    try {
      const answer = await api.alertPrecision(PRECISION_DAYS);
      if (!this.gone) fill(byId("alerting-precision"), precisionOf(answer));
    } catch (error) {
      if (!this.gone) fill(byId("alerting-precision"), h("p.text-critical", errorText(error)));
    }
  }

  async preview() {
    const place = byId("alerting-preview");
    if (!this.tried) {
      patch(place, h("p.empty", "No run has had an incident yet."));
      return;
    }
    const unsaved = this.editor.changed;
    this.asking += 1;
    const mine = this.asking;
    try {
      const answer = await api.alertPreview({
        run: this.tried.run_id,
        incident: this.tried.incident_id,
        ...(unsaved ? { text: this.editor.text.value } : {}),
      });
      if (this.gone || mine !== this.asking) return; // of an older question
      const note = unsaved && h("p.note", "By the routes above, which are not saved yet.");
      fill(place, note, previewOf(answer));
    } catch (error) {
      if (!this.gone && mine === this.asking) fill(place, h("p.text-critical", errorText(error)));
    }
  }

  async saveRoutes(text, version) {
    const stored = await api.saveRoutes({ text, version });
    toast(text.trim() ? "The routes hold from now on." : "No routes: each receiver gets everything.", "good");
    this.fetch();
    setTimeout(() => this.preview());
    return stored;
  }

  async mute(mute) {
    const answer = await api.mute(mute);
    this.take({ ...this.answer, ...answer });
    toast(`Muted: ${matchWords(mute.match)}.`, "good");
    this.preview();
  }

  async endMute(mute) {
    try {
      this.take({ ...this.answer, ...(await api.endMute(mute.mute_id)) });
      toast("Ended. What is still open is sent now.", "good");
      this.preview();
    } catch (error) {
      toast(errorText(error), "critical");
    }
  }

  close() {
    this.gone = true;
    clearInterval(this.tick);
    clearTimeout(this.again);
    clearTimeout(this.typing);
    this.live.close();
  }
}
