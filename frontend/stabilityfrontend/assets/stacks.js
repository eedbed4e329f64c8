// Where every rank stands: its Python frames, grouped by identical stack, the odd group first. A stack is text of a stranger's
// program: it may be garbage, and it may be long.
(function () {
  "use strict";
  const S = (window.stability = window.stability || {});
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
    user: "in the job's own code",
    native: "in C code",
    idle: "idle",
    unknown: "",
  };

  /** Whether a frame is of a library and not of the job. */
  S.isLibrary = (file) => LIBRARY.test(S.str(file));

  const shortPath = (file) => {
    const parts = S.str(file).split(/[/\\]/);
    return parts.length > PATH_PARTS ? `…/${parts.slice(-PATH_PARTS).join("/")}` : S.str(file);
  };

  function frameRow(frame, innermost) {
    const library = S.isLibrary(frame.file);
    const line = S.finite(frame.line);
    return S.h(
      "li",
      { class: `frame${library ? " library" : " user"}${innermost ? " innermost" : ""}` },
      S.h("code", { class: "frame-name" }, S.str(frame.function) || "?"),
      S.h(
        "code",
        { class: "frame-file", title: S.str(frame.file) },
        `${shortPath(frame.file) || "no file"}${line === null ? "" : `:${line}`}`,
      ),
      innermost ? S.h("span", { class: "frame-here" }, "here") : null,
    );
  }

  /** Frames, innermost first. Stretches of library frames are one line that opens; the innermost frame is always shown. */
  S.frameList = function (frames) {
    const all = S.list(frames).length === 0 ? [] : frames.slice(0, FRAMES).map(S.record);
    const rows = [];
    let folded = [];
    const fold = () => {
      if (folded.length === 1) rows.push(frameRow(folded[0], false));
      else if (folded.length)
        rows.push(
          S.h(
            "li",
            { class: "frame-fold" },
            S.h(
              "details",
              {},
              S.h(
                "summary",
                {},
                `${folded.length} frames of libraries`,
                S.h(
                  "span",
                  { class: "sub" },
                  ` ${S.str(folded[0].function)} … ${S.str(folded[folded.length - 1].function)}`,
                ),
              ),
              S.h(
                "ol",
                { class: "frames" },
                folded.map((frame) => frameRow(frame, false)),
              ),
            ),
          ),
        );
      folded = [];
    };
    all.forEach((frame, index) => {
      if (index > 0 && S.isLibrary(frame.file)) folded.push(frame);
      else {
        fold();
        rows.push(frameRow(frame, index === 0));
      }
    });
    fold();
    const more = (Array.isArray(frames) ? frames.length : 0) - all.length;
    if (more > 0) rows.push(S.h("li", { class: "frame sub" }, `and ${S.count(more)} frames more, in the whole text`));
    return rows.length ? S.h("ol", { class: "frames" }, rows) : null;
  };

  /** Who stands where, in one line: `rank 5 · gpu-03 · in data`, `7 ranks wait in all_reduce #1841`. */
  S.groupTitle = function (group) {
    const ranks = S.ranksOf(group.ranks);
    const nodes = S.texts(group.nodes);
    const where = WHERES[group.where] === undefined ? "" : WHERES[group.where];
    const what = S.str(group.what);
    const place = what
      ? `${group.where === "collective" ? (ranks.length === 1 ? "waits in " : "wait in ") : "in "}${what}`
      : where;
    if (ranks.length === 1)
      return [`rank ${ranks[0]}`, nodes.length ? nodes[0] : "", place].filter(Boolean).join(" · ");
    return `${S.count(ranks.length)} ranks${place ? ` ${what && group.where === "collective" ? place : `stand ${place}`}` : ""}`;
  };

  function plain(group) {
    const text = S.whole(group.text);
    if (text) return text;
    return (Array.isArray(group.frames) ? group.frames : [])
      .map(S.record)
      .map((frame) => `  File "${S.str(frame.file)}", line ${S.str(frame.line)} in ${S.str(frame.function)}`)
      .join("\n");
  }

  function groupCard(group, index, opened) {
    const ranks = S.ranksOf(group.ranks);
    const nodes = S.texts(group.nodes);
    const text = plain(group);
    const body = S.h("div", { class: "group-body" });
    const copy = S.h(
      "button",
      {
        type: "button",
        class: "button quiet",
        on: {
          click: async () =>
            S.toast(
              (await S.copy(`${S.groupTitle(group)}\n${text}`))
                ? "The stack is copied."
                : "The browser lets nobody copy here; open the whole text and select it.",
              "info",
              3,
            ),
        },
      },
      "Copy",
    );
    const pre = S.h("pre", {
      class: "stack-text",
      tabindex: "0",
      hidden: true,
      "aria-label": "Whole text of the stack",
    });
    const unfold = ({ currentTarget: button }) => {
      const place = button.closest(".group-body").querySelector(".stack-text");
      const shown = place.hidden;
      // Up to 60,000 characters: put there when somebody asks, as text.
      S.text(place, shown ? text : "");
      place.hidden = !shown;
      button.setAttribute("aria-expanded", String(shown));
    };
    const whole = S.h(
      "button",
      { type: "button", class: "button quiet", "aria-expanded": "false", on: { click: unfold } },
      "Whole text",
    );
    const lines = text ? text.split("\n").length : 0;
    S.fill(
      body,
      S.frameList(group.frames) ||
        S.h(
          "div",
          { class: "nothing" },
          text ? "No frame of this text could be told apart; the whole text is below." : "No Python frame was seen.",
        ),
      S.h(
        "div",
        { class: "group-foot" },
        text ? copy : null,
        text ? whole : null,
        S.h("span", { class: "grow" }),
        lines ? S.h("span", { class: "sub" }, S.plural(lines, "line")) : null,
      ),
      pre,
    );
    return S.h(
      "details",
      { class: `stack-group${group.odd ? " odd" : ""}`, open: opened, data: { group: String(index) } },
      S.h(
        "summary",
        {},
        S.h("span", { class: "icon icon-fold" }),
        group.odd ? S.h("span", { class: "chip critical" }, "odd one out") : null,
        S.h("b", {}, S.groupTitle(group)),
        ranks.length > 1
          ? S.h(
              "span",
              { class: "sub group-ranks" },
              `${S.rankWords(ranks)}${nodes.length ? ` on ${nodes.length > 3 ? S.plural(nodes.length, "node") : nodes.join(", ")}` : ""}`,
            )
          : null,
      ),
      body,
    );
  }

  /** Ranks of which there is no stack, by reason. */
  function missingRows(dump) {
    const reasons = new Map();
    for (const [rank, facts] of Object.entries(S.record(dump.ranks))) {
      const why = S.str(S.record(facts).missing);
      if (!why) continue;
      if (!reasons.has(why)) reasons.set(why, { ranks: [], nodes: new Set() });
      reasons.get(why).ranks.push(rank);
      if (S.str(facts.node)) reasons.get(why).nodes.add(S.str(facts.node));
    }
    return [...reasons].slice(0, GROUPS).map(([why, { ranks, nodes }]) => {
      const words = S.rankWords(ranks);
      return S.h(
        "li",
        {},
        S.h("b", {}, words.charAt(0).toUpperCase() + words.slice(1)),
        nodes.size ? ` on ${[...nodes].slice(0, 4).join(", ")}` : "",
        `: no stack, because ${why}`,
      );
    });
  }

  /** Groups in the order in which they are read: the odd ones, then the smallest. */
  S.stackGroups = (dump) =>
    (Array.isArray(dump.groups) ? dump.groups : [])
      .filter((group) => group && typeof group === "object")
      .sort((a, b) => Boolean(b.odd) - Boolean(a.odd) || S.ranksOf(a.ranks).length - S.ranksOf(b.ranks).length);

  /** How many ranks of a dump have a stack. */
  S.stackedRanks = (dump) => S.stackGroups(dump).reduce((count, group) => count + S.ranksOf(group.ranks).length, 0);

  /** Everything about one dump, for `place`. */
  S.stackParts = function (dump) {
    const groups = S.stackGroups(dump);
    const missing = missingRows(dump);
    return [
      groups.slice(0, GROUPS).map((group, index) => groupCard(group, index, index < OPEN_GROUPS)),
      groups.length > GROUPS
        ? S.h(
            "div",
            { class: "nothing" },
            `and ${S.count(groups.length - GROUPS)} groups more, each with another stack`,
          )
        : null,
      missing.length ? S.h("ul", { class: "missing-stacks" }, missing) : null,
      groups.length || missing.length ? null : S.h("div", { class: "nothing" }, "No rank has answered."),
    ];
  };

  /** The name of the group that every rank is a member of. */
  const EVERYBODY = "default_pg";

  /** Members of which nobody knows whether they came. An older server does not name them: then they are known of the group of all only. */
  function unknownOf(one, missing, joined, worldSize) {
    if (Array.isArray(one.unknown)) return S.ranksOf(one.unknown);
    if (one.pg !== EVERYBODY) return [];
    const told = new Set([...missing, ...joined]);
    return Array.from({ length: worldSize || 0 }, (_, rank) => rank).filter((rank) => !told.has(rank));
  }

  /** Who is missing of a collective, and of whom it is not known. */
  function missingWords(missing, unknown) {
    const known = missing.length
      ? S.h("b", { class: "bad" }, S.rankWords(missing, 6))
      : unknown.length
        ? null
        : S.h("span", { class: "sub" }, "none");
    return [
      known,
      unknown.length
        ? S.h("span", { class: "sub" }, `${known ? "; " : ""}not known: ${S.rankWords(unknown, 6)}`)
        : null,
    ];
  }

  /** The collectives of a dump as a table: who is in, who is missing. */
  S.collectivesTable = function (dump, worldSize) {
    const rows = (Array.isArray(dump.collectives) ? dump.collectives : []).slice(0, GROUPS).map(S.record);
    if (!rows.length) return null;
    return S.h(
      "table",
      { class: "table dense collectives" },
      S.h(
        "thead",
        {},
        S.h(
          "tr",
          {},
          ["Collective", "Group", "Joined", "Missing"].map((word) => S.h("th", { scope: "col" }, word)),
        ),
      ),
      S.h(
        "tbody",
        {},
        rows.map((one) => {
          const missing = S.ranksOf(one.missing);
          const joined = S.ranksOf(one.joined);
          return S.h(
            "tr",
            { class: missing.length ? "lacking" : "" },
            S.h("td", { class: "strong" }, `${S.str(one.op) || "?"}${S.str(one.seq) ? ` #${S.str(one.seq)}` : ""}`),
            S.h("td", { class: "words" }, S.str(one.pg) || "–"),
            S.h(
              "td",
              {},
              joined.length > 1
                ? [
                    S.h("b", {}, S.plural(joined.length, "rank")),
                    S.h("span", { class: "sub" }, ` ${S.rankRanges(joined, 4)}`),
                  ]
                : joined.length
                  ? `rank ${joined[0]}`
                  : "none",
            ),
            S.h("td", {}, missingWords(missing, unknownOf(one, missing, joined, worldSize))),
          );
        }),
      ),
    );
  };
})();
