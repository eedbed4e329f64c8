"""Reads the loss of a big run as peers do, for timeline.py: a plain Polars scan, TensorBoard, trackio.

Each gets the effective loss only (what a plain, never rolled back run would have), and is timed when it has loaded
what it loads. How many of the planted values its answer shows stands beside the time.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import httpx
import numpy as np
from big_run import _BATCH_ROWS, METRICS, Story
from numpy.typing import NDArray
from parts.server_process import free_port

__all__ = ["peer_times"]

POINTS = 2_000
REPEATS = 5
METRIC = "loss"
LOAD_TIMEOUT_S = 300.0
_TROUBLE = (ImportError, OSError, RuntimeError, ValueError, KeyError, AttributeError, TypeError)


def peer_times(story: Story, data_dir: Path) -> dict[str, float | str]:
    """Return name -> ms, or why it could not be measured.

    Args:
        story: of the run. data_dir: of the server that has archived it.
    """
    steps, values, times = effective_loss(story)
    found: dict[str, float | str] = {}
    peers: dict[str, Callable[[], dict[str, float]]] = {
        "Polars": lambda: polars_scan(story, data_dir),
        "TensorBoard": lambda: tensorboard(story, steps, values, times),
        "trackio": lambda: trackio(story, steps, values),
    }
    for name, measure in peers.items():
        try:
            found |= measure()
        except _TROUBLE as error:
            found[name] = f"left out: {type(error).__name__}: {error}"[:150]
    return found


def effective_loss(story: Story) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Return steps, values and times of the effective path."""
    steps, values, times = [], [], []
    for number, first, last in story.effective():
        stretch = story.stretches[number]
        for batch in range(-(-len(stretch) // _BATCH_ROWS)):
            at = stretch.first + batch * _BATCH_ROWS
            row = story.values(stretch, batch)[METRICS.index(METRIC)]
            here = np.arange(at, at + len(row))
            keep = (here >= first) & (here <= last)
            steps.append(here[keep])
            values.append(row[keep])
            times.append(story.times(stretch, batch)[keep])
    return np.concatenate(steps), np.concatenate(values), np.concatenate(times)


def shown(story: Story, pairs: Iterable[tuple[int, float]]) -> str:
    """Return how many of the planted values are among (step, value) pairs."""
    plants = {plant.step: plant.value for plant in story.plants if plant.metric == METRIC}
    seen = {step for step, value in pairs if step in plants and str(np.float32(plants[step])) == str(np.float32(value))}
    return f"{len(seen)} of {len(plants)} planted shown"


def _timed(work: Callable[[], object]) -> float:
    took = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        work()
        took.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(took)


def polars_scan(story: Story, data_dir: Path) -> dict[str, float]:
    """Scan the archived points with one filter, then keep the least and the greatest value of each bucket."""
    import polars as pl

    files = sorted((data_dir / "archive" / "big").glob("*.points.parquet"))
    if not files:
        raise ValueError("the server has archived nothing")
    path = [
        (pl.col("segment") == number) & pl.col("step").is_between(first, last)
        for number, first, last in story.effective()
    ]
    width = max(1, -(-story.steps // (POINTS // 2)))
    rows = (
        pl.scan_parquet(files)
        .filter((pl.col("metric") == METRIC) & pl.any_horizontal(path))
        .select("step", "value")
        .sort("step")
    )
    drawn = (
        rows.group_by(pl.col("step") // width, maintain_order=True)
        .agg(
            low=pl.col("value").min(), high=pl.col("value").max(),
            low_at=pl.col("step").get(pl.col("value").arg_min()), high_at=pl.col("step").get(pl.col("value").arg_max()),
        )
    )  # fmt: skip
    frame = drawn.collect()
    pairs = [*zip(frame["low_at"], frame["low"], strict=True), *zip(frame["high_at"], frame["high"], strict=True)]
    part = rows.select(pl.len()).collect().item() / sum(last - first + 1 for _, first, last in story.effective())
    what = f"Polars scan of the {100 * part:.0f} % that are archived"
    name = f"{what}, min and max of buckets, {shown(story, pairs)}"
    return {name: _timed(drawn.collect), f"{what}, nothing down-sampled": _timed(rows.collect)}


def tensorboard(
    story: Story, steps: NDArray[np.int64], values: NDArray[np.float64], times: NDArray[np.float64]
) -> dict[str, float]:
    """Write an event file, then ask TensorBoard's server (it samples) and its EventAccumulator (all points)."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    with tempfile.TemporaryDirectory(prefix="events-") as folder:
        writer = EventFileWriter(f"{folder}/run", max_queue_size=1_000, flush_secs=60)
        for step, value, when in zip(steps.tolist(), values.tolist(), times.tolist(), strict=True):
            summary = Summary(value=[Summary.Value(tag=METRIC, simple_value=value)])
            writer.add_event(Event(wall_time=when, step=step, summary=summary))
        writer.close()
        found = _tensorboard_server(story, Path(folder), int(steps[-1]))
        begin = time.perf_counter()
        events = EventAccumulator(f"{folder}/run", size_guidance={"scalars": 0})
        events.Reload()
        read = events.Scalars(METRIC)
        took_ms = (time.perf_counter() - begin) * 1e3
        pairs = ((event.step, event.value) for event in read)
        return found | {f"TensorBoard EventAccumulator, all points, {shown(story, pairs)}": took_ms}


def _tensorboard_server(story: Story, folder: Path, last_step: int) -> dict[str, float]:
    port = free_port()
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--port", str(port)]
    command += ["--samples_per_plugin", f"scalars={POINTS}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    begin = time.perf_counter()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30.0) as client:
            rows: list[list[float]] = []
            while not rows or rows[-1][1] != last_step:
                if time.perf_counter() - begin > LOAD_TIMEOUT_S:
                    raise RuntimeError(f"its server did not load the run within {LOAD_TIMEOUT_S:.0f} s")
                time.sleep(0.5)
                try:
                    answer = client.get("/data/plugin/scalars/scalars", params={"run": "run", "tag": METRIC})
                except httpx.HTTPError:
                    continue
                rows = answer.json() if answer.status_code == 200 else []
            load_ms = (time.perf_counter() - begin) * 1e3
            took_ms = _timed(
                lambda: client.get("/data/plugin/scalars/scalars", params={"run": "run", "tag": METRIC}).content
            )
        pairs = ((int(step), float(value)) for _, step, value in rows)
        name = f"TensorBoard server, {len(rows):,} sampled, {shown(story, pairs)}"
        return {name: took_ms, "TensorBoard server, start until the run is loaded": load_ms}
    finally:
        process.terminate()
        process.wait(10)


def trackio(story: Story, steps: NDArray[np.int64], values: NDArray[np.float64]) -> dict[str, float]:
    """Put the loss into trackio's SQLite file, then read it as its dashboard does."""
    with tempfile.TemporaryDirectory(prefix="trackio-") as folder:
        code = (
            "import json, sys, time, numpy as np\n"
            "from trackio.sqlite_storage import SQLiteStorage as S\n"
            "data = np.load(sys.argv[1])\n"
            "rows = [{'loss': v} for v in data['values'].tolist()]\n"
            "S.bulk_log('bench', 'big', rows, steps=data['steps'].tolist())\n"
            f"t = time.perf_counter(); sampled = S.get_logs('bench', 'big', max_points={POINTS})\n"
            "u = time.perf_counter(); every = S.get_metric_values('bench', 'big', 'loss')\n"
            "w = time.perf_counter()\n"
            "pairs = [(row['step'], float(row['loss'])) for row in sampled if row.get('loss') is not None]\n"
            "took = {'sampled': (u - t) * 1e3, 'every': (w - u) * 1e3}\n"
            "print(json.dumps(took | {'count': len(every), 'pairs': pairs}))\n"
        )
        np.savez(Path(folder) / "loss.npz", steps=steps, values=values)
        done = subprocess.run(
            [sys.executable, "-c", code, str(Path(folder) / "loss.npz")],
            env=os.environ | {"TRACKIO_DIR": folder}, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
        said = json.loads(done.stdout.splitlines()[-1])
        if said["count"] != len(steps):
            raise RuntimeError(f"it returned {said['count']} of {len(steps)} points")
        pairs = [(int(step), float(value)) for step, value in said["pairs"] if not math.isnan(step)]
        return {
            f"trackio, {len(pairs):,} sampled, {shown(story, pairs)}": said["sampled"],
            "trackio, all points": said["every"],
        }
