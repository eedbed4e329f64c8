"""Rows of a job from stdin into a tracker, in a process of the tracker's own environment: it imports nothing of ours.

    python benchmarks/parts/peer_feeders.py mlflow|aim|trackio FOLDER

Writes the address of the run's page into FOLDER/address once all rows are logged, and stays alive, as the job does.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

#: Rows of one call to MLflow's log_batch: it takes 1,000 values at most.
ROWS_A_CALL = 200
#: Runs that are under way: Aim calls one finished that nobody holds any more.
UNDER_WAY: list[object] = []


def rows() -> Iterator[dict[str, float]]:
    """Yield the rows of the job as they come, until it hangs."""
    for line in sys.stdin:
        if not line.startswith("{"):
            return
        yield json.loads(line)


def feed_mlflow(folder: Path) -> str:
    """Log with log_batch, as fast loops are told to; return the address of the run's page."""
    import mlflow
    from mlflow.entities import Metric

    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    client = mlflow.MlflowClient()
    run = client.create_run(client.create_experiment("peers"), run_name="four mishaps")
    waiting: list[Metric] = []
    for row in rows():
        step, now = int(row.pop("step")), int(time.time() * 1000)
        waiting += [Metric(name, value, now, step) for name, value in row.items()]
        if len(waiting) >= ROWS_A_CALL * len(row):
            client.log_batch(run.info.run_id, waiting)
            waiting = []
    client.log_batch(run.info.run_id, waiting)
    return f"/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}/model-metrics"


def feed_aim(folder: Path) -> str:
    """Log with aim.Run.track; return the address of the run's page."""
    import aim

    run = aim.Run(repo=str(folder), experiment="peers", system_tracking_interval=None, capture_terminal_logs=False)
    run.name = "four mishaps"
    UNDER_WAY.append(run)
    for row in rows():
        step = int(row.pop("step"))
        for name, value in row.items():
            run.track(value, name=name, step=step)
    return f"/runs/{run.hash}/metrics"


def feed_trackio(folder: Path) -> str:
    """Log with trackio.log; return the address of the project's page."""
    os.environ["TRACKIO_DIR"] = str(folder)
    import trackio

    trackio.init(project="peers", name="four mishaps", embed=False)
    for row in rows():
        step = int(row.pop("step"))
        trackio.log(row, step=step)
    time.sleep(5)  # it sends in batches, by a thread
    return "/?project=peers&navbar=hidden"


FEEDERS: dict[str, Callable[[Path], str]] = {"mlflow": feed_mlflow, "aim": feed_aim, "trackio": feed_trackio}


def feed(name: str, folder: Path) -> None:
    """Log all rows, write the address of the page, and stay alive, as the job does."""
    address = FEEDERS[name](folder)
    (folder / "address").write_text(address)
    time.sleep(100_000)


if __name__ == "__main__":
    feed(sys.argv[1], Path(sys.argv[2]))
