"""Record the curves of the page ``/gallery``: real runs of this laboratory, and what the board says about each.

    python examples/laboratory/record_curves.py            # all, 3 minutes; or name some: spike-fast nan

writes ``frontend/stabilityfrontend/gallery/curves.json``. What a fault is and which seed made the curve is written
there too; the same seed gives the same curve on the same machine and PyTorch build. A log that is recorded already
(``tests/traces``) is taken from there, others are trained.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gallery import FAULTS
from grokking import grok
from run import experiment, write
from training import LogRow

__all__ = ["CURVES", "curve"]

_REPOSITORY = Path(__file__).parents[2]
TRACES = _REPOSITORY / "tests" / "traces"
FILE = _REPOSITORY / "frontend" / "stabilityfrontend" / "gallery" / "curves.json"
#: Points of a line; each bucket keeps its lowest and its highest.
POINTS = 420
#: Id of the pattern -> fault, seed, and the rows of its chart: the metrics of each. In the order of the page.
CURVES: dict[str, tuple[str, int, list[list[str]]]] = {
    "good": ("healthy_smooth", 101, [["loss"], ["grad_norm"]]),
    "lr-drop": ("lr_drop", 101, [["loss"], ["lr"]]),
    "grokking": ("grokking", 101, [["loss", "val/loss"], ["val/accuracy"]]),
    "spike-fast": ("garbage_batches", 101, [["loss"], ["grad_norm"]]),
    "spike-slow": ("wrong_tokenizer", 101, [["loss"], ["grad_norm"]]),
    "spike-unrecovered": ("killed_by_lr", 101, [["loss"], ["lr"]]),
    "divergence": ("negative_decay", 101, [["loss"], ["grad_norm"]]),
    "learning-rate": ("lr_creep", 101, [["loss"], ["lr"]]),
    "level-shift": ("label_noise_dataset", 104, [["loss"], ["loss/code", "loss/text", "loss/image"]]),
    "plateau": ("never_learns", 101, [["loss"], ["grad_norm"]]),
    "one-data-set": ("corrupt_dataset", 101, [["loss"], ["loss/code", "loss/text", "loss/image"]]),
    "mixture-drift": ("mix_drift", 101, [["loss"], ["ratio/image_text"]]),
    "repeated-data": ("repeat_data", 101, [["loss"]]),
    "resume": ("lr_reset", 101, [["loss"], ["lr"]]),
    "nan": ("empty_row", 101, [["loss"], ["grad_norm"]]),
    "sdc": ("bit_flip", 101, [["loss"], ["grad_norm"]]),
}
_FOUND = ("kind", "severity", "onset_step", "recovered_step", "recovery", "dataset", "title")


def curve(name: str) -> dict[str, Any]:
    """Return what the page draws of a pattern: ``fault``, ``seed``, ``rows`` of lines, ``found``."""
    fault, seed, charts = CURVES[name]
    rows = _log(fault, seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        write(path, rows, {})
        command = [
            sys.executable,
            "-m",
            "stabilitybackend.cli",
            "backtest",
            str(path),
            "--json",
            "--severity",
            "warning",
        ]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = [json.loads(line) for line in told.splitlines()]
    return {
        "fault": FAULTS[fault].text if fault in FAULTS else "nothing; a network that learns sums modulo 59",
        "name": fault,
        "seed": seed,
        "rows": [[line for metric in metrics for line in _lines(rows, metric)] for metrics in charts],
        "found": [{key: one[key] for key in _FOUND} for one in found if not one["dead"]],
    }


def _log(fault: str, seed: int) -> list[LogRow]:
    recorded = TRACES / f"{fault}-{seed}.jsonl.gz"
    if recorded.exists():
        with gzip.open(recorded, "rt") as lines:
            return [json.loads(line) for line in lines]
    return grok(seed) if fault == "grokking" else experiment(fault, seed)[0]


def _lines(rows: list[LogRow], metric: str) -> list[dict[str, Any]]:
    """Return the line that counts, and before it what a restart went back over, if anything."""
    branches: list[list[LogRow]] = [[]]
    for row in (one for one in rows if metric in one and not one.get("rank")):
        if branches[-1] and row["step"] <= branches[-1][-1]["step"]:
            branches.append([])
        branches[-1].append(row)
    lines, effective = [], []
    for index, branch in enumerate(branches):
        after = branches[index + 1][0]["step"] if index + 1 < len(branches) else float("inf")
        effective += [row for row in branch if row["step"] < after]
        if gone := [row for row in branch if row["step"] >= after]:
            lines.append(_line(metric, gone) | {"discarded": True})
    return [*lines, _line(metric, effective)]


def _line(metric: str, rows: list[LogRow]) -> dict[str, Any]:
    kept = _thinned([row[metric] for row in rows])
    return {
        "name": metric,
        "steps": [rows[index]["step"] for index in kept],
        "values": [_told(rows[index][metric]) for index in kept],
    }


def _thinned(values: list[float]) -> list[int]:
    """Return the places that are kept: of each bucket the lowest and the highest; of what is not finite the ends."""
    if len(values) <= POINTS:
        return list(range(len(values)))
    buckets = POINTS // 2
    kept = {0, len(values) - 1}
    for bucket in range(buckets):
        inside = range(bucket * len(values) // buckets, (bucket + 1) * len(values) // buckets)
        finite = [index for index in inside if abs(values[index]) < float("inf")]
        kept |= {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)} if finite else {inside[0]}
    return sorted(kept)


def _told(value: float) -> float | str:
    """As the API tells a number: what is not finite is a word."""
    if value != value:
        return "NaN"
    return float(f"{value:.4g}") if abs(value) < float("inf") else "Infinity"


def main() -> None:
    """Record what is named, keep the rest."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("patterns", nargs="*", help="ids of patterns; none for all")
    wanted = parser.parse_args().patterns or list(CURVES)
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name in wanted:
        known[name] = curve(name)
        found = ", ".join(f"{one['kind']} at {one['onset_step']} ({one['recovery']})" for one in known[name]["found"])
        print(f"{name}: {found or 'nothing found'}", flush=True)
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(known[key])}" for key in CURVES if key in known)
        FILE.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
