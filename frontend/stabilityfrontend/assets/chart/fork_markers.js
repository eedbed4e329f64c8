// Flags of forks above the large chart. Where they would cover each other they are one, with a list under the pointer.

import { clock, formatCount, plural } from "../core/format.js";
import { changed, onSteps } from "./traces.js";

/** Width of a letter of a flag and of its border, pixels. */
const LETTER_PX = 6.5;
const BORDER_PX = 10;
/** Forks in the list of a flag; the lineage has them all. */
const LISTED = 12;
/** Characters of a reason in that list. */
const REASON = 60;

/** Grade of a resume -> its mark behind a flag's label, and the colour of the flag; the others have neither. */
const GRADES = { good: ["✓", "accent"], differs: ["≠", "warning"], wrong: ["!", "critical"] };
/** From the least to the worst. */
const WORSE = ["good", "differs", "wrong"];

/** The worst grade of some forks, undefined where none is known. */
const worstOf = (forks) => WORSE.findLast((grade) => forks.some((fork) => fork.resume?.grade === grade));

/** What a flag of several says: `R1–R10` where they follow each other, else how many they are. */
function groupLabel(forks) {
  if (forks.length === 1) return [forks[0].label, GRADES[worstOf(forks)]?.[0]].filter(Boolean).join(" ");
  const letter = forks[0].label.charAt(0);
  const numbers = forks.map((fork) => Number(fork.label.slice(1))).sort((a, b) => a - b);
  const row =
    forks.every((fork) => fork.label.charAt(0) === letter) &&
    numbers[numbers.length - 1] - numbers[0] === forks.length - 1;
  return row ? `${letter}${numbers[0]}–${letter}${numbers[numbers.length - 1]}` : `${forks.length} forks`;
}

/** Where a fork is on the x axis: its step, or what `at` says. */
const placeOf = (fork) => (fork.at === undefined ? fork.step : fork.at);

/** The flags that fit: `{forks, label, from, to, left, right}` in pixels from step 0, left to right, none over another. */
export function flagGroups(forks, scale) {
  const groups = [];
  const make = (members) => {
    const from = placeOf(members[0]) * scale;
    const to = placeOf(members[members.length - 1]) * scale;
    const label = groupLabel(members);
    const half = (LETTER_PX * label.length + BORDER_PX) / 2;
    return { forks: members, label, from, to, left: (from + to) / 2 - half, right: (from + to) / 2 + half };
  };
  for (const fork of [...forks].sort((a, b) => placeOf(a) - placeOf(b))) {
    let group = make([fork]);
    while (groups.length && groups[groups.length - 1].right > group.left)
      group = make([...groups.pop().forks, ...group.forks]);
    groups.push(group);
  }
  return groups;
}

const returned = (segment) => (typeof segment.returns_to === "number" ? " of the branch that it had left" : "");

/** A fork in full, as lines of bold and plain words. */
function details(fork) {
  const { segment } = fork;
  const plain = [
    fork.discarded ? `${plural(fork.discarded, "step")} discarded` : "",
    segment.reason || "",
    changed(segment),
    segment.issuer ? `by ${segment.issuer}` : segment.cause === "declared" ? "by the job itself" : "",
    segment.created ? clock(segment.created) : "",
    fork.resume?.text || "",
  ];
  const title = `${fork.label}: ${segment.cause === "restart" ? "restarted from" : "rolled back to"} step ${formatCount(fork.step)}${returned(segment)}`;
  return [[title, ""], ...plain.filter(Boolean).map((words) => ["", words])];
}

/** A fork in one line. */
function line(fork) {
  const reason = fork.segment.reason || "";
  const words = [
    `step ${formatCount(fork.step)}`,
    fork.discarded ? `−${formatCount(fork.discarded)}` : "",
    reason.length > REASON ? `${reason.slice(0, REASON - 1)}…` : reason,
  ];
  return [fork.label, words.filter(Boolean).join(" · ")];
}

/** What a flag says under the pointer. */
function tipOf(forks) {
  if (forks.length === 1) return details(forks[0]);
  const newest = [...forks].sort((a, b) => b.segment.id - a.segment.id);
  const lines = newest.slice(0, LISTED).map(line);
  if (newest.length > LISTED) lines.push(["", `and ${newest.length - LISTED} older`]);
  return lines;
}

/** Flags of forks, and bars over what each threw away, as `labels` and `spans` of a chart whose plot is `width` pixels wide. */
export function flags(forks, colors, range, width, { place, forkAt } = onSteps) {
  const labels = [];
  const spans = [];
  const scale = width / (range[1] - range[0]);
  const shown = forks
    .map((fork) => ({
      ...fork,
      at: forkAt(fork),
      // One that returns to a branch threw away what came behind the place where the two part.
      fromAt: place(fork.segment.shared_step ?? fork.step, fork.segment.parent),
      endAt: fork.deadEnd === null ? null : place(fork.deadEnd, fork.segment.parent),
    }))
    .filter((fork) => fork.at !== null && fork.at >= range[0] && fork.at <= range[1]);
  // Pixels from the left edge and not from zero: a wall clock's zero is fifty years away.
  const groups = flagGroups(
    shown.map((fork) => ({ ...fork, at: fork.at - range[0] })),
    scale,
  );
  for (const group of groups)
    labels.push({
      x: range[0] + (group.from + group.to) / 2 / scale,
      top: -13,
      words: group.label,
      color: colors["accent-ink"],
      align: "center",
      size: 10,
      fill: colors[GRADES[worstOf(group.forks)]?.[1] ?? "accent"],
      tip: tipOf(group.forks),
    });
  // The newest first: of two numbers that would stand on each other the older one is left out.
  const taken = groups.map(({ left, right }) => [left, right]);
  for (const fork of [...shown].reverse()) {
    if (
      fork.endAt === null ||
      fork.fromAt === null ||
      !fork.discarded ||
      fork.endAt < fork.fromAt ||
      fork.endAt <= range[0]
    )
      continue;
    const from = Math.max(fork.fromAt, range[0]);
    const to = Math.min(fork.endAt, range[1]);
    spans.push({ from, to, color: colors.ghost });
    const words = `−${formatCount(fork.discarded)}`;
    const right = (to - range[0]) * scale;
    const left = right - LETTER_PX * words.length - BORDER_PX;
    if (left < (from - range[0]) * scale || taken.some(([low, high]) => high > left && low < right)) continue;
    taken.push([left, right]);
    labels.push({ x: to, top: -13, words, color: colors.muted, align: "right", size: 10 });
  }
  return { labels, spans };
}
