"""W&B files, CSV, Parquet, trainer_state.json: real files where a library writes them, with holes and damage."""

from __future__ import annotations

import json
import math
import os
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from stabilitybackend.base.errors import BadRequest, StabilityBoardError
from stabilityclient.wire import FRAME_TARGET_BYTES, encode_message
from stabilityplugins.importers.base import FilePart
from stabilityplugins.importers.batches import Batch, Grouper, Who
from stabilityplugins.importers.csv_files import CsvImporter
from stabilityplugins.importers.detect import find_plans
from stabilityplugins.importers.job import ImportJob, Options
from stabilityplugins.importers.problems import Reading
from support.imported_run import ImportedRun


@pytest.fixture(scope="module")
def wandb_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that W&B wrote offline: 300 rows, one NaN, one infinity, a nested key, a text."""
    wandb = pytest.importorskip("wandb", reason="pip install wandb (62 MB; not in requirements/test.txt)")
    folder = tmp_path_factory.mktemp("wandb")
    before = dict(os.environ)
    try:
        options = wandb.Settings(console="off", x_disable_stats=True, x_disable_meta=True, silent=True)
        run = wandb.init(
            mode="offline", project="p", name="n", id="abc123", dir=str(folder), config={"lr": 0.1}, settings=options
        )
        for step in range(300):
            loss = {7: math.nan, 8: math.inf}.get(step, step / 2)
            run.log({"train/loss": loss, "deep": {"a": step}, "text": "hello", "train/global_step": step * 10})
        run.finish()
        wandb.teardown()
    finally:
        os.environ.clear()
        os.environ.update(before)
    [path] = folder.rglob("*.wandb")
    return path


def test_a_wandb_file_is_the_run_that_it_says_it_is(wandb_file: Path) -> None:
    [plan] = find_plans([wandb_file.parents[1]])
    assert (plan.run_id, plan.name, plan.project, plan.config) == ("abc123", "n", "p", {"lr": 0.1})
    run = ImportedRun()

    result = run.take(wandb_file)

    line = run.line()
    assert [line[60], str(line[70]), line[80], line[90]] == [3.0, "nan", math.inf, 4.5]
    assert run.line("deep.a")[2990] == 299.0
    assert result.reading.count == 0
    assert (
        "the step is train/global_step; for W&B's own count of log calls: --step-key _step" in result.reading.notes[0]
    )
    assert result.reading.notes[1].endswith("no numbers, so left out: text")


@pytest.mark.parametrize(("step_key", "last"), [("train/global_step", 2990), ("_step", 299), ("deep.a", 299)])
def test_the_step_of_a_wandb_file_can_be_named(wandb_file: Path, step_key: str, last: int) -> None:
    run = ImportedRun()
    run.take(wandb_file, step_key=step_key)
    assert max(run.line()) == last


def test_a_wandb_file_with_damage_names_the_byte_and_goes_on_behind_it(wandb_file: Path, tmp_path: Path) -> None:
    data = bytearray(wandb_file.read_bytes())
    assert len(data) > 3 * 32 * 1024
    data[40_000] ^= 0xFF
    damaged = tmp_path / "run-abc123.wandb"
    damaged.write_bytes(data[:-100])
    run = ImportedRun()

    result = run.take(damaged)

    first, last = result.reading.named
    assert int(first.place.removeprefix("byte ")) <= 40_000
    assert first.reason == "damaged; skipped to byte 65536"
    assert "the last record is cut" in last.reason
    assert 100 < len(run.line()) < 300
    assert run.line()[2500] == 125.0


def write_lightning(path: Path) -> Path:
    path.write_text(
        "epoch,step,train_loss,val_loss\n0,0,1.5,\n0,1,oops,\n0,1,again,\n0,2,nan,\n0,2,,0.75\n1,3,-inf,\n1,x,1,1\n1,4,0.5\n1,5,0.25,\n"
    )
    return path


def test_lightning_leaves_cells_empty_and_what_is_no_number_is_named_by_line_and_column(tmp_path: Path) -> None:
    file = write_lightning(tmp_path / "metrics.csv")
    run = ImportedRun()

    result = run.take(tmp_path)

    line = run.line()
    assert {step: str(value) for step, value in line.items()} == {0: "1.5", 2: "nan", 3: "-inf", 5: "0.25"}
    assert run.line("val_loss") == {2: 0.75}
    assert result.reading.lines() == [
        f"{file}, line 3, train_loss: 'oops' is no number",
        f"{file}, line 4, train_loss: 'again' is no number",
        f"{file}, line 8: the step is 'x', expected a whole number",
        f"{file}, line 9: 3 cells, expected 4 as in the first line",
    ]
    assert run.take(tmp_path).rows == 0


def test_a_table_that_is_written_anew_at_each_save_has_each_of_its_rows_once(tmp_path: Path) -> None:
    rows = [f"{step},{3 / (1 + step)}\n" for step in range(60)]
    save = ["step,loss\n" + "".join(rows[:count]) for count in range(1, 61)]
    file = tmp_path / "history.csv"
    run = ImportedRun()

    file.write_text("".join(save[:40]))
    first = run.take(file)
    file.write_text("".join(save))
    second = run.take(file)

    assert (first.rows, second.rows) == (40, 20)
    assert run.line() == {step: 3 / (1 + step) for step in range(60)}


def test_a_run_that_begins_again_below_the_same_header_keeps_what_it_logged_anew(tmp_path: Path) -> None:
    before = "".join(f"{step},{2.0 + step / 100}\n" for step in range(60))
    after = "".join(f"{step},{2.0 + step / (100 if step < 30 else 200)}\n" for step in range(90))
    (tmp_path / "history.csv").write_text(f"step,loss\n{before}step,loss\n{after}")

    result = (run := ImportedRun()).take(tmp_path / "history.csv")

    assert result.rows == 120
    assert run.line() == {step: 2.0 + step / (100 if step < 30 else 200) for step in range(90)}


def test_a_csv_without_a_step_column_says_which_columns_it_has(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    with pytest.raises(BadRequest, match=r"a\.csv has no step column: its columns are a, b") as refused:
        ImportedRun().take(tmp_path / "a.csv")
    assert refused.value.hint == "name it: --step-key COLUMN"


@pytest.mark.parametrize(
    "written", ["1700000000.5", "1700000000500", "1700000000500000", "2023-11-14T22:13:20.5+00:00"]
)
def test_times_in_other_units_are_unix_seconds(tmp_path: Path, written: str) -> None:
    (tmp_path / "a.csv").write_text(f"step,timestamp,loss\n0,{written},1\n")
    run = ImportedRun()
    run.take(tmp_path / "a.csv")
    [key] = run.store.keys("loss")
    assert run.store.rows(key).times.tolist() == [1700000000.5]


def wide() -> pl.DataFrame:
    return pl.DataFrame(
        {
            "_step": [0, 1, 2, 3, None, 5],
            "_timestamp": [1e9, 1e9 + 1, 1e9 + 2, None, 1e9 + 4, 1e9 + 5],
            "_runtime": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
            "loss": [1.0, math.nan, None, math.inf, 9.0, 0.5],
            "acc": [None, None, 0.5, 0.6, 0.7, None],
            "text": ["a", "b", "c", "d", "e", "f"],
        }
    )


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_an_exported_wandb_history_keeps_nan_apart_from_missing(tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"history.{kind}"
    wide().write_parquet(file) if kind == "parquet" else wide().write_csv(file)
    run = ImportedRun()

    result = run.take(file)

    assert {s: str(v) for s, v in run.line().items()} == {0: "1.0", 1: "nan", 3: "inf", 5: "0.5"}
    assert run.line("acc") == {2: 0.5, 3: 0.6}
    assert run.store.metrics() == ["loss", "acc"]
    assert result.reading.count == 1
    assert result.reading.notes[0] == f"{file}: no numbers, so left out: text"
    [key] = run.store.keys("loss")
    assert run.store.rows(key).times.tolist() == [1e9, 1e9 + 1, 1e9 + 2, 1e9 + 5]


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_an_exported_wandb_history_says_where_its_training_step_stands(tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"history.{kind}"
    table = wide().with_columns(pl.col("_step").alias("trainer/global_step"))
    {"csv": table.write_csv, "parquet": table.write_parquet, "jsonl": table.write_ndjson}[kind](file)
    notes = ImportedRun().take(file).reading.notes
    assert [note for note in notes if note.endswith("--step-key trainer/global_step")]


def test_a_truncated_parquet_file_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "history.parquet"
    wide().write_parquet(file)
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(BadRequest, match=r"history\.parquet can't be read as Parquet"):
        ImportedRun().take(file)


def history(steps: int, **extra: Any) -> list[dict[str, Any]]:
    entries = [
        {"epoch": s / 10, "step": s, "loss": 1 / (s + 1), "grad_norm": 1.0, "learning_rate": 1e-4}
        for s in range(1, steps)
    ]
    return [*entries, {"epoch": 1.0, "step": steps, "eval_loss": 0.5, "eval_runtime": 2.0}, {**extra, "step": steps}]


def write_state(folder: Path, entries: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer_state.json").write_text(json.dumps({"best_metric": None, "log_history": entries}, indent=2))
    return folder


def test_the_longest_trainer_state_of_an_output_folder_is_the_run(tmp_path: Path) -> None:
    write_state(tmp_path / "out/checkpoint-5", history(5))
    write_state(tmp_path / "out/checkpoint-20", history(20, train_loss=0.3, train_runtime=9.0))
    run = ImportedRun()

    [plan] = find_plans([tmp_path / "out"])
    result = run.take(*plan.paths)

    assert plan.name == "out"
    assert plan.notes[0].startswith(f"{tmp_path / 'out/checkpoint-20/trainer_state.json'} is taken")
    assert run.line()[19] == 1 / 20
    assert run.line("eval_loss") == {20: 0.5}
    assert run.line("train_loss") == {20: 0.3}
    assert run.line("lr")[1] == 1e-4
    assert result.renames == {"learning_rate": "lr"}
    assert run.forks() == []


def test_a_trainer_state_of_a_run_that_went_back_is_refused_as_written_anew(tmp_path: Path) -> None:
    run = ImportedRun()
    run.take(write_state(tmp_path, history(20)))
    again = [*history(20)[:9], *({**entry, "loss": 7.0} for entry in history(20)[9:19]), *history(20)[19:]]
    with pytest.raises(BadRequest, match="was rewritten"):
        run.take(write_state(tmp_path, again))


def test_a_trainer_state_that_was_cut_is_named(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_bytes(b'{"log_history": [')
    with pytest.raises(BadRequest, match=r"trainer_state\.json is no JSON"):
        ImportedRun().take(tmp_path / "trainer_state.json")


def test_a_trainer_state_that_was_cut_leaves_those_of_older_checkpoints(tmp_path: Path) -> None:
    write_state(tmp_path / "checkpoint-5", history(5))
    cut = write_state(tmp_path / "checkpoint-20", history(20)) / "trainer_state.json"
    cut.write_bytes(cut.read_bytes()[:300])
    run = ImportedRun()

    result = run.take(tmp_path)

    assert list(run.line()) == [1, 2, 3, 4]
    assert [problem.file for problem in result.reading.named] == [cut]


def test_a_table_without_a_column_of_numbers_is_refused_with_its_columns(tmp_path: Path) -> None:
    pl.DataFrame({"step": [1, 2], "loss": ["a", "b"]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(BadRequest, match="no column of numbers beside the step: its columns are step, loss"):
        ImportedRun().take(tmp_path / "a.parquet")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_row_of_a_rank_that_no_job_has_is_named(tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"a.{kind}"
    table = pl.DataFrame({"step": [1, 2, 3, 4], "rank": [0, -1, 2**40, None], "loss": [1.0, 2.0, 3.0, 4.0]})
    table.write_parquet(file) if kind == "parquet" else table.write_csv(file)
    run = ImportedRun()

    result = run.take(file)

    assert run.line() == {1: 1.0, 4: 4.0}
    assert result.reading.count == 2


def test_times_of_a_table_are_unix_seconds_whatever_they_are_written_in(tmp_path: Path) -> None:
    written = {
        "ms": [1.7e12, math.nan, math.inf, None, 1.7e12 + 1_000],
        "iso": ["2023-11-14T22:13:20", "soon", None, "NaN", "2023-11-14T22:13:21Z"],
    }
    for name, times in written.items():
        table = pl.DataFrame({"step": range(5), "loss": [1.0] * 5, "time": times})
        table.write_parquet(tmp_path / f"{name}.parquet")
        run = ImportedRun()
        run.take(tmp_path / f"{name}.parquet")
        [key] = run.store.keys("loss")
        assert run.store.rows(key).times.tolist() == [1.7e9, 1.7e9, 1.7e9, 1.7e9, 1.7e9 + 1]


def test_a_table_of_many_rows_leaves_in_frames_of_the_usual_size(tmp_path: Path) -> None:
    file = tmp_path / "wide.parquet"
    pl.DataFrame({"step": range(50_000), "t": range(50_000), "loss": [0.5] * 50_000}).write_parquet(file)
    job = ImportJob(find_plans([file])[0], Options())
    job.sniff()

    sizes = [len(encode_message(frame)) for frame in job.frames({})]

    assert max(sizes) < 2 * FRAME_TARGET_BYTES
    assert job.result().rows == 50_000


@pytest.mark.parametrize(
    ("module", "name", "content"),
    [
        ("wandb.proto.wandb_internal_pb2", "run-x.wandb", b":W&B\xe1\xbe\x00"),
        ("tensorboard.compat.proto.event_pb2", "events.out.tfevents.1.n.2.0", b""),
    ],
)
def test_a_reader_without_its_package_says_how_to_get_it(
    module: str, name: str, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_bytes(content)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(StabilityBoardError, match="read with the package") as refused:
        ImportedRun().take(tmp_path / name)
    assert refused.value.hint == 'pip install "stabilityboard[import]"'


class _NeverFlushes(CsvImporter):
    def read(self, path: Path, number: int, reading: Reading, **_: object) -> Iterator[Batch]:
        groups = Grouper(reading)
        for item, line in enumerate(path.read_text().splitlines()[1:], 1):
            yield from groups.add(Who(number, 0), item, ("loss",), item, 1e9 + item, array("d", [float(line)]))


def test_rows_that_a_reader_left_in_its_grouper_come_at_the_end_of_each_file(
    tmp_path: Path,
) -> None:
    files = [FilePart((tmp_path / name,)) for name in ("a.csv", "b.csv")]
    for part in files:
        part.paths[0].write_text("loss\n1\n2\n3\n")

    batches = [*_NeverFlushes().batches(files, Reading(), None)]

    assert [(batch.who.file, batch.steps.tolist()) for batch in batches] == [
        (0, [1]),
        (0, [2, 3]),
        (1, [1]),
        (1, [2, 3]),
    ]
