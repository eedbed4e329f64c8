"""A backtest says what the server said: whatever way the rows came, and however they were cut into frames."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabilitybackend.judging.detectors.registry import DETECTORS
from stabilitybackend.runs.backtest import Backtest, backtest
from stabilitybackend.storage.export.jsonl import jsonl_export
from stabilitybackend.storage.export.parquet import parquet_export
from stabilityplugins.backtest.sources import read_files
from support.eventful_run import Row, as_frames, eventful_rows, facts, story_frames, write_lines
from support.imported_run import export_of
from support.manager_stack import Stage

DECLARED = eventful_rows(declared=True)
SILENT = eventful_rows(declared=False)


@pytest.mark.parametrize("rows", [pytest.param(DECLARED, marks=pytest.mark.soak), SILENT], ids=["declared", "silent"])
async def test_a_run_that_was_streamed_is_judged_alike_in_its_export_and_in_its_log(
    stage: Stage, rows: list[Row], tmp_path: Path
) -> None:
    frames = as_frames(rows, range(0, len(rows), 16))
    worker = await stage.send(*frames[:30])
    await stage.archived(worker, 1)
    await stage.restart()
    worker = await stage.send(*frames[30:])
    told = facts(worker.state.incidents.all())
    assert [(i["kind"], i["onset_step"], i["dead"]) for i in told if i["kind"] in ("spike", "nonfinite")] == [
        ("spike", 255, False), ("nonfinite", 401, False), ("spike", 600, True), ("spike", 760, False)
    ]  # fmt: skip
    for name, export in (("run.jsonl", jsonl_export), ("run.parquet", parquet_export)):
        (tmp_path / name).write_bytes(b"".join(export(export_of(worker.state.store, worker.state.fold))))
        [log] = read_files([tmp_path / name])
        assert facts(backtest(log.frames(), run_id="run-1").incidents) == told, name
    if rows is SILENT:
        [log] = read_files([write_lines(rows, tmp_path / "raw.jsonl")])
        assert facts(backtest(log.frames(), run_id="run-1").incidents) == told


def test_a_restart_that_was_inferred_is_one_in_the_export_too_and_can_be_undone(tmp_path: Path) -> None:
    live = backtest(as_frames(SILENT)).state
    (tmp_path / "run.jsonl").write_bytes(b"".join(jsonl_export(export_of(live.store, live.fold))))
    [log] = read_files([tmp_path / "run.jsonl"])
    frames = list(log.frames())
    [segment] = list(backtest(frames).state.fold.tree)[1:]
    assert (segment.cause, segment.fork_step, segment.undone) == ("restart", 560, False)
    undone = backtest(frames, undone=[segment.key]).state
    assert [(s.cause, s.undone) for s in undone.fold.tree][1:] == [("restart", True)]
    strays = [key for key in undone.store.keys("loss") if key.stray]
    assert [undone.store.rows(key).steps.tolist() for key in strays] == [list(range(561, 621))]


@cache
def _whole(declared: bool) -> Backtest:
    return backtest(as_frames(DECLARED if declared else SILENT))


@settings(max_examples=12, deadline=None)
@given(cuts=st.lists(st.integers(1, len(DECLARED)), max_size=60), declared=st.booleans())
@pytest.mark.soak
def test_how_rows_are_cut_into_frames_changes_nothing(cuts: list[int], declared: bool) -> None:
    rows = DECLARED if declared else SILENT
    whole = _whole(declared)
    cut = backtest(as_frames(rows, cuts))
    assert facts(cut.incidents) == facts(whole.incidents)
    assert (cut.rows, cut.points) == (whole.rows, whole.points)


@pytest.mark.parametrize("name", [name for name, make in DETECTORS.items() if make().story()])
def test_the_story_of_a_detector_ends_alike_however_it_is_cut(name: str) -> None:
    story = DETECTORS[name]().story()
    whole = facts(backtest(story_frames(story)).incidents)
    rng = random.Random(name)
    for cuts in (range(len(story)), rng.sample(range(1, len(story)), 20)):
        assert facts(backtest(story_frames(story, cuts)).incidents) == whole
