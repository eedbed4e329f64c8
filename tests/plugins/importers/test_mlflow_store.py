"""A run of MLflow's file store is imported with all values at their steps, its name, experiment and parameters."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from stabilityplugins.importers.detect import find_plans
from support.imported_run import ImportedRun
from support.installed import needs

RUN = "8da8e35ccb6c47c5a9630e856eb43fd2"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """What MLflow 3.5 writes for a run with a nested metric, NaN, an infinity and a step that is logged twice."""
    run = tmp_path / "mlruns" / "234133389891118094" / RUN
    for name, text in {
        "../meta.yaml": "artifact_location: file:///a\nexperiment_id: '234133389891118094'\nname: llm\n",
        "meta.yaml": f"artifact_uri: file:///a\nend_time: 3\nrun_id: {RUN}\nrun_name: mine\nstatus: 3\n",
        "metrics/loss": "1700000000000 2.5 1\n1700000001000 nan 2\n1700000002000 inf 3\n1700000003000 1.5 3\n",
        "metrics/grad/norm": "1700000000000 0.25 1 - -\n1700000001000 0.5 2 - -\n",
        "params/lr": "0.1",
        "params/optimizer": "adam",
        "tags/mlflow.user": "x",
    }.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(text)
    return tmp_path / "mlruns"


def test_a_store_says_which_runs_it_holds(store: Path) -> None:
    [plan] = find_plans([store])

    assert (plan.kind, plan.run_id, plan.name, plan.project) == ("mlflow", RUN, "mine", "llm")
    assert plan.config == {"lr": 0.1, "optimizer": "adam"}


def test_each_value_is_at_its_step(store: Path) -> None:
    run = ImportedRun()
    result = run.take(store)

    line = run.line("loss")
    assert (line[1], math.isnan(line[2]), run.line("grad/norm")) == (2.5, True, {1: 0.25, 2: 0.5})
    assert line[3] in (math.inf, 1.5)
    assert result.reading.count == 0


def test_a_line_that_is_no_value_is_named_and_the_rest_is_imported(store: Path) -> None:
    file = store / "234133389891118094" / RUN / "metrics" / "loss"
    file.write_text(file.read_text() + "1700000004000 1.0\n1700000005000 text 5\n1700000006000 1.0 -5\n")
    run = ImportedRun()

    result = run.take(store)

    assert [one.place for one in result.reading.named] == ["line 5", "line 6", "line 7"]
    assert run.line("loss")[1] == 2.5


@needs("mlflow", "this test lets MLflow write its own store")
def test_what_mlflow_wrote_itself_is_imported_value_by_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    import mlflow

    mlflow.set_tracking_uri(f"file:{tmp_path / 'mlruns'}")
    with mlflow.start_run():
        for step in range(50):
            mlflow.log_metrics({"loss": 1 / (step + 1), "a/b": step * 0.1}, step=step)
    run = ImportedRun()
    run.take(tmp_path / "mlruns")

    assert run.line("loss") == {step: 1 / (step + 1) for step in range(50)}
    assert run.line("a/b") == {step: step * 0.1 for step in range(50)}
