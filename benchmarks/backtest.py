"""What a backtest costs, what the detectors cost, and how many live runs one core judges.

    python benchmarks/backtest.py [--rows 1000000] [--runs 1000] [--only command,detectors,live] [--json]

Everything on one core (this process pins itself), CPU seconds and not wall time: other work on the machine does not
count. Each figure is the median of three with the spread beside it.

command     ``stabilityboard backtest FILE --json`` as a program on a log of 12 metrics, against parsing the same file
            with msgspec and nothing else; then its stages, each with all stages before it left out
detectors   each detector alone, and all together, fed with the same rows as in the bank of a run
live        one row a second of each of 1,000 runs: decoding, lineage, store, detectors; CPU seconds a second, memory

The aims are those of benchmarks/README.md. Leaves with 1 when one of them is missed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import orjson

from stabilitybackend.judging.detectors.engine.bank import DetectorBank
from stabilitybackend.judging.detectors.registry import DETECTORS
from stabilitybackend.runs.state import RunState
from stabilityclient.wire import Frame, PointsBlock, SourceInfo, decode_message, encode_message
from stabilityplugins.backtest.sources import read_files
from stabilityplugins.importers.jsonl import JsonlImporter
from stabilityplugins.importers.problems import Reading

METRICS = (
    "loss", "grad_norm", "lr", "loss/text", "loss/image", "tokens_per_s", "step_time_s", "ratio/image_text",
    "update_norm", "param_norm", "val_acc", "gpu_mem_gib",
)  # fmt: skip
#: Aims: seconds for a million rows, microseconds a row, CPU seconds a second of 1,000 runs.
COMMAND_S, DETECTORS_US, LIVE_S = 20.0, 12.0, 1.0
TIMES = 3
#: Rows that each live run has behind it when the seconds are counted: windows are full, snapshots are taken.
LIVE_BEFORE, LIVE_SECONDS = 300, 30
#: Rows that the detectors are fed with one by one.
DETECTOR_ROWS = 100_000


def log_of(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return times and values (metric by row) of a healthy run: a falling noisy loss of two data sets."""
    rng = np.random.default_rng(seed)
    step = np.arange(rows)
    level = 2.0 + 8.0 * np.exp(-step / max(rows / 20, 1)) + 0.5 * np.exp(-step / max(rows / 2, 1))
    text = level * 1.1 * (1 + 0.01 * rng.standard_normal(rows))
    image = level * 0.9 * (1 + 0.01 * rng.standard_normal(rows))
    others = {
        "loss": (text + image) / 2,
        "loss/text": text,
        "loss/image": image,
        "grad_norm": np.exp(0.2 * rng.standard_normal(rows)),
        "lr": 3e-4 * np.minimum(1.0, (step + 1) / 2_000),
        "tokens_per_s": 4e5 * (1 + 0.02 * rng.standard_normal(rows)),
        "step_time_s": 0.5 * (1 + 0.02 * rng.standard_normal(rows)),
        "ratio/image_text": 0.5 + 0.01 * rng.standard_normal(rows),
    }
    values = np.array([others.get(name, 1.0 + 0.1 * rng.standard_normal(rows)) for name in METRICS])
    return 1.7e9 + 0.5 * step, values


def write_log(path: Path, rows: int) -> None:
    """Write a log as Python programs do, one object a line."""
    times, values = log_of(rows)
    with path.open("wb") as file:
        for step, (moment, row) in enumerate(zip(times.tolist(), values.T.tolist(), strict=True)):
            file.write(orjson.dumps({"step": step, "t": moment, **dict(zip(METRICS, row, strict=True))}) + b"\n")


def cpu(work: Callable[[], Any]) -> dict[str, float]:
    """Return the CPU seconds of ``work``: median, least and most of TIMES calls."""
    taken = []
    for _ in range(TIMES):
        gc.collect()
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return {"median": statistics.median(taken), "least": min(taken), "most": max(taken)}


def program_cpu(command: list[str]) -> dict[str, float]:
    """Return the same of a program, and its largest memory in MiB."""
    taken = []
    for _ in range(TIMES):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return {"median": statistics.median(taken), "least": min(taken), "most": max(taken), "MiB": memory}


def drain(some: Iterator[Any]) -> None:
    for _ in some:
        pass


def command_figures(path: Path, rows: int) -> dict[str, dict[str, float]]:
    """Return seconds for the whole command and for its stages."""

    def floor() -> None:
        decode = msgspec.json.Decoder(dict[str, Any]).decode_lines
        with path.open("rb") as file:
            rest = b""
            while chunk := file.read(2 << 20):
                whole, _, rest = (rest + chunk).rpartition(b"\n")
                decode(whole)

    frames: list[Frame] = []

    def folded(judged: bool) -> None:
        state = RunState("bench", lambda: 0.0)
        if not judged:
            state.judge.take = lambda placed: []  # type: ignore[method-assign]
        for frame in frames:
            state.apply(frame, replayed=False)

    # First: the largest memory of a program counts what its parent held when it was started.
    program = [sys.executable, "-m", "stabilitybackend.cli", "backtest", str(path), "--json"]
    found = {
        f"the command, {rows:,} rows": program_cpu(program),
        "parsing with msgspec alone": cpu(floor),
        "lines, columns": cpu(lambda: drain(JsonlImporter().read(path, 0, Reading()))),
        "lines, columns, frames": cpu(lambda: drain(next(read_files([path])).frames())),
    }
    frames += next(read_files([path])).frames()
    found["lineage, store, summary"] = cpu(lambda: folded(False))
    found["the same with detectors"] = cpu(lambda: folded(True))
    frames.clear()
    floor_s = found["parsing with msgspec alone"]["median"]
    for figures in found.values():
        figures["ratio"] = figures["median"] / floor_s
    return found


def detector_figures() -> dict[str, dict[str, float]]:
    """Return microseconds a row for each detector alone and for all."""
    times, values = log_of(DETECTOR_ROWS)
    columns = dict(zip(METRICS, values.tolist(), strict=True))
    steps, moments = list(range(DETECTOR_ROWS)), times.tolist()

    def feed(names: list[str]) -> None:
        bank = DetectorBank({name: DETECTORS[name] for name in names})
        wanted = {metric: column for metric, column in columns.items() if bank.wants(metric)}
        for at in range(0, DETECTOR_ROWS, 1_000):
            part = slice(at, at + 1_000)
            some = {metric: column[part] for metric, column in wanted.items()}
            bank.feed_rows(METRICS, steps[part], moments[part], some)

    chosen = {"none, the bank alone": [], **{name: [name] for name in DETECTORS}, "all together": list(DETECTORS)}
    return {
        what: {key: 1e6 * seconds / DETECTOR_ROWS for key, seconds in cpu(lambda names=names: feed(names)).items()}
        for what, names in chosen.items()
    }


def live_figures(runs: int) -> dict[str, float]:
    """Return CPU seconds a second for live runs with one row a second each, and their memory."""
    times, values = log_of(LIVE_BEFORE + LIVE_SECONDS)

    def message(first: int, last: int) -> bytes:
        info = SourceInfo("r0-1", rank=0, started=float(times[0]))
        steps = np.arange(first, last, dtype="<i8")
        some = np.ascontiguousarray(values[:, first:last], "<f8")
        block = PointsBlock(list(METRICS), steps.tobytes(), times[first:last].tobytes(), some.tobytes())
        return encode_message(Frame(info, first + 1, last, [block]))

    gc.collect()
    before_kib = _resident_kib()
    states = [RunState(f"run-{number}", lambda: 0.0) for number in range(runs)]
    past = [message(0, 1), message(1, LIVE_BEFORE)]
    for state in states:
        for raw in past:
            _fold(state, raw)
    taken = []
    for second in range(LIVE_BEFORE, LIVE_BEFORE + LIVE_SECONDS):
        raw = message(second, second + 1)
        began = time.process_time()
        for state in states:
            _fold(state, raw)
        taken.append((time.process_time() - began) * 1_000 / runs)
    return {
        "CPU s a second, median": statistics.median(taken),
        "CPU s a second, least": min(taken),
        "CPU s a second, most": max(taken),
        "KiB a run": (_resident_kib() - before_kib) / runs,
    }


def _fold(state: RunState, raw: bytes) -> None:
    frame = decode_message(raw)
    assert isinstance(frame, Frame)
    state.apply(frame, replayed=False)


def _resident_kib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024


def _table(title: str, unit: str, found: dict[str, dict[str, float]]) -> None:
    print(f"\n{title}\n  {'':<34}{'median':>9}{'least':>9}{'most':>9}  {unit}")
    for name, figures in found.items():
        ratio = f"  {figures['ratio']:.1f} x the floor" if "ratio" in figures else ""
        memory = f", {figures['MiB']:.0f} MiB" if "MiB" in figures else ""
        print(f"  {name:<34}{figures['median']:>9.2f}{figures['least']:>9.2f}{figures['most']:>9.2f}{ratio}{memory}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the log, 12 metrics each")
    parser.add_argument("--runs", type=int, default=1_000, help="live runs")
    parser.add_argument("--only", default="command,detectors,live", help="parts, with commas")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args()
    parts = options.only.split(",")
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    found: dict[str, Any] = {}
    aims: dict[str, tuple[float, float]] = {}
    if "command" in parts:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "log.jsonl"
            write_log(path, options.rows)
            found["command"] = command_figures(path, options.rows)
        seconds = found["command"][f"the command, {options.rows:,} rows"]["median"]
        aims["s a million rows"] = (seconds * 1e6 / options.rows, COMMAND_S)
    if "detectors" in parts:
        found["detectors"] = detector_figures()
        aims["us a row, all detectors"] = (found["detectors"]["all together"]["median"], DETECTORS_US)
    if "live" in parts:
        found["live"] = live_figures(options.runs)
        aims["CPU s a second, 1,000 live runs"] = (found["live"]["CPU s a second, median"], LIVE_S)
    if options.json:
        print(json.dumps({**found, "aims": {name: {"is": a, "at most": b} for name, (a, b) in aims.items()}}, indent=1))
    else:
        if "command" in found:
            _table(f"one core, {options.rows:,} rows of {len(METRICS)} metrics", "CPU s", found["command"])
        if "detectors" in found:
            _table("detectors, one by one", "us a row", found["detectors"])
        if "live" in found:
            print(f"\n{options.runs:,} live runs, a row of {len(METRICS)} metrics a second each")
            for name, value in found["live"].items():
                print(f"  {name:<34}{value:>9.2f}")
        print()
        for name, (value, most) in aims.items():
            print(f"{'held' if value <= most else 'MISSED'}: {name}: {value:.2f}, aim at most {most:g}")
    sys.exit(any(value > most for value, most in aims.values()))


if __name__ == "__main__":
    main()
