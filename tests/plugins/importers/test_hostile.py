"""Folders of somebody else: nothing outside of them is read, memory stays bounded, and no file ends in a traceback."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stabilitybackend.base.errors import StabilityBoardError
from stabilityplugins.backtest.sources import read_files
from stabilityplugins.importers.detect import find_plans
from stabilityplugins.importers.formats import FORMATS
from support.imported_run import ImportedRun

SECRET = "the password of somebody"


def mlflow_run(folder: Path) -> Path:
    run = folder / "mlruns/0/aaaa"
    for part in ("metrics", "params"):
        (run / part).mkdir(parents=True)
    (run / "meta.yaml").write_text("run_id: aaaa\nrun_name: x\nstatus: 3\n")
    (run / "metrics/loss").write_text("".join(f"{1_700_000_000_000 + at} 1.5 {at}\n" for at in range(20)))
    return run


def test_no_link_leads_out_of_the_folder_that_was_given(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text(SECRET)
    (outside / "other.jsonl").write_text(json.dumps({"step": 1, "secret": 1.0}) + "\n")
    run = mlflow_run(tmp_path / "given")
    (run / "params/lr").symlink_to(outside / "secret")
    (run / "params/dir").symlink_to(outside)
    (run / "metrics/x").symlink_to(outside / "secret")
    [plan] = find_plans([tmp_path / "given"])
    assert SECRET not in str(plan)
    assert plan.config == {}
    assert "links out of the run are left out: metrics/x, params/" in plan.notes[0]
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "good.jsonl").write_text(json.dumps({"step": 1, "loss": 1.0}) + "\n")
    (logs / "link.jsonl").symlink_to(outside / "other.jsonl")
    imported = ImportedRun()

    result = imported.take(logs)

    assert imported.store.metrics() == ["loss"]
    assert [(problem.file.name, "is a link out of" in problem.reason) for problem in result.reading.named] == [
        ("link.jsonl", True)
    ]


def test_a_metric_that_is_a_hole_of_40_gib_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    run = mlflow_run(tmp_path)
    with (run / "metrics/big").open("wb") as file:
        file.truncate(40 << 30)
    imported = ImportedRun()

    result = imported.take(tmp_path)

    assert len(imported.line()) == 20
    assert [(problem.file.name, problem.place) for problem in result.reading.named] == [("big", "line 1")]


def test_a_line_that_is_nested_too_deeply_is_named_and_the_next_is_read(tmp_path: Path) -> None:
    rows = "".join(json.dumps({"step": at, "loss": 1.0}) + "\n" for at in range(20))
    (tmp_path / "a.jsonl").write_text('{"step":1,"loss":' + "[" * 100_000 + "\n" + rows)
    run = ImportedRun()

    result = run.take(tmp_path / "a.jsonl")

    assert len(run.line()) == 20
    assert [problem.place for problem in result.reading.named] == ["line 1"]


_NAMES = (
    "a.jsonl", "a.csv", "a.json", "a.log", "a.parquet", "run-x.wandb", "events.out.tfevents.1.n.2.0",
    "trainer_state.json", "a.csv.gz", "meta.yaml",
)  # fmt: skip
#: Beginnings of files of each format, so that the noise is met by the reader and not only by the door.
_BEGINNINGS = (
    b"", b'{"step": 1, "loss": 2.0}\n', b"step,loss\n1,2\n", b"PAR1", b":W&B\xe1\xbe\x00", b'[{"step": 1, "loss": 2}',
    b'{"log_history": [', b"\x1f\x8b\x08\x00\x00\x00\x00\x00", b"\xff\xfes\x00t\x00e\x00p\x00,\x00a\x00\n\x00",
    b"run_id: x\n", b"step;loss\r1;2,5\r", b"metric,step,value\nloss,1,", b"Step,a - loss,b - loss\n1,",
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(_NAMES),
    begin=st.sampled_from(_BEGINNINGS),
    noise=st.one_of(st.binary(max_size=200), st.text(max_size=100).map(lambda text: text.encode("utf-8", "replace"))),
)
def test_no_importer_ends_with_anything_but_words_on_random_bytes(
    tmp_path: Path, name: str, begin: bytes, noise: bytes
) -> None:
    file = tmp_path / name
    file.write_bytes(begin + noise)
    for read in (lambda: ImportedRun().take(file), lambda: [list(log.frames()) for log in read_files([file])]):
        said = ""
        try:
            read()
        except (StabilityBoardError, OSError) as error:
            said = str(error)
        assert "its reader failed" not in said


@pytest.mark.parametrize("name", [one.name for one in FORMATS])
def test_a_pipe_is_no_file_of_any_format(tmp_path: Path, name: str) -> None:
    (tmp_path / "good.jsonl").write_text(json.dumps({"step": 1, "loss": 1.0}) + "\n")
    suffixes = next(one for one in FORMATS if one.name == name).suffixes or (".jsonl",)
    os.mkfifo(tmp_path / f"pipe{suffixes[0]}")
    assert ImportedRun().take(tmp_path).reading.count == 1
