"""What the page makes of what the server judges of ranks, without a server: words, the line that says it, the lane."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_args

import pytest

from stabilitybackend.schema.ranks import RankStatus
from stabilityfrontend.served import ASSETS

if TYPE_CHECKING:
    from playwright.sync_api import Page

STATUSES = get_args(RankStatus)
#: Ranks as `[rank, overrides]` on nodes of eight, looked at at 1000.
ROWS = """([ranks, silent, waitsFor]) => {
  const health = new stability.Health();
  const agents = new Map();
  for (const [rank, more] of ranks) {
    const node = `gpu-${String(1 + Math.floor(rank / 8)).padStart(3, "0")}`;
    const time = silent.includes(node) ? 940 : 1000;
    if (!agents.has(node)) agents.set(node, { agent: `a-${node}`, node, time, connected: true, ranks: [] });
    const usual = { rank, source: `r${rank}-1-${rank}`, alive: true, state: "running", status: "running", step: 50 };
    agents.get(node).ranks.push({ ...usual, phase: "backward", step_start: 999, phase_start: 999.2, ...more });
  }
  health.fill({ agents: [...agents.values()], waits_for: waitsFor });
  const rows = stability.rankRows({ health, now: () => 1000 });
  const said = stability.rankSummary(rows, ranks.length);
  const [states, words] = [rows.map((row) => row.state), rows.map((row) => row.words)];
  return { states, words, tones: rows.map(stability.rankTone), said };
}"""
WAITS = {"step_start": 925, "phase_start": 926}


@pytest.fixture(scope="module")
def scripts(pages: Page) -> Page:
    """The page with our modules: what these laws are about keeps nothing, one document is enough for all."""
    pages.add_style_tag(content=ASSETS.joinpath("styles/health.css").read_text())
    return pages


STATUSES = get_args(RankStatus)


def rows(
    scripts: Page,
    more: dict[int, dict[str, Any]],
    ranks: int = 16,
    silent: tuple[str, ...] = (),
    waits_for: tuple[int, ...] = (),
) -> Any:
    listed = [[rank, more.get(rank, {})] for rank in range(ranks)]
    return scripts.evaluate(ROWS, [listed, list(silent), list(waits_for)])


def test_what_the_server_judges_is_what_the_page_shows(scripts: Page) -> None:
    """Also where the page would know better: the step of 900 is far ahead, and a budget of nothing is long over."""
    judged = {rank: {"status": status, "step": 900, "budget_s": 0.1} for rank, status in enumerate(STATUSES)}

    assert rows(scripts, judged)["states"][: len(STATUSES)] == list(STATUSES)


def test_a_process_that_the_server_gives_no_status_is_no_rank(scripts: Page) -> None:
    assert len(rows(scripts, {3: {"status": None}, 4: {"status": "of another version"}})["states"]) == 14


def test_who_waits_and_for_whom_is_said_and_whom_a_verdict_names_is_red(scripts: Page) -> None:
    waits, late = WAITS | {"status": "waits"}, WAITS | {"status": "over", "phase": "data"}
    said = rows(scripts, {0: waits, 1: late}, ranks=2, waits_for=(1,))

    assert said["tones"] == ["warning", "critical"]
    assert said["words"][0] == "waits for rank 1, in backward for 1 min 14 s"
    assert said["said"] == "0 of 2 ranks run; 1 waits; rank 1 on gpu-001 has been stalled in data for 1 min 14 s"


def test_a_silent_node_that_a_verdict_names_is_red(scripts: Page) -> None:
    said = rows(scripts, {0: {"status": "unheard"}}, ranks=2, silent=("gpu-001",), waits_for=(0,))

    assert said["tones"] == ["critical", ""]


@pytest.mark.parametrize(
    ("slot", "state", "words"),
    [
        ({}, "running", "runs"),
        ({"step": 40, "status": "behind"}, "behind", "is 10 steps behind"),
        ({"phase": "save", "phase_start": 940, "status": "long"}, "long", "is in save for 1 min 00 s"),
        ({"phase_start": None, "step_start": None, "status": "waits"}, "waits", "waits in backward"),
        ({"state": "finished", "status": "finished"}, "finished", "finished"),
        ({"status": "dead"}, "dead", "is gone"),
        ({"state": "exception", "status": "dead"}, "dead", "left by an exception"),
        ({"state": "left", "status": "dead"}, "dead", "left without finish"),
        ({"step": None, "status": "unread"}, "unread", "has a slot that can't be read"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_each_state_of_a_rank_has_its_word(scripts: Page, slot: dict[str, Any], state: str, words: str) -> None:
    said = rows(scripts, {3: slot})

    assert (said["states"][3], said["words"][3]) == (state, words)
    assert said["states"][:3] == ["running"] * 3


def test_ranks_of_a_silent_node_are_not_heard_and_their_ages_stop_there(scripts: Page) -> None:
    said = rows(scripts, {rank: {"status": "unheard"} for rank in range(8, 16)}, silent=("gpu-002",))

    assert said["words"][8] == "has not reported for 1 min 00 s"


def test_garbage_in_any_field_breaks_nothing(scripts: Page) -> None:
    garbage = [None, "NaN", -1, 1e300, [], {"a": 1}, True, "\x00<b>x</b>"]
    fields = (
        "step",
        "step_start",
        "phase",
        "phase_start",
        "beat",
        "pid",
        "gpu",
        "proc",
        "state",
        "trouble",
        "budget_s",
        "status",
    )
    odd = {rank: dict.fromkeys(fields, value) for rank, value in enumerate(garbage)}

    said = rows(scripts, odd)

    assert said["states"] == ["running"] * 8  # without a status that is known there is nothing to draw
    assert all(said["words"])


def test_columns_of_the_feed_become_what_a_whole_word_would_say(scripts: Page) -> None:
    known = scripts.evaluate(
        """() => {
      const health = new stability.Health();
      const rank = (n) => ({ rank: n, source: `r${n}-1-1`, step: 1, phase: "data", proc: { state: "R", cpu: 1 } });
      const whole = [{ agent: "a", node: "n", time: 99, ranks: [rank(0), rank(1)] }];
      health.take({ type: "health", base: 100, words: [], whole, news: [] });
      const more = { step: [7, 8], since: -12, phase: 0, cpu: [90, 0], proc: "SD", wchan: 1, beat: [null, -40] };
      const words = ["forward", "futex", "over", "waits"];
      health.take({ type: "health", base: 200, words, waits_for: [1], whole: [], news: [
        { agent: "a", time: 5, budget: 10, status: [2, 3], ...more },
        { agent: "a", time: 5, step: [1, 2, 3] }, { agent: "b", step: 1 },
      ]});
      const agent = health.agents.get("a");
      const fields = ["step", "phase_start", "phase", "cpu", "proc", "wchan", "beat_at", "budget_s", "status"];
      return [agent.time, health.waitsFor, ...agent.ranks.map((one) => fields.map((name) => one[name]))];
    }"""
    )

    assert known == [
        200.5,
        [1],
        [7, 198.8, "forward", 0.9, "S", "futex", None, 10, "over"],
        [8, 198.8, "forward", 0, "D", "futex", 196, 10, "waits"],
    ]


LANE = """([events, width]) => {
  const lines = stability.laneLines(events.map((one) => ({ kind: "hang", tone: "critical", words: "hang 74 s", told: "", at: null, until: null, segment: 0, ...one })), { place: (step) => step }, [0, 1000], width, false);
  return lines.map((line) => line.map((mark) => [mark.left, mark.left + mark.width, mark.events.length]));
}"""  # noqa: E501  one script, read as one


@pytest.mark.parametrize("count", [1, 3, 40, 300])
@pytest.mark.parametrize("crowd", [1, 30, 1000])
def test_no_mark_of_the_lane_lies_over_another_and_none_is_lost(scripts: Page, count: int, crowd: int) -> None:
    # Some at one place, some at the right edge, the rest anywhere.
    events = [{"step": 1000 if i % 7 == 0 else i * i * 37 % crowd} for i in range(count)]

    lines = scripts.evaluate(LANE, [events, 500])

    assert sum(many for line in lines for _, _, many in line) == count
    for line in lines:
        assert all(before[1] <= after[0] for before, after in pairwise(line))
        assert line[0][0] >= 0
        assert line[-1][1] <= 500 or len(line) == 1
    assert len(lines) <= 3


@pytest.mark.parametrize(("coarse", "least"), [(True, 24), (False, 17)])
def test_marks_on_several_lines_are_as_high_as_a_finger_and_lie_in_the_lane(
    scripts: Page, coarse: bool, least: int
) -> None:
    lane, marks = scripts.evaluate(
        """(coarse) => {
      const asked = window.matchMedia;
      window.matchMedia = (query) => ({ matches: coarse && query === "(pointer: coarse)" });
      document.body.innerHTML = "<style>* { box-sizing: border-box; }</style><div class='health-lane'></div>";
      document.querySelector("div").id = "health-lane";
      const one = (kind) => ({ kind, incident_id: kind, state: "open", onset_step: 500, opened: 900, evidence: {} });
      const incidents = ["hang", "agent_lost", "process_death"].map(one);
      const lane = new stability.HealthLane({
        id: "r", view: () => ({ incidents }), forkList: [], lastStep: () => 1000, now: () => 1000,
        settings: { x: "step" }, derived: { ready: () => false },
      });
      lane.draw({ place: (step) => step }, [0, 1000], 60, 500);
      window.matchMedia = asked;
      const box = (element) => element.getBoundingClientRect();
      const sides = (element) => [box(element).top, box(element).bottom];
      return [sides(lane.place), [...document.querySelectorAll("a.lane-mark")].map(sides)];
    }""",
        coarse,
    )

    assert [bottom - top >= least for top, bottom in marks] == [True] * 3
    assert all(before[1] < after[0] for before, after in pairwise(marks))
    assert lane[0] < marks[0][0]
    assert marks[-1][1] < lane[1]


def test_a_mark_of_a_gpus_fault_names_the_xid_that_its_title_names(scripts: Page) -> None:
    words = scripts.evaluate(
        """() => {
      document.body.innerHTML = "<div class='health-lane' id='health-lane'></div>";
      const fault = { kind: "gpu_fault", state: "open", onset_step: 500, opened: 900, evidence: { xids: [13, 79] } };
      const named = { ...fault, incident_id: "a", title: "GPU 0 of n: Xid 79: the GPU has fallen off the bus" };
      const lane = new stability.HealthLane({
        id: "r", view: () => ({ incidents: [named] }), forkList: [], lastStep: () => 1000, now: () => 1000,
        settings: { x: "step" }, derived: { ready: () => false },
      });
      lane.draw({ place: (step) => step }, [0, 1000], 60, 500);
      return document.querySelector("a.lane-mark").innerText;
    }"""
    )

    assert "Xid 79" in words
