"""Laws of how a run is looked at, without a server: addresses, axes, smoothing, what is merged, what is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page


#: Address -> its page, or what a run's page is told.
ADDRESSES = {
    "/": "runs",
    "": "runs",
    "/runs/abc": {"data-run": "abc"},
    "/runs/a%20b/": {"data-run": "a b"},
    "/runs/%3Cscript%3E": {"data-run": "<script>"},
    "/runs/%E0%A4%A": {"data-run": "%E0%A4%A"},
    "/runs/a/b": "missing",
    "/runs/a%20b/incidents/i-1/": {"data-run": "a b", "data-incident": "i-1"},
    "/runs/a/incidents": "missing",
    "/somewhere": "missing",
}


def test_an_address_gives_its_page(scripts: Page) -> None:
    found = scripts.evaluate(
        """(paths) => paths.map((path) => window.stability.route(path, [
          { pattern: "^/$", ids: [], name: "runs", skeleton: {} },
          { pattern: "^/runs/([^/]+)$", ids: ["run"], skeleton: {} },
          { pattern: "^/runs/([^/]+)/incidents/([^/]+)$", ids: ["run", "incident"], skeleton: {} },
          { pattern: ".*", ids: [], name: "missing", skeleton: {} },
        ])).map((one) => one.name || one.skeleton.props)""",
        list(ADDRESSES),
    )
    assert found == list(ADDRESSES.values())


def test_the_gravest_open_incident_stands_on_top_of_the_rail_and_what_is_over_below(scripts: Page) -> None:
    order = scripts.evaluate(
        """() => [["warning", "open", 9], ["critical", "resolved", 8], ["critical", "open", 3], ["warning", "open", 5],
            ["critical", "open", 4], ["info", "open", 7], ["warning", "resolved", 9]]
          .map(([severity, state, opened]) => ({ severity, state, opened })).sort(stability.gravestFirst)
          .map((one) => `${one.severity} ${one.state} ${one.opened}`)"""
    )
    assert order == [
        "critical open 4", "critical open 3", "warning open 9", "warning open 5", "info open 7", "warning resolved 9",
        "critical resolved 8",
    ]  # fmt: skip


def test_the_slider_and_the_address_name_the_same_weight(scripts: Page) -> None:
    there_and_back = (
        "() => [...Array(101).keys()].map((at) => [at, stability.smoothPosition(stability.smoothWeight(at))])"
    )
    pairs = scripts.evaluate(there_and_back)
    assert [at for at, back in pairs if at != back] == []
    weights = scripts.evaluate("() => [0, 25, 50, 75, 100].map(stability.smoothWeight)")
    assert weights == [0, 0.9, 0.99, 0.999, 0.9999]


def test_the_same_requests_are_made_early_and_later(scripts: Page) -> None:
    said = scripts.evaluate(
        """() => {
          const S = window.stability;
          S.firstRequests.patterns = ["loss/*", "lr"];
          const names = ["zeta", "loss/b", "lr", "loss", "loss/a", "gpu/0/temp_c"];
          return [S.firstMetrics(names), S.firstMetrics([...names].reverse()),
            S.seriesPaths("r 1", ["loss", "a/b&c"], { view: "all", points: 5, x: null })[0].path];
        }"""
    )
    assert said[0] == said[1] == ["loss/a", "loss/b", "lr"]
    assert said[2] == "/runs/r%201/series?metric=loss&metric=a%2Fb%26c&view=all&points=5"


#: Segment 0 keeps 1..3, segment 1 forked there.
FORKED = """
  const S = window.stability;
  const store = new S.SeriesStore({ entry_points: 400, live_metrics: 50 });
  store.pin(["loss"]);
  const part = (segment, dead, steps) =>
    ({ metric: "loss", segment, rank: 0, node: "", dead, steps, values: steps });
  store.setSegments(0, [{ id: 0, dead_after: null, on_head_path: true }]);
"""
LINE = 'store.effective("loss").flatMap((line) => line.pieces.flatMap((one) => one.steps.slice(one.from, one.to)))'


def test_an_increment_adds_to_what_is_there_and_a_complete_answer_replaces_it(scripts: Page) -> None:
    code = f"""() => {{ {FORKED}
      store.take({{ names: ["loss"], series: [part(0, false, [1, 2, 3])], complete: true }}, 100);
      store.take({{ names: ["loss"], series: [part(0, false, [3, 4, 5])], complete: false }}, 100);
      const first = {LINE};
      store.take({{ names: ["loss"], series: [], complete: false }}, 100);
      const second = {LINE};
      store.take({{ names: ["loss"], series: [part(0, false, [7, 8])], complete: true }}, 100);
      return [first, second, {LINE}];
    }}"""
    assert scripts.evaluate(code) == [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [7, 8]]


def test_an_increment_of_a_segment_that_is_news_is_regrouped_when_its_fork_is_told(scripts: Page) -> None:
    code = f"""() => {{ {FORKED}
      store.take({{ names: ["loss"], series: [part(0, false, [1, 2, 3, 4, 5])], complete: true }}, 100);
      store.take({{ names: ["loss"], series: [part(1, false, [4, 5, 6])], complete: false }}, 100);
      store.setSegments(1, [{{ id: 0, dead_after: 3, on_head_path: true }},
        {{ id: 1, parent: 0, fork_step: 3, dead_after: null, on_head_path: true }}]);
      return [{LINE}, store.dead("loss").map((one) => one.steps.slice(one.from, one.to)),
        store.alone("loss", 0).flatMap((line) => line.pieces[0].steps)];
    }}"""
    assert scripts.evaluate(code) == [[1, 2, 3, 4, 5, 6], [[4, 5]], [1, 2, 3, 4, 5]]


def test_on_a_clock_a_step_stands_where_its_own_segment_logged_it(scripts: Page) -> None:
    places = scripts.evaluate(
        """() => {
          const S = window.stability;
          const page = { store: { aliveUpTo: () => Infinity }, settings: { x: "t", smooth: 0 } };
          const derived = new S.Derived(page, () => {});
          const entry = (segment, steps, xs) => [segment, { segment, rank: 0, steps, xs, values: steps, stray: false }];
          const entries = new Map([entry(0, [1, 3, 5], [10, 30, 50]), entry(1, [4, 5, 6], [100, 110, 120])]);
          derived.whole = new Map([["loss", entries]]);
          const asked = [[4, 0], [4, 1], [5, 0], [6, 0], [9, 1], [0, 0]];
          return asked.map(([step, segment]) => derived.place("loss", step, segment));
        }"""
    )
    assert places == [40, 100, 50, 120, 120, 10]


#: (what, range, words): about four ticks each; the clock's range is 20 November, 16:00 to 04:00.
TICKS: list[tuple[str, list[float], list[str]]] = [
    ("durationTicks", [0, 480], ["0", "2 min", "4 min", "6 min", "8 min"]),
    ("durationTicks", [0, 40], ["0", "10 s", "20 s", "30 s", "40 s"]),
    ("durationTicks", [-3600, 259_200], ["0", "1 d", "2 d", "3 d"]),
    ("clockTicks", [1_763_654_400_000, 1_763_697_600_000], ["18:00", "21:00", "Nov 21", "03:00"]),
]


def test_the_ticks_of_time_are_round(scripts: Page) -> None:
    say = "(asked) => asked.map(([what, range]) => stability[what](range, 4).map((tick) => tick.words))"
    found = scripts.evaluate(say, [[what, axis] for what, axis, _ in TICKS])
    assert found == [words for _, _, words in TICKS]


#: A page with a lineage of so many rollbacks, each ten steps before the end of the one before.
LINEAGE = """(count) => {
  const S = window.stability;
  document.body.append(...["lineage", "lineage-note", "lineage-all"].map((id) => S.h("div", { id })));
  const segments = new Map();
  for (let id = 0; id <= count; id += 1) {
    segments.set(id, {
      id, parent: id ? id - 1 : null, fork_step: id ? 90 * id : null, dead_after: id < count ? 90 * id + 90 : null,
      on_head_path: true, cause: id ? "command" : "start", first_step: 90 * id + 1, last_step: 90 * id + 100,
      reason: "", changes: {}, label: id ? `R${id}` : "", kept: 90, discarded: id < count ? 10 : 0,
    });
  }
  const lost = { steps_lost: 10, last_dead_step: 100 };
  const forks = S.forks(segments, new Map([...segments.keys()].map((id) => [id, lost])));
  const view = { incidents: [], segments, forks, lastStep: 90 * count + 100 };
  const page = {
    ready: true, allSegments: false, run: null, view: () => view, head: () => count, lastStep: () => view.lastStep,
    dirty: () => S.drawLineage(page), undo() {},
  };
  S.drawLineage(page);
  const names = () => [...document.querySelectorAll("#lineage .segment:not(.discarded) b")];
  const shown = names().map((one) => one.textContent.split(" ")[0]);
  const more = document.querySelector(".segment-more");
  const older = more ? more.textContent : null;
  if (more) more.click();
  const flags = S.flagGroups(forks, 0.1).map((group) => group.label);
  const lines = S.shapes(view, { accent: "#00f" }, true).rules.filter((one) => one.height === 1).length;
  return { shown, older, all: names().length, flags, lines };
}"""


def test_of_fifty_rollbacks_the_newest_are_shown_and_how_many_there_are(scripts: Page) -> None:
    found = scripts.evaluate(LINEAGE, 50)
    assert found["shown"] == ["R47", "R48", "R49", "R50"]
    assert found["older"] == "47 older segments · 460 steps discarded"
    assert found["all"] == 51
    assert len(found["flags"]) < 25
    assert found["lines"] == 6


def test_a_short_lineage_is_shown_whole(scripts: Page) -> None:
    found = scripts.evaluate(LINEAGE, 4)
    assert found["shown"] == ["Start", "R1", "R2", "R3", "R4"]
    assert (found["older"], found["all"], found["lines"]) == (None, 5, 4)


def test_bytes_are_written_in_binary_units(scripts: Page) -> None:
    said = scripts.evaluate("(counts) => counts.map(stability.bytes)", [0, 1023, 1536, 12_900_000, 3 * 2**30])
    assert said == ["0 B", "1023 B", "1.5 KiB", "12.3 MiB", "3 GiB"]


#: Draws the storage line of a page for an answer of /storage and what queries could not read.
STORAGE = """([answer, problems]) => {
  const S = window.stability;
  const missing = ["storage", "storage-note"].filter((id) => !S.byId(id));
  document.body.append(...missing.map((id) => S.h("div", { id, hidden: true })));
  const line = new S.StorageLine({});
  line.answer = answer;
  line.setProblems(problems);
  const note = S.byId("storage-note");
  return { line: S.byId("storage").textContent, note: note.hidden ? null : note.textContent };
}"""
PART = "archive/r/1.points.parquet is damaged: truncated"


def test_an_archive_that_is_behind_or_damaged_is_said_and_one_that_is_well_is_not(scripts: Page) -> None:
    def storage(state: str, problem: str | None) -> dict[str, object]:
        hot = {"bytes": 2**20, "limit_bytes": 2**25, "frames": 7, "values": 70}
        cold = {"parts": 2, "rows": 5000, "bytes": 2**21, "location": "x"}
        return {"hot": hot, "cold": cold, "state": state, "problem": problem}

    well = scripts.evaluate(STORAGE, [storage("ok", None), []])
    assert well == {"line": "Hot 1 MiB of 32 MiBarchive 2 parts, 2 MiB, 5,000 pointsup to date", "note": None}
    behind = scripts.evaluate(STORAGE, [storage("behind", "disk full"), []])
    assert behind["note"].startswith("The archive is behind: Disk full.")
    damaged = scripts.evaluate(STORAGE, [storage("ok", None), [PART, PART]])
    assert damaged["note"].count("truncated") == 1
    both = scripts.evaluate(STORAGE, [storage("failed", PART), [PART]])
    assert both["note"].count("truncated") == 1
