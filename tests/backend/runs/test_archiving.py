"""A run's older points leave Redis for files, and nobody who reads or resumes can tell: real Redis, real Parquet."""

from __future__ import annotations

import math
from operator import attrgetter
from typing import Any

import pytest

from stabilitybackend.base.errors import Conflict, NotFound, Unavailable
from stabilitybackend.runs.backtest import backtest
from support.eventful_run import as_frames, eventful_rows, facts
from support.job_frames import Job
from support.manager_stack import KEYS, WINDOW_BYTES, Lossy, Stage, points, rows


async def test_what_is_older_than_the_window_is_in_files_and_nothing_is_missing_or_double(stage: Stage) -> None:
    job = Job()
    worker = await stage.send(*rows(job, 1, 1_000))
    await stage.archived(worker, 2)
    assert points(worker) == {(0, False, s): job.value(s) for s in range(1, 1_001)}
    entries: Any = await stage.redis.xrange(KEYS.frames)
    assert sum(len(fields[b"b"]) for _, fields in entries) <= WINDOW_BYTES
    assert (
        worker.window.facts(worker.state.store).cold.rows + worker.window.facts(worker.state.store).hot.values == 1_000
    )


async def test_a_restart_resumes_from_the_archive_with_the_same_lineage_points_and_numbers(stage: Stage) -> None:
    job = Job()
    frames = [*rows(job, 1, 400), job.rolled_back(250, "k", reason="spike"), *rows(job, 251, 600)]
    worker = await stage.send(*frames)
    await stage.archived(worker, 2)
    before = (worker.state.fold.tree.view(), points(worker), worker.run())
    await stage.restart()
    again = await stage.manager.get("run-1")
    assert (again.state.fold.tree.view(), points(again)) == before[:2]
    counts = attrgetter("latest", "last_step", "effective_points", "dead_points")
    assert counts(again.run()) == counts(before[2])
    assert before[2].dead_points == 150


async def test_an_incident_is_told_once_whatever_was_archived_before_the_restart(stage: Stage) -> None:
    job = Job()
    losses = [2.0 + 0.01 * math.sin(s) for s in range(1, 901)]
    for step in range(300, 306):
        losses[step - 1] = 9.0
    frames = [job.rows(range(at, at + 20), {"loss": losses[at - 1 : at + 19]}) for at in range(1, 901, 20)]
    worker = await stage.send(*frames[:40])
    await stage.archived(worker, 2)
    told = worker.state.incidents.all()
    assert "spike" in [i.kind for i in told]
    await stage.restart()
    worker = await stage.send(*frames[40:])
    assert [(i.incident_id, i.version) for i in worker.state.incidents.all()] == [
        (i.incident_id, i.version) for i in told
    ]


@pytest.mark.parametrize("after", [False, True], ids=["before-the-commit", "after-the-commit"])
async def test_an_archiver_that_dies_around_its_commit_neither_loses_nor_doubles_a_point(
    stage: Stage, after: bool
) -> None:
    job = Job()
    worker = await stage.send(*rows(job, 1, 300))
    worker._archive._fence = Lossy(worker.fence, after=after)  # type: ignore[assignment]
    await stage.send(*rows(job, 301, 600))
    await stage.until(lambda: worker.window.facts(worker.state.store).state == "failed", "the commit has failed")
    assert points(worker) == {(0, False, s): job.value(s) for s in range(1, 601)}
    await stage.restart()  # as if the process had been killed there
    worker = await stage.send(*rows(job, 601, 900))
    await stage.archived(worker, 1)
    assert points(worker) == {(0, False, s): job.value(s) for s in range(1, 901)}
    listed: Any = await stage.redis.hkeys(KEYS.parts)
    stage.now += 60.0  # after a while the files go whose parts were merged
    await stage.until(
        lambda: len({name.split(".")[0] for name in stage.files()}) == len(worker.state.store.parts), "swept"
    )
    begun = {name.split(".")[0] for name in stage.files()}
    assert begun == {stem.decode() for stem in listed}


async def test_a_segment_that_was_only_inferred_is_taken_back_after_it_was_archived(stage: Stage) -> None:
    job = Job()
    worker = await stage.send(*rows(job, 1, 200), *rows(job, 150, 190), *rows(job, 201, 700))
    await stage.archived(worker, 2)
    assert len(worker.state.fold.tree.view().segments) == 2
    await worker.undo_segment(1, "me")
    expected = {(0, False, s): job.value(s) for s in range(1, 701)}
    assert {at: v for at, v in points(worker).items() if not at[1]} == expected
    await stage.restart()
    again = await stage.manager.get("run-1")
    assert {at: v for at, v in points(again).items() if not at[1]} == expected
    assert again.state.fold.tree.view().head == 0
    assert {s for (_, stray, s) in points(again) if stray} == set(range(150, 191))


@pytest.mark.parametrize(
    "killed", [pytest.param(False, id="alive", marks=pytest.mark.soak), pytest.param(True, id="killed-meanwhile")]
)
@pytest.mark.parametrize(("frame_steps", "merged"), [(16, True), (18, False)], ids=["in-one-part", "in-several-parts"])
@pytest.mark.soak
async def test_incidents_are_as_if_a_segment_that_was_taken_back_had_never_been(
    stage: Stage, frame_steps: int, merged: bool, killed: bool
) -> None:
    frames = as_frames(eventful_rows(declared=False), range(0, 1_000, frame_steps))
    worker = await stage.send(*frames)
    await stage.archived(worker, 2)
    assert (worker.window.facts(worker.state.store).cold.parts == 1) is merged
    for incident in worker.state.incidents.all():
        await worker.acknowledge(incident.incident_id, "ada")
    before = {one.incident_id: one for one in worker.state.incidents.all()}
    if killed:
        segment = worker.state.fold.tree[1]
        await worker.journal.undo([segment.key], segment.fork_step)
        await stage.restart()
        worker = await stage.manager.get("run-1")
    else:
        await worker.undo_segment(1, "me")
    found = worker.state.incidents.all()
    never = backtest(frames, run_id="run-1", undone=[worker.state.fold.tree[1].key]).incidents
    unlike = {"version", "opened"}  # people and receivers know of the earlier ones
    assert [{k: v for k, v in one.items() if k not in unlike} for one in facts(found) if not one["dead"]] == [
        {k: v for k, v in one.items() if k not in unlike} for one in facts(never)
    ]
    assert before.keys() <= {one.incident_id for one in found}
    revived = [one for one in found if before.get(one.incident_id, one).dead and not one.dead]
    assert revived
    assert all(one.version > before[one.incident_id].version for one in revived)
    assert all(one.acknowledged_by == "ada" for one in found if one.incident_id in before)
    await stage.restart()
    again = await stage.manager.get("run-1")
    assert facts(again.state.incidents.all()) == facts(found)


async def test_an_archive_that_cannot_be_written_is_named_and_all_stays_in_redis_until_it_can(
    stage: Stage,
) -> None:
    job = Job()
    stage.folder.parent.mkdir(exist_ok=True)
    stage.folder.rmdir() if stage.folder.is_dir() else None
    stage.folder.write_text("a file where a folder is needed")
    worker = await stage.send(*rows(job, 1, 300))
    await stage.until(lambda: worker.window.facts(worker.state.store).state == "failed", "the trouble is named")
    assert str(stage.folder) in worker.window.facts(worker.state.store).problem
    assert points(worker) == {(0, False, s): job.value(s) for s in range(1, 301)}
    stage.folder.unlink()
    stage.now += 60.0
    worker = await stage.send(*rows(job, 301, 320))
    await stage.archived(worker, 1)
    assert worker.window.facts(worker.state.store).problem is None
    assert points(worker) == {(0, False, s): job.value(s) for s in range(1, 321)}


async def test_a_full_window_turns_agents_away_until_there_is_room(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stabilitybackend.runs.archiving.window.ROOM_TIMEOUT_S", 0.05)
    job = Job()
    stage.folder.parent.mkdir(exist_ok=True)
    if stage.folder.is_dir():
        stage.folder.rmdir()
    stage.folder.write_text("a file where a folder is needed")
    worker = await stage.send(*rows(job, 1, 600))
    await stage.until(lambda: worker.window.facts(worker.state.store).state == "failed", "the trouble is named")
    with pytest.raises(Unavailable, match="window of run run-1 is full"):
        await stage.manager.room("run-1")
    stage.folder.unlink()
    stage.now += 60.0
    await stage.archived(worker, 1)
    await stage.manager.room("run-1")


async def test_an_idle_run_leaves_redis_whole_and_is_served_from_files(stage: Stage) -> None:
    job = Job()
    worker = await stage.send(*rows(job, 1, 150))
    await worker.flush()
    assert await stage.redis.xlen(KEYS.frames) == 0
    assert points(worker) == {(0, False, s): job.value(s) for s in range(1, 151)}
    await stage.restart()
    worker = await stage.send(*rows(job, 151, 200))  # and it may go on
    assert points(worker) == {(0, False, s): job.value(s) for s in range(1, 201)}


async def test_a_run_that_was_over_before_the_server_started_leaves_redis_too(stage: Stage) -> None:
    job = Job()
    worker = await stage.send(*rows(job, 1, 40), job.event("end", 40))
    expected = points(worker)
    await worker.tick()
    stage.now += 2 * 86_400.0
    await stage.restart()
    await stage.manager.start()
    await stage.manager.idle.archive_leftover()
    assert await stage.redis.xlen(KEYS.frames) == 0
    assert points(await stage.manager.get("run-1")) == expected


async def test_compaction_makes_one_part_of_small_ones_and_changes_no_answer(stage: Stage) -> None:
    job = Job()
    worker = await stage.send(*rows(job, 1, 1_500))
    await stage.archived(worker, 3)
    before = points(worker)
    facts = await stage.manager.compact_run("run-1")
    assert facts.cold.parts == 1
    assert points(worker) == before
    stage.now += 60.0  # charts that were being read are drawn
    await stage.until(lambda: len(stage.files()) == 5, "the old files are gone")
    await stage.restart()
    assert points(await stage.manager.get("run-1")) == before


async def test_a_deleted_run_leaves_no_key_and_no_file(stage: Stage) -> None:
    worker = await stage.send(*rows(Job(), 1, 1_000))
    await stage.archived(worker, 1)
    with pytest.raises(Conflict, match="is running and was not deleted"):
        await stage.manager.delete_run("run-1")
    await stage.manager.delete_run("run-1", force=True)
    assert stage.files() == []
    left: list[Any] = [key async for key in stage.redis.scan_iter(match="sb:{run-1}*")]
    assert left == []
    with pytest.raises(NotFound):
        await stage.manager.get("run-1")


async def test_a_run_whose_archive_cannot_be_reached_says_so_and_opens_when_it_can(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stabilitybackend.runs.archiving.recovery.PAUSE_S", 0.05)
    job = Job()
    worker = await stage.send(*rows(job, 1, 500))
    await stage.archived(worker, 1)
    aside = stage.folder.with_name("aside")
    await stage.manager.stop()
    stage.folder.rename(aside)
    stage.folder.write_text("not mounted")
    await stage.restart()
    worker = stage.manager._worker("run-1")
    await stage.until(lambda: worker.readiness.trouble is not None, "the trouble is noticed")
    with pytest.raises(Unavailable, match="can't be opened now"):
        await stage.manager.get("run-1")
    stage.folder.unlink()
    aside.rename(stage.folder)
    await stage.until(lambda: worker.readiness.reached, "the run is open")
    assert points(worker) == {(0, False, s): job.value(s) for s in range(1, 501)}


async def test_a_damaged_snapshot_is_made_anew_from_the_frames(stage: Stage) -> None:
    job = Job()
    worker = await stage.send(*rows(job, 1, 300), job.rolled_back(200, "k"), *rows(job, 201, 700))
    await stage.archived(worker, 2)
    before = (worker.state.fold.tree.view(), points(worker))
    await stage.manager.stop()
    for state in stage.folder.rglob("*.state"):
        state.write_bytes(b"damaged")
    await stage.restart()
    again = await stage.manager.get("run-1")
    assert (again.state.fold.tree.view(), points(again)) == before
    stage.now += 60.0
    stems = {reader.part.stem for reader in again.state.store.parts}
    await stage.until(lambda: {name.split(".")[0] for name in stage.files()} == stems, "the old files are gone")
    assert b"damaged" not in {state.read_bytes() for state in stage.folder.rglob("*.state")}


async def test_a_damaged_part_is_named_and_the_rest_is_served(stage: Stage) -> None:
    job = Job()
    worker = await stage.send(*rows(job, 1, 1_500))
    await stage.archived(worker, 2)
    first = stage.folder / "run-1" / f"{worker.state.store.parts[0].part.stem}.points.parquet"
    first.write_bytes(first.read_bytes()[:-200])
    await stage.restart()
    worker = await stage.manager.get("run-1")
    view = worker.state.store.view(["loss"])
    served = [len(view.rows(key)) for key in view.keys("loss")]
    assert 0 < sum(served) < 1_500
    assert any(first.name in problem for problem in view.problems)
