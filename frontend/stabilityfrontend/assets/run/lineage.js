// The tree of segments: what each kept, what was cut off it, and why. Of many, the newest and how many there are.

import { changed } from "../chart/traces.js";
import { byId, h, patch, setShown, setText } from "../core/dom.js";
import { formatCount, plural } from "../core/format.js";
import { statusFacts } from "../core/kinds.js";
import { attemptsHref } from "../core/route.js";

/** With more segments than this, only the newest few are shown until "All" is pressed. */
const MOST_SHOWN = 8;
const SHOWN = 4;
/** And at most ever: the tree is drawn anew with every step. */
const MOST = 300;
/** Levels of indentation. */
const DEEPEST = 6;
let keyOf = new WeakMap();

/** A segment that somebody said is none: it stays in the list, since somebody may ask later. */
function takenBack(segment, level) {
  return h(
    "div.segment.lost",
    { data: { segment: segment.id }, style: { "--level": Math.min(DEEPEST, level) } },
    h("div.segment-head", h("span", "Taken back: not a rollback"), h("span.num", "")),
    h("div.sub", `steps from ${formatCount(segment.fork_step + 1)} came twice; the line goes on as it was`),
  );
}

/** What is left out above: how many segments, and what they discarded. */
function olderRow(page, older, forks) {
  const ids = new Set(older.map((one) => one.id));
  const gone = forks.filter((fork) => ids.has(fork.segment.id)).reduce((sum, fork) => sum + fork.discarded, 0);
  const open = () => {
    page.allSegments = true;
    page.dirty("lineage");
  };
  return h(
    "button.segment-more",
    { data: { more: "segments" }, onclick: open },
    `${plural(older.length, "older segment")}${gone ? ` · ${plural(gone, "step")} discarded` : ""}`,
  );
}

const CAUSES = {
  start: "Start",
  command: "Rollback",
  declared: "Rollback by the job",
  restart: "Restart",
  resume: "Started again",
};

/** The discarded segments that still have a checkpoint on disk: a rollback can be undone to there. */
const livingBranches = (page) =>
  new Set(page.checkpointList().flatMap((one) => (one.dead && one.available && !one.unfit ? [one.segment] : [])));

/** What opens the rollback's dialog for a branch that was left. */
function undoButton(page, segment, living) {
  if (!living.has(segment.id) || !page.run || statusFacts(page.run.status).over) return null;
  return h(
    "button.link",
    {
      title: "Make this branch the one that counts again, by a command to the job",
      data: { return: segment.id, needs: "command" },
      onclick: () => page.dialog.show(null, segment.id),
    },
    "Undo this rollback …",
  );
}

/** The rows of a segment at a level of the tree: the steps that it retains, and those that were discarded. */
function segmentRows(page, segment, level, { list, living }) {
  const isHead = segment.id === page.store.head;
  // The news of a fork comes before its first point; from then on the points themselves say how far it is.
  const begun = isHead && page.lastStep() !== null && page.lastStep() > (segment.fork_step ?? -Infinity);
  const first = segment.first_step ?? (begun && segment.fork_step !== null ? segment.fork_step + 1 : null);
  const last =
    isHead && page.lastStep() !== null ? Math.max(page.lastStep(), segment.last_step ?? -1) : segment.last_step;
  // The head grows with every point that comes, and nothing cuts it off.
  const kept = !isHead ? segment.kept : first === null ? 0 : last - first + 1;
  const name = [segment.label, CAUSES[segment.cause] || segment.cause].filter(Boolean).join(" · ");
  const row = h(
    "div",
    {
      class: `segment${isHead ? " head" : ""}${kept ? "" : " lost"}`,
      data: { segment: segment.id },
      style: { "--level": level },
    },
    h("div.segment-head", h("b", name), h("span.num", first === null ? "–" : kept ? `+${formatCount(kept)}` : "0")),
    h(
      "div.sub",
      first === null
        ? `from step ${formatCount((segment.fork_step ?? -1) + 1)}, ${statusFacts(page.run?.status).ended ? "no point" : "no point yet"}`
        : kept
          ? `${formatCount(first)} → ${formatCount(first + kept - 1)}${isHead && page.run && page.run.status === "running" ? " live" : ""}`
          : "nothing kept",
    ),
    segment.reason || segment.issuer || Object.keys(segment.changes || {}).length
      ? h(
          "div.why",
          [segment.reason, changed(segment), segment.issuer ? `by ${segment.issuer}` : ""].filter(Boolean).join(" · "),
        )
      : null,
    segment.label || segment.cause === "restart"
      ? h(
          "div.segment-links",
          segment.label ? h("a.link", { href: attemptsHref(page.id, segment.id) }, "Compare the branches") : null,
          // Of a restart the server refuses while another segment hangs from it.
          segment.cause === "restart" &&
            (segment.inferred === "steps" || !list.some((one) => one.parent === segment.id))
            ? h(
                "button.link",
                {
                  data: { undo: segment.id },
                  onclick: () => page.undo(segment, segment.label),
                },
                "Not a rollback …",
              )
            : null,
        )
      : null,
  );
  if (!(segment.discarded > 0)) return [row];
  return [
    row,
    h(
      "div.segment.discarded",
      { style: { "--level": level } },
      h("div.segment-head", h("span", "discarded"), h("span.num", `−${formatCount(segment.discarded)}`)),
      h("div.sub", `${formatCount(first + kept)} → ${formatCount(last)}`),
      h("div.segment-links", undoButton(page, segment, living)),
    ),
  ];
}

/** Bring the tree of segments up to date: what each kept, what was cut off it, and why. */
export function drawLineage(page) {
  const place = byId("lineage");
  if (!place) return;
  const { segments, forks } = page.view();
  const list = [...segments.values()].sort((a, b) => a.id - b.id);
  const key = JSON.stringify([
    page.ready,
    page.allSegments,
    list.map((one) => [one, page.lastStep() && one.id === page.store.head ? page.lastStep() : 0]),
    forks.map((fork) => fork.discarded),
    [...livingBranches(page)],
    page.run?.status,
  ]);
  if (keyOf.get(place) === key) return;
  keyOf.set(place, key);
  const few = list.length > MOST_SHOWN && !page.allSegments;
  const older = list.slice(0, Math.max(0, list.length - (few ? SHOWN : MOST)));
  const toggle = byId("lineage-all");
  setShown(toggle, list.length > MOST_SHOWN);
  setText(toggle, page.allSegments ? "Newest only" : `All ${formatCount(list.length)}`);
  setText(byId("lineage-note"), list.length ? plural(list.filter((one) => !one.undone).length, "segment") : "");
  if (!list.length) {
    patch(place, h("div.nothing", page.ready ? "The tree begins with the first point." : ""));
    return;
  }
  const living = livingBranches(page);
  const depth = new Map();
  const rows = older.length ? [olderRow(page, older, forks)] : [];
  const hidden = new Set(older.map((one) => one.id));
  for (const segment of list) {
    if (hidden.has(segment.id)) continue;
    if (segment.undone) {
      rows.push(takenBack(segment, 1 + (depth.get(segment.parent) || 0)));
      continue;
    }
    // Levels count from what is shown; deeper levels are not moved further to the right.
    const level = depth.has(segment.parent) ? Math.min(DEEPEST, depth.get(segment.parent) + 1) : 0;
    depth.set(segment.id, level);
    rows.push(...segmentRows(page, segment, level, { list, living }));
  }
  if (forks.length) rows.push(h("a.segment-more", { href: attemptsHref(page.id) }, "All attempts over each other"));
  const [tall, seen, many] = [place.scrollHeight, place.clientHeight, place.children.length];
  const below = tall - place.scrollTop - seen;
  patch(place, rows);
  // The newest is at the foot; whoever reads there stays there. Where all is seen and no row came nothing scrolls, and
  // the page need not be laid out to find that out.
  if (below < 40 && (tall > seen || rows.length !== many)) place.scrollTop = place.scrollHeight;
}

export const forgetLineage = () => {
  keyOf = new WeakMap();
};
