// What people noted at steps, on a chart: a line or a band on each, a flag on the large one, the text under the pointer.

/** Annotations drawn on one chart, newest ones; the list beside the charts has them all. */
const DRAWN = 200;
/** Characters of a text under the pointer; the list has all of it. */
const LINE = 64;
const LINES = 6;
/** A letter of a flag and its border, pixels. */
const FLAG_WIDTH = 18;

/** The annotations that a chart of these metrics shows; one without a metric is on all charts. */
export const notesOn = (notes, metrics) =>
  (notes || []).filter((note) => note.metric === null || !metrics || metrics.includes(note.metric));

/** Step or steps of an annotation, in words. */
export const stepsOf = ({ first_step: first, last_step: last }) =>
  first === last
    ? `step ${first.toLocaleString("en-US")}`
    : `steps ${first.toLocaleString("en-US")}–${last.toLocaleString("en-US")}`;

/** A text as short lines; one that is cut says so. */
export function wrapped(text, width = LINE, most = LINES) {
  const lines = [];
  for (const part of text.split("\n")) {
    let line = "";
    for (const word of part.split(" ")) {
      let rest = word;
      while (rest.length > width) {
        if (line) lines.push(line);
        line = "";
        lines.push(rest.slice(0, width));
        rest = rest.slice(width);
      }
      if (line && line.length + 1 + rest.length > width) {
        lines.push(line);
        line = rest;
      } else line = line ? `${line} ${rest}` : rest;
    }
    lines.push(line);
  }
  return lines.length > most ? [...lines.slice(0, most - 1), `${lines[most - 1].slice(0, width - 1)}…`] : lines;
}

/** The annotations of a view at their places on an x axis: `{note, from, to}`; those whose place is not known are left out. */
function placed(view, place) {
  return (view.notes || []).slice(-DRAWN).flatMap((note) => {
    const from = place(note.first_step, note.segment);
    const to = note.last_step === note.first_step ? from : place(note.last_step, note.segment);
    return from === null || to === null ? [] : [{ note, from, to }];
  });
}

/** Bands and lines of annotations, as `bands` and `rules` of a chart; the rules say the text under the pointer. */
export function annotationShapes(view, colors, place) {
  const bands = [];
  const rules = [];
  for (const { note, from, to } of placed(view, place)) {
    const color = note.dead ? colors.ghost : colors.info;
    if (to > from) bands.push({ from, to, height: 1, color, opacity: note.dead ? 0.07 : 0.12 });
    rules.push({
      x: from,
      to,
      color,
      dash: [1, 3],
      opacity: note.dead ? 0.5 : 0.9,
      height: 1,
      words: `${wrapped(note.text, LINE, 2).join(" ")} (${note.author}${note.dead ? ", on a discarded branch" : ""})`,
    });
  }
  return { bands, rules };
}

/** Flags at the foot of the large chart, as `labels`; of several that would cover each other one, with all under the pointer. */
export function annotationFlags(view, colors, range, width, height, { place }) {
  const scale = width / (range[1] - range[0]);
  const groups = [];
  const shown = placed(view, place).filter(({ from, to }) => to >= range[0] && from <= range[1]);
  for (const { note, from } of shown.sort((a, b) => a.from - b.from)) {
    const x = Math.max(from, range[0]);
    const last = groups[groups.length - 1];
    if (last && (x - last.x) * scale < FLAG_WIDTH) last.notes.push(note);
    else groups.push({ x, notes: [note] });
  }
  return groups.map(({ x, notes }) => {
    const dead = notes.every((note) => note.dead);
    return {
      x,
      top: height - 11,
      words: notes.length > 1 ? `✎${notes.length}` : "✎",
      color: dead ? colors.panel : colors["accent-ink"],
      fill: dead ? colors.ghost : colors.info,
      align: "center",
      size: 12,
      tip: notes.slice(0, LINES).flatMap(tipOf),
    };
  });
}

/** What a flag says under the pointer. */
function tipOf(note) {
  const by = [note.author, note.metric, note.dead ? "on a discarded branch" : ""].filter(Boolean).join(" · ");
  return [[stepsOf(note), by], ...wrapped(note.text).map((line) => ["", line])];
}
