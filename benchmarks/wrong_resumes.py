"""Resumes whose data is wrong, with real packages on the CPU: what is said of them, and when.

    python benchmarks/wrong_resumes.py [--seeds 1] [--healthy 20] [--only PACKAGE] [--keep FOLDER]

Small models train with Lightning, torchdata, StreamingDataset, accelerate and torch's own samplers, are killed, and go
on from their checkpoint: once with the loader's place, once without. A package that is missing is skipped, and that is
printed. Each log is judged by ``stabilityboard backtest`` twice: from the loss alone, and with the ids of the batches.
Beside them healthy jobs of other tasks, models and rates, with epochs shuffled anew and right resumes.

The exit code is 1 where a wrong resume that repeats an order is not named in time, a right one or a healthy job raises
an alarm, or nothing could be run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from resumes.healthy import healthy_job
from resumes.packages import CASES, SAVED, Case
from resumes.tiny_jobs import Rows

#: Aims of the product: points until a wrong resume is named from the loss alone, and with ids.
LOSS_POINTS, ID_POINTS = 120, 3


def main() -> int:
    """Run all cases and print two tables."""
    options = _options()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    binary = (
        options.stabilityboard
        or shutil.which("stabilityboard", path=str(Path(sys.executable).parent))
        or "stabilityboard"
    )
    folder = Path(options.keep or tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    wrong = ran = 0
    print(f"{'case':64} {'seed':>4} {'wrong: loss':>12} {'ids':>6} {'right':>8}")
    for case in CASES:
        if options.only and options.only != case.package:
            continue
        if why := case.missing():
            print(f"{case.package + ': ' + case.name:64} skipped, {why}")
            continue
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            ran += 1
            wrong += not _resume(case, seed, binary, folder)
    alarms = 0
    for number in range(options.first_healthy, options.first_healthy + options.healthy):
        ran += 1
        name, rows = healthy_job(number, seed=options.first_seed + number)
        found = _alarms(rows, f"healthy-{number}", binary, folder)
        alarms += len(found)
        print(f"healthy {number:2} {name:53} {', '.join(found) or 'silent'}")
    print(f"{wrong} cases not as they should be, {alarms} alarms in {options.healthy} healthy jobs")
    return 1 if wrong or alarms or not ran else 0


def _resume(case: Case, seed: int, binary: str, folder: Path) -> bool:
    """Run one case wrongly and rightly, print its line and return whether all is as it should be."""
    name = f"{case.package}-{CASES.index(case)}-{seed}"
    rows, right = case.run(False, seed), case.run(True, seed)
    delays = []
    for ids in (False, True):
        found = [f for f in _backtest(rows, f"{name}-wrong", ids, binary, folder) if f["kind"] == "repeat_data"]
        delays.append(min((f["step"] - case.since + 1 for f in found), default=None))
    silent = [_alarms(right, f"{name}-right", binary, folder, ids) for ids in (False, True)]
    loss, exact = delays
    shown = [f"{delay} points" if delay is not None else "-" for delay in delays]
    order = "" if case.repeats else "  (another order: neither loss nor ids of whole batches can show it)"
    quiet = "silent" if not any(silent) else f"{silent}"
    print(f"{case.package + ': ' + case.name:64} {seed:4} {shown[0]:>12} {shown[1]:>9} {quiet:>8}{order}", flush=True)
    named = not case.repeats or (loss is not None and exact is not None and loss <= LOSS_POINTS and exact <= ID_POINTS)
    return named and not any(silent) and _same_data(right)


def _same_data(rows: Rows) -> bool:
    """Say whether the steps that a right resume made again saw what the killed process had seen."""
    again: dict[int, list[Any]] = {}
    for row in rows:
        again.setdefault(row["step"], []).append(row["ids"])
    twice = [ids for step, ids in again.items() if step > SAVED and len(ids) > 1]
    same = all(first == second for first, second in twice)
    if not same:
        print("  the right resume saw other data: it is none")
    return same


def _alarms(rows: Rows, name: str, binary: str, folder: Path, ids: bool = True) -> list[str]:
    found = _backtest(rows, name, ids, binary, folder)
    return [f"{f['kind']} at {f['onset_step']}" for f in found if f["severity"] != "info"]


def _backtest(rows: Rows, name: str, ids: bool, binary: str, folder: Path) -> list[dict[str, Any]]:
    """Return what a backtest of the log finds; it holds a hash of each batch's sample numbers where ``ids``."""
    path = folder / f"{name}{'-ids' if ids else ''}.jsonl"
    with path.open("w") as log:
        for row in rows:
            line = {key: value for key, value in row.items() if key != "ids"}
            if ids:
                line["batch_fp"] = hashlib.sha256(repr(row["ids"]).encode()).hexdigest()[:16]
            log.write(json.dumps(line) + "\n")
    output = subprocess.run([binary, "backtest", str(path), "--json"], capture_output=True, text=True, check=False)
    if output.returncode not in (0, 1):
        raise SystemExit(f"{binary} backtest {path} failed: {output.stderr.strip()[-300:]}")
    return [json.loads(line) for line in output.stdout.splitlines() if line.startswith("{")]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=1, help="seeds of each case")
    parser.add_argument("--healthy", type=int, default=20, help="healthy jobs")
    parser.add_argument("--first-healthy", type=int, default=0, help="number of the first one")
    parser.add_argument("--first-seed", type=int, default=1, help="seed of the first case and of healthy job 0")
    parser.add_argument("--only", help="one package alone, or none of them")
    parser.add_argument("--stabilityboard", help="the program; that beside this interpreter by default")
    parser.add_argument("--keep", help="folder for the logs")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
