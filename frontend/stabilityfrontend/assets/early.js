// What a run's page asks for before anything of it is there: the same requests that it would make later, begun in the
// page's head, so that their answers wait for the scripts and not the other way round.
(function () {
  "use strict";
  const S = (window.stability = window.stability || {});
  if (S.early) return; // it stands in the page's head; a test may load it again
  const RUN = /^\/runs\/([^/]+)\/?$/;
  /** An answer that nobody took by then is old news. */
  const FRESH_MS = 15000;
  /** Metrics per request: keeps the address under what proxies let through (8 kB), at 200 characters a name. */
  const METRICS_PER_REQUEST = 24;
  /** Panels' metrics that are fetched before somebody opens them. */
  const PANEL_METRICS = 80;
  const WALL_PX = 1600;
  const answers = new Map();

  /** What the page's skeleton says: `fine` (names that the large chart may show), `patterns` of the panels' metrics, `strip`, `points`. */
  S.first = S.first || { fine: ["loss", "grad_norm"], patterns: [], strip: [], points: { fine: 2000, panel: 500 } };

  // A wall shows twice as much of a line as a desk. The large chart is SVG: 4,000 points cost it 12 ms.
  if (window.innerWidth > WALL_PX) S.first.points.fine *= 2;

  const runPath = (id) => `/runs/${encodeURIComponent(id)}`;

  /** The addresses that ask for these metrics: one for each group of names. */
  S.seriesPaths = function (id, metrics, options) {
    const paths = [];
    for (let start = 0; start < metrics.length; start += METRICS_PER_REQUEST) {
      const names = metrics.slice(start, start + METRICS_PER_REQUEST);
      const query = new URLSearchParams(names.map((metric) => ["metric", metric]));
      for (const [key, value] of Object.entries(options))
        if (value !== null && value !== undefined) query.set(key, value);
      paths.push({ names, path: `${runPath(id)}/series?${query}` });
    }
    return paths;
  };

  /** Whether a name is one of these patterns, or begins with what stands before a pattern's `*`. */
  const matches = (name, pattern) => (pattern.endsWith("*") ? name.startsWith(pattern.slice(0, -1)) : name === pattern);

  /** The names of `metrics` that a panel's patterns match. */
  S.matching = (patterns, metrics) => metrics.filter((name) => patterns.some((pattern) => matches(name, pattern)));

  /** Metrics of the panels and the strip: what is kept all the time beside the large chart's. */
  S.firstMetrics = function (names) {
    const sorted = [...names].sort();
    const named = S.matching(S.first.patterns, sorted).slice(0, PANEL_METRICS);
    return named.filter((name) => !S.first.fine.includes(name));
  };

  /** How the page's address says that a chart is to be shown: `{x, smooth}` and what else view.js reads. */
  S.viewOf = function (search) {
    const query = new URLSearchParams(search);
    const smooth = Number(query.get("smooth"));
    return { x: query.get("x") || "step", smooth: smooth > 0 && smooth < 1 ? smooth : 0 };
  };

  /** The options of a request for lines that the server makes: another x axis, smoothed. */
  S.derivedOptions = ({ x, smooth }, more) => ({
    view: "all",
    points: S.first.points.fine,
    x: x === "step" ? null : x,
    smooth: smooth || null,
    ...more,
  });

  function ask(path) {
    const asked = { at: performance.now(), answer: null };
    asked.answer = fetch(`/api/v1${path}`, { credentials: "same-origin", priority: "high" }).catch(() => null);
    answers.set(path, asked);
    return asked.answer;
  }

  S.early = {
    /** The answer to a request that is on its way already, or null. Each is given once. */
    take(path) {
      const asked = answers.get(path);
      answers.delete(path);
      return asked && performance.now() - asked.at < FRESH_MS ? asked.answer : null;
    },
  };

  function begin(id) {
    const view = S.viewOf(location.search);
    const run = ask(runPath(id));
    ask(`${runPath(id)}/segments`);
    for (const { path } of S.seriesPaths(id, S.first.fine, { view: "all", points: S.first.points.fine })) ask(path);
    if (view.x !== "step" || view.smooth)
      for (const { path } of S.seriesPaths(id, S.first.fine, S.derivedOptions(view))) ask(path);
    run
      .then((response) => {
        if (response && response.ok) return response.clone().json();
        answers.clear(); // the others are as bad, and would be old news when the run is there
        return null;
      })
      .then((facts) => {
        const names = facts ? S.firstMetrics(facts.metrics || []) : [];
        for (const { path } of S.seriesPaths(id, names, { view: "all", points: S.first.points.panel })) ask(path);
      })
      .catch(() => {}); // whoever takes the answer says what is wrong with it
  }

  const found = RUN.exec(location.pathname);
  if (found) {
    try {
      begin(decodeURIComponent(found[1]));
    } catch (error) {
      // An id that can't be decoded: the page says so.
    }
  }
})();
