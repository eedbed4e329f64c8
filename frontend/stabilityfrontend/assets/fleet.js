// The fleet's page: what interrupted the jobs of this server, what that cost, and which GPUs do it again. Period and project
// stand in the address, so that a link shows the same.
(function () {
  "use strict";
  const S = (window.stability = window.stability || {});
  /** The page asks again this often, and this soon after a run's state changed. */
  const AGAIN_MS = 15000;
  const SOON_MS = 1500;
  const PERIODS = ["7", "30", "90", "all"];
  const USUAL = "30";

  class FleetPage {
    constructor(root) {
      this.root = root;
      this.state = "connecting";
      this.data = null;
      this.gpus = null;
      this.opened = new Set();
      this.seen = new Map();
      this.more = 1;
      const asked = new URLSearchParams(location.search);
      this.days = PERIODS.includes(asked.get("days")) ? asked.get("days") : USUAL;
      this.project = asked.get("project") || "";
      S.segmented(S.byId("fleet-days"), (value) => this.choose({ days: value }))(this.days, true);
      this.projects = S.h("select", {
        id: "fleet-projects",
        class: "choice-list",
        "aria-label": "Project",
        on: { change: () => this.choose({ project: this.projects.value }) },
      });
      S.fill(
        S.byId("fleet-project"),
        S.h("label", { class: "tool-label", for: "fleet-projects" }, "Project"),
        this.projects,
      );
      document.title = "Fleet · Stabilityboard";
      this.live = new S.Live(
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
        const [data, gpus] = await Promise.all([S.api.interruptions(String(query)), S.api.gpus()]);
        if (this.gone || asked !== this.asked) return;
        this.data = data;
        this.gpus = gpus ? (Array.isArray(gpus.gpus) ? gpus.gpus : []) : [];
        this.trouble = null;
        this.draw();
      } catch (error) {
        if (this.gone || asked !== this.asked) return;
        this.trouble = S.errorText(error);
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
        await S.api.setCategory(one.run_id, one.incident_id || one.id, category || null);
        S.toast(category ? "Kept, with your name." : "What was seen counts again.", "good", 3);
      } catch (error) {
        S.toast(S.errorText(error), "warning");
      }
      if (!this.gone) this.fetch();
    }

    now() {
      return this.live.now();
    }

    onTick() {
      if (this.gone || document.hidden || !this.root.isConnected || S.pressed()) return;
      S.drawPill(this.live, this.state, null, null, false);
      S.drawBanner(this.live, this.trouble);
      if (this.stale) this.draw();
    }

    draw() {
      const { data } = this;
      this.stale = S.pressed();
      if (this.stale || this.gone || !data || !this.root.isConnected) return;
      const names = [...new Set([...S.texts(data.projects), this.project].filter(Boolean))].sort();
      S.keyed(this.projects, [names, this.project], () => [
        S.h("option", { value: "" }, "all"),
        names.map((name) => S.h("option", { value: name, selected: name === this.project }, name)),
      ]);
      S.show(S.byId("fleet-project"), names.length > 0);
      S.drawFleet(this);
    }

    close() {
      this.gone = true;
      clearInterval(this.tick);
      clearTimeout(this.again);
      clearTimeout(this.soon);
      this.live.close();
    }
  }

  S.FleetPage = FleetPage;
})();
