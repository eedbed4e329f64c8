// What people do on a run's page beside looking: roll back, acknowledge, take a restart back, go to an incident.

import { bandEnd } from "../chart/traces.js";
import { saveCsv } from "../chart_files/files.js";
import { api } from "../core/api.js";
import { byId, toast } from "../core/dom.js";
import { errorText, formatCount, plural } from "../core/format.js";
import { confirm } from "../dialogs/confirm.js";
import { fullScreen } from "../metrics/metric_tile.js";

/** Methods of the run's page (run_page.js). */
export const actions = {
  openRollback(incident) {
    this.dialog.show(incident);
  },

  async acknowledge(incident) {
    try {
      this.setIncident(await api.acknowledge(this.id, incident.incident_id));
    } catch (error) {
      toast(errorText(error), "warning");
    }
  },

  /** Take back a segment that was only inferred, and all like it: the server says `reset`, and all is fetched anew. */
  async undo(segment, label) {
    const inferred = [...this.store.segments.values()].filter((one) => one.inferred === "steps" && !one.undone);
    const count = inferred.length > 1 ? ` (${plural(inferred.length - 1, "other")})` : "";
    const others = ` All like it in this run${count} are taken back with it, later ones too.`;
    const sure = await confirm({
      title: `${label ? `${label} was` : "This was"} not a rollback`,
      text: `Nobody declared it: the steps went back to ${formatCount(segment.fork_step + 1)} and went on, so a restart was assumed. Taken back, the line goes on as it was before, and what came twice is left out of it.${segment.inferred === "steps" ? others : ""} It can't be put back.`,
      action: "Take it back",
    });
    if (!sure || this.gone) return;
    try {
      await api.undo(this.id, segment.id);
      toast(`${label || "The restart"} is taken back.`, "good");
      if (this.state !== "live") this.feed.sync();
    } catch (error) {
      toast(errorText(error), "warning");
    }
  },

  /** Show the chart of a metric over the whole window, with these options; `csv`: its rows are saved too. */
  showMetric(name, options = {}, csv = false) {
    const chart = fullScreen(this.metrics, name, options);
    if (csv) saveCsv(chart, this);
  },

  /** A link in a panel names other steps, or the search a node of this run. */
  addressChanged() {
    this.asked.read();
    if (this.asked.unseen) this.feed.fetchHealth();
    this.asked.act();
    const query = new URLSearchParams(location.search);
    const [from, to] = ["from", "to"].map((key) => (query.has(key) ? Number(query.get(key)) : NaN));
    if (!(to > from)) return;
    this.zoom.set([from, to]);
    byId("focus-panel").scrollIntoView({ block: "nearest", behavior: "smooth" });
  },

  zoomTo(incident) {
    if (incident.onset_step === null || incident.onset_step === undefined) return;
    const end = bandEnd(incident, this.store.segments, this.lastStep());
    const air = Math.max(20, 0.6 * (end - incident.onset_step));
    this.zoom.set([Math.max(0, incident.onset_step - air), end + air]);
    byId("focus-panel").scrollIntoView({ block: "nearest", behavior: "smooth" });
  },
};
