// Where every rank stands: its Python frames, grouped by identical stack, the odd group first. A stack is text of a stranger's
// program: it may be garbage, and it may be long.

import { asFinite, asList, asRecord, asText, asTexts, asWholeText } from "../core/as_type.js";
import { copyText, fill, h, setText, tableHead, toast } from "../core/dom.js";
import { formatCount, plural } from "../core/format.js";
import { rankRanges, ranksOf, rankWords } from "../ranks/rank_words.js";

/** Groups and frames of each that are drawn; the rest is counted. */
const GROUPS = 64;
const FRAMES = 200;
/** Groups beyond this begin folded. */
const OPEN_GROUPS = 6;
/** Parts of a path that are shown; the whole of it is under the pointer. */
const PATH_PARTS = 3;

/** Code that nobody on call has written: Python's own, installed packages, PyTorch from source, machine-made names. */
const LIBRARY =
  /(?:^|[/\\])(?:site-packages|dist-packages)[/\\]|[/\\]lib(?:64)?[/\\]python\d|[/\\]torch[/\\](?:_|distributed|nn|autograd|utils|cuda|optim|multiprocessing)|^<(?!stdin>|string>)/i;

const WHERES = {
  data: "in data",
  collective: "in a collective",
  checkpoint: "in checkpoint",
  lock: "at a lock",
  user: "in the job's own code",
  native: "in C code",
  idle: "idle",
  unknown: "",
};

/** Whether a frame is of a library and not of the job. */
const isLibrary = (file) => LIBRARY.test(asText(file));

const shortPath = (file) => {
  const parts = asText(file).split(/[/\\]/);
  return parts.length > PATH_PARTS ? `…/${parts.slice(-PATH_PARTS).join("/")}` : asText(file);
};

function frameRow(frame, innermost) {
  const library = isLibrary(frame.file);
  const line = asFinite(frame.line);
  return h(
    "li",
    { class: `frame${library ? " library" : " user"}${innermost ? " innermost" : ""}` },
    h("code.frame-name", asText(frame.function) || "?"),
    h(
      "code.frame-file",
      { title: asText(frame.file) },
      `${shortPath(frame.file) || "no file"}${line === null ? "" : `:${line}`}`,
    ),
    innermost ? h("span.frame-here", "here") : null,
  );
}

/** Frames, innermost first. Stretches of library frames are one line that opens; the innermost frame is always shown. */
function frameList(frames) {
  const all = asList(frames).length === 0 ? [] : frames.slice(0, FRAMES).map(asRecord);
  const rows = [];
  let folded = [];
  const fold = () => {
    if (folded.length === 1) rows.push(frameRow(folded[0], false));
    else if (folded.length)
      rows.push(
        h(
          "li.frame-fold",
          h(
            "details",
            h(
              "summary",
              `${folded.length} frames of libraries`,
              h("span.sub", ` ${asText(folded[0].function)} … ${asText(folded[folded.length - 1].function)}`),
            ),
            h(
              "ol.frames",
              folded.map((frame) => frameRow(frame, false)),
            ),
          ),
        ),
      );
    folded = [];
  };
  all.forEach((frame, index) => {
    if (index > 0 && isLibrary(frame.file)) folded.push(frame);
    else {
      fold();
      rows.push(frameRow(frame, index === 0));
    }
  });
  fold();
  const more = (Array.isArray(frames) ? frames.length : 0) - all.length;
  if (more > 0) rows.push(h("li.frame.sub", `and ${formatCount(more)} frames more, in the whole text`));
  return rows.length ? h("ol.frames", rows) : null;
}

/** Who stands where, in one line: `rank 5 · gpu-03 · in data`, `7 ranks wait in all_reduce #1841`. */
function groupTitle(group) {
  const ranks = ranksOf(group.ranks);
  const nodes = asTexts(group.nodes);
  const where = WHERES[group.where] === undefined ? "" : WHERES[group.where];
  const what = asText(group.what);
  const place =
    group.where === "lock" && what
      ? `${where} (${what})`
      : what
        ? `${group.where === "collective" ? (ranks.length === 1 ? "waits in " : "wait in ") : "in "}${what}`
        : where;
  if (ranks.length === 1) return [`rank ${ranks[0]}`, nodes.length ? nodes[0] : "", place].filter(Boolean).join(" · ");
  return `${formatCount(ranks.length)} ranks${place ? ` ${what && group.where === "collective" ? place : `stand ${place}`}` : ""}`;
}

function plain(group) {
  const text = asWholeText(group.text);
  if (text) return text;
  return (Array.isArray(group.frames) ? group.frames : [])
    .map(asRecord)
    .map((frame) => `  File "${asText(frame.file)}", line ${asText(frame.line)} in ${asText(frame.function)}`)
    .join("\n");
}

function groupCard(group, index, opened) {
  const ranks = ranksOf(group.ranks);
  const nodes = asTexts(group.nodes);
  const text = plain(group);
  const body = h("div.group-body");
  const copy = h(
    "button.button.quiet",
    {
      onclick: async () =>
        toast(
          (await copyText(`${groupTitle(group)}\n${text}`))
            ? "The stack is copied."
            : "Copying is not allowed here: open the whole text and select it.",
          "info",
          3,
        ),
    },
    "Copy",
  );
  const pre = h("pre.stack-text", { tabindex: "0", hidden: true, "aria-label": "Whole text of the stack" });
  const unfold = ({ currentTarget: button }) => {
    const place = button.closest(".group-body").querySelector(".stack-text");
    const shown = place.hidden;
    // Up to 60,000 characters: put there when somebody asks, as text.
    setText(place, shown ? text : "");
    place.hidden = !shown;
    button.setAttribute("aria-expanded", String(shown));
  };
  const whole = h("button.button.quiet", { "aria-expanded": "false", onclick: unfold }, "Whole text");
  const lines = text ? text.split("\n").length : 0;
  fill(
    body,
    frameList(group.frames) ||
      h("div.nothing", text ? "This text has no readable frames; it is below in full." : "No Python frame was seen."),
    h(
      "div.group-foot",
      text ? copy : null,
      text ? whole : null,
      h("span.grow"),
      lines ? h("span.sub", plural(lines, "line")) : null,
    ),
    pre,
  );
  return h(
    "details",
    { class: `stack-group${group.odd ? " odd" : ""}`, open: opened, data: { group: String(index) } },
    h(
      "summary",
      h("span.icon.icon-fold"),
      group.odd ? h("span.chip.critical", "odd one out") : null,
      h("b", groupTitle(group)),
      ranks.length > 1
        ? h(
            "span.sub.group-ranks",
            `${rankWords(ranks)}${nodes.length ? ` on ${nodes.length > 3 ? plural(nodes.length, "node") : nodes.join(", ")}` : ""}`,
          )
        : null,
    ),
    body,
  );
}

/** Ranks of which there is no stack, by reason. */
function missingRows(dump) {
  const reasons = new Map();
  for (const [rank, facts] of Object.entries(asRecord(dump.ranks))) {
    const why = asText(asRecord(facts).missing);
    if (!why) continue;
    if (!reasons.has(why)) reasons.set(why, { ranks: [], nodes: new Set() });
    reasons.get(why).ranks.push(rank);
    if (asText(facts.node)) reasons.get(why).nodes.add(asText(facts.node));
  }
  return [...reasons].slice(0, GROUPS).map(([why, { ranks, nodes }]) => {
    const words = rankWords(ranks);
    return h(
      "li",
      h("b", words.charAt(0).toUpperCase() + words.slice(1)),
      nodes.size ? ` on ${[...nodes].slice(0, 4).join(", ")}` : "",
      `: no stack, because ${why}`,
    );
  });
}

/** Groups in the order in which they are read: the odd ones, then the smallest. */
export const stackGroups = (dump) =>
  (Array.isArray(dump.groups) ? dump.groups : [])
    .filter((group) => group && typeof group === "object")
    .sort(
      (a, b) => Number(Boolean(b.odd)) - Number(Boolean(a.odd)) || ranksOf(a.ranks).length - ranksOf(b.ranks).length,
    );

/** How many ranks of a dump have a stack. */
export const stackedRanks = (dump) =>
  stackGroups(dump).reduce((count, group) => count + ranksOf(group.ranks).length, 0);

/** Everything about one dump, for `place`. */
export function stackParts(dump) {
  const groups = stackGroups(dump);
  const missing = missingRows(dump);
  return [
    groups.slice(0, GROUPS).map((group, index) => groupCard(group, index, index < OPEN_GROUPS)),
    groups.length > GROUPS
      ? h("div.nothing", `and ${formatCount(groups.length - GROUPS)} groups more, each with another stack`)
      : null,
    missing.length ? h("ul.missing-stacks", missing) : null,
    groups.length || missing.length ? null : h("div.nothing", "No rank has answered."),
  ];
}

/** Who is missing of a collective, and of whom it is not known. */
function missingWords(missing, unknown) {
  const known = missing.length ? h("b.bad", rankWords(missing, 6)) : unknown.length ? null : h("span.sub", "none");
  return [known, unknown.length ? h("span.sub", `${known ? "; " : ""}not known: ${rankWords(unknown, 6)}`) : null];
}

/** The collectives of a dump as a table: who is in, who is missing. */
export function collectivesTable(dump) {
  const rows = (Array.isArray(dump.collectives) ? dump.collectives : []).slice(0, GROUPS).map(asRecord);
  if (!rows.length) return null;
  return h(
    "table.table.dense.collectives",
    tableHead(["Collective", "Group", "Joined", "Missing"]),
    h(
      "tbody",
      rows.map((one) => {
        const missing = ranksOf(one.missing);
        const joined = ranksOf(one.joined);
        return h(
          "tr",
          { class: missing.length ? "lacking" : "" },
          h("td.strong", `${asText(one.op) || "?"}${asText(one.seq) ? ` #${asText(one.seq)}` : ""}`),
          h("td.words", asText(one.pg) || "–"),
          h(
            "td",
            joined.length > 1
              ? [h("b", plural(joined.length, "rank")), h("span.sub", ` ${rankRanges(joined, 4)}`)]
              : joined.length
                ? `rank ${joined[0]}`
                : "none",
          ),
          h("td", missingWords(missing, ranksOf(one.unknown))),
        );
      }),
    ),
  );
}
