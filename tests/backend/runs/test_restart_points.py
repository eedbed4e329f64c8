"""What a server writes down so that it judges at once after a restart: nobody can tell that there was one."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from stabilitybackend.judging.detectors.registry import DETECTORS
from stabilitybackend.runs.archiving import restart_points
from stabilitybackend.runs.archiving.restart_files import RestartFiles
from stabilitybackend.runs.archiving.window import RunWindow
from stabilitybackend.runs.backtest import backtest
from stabilitybackend.runs.worker import RunWorker
from stabilitybackend.server.problems import lost
from support.eventful_run import as_frames, eventful_rows, facts
from support.job_frames import Job
from support.manager_stack import KEYS, WINDOW_BYTES, Stage, points, rows

#: Rows between two writes in these tests, and of a frame.
EVERY_ROWS = 60
FRAME_ROWS = 16


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is written down after a few rows, whatever that costs."""
    monkeypatch.setattr(restart_points, "EVERY_ROWS", EVERY_ROWS)
    monkeypatch.setattr(restart_points, "FOLD_A_WRITE", 0.0)


@pytest.fixture
def folded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The stream ids that were folded, as they were."""
    found: list[str] = []
    read = RunWindow.read

    def noted(window: RunWindow, state: Any, frame_id: str, size: int, ahead: int) -> None:
        found.append(frame_id)
        read(window, state, frame_id, size, ahead)

    monkeypatch.setattr(RunWindow, "read", noted)
    return found


@pytest.fixture
async def stage(redis: Redis, tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(redis, tmp_path / "archive", tmp_path / "restart")
    yield stage
    await stage.manager.stop()


async def written(stage: Stage, run: RunWorker, times: int = 1) -> None:
    await stage.until(lambda: run._restart._share.counts["written"] >= times, "the run is written down")


def told(run: RunWorker) -> tuple[Any, ...]:
    """All that people see of a run."""
    numbers = attrgetter("latest", "last_step", "effective_points", "dead_points", "metric_count")(run.run())
    return (
        facts(run.state.incidents.all()),
        run.state.fold.tree.view(),
        points(run),
        numbers,
        run.state.job.checkpoints(),
    )


async def test_a_run_is_written_down_more_often_while_a_restart_would_take_long(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart_points, "FOLD_A_WRITE", 1e9)
    monkeypatch.setattr(restart_points, "FOLD_A_WRITE_BEHIND", 0.0)
    frames = as_frames(eventful_rows(declared=True), range(0, 1_000, FRAME_ROWS))
    run = await stage.send(*frames[:9])
    await written(stage, run)
    await stage.send(*frames[9:26])
    assert run._restart._share.counts["written"] == 1

    run._restart._share.unwritten_s = restart_points.AGAIN_S
    await written(stage, run, 2)  # without a further frame: a quiet run counts as well


async def test_what_a_restart_would_fold_again_is_counted_as_long_as_the_run_is_followed(stage: Stage) -> None:
    run = await stage.send(Job().rows(range(1, EVERY_ROWS + 1)))
    await written(stage, run)
    share = run._restart._share
    assert share.unwritten_s == 0

    await stage.send(Job(start=2).rows(range(EVERY_ROWS + 1, EVERY_ROWS + 6)))
    assert share.unwritten_s > 0
    await stage.manager.stop()

    assert share.unwritten_s == 0


@pytest.mark.parametrize("declared", [True, pytest.param(False, marks=pytest.mark.soak)])
async def test_restarts_at_many_moments_change_nothing_that_a_backtest_says(
    stage: Stage, folded: list[str], declared: bool
) -> None:
    frames = as_frames(eventful_rows(declared=declared), range(0, 1_000, FRAME_ROWS))
    again = 0
    for first, last in pairwise([0, 9, 17, 25, 26, 38, 44, 48, len(frames)]):
        run = await stage.send(*frames[first:last])
        await stage.restart()
        before = len(folded)
        run = await stage.manager.get("run-1")
        again += len(folded) - before
    expected = backtest(frames, run_id="run-1")
    assert facts(run.state.incidents.all()) == facts(expected.incidents)
    assert again < 8 * (EVERY_ROWS / FRAME_ROWS + 1)


@pytest.mark.parametrize("from_archive", [pytest.param(False, marks=pytest.mark.soak), True])
async def test_detectors_that_changed_judge_the_past_again_and_nobody_can_tell(
    stage: Stage, from_archive: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if from_archive:
        stage.restart_folder = None
        await stage.restart()
    frames = as_frames(eventful_rows(declared=True), range(0, 1_000, FRAME_ROWS))
    changing = [name for name, make in DETECTORS.items() if not make().every_rank]
    for version, (first, last) in enumerate(pairwise([0, 9, 17, 25, 26, 38, 44, 48, len(frames)]), 2):
        await stage.send(*frames[first:last])
        for name in changing[version % 2 :: 2]:  # every other one, and none of all ranks
            monkeypatch.setattr(DETECTORS[name], "version", version)
        await stage.restart()
        run = await stage.manager.get("run-1")
    expected = backtest(frames, run_id="run-1")
    assert facts(run.state.incidents.all()) == facts(expected.incidents)
    assert caplog.text.count("these detectors judge the stored points again") >= 7
    assert "is not used" not in caplog.text


async def test_a_restart_folds_only_what_came_since_and_knows_every_point(stage: Stage, folded: list[str]) -> None:
    job = Job()
    run = await stage.send(*rows(job, 1, EVERY_ROWS))
    await written(stage, run)
    run = await stage.send(*rows(job, EVERY_ROWS + 1, 100))
    before = told(run)
    folded.clear()
    await stage.restart()
    run = await stage.manager.get("run-1")
    assert (told(run), len(folded)) == (before, 2)
    run = await stage.send(*rows(job, 101, 900))
    await stage.archived(run, 2)
    assert points(run) == {(0, False, s): job.value(s) for s in range(1, 901)}


async def test_a_run_is_folded_again_where_redis_lost_what_was_found_before_it_was_written_down(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart_points, "MAX_STOP_S", 1e9)  # however long a copy takes here
    stage.window_bytes = 10**6  # nothing is archived
    await stage.restart()
    frames = as_frames(eventful_rows(declared=True), range(0, 1_000, FRAME_ROWS))
    run = await stage.send(*frames[:9])
    kept = [await stage.redis.dump(key) for key in (KEYS.incidents, KEYS.meta)]
    for frame in frames[9:40]:
        run = await stage.send(frame)
    assert len(run.state.incidents.all()) > 1
    assert stage.restart_folder is not None
    files = RestartFiles(stage.restart_folder, "run-1")
    await stage.until(lambda: found_in(files), "it is written down beyond its first incidents")
    await stage.manager.stop()
    for key, value in zip((KEYS.incidents, KEYS.meta), kept, strict=True):  # a power cut took them, and no frame
        await stage.redis.delete(key)
        if value is not None:
            await stage.redis.restore(key, 0, value)
    await stage.restart()
    run = await stage.manager.get("run-1")
    assert facts(run.state.incidents.all()) == facts(backtest(frames[:40], run_id="run-1").incidents)


def found_in(files: RestartFiles) -> bool:
    """Whether something was found in what a run's files reach."""
    found = files.load("0-0")
    return found is not None and found.head.applied != "0-0"


def _cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _another_version(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("which", ["fold", "points-*"])
@pytest.mark.parametrize("harm", [_cut_in_half, _flip_a_bit, _another_version, Path.unlink])
async def test_files_that_are_damaged_or_foreign_are_passed_over(
    stage: Stage, folded: list[str], harm: Callable[[Path], None], which: str
) -> None:
    job = Job()
    run = await stage.send(*rows(job, 1, 100))
    await written(stage, run)
    before = told(run)
    await stage.manager.stop()
    assert stage.restart_folder is not None
    for path in sorted((stage.restart_folder / "run-1").glob(which)):
        harm(path)
    folded.clear()
    await stage.restart()
    run = await stage.manager.get("run-1")
    assert (told(run), len(folded)) == (before, 5)


async def test_rows_that_were_written_after_the_newest_fold_count_once(stage: Stage) -> None:
    job = Job()
    run = await stage.send(*rows(job, 1, 80))
    await written(stage, run)
    assert stage.restart_folder is not None
    fold = stage.restart_folder / "run-1" / "fold"
    shutil.copy(fold, fold.with_name("kept"))
    run = await stage.send(*rows(job, 81, 160))
    await written(stage, run, 2)
    before = told(run)
    await stage.manager.stop()
    shutil.copy(fold.with_name("kept"), fold)  # killed after the points were appended, before the fold was replaced
    for _ in range(2):
        await stage.restart()
        run = await stage.manager.get("run-1")
        assert told(run) == before
    run = await stage.send(*rows(job, 161, 300))
    assert points(run) == {(0, False, s): job.value(s) for s in range(1, 301)}


async def test_what_redis_does_not_hold_any_more_is_not_taken_up(stage: Stage, folded: list[str]) -> None:
    job = Job()
    run = await stage.send(*rows(job, 1, 100))
    await written(stage, run)
    await stage.manager.stop()
    await stage.redis.flushall()
    await stage.restart()
    other = Job(start=2)
    run = await stage.send(*rows(other, 1, 40))
    assert points(run) == {(0, False, s): other.value(s) for s in range(1, 41)}


async def test_a_redis_that_came_up_with_less_than_was_written_down_is_told(stage: Stage) -> None:
    """As after an append-only file that was cut: what is there is served, and nobody takes it for all."""
    job = Job()
    run = await stage.send(*rows(job, 1, 100))
    await written(stage, run)
    assert (run.window.lost, lost(stage.manager)) == ("", [])
    await stage.manager.stop()
    _, *later = await stage.redis.xrange(KEYS.frames)
    await stage.redis.xdel(KEYS.frames, *(found[0] for found in later))
    await stage.restart()
    run = await stage.manager.get("run-1")

    problem = run.window.facts(run.state.store).problem

    assert problem is not None
    assert "Redis came up with less of this run than it had" in problem
    assert [reason.code for reason in lost(stage.manager)] == ["redis_lost"]


async def test_a_segment_that_was_taken_back_stays_so_after_a_restart(stage: Stage) -> None:
    job = Job()
    run = await stage.send(*rows(job, 1, 80), *rows(job, 50, 70), *rows(job, 81, 160))
    await written(stage, run)
    await run.undo_segment(1, "me")
    before = told(run)
    await stage.restart()
    run = await stage.manager.get("run-1")
    assert told(run) == before


async def test_a_run_that_is_archived_whole_or_deleted_leaves_no_restart_files(stage: Stage) -> None:
    job = Job()
    assert stage.restart_folder is not None
    run = await stage.send(*rows(job, 1, 100))
    await written(stage, run)
    await run.flush()
    assert list(stage.restart_folder.iterdir()) == []
    run = await stage.send(*rows(job, 101, 200))
    await written(stage, run, 2)
    await stage.manager.delete_run("run-1", force=True)
    assert list(stage.restart_folder.iterdir()) == []


async def test_files_of_runs_that_redis_does_not_know_go_at_the_start_and_no_others(stage: Stage) -> None:
    run = await stage.send(*rows(Job(), 1, 100))
    await written(stage, run)
    assert stage.restart_folder is not None
    (stage.restart_folder / "gone").mkdir()
    (stage.restart_folder / "gone" / "fold").write_bytes(b"old")
    await stage.restart()
    await stage.manager.start()
    assert [path.name for path in stage.restart_folder.iterdir()] == ["run-1"]


@pytest.mark.parametrize(
    ("before", "after"),
    [(WINDOW_BYTES, WINDOW_BYTES), (10 * WINDOW_BYTES, WINDOW_BYTES), (WINDOW_BYTES, WINDOW_BYTES // 4)],
)
@pytest.mark.parametrize("sent", [100, 400, 1_000])
async def test_a_restored_run_takes_a_frame_soon_whatever_its_window_holds(
    stage: Stage, before: int, after: int, sent: int
) -> None:
    stage.folder.parent.mkdir(exist_ok=True)
    stage.folder.write_text("a file where the archive's folder is needed: nothing leaves the window")
    await _with_window(stage, before)
    run = await stage.send(*rows(Job(), 1, sent))
    await written(stage, run)
    stage.folder.unlink()
    await _with_window(stage, after)
    again = await stage.manager.get("run-1")
    await again.ready()
    await again.window.room()  # Unavailable after 5 s, which no frame may have to wait
    assert points(again) == {(0, False, step): Job().value(step) for step in range(1, sent + 1)}


async def _with_window(stage: Stage, window_bytes: int) -> None:
    stage.window_bytes = window_bytes
    await stage.restart()


async def test_a_folder_that_cannot_be_written_costs_the_run_nothing(stage: Stage) -> None:
    assert stage.restart_folder is not None
    stage.restart_folder.write_text("a file where a folder is needed")
    job = Job()
    run = await stage.send(*rows(job, 1, 100))
    await stage.until(lambda: run._restart._share.counts["failed"], "the trouble is counted")
    run = await stage.send(*rows(job, 101, 200))
    assert points(run) == {(0, False, s): job.value(s) for s in range(1, 201)}


async def test_a_huge_state_is_written_down_when_a_generation_is_sealed(
    stage: Stage, folded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart_points, "MAX_STOP_S", -1.0)
    job = Job()
    run = await stage.send(*rows(job, 1, 100))
    await written(stage, run)
    before = told(run)
    sealed = [one.to_id for one in run.state.store.generations[:-1]]
    folded.clear()
    await stage.restart()
    run = await stage.manager.get("run-1")
    assert told(run) == before
    assert 0 < len(folded) < 5
    assert folded[0] > sealed[0]
