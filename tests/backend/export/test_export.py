"""An export holds everything, and importing it makes the same run again."""

from __future__ import annotations

import errno
import json
import math
import os
import threading
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings

from stabilitybackend.base.errors import BadRequest, NotFound, StabilityBoardError
from stabilitybackend.lineage.batch import Batch, Placed
from stabilitybackend.lineage.fold import LineageFold
from stabilitybackend.storage.archive.location import Location, open_location
from stabilitybackend.storage.archive.part import Part
from stabilitybackend.storage.archive.series import Rows, SeriesKey, join_rows
from stabilitybackend.storage.export import export as export_module
from stabilitybackend.storage.export.export import Export
from stabilitybackend.storage.export.jsonl import jsonl_export
from stabilitybackend.storage.export.parquet import CHUNK_BYTES, SCHEMA, parquet_export
from stabilitybackend.storage.points.store import RunStore
from stabilityclient.wire import Frame
from support.imported_run import ImportedRun, export_of, points_of
from support.job_frames import Job
from support.jobs.job_stories import Story, stories, tell
from support.points.archive_model import make_part
from support.waiting import wait_until

_WRITERS = {"jsonl": jsonl_export, "parquet": parquet_export}


def run_of(*frames: Frame) -> tuple[RunStore, LineageFold]:
    store, fold = RunStore(), LineageFold()
    for frame in frames:
        for change in fold.apply(frame):
            if isinstance(change, Placed):
                store.add(Batch.of([change]))
    return store, fold


def forked() -> tuple[RunStore, LineageFold]:
    """Steps 0..9, back to 4, 5..12, back to 2 (past the first fork), 3..6; a NaN and the infinities among them."""
    job, odd = Job(), {5: math.nan, 6: math.inf, 7: -math.inf}
    values = [odd.get(step, step / 2) for step in range(10)]
    return run_of(
        job.rows(range(10), {"loss": values, "lr": [0.1] * 10}),
        job.rolled_back(4, "first", reason="spike", changes={"lr_scale": 0.5}),
        job.rows(range(5, 13), {"loss": [float(step) for step in range(5, 13)]}),
        job.rolled_back(2, "second"),
        job.rows(range(3, 7), {"loss": [100.0] * 4}),
    )


def write(export: Export, path: Path) -> Path:
    path.write_bytes(b"".join(_WRITERS[path.suffix[1:]](export)))
    return path


def test_a_line_tells_step_time_rank_segment_and_whether_it_is_dead() -> None:
    lines = [json.loads(line) for line in b"".join(jsonl_export(export_of(*forked()))).splitlines()]

    header = lines[0].pop("export")
    assert lines[0] == {
        "step": 0, "t": lines[0]["t"], "rank": 0, "segment": 0, "dead": False, "loss": 0.0, "lr": 0.1
    }  # fmt: skip
    assert [line["loss"] for line in lines if line["segment"] == 0][5:8] == ["NaN", "Infinity", "-Infinity"]
    assert [(line["segment"], line["step"]) for line in lines if not line["dead"]] == [
        (0, 0), (0, 1), (0, 2), (2, 3), (2, 4), (2, 5), (2, 6)
    ]  # fmt: skip
    assert [(s["key"], s["parent"], s["fork_step"]) for s in header["segments"]] == [
        ("", None, None), ("first", 0, 4), ("second", 0, 2)
    ]  # fmt: skip


def test_the_parquet_file_is_one_long_sorted_table(tmp_path: Path) -> None:
    frame = pl.read_parquet(write(export_of(*forked()), tmp_path / "run.parquet"))

    assert frame.schema == SCHEMA
    assert len(frame) == 10 + 10 + 8 + 4
    assert frame["value"].null_count() == 0
    assert frame.select("segment", "metric", "step").rows() == sorted(
        frame.select("segment", "metric", "step").rows(), key=lambda row: (row[0], ["loss", "lr"].index(row[1]), row[2])
    )
    dead = frame.filter("dead").group_by("segment").agg(pl.col("step").unique().sort()).sort("segment").rows()
    assert dead == [(0, [3, 4, 5, 6, 7, 8, 9]), (1, [5, 6, 7, 8, 9, 10, 11, 12])]


def test_the_effective_view_has_each_step_once_and_no_dead_one(tmp_path: Path) -> None:
    export = export_of(*forked(), view="effective", metrics=["loss"])
    frame = pl.read_parquet(write(export, tmp_path / "run.parquet"))
    assert frame.select("segment", "step", "dead").rows() == [
        (0, 0, False), (0, 1, False), (0, 2, False), (2, 3, False), (2, 4, False), (2, 5, False), (2, 6, False)
    ]  # fmt: skip


def test_metrics_of_one_step_logged_at_different_times_stand_in_lines_of_their_own() -> None:
    job = Job()
    store, fold = run_of(job.rows([0, 1], {"loss": [1.0, 2.0]}), job.rows([1], {"eval/loss": [3.0]}))
    lines = [json.loads(line) for line in b"".join(jsonl_export(export_of(store, fold))).splitlines()]
    assert [(line["step"], line.get("loss"), line.get("eval/loss")) for line in lines] == [
        (0, 1.0, None), (1, 2.0, None), (1, None, 3.0)
    ]  # fmt: skip


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize("clock", [0.0, 1.0])
def test_each_row_of_a_step_is_exported_and_comes_back_in_its_order(suffix: str, clock: float, tmp_path: Path) -> None:
    # Micro-batches under one step, by a clock that stands or goes; the norm comes with the last, a "time" with a few.
    steps, store, fold = np.repeat(np.arange(20), 4), RunStore(), LineageFold()
    loss = 3.0 + np.arange(80) / 80
    loss[[21, 48]] = math.nan, 40.0
    for names, at in ((["loss"], slice(None)), (["norm"], slice(3, None, 4)), (["time"], slice(0, 9))):
        times = 1e9 + clock * np.arange(80)[at]
        store.add(Batch.of([Placed(0, "r0", 0, "", names, steps[at], times, loss[None, at])]))
    fold.apply(Job().rows(range(20)))
    run = ImportedRun()

    run.take(write(export_of(store, fold), tmp_path / f"run.{suffix}"))

    assert points_of(run.store, run.fold) == points_of(store, fold)
    rows = run.store.rows(SeriesKey("loss", 0, 0, ""))
    assert (len(rows), rows.values[48], math.isnan(rows.values[21])) == (80, 40.0, True)


def test_a_metric_with_the_name_of_another_key_can_only_go_to_parquet(tmp_path: Path) -> None:
    store, fold = run_of(Job().rows([0], {"rank": [1.0]}))
    with pytest.raises(BadRequest, match="a metric called 'rank'"):
        jsonl_export(export_of(store, fold))
    assert len(pl.read_parquet(write(export_of(store, fold), tmp_path / "run.parquet"))) == 1


def test_an_unknown_metric_is_refused_with_those_that_are_there() -> None:
    with pytest.raises(NotFound, match="has no metric 'nope', it has loss, lr"):
        export_of(*forked(), metrics=["nope"])


def test_a_run_without_points_is_an_empty_file_of_the_right_shape(tmp_path: Path) -> None:
    store, fold = run_of()
    assert b"".join(jsonl_export(export_of(store, fold))) == b""
    assert pl.read_parquet(write(export_of(store, fold), tmp_path / "run.parquet")).schema == SCHEMA


@pytest.mark.parametrize("rows", [3, 50])
def test_an_export_in_small_pieces_is_the_export_in_one(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job()
    steps = [*range(3000), *range(10_000, 10_050), 5_000_000]
    store, fold = run_of(
        job.rows(steps, {"loss": [float(s) for s in steps]}), job.rows([1, 7, 10_001], {"lr": [1.0, 2.0, 3.0]})
    )
    whole = b"".join(jsonl_export(export_of(store, fold)))
    monkeypatch.setattr(export_module, "PIECE_ROWS", rows)
    assert len(list(export_of(store, fold).by_segment())) > 10
    assert b"".join(jsonl_export(export_of(store, fold))) == whole


def test_progress_ends_at_all_points_and_says_that_it_is_done(tmp_path: Path) -> None:
    for suffix in ("jsonl", "parquet"):
        export = export_of(*forked())
        write(export, tmp_path / f"run.{suffix}")
        assert (export.progress.points, export.progress.total, export.progress.done) == (32, 32, True)


def archived(folder: Path) -> tuple[Location, RunStore, RunStore, Part]:
    """A run of two parts, the same run after they were merged into one, and the second of the two."""
    location = open_location(folder)
    key = SeriesKey("loss", 0, 0, "")
    both = [Rows(np.arange(n, n + 10), np.full(10, float(n)), np.arange(n, n + 10.0)) for n in (0, 10)]
    _, first = make_part(location, [(key, both[0])], "p1", to_id="5-0")
    part, second = make_part(location, [(key, both[1])], "p2", from_id="5-0")
    _, merged = make_part(location, [(key, join_rows(both))], "p3")
    return location, RunStore([first, second], "9-0"), RunStore([merged], "9-0"), part


def test_files_that_are_merged_while_a_run_is_exported_cost_nothing(tmp_path: Path) -> None:
    location, before, after, part = archived(tmp_path)
    export = export_of(before, LineageFold(), refresh=after.view)
    Part.delete_files(location, "run", part.stem)

    lines = [json.loads(line) for line in b"".join(jsonl_export(export)).splitlines()]

    assert [(line["step"], line["loss"]) for line in lines] == [(s, float(s // 10 * 10)) for s in range(20)]
    assert export.progress.problems == []


def test_a_file_that_is_gone_is_named_and_the_rest_is_exported(tmp_path: Path) -> None:
    location, before, _, part = archived(tmp_path)
    export = export_of(before, LineageFold())
    Part.delete_files(location, "run", part.stem)

    lines = b"".join(jsonl_export(export)).splitlines()

    assert len(lines) == 10
    [problem] = export.progress.problems
    assert "p2" in problem


def writing() -> bool:
    return any(thread.name == "parquet-export" for thread in threading.enumerate())


def test_a_parquet_export_that_nobody_takes_any_more_ends_its_thread() -> None:
    chunks = parquet_export(export_of(*forked()))
    next(chunks)
    chunks.close()
    assert not writing()


def test_without_room_for_its_file_a_parquet_export_says_so_and_what_needs_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    export = export_of(*forked())
    with pytest.raises(StabilityBoardError, match="No space left on device") as refused:
        next(parquet_export(export))
    assert (refused.value.code, refused.value.status) == ("no_room", 503)
    assert "format=jsonl" in refused.value.hint
    assert export.progress.problems == [str(refused.value)]
    assert not writing()


def test_a_reader_that_stands_still_holds_no_thread_of_polars() -> None:
    store, count = RunStore(), 1_500_000
    steps, values = np.arange(count), np.random.default_rng(0).random(count)
    store.add(Batch.of([Placed(0, "r0-1", 0, "n0", ["loss"], steps, values, values.reshape(1, -1))]))
    chunks = parquet_export(export_of(store, LineageFold()))
    next(chunks)
    wait_until(lambda: not writing(), 20, "the file is made")
    assert sum(map(len, chunks)) > 10 * CHUNK_BYTES


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_an_import_of_an_export_has_the_same_segments_dead_points_and_odd_values(suffix: str, tmp_path: Path) -> None:
    store, fold = forked()
    run = ImportedRun()

    result = run.take(write(export_of(store, fold), tmp_path / f"run.{suffix}"))

    assert result.reading.count == 0
    assert points_of(run.store, run.fold) == points_of(store, fold)
    assert [(s.key, s.parent, s.fork_step, s.reason, s.changes) for s in run.fold.tree] == [
        (s.key, s.parent, s.fork_step, s.reason, s.changes) for s in fold.tree
    ]
    assert run.take(tmp_path / f"run.{suffix}").rows == 0


@pytest.mark.parametrize("suffix", ["jsonl", pytest.param("parquet", marks=pytest.mark.soak)])
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(told=stories())
def test_whatever_happened_to_a_job_its_export_makes_the_same_run_again(
    suffix: str, told: tuple[Story, int], tmp_path: Path
) -> None:
    store, fold = run_of(*tell(*told))
    file, effective = tmp_path / f"run.{suffix}", tmp_path / f"effective.{suffix}"
    write(export_of(store, fold), file)
    if not points_of(store, fold):
        return
    run = ImportedRun()

    run.take(file)

    assert points_of(run.store, run.fold) == points_of(store, fold)
    if points_of(store, fold, "effective"):
        only = ImportedRun()
        only.take(write(export_of(store, fold, "effective"), effective))
        assert points_of(only.store, only.fold) == points_of(store, fold, "effective")
