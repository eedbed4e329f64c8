// News of a run as it comes: points, names, segments, incidents, commands, checkpoints. Each is written down and the
// regions that show it become dirty; nothing is drawn here.

import { forks } from "../chart/traces.js";
import { firstMetrics, firstRequests } from "../core/first_requests.js";
import { drawAttention } from "../navigation/attention.js";
import { withReadings } from "../ranks/health.js";

/** Incidents and checkpoints kept. */
const KEPT = 500;
/** Beyond so many names of metrics new ones are taken up once in NAMES_MS. */
const [MANY_NAMES, NAMES_MS] = [1000, 1000];

/** Methods of the run's page (run_page.js). */
export const news = {
  onState(state) {
    this.state = state;
    this.dirty("pill");
  },

  addPoints(message) {
    const touched = new Set();
    let step = null;
    for (const block of message.blocks) {
      if (this.health.points(block)) this.dirty("gpus");
      // Hardly any of a thousand GPUs' readings has a chart: nothing is kept of the others.
      for (const name of this.store.append(withReadings(block, (one) => this.store.follows(one)))) touched.add(name);
      step = block.steps[block.steps.length - 1];
    }
    const fresh = [...touched].filter((name) => !this.nameSet.has(name));
    if (fresh.length) this.setNames(fresh);
    // Most messages of a large job are readings of GPUs that no chart shows: nothing else is drawn for them.
    if (touched.size) {
      this.derived.onPoints();
      this.expressions.onPoints();
      this.board.markMetrics(touched, step, message.time);
      this.dirty("points");
    }
    if (!this.sawPoints) this.dirtyAll();
    this.sawPoints = true;
  },

  setNames(names) {
    const fresh = names.filter((name) => !this.nameSet.has(name));
    if (!fresh.length) return;
    for (const name of fresh) this.nameSet.add(name);
    this.freshNames.push(...fresh);
    // Of very many a second in which some come is worth one look at all, not ten.
    if (this.nameSet.size <= MANY_NAMES) this.takeNames();
    else this.namesTimer = this.namesTimer || setTimeout(() => this.takeNames(), NAMES_MS);
  },

  /** Put new names in their places. */
  takeNames() {
    this.namesTimer = null;
    if (this.gone) return;
    const fresh = this.freshNames;
    this.freshNames = [];
    this.names = [...this.nameSet].sort();
    this.watched.soon();
    this.headline.soon();
    this.namesShown(fresh);
  },

  /** Show `fresh` among the names of the run, in the panels that want them. */
  namesShown(fresh) {
    this.headline.show();
    this.metrics.list();
    if (this.charted) {
      const added = new Set(fresh);
      const pinned = [...firstRequests.fine, ...firstMetrics(this.names)].filter((name) => added.has(name));
      this.store.pin(pinned);
      this.feed.fetchWanted(pinned);
      this.board.markAll();
    }
  },

  /** What the run says of itself; what did not change since the last message may be left out of it. */
  setRun(run) {
    this.run = { ...this.run, ...run };
    if (this.lost) this.setLost(false);
    this.setNames(run.metrics || []);
    drawAttention(this);
    this.dirty("header", "kpis");
  },

  /** There is another fork, or the server has worked out what one discarded. */
  forksChanged() {
    this.forkList = forks(this.store.segments, this.rollbackCosts.rollbacks());
    this.dirty("lineage", "kpis", "header");
  },

  setSegments(head, segments) {
    this.store.setSegments(head, segments);
    const forks = this.forkList.length;
    this.forksChanged();
    if (this.ready && forks !== this.forkList.length) this.rollbackCosts.soon();
  },

  setIncident(incident) {
    if (this.incidentMap.get(incident.incident_id)?.version > incident.version) return;
    this.incidentMap.set(incident.incident_id, incident);
    if (this.incidentMap.size > KEPT)
      this.incidentMap.delete([...this.incidentMap.values()].sort((a, b) => a.opened - b.opened)[0].incident_id);
    this.board.markAll();
    this.dirty("incidents", "kpis", "ranks");
    if (incident.kind === "gpu_fault") this.gpus.soon();
  },

  setCommand(command) {
    const known = this.commands.get(command.command_id);
    if (known && (known.history || []).length > (command.history || []).length) return;
    this.commands.set(command.command_id, command);
    this.dirty("command");
    this.dialog.refresh();
    for (const dialog of [this.task, ...Object.values(this.orders)]) dialog.refresh();
  },

  setCheckpoint(checkpoint) {
    this.checkpoints = [
      checkpoint,
      ...this.checkpoints.filter(
        (one) => one.step !== checkpoint.step || one.segment !== checkpoint.segment || one.path !== checkpoint.path,
      ),
    ]
      .sort((a, b) => b.step - a.step || b.time - a.time)
      .slice(0, KEPT);
    this.dirty("checkpoints", "kpis");
  },
};
