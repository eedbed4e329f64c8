// What happened to machines and processes, on the x axis of the large chart: a lane of marks under it. Marks that would
// lie over each other are one, with a count; a hang is as wide as it lasted where the axis is a clock.

import { asFinite, asRecord } from "../core/as_type.js";
import { byId, h, patch, setShown } from "../core/dom.js";
import { clock, formatAge, formatCount, readable } from "../core/format.js";
import { appearanceOf, incidentKind, severityOf } from "../core/kinds.js";
import { incidentHref } from "../core/route.js";
import { clockMs } from "./ticks.js";
import { beginOf } from "./traces.js";

/** Lines of marks before those that find no place become one with their neighbour. */
const LINES = 3;
const LINE_PX = 22;
/** The same for fingers: a mark of 24 pixels (WCAG 2.2, 2.5.8). */
const TOUCHED_PX = 27;
/** Of a line that is no mark. */
const APART_PX = 3;
/** Space between two marks. */
const GAP_PX = 3;
/** Width of a letter, and of what stands around the words. */
const [LETTER_PX, AROUND_PX] = [6.3, 16];
/** Incidents and restarts shown, newest first. */
const MOST = 400;
/** What a mark that stands for many tells under the pointer. */
const TOLD = 8;

/** Of a fork that a new start of the job made. */
const RESTART = { sign: "↻", short: "restart" };

const kindOf = (event) => (event.kind === "restart" ? RESTART : incidentKind(event.kind));

/** What an incident is in a few letters; of a GPU what it is about, where it says so: `Xid 79`, `ECC`, `throttled`. */
function markWords(incident) {
  const { about, short } = incidentKind(incident.kind);
  if (about !== "gpu") return short;
  const evidence = asRecord(incident.evidence);
  const xids = Array.isArray(evidence.xids) ? evidence.xids.filter((one) => asFinite(one) !== null) : [];
  const root = /\bXid \d+/.exec(typeof incident.title === "string" ? incident.title : "");
  if (root) return root[0]; // not the first one that came: that may be a symptom
  if (xids.length) return `Xid ${xids[0]}`;
  const what = typeof evidence.what === "string" ? evidence.what : "";
  return what === "throttle" ? "throttled" : what ? `GPU ${readable(what)}`.slice(0, 18) : short;
}

/** The events of a run: `{x, until, tone, kind, words, told, href}`; `x`: where it begins on the axis, `until`: unix seconds. */
export function events(page, axis) {
  const found = [];
  for (const incident of page.view().incidents) {
    if (!incidentKind(incident.kind).sign || found.length >= MOST) continue;
    const interruption = asRecord(asRecord(incident.evidence).interruption);
    const since = asFinite(incident.since) ?? asFinite(incident.opened);
    const open = incident.state === "open";
    const until =
      incident.kind === "hang"
        ? (asFinite(interruption.resumed) ??
          asFinite(incident.resolved) ??
          (open ? page.now() : asFinite(incident.updated)))
        : since;
    const lasted =
      incident.kind === "hang" && since !== null && until !== null && until - since >= 1 ? until - since : 0;
    found.push({
      at: since,
      until,
      x: beginOf(incident, axis, page.lastStep()),
      kind: incident.kind,
      tone: severityOf(incident),
      order: appearanceOf(incident).order,
      open,
      words: `${markWords(incident)}${lasted ? ` ${formatAge(lasted)}` : ""}`,
      told: `${incident.title || incidentKind(incident.kind).label}${since === null ? "" : ` (${clock(since)})`}`,
      href: incident.incident_id ? incidentHref(page.id, incident.incident_id) : null,
    });
  }
  for (const fork of page.forkList.slice(-MOST)) {
    if (fork.segment.cause !== "restart") continue;
    found.push({
      at: asFinite(fork.segment.created),
      until: null,
      x: axis.forkAt(fork),
      kind: "restart",
      tone: "info",
      order: Infinity,
      open: false,
      words: "restart",
      told: `${fork.label}: the job came up again at step ${formatCount(fork.step + 1)}`,
      href: null,
    });
  }
  return found;
}

/** Give each event its pixels; those outside of what is shown have none. */
function placed(list, range, width, clock) {
  const scale = width / (range[1] - range[0]);
  const px = (x) => (x - range[0]) * scale;
  const marks = [];
  for (const event of list) {
    const { x } = event;
    if (x === null || !Number.isFinite(x)) continue;
    const end = clock && event.until !== null ? clockMs(event.until) : x;
    if (end < range[0] || x > range[1]) continue;
    const [from, to] = [Math.max(0, px(x)), Math.min(width, px(Math.max(end, x)))];
    marks.push({ from, to, events: [event] });
  }
  return marks.sort((a, b) => a.from - b.from);
}

const saying = (mark) =>
  mark.events.length > 1
    ? `${mark.events.length} ×${new Set(mark.events.map((one) => one.kind)).size === 1 ? ` ${kindOf(mark.events[0]).short}` : ""}`
    : mark.events[0].words;
const widthOf = (mark) => Math.max(mark.to - mark.from, LETTER_PX * saying(mark).length + AROUND_PX + 8);

const end = (line) => line[line.length - 1].left + widthOf(line[line.length - 1]);

/** Whether the last mark of a line has come to lie over the one before it. */
function grown(line) {
  const [before, last] = line.slice(-2);
  return line.length > 1 && before.left + widthOf(before) + GAP_PX > last.left;
}

/** Put marks on lines so that none lies over another; where no line is free, two become one. */
function stacked(marks, width) {
  const lines = Array.from({ length: LINES }, () => /** @type {any[]} */ ([]));
  for (const mark of marks) {
    // A mark at the right edge grows to the left.
    mark.left = Math.max(0, Math.min(mark.from, width - widthOf(mark)));
    const free = lines.find((line) => !line.length || end(line) + GAP_PX <= mark.left);
    if (free) {
      free.push(mark);
      continue;
    }
    // The line that ends furthest to the left takes it in; what grows over its own neighbour takes that in too.
    const line = [...lines].sort((a, b) => end(a) - end(b))[0];
    for (let taken = mark; taken; taken = grown(line) ? line.pop() : null) {
      const last = line[line.length - 1];
      last.events.push(...taken.events);
      last.to = Math.max(last.to, taken.to, taken.from);
      last.left = Math.max(0, Math.min(last.from, width - widthOf(last)));
    }
  }
  return lines.filter((line) => line.length);
}

/** The layout of a lane, for tests: lines of marks with `left`, `events` and how wide they are. */
export const laneLines = (list, range, width, clock) =>
  stacked(placed(list, range, width, clock), width).map((line) =>
    line.map((mark) => ({ ...mark, width: widthOf(mark), said: saying(mark) })),
  );

export class HealthLane {
  constructor(page) {
    this.page = page;
    this.place = byId("health-lane");
    this.key = "";
  }

  /** Draw the lane for what the large chart shows: its axis, `range`, and where its plot begins and ends. */
  draw(axis, range, left, width) {
    const { page, place } = this;
    if (!place || !range || !(range[1] > range[0]) || width < 60) return;
    const lines = laneLines(events(page, axis), range, width, Boolean(axis.clock));
    setShown(place, lines.length > 0);
    const high = window.matchMedia("(pointer: coarse)").matches ? TOUCHED_PX : LINE_PX;
    const key = JSON.stringify([
      high,
      left,
      width,
      lines.map((line) =>
        line.map((mark) => [
          Math.round(mark.left),
          Math.round(mark.from),
          Math.round(mark.to),
          mark.said,
          mark.events.map((one) => [one.told, one.tone, one.open]),
        ]),
      ),
    ]);
    if (key === this.key) return;
    this.key = key;
    place.style.height = `${high * Math.max(1, lines.length) + 2 * APART_PX}px`;
    place.style.setProperty("--mark", `${high - APART_PX}px`);
    place.style.setProperty("--left", `${left}px`);
    patch(
      place,
      h("span.lane-name", "health"),
      h(
        "div.lane-plot",
        { style: { left: `${left}px`, width: `${width}px` } },
        lines.flatMap((line, row) => line.map((mark) => this.mark(mark, row * high + APART_PX))),
      ),
    );
  }

  mark(mark, top) {
    const worst = [...mark.events].sort((a, b) => a.order - b.order || (b.at || 0) - (a.at || 0))[0];
    const told = mark.events.slice(0, TOLD).map((one) => one.told);
    if (mark.events.length > TOLD) told.push(`and ${mark.events.length - TOLD} more`);
    const text = told.join("\n");
    const props = {
      class: `lane-mark ${worst.tone}${mark.events.some((one) => one.open) ? " open" : ""}`,
      title: text,
      "aria-label": `${mark.said}: ${text}`,
      data: { told: text, events: String(mark.events.length), kind: worst.kind },
      style: {
        left: `${mark.left}px`,
        top: `${top}px`,
        width: `${mark.width - 2}px`,
        "--at": `${Math.max(0, mark.from - mark.left)}px`,
      },
    };
    const inner = [h("i", kindOf(worst).sign), h("span", mark.said)];
    return worst.href ? h("a", { ...props, href: worst.href }, inner) : h("span", { ...props, tabindex: "0" }, inner);
  }
}
