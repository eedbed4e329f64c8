// A run's page before its job has said a word: what it waits for, and for how long. It turns into the run by itself.
(function () {
  "use strict";
  const S = (window.stability = window.stability || {});
  /** Longer than imports, a model's loading and a launcher take together: then something may be wrong. */
  const LONG_S = 120;
  /** Between two looks at first, and after that time. */
  const [SOON_MS, LATER_MS] = [700, 4000];

  const began = new WeakMap();
  const waited = (page) => (Date.now() - began.get(page)) / 1000;

  /** How long a page that waits for its run rests before it looks again, milliseconds. */
  S.waitingMs = (page) => (began.has(page) && waited(page) > LONG_S ? LATER_MS : SOON_MS);

  /** Say what the page waits for, or why the run can't be shown; `error` is what the server said. */
  S.drawWaiting = function (page, error) {
    if (!began.has(page)) began.set(page, Date.now());
    const place = S.byId("run-empty");
    if (error.status !== 404) {
      S.patch(
        place,
        S.h(
          "div",
          { class: "empty panel" },
          S.h("h2", {}, "This run can't be shown"),
          S.h("p", {}, S.errorText(error)),
          S.h("p", {}, S.h("a", { href: "/" }, "All runs")),
        ),
      );
      return;
    }
    document.title = `${page.id} · waiting`;
    const long = waited(page) > LONG_S;
    const key = `${error.code} ${long}`;
    if (place.dataset.key !== key || !place.firstChild) S.patch(place, panel(page, error.code === "not_yet", long));
    place.dataset.key = key;
    S.text(place.querySelector(".waited"), S.duration(Math.max(1, Math.round(waited(page)))).replace(".0", ""));
  };

  function panel(page, connected, long) {
    const stage = (state, ...words) => S.h("li", { class: state }, ...words);
    return S.h(
      "div",
      { class: "empty panel waiting" },
      S.h("h2", {}, "Waiting for the job"),
      S.h(
        "p",
        {},
        "Run ",
        S.h("code", {}, page.id),
        " has not begun here yet. This page turns into the run by itself.",
      ),
      S.h(
        "ol",
        { class: "waits" },
        stage("done", "The server is up"),
        stage(
          connected ? "done" : "now",
          "The job starts: imports, model, data. It calls ",
          S.h("code", {}, "stabilityclient.init()"),
          ", and its agent connects to this server",
        ),
        stage(connected ? "now" : "", "The first step arrives"),
      ),
      long
        ? S.h(
            "p",
            {},
            "That is longer than most jobs take. Is the run's id right? Does the job have ",
            S.h("code", {}, `STABILITY_URL=${location.origin}`),
            ", or another address under which its node reaches this server? On that node ",
            S.h("code", {}, "stabilityboard doctor"),
            " says what is in the way.",
          )
        : null,
      S.h("p", { class: "sub" }, "Waiting for ", S.h("span", { class: "waited" })),
      S.h("p", {}, S.h("a", { href: "/" }, "All runs")),
    );
  }
})();
