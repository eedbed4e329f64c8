// The run page's header: name, status in words, step, how live the picture is; and the strips and banners beneath it.

import { byId, fill, h, isUntimed, patch, setClass, setShown, setText, setTitle } from "../core/dom.js";
import { clock, duration, formatAge, formatCount, plural, sentence } from "../core/format.js";
import { drawStatePill, phaseAppearance, statusFacts } from "../core/kinds.js";
import { incidentHref } from "../core/route.js";
import { takeBack } from "../dialogs/command_dialog.js";
import { lastingWords, tickLasting } from "../incident/verdict.js";

/** A finished command stays in the strip this long. */
const STRIP_S = 20;
/** The banner waits this long: a reconnect within it is nobody's business. */
const AWAY_S = 2;

/** When a run was heard of last: of one that is over, its newest point, by the clock of its log. */
const lastWord = (run) => (statusFacts(run.status).under_way || !(run.logged > 0) ? run.updated : run.logged);

/** How long a run has been under way, seconds: from its first point, to now or to its last one; null where its log has no times. */
export function elapsed(run, now) {
  if (isUntimed(run)) return null;
  const end = statusFacts(run.status).under_way ? now : lastWord(run);
  const begin = run.began > 0 ? run.began : run.created;
  return end > begin ? end - begin : null;
}

/** The pill that says how live a page is. `live` is its socket, `state` what it said last. */
export function drawPill(live, state, latency, lastTime, running) {
  const pill = byId("live-pill");
  if (!pill) return;
  const age = lastTime === null || lastTime === undefined ? null : live.now() - lastTime;
  let words = "connecting";
  let tone = "quiet";
  if (state === "live") {
    tone = "good";
    if (age === null) words = "live";
    else if (age < 3 && latency !== null) words = `live · ${Math.max(1, Math.round(1000 * latency))} ms`;
    else words = age < 3 ? "live" : `live · last point ${formatAge(age)} ago`;
    if (!running) {
      words = age === null || age > 10 ? "connected" : words;
      if (age !== null && age > 10) tone = "quiet";
    }
  } else if (state === "away") {
    words = "reconnecting";
    tone = "critical";
  } else if (state === "paused") words = "paused";
  setText(pill, words);
  setClass(pill, `pill ${tone}`);
  // The dot beats with what is heard, at most once a second: an animation goes on when nothing comes, and takes a
  // tenth of a core where no GPU draws.
  const beat = String(Math.floor((live.heard || 0) / 1000) % 2);
  if (pill.dataset.beat !== beat) pill.dataset.beat = beat;
}

/** The banner that says that the server is away and what is seen meanwhile, or that it can store nothing. */
export function drawBanner(live, trouble) {
  const banner = byId("banner");
  if (!banner) return;
  const away = live.lost === null ? 0 : Date.now() / 1000 - live.lost;
  if (away > AWAY_S) {
    setText(
      banner,
      `No answer from the server since ${clock(live.lost)}. What you see is from then; training is not affected. Trying again by itself.`,
    );
    setShown(banner, true);
  } else if (live.storing) {
    const { problem, hint, since } = live.storing;
    setText(banner, `${problem} since ${clock(since)}. ${hint}`);
    setShown(banner, true);
  } else if (trouble) {
    setText(banner, `${trouble} Trying again by itself.`);
    setShown(banner, true);
  } else setShown(banner, false);
}

/** What stands under the header: `{words, tone, href}`; null while there is nothing that somebody has to know. */
export function noteOf(run) {
  const well = run.status === "running" || run.status === "finished";
  // A run that lacks rows must not look whole, neither now nor in a year.
  if (run.unrecorded?.text && well && run.twins !== true)
    return { words: run.status === "finished" ? run.note : run.unrecorded.text, tone: "warning", href: null };
  if (!run.note || (run.status === "running" && run.twins !== true && !run.stopped))
    return run.unwatched && run.status === "running" ? { words: run.unwatched, tone: "warning", href: null } : null;
  const doubles = run.twins === true; // two jobs share the run id: wrong however well it runs
  if (well && !doubles && !run.stopped) return null; // who stopped it, and why, is worth a line
  const { tone } = phaseAppearance(run);
  return {
    words: run.note,
    tone: doubles && tone !== "critical" ? "warning" : tone,
    href: run.note_incident ? incidentHref(run.run_id, run.note_incident) : null,
  };
}

/** Whether a metric is what an agent reads of the machine: it comes before the first step. */
const isReading = (name) => name.startsWith("gpu/") || name.startsWith("system/");

/** The note in its place. */
export function drawNote(page, run) {
  const place = byId("run-note");
  const note = noteOf(run);
  setShown(place, note !== null);
  if (!place || !note) return;
  setClass(place, `note ${note.tone}`);
  const stopper = page.incidents().find((one) => one.incident_id === run.note_incident);
  const key = `${note.href} ${stopper && stopper.version} ${note.words}`;
  if (place.dataset.key === key) {
    tickLasting(place, page.now());
    return;
  }
  const words = lastingWords(note.words, stopper, page.now());
  patch(place, note.href ? h("a", { href: note.href }, h("span", ...words), h("b", "Open the incident")) : words);
  place.dataset.key = key;
}

/** What is unusual in what the run logs: several rows a step, names without end. */
function drawLogNotes(notes) {
  const place = byId("log-notes");
  setShown(place, notes.length > 0);
  setText(place, notes.join(" "));
}

export function drawHeader(page) {
  const { run, store } = page;
  drawPill(page.live, page.state, page.latency, store.lastTime, run && run.status === "running");
  drawBanner(page.live, page.ready ? null : page.trouble);
  if (!run) {
    setText(byId("run-name"), page.id);
    for (const id of ["run-step", "run-elapsed"]) setText(byId(id), "–");
    byId("orders-open").disabled = true;
    return;
  }
  setText(byId("run-name"), page.name());
  setTitle(byId("run-name"), `${page.name()}\n${run.project ? `${run.project} / ` : ""}${run.run_id}`);
  const segments = [...store.segments.values()].filter((one) => !one.undone).map((one) => one.id);
  const world = run.world || {};
  const fewer = Number.isInteger(world.before) && world.now < world.before;
  const place = segments.length
    ? `segment ${segments.indexOf(store.head) + 1} of ${segments.length}`
    : "no segment yet";
  setText(byId("run-segment"), fewer ? `${place} · ${world.now} of ${world.before} ranks` : place);
  const since = Number.isInteger(world.since_step) ? ` since step ${formatCount(world.since_step)}` : "";
  setTitle(
    byId("run-segment"),
    fewer ? `The job runs on ${world.now} ranks${since}; before it had ${world.before}.` : "",
  );
  const status = byId("run-status");
  drawStatePill(status, run, page.live.lost !== null);
  drawNote(page, run);
  drawLogNotes(run.log_notes || []);
  setText(byId("run-step"), formatCount(page.lastStep()));
  setText(byId("run-elapsed"), duration(elapsed(run, page.now())));
  const { over, ended: left } = statusFacts(run.status);
  const back = byId("rollback-open");
  const ended = over || (left && run.agents === 0);
  const closed = !page.ready || page.lost === true || ended;
  const [orders, task] = [byId("orders-open"), byId("task-open")];
  const [save, stop] = [byId("checkpoint-open"), byId("stop-open")];
  for (const button of [orders, task, save, stop]) if (button.disabled !== closed) button.disabled = closed;
  const noRollback = run.no_rollback;
  if (back.disabled !== (closed || noRollback !== "")) back.disabled = closed || noRollback !== "";
  setTitle(orders, ended ? "This run has ended: there is no job that could obey." : "");
  setTitle(save, ended ? "This run has ended: there is nothing to save." : "All ranks save their state after one step");
  setTitle(
    stop,
    ended ? "This run has ended." : "All ranks end training after one step; shows what is lost, then asks",
  );
  setTitle(task, ended ? "This run has ended: no agent would run it." : "A function that the nodes of the job have");
  setTitle(back, noRollback ? sentence(noRollback) : "");
  const gone = page.rollbackCosts.stepsLost();
  const forks = page.forkList.length;
  setText(byId("focus-note"), gone ? `−${plural(gone, "step")}` : "");
  setTitle(
    byId("focus-note"),
    forks && gone !== null ? `${plural(gone, "step")} discarded in ${plural(forks, "fork")}` : "",
  );
  setShown(byId("focus-ghosts"), forks > 0);
  legend(page, forks);
  const empty = page.charted && page.store.extent([page.metric()]) === null && !page.lost;
  // Before the first step there is nothing to draw: what the ranks do stands first, and no empty chart.
  byId("run-main")?.classList.toggle("before-first", Boolean(empty) && page.names.every(isReading));
  const words = byId("chart-focus").dataset;
  const text = !page.charted
    ? "Fetching the run …"
    : empty
      ? statusFacts(run.status).ended
        ? run.unrecorded?.refused
          ? `The run ended without a point: ${plural(run.unrecorded.refused, "value")} that it logged could not be stored.`
          : "The run ended without a point: neither run.log(step, {“loss”: …}) nor a tracker that stabilityclient.tee reads was called."
        : (run.agents ? "The job has started; its first step is awaited. " : "No point yet. ") +
          "The chart begins with the first call of run.log(step, {“loss”: …})."
      : "";
  if (words.empty !== text) words.empty = text;
  setText(
    byId("run-foot"),
    `${run.run_id} · ${formatCount(run.effective_points)} effective and ${formatCount(run.dead_points)} discarded points kept · Stabilityboard ${page.config.version}`,
  );
}

let legendKey = "";
function legend(page, forks) {
  const incidents = page.detectors.preview() ? "would be found" : page.incidentMap.size ? "incident" : "";
  const { view, ghosts } = page.settings;
  const alone = page.look.segment() !== null;
  const discarded =
    forks === 0 || alone ? "" : view === "all" ? "discarded, each its own colour" : ghosts ? "discarded" : "";
  const key = `${discarded} ${alone} ${incidents}`;
  const place = byId("focus-legend");
  if (key === legendKey && place.children.length) return;
  legendKey = key;
  fill(
    place,
    h("span.key", h("i.line"), alone ? "this segment" : "learned"),
    discarded ? h("span.key", view === "all" ? null : h("i.ghost"), discarded) : null,
    incidents ? h("span.key", h("i.band"), incidents) : null,
  );
}

/** The strip under the header while a command is under way, and a little after it ended. */
export function drawCommandStrip(page) {
  const strip = byId("command-strip");
  if (!strip) return;
  const [command] = [...page.commands.values()].sort(
    (a, b) => Number(a.progress.ended) - Number(b.progress.ended) || b.issued - a.issued,
  );
  const entry = command && (command.history || [])[command.history.length - 1];
  const ended = command && command.progress.ended;
  const fresh = command && (!ended || (entry && page.now() - entry.time < STRIP_S));
  if (!fresh || [page.dialog, page.task, ...Object.values(page.orders)].some((one) => one.open)) {
    setShown(strip, false);
  } else {
    const back = { class: "link", onclick: () => takeBack(page, command.command_id) };
    const key = `${command.command_id} ${command.progress.line}`;
    if (strip.dataset.shown !== key)
      fill(strip, command.progress.line, command.waits && !ended ? [" ", h("button", back, "Take it back")] : null);
    strip.dataset.shown = key;
    setClass(strip, `note ${command.state === "done" ? "good" : command.progress.failed ? "critical" : "working"}`);
    setShown(strip, true);
  }
  if (fresh) page.dirty("command");
}
