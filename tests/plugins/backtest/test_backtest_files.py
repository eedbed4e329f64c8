"""What a backtest makes of files as people have them: odd values, bad lines, missing times, several ranks, gzip."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stabilitybackend.base.errors import BadRequest
from stabilitybackend.runs.backtest import Backtest, backtest
from stabilitybackend.runs.state import RunState
from stabilitybackend.storage.export.jsonl import jsonl_export
from stabilitybackend.storage.export.parquet import parquet_export
from stabilityclient.wire import PointsBlock
from stabilityplugins.backtest.sources import Log, read_files
from support.imported_run import export_of
from support.job_frames import Job


def log_of(folder: Path, *lines: Any, name: str = "log.jsonl") -> Log:
    """Write lines (objects as Python's json does, texts as they are) and return the log."""
    path = folder / name
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    [log] = read_files([path])
    return log


def judged(log: Log) -> Backtest:
    return backtest(log.frames(), run_id="run")


def line(found: Backtest, metric: str = "loss", rank: int = 0) -> dict[int, float]:
    """Return step -> value of the effective path."""
    state = found.state
    view, alive = state.store.view([metric]), {part.segment: part for part in state.fold.tree.path()}
    values: dict[int, float] = {}
    for key in view.keys(metric):
        if key.rank == rank and key.segment in alive and not key.stray:
            rows = view.rows(key, alive[key.segment].first, alive[key.segment].last)
            values |= dict(zip(rows.steps.tolist(), rows.values.tolist(), strict=True))
    return values


def test_numbers_are_taken_however_they_are_spelled_and_null_is_missing(tmp_path: Path) -> None:
    log = log_of(
        tmp_path,
        {"step": 1, "loss": 2.0, "lr": 1},
        {"step": 2.0, "loss": math.nan, "lr": None},
        {"step": 3, "loss": "NaN"},
        {"step": 4, "loss": "-Infinity", "phase": "eval"},
        {"step": 5, "loss": True, "text": "hello"},
        {"step": 6, "loss": 10**30, "batch_fp": "abc"},
    )
    found = judged(log)
    assert repr(line(found)) == repr({1: 2.0, 2: math.nan, 3: math.nan, 4: -math.inf, 5: 1.0, 6: 1e30})
    assert line(found, "lr") == {1: 1.0}
    assert (found.rows, found.points, found.unreadable) == (6, 7, 0)
    assert log.reading.count == 0
    assert [note.rpartition(": ")[2] for note in log.reading.notes] == ["text"]


def test_a_bad_line_is_named_and_the_others_are_judged(tmp_path: Path) -> None:
    log = log_of(
        tmp_path,
        {"step": 1, "loss": 2.0},
        "hello\n",
        "\n",
        {"loss": 2.0},
        {"step": True, "loss": 2.0},
        {"step": 7.5, "loss": 2.0},
        "[1]\n",
        {"step": 8, "loss": "low"},
        {"step": 9, "loss": 2.0},
    )
    assert line(judged(log)) == {1: 2.0, 9: 2.0}
    assert sorted(problem.place for problem in log.reading.named) == [
        "line 2", "line 4", "line 5", "line 6", "line 7", "line 8, loss"
    ]  # fmt: skip
    assert "no step" in next(str(problem) for problem in log.reading.named if problem.place == "line 4")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "is empty: nothing that can be imported"),
        ("hello\n", "begins with b'hello.n': nothing that can be imported"),
        ('{"loss": 1.0}\n', "has no step column: its columns are loss"),
        ('{"step": "x", "loss": 1.0}\n', "has no step column: its columns are step, loss"),
        ('{"step": 1, "note": "x"}\n', "has no row that can be read: .*no numbers, so left out: note"),
    ],
)
def test_a_file_without_a_single_row_is_refused_with_the_reason(tmp_path: Path, content: str, why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        judged(log_of(tmp_path, content))


def test_one_row_is_judged_quiet(tmp_path: Path) -> None:
    found = judged(log_of(tmp_path, '{"step": 1, "loss": 2.0}'))
    assert (found.rows, found.incidents) == (1, [])


def test_a_gzip_that_is_cut_is_judged_up_to_the_cut(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = "".join(json.dumps({"step": step, "loss": float(rng.random())}) + "\n" for step in range(20_000))
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(gzip.compress(rows.encode())[:100_000])
    [log] = read_files([path])
    found = judged(log)
    assert 5_000 < found.rows < 20_000
    assert sorted(line(found)) == list(range(found.rows))
    assert [problem.place.split()[0] for problem in log.reading.named] == ["after"]


def test_a_line_longer_than_any_row_is_passed_over(tmp_path: Path) -> None:
    long = json.dumps({"step": 2, "text": "x" * (20 << 20)}) + "\n"
    log = log_of(tmp_path, {"step": 1, "loss": 1.0}, long, {"step": 3, "loss": 3.0})
    assert line(judged(log)) == {1: 1.0, 3: 3.0}
    assert [problem.place for problem in log.reading.named] == ["line 2"]


def test_steps_that_go_back_and_go_on_are_a_branch_and_a_stray_one_is_none(tmp_path: Path) -> None:
    steps = [*range(1, 101), 40, *range(101, 151), *range(121, 181)]
    log = log_of(tmp_path, *({"step": step, "loss": float(at)} for at, step in enumerate(steps)))
    found = judged(log)
    tree = found.state.fold.tree
    assert [(s.parent, s.fork_step, s.cause) for s in tree][1:] == [(0, 120, "restart")]
    assert [line(found)[step] for step in (40, 120, 121, 180)] == [39.0, 120.0, 151.0, 210.0]


def test_a_log_without_times_takes_a_second_a_step_on_every_machine(tmp_path: Path) -> None:
    steps = [10, 11, 14, 14, 12, 13, 14, 15]
    log = log_of(tmp_path, *({"step": step, "loss": 1.0} for step in steps))
    times = [t for frame in log.frames() for block in frame.blocks for t in np.frombuffer(block.times, "<f8").tolist()]  # type: ignore[union-attr]
    assert [t - times[0] for t in times] == [0, 1, 4, 4, 5, 6, 7, 8]
    assert times[0] == 1e9


def test_times_of_a_log_are_kept_and_a_missing_one_is_that_of_the_row_before(tmp_path: Path) -> None:
    rows = [{"step": 1, "t": 1.7e9}, {"step": 2}, {"step": 3, "t": None}, {"step": 4, "t": 1.7e12 + 5_000}]
    log = log_of(tmp_path, *({**row, "loss": 1.0} for row in rows))
    times = [t for frame in log.frames() for block in frame.blocks for t in np.frombuffer(block.times, "<f8").tolist()]  # type: ignore[union-attr]
    assert times == [1.7e9, 1.7e9, 1.7e9, 1.7e9 + 5]


def test_ranks_side_by_side_stay_apart_and_near_each_other(tmp_path: Path) -> None:
    rows = [{"step": s, "rank": r, "loss": float(10 * s + r)} for s in range(1, 301) for r in range(3)]
    log = log_of(tmp_path, *rows)
    ahead = 0
    newest = {0: 0, 1: 0, 2: 0}
    for frame in log.frames():
        newest[frame.source.rank or 0] = int(np.frombuffer(frame.blocks[-1].steps, "<i8")[-1])  # type: ignore[union-attr]
        ahead = max(ahead, max(newest.values()) - min(newest.values()))
    assert ahead <= 256
    found = judged(log)
    assert (found.state.fold.ranks, found.state.launch_sizes.size) == ([0, 1, 2], 3)
    assert line(found, rank=2) == {s: 10.0 * s + 2 for s in range(1, 301)}


def test_another_spelling_of_the_loss_is_judged_as_the_loss_and_that_is_said(tmp_path: Path) -> None:
    log = log_of(tmp_path, *({"global_step": s, "train/loss": 2.0} for s in range(5)))
    assert set(line(judged(log))) == set(range(5))
    assert [note.partition(": ")[2] for note in log.reading.notes] == ["train/loss is judged as loss"]


def test_a_folder_gives_every_log_in_it_packed_or_not(tmp_path: Path) -> None:
    log_of(tmp_path, {"step": 1, "loss": 1.0}, name="a.jsonl")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.jsonl.gz").write_bytes(gzip.compress(b'{"step": 1, "loss": 1.0}\n'))
    (tmp_path / "labels.json").write_text("{}")
    assert [log.name for log in read_files([tmp_path])] == [
        str(tmp_path / "a.jsonl"),
        str(tmp_path / "deep/b.jsonl.gz"),
    ]


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="is not there, expected a file or a folder"):
        list(read_files([tmp_path / "none.csv"]))


def test_a_packed_export_is_read_with_its_segments(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl.gz"
    rows = [{"step": step, "t": 1e9 + step, "rank": 0, "segment": 0, "dead": False, "loss": 1.0} for step in (1, 2)]
    rows[0]["export"] = {"segments": []}
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    [log] = read_files([path])
    assert line(judged(log)) == {1: 1.0, 2: 1.0}


def test_a_spool_folder_is_sent_to_the_import(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(BadRequest, match="spool folder") as caught:
        list(read_files([tmp_path]))
    assert "stabilityboard import" in caught.value.hint


@pytest.mark.parametrize("name", ["run.jsonl", "run.parquet"])
def test_the_ranks_of_an_export_come_side_by_side_as_they_did_live(tmp_path: Path, name: str) -> None:
    jobs = [Job(rank, world_size=3) for rank in range(3)]
    live = RunState("run", lambda: 0.0)
    for at in range(1, 501, 10):
        for job in jobs:
            live.apply(job.rows(range(at, at + 10)), replayed=False)
    for job in jobs:
        live.apply(job.rolled_back(300, "k"), replayed=False)
        live.apply(job.rows(range(301, 401)), replayed=False)
    write = jsonl_export if name == "run.jsonl" else parquet_export
    (tmp_path / name).write_bytes(b"".join(write(export_of(live.store, live.fold))))
    [log] = read_files([tmp_path / name])
    seen, apart, frames = {0: 0, 1: 0, 2: 0}, 0, list(log.frames())
    for frame in frames:
        for block in frame.blocks:
            if isinstance(block, PointsBlock):
                seen[frame.source.rank or 0] += len(block.steps) // 8
                apart = max(apart, max(seen.values()) - min(seen.values()))
    assert (seen, apart <= 128) == ({0: 600, 1: 600, 2: 600}, True)
    tree = backtest(frames).state.fold.tree
    assert [(s.parent, s.fork_step, sorted(s.entered)) for s in tree][1:] == [(0, 300, [0, 1, 2])]


def test_a_tensorboard_folder_is_a_log_named_by_its_folder(tmp_path: Path) -> None:
    writer = pytest.importorskip("tensorboard.summary.writer.event_file_writer", reason="pip install tensorboard")
    event_pb2 = pytest.importorskip("tensorboard.compat.proto.event_pb2", reason="pip install tensorboard")
    summary_pb2 = pytest.importorskip("tensorboard.compat.proto.summary_pb2", reason="pip install tensorboard")
    for name in ("one", "two"):
        file = writer.EventFileWriter(str(tmp_path / name))
        for step in range(50):
            said = summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag="train/loss", simple_value=step / 2)])
            file.add_event(event_pb2.Event(wall_time=1e9 + step, step=step, summary=said))
        file.close()
    logs = list(read_files([tmp_path]))
    assert [log.name for log in logs] == [str(tmp_path / "one"), str(tmp_path / "two")]
    assert line(judged(logs[0])) == {step: step / 2 for step in range(50)}
    assert "train/loss is judged as loss" in logs[0].reading.notes[-1]


def test_a_table_is_read_as_the_import_reads_it(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,loss,lr\n1,2.0,0.1\n2,,0.1\n3,nan,0.1\n")
    [log] = read_files([tmp_path / "metrics.csv"])
    assert repr(line(judged(log))) == repr({1: 2.0, 3: math.nan})


_VALUES = st.sampled_from(
    [
        1,
        2.5,
        -0.0,
        None,
        math.nan,
        math.inf,
        -math.inf,
        "NaN",
        "Infinity",
        "-Infinity",
        True,
        False,
        "text",
        [1],
        10**40,
    ]
)
_ROWS = st.fixed_dictionaries(
    {"step": st.one_of(st.integers(0, 9), st.sampled_from([3.0, "4", 5.5, True, -1, "x"]))},
    optional={
        "loss": _VALUES,
        "a": _VALUES,
        "b": st.floats(width=16),
        "rank": st.sampled_from([0, 1, None, 2.0, "x"]),
        "phase": st.just("eval"),
        "batch_fp": st.sampled_from(["f", None]),
    },
)


def _plainly(row: dict[str, Any]) -> tuple[int, int, dict[str, str]] | None:
    """Return (rank, step, values as text) of a row as the README has it, None where it is none."""
    step, rank = row["step"], row.get("rank", 0)
    if isinstance(step, bool) or step in (5.5, -1, "x") or rank == "x":
        return None
    values = {}
    for name in ("loss", "a", "b"):
        value = row.get(name)
        if isinstance(value, int | float) or value in ("NaN", "Infinity", "-Infinity"):
            values[name] = repr(float(value))
    return int(rank or 0), int(step), values


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(_ROWS, max_size=12), bare=st.booleans())
def test_rows_read_at_once_are_what_they_are_one_by_one(tmp_path: Path, rows: list[dict[str, Any]], bare: bool) -> None:
    expected: dict[int, list[tuple[int, dict[str, str]]]] = {}
    for row in rows:
        if (plain := _plainly(row)) is not None and plain[2]:
            expected.setdefault(plain[0], []).append((plain[1], plain[2]))
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + ("" if bare else "no json\n"))
    found: dict[int, list[tuple[int, dict[str, str]]]] = {}
    try:
        [log] = read_files([path])
        frames = list(log.frames())
    except BadRequest:
        frames = []
    for frame in frames:
        for block in frame.blocks:
            if isinstance(block, PointsBlock):
                steps = np.frombuffer(block.steps, "<i8").tolist()
                columns = np.frombuffer(block.values, "<f8").reshape(len(block.names), -1).T.tolist()
                found.setdefault(frame.source.rank or 0, []).extend(
                    (step, dict(sorted(zip(block.names, map(repr, values), strict=True))))
                    for step, values in zip(steps, columns, strict=True)
                )
    assert found == {rank: [(step, dict(sorted(v.items()))) for step, v in some] for rank, some in expected.items()}


def test_a_log_of_numbers_alone_is_what_it_is_beside_texts(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    rows = [
        {"step": at // 2, "rank": at % 2, "t": 1.7e9 + at, "loss": float(rng.random()), "n": int(rng.integers(2**62))}
        for at in range(3_000)
    ]
    first, last = {"step": -1, "text": "x"}, {"step": 9_999, "text": "x"}

    alone, beside, behind = (
        [line(judged(log_of(tmp_path, *lines)), metric, rank) for metric in ("loss", "n") for rank in (0, 1)]
        for lines in (rows, [*rows, last], [first, *rows])
    )

    assert alone == beside == behind
    assert len(alone[0]) == 1_500
