// The page of one incident. It is opened from a message on a phone at night: what, who, since when, how sure, what is not
// visible, what to do; below it what that rests on. It follows the live feed of its run and asks again where something is awaited.

import { api } from "../core/api.js";
import { asFinite, asList, asRecord, asText } from "../core/as_type.js";
import { grow, panelHead, toolPlace } from "../core/controls.js";
import { byId, fill, h, pressed, setHref, setShown, setText } from "../core/dom.js";
import { toNumber } from "../core/format.js";
import { incidentKind } from "../core/kinds.js";
import { Live } from "../core/live.js";
import { colorTheme } from "../core/theme.js";
import { RestartDialog } from "../dialogs/restart_dialog.js";
import { RollbackDialog } from "../dialogs/rollback_dialog.js";
import { drawAttention } from "../navigation/attention.js";
import { crumbRuns, frame, livePill, morePanels } from "../navigation/rail.js";
import { drawBanner, drawPill } from "../run/header.js";
import { IncidentActions } from "./actions.js";
import { KeptBatches } from "./batches.js";
import { drawIncidentParts, gpusOf } from "./panels.js";
import { drawIncidentTop } from "./parts.js";
import { sinceOf, verdictOf } from "./verdict.js";

/** Ages and regions are brought up to date this often. */
const TICK_MS = 500;
/** Between two looks for a dump that is still being collected, and for how long after its order. */
const DUMP_AGAIN_MS = 1000;
const DUMP_WAIT_S = 25;
/** Between two tries for what is not there (yet). */
const AGAIN_MS = 3000;
/** Dumps offered in the list. */
const DUMPS = 8;

/** Whether an error is an answer, and not the want of one. */
const refused = (error) => error.status >= 400 && error.status < 500;

/** A panel that is shown as soon as there is something in it. */
const place = (id, title, ...parts) =>
  h("section.panel", { id: `${id}-panel`, hidden: true }, panelHead(title, parts), h("div.panel-body", { id }));

/** The page, in the order in which a phone shows it. */
function skeleton() {
  const note = (id) => h("span.sub", { id });
  return frame(
    [
      crumbRuns(),
      h("a.crumb-here.crumb-link", { id: "incident-run", href: "/" }),
      h("span.crumb-sep", "/"),
      h("span.crumb", "Incident"),
      livePill(),
    ],
    h(
      "main.incident-page",
      { id: "incident-main" },
      h("header.incident-top", { id: "incident-head" }),
      h("section.verdict.panel", { id: "incident-verdict", "aria-label": "Verdict", "aria-live": "polite" }),
      h("section.incident-actions", { id: "incident-actions", "aria-label": "What you can do" }),
      h(
        "div.incident-columns",
        h(
          "div.column",
          place("incident-death", "How it ended", note("death-note")),
          place("incident-gpu", "The GPU", note("gpu-note")),
          place("incident-stacks", "Stacks", note("stacks-note"), grow(), toolPlace("stacks-choose")),
          place("incident-collectives", "Collectives"),
          place("incident-ranks", "Ranks", note("incident-ranks-note")),
          place("incident-batches", "Batches", note("batches-note"), grow(), toolPlace("batches-choose")),
          place("incident-evidence", "Evidence"),
          morePanels(),
        ),
        h("aside.rail", place("incident-advice", "What to do"), place("incident-timeline", "Timeline")),
      ),
    ),
    h("main", { id: "incident-empty", hidden: true }),
  );
}

export class IncidentPage {
  static skeleton = skeleton;

  constructor(root, config) {
    this.root = root;
    this.config = config;
    this.id = root.dataset.run;
    this.incidentId = root.dataset.incident;
    this.run = null;
    this.incident = null;
    /** The run's incidents, of which some may be in its train. @type {import("../../../types/api").ShownIncident[]} */
    this.alike = [];
    this.incidentMap = new Map();
    this.commands = new Map();
    this.checkpoints = [];
    this.agents = [];
    this.dumps = new Map();
    this.chosen = null;
    this.gpu = undefined;
    this.evidenceFolds = new Map();
    this.ticked = new Set();
    this.state = "connecting";
    this.dialog = new RollbackDialog(this);
    this.restart = new RestartDialog(this);
    this.kept = new KeptBatches(this);
    this.actions = new IncidentActions(this);
    this.unwatch = colorTheme.watch(() => this.draw());
    this.live = new Live(
      this.id,
      (message) => this.onMessage(message),
      (state) => {
        this.state = state;
        // No feed: ask over HTTP, which also says why.
        if (state === "away" && !this.incident) this.fetch();
      },
    );
    this.fetch();
    this.tick = setInterval(() => this.onTick(), TICK_MS);
  }

  // -- what the dialogs ask for -----------------------------------------------------------------------------------

  now() {
    return this.live.now();
  }
  name() {
    return (this.run && (this.run.name || this.run.run_id)) || this.id;
  }
  lastStep() {
    return this.run ? this.run.last_step : null;
  }
  worldSize() {
    return (this.run && this.run.world_size) || 1;
  }
  stepSeconds() {
    return toNumber(asRecord(this.run && this.run.latest).step_time_s) || null;
  }
  checkpointList() {
    return this.checkpoints;
  }
  dirty() {
    this.stale = true;
  }

  // -- fetching -----------------------------------------------------------------------------------------------------

  async fetch() {
    if (this.fetching) {
      this.unfetched = true;
      return;
    }
    this.fetching = true;
    this.unfetched = false;
    clearTimeout(this.again);
    const asked = api.run(this.id);
    try {
      const [incident, run, commands, checkpoints, health] = await Promise.all([
        api.incident(this.id, this.incidentId),
        asked,
        api.commands(this.id),
        api.checkpoints(this.id),
        api.health(this.id),
      ]);
      if (this.gone) return;
      this.trouble = null;
      this.run = run;
      this.commands = new Map(asList(commands.commands).map((one) => [one.command_id, one]));
      this.checkpoints = checkpoints.checkpoints;
      this.agents = asList(health.agents).filter((agent) => !asRecord(agent.agent_state).log);
      this.setLost(null);
      this.setIncident(incident);
      this.kept.refresh();
      this.actions.quieter.fetch();
      this.actions.rating.fetch();
      if (incident.train || incident.caused_by) {
        const { incidents } = await api.incidents(this.id);
        if (this.gone) return;
        this.alike = incidents;
      }
    } catch (error) {
      if (this.gone) return;
      if (refused(error)) {
        const known = await asked.then(
          () => true,
          (failure) => !refused(failure),
        );
        if (this.gone) return;
        this.setLost(error, known);
      } else this.trouble = error.message;
      this.unfetched = true;
    } finally {
      this.fetching = false;
      if (this.unfetched && !this.gone) this.again = setTimeout(() => this.fetch(), AGAIN_MS * (1 + Math.random()));
      this.draw();
    }
  }

  /** Whether this GPU did so before, in this run or another. */
  async fetchGpu() {
    const gpus = gpusOf(this.incident);
    const uuid = gpus.length === 1 ? asText(gpus[0].uuid) : "";
    if (!uuid || this.askedGpu === uuid) return;
    this.askedGpu = uuid;
    try {
      const answer = await api.gpus();
      this.gpu = answer
        ? (Array.isArray(answer.gpus) ? answer.gpus : []).find((gpu) => asRecord(gpu).uuid === uuid) || null
        : undefined;
    } catch {
      this.askedGpu = null;
    }
    if (!this.gone) this.draw();
  }

  /** The dumps that this page may show, the newest order first: `[{request, issued, words}]`. */
  requests() {
    const verdict = verdictOf(this.incident);
    const since = (sinceOf(this.incident) || 0) - 60;
    const until = this.incident.resolved ? this.incident.resolved + 60 : Infinity;
    const ordered = [...this.commands.values()]
      .filter((command) => command.kind === "dump_stacks" && command.issued >= since && command.issued <= until)
      .sort((a, b) => b.issued - a.issued)
      .map((command) => ({ request: command.command_id, issued: command.issued }));
    const own = verdict && verdict.dump;
    if (own && !ordered.some((one) => one.request === own))
      ordered.push({ request: own, issued: asFinite(this.incident.updated) || 0 });
    // Stacks say something about processes; those taken near a spike are beside the point.
    return own || this.ordered || incidentKind(this.incident.kind).of_machine ? ordered.slice(0, DUMPS) : [];
  }

  /** The dump that is looked at: what somebody chose, else the one that the verdict rests on, else the newest. */
  request() {
    const list = this.requests();
    const verdict = verdictOf(this.incident);
    const wanted = this.chosen || (verdict && verdict.dump);
    return list.find((one) => one.request === wanted) || list[0] || null;
  }

  dump() {
    const asked = this.request();
    return (asked && this.dumps.get(asked.request)) || null;
  }

  /** Whether answers may still come. */
  awaited(asked) {
    return Boolean(asked) && this.now() - asked.issued < DUMP_WAIT_S;
  }

  async fetchDump() {
    const asked = this.request();
    if (!asked || this.fetchingDump || this.gone) return;
    const known = this.dumps.get(asked.request);
    if (known && (known.complete !== false || (known.late && !this.awaited(asked)))) return;
    if (known === null && !this.awaited(asked)) return;
    // Before a node has looked there is nothing to ask for; its word comes by the live feed. A browser writes down every 404.
    const command = this.commands.get(asked.request);
    const looked = Boolean(command) && command.progress.acted > 0;
    if (command && !looked && !command.progress.ended) return;
    this.fetchingDump = true;
    let wait = DUMP_AGAIN_MS;
    try {
      const dump = /** @type {any} */ (await (looked ? api.stacks : api.heldStacks)(this.id, asked.request));
      if (this.gone) return;
      if (dump) dump.late = !this.awaited(asked);
      this.dumps.set(asked.request, dump);
    } catch {
      wait = AGAIN_MS;
    } finally {
      this.fetchingDump = false;
      clearTimeout(this.dumpAgain);
      if (!this.gone) this.dumpAgain = setTimeout(() => this.fetchDump(), wait);
      this.draw();
    }
  }

  // -- news ---------------------------------------------------------------------------------------------------------

  onMessage(message) {
    if (message.type === "hello") {
      if (this.incident || message.afterLoss) this.fetch();
    } else if (message.type === "reset") this.fetch();
    else if (message.type === "incident" && message.incident.incident_id === this.incidentId)
      this.setIncident(message.incident);
    else if (message.type === "incident") {
      const { incident } = message;
      this.alike = [incident, ...this.alike.filter((one) => one.incident_id !== incident.incident_id)];
      this.stale = true;
    } else if (message.type === "command") this.setCommand(message.command);
    else if (message.type === "run" && this.run) {
      this.run = { ...this.run, ...message.run };
      this.stale = true;
    } else if (message.type === "checkpoint") {
      const { checkpoint } = message;
      this.checkpoints = [
        checkpoint,
        ...this.checkpoints.filter((one) => one.step !== checkpoint.step || one.segment !== checkpoint.segment),
      ].sort((a, b) => b.step - a.step || b.time - a.time);
    }
  }

  setIncident(incident) {
    if (this.incident && this.incident.version > incident.version) return;
    this.incident = incident;
    this.incidentMap = new Map([[incident.incident_id, incident]]);
    drawAttention(this);
    this.stale = true;
    this.fetchDump();
    this.fetchGpu();
  }

  setCommand(command) {
    const known = this.commands.get(command.command_id);
    if (known && (known.history || []).length > (command.history || []).length) return;
    this.commands.set(command.command_id, command);
    this.stale = true;
    this.dialog.refresh();
    this.restart.refresh();
    if (command.kind === "dump_stacks") this.fetchDump();
    if (command.kind === "show_batches" && this.incident && command.progress.ended) this.kept.refresh();
  }

  /** Somebody ordered stacks here: show them as they come. */
  watchDump(command) {
    this.ordered = true;
    this.chosen = command.command_id;
    this.setCommand(command);
    byId("incident-stacks-panel").scrollIntoView({ block: "nearest", behavior: "smooth" });
  }

  // -- drawing ------------------------------------------------------------------------------------------------------

  onTick() {
    if (this.gone || document.hidden || !this.root.isConnected || pressed()) return;
    drawPill(this.live, this.state, null, null, false);
    drawBanner(this.live, this.incident ? null : this.trouble);
    if (this.stale) this.draw();
    else if (this.incident) drawIncidentTop(this);
    this.dialog.refresh();
  }

  draw() {
    this.stale = pressed();
    if (this.stale || this.gone || !this.root.isConnected || !this.incident || this.lost) return;
    drawIncidentTop(this);
    this.actions.draw();
    drawIncidentParts(this);
  }

  /** There is no such incident, or no such run; `error` is what the server said, null when all is there; `known`: the run is. */
  setLost(error, known) {
    this.lost = error !== null;
    setShown(byId("incident-main"), !this.lost);
    const empty = byId("incident-empty");
    setShown(empty, this.lost);
    if (!this.lost) return;
    setText(byId("incident-run"), this.name());
    setHref(byId("incident-run"), `/runs/${encodeURIComponent(this.id)}`);
    const noRun = !known;
    fill(
      empty,
      h(
        "div.empty.panel",
        h("h1", noRun ? "No run has this id" : "No incident has this id"),
        h(
          "p",
          noRun
            ? `“${this.id}” is not known to this server: it was deleted, or another server keeps it.`
            : `Run “${this.id}” has no incident “${this.incidentId}”. A run keeps its newest 2,000 incidents; older resolved ones are removed.`,
        ),
        error.status === 404 ? null : h("p.sub", error.message),
        h(
          "p",
          noRun ? null : h("a", { href: `/runs/${encodeURIComponent(this.id)}` }, "The run"),
          noRun ? null : " · ",
          h("a", { href: "/" }, "All runs"),
        ),
      ),
    );
  }

  close() {
    this.gone = true;
    clearInterval(this.tick);
    clearTimeout(this.again);
    clearTimeout(this.dumpAgain);
    this.kept.close();
    this.unwatch();
    this.live.close();
    this.dialog.destroy();
    this.restart.destroy();
  }
}
