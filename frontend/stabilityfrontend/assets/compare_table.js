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
    const heads = ["Run", "Status", "Value under the pointer", "Newest", "Lowest", "Newest step", "Zero is at", "Rollbacks", ""];
    const rows = page.ids.map((id) => {
      const run = page.all.find((one) => one.run_id === id) || {};
      const shown = page.runs.find((one) => one.run_id === id);
      const drawn = (page.plot.spec ? page.plot.spec.lines : []).find((line) => line.run === id);
      const point = drawn && x !== null ? S.nearestPoint(drawn, x) : null;
      const { align } = page.settings;
      const zero = !shown ? "–" : align === "fork" ? (shown.fork_step === null || shown.fork_step === undefined ? "no fork" : `step ${S.count(shown.fork_step)}`) : align === "time" ? S.moment(shown.offset) : "step 0";
      let lowest = null;
      for (const value of drawn ? drawn.y : []) if (value !== null && (lowest === null || value < lowest)) lowest = value;
      let newest = drawn ? drawn.y.length - 1 : -1;
      while (newest >= 0 && drawn.y[newest] === null) newest -= 1;
      const num = (words, strong) => S.h("td", { class: `num${strong ? " strong" : ""}` }, words);
      return S.h(
        "tr",
        { data: { run: id } },
        S.h("td", {}, S.h("i", { class: "swatch", style: { background: page.colour(id) } }), " ", S.h("a", { class: "run-link", href: `/runs/${encodeURIComponent(id)}` }, page.nameOf(id))),
        S.h("td", {}, run.status ? S.h("span", { class: `pill ${S.tone(run.status)}` }, run.status) : ""),
        num(point ? S.value(point.value) : "–", true),
        num(newest >= 0 ? S.value(drawn.y[newest]) : "–"),
        num(lowest === null ? "–" : S.value(lowest)),
        num(S.count(run.last_step)),
        num(zero),
        num(S.count(run.rollbacks)),
        S.h("td", { class: "num" }, S.h("button", { type: "button", class: "icon-button tiny", "aria-label": `Take ${page.nameOf(id)} out`, title: "Take it out", data: { remove: id }, on: { click: () => page.remove(id) } }, "×")),
      );
    });
    S.fill(
      place,
      page.ids.length
        ? S.h("table", { class: "table dense" }, S.h("thead", {}, S.h("tr", {}, heads.map((head, index) => S.h("th", { class: index > 1 ? "num" : "" }, head)))), S.h("tbody", {}, rows))
        : S.h("div", { class: "nothing" }, "None yet."),
    );
  };
})();
