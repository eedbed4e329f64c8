// What an address asks of a run's page beside how its charts look: `do=rollback`, `undo` or `changes` opens what is meant,
// once; `node=` marks a node's ranks. Nothing is ordered by an address: the dialogs ask.

import { remember } from "../core/controls.js";
import { byId, toast } from "../core/dom.js";
import { statusFacts } from "../core/kinds.js";

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

  /** The ranks were drawn: go to those of the node, once. */
  showNode(rows) {
    if (!this.unseen || !rows.length) return;
    this.unseen = false;
    if (!rows.some((row) => row.node === this.node)) toast(`No rank of this run is on ${this.node} now.`, "warning");
    else {
      const place = [.../** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("#ranks .rank-node"))];
      const one = place.find((each) => each.dataset.node === this.node);
      (one || byId("ranks-panel")).scrollIntoView({ block: one ? "center" : "start" });
    }
  }
}
