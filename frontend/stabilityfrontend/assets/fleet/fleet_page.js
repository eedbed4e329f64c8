// The fleet's page: what interrupted the jobs of this server, what that cost, and which GPUs do it again. Period and project
// stand in the address, so that a link shows the same.

import { api } from "../core/api.js";
import { asTexts } from "../core/as_type.js";
import { byId, fill, h, segmented, setShown, toast } from "../core/dom.js";
import { errorText } from "../core/format.js";
import { Live } from "../core/live.js";
import { pressed } from "../core/patch.js";
import { keyed } from "../incident/parts.js";
import { drawBanner, drawPill } from "../run/header.js";
import { drawFleet } from "./fleet_parts.js";

/** The page asks again this often, and this soon after a run's state changed. */
const AGAIN_MS = 15000;
const SOON_MS = 1500;
const PERIODS = ["7", "30", "90", "all"];
const USUAL = "30";

export class FleetPage {
  constructor(root) {
    this.root = root;
    this.state = "connecting";
    this.data = null;
    this.gpus = null;
    this.opened = new Set();
    this.seen = new Map();
    this.more = 1;
    /** @type {any} */
    this.soon = null;
    const asked = new URLSearchParams(location.search);
    this.days = PERIODS.find((one) => one === asked.get("days")) || USUAL;
    this.project = asked.get("project") || "";
    segmented(byId("fleet-days"), (value) => this.choose({ days: value }))(this.days, true);
    this.projects = h("select", {
      id: "fleet-projects",
      class: "choice-list",
      "aria-label": "Project",
      on: { change: () => this.choose({ project: this.projects.value }) },
    });
    fill(byId("fleet-project"), h("label", { class: "tool-label", for: "fleet-projects" }, "Project"), this.projects);
    document.title = "Fleet · Stabilityboard";
    this.live = new Live(
      null,
      (message) => this.onMessage(message),
      (state) => (this.state = state),
    );
    this.fetch();
    this.tick = setInterval(() => this.onTick(), 1000);
  }

  choose(what) {
    Object.assign(this, what);
    const query = new URLSearchParams();
    if (this.days !== USUAL) query.set("days", this.days);
    if (this.project) query.set("project", this.project);
    history.replaceState(history.state, "", `/fleet${query.size ? `?${query}` : ""}`);
    this.more = 1;
    this.fetch();
  }

  async fetch() {
    clearTimeout(this.again);
    const asked = (this.asked = {});
    const query = new URLSearchParams();
    if (this.days !== "all") query.set("days", this.days);
    if (this.project) query.set("project", this.project);
    try {
      const [data, gpus] = await Promise.all([api.interruptions(String(query)), api.gpus()]);
      if (this.gone || asked !== this.asked) return;
      this.data = data;
      this.gpus = gpus ? (Array.isArray(gpus.gpus) ? gpus.gpus : []) : [];
      this.trouble = null;
      this.draw();
    } catch (error) {
      if (this.gone || asked !== this.asked) return;
      this.trouble = errorText(error);
      if (error.status === 404 || error.status === 405)
        this.trouble = "This server keeps no record of interruptions: it is older than this page.";
    }
    this.again = setTimeout(() => this.fetch(), AGAIN_MS * (1 + 0.2 * Math.random()));
  }

  onMessage(message) {
    if (message.type === "reset" || (message.type === "hello" && message.afterLoss)) this.fetch();
    if (message.type !== "run") return;
    const { run } = message;
    const state = `${run.status} ${run.open_incidents}`;
    const known = this.seen.get(run.run_id);
    this.seen.set(run.run_id, state);
    if (known === state || this.soon) return;
    this.soon = setTimeout(() => {
      this.soon = null;
      if (!this.gone) this.fetch();
    }, SOON_MS);
  }

  /** Say what an interruption was; "" takes that back. */
  async setCategory(one, category) {
    try {
      await api.setCategory(one.run_id, one.incident_id || one.id, category || null);
      toast(category ? "Kept, with your name." : "What was seen counts again.", "good", 3);
    } catch (error) {
      toast(errorText(error), "warning");
    }
    if (!this.gone) this.fetch();
  }

  now() {
    return this.live.now();
  }

  onTick() {
    if (this.gone || document.hidden || !this.root.isConnected || pressed()) return;
    drawPill(this.live, this.state, null, null, false);
    drawBanner(this.live, this.trouble);
    if (this.stale) this.draw();
  }

  draw() {
    const { data } = this;
    this.stale = pressed();
    if (this.stale || this.gone || !data || !this.root.isConnected) return;
    const names = [...new Set([...asTexts(data.projects), this.project].filter(Boolean))].sort();
    keyed(this.projects, [names, this.project], () => [
      h("option", { value: "" }, "all"),
      names.map((name) => h("option", { value: name, selected: name === this.project }, name)),
    ]);
    setShown(byId("fleet-project"), names.length > 0);
    drawFleet(this);
  }

  close() {
    this.gone = true;
    clearInterval(this.tick);
    clearTimeout(this.again);
    clearTimeout(this.soon);
    this.live.close();
  }
}
