"""Records laboratory runs for CI: short, rounded, packed, one trace a fault, with their truth.

    python benchmarks/laboratory/record_traces.py FOLDER --seed 101 [--only FAULT...]

takes ``FOLDER/<fault>-<seed>.jsonl`` as ``examples/laboratory/run.py --all`` wrote them, and writes
``tests/traces/<fault>-<seed>.jsonl.gz`` and ``.truth.json``. Only seeds above 100: thresholds were never looked up on
them.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

from detection import RECORDED, TUNING_SEEDS

__all__ = ["main", "record"]

#: Rows that are kept after the end of the last event: detectors must fall silent again within them.
TAIL_ROWS = 100
#: Rows that are kept of an event without an end, and from the start of a run without events or with a plateau.
LONG_ROWS, HEALTHY_ROWS, PLATEAU_ROWS = 170, 560, 720
#: Significant digits of the loss, and of all else: the noise is 3 % and more.
LOSS_DIGITS, DIGITS = 5, 4
#: Metrics that only runs of these faults need, and those that they can do without: noise fills a trace.
SPEED = ("tokens_per_s", "step_time_s", "t")
SPEED_FAULTS = ("slow_loader", "slow_rank", "healthy_gaps", "batch_ramp")
NOT_SPEED = ("loss/text", "loss/code", "loss/image", "grad_norm")


def record(path: Path, folder: Path) -> int:
    """Write one trace and its truth; return its bytes."""
    truth = json.loads(path.with_suffix(".truth.json").read_text())
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    last = _last_step(truth)
    kept = _until(rows, last)
    speed = truth["fault"] in SPEED_FAULTS
    lines = "".join(json.dumps(_small(row, speed), separators=(",", ":")) + "\n" for row in kept)
    target = folder / f"{path.stem}.jsonl.gz"
    target.write_bytes(gzip.compress(lines.encode(), 9, mtime=0))
    truth["rows"] = sum(not row.get("rank") for row in kept)
    (folder / f"{path.stem}.truth.json").write_text(json.dumps(truth, indent=1) + "\n")
    return target.stat().st_size


def _last_step(truth: dict[str, Any]) -> int:
    """Return the last step that a trace needs to tell its story."""
    ends = [
        event["visible_step"] + LONG_ROWS if event["recovered_step"] is None else event["recovered_step"] + TAIL_ROWS
        for event in truth["events"]
    ]
    plateau = any(event["kind"] == "plateau" for event in truth["events"])
    if plateau or not ends:
        ends.append((PLATEAU_ROWS if plateau else HEALTHY_ROWS) * truth["log_interval"])
    return max(ends)


def _until(rows: list[dict[str, Any]], last: int) -> list[dict[str, Any]]:
    """Return the rows until the newest branch is past ``last``."""
    stop = max(i for i, row in enumerate(rows) if row["step"] <= last)
    return rows[: stop + 1]


def _small(row: dict[str, Any], speed: bool) -> dict[str, Any]:
    return {
        name: float(f"{value:.{LOSS_DIGITS if name == 'loss' else DIGITS}g}")
        if isinstance(value, float) and name != "t"
        else value
        for name, value in row.items()
        if name not in (NOT_SPEED if speed else SPEED)
    }


def main() -> None:
    """Parse the command line and record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--only", nargs="+", help="faults")
    arguments = parser.parse_args()
    if arguments.seed in TUNING_SEEDS:
        parser.error(f"--seed is {arguments.seed}, a tuning seed; expected one above {TUNING_SEEDS[-1]}")
    RECORDED.mkdir(exist_ok=True)
    paths = sorted(arguments.folder.glob(f"*-{arguments.seed}.jsonl"))
    if arguments.only:
        paths = [path for path in paths if path.stem.rsplit("-", 1)[0] in arguments.only]
    sizes = [record(path, RECORDED) for path in paths]
    print(f"{len(sizes)} traces, {sum(sizes) / 1024:.0f} KiB, in {RECORDED}")


if __name__ == "__main__":
    main()
