"""What the page makes of forks, and of what people and the job say about them; and how a fork is taken back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.processes import Ranks, Server
from support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]
JOB = str(Path(__file__).parents[1] / "jobs" / "stuttering_job.py")
RUN = "r-stutter"

FORKS = """([segments, booked]) => window.stability
  .forks(new Map(segments.map((one) => [one.id, one])), new Map(booked))
  .map(({ label, step, discarded }) => [label, step, discarded])"""


def segment(id_: int, fork: int | None, last: int | None, **more: Any) -> dict[str, Any]:
    """Build a segment as the API sends it."""
    parent = None if fork is None else 0
    label = "" if fork is None else f"R{id_}"
    return {"id": id_, "parent": parent, "fork_step": fork, "label": label, "last_step": last} | more


def test_what_a_fork_discarded_is_what_the_ledger_says(scripts: Page) -> None:
    segments = [segment(0, None, 499), segment(1, 300, 449), segment(2, 400, None)]
    booked = [[1, {"steps_lost": 49, "last_dead_step": 449}]]
    assert scripts.evaluate(FORKS, [segments, booked]) == [["R1", 300, 49], ["R2", 400, 0]]


def test_what_has_no_label_is_no_fork(scripts: Page) -> None:
    segments = [segment(0, None, 90), segment(1, 29, None, label="", undone=True), segment(2, 50, 70, label="S1")]
    assert scripts.evaluate(FORKS, [segments, [[2, {"steps_lost": 40}]]]) == [["S1", 50, 40]]


GROUPS = """([forks, scale]) => window.stability.flagGroups(forks, scale)
  .map(({ label, left, right }) => [label, left, right])"""


def forks(*labelled: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"label": label, "step": step} for label, step in labelled]


def test_flags_that_would_cover_each_other_are_one(scripts: Page) -> None:
    close = forks(*[(f"R{index}", 900 - index) for index in range(1, 11)], ("R11", 100))
    groups = scripts.evaluate(GROUPS, [close, 1.0])
    assert [label for label, *_ in groups] == ["R11", "R1–R10"]
    groups = scripts.evaluate(GROUPS, [close, 100.0])
    assert len(groups) == 11
    mixed = scripts.evaluate(GROUPS, [forks(("R1", 10), ("S1", 11), ("R4", 12)), 1.0])
    assert [label for label, *_ in mixed] == ["3 forks"]


@pytest.mark.parametrize("scale", [0.01, 0.2, 1.0, 7.0])
def test_no_two_flags_overlap_at_any_width(scripts: Page, scale: float) -> None:
    many = forks(*[(f"R{index}", (7919 * index) % 2000) for index in range(200)])
    groups = scripts.evaluate(GROUPS, [many, scale])
    assert all(one[2] <= other[1] for one, other in itertools.pairwise(groups))


TROUBLE = "(command) => window.stability.commandTrouble(command)"


def test_a_command_that_half_the_ranks_obeyed_does_not_read_as_harmless(scripts: Page) -> None:
    ranks = {"0": {"state": "acted"}, "1": {"state": "failed", "detail": "size mismatch"}}
    said = scripts.evaluate(TROUBLE, {"state": "failed", "world_size": 2, "ranks": ranks, "history": []})
    assert said.startswith("1 rank of 2 went back, the others did not. Rank 1: Size mismatch. Look at the job")
    ranks = {"1": {"state": "failed", "detail": "no such file."}}
    said = scripts.evaluate(TROUBLE, {"state": "failed", "world_size": 2, "ranks": ranks, "history": []})
    assert said == "Not carried out. Rank 1: No such file. Training goes on as before."


def test_what_the_server_says_reads_as_sentences(scripts: Page) -> None:
    said = scripts.evaluate(
        "(error) => window.stability.errorText(error)",
        {"message": "no agent of this run is connected", "hint": "is the job running?"},
    )
    assert said == "No agent of this run is connected. Is the job running?"
    said = scripts.evaluate("window.stability.sentence('lr_scale is 99, expected (0, 10]')")
    assert said == "lr_scale is 99, expected (0, 10]."


FLAGS = "(stability.page.focus.plot.spec?.labels || []).map((one) => one.words)"
STEPS = "stability.page.store.effective('loss').flatMap((l) => l.pieces.flatMap((p) => p.steps.slice(p.from, p.to)))"


@pytest.fixture
def stuttered(tmp_path: Path, free_port: int) -> Iterator[Server]:
    """A server that knows the whole run of the stuttering job."""
    server = Server(tmp_path / "data", free_port)
    with (
        server,
        Ranks(JOB, [], url=server.url, folder=tmp_path / "spool", run_id=RUN, world_size=1, STABILITY_DRAIN_S="10"),
    ):
        server.wait_for(f"/runs/{RUN}", lambda run: run["last_step"] == 80, "step 80 is there")
        yield server


def test_a_restart_that_was_none_is_taken_back_by_a_click(stuttered: Server, open_page: OpenPage) -> None:
    page = open_page(f"{stuttered.url}/runs/{RUN}")
    page.wait_for_selector("#lineage [data-undo]")
    wait_until(lambda: "S1" in page.evaluate(FLAGS), 20, "the restart has its flag")
    assert page.inner_text("#kpi-rollbacks .kpi-value") == "1"

    page.click("#lineage [data-undo]")
    page.click("#confirm-dialog .button:not(.primary)")
    page.wait_for_selector("#confirm-dialog", state="detached")
    assert stuttered.get(f"/runs/{RUN}")["rollbacks"] == 1

    page.click("#lineage [data-undo]")
    page.click("#confirm-yes")
    wait_until(lambda: "Taken back" in page.inner_text("#lineage"), 20, "the lineage says so")
    wait_until(lambda: page.inner_text("#kpi-rollbacks .kpi-value") == "0", 10, "it is not counted")
    wait_until(lambda: "S1" not in page.evaluate(FLAGS), 10, "its flag is gone")
    assert page.query_selector("#lineage [data-undo]") is None
    assert page.evaluate(STEPS) == list(range(1, 81))
    assert stuttered.get(f"/runs/{RUN}")["rollbacks"] == 0
