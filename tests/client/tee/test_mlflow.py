"""What a script tells MLflow and Trackio comes to our run: their own stores are the truth, value by value."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from support.agent.teed import teed
from support.installed import needs

MLFLOW = """
    import math, os, random, mlflow
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

    mlflow.set_tracking_uri("file:" + os.path.abspath("mlruns"))
    random.seed(11)
    with mlflow.start_run() as run:
        mlflow.log_params({"lr": 0.1})
        mlflow.log_param("optimizer", "adam")
        for step in range(1, 30):
            mlflow.log_metric("loss", random.random(), step=step)
            mlflow.log_metrics({"accuracy": random.random(), "grad/norm": random.expovariate(1)}, step=step)
        client = MlflowClient()
        client.log_metric(run.info.run_id, "client", math.inf, step=30)
        rows = [Metric("batch", 1.0, 0, 31), Metric("other", math.nan, 0, 31), Metric("batch", 3.0, 0, 32)]
        client.log_batch(run.info.run_id, metrics=rows, params=[Param("more", "x")])
        try:
            mlflow.log_metric("wrong", "text")
        except Exception as error:
            print("raised as ever")
        mlflow.log_metric("without a step", 2.0)
"""


@needs("mlflow", "the script of this test uses MLflow")
def test_each_metric_of_mlflow_comes_under_its_key_at_its_step(tmp_path: Path) -> None:
    done = teed(tmp_path, MLFLOW, MLFLOW_ALLOW_FILE_STORE="true")

    assert (done.code, done.out) == (0, "raised as ever\n"), done.err
    (metrics,) = tmp_path.glob("mlruns/*/*/metrics")
    for file in (path for path in metrics.rglob("*") if path.is_file() and path.name != "without a step"):
        lines = [line.split() for line in file.read_text().splitlines()]
        true = [(int(step), float(value)) for _, value, step in lines]
        assert repr(done.values(str(file.relative_to(metrics)))) == repr(true)
    assert done.values("without a step") == [(32, 2.0)]
    assert done.config() == {"lr": 0.1, "optimizer": "adam", "more": "x"}


TRACKIO = """
    import numpy as np, trackio

    trackio.init(project="p", name="n", config={"lr": 1}, embed=False)
    for number in range(4):
        trackio.log({"loss": 1.0 / (number + 1), "x": np.float32(2.5)})
    trackio.log({"loss": 9.0}, step=20)
    trackio.log({"loss": 8.0, "note": "text"})
    trackio.finish()
"""


@needs("trackio", "the script of this test uses Trackio")
def test_each_metric_of_trackio_comes_under_its_key_at_its_step(tmp_path: Path) -> None:
    done = teed(tmp_path, TRACKIO, TRACKIO_DIR=str(tmp_path / "trackio"))

    with sqlite3.connect(tmp_path / "trackio" / "p.db") as store:
        true = store.execute("select step, json_extract(metrics, '$.loss') from metrics order by step").fetchall()
    assert (done.code, done.values("loss")) == (0, true), done.err
    assert done.config() == {"lr": 1}
