// The runs of a comparison as rows: what each says under the pointer, and now.
(function () {
  "use strict";
  const S = (window.stability = window.stability || {});

  /** The runs as rows: what each says under the pointer, and now. */
  S.drawCompared = function (page) {
    const place = S.byId("compare-table");
    if (!place) return;
    const x = page.plot.cursor === undefined ? null : page.plot.cursor;
    S.text(S.byId("compare-cursor"), x === null ? "" : `at ${page.plot.words(x)}`);
    const heads = [
      "Run",
      "Status",
      "Value under the pointer",
      "Newest",
      "Lowest",
      "Newest step",
      "Zero is at",
      "Rollbacks",
      "",
    ];
    const facts = page.ids.map((id) => {
      const run = page.all.find((one) => one.run_id === id) || {};
      const shown = page.runs.find((one) => one.run_id === id);
      const drawn = (page.plot.spec ? page.plot.spec.lines : []).find((line) => line.run === id);
      const point = drawn && x !== null ? S.nearestPoint(drawn, x) : null;
      const { align } = page.settings;
      const zero = !shown
        ? "–"
        : align === "fork"
          ? shown.fork_step === null || shown.fork_step === undefined
            ? "no fork"
            : `step ${S.count(shown.fork_step)}`
          : align === "time"
            ? S.moment(shown.offset)
            : "step 0";
      let lowest = null;
      for (const value of drawn ? drawn.y : [])
        if (value !== null && (lowest === null || value < lowest)) lowest = value;
      let newest = drawn ? drawn.y.length - 1 : -1;
      while (newest >= 0 && drawn.y[newest] === null) newest -= 1;
      return {
        fixed: [id, page.nameOf(id), page.colour(id), run.status || ""],
        words: [
          point ? S.value(point.value) : "–",
          newest >= 0 ? S.value(drawn.y[newest]) : "–",
          lowest === null ? "–" : S.value(lowest),
          S.count(run.last_step),
          zero,
          S.count(run.rollbacks),
        ],
      };
    });
    // Rows stay while only their numbers change: a button that is replaced under the pointer loses the click.
    const key = JSON.stringify(facts.map((one) => one.fixed));
    if (place.dataset.rows !== key) {
      place.dataset.rows = key;
      const rows = facts.map(({ fixed: [id, name, colour, status], words }) =>
        S.h(
          "tr",
          { data: { run: id } },
          S.h(
            "td",
            {},
            S.h("i", { class: "swatch", style: { background: colour } }),
            " ",
            S.h("a", { class: "run-link", href: `/runs/${encodeURIComponent(id)}` }, name),
          ),
          S.h("td", {}, status ? S.h("span", { class: `pill ${S.tone(status)}` }, status) : ""),
          words.map((_, index) => S.h("td", { class: `num${index === 0 ? " strong" : ""}` })),
          S.h(
            "td",
            { class: "num" },
            S.h(
              "button",
              {
                type: "button",
                class: "icon-button tiny",
                "aria-label": `Take ${name} out`,
                title: "Take it out",
                data: { remove: id },
                on: { click: () => page.remove(id) },
              },
              "×",
            ),
          ),
        ),
      );
      S.fill(
        place,
        rows.length
          ? S.h(
              "table",
              { class: "table dense" },
              S.h(
                "thead",
                {},
                S.h(
                  "tr",
                  {},
                  heads.map((head, index) => S.h("th", { class: index > 1 ? "num" : "" }, head)),
                ),
              ),
              S.h("tbody", {}, rows),
            )
          : S.h("div", { class: "nothing" }, "None yet."),
      );
    }
    facts.forEach(({ words }, row) => {
      const cells = place.querySelectorAll("tbody tr")[row].cells;
      words.forEach((text, index) => S.text(cells[index + 2], text));
    });
  };
})();
