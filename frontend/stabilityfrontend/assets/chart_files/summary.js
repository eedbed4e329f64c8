// A chart in words, for those who do not see it.

import { formatValue, plural } from "../core/format.js";

/** Lines that are put into words, and notes. */
const [LINES, NOTES] = [8, 5];
/** Part of the points at each end whose means say where a line goes, and what of its height is still level. */
const [END, LEVEL] = [0.2, 0.1];

/** Where a line goes: up, down, or about level, by the means of its first and its last fifth. */
export function trend(values) {
  const known = values.filter((value) => value !== null && Number.isFinite(value));
  if (known.length < 5) return "";
  const count = Math.max(1, Math.floor(END * known.length));
  const mean = (list) => list.reduce((sum, value) => sum + value / list.length, 0);
  const by = mean(known.slice(-count)) - mean(known.slice(0, count));
  const height =
    known.reduce((most, value) => Math.max(most, value), -Infinity) -
    known.reduce((least, value) => Math.min(least, value), Infinity);
  if (!(Math.abs(by) > LEVEL * height)) return "about level";
  return by > 0 ? "rising" : "falling";
}

/** One line in words: its newest, lowest and highest point in sight, and where it goes. */
function lineWords({ name, x, y, band }, words) {
  let newest = -1;
  let [low, high] = [
    { x: 0, value: Infinity },
    { x: 0, value: -Infinity },
  ];
  const look = (at, value) => {
    if (value < low.value) low = { x: at, value };
    if (value > high.value) high = { x: at, value };
  };
  y.forEach((value, index) => {
    if (value !== null) newest = index;
    if (band && band.low[index] !== null) {
      look(band.lowX[index], band.low[index]);
      look(band.highX[index], band.high[index]);
    } else if (value !== null) look(x[index], value);
  });
  if (newest < 0) return `${name} has no number here.`;
  const goes = trend(y);
  const of = (point) => `${formatValue(point.value)} at ${words(point.x)}`;
  return `${name}: newest ${of({ value: y[newest], x: x[newest] })}, lowest ${of(low)}, highest ${of(high)}${goes ? `, ${goes}` : ""}.`;
}

/** All of a chart in words. `spec` as it was drawn, `rows` of the plot. */
export function summaryOf(spec, rows) {
  const lines = rows.flatMap((row) => row.lines).filter((line) => line.hover !== false && !line.near && line.x.length);
  const marks = rows.flatMap((row) => row.marks).length;
  const [from, to] = spec.xRange;
  const notes = (spec.notes?.() || []).filter((note) => note.to >= from && note.x <= to);
  if (!lines.length) return "No points here.";
  return [
    `From ${spec.axis.words(Math.max(0, from))} to ${spec.axis.words(to)}.`,
    ...lines.slice(0, LINES).map((line) => lineWords(line, spec.axis.words)),
    lines.length > LINES ? `And ${plural(lines.length - LINES, "more line")}.` : "",
    marks ? `${plural(marks, "value")} that ${marks === 1 ? "is" : "are"} NaN or infinite.` : "",
    ...notes.slice(0, NOTES).map((note) => `${note.words}.`),
    notes.length > NOTES ? `And ${plural(notes.length - NOTES, "more event")}.` : "",
  ]
    .filter(Boolean)
    .join(" ");
}
