"""The same rows into our server, into Prometheus by remote write, and into Trackio: CPU, and what each of them keeps.

    python benchmarks/ingest_peers.py [--steps 3000] [--rows 1 64] [--repeats 3] [--trackio-python PATH] [--json]

Eight ranks log 12 metrics at each step; a message has ``--rows`` steps of all of them. Each server gets the same rows
over one connection, in messages that were made before. What is counted is the CPU of the server until it has answered
everything (ours: until it is folded and judged, its Redis counted too). Ours is one process with its Redis. Prometheus
and Trackio judge nothing.

Then what happens to every tracker: a message comes again, a message is overtaken by the one behind it, the job goes
back 100 steps and logs them again, a value is NaN. It is read back with each server's own API, and counted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from big_run import METRICS, row_values
from parts.feeder import WireAgent
from parts.peer_servers import PeerError, Prometheus, Row, Trackio
from parts.server_process import ServerProcess, usage

from stabilityclient.node_frames import together
from stabilityclient.wire import EventBlock, Frame, NodeFrame, PointsBlock, SourceInfo

RANKS = 8
#: Seconds between two steps, by the clock of the job. Prometheus takes nothing that is an hour older than its newest.
STEP_S = 0.1
#: Steps that the job goes back by.
BACK = 100
METRIC = "loss"


class Job:
    """What the job logs: ``steps`` steps, then the mishaps. Times are its own; the last step is now."""

    def __init__(self, steps: int) -> None:
        self.begin = time.time() - (steps + 4 * BACK) * STEP_S
        self.steps = steps
        self._values = [
            row_values(np.random.default_rng(rank), np.arange(1, steps + 2 * BACK)) for rank in range(RANKS)
        ]

    def at(self, step: int, attempt: int = 0) -> float:
        """Return when a step was logged, unix seconds; a second attempt is later."""
        return self.begin + (step + attempt * BACK) * STEP_S

    def rows(self, first: int, count: int, attempt: int = 0) -> list[Row]:
        """Return the rows of some steps, by step and rank. The second attempt's values are higher by 1."""
        found = []
        for step in range(first, first + count):
            for rank in range(RANKS):
                column = self._values[rank][:, step - 1].tolist()
                values = {name: value + attempt for name, value in zip(METRICS, column, strict=True)}
                if (step, rank) == (self.steps, 0):
                    values[METRIC] = float("nan")
                found.append((rank, step, self.at(step, attempt), values))
        return found


class Ours:
    """Our server, spoken to as an agent does."""

    def __init__(self, folder: Path, job: Job) -> None:
        self._server = ServerProcess(folder / "data")
        self._folder, self._job = folder, job
        self._infos = [
            SourceInfo(f"r{rank}-{rank:x}-1", rank, RANKS, rank, "n0", 1, job.begin - 1, 0) for rank in range(RANKS)
        ]
        self._seq = 1

    def __enter__(self) -> Ours:
        self._server.start()
        self.wire = WireAgent("127.0.0.1", self._server.port, "peers", "a", node="n0", sources=tuple(self._infos))
        for info in self._infos:
            self.wire.send(Frame(info, 1, 1, [EventBlock("start", info.started)]))
        self.wire.drain()
        return self

    def __exit__(self, *_: object) -> None:
        self.wire.__exit__(None, None, None)
        self._server.stop()

    def message(self, rows: Sequence[Row]) -> NodeFrame:
        """Return rows as an agent of eight ranks sends them."""
        names, count = list(METRICS), len(rows) // RANKS
        steps = np.array([row[1] for row in rows[::RANKS]])
        times = np.array([row[2] for row in rows[::RANKS]])
        frames = []
        for rank, info in enumerate(self._infos):
            values = np.array([list(row[3].values()) for row in rows[rank::RANKS]]).T
            block = PointsBlock(names, steps.tobytes(), times.tobytes(), np.ascontiguousarray(values).tobytes())
            frames.append(Frame(info, self._seq + 1, self._seq + count, [block]))
        self._seq += count
        found = together(frames)
        assert isinstance(found, NodeFrame)
        return found

    def push(self, message: NodeFrame) -> None:
        self.wire.send(message)

    def settle(self, last_step: int) -> None:
        """Return when all is folded."""
        self.wire.drain()
        end = time.monotonic() + 120
        while (self._server.get("/runs/peers")["last_step"] or 0) < last_step:
            if time.monotonic() > end:
                raise SystemExit(f"step {last_step} was not folded within 120 s")
            time.sleep(0.05)

    def cpu_s(self) -> float:
        return usage(self._server.pid).cpu_s + usage(self._server.redis_pid()).cpu_s

    def redis_cpu_s(self) -> float:
        return usage(self._server.redis_pid()).cpu_s

    def kept(self, view: str) -> list[tuple[float, float, int]]:
        """Return step, value and segment of what it has of the metric's rank 0."""
        answer = self._server.get("/runs/peers/series", metric=METRIC, view=view, rank=0, points=1_000_000)
        return [
            (float(step), float("nan") if value is None else float(value), entry["segment"])
            for entry in answer["series"]
            for step, value in zip(entry["steps"], entry["values"], strict=True)
        ]

    def overtaken(self, held_back: NodeFrame, behind: NodeFrame) -> str:
        """Send a message before the one in front of it; return what became of it. An agent then goes back to that."""
        answer = type(self.wire.offer(behind)).__name__
        for each in (held_back, behind):
            self.push(each)
        return f"overtaken: {answer}, then taken in order"


def load(push: Callable[[Any], None], messages: Sequence[Any]) -> None:
    for each in messages:
        push(each)


def once(make: Callable[[], Any], job: Job, rows: int) -> dict[str, Any]:
    """Return the figures of one server."""
    with make() as server:
        messages = [server.message(job.rows(first, rows)) for first in range(1, job.steps + 1, rows)]
        # What it has to make up once does not count: series, tables, the first window.
        load(server.push, messages[: len(messages) // 10])
        if isinstance(server, Ours):
            server.settle(len(messages) // 10 * rows)
        before, begin = server.cpu_s(), time.perf_counter()
        redis = server.redis_cpu_s() if isinstance(server, Ours) else 0.0
        counted = messages[len(messages) // 10 :]
        load(server.push, counted)
        if isinstance(server, Ours):
            server.settle(job.steps)
        points = len(counted) * rows * RANKS * len(METRICS)
        took = time.perf_counter() - begin
        found: dict[str, Any] = {
            "cpu_s": (server.cpu_s() - before) / points * 1e6, "points_s": points / took, "load": os.getloadavg()[0],
        }  # fmt: skip
        if isinstance(server, Ours):
            found["redis_s"] = (server.redis_cpu_s() - redis) / points * 1e6
        found["kept"] = after_mishaps(server, job, messages[-1])
    return found


def after_mishaps(server: Any, job: Job, newest: Any) -> dict[str, Any]:
    """Let the mishaps happen, and return what is kept of them."""
    end = job.steps
    if isinstance(server, Ours):
        first, second = (server.message(job.rows(end + 1 + n, 1)) for n in range(2))
        server.push(newest)
        server.wire.drain()
        told = server.overtaken(first, second)
        again = server.message(job.rows(end + 2 - BACK + 1, BACK, attempt=1))
        server.push(again)
        server.wire.drain()
        time.sleep(2.0)
        everything, effective = server.kept("all"), server.kept("effective")
        return counted([each[:2] for each in everything], job) | {
            "told": told, "told apart": len({each[2] for each in everything}) > 1, "effective": len(effective),
        }  # fmt: skip
    refused = []
    first, second = (server.message(job.rows(end + 1 + n, 1)) for n in range(2))
    for each in (newest, second, first, server.message(job.rows(end + 2 - BACK + 1, BACK, attempt=1))):
        server.push(each)
        refused.append(server.refused or "taken")
    pairs = server.kept(METRIC, 0, job.begin, job.at(end + 2, 1))
    if isinstance(server, Prometheus):  # it has times in place of steps: a second attempt looks like further steps
        pairs = [(round((at - job.begin) / STEP_S), value) for at, value in pairs]
    return counted(pairs, job) | {
        "told": f"again: {refused[0]}; overtaken: {refused[2]}; second attempt: {refused[3]}", "told apart": False,
        "disk_bytes": server.disk_bytes(),
    }  # fmt: skip


def counted(pairs: Sequence[tuple[float, float]], job: Job) -> dict[str, Any]:
    """Return how many points are there, and whether those that tell are."""
    return {
        "points": len(pairs), "of": job.steps + 2 + BACK,
        "overtaken": any(step == job.steps + 1 for step, _ in pairs), "NaN": any(value != value for _, value in pairs),
    }  # fmt: skip


def spread(values: list[float], digits: int) -> str:
    """Return the median [lowest..highest]."""
    return f"{statistics.median(values):,.{digits}f} [{min(values):,.{digits}f}..{max(values):,.{digits}f}]"


def say(rows: int, steps: int, found: dict[str, list[dict[str, Any]] | str]) -> None:
    """Print the table of one size of messages."""
    load = os.getloadavg()[0]
    print(f"\n{rows} steps of {RANKS} ranks a message, {steps:,} steps, {len(METRICS)} metrics; load {load:.1f}")
    base = found["ours"]
    for name, some in found.items():
        if isinstance(some, str):
            print(f"  {name:<11} left out: {some}")
            continue
        assert not isinstance(base, str)
        ratios = [one["cpu_s"] / peer["cpu_s"] for one, peer in zip(some, base, strict=True)]
        beside = f", Redis {spread([one['redis_s'] for one in some], 2)} of it" if "redis_s" in some[0] else ""
        print(
            f"  {name:<11} CPU s per 1 M points {spread([one['cpu_s'] for one in some], 2)}{beside}; of ours "
            f"{spread(ratios, 2)}; {spread([one['points_s'] / 1e3 for one in some], 0)} k points/s"
        )
        kept = some[-1]["kept"]
        print("              kept of rank 0: " + "; ".join(f"{key} {value}" for key, value in kept.items()))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3_000)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64], help="steps of all ranks in a message")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--trackio-python", default=os.environ.get("STABILITY_TRACKIO_PYTHON", ""))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    facts = {}
    for rows in options.rows:
        found: dict[str, list[dict[str, Any]] | str] = {"ours": [], "Prometheus": [], "Trackio": []}
        for _ in range(options.repeats):
            for name in found:
                job = Job(options.steps // rows * rows)
                with tempfile.TemporaryDirectory(prefix="peers-") as text:
                    folder = Path(text)
                    python = [options.trackio_python] if options.trackio_python else []
                    makers: dict[str, Callable[[], Any]] = {
                        "ours": lambda folder=folder, job=job: Ours(folder, job),
                        "Prometheus": lambda folder=folder: Prometheus(folder / "prometheus"),
                        "Trackio": lambda folder=folder, python=python: Trackio(folder / "trackio", *python),
                    }
                    so_far = found[name]
                    if isinstance(so_far, str):
                        continue
                    try:
                        so_far.append(once(makers[name], job, rows))
                    except PeerError as error:
                        found[name] = str(error)
        facts[rows] = found
        if not options.json:
            say(rows, options.steps, found)
    if options.json:
        print(json.dumps(facts))


if __name__ == "__main__":
    main()
