"""Files as people have them: other keys for the step, times that are none, numbers as text, several runs in one."""

from __future__ import annotations

import gzip
import json
import math
import os
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from stabilitybackend.base.errors import BadRequest
from stabilityplugins.backtest.sources import read_files
from stabilityplugins.importers.detect import find_plans
from stabilityplugins.importers.job import ImportJob, Options
from support.imported_run import ImportedRun

#: The curve in every file.
ROWS = 40


def loss(at: int) -> float:
    return round(3.0 * math.exp(-at / 30) + 0.5, 4)


CURVE = {at: loss(at) for at in range(ROWS)}


def lines(rows: Iterable[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def table(header: str, row: Callable[[int], str]) -> str:
    return "".join(f"{line}\n" for line in (header, *map(row, range(ROWS))))


def comma(number: float) -> str:
    return str(number).replace(".", ",")


#: name of the file -> content: each holds CURVE under some spelling of the loss, at its steps.
FILES: dict[str, str | bytes] = {
    "current_steps.jsonl": lines(
        {"current_steps": at, "total_steps": 400, "loss": loss(at), "epoch": at / 100, "elapsed_time": "0:01:10"}
        for at in range(ROWS)
    ),
    "of_all.jsonl": lines(
        [
            *({"loss": loss(at), "global_step/max_steps": f"{at}/400", "elapsed_time": "6s"} for at in range(ROWS)),
            {"last_checkpoint": "x", "global_step": ROWS - 1, "log_history": [{"loss": 1.0, "step": 9}]},
        ]
    ),
    "texts.json": lines(
        {"epoch": 1, "update": f"{at / 100}", "loss": str(loss(at)), "num_updates": str(at)} for at in range(ROWS)
    ),
    "epochs.txt": lines({"train_lr": 1e-4, "train_loss": loss(at), "epoch": at} for at in range(ROWS)),
    "nested.jsonl": lines({"step": at, "data": {"train/loss": loss(at), "lr": 1e-5}} for at in range(ROWS)),
    "deeper.jsonl": lines({"step": at, "train": {"loss": loss(at)}, "val": {"acc": 0.5}} for at in range(ROWS)),
    "Capitals.jsonl": lines({"Step": at, "Loss": loss(at)} for at in range(ROWS)),
    "log_history.json": json.dumps([{"loss": str(loss(at)), "step": at} for at in range(ROWS)], indent=1),
    "run-a-tag-loss.json": json.dumps([[1.7e9 + at, at, loss(at)] for at in range(ROWS)]),
    "run-a-tag-loss.csv": table("Wall time,Step,Value", lambda at: f"{1.7e9 + at},{at},{loss(at)}"),
    "decimal_comma.csv": table("step;loss;lr", lambda at: f"{at};{comma(loss(at))};0,001"),
    "thousands.csv": table("step,loss,tokens", lambda at: f'{at},{loss(at)},"{1_000 + at:,}"'),
    "padded.csv": table("        step,    train/loss", lambda at: f"   {at},   {loss(at)}"),
    "old_mac.csv": table("step,loss", lambda at: f"{at},{loss(at)}").replace("\n", "\r"),
    "trailing.csv": table("step,loss", lambda at: f"{at},{loss(at)},"),
    "appended.csv": table("step,loss", lambda at: f"{at},{loss(at)}" + ("\nstep,loss" if at == 20 else "")),
    "utf16.csv": table("step,loss", lambda at: f"{at},{loss(at)}").encode("utf-16"),
    "bom.csv": table("step,loss", lambda at: f"{at},{loss(at)}").encode("utf-8-sig"),
    "utf16.jsonl": lines({"step": at, "loss": loss(at)} for at in range(ROWS)).encode("utf-16"),
    "packed.jsonl.gz": gzip.compress(lines({"step": at, "loss": loss(at)} for at in range(ROWS)).encode()),
    "packed.csv.gz": gzip.compress(table("step,loss", lambda at: f"{at},{loss(at)}").encode()),
    "long.csv": "metric,step,value\n"
    + "".join(f"{name},{at},{loss(at) if name == 'loss' else 0.1}\n" for name in ("loss", "lr") for at in range(ROWS)),
    "global_step.csv": table("epoch,step,global_step,loss", lambda at: f"{at // 10},{at % 10},{at},{loss(at)}"),
    "in_epoch.jsonl": lines({"epoch": at // 10, "step": at % 10, "loss": loss(at)} for at in range(ROWS)),
    "batches.jsonl": lines({"epoch": at // 10, "batch": at % 10, "loss": loss(at)} for at in range(ROWS)),
    "printed.log": "number of parameters: 123.59M\n"
    + table(
        "using fused AdamW: True",
        lambda at: (
            f"iter {at}: loss {loss(at)}, time 228.3ms, mfu 2.50%"
            + (f"\nstep {at}: train loss 2.1, val loss 2.2" if at % 20 == 0 else "")
        ),
    ),
    "of_all.log": table(
        "[2024-01-01 09:59:59] begins",
        lambda at: (
            f"\x1b[34m[2024-01-01 10:00:{at:02d}] iteration {at:8d}/    400 | consumed samples: {at:,} | "
            f"lm loss: {loss(at):E} | 1.2 ms | 56.7% bf16 MFU |\x1b[0m"
        ),
    ),
    "short.log": table("start", lambda at: f"step:{at}/400 train_loss:{loss(at)} train_time:{at}ms step_avg:4.5ms"),
    "blocks.txt": "".join(
        f"{'-' * 20}\n| epoch   | {at}  |\n| loss    | {loss(at)} |\n| lr  | 0.1 |\n" for at in range(ROWS)
    ),
    "below.txt": "".join(
        f"Epoch {at}/40\nTrain Loss: {loss(at)} - Acc: 0.5\n 50%|##  | 5/10 loss=9\n" for at in range(ROWS)
    ),
    "history.json": json.dumps({"loss": list(CURVE.values()), "lr": [0.1] * ROWS, "best": 3}, indent=1),
    "history_one_line.json": json.dumps({"loss": list(CURVE.values()), "val_loss": [2.0] * ROWS, "times": [1, 2]}),
    "frame.json": json.dumps({"epoch": dict(enumerate(range(ROWS))), "loss": dict(enumerate(CURVE.values()))}),
    "frame.csv": table(",loss,lr", lambda at: f"{at},{loss(at)},0.1"),
    "frame_of_frame.csv": table("Unnamed: 0,loss,epoch", lambda at: f"{at},{loss(at)},0"),
    "savetxt.csv": table("# step,loss", lambda at: f"{at:.18e},{loss(at):.18e}"),
    "commented.csv": table('#{"t_start": 1.7}\n# of us\nstep,loss', lambda at: f"{at},{loss(at)}"),
    "spaced.csv": table("tokens;step;loss", lambda at: f"1\u202f0{at:02d}\u00a0000;{at};{comma(loss(at))}"),
    "leading.log": "accumulation_steps: 4\nmax_steps: 900\n"
    + table("warmup_steps: 100", lambda at: f"s:{at} trl:{loss(at)} lr:0.000{at}"),
    "headings.log": "".join(
        (f"Epoch {at // 10 + 1}/4\n" if at % 10 == 0 else "")
        + f"  Batch {at % 10}/10 | Train Loss: {loss(at)} | lr: 0.1\n"
        for at in range(ROWS)
    ),
    "dated.log": "".join(
        f"2026-01-05 10:00:{at:02d},410 - INFO - Epoch {at}, loss: {loss(at)}, lr: 0.1\n" for at in range(ROWS)
    ),
    "Max.csv": table("Step,run-x - loss,run-x - loss__MIN,run-x - loss__MAX", lambda at: f"{at},{loss(at)},1,9"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_as_people_have_it_is_the_curve_that_it_holds(tmp_path: Path, name: str) -> None:
    content, run = FILES[name], ImportedRun()
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    result = run.take(tmp_path / name)

    assert curve_of(run) == CURVE
    assert (result.reading.count, run.forks()) == (0, [])


@pytest.mark.parametrize("name", FILES)
def test_a_backtest_reads_what_an_import_reads(tmp_path: Path, name: str) -> None:
    content, run = FILES[name], ImportedRun()
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    [log] = read_files([tmp_path / name])
    for frame in log.frames():
        run.feed(frame)

    assert curve_of(run) == CURVE


def curve_of(run: ImportedRun) -> dict[int, float]:
    """Return the loss, also where no known spelling is among the names."""
    name = next(name for name in ("loss", "Train Loss", "trl") if name in run.store.metrics())
    return {step: round(value, 4) for step, value in run.line(name).items()}


def notes(path: Path, **options: Any) -> str:
    return " | ".join(ImportedRun().take(path, **options).reading.notes)


def test_the_choice_among_several_step_columns_is_said(tmp_path: Path) -> None:
    said = {}
    for name in ("global_step.csv", "in_epoch.jsonl", "epochs.txt"):
        (tmp_path / name).write_text(str(FILES[name]))
        said[name] = notes(tmp_path / name)
    assert "the step is global_step, for step goes back 3 times" in said["global_step.csv"]
    assert "step begins again with each epoch, so the steps of the epochs before are added" in said["in_epoch.jsonl"]
    assert "the step is epoch, for no other column counts steps" in said["epochs.txt"]


def test_a_step_that_is_named_is_taken_as_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(str(FILES["in_epoch.jsonl"]))
    [plan] = find_plans([tmp_path / "a.jsonl"])
    job = ImportJob(plan, Options(step_key="step"))
    job.sniff()
    assert [step for batch in job.rows() for step in batch.steps.tolist()] == [at % 10 for at in range(ROWS)]


@pytest.mark.parametrize(
    ("times", "why"),
    [
        ([0.31 + at / 100 for at in range(ROWS)], "time is no date (0.31)"),
        ([3e8 + 1e6 * (at % 7) for at in range(ROWS)], "time goes back and forth"),
        ([f"0{1 + at % 9}/02/2024 10:00" for at in range(ROWS)], "where day and month can't be told apart"),
        (["soon"] * ROWS, "time is 'soon', which is no known form of a time"),
    ],
)
def test_what_is_no_moment_is_no_time_and_that_is_said(tmp_path: Path, times: list[Any], why: str) -> None:
    file, run = tmp_path / "a.jsonl", ImportedRun()
    file.write_text(lines({"step": at, "time": time, "loss": loss(at)} for at, time in enumerate(times)))

    result = run.take(file)

    [key] = run.store.keys("loss")
    assert run.store.rows(key).times[-1] == pytest.approx(file.stat().st_mtime)
    assert any(f"no times ({why}" in note or why in note for note in result.reading.notes)
    assert ("time" in run.store.metrics()) == isinstance(times[0], float)


@pytest.mark.parametrize(
    "form",
    ["%Y-%m-%dT%H:%M:%S+00:00", "%m/%d/%Y %I:%M:%S %p", "%d.%m.%Y %H:%M:%S", "%Y-%m-%d %H:%M:%S,500",
     "%a, %d %b %Y %H:%M:%S GMT", "%Y/%m/%d %H:%M:%S"],
)  # fmt: skip
def test_times_are_read_in_the_forms_that_people_write(tmp_path: Path, form: str) -> None:
    from datetime import UTC, datetime

    moments = [datetime(2024, 1, 25, 10, at, 0, tzinfo=UTC) for at in range(ROWS)]
    rows = ({"step": at, "time": moment.strftime(form), "loss": 1.0} for at, moment in enumerate(moments))
    (tmp_path / "a.jsonl").write_text(lines(rows))
    run = ImportedRun()
    run.take(tmp_path / "a.jsonl")
    [key] = run.store.keys("loss")
    assert [int(time) for time in run.store.rows(key).times.tolist()] == [int(m.timestamp()) for m in moments]


def test_a_column_of_time_spans_costs_no_file(tmp_path: Path) -> None:
    spans = [timedelta(seconds=at) for at in range(ROWS)]
    frame = pl.DataFrame({"step": range(ROWS), "time": spans, "loss": [str(value) for value in CURVE.values()]})
    frame.write_parquet(tmp_path / "a.parquet")
    run = ImportedRun()
    run.take(tmp_path / "a.parquet")
    assert run.line() == CURVE
    assert run.line("time")[3] == 3.0


def test_a_chart_of_several_runs_is_a_run_each_without_its_bounds(tmp_path: Path) -> None:
    names = [f"{run} - train/loss{bound}" for run in ("calm-1", "red-2") for bound in ("", "__MIN", "__MAX")]
    (tmp_path / "chart.csv").write_text(
        table(",".join(["Step", *names]), lambda at: f"{at},{loss(at)},0,9,{loss(at) + 1},0,9")
    )
    assert [plan.name for plan in find_plans([tmp_path / "chart.csv"])] == ["calm-1", "red-2"]
    found = [frames_of(log) for log in read_files([tmp_path / "chart.csv"])]
    assert found == [{at: round(value + extra, 4) for at, value in CURVE.items()} for extra in (0, 1)]
    with pytest.raises(BadRequest, match="holds several runs"):
        ImportedRun().take(tmp_path / "chart.csv")


def frames_of(log: Any) -> dict[int, float]:
    run = ImportedRun()
    for frame in log.frames():
        run.feed(frame)
    return {step: round(value, 4) for step, value in run.line().items()}


def test_a_long_table_with_runs_is_a_run_each(tmp_path: Path) -> None:
    rows = [f"{run},loss,{at},{loss(at)}" for at in range(ROWS) for run in ("a", "b")]
    (tmp_path / "long.csv").write_text("\n".join(["run,metric,step,value", *rows]) + "\n")
    assert [frames_of(log) for log in read_files([tmp_path / "long.csv"])] == [CURVE, CURVE]


def test_rows_that_never_have_a_step_are_at_the_newest_and_that_is_said(tmp_path: Path) -> None:
    rows = [{"step": at, "loss": loss(at)} for at in range(ROWS)]
    (tmp_path / "trainer_state.json").write_text(
        json.dumps({"log_history": [{"early": 1.0}, *rows, {"predict_loss": 0.5}, {"predict_runtime": 3.0}]})
    )
    run = ImportedRun()

    result = run.take(tmp_path / "trainer_state.json")

    assert run.line("predict_loss") == {ROWS - 1: 0.5}
    assert result.reading.count == 0
    assert "2 rows without step are at the step of the row before" in " ".join(result.reading.notes)
    assert "1 rows before the first step are left out" in " ".join(result.reading.notes)


def test_attempts_without_times_come_in_the_order_of_their_names_whatever_their_dates(tmp_path: Path) -> None:
    steps = {"version_2": range(60), "version_10": range(50, 120)}
    for name, found in steps.items():
        (tmp_path / name).mkdir()
        content = "".join(["step,loss\n", *(f"{at},{at + len(found) / 1_000}\n" for at in found)])
        (tmp_path / name / "metrics.csv").write_text(content)
        os.utime(tmp_path / name / "metrics.csv", (1_795_867_200,) * 2)
    run = ImportedRun()

    run.take(tmp_path)

    assert run.forks() == [(0, 49, "restart")]
    assert run.dead() == {0: list(range(50, 60))}
    assert sorted(run.line()) == list(range(120))


@pytest.mark.parametrize(("step", "written"), [(1_000, "1.000"), (12_000, "12.000"), (1_000, "1 000"), (7, "7")])
def test_a_step_of_a_decimal_comma_table_is_the_number_that_is_written(tmp_path: Path, step: int, written: str) -> None:
    (tmp_path / "a.csv").write_text(f"step;loss\n{written};2,9712\n")
    run = ImportedRun()
    run.take(tmp_path / "a.csv")
    assert run.line() == {step: 2.9712}


def test_epochs_that_are_fractions_are_counted_in_parts_and_that_is_said(tmp_path: Path) -> None:
    text = "".join(f"{{'loss': {loss(at)}, 'learning_rate': 1e-05, 'epoch': {at / 100}}}\n" for at in range(1, ROWS))
    (tmp_path / "stdout.log").write_text(text)
    run = ImportedRun()
    result = run.take(tmp_path / "stdout.log")
    assert run.line() == {at: loss(at) for at in range(1, ROWS)}
    assert any("the step is epoch in hundredths" in note for note in result.reading.notes)


def test_a_setting_that_is_printed_is_no_step(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("accumulation_steps: 4\nbatch_size: 8\nlabel_smooth: 0.1\n" * 7)
    with pytest.raises(BadRequest, match="nothing that can be imported"):
        find_plans([tmp_path / "a.log"])


@pytest.mark.parametrize("content", [{"sizes": [1, 2, 3], "names": ["a", "b", "c"]}, {"loss": [1.0]}])
def test_an_object_of_lists_without_a_curve_of_a_loss_is_no_log(tmp_path: Path, content: dict[str, Any]) -> None:
    (tmp_path / "a.json").write_text(json.dumps(content, indent=1))
    with pytest.raises(BadRequest):
        ImportedRun().take(tmp_path / "a.json")


def test_a_table_of_data_is_no_log_though_its_rows_are_numbered(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(table(",height,weight", lambda at: f"{at},{170 + at},{60 + at}"))
    with pytest.raises(BadRequest, match="no step column"):
        ImportedRun().take(tmp_path / "a.csv")


def test_no_rollbacks_keeps_one_curve(tmp_path: Path) -> None:
    steps = [*range(60), *range(50, 90)]
    (tmp_path / "a.jsonl").write_text(lines({"step": s, "loss": float(at)} for at, s in enumerate(steps)))
    run = ImportedRun()
    run.take(tmp_path / "a.jsonl", no_rollbacks=True)
    assert (run.forks(), run.dead()) == ([], {})


def test_a_file_without_a_step_names_its_keys_and_those_that_rise(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines({"sample": at, "loss": loss(at)} for at in range(ROWS)))
    with pytest.raises(BadRequest, match="its columns are sample, loss; rising: sample") as refused:
        ImportedRun().take(tmp_path / "a.jsonl")
    assert refused.value.hint == "name it: --step-key sample"


def test_a_file_of_which_no_row_can_be_read_names_the_reason(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines({"step": at, "\ud800": 1.0} for at in range(ROWS)))
    with pytest.raises(BadRequest, match="has no row that could be read: line 1, no JSON"):
        ImportedRun().take(tmp_path / "a.jsonl")


BAR = "".join(f"\r{at}%|##   | {at}/100 [00:0{at % 10}<00:10, loss=2.{at:02d}]" for at in range(100))


def test_an_odd_file_of_a_folder_leaves_the_others_whole(tmp_path: Path) -> None:
    (tmp_path / "good.jsonl").write_text(lines({"step": at, "loss": loss(at)} for at in range(ROWS)))
    (tmp_path / "bar.csv").write_text(BAR)
    (tmp_path / "deep.jsonl").write_text('{"step":1,"loss":' + "[" * 100_000)
    (tmp_path / "noise.csv").write_bytes(bytes(range(256)) * 40)
    run = ImportedRun()

    result = run.take(tmp_path)

    assert run.line() == CURVE
    assert {problem.file.name for problem in result.reading.named} == {"bar.csv", "deep.jsonl", "noise.csv"}


def test_a_progress_bar_is_nothing_that_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(BAR)
    with pytest.raises(BadRequest, match="nothing that can be imported"):
        find_plans([tmp_path / "train.log"])


def test_logs_with_names_that_say_little_are_found_where_nothing_else_is_known(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(lines({"epoch": at, "train_loss": loss(at)} for at in range(ROWS)))
    (tmp_path / "config.json").write_text('{"hidden_size": 8, "layers": 2}')
    (tmp_path / "notes.txt").write_text("warm-up, then cosine\n")
    run = ImportedRun()
    result = run.take(tmp_path)
    assert (run.line(), result.reading.count) == (CURVE, 0)
