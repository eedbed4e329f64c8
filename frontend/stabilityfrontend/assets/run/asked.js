// What an address asks of a run's page beside how its charts look: `do=rollback`, `undo` or `changes` opens what is meant,
// once; `node=` marks a node's ranks. Nothing is ordered by an address: the dialogs ask.

import { remember } from "../core/controls.js";
import { byId, toast } from "../core/dom.js";
import { statusFacts } from "../core/kinds.js";

/** The ranks of a node stay in sight so long after they were first drawn, milliseconds, unless somebody does one of these. */
const FOLLOWED_MS = 10_000;
const ACTS = ["wheel", "touchmove", "pointerdown", "keydown"];

export class Asked {
  /** `page` as in run_page.js. */
  constructor(page) {
    this.page = page;
    this.read();
  }

  read() {
    const query = new URLSearchParams(location.search);
    this.what = query.get("do");
    this.node = query.get("node") || "";
    this.unseen = this.node !== "";
    this.since = /** @type {number | null} */ (null);
  }

  /** Everything is here: do what was asked for. */
  act() {
    const { page, what } = this;
    if (!what || !page.run) return;
    this.what = null;
    remember({ do: null }); // opened again by nobody who loads the page anew
    const over = statusFacts(page.run.status).over;
    if (what === "changes") page.about.setOpen(true);
    else if (over) toast("This run has ended: there is no job to roll back.", "warning");
    else if (what === "rollback") page.dialog.show(page.incidentMap.get(page.run.worst_incident?.incident_id) || null);
    else if (what === "undo" && typeof page.run.undo === "number") page.dialog.show(null, page.run.undo);
    else if (what === "undo")
      toast("No rollback of the last day can be undone; the lineage has older ones.", "warning");
  }

  /**
   * The ranks were drawn: go to those of the node. What loads above moves them: for some seconds they are gone to again,
   * until somebody scrolls or presses something.
   */
  showNode(rows) {
    if (!this.unseen || !rows.length) return;
    if (this.since === null) {
      this.since = performance.now();
      for (const act of ACTS) addEventListener(act, () => this.leave(), { once: true, passive: true });
    }
    if (!rows.some((row) => row.node === this.node)) {
      toast(`No rank of this run is on ${this.node} now.`, "warning");
      return this.leave();
    }
    if (performance.now() - (this.since || 0) > FOLLOWED_MS) return this.leave();
    const place = [.../** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("#ranks .rank-node"))];
    const one = /** @type {HTMLElement} */ (
      place.find((each) => each.dataset.node === this.node) || byId("ranks-panel")
    );
    const { top, bottom } = one.getBoundingClientRect();
    if (top < 0 || bottom > innerHeight) one.scrollIntoView({ block: one.dataset.node ? "center" : "start" });
    return undefined;
  }

  leave() {
    this.unseen = false;
  }
}
