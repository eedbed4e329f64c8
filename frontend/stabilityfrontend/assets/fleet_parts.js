// The regions of the fleet's page: headline numbers, the table in the words of Llama 3's, the list with its evidence, the GPUs.
(function () {
  "use strict";
  const S = (window.stability = window.stability || {});
  /** Interruptions drawn at once; a button brings as many more. */
  const LISTED = 60;
  const GPUS = 200;
  const NAMED = 4;

  /** GPU-hours below which nothing is said of a thousand of them. */
  const FEW_HOURS = 10;
  const VISIBLE = { direct: "directly", indirect: "indirectly", no: "not visible" };
  const WHATS = {
    death: "a process died",
    hang: "the job hung",
    stall: "it stalled and went on by itself",
    node_lost: "a node was lost",
    restart: "it was restarted",
  };
  const percent = (share) =>
    share === null || share === undefined || !Number.isFinite(share)
      ? "–"
      : `${share > 0 && share < 0.01 ? "< 1" : Math.round(100 * share)} %`;

  function headline(id, value, unit, note) {
    const cell = S.byId(`fleet-total-${id}`);
    if (!cell) return;
    S.text(cell.querySelector(".kpi-value"), value);
    S.text(cell.querySelector(".kpi-unit"), unit);
    S.text(cell.querySelector(".kpi-note"), note);
  }

  function headlines(data) {
    const lost = S.finite(data.time_lost_s);
    const running = S.finite(data.running_s);
    const rate = S.finite(data.per_1000_gpu_hours);
    headline(
      "count",
      S.count(S.finite(data.count)),
      "",
      `in ${S.plural(S.finite(data.runs) || 0, "run")}${data.not_counted ? `; ${S.count(data.not_counted)} by hand or by themselves not counted` : ""}`,
    );
    headline(
      "lost",
      lost === null ? "–" : lost ? S.duration(lost) : "0",
      "",
      lost && running ? `${percent(lost / (running + lost))} of the time` : "",
    );
    headline(
      "mtbi",
      S.finite(data.mtbi_s) === null ? "–" : S.duration(data.mtbi_s),
      "",
      running ? `${S.duration(running)} trained` : "",
    );
    const hours = S.finite(data.gpu_hours);
    const few = hours !== null && hours < FEW_HOURS;
    headline(
      "rate",
      rate === null || few ? "–" : rate >= 1000 ? S.count(rate) : S.value(rate),
      "",
      hours === null ? "" : `${S.value(hours)} GPU-hours${few ? ": too few to say" : ""}`,
    );
  }

  // -- the table ------------------------------------------------------------------------------------------------------

  function row(one, most) {
    const share = S.finite(one.share) || 0;
    const published = S.finite(one.published_share);
    const bar = (value, look) => S.h("i", { class: look, style: { width: `${most ? (100 * value) / most : 0}%` } });
    return S.h(
      "tr",
      { class: one.count ? "" : "never", data: { category: S.str(one.category) } },
      S.h("th", { scope: "row" }, S.str(one.label) || S.words(S.str(one.category))),
      S.h("td", { class: "num strong" }, S.count(S.finite(one.count))),
      S.h("td", { class: "num" }, one.count ? percent(share) : "–"),
      S.h("td", { class: "num" }, one.count ? S.duration(S.finite(one.time_lost_s)) : "–"),
      S.h("td", { class: "bars", "aria-hidden": "true" }, bar(share, "ours"), bar(published || 0, "theirs")),
      S.h(
        "td",
        {
          class: "num sub",
          title: S.finite(one.published) === null ? null : `${S.count(one.published)} of Llama 3's interruptions`,
        },
        published === null ? "not in it" : percent(published),
      ),
      S.h(
        "td",
        { class: "sees" },
        S.h("span", { class: `seen ${S.str(one.visible)}` }, VISIBLE[one.visible] || "–"),
        S.str(one.sees) ? S.h("span", { class: "sub" }, `: ${S.str(one.sees)}`) : null,
      ),
    );
  }

  function table(data) {
    const rows = S.list(data.table).map(S.record);
    const most = Math.max(0, ...rows.flatMap((one) => [S.finite(one.share) || 0, S.finite(one.published_share) || 0]));
    const published = S.record(data.published);
    return [
      S.h(
        "table",
        { class: "table dense fleet-table" },
        S.h(
          "thead",
          {},
          S.h(
            "tr",
            {},
            [
              ["Category"],
              ["Count", "num"],
              ["Share", "num"],
              ["Time lost", "num"],
              ["", "bars"],
              ["Llama 3", "num"],
              ["Visibility"],
            ].map(([word, look]) => S.h("th", { scope: "col", class: look || "" }, word)),
          ),
        ),
        S.h(
          "tbody",
          {},
          rows.map((one) => row(one, most)),
        ),
      ),
      S.h(
        "p",
        { class: "panel-note" },
        S.h("span", { class: "key" }, S.h("i", { class: "line" }), "this fleet"),
        " ",
        S.h("span", { class: "key" }, S.h("i", { class: "line quiet" }), "Llama 3"),
        ` · ${published.count ? `${S.count(published.count)} unexpected interruptions in ${S.count(published.days)} days on ${S.count(published.gpus)} GPUs` : ""}${S.str(published.source) ? ` (${S.str(published.source)})` : ""}. ${S.str(published.note)}`,
      ),
    ];
  }

  // -- the list -------------------------------------------------------------------------------------------------------

  /** The first of some names, and how many more there are. */
  function some(names, look) {
    const shown = S.texts(names).slice(0, NAMED);
    const more = (Array.isArray(names) ? names.length : 0) - shown.length;
    return shown.map(look || ((name) => name)).join(", ") + (more > 0 ? ` and ${S.count(more)} more` : "");
  }

  function whoWords(one) {
    return [S.rankWords(one.ranks, 3), some(one.nodes), some(one.gpus, S.shortUuid)].filter(Boolean);
  }

  function categories(page, one) {
    const rows = S.list(page.data.table).map(S.record);
    const labelOf = (category) =>
      S.str((rows.find((entry) => entry.category === category) || {}).label) || S.words(S.str(category));
    const set = S.record(one.set_by);
    const select = S.h(
      "select",
      {
        class: "choice-list",
        "aria-label": `Category of the interruption at ${S.moment(one.since)}`,
        disabled: Boolean(one.deleted),
        data: { focus: `category ${one.id}` },
        on: {
          change: (event) => page.setCategory(one, event.target.value === one.seen_category ? "" : event.target.value),
        },
      },
      (rows.some((entry) => entry.category === one.category)
        ? rows
        : [{ category: one.category, label: one.label }, ...rows]
      ).map((entry) =>
        S.h(
          "option",
          { value: S.str(entry.category), selected: entry.category === one.category },
          `${S.str(entry.label) || S.words(S.str(entry.category))}${entry.category === one.seen_category ? " (as seen)" : ""}`,
        ),
      ),
    );
    const by = S.str(set.who) || (typeof one.set_by === "string" ? one.set_by : "");
    return S.h(
      "div",
      { class: "category" },
      select,
      by
        ? S.h(
            "div",
            { class: "sub" },
            `set by ${by}${S.finite(set.time) === null ? "" : `, ${S.moment(set.time)}`}; seen as ${labelOf(one.seen_category).toLowerCase()}`,
          )
        : one.confidence
          ? S.h("div", { class: "sub" }, `${S.str(one.confidence)} confidence`)
          : null,
    );
  }

  function details(one) {
    const evidence = S.texts(one.evidence);
    const others = S.texts(one.incidents).filter((id) => id !== one.incident_id);
    const redone = S.finite(one.redone_steps);
    return S.h(
      "div",
      { class: "interruption-more" },
      evidence.length
        ? S.h(
            "div",
            {},
            S.h("h4", {}, "Evidence"),
            S.h(
              "ul",
              {},
              evidence.map((line) => S.h("li", {}, line)),
            ),
          )
        : null,
      S.str(one.unsure)
        ? S.h("div", {}, S.h("h4", {}, "Not sure, because"), S.h("p", {}, S.sentence(S.str(one.unsure))))
        : null,
      S.factList([
        ["What happened", WHATS[one.what] || S.words(S.str(one.what))],
        [
          "Stood",
          S.finite(one.downtime_s) === null
            ? ""
            : `${S.duration(one.downtime_s)}${one.resumed ? `, on again at ${S.moment(one.resumed)}` : ", not on again yet"}`,
        ],
        ["Trained twice", redone ? `${S.plural(redone, "step")}, ${S.duration(S.finite(one.redone_s))}` : ""],
        [
          "Step",
          S.finite(one.step) === null
            ? ""
            : `${S.count(one.step)}${S.finite(one.resumed_step) === null ? "" : `, on again from ${S.count(one.resumed_step)}`}`,
        ],
        ["GPUs", S.texts(one.gpus).map((uuid) => S.h("div", {}, S.h("code", {}, uuid)))],
        [
          "Also",
          one.deleted
            ? ""
            : others.map((id, index) =>
                S.h(
                  "span",
                  {},
                  index ? ", " : "",
                  S.h("a", { href: S.incidentHref(S.str(one.run_id), id) }, `incident ${index + 2}`),
                ),
              ),
        ],
      ]),
    );
  }

  function interruption(page, one) {
    const id = S.str(one.id) || S.str(one.incident_id);
    const open = page.opened.has(id);
    const run = S.str(one.run_name) || S.str(one.run_id);
    const who = whoWords(one);
    return S.h(
      "article",
      {
        class: `interruption${one.counted === false ? " aside" : ""}${one.open ? " open" : ""}`,
        data: { interruption: id },
      },
      S.h(
        "div",
        { class: "interruption-row" },
        S.h(
          "button",
          {
            type: "button",
            class: "fold",
            "aria-expanded": String(open),
            "aria-label": `Evidence of the interruption of ${run}, ${S.moment(one.since)}`,
            data: { focus: `fold ${id}` },
            on: { click: () => (page.opened[open ? "delete" : "add"](id), page.draw()) },
          },
          S.h("span", { class: "icon icon-fold" }),
        ),
        S.h("time", { title: S.ago(page.now() - one.since) }, S.moment(S.finite(one.since))),
        S.h(
          "div",
          { class: "interruption-run" },
          one.deleted
            ? S.h("span", {}, run)
            : S.h("a", { href: `/runs/${encodeURIComponent(S.str(one.run_id))}`, class: "run-link" }, run),
          S.h("div", { class: "sub" }, one.deleted ? "the run is deleted" : S.str(one.project) || "no project"),
        ),
        categories(page, one),
        S.h(
          "div",
          { class: "interruption-who" },
          who.length ? who.map((words) => S.h("div", {}, words)) : S.h("span", { class: "sub" }, "nobody stands out"),
        ),
        S.h(
          "div",
          { class: "num strong interruption-lost" },
          S.duration(S.finite(one.time_lost_s)),
          one.open
            ? S.h("div", { class: "chip critical" }, "not back yet")
            : one.counted === false
              ? S.h("div", { class: "sub" }, one.category === "user_stop" ? "by hand, not counted" : "not counted")
              : null,
        ),
        S.h(
          "div",
          { class: "interruption-link" },
          one.incident_id && !one.deleted
            ? S.h("a", { href: S.incidentHref(S.str(one.run_id), S.str(one.incident_id)) }, "Incident")
            : null,
        ),
      ),
      open ? details(one) : null,
    );
  }

  function list(page) {
    const all = (Array.isArray(page.data.interruptions) ? page.data.interruptions : []).map(S.record);
    const shown = all.slice(0, LISTED * page.more);
    const more = all.length - shown.length;
    return [
      shown.map((one) => interruption(page, one)),
      more > 0
        ? S.h(
            "button",
            {
              type: "button",
              class: "segment-more",
              data: { focus: "more" },
              on: { click: () => ((page.more += 1), page.draw()) },
            },
            `${S.count(more)} older ones …`,
          )
        : null,
    ];
  }

  // -- GPUs -----------------------------------------------------------------------------------------------------------

  function gpus(page) {
    const all = page.gpus
      .map(S.record)
      .sort(
        (a, b) => (b.runs || 0) - (a.runs || 0) || (b.count || 0) - (a.count || 0) || (b.last || 0) - (a.last || 0),
      );
    return [
      S.h(
        "table",
        { class: "table dense fleet-gpus" },
        S.h(
          "thead",
          {},
          S.h(
            "tr",
            {},
            [
              ["GPU"],
              ["Where"],
              ["Faults", "num"],
              ["Runs", "num"],
              ["14 days", "num"],
              ["Last"],
              ["Class"],
              ["Newest fault"],
            ].map(([word, look]) => S.h("th", { scope: "col", class: look || "" }, word)),
          ),
        ),
        S.h(
          "tbody",
          {},
          all.slice(0, GPUS).map((gpu) => {
            const newest = S.record(S.list(gpu.faults)[0]);
            const title = S.str(newest.title) || S.words(S.str(newest.what));
            return S.h(
              "tr",
              { class: gpu.runs > 1 || gpu.recent > 1 ? "repeat" : "", data: { gpu: S.str(gpu.uuid) } },
              S.h(
                "td",
                {},
                S.h("code", {}, S.str(gpu.uuid)),
                S.h(
                  "div",
                  { class: "sub" },
                  S.str(gpu.name),
                  gpu.runs > 1 ? S.h("span", { class: "chip critical repeat-chip" }, "repeats") : null,
                ),
              ),
              S.h(
                "td",
                {},
                [S.str(gpu.node), S.finite(gpu.index) === null ? "" : `GPU ${gpu.index}`].filter(Boolean).join(" · "),
              ),
              S.h("td", { class: "num strong" }, S.count(S.finite(gpu.count))),
              S.h("td", { class: "num" }, S.count(S.finite(gpu.runs))),
              S.h("td", { class: "num" }, S.count(S.finite(gpu.recent))),
              S.h(
                "td",
                { title: S.finite(gpu.last) === null ? null : S.moment(gpu.last) },
                S.finite(gpu.last) === null ? "–" : S.ago(page.now() - gpu.last),
              ),
              S.h("td", {}, S.str(newest.class) || "–"),
              S.h(
                "td",
                { class: "words" },
                S.str(newest.run_id) && S.str(newest.incident_id)
                  ? S.h("a", { href: S.incidentHref(S.str(newest.run_id), S.str(newest.incident_id)) }, title)
                  : title || "–",
              ),
            );
          }),
        ),
      ),
      all.length > GPUS ? S.h("p", { class: "panel-note" }, `and ${S.count(all.length - GPUS)} GPUs more`) : null,
    ];
  }

  // -- all of it ------------------------------------------------------------------------------------------------------

  function empty(page) {
    const { data } = page;
    const period = page.days === "all" ? "as long as this server remembers" : `in the last ${page.days} days`;
    return S.h(
      "div",
      { class: "empty panel" },
      S.h("h2", {}, data.runs ? "Nothing has interrupted training" : "No run trained"),
      S.h(
        "p",
        {},
        `${data.runs ? `${S.plural(data.runs, "run")} trained ${period}, and none of them stopped without being asked to` : `There is no run ${period}`}${page.project ? ` in project “${page.project}”` : ""}.`,
      ),
      S.h(
        "p",
        {},
        "When a job dies, hangs, or loses a node or a GPU, the stop appears here: what it was, in the words of the table that the Llama 3 report published, what speaks for that, how sure it is, and what it cost. Nothing has to be set up for it.",
      ),
    );
  }

  S.drawFleet = function (page) {
    const { data } = page;
    const none = !S.list(data.interruptions).length;
    headlines(data);
    S.show(S.byId("fleet-totals"), Boolean(data.runs) || !none);
    S.show(S.byId("fleet-empty"), none);
    S.show(S.byId("fleet-table-panel"), !none);
    S.show(S.byId("fleet-list-panel"), !none);
    S.keyed(S.byId("fleet-empty"), [none, data.runs, page.days, page.project], () => (none ? empty(page) : []));
    S.keyed(S.byId("fleet-table"), [data.table, data.published], () => table(data));
    S.keyed(S.byId("fleet-list"), [data.interruptions, [...page.opened], page.more, data.table], () => list(page));
    S.text(S.byId("fleet-list-note"), none ? "" : "newest first; correct what you know better");
    S.show(S.byId("fleet-gpus-panel"), page.gpus.length > 0);
    S.keyed(S.byId("fleet-gpus"), page.gpus, () => gpus(page));
    S.text(S.byId("fleet-gpus-note"), "over all runs and projects, those that do it again first");
  };
})();
