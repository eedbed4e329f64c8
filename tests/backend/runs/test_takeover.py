"""A worker that takes a run over judges on at once, and loads the points before afterwards: nobody can tell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from stabilitybackend.base.errors import ArchiveError
from stabilitybackend.runs.archiving import restart_points
from stabilitybackend.runs.archiving.restart_points import RestartPoints
from stabilitybackend.runs.archiving.window import RunWindow
from stabilitybackend.runs.backtest import backtest
from stabilitybackend.runs.ownership.fence import ANY, Ownership
from stabilitybackend.runs.worker import RunWorker
from stabilitybackend.storage.points.unloaded import LOADING
from support.eventful_run import as_frames, eventful_rows, facts
from support.job_frames import Job
from support.manager_stack import KEYS, Stage, points, rows

#: Rows between two writes in these tests, and of a frame.
EVERY_ROWS = 60
FRAME_ROWS = 16
WINDOW_BYTES = 1 << 20


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is written down after a few rows, whatever that costs."""
    monkeypatch.setattr(restart_points, "EVERY_ROWS", EVERY_ROWS)
    monkeypatch.setattr(restart_points, "FOLD_A_WRITE", 0.0)


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that ends has no time to write its runs down."""

    async def nothing(points: RestartPoints, state: Any) -> None: ...

    monkeypatch.setattr(RestartPoints, "write_last", nothing)


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


class Workers(Stage):
    """Workers that take over from each other. ``hold`` lets none load points until ``go_on``."""

    in_redis = True
    window_bytes = WINDOW_BYTES

    async def hold(self) -> None:
        self._held = self.manager.files.restart.turns.mine(lambda: True)
        await self._held.__aenter__()

    async def go_on(self) -> None:
        await self._held.__aexit__(None, None, None)

    async def taken_over(self, *, held: bool = False) -> RunWorker:
        await self.restart()
        if held:
            await self.hold()
        return await self.manager.get("run-1")


@pytest.fixture
async def stage(redis: Redis, tmp_path: Path) -> AsyncIterator[Workers]:
    stage = Workers(redis, tmp_path / "archive")
    yield stage
    await stage.manager.stop()


async def written(stage: Stage, run: RunWorker, times: int = 1) -> None:
    await stage.until(lambda: run._restart._share.counts["written"] >= times, "the run is written down")


def seen(run: RunWorker) -> tuple[Any, ...]:
    """All that people see of a run."""
    numbers = attrgetter("latest", "last_step", "effective_points", "dead_points", "metric_count")(run.run())
    return (
        facts(run.state.incidents.all()),
        run.state.fold.tree.view(),
        repr(points(run)),
        numbers,
        run.state.job.checkpoints(),
    )


async def test_whoever_takes_a_run_over_folds_only_what_came_since_and_has_every_point_later(
    stage: Workers, folded: list[str], killed: None
) -> None:
    job = Job()
    run = await stage.send(*rows(job, 1, EVERY_ROWS))
    await written(stage, run)
    await stage.send(*rows(job, EVERY_ROWS + 1, 100))
    folded.clear()

    run = await stage.taken_over(held=True)
    assert len(folded) == 2
    run = await stage.send(*rows(job, 101, 140))
    shown = run.run()
    assert (shown.last_step, shown.effective_points, shown.metric_count) == (140, 140, 1)

    await stage.go_on()
    await run.points.wait()
    assert points(run) == {(0, False, s): job.value(s) for s in range(1, 141)}


async def test_a_worker_that_stops_leaves_nothing_to_fold_again(stage: Workers, folded: list[str]) -> None:
    job = Job()
    await stage.send(*rows(job, 1, 30))
    folded.clear()
    run = await stage.taken_over()
    assert folded == []
    await run.points.wait()
    assert points(run) == {(0, False, s): job.value(s) for s in range(1, 31)}


async def test_a_worker_that_missed_a_takeover_while_redis_was_away_logs_it_and_drops_the_run(
    stage: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    run = await stage.send(*rows(Job(), 1, 30))
    other = Ownership("w2", "http://127.0.0.1:1", replaceable=_any)
    await other.fence("run-1", stage.redis).take()
    stage.manager.ownership.replaceable = _none

    run.journal.interrupted = True
    run.rest.wake()

    await stage.until(lambda: run.moved, "the run is dropped")
    assert "run run-1: another server took it over" in caplog.text


async def _any(run_id: str) -> str:
    return ANY


async def _none(run_id: str) -> str:
    return ""


async def test_a_chart_shows_what_is_there_and_says_that_points_are_still_being_loaded(stage: Workers) -> None:
    job = Job()
    await stage.send(*rows(job, 1, 40))
    await stage.taken_over(held=True)
    run = await stage.send(*rows(job, 41, 60))

    view = run.state.store.view(["loss"])
    (key,) = view.keys("loss")
    assert view.rows(key, 41, 60).steps.tolist() == list(range(41, 61))
    assert view.problems == []
    assert view.rows(key).steps.tolist() == list(range(41, 61))
    assert view.problems == [LOADING]
    stored = run.window.facts(run.state.store)
    assert (stored.state, stored.problem) == ("loading", LOADING)
    await stage.go_on()
    await run.points.wait()
    assert run.window.facts(run.state.store).state == "ok"


@pytest.mark.parametrize("declared", [True, pytest.param(False, marks=pytest.mark.soak)])
async def test_takeovers_at_many_moments_change_nothing_that_a_backtest_says(
    stage: Workers, declared: bool, killed: None
) -> None:
    frames = as_frames(eventful_rows(declared=declared), range(0, 1_000, FRAME_ROWS))
    for first, last in pairwise([0, 9, 17, 25, 26, 38, 44, 48, len(frames)]):
        run = await stage.send(*frames[first:last])
        before = seen(run)
        run = await stage.taken_over()
        await run.points.wait()
        assert seen(run) == before
    expected = backtest(frames, run_id="run-1")
    assert facts(run.state.incidents.all()) == facts(expected.incidents)


async def test_what_depends_on_points_that_are_not_there_waits_for_them(stage: Workers, killed: None) -> None:
    frames = as_frames(eventful_rows(declared=True), range(0, 1_000, FRAME_ROWS))
    await stage.send(*frames[:15])
    await stage.taken_over(held=True)
    # The spike of step 255 begins there; what it is compared with lies before the takeover.
    sending = asyncio.create_task(stage.send(*frames[15:]))
    run = await stage.manager.get("run-1")
    await stage.until(lambda: run.points._needed, "the points are needed")
    assert not run.readiness.reached  # nobody is served a state in which a frame is folded in part
    await stage.go_on()
    await sending
    expected = backtest(frames, run_id="run-1")
    assert facts(run.state.incidents.all()) == facts(expected.incidents)


async def test_parts_that_were_made_since_the_snapshot_are_not_loaded_twice(
    stage: Workers, killed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.window_bytes = 4_000
    await stage.restart()
    job = Job()
    run = await stage.send(*rows(job, 1, 900))
    await stage.archived(run, 2)
    await stage.send(*rows(job, 901, 930))
    run = await stage.taken_over()
    await run.points.wait()
    assert points(run) == {(0, False, s): job.value(s) for s in range(1, 931)}
    run = await stage.send(*rows(job, 931, 2_000))
    await stage.archived(run, 4)
    assert points(run) == {(0, False, s): job.value(s) for s in range(1, 2_001)}


async def test_nothing_is_archived_before_it_is_loaded(stage: Workers) -> None:
    await stage.send(*rows(Job(), 1, 40))
    run = await stage.taken_over(held=True)
    with pytest.raises(ArchiveError, match="still being loaded"):
        await run.flush()
    await stage.go_on()
    await run.points.wait()
    await run.flush()
    assert run.state.store.hot_bytes == 0
    assert await stage.redis.exists(KEYS.snapshot) == 0


@pytest.mark.parametrize("harm", ["cut", "flip", "none"])
async def test_a_snapshot_that_is_damaged_is_passed_over(stage: Workers, folded: list[str], harm: str) -> None:
    job = Job()
    await stage.send(*rows(job, 1, 100))
    await stage.manager.stop()
    data: Any = bytearray(await stage.redis.get(KEYS.snapshot) or b"")
    data[len(data) // 2] ^= 1
    await stage.redis.set(KEYS.snapshot, bytes(data[: len(data) // 2] if harm == "cut" else data))
    if harm == "none":
        await stage.redis.delete(KEYS.snapshot)
    folded.clear()
    run = await stage.taken_over()
    assert len(folded) == 5
    assert points(run) == {(0, False, s): job.value(s) for s in range(1, 101)}


async def test_frames_that_do_not_come_to_what_the_snapshot_says_are_folded_again(
    stage: Workers, folded: list[str]
) -> None:
    job = Job()
    await stage.send(*rows(job, 1, 100))
    run = await stage.taken_over(held=True)
    first: Any = (await stage.redis.xrange(KEYS.frames, count=1))[0][0]
    await stage.redis.xdel(KEYS.frames, first)
    folded.clear()
    await stage.go_on()
    await stage.until(lambda: len(folded) == 4, "what is there is folded")
    await stage.until(lambda: run.readiness.reached, "it is followed again")
    assert points(run) == {(0, False, s): job.value(s) for s in range(21, 101)}
