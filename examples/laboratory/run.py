"""Train with a fault and write the log and the truth about it.

    python examples/laboratory/run.py --fault corrupt_dataset --seed 101 --out run.jsonl

writes ``run.jsonl``, a row a line as ``stabilityboard backtest`` reads it, and ``run.truth.json``. ``--list`` names the
faults. ``--all --seeds 101 102 --folder DIR`` writes ``DIR/<fault>-<seed>.jsonl`` for every fault.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from fault import Fault, Settings
from gallery import FAULTS, make_fault
from training import LogRow, Start, train
from truth import tell_truth

__all__ = ["experiment", "write"]


class _Twin(Fault):
    """The same job, with nothing that goes wrong."""

    name = "twin"
    text = "nothing"


def experiment(name: str, seed: int, log_every: int | None = None) -> tuple[list[LogRow], dict[str, Any], list[LogRow]]:
    """Train once with the fault and once without.

    Args:
        name: of the fault.
        seed: of the weights, the order of the data and the fault's dice.
        log_every: a row each so many steps; None for what the fault's job has.

    Returns:
        The log, the truth about it, and the log of the healthy twin.
    """
    fault = make_fault(name, seed)
    settings = fault.settings()
    if log_every is not None:
        settings = replace(settings, log_every=log_every)
        fault.settings = lambda: settings  # type: ignore[method-assign]
    measured = [injected.step for injected in fault.injected() if injected.measured]
    if not measured:
        rows = train(settings, seed, fault)
        return rows, tell_truth(fault, seed, rows, []), []
    twin, starts = _twin_of(settings, seed)
    before = [start for start in starts if start.step < min(measured)]
    rows = train(settings, seed, fault, before[-1] if before else None)
    return rows, tell_truth(fault, seed, rows, twin), twin


@lru_cache(maxsize=4)
def _twin_of(settings: Settings, seed: int) -> tuple[list[LogRow], list[Start]]:
    """Train without a fault, and keep places to go on from. Many faults share a twin and all that was before them."""
    starts: list[Start] = []
    return train(settings, seed, _Twin(seed), starts=starts), starts


def write(path: Path, rows: list[LogRow], truth: dict[str, Any]) -> None:
    """Write the log to ``path`` and the truth beside it. Non-finite values stay bare tokens, as Python writes them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(_rounded(row)) + "\n" for row in rows))
    path.with_suffix(".truth.json").write_text(json.dumps(truth, indent=1) + "\n")


def _rounded(row: LogRow) -> LogRow:
    """Six significant digits, as most loggers write; times to the millisecond."""
    return {
        name: float(f"{value:.6g}") if isinstance(value, float) and name != "t" else value
        for name, value in row.items()
    }


def main() -> None:
    """Parse the command line, train, write, and say what happened."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fault", choices=FAULTS, help="what goes wrong")
    parser.add_argument("--seed", type=int, default=1, help="1 to 100 are for tuning, all others for reporting")
    parser.add_argument("--out", type=Path, help="where the log goes; the truth goes beside it as .truth.json")
    parser.add_argument("--every", type=int, help="log each so many steps")
    parser.add_argument("--list", action="store_true", help="name the faults")
    parser.add_argument("--all", action="store_true", help="every fault, with --seeds and --folder")
    parser.add_argument("--seeds", type=int, nargs="+", default=[])
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(f"{name:22} {fault.text}" for name, fault in FAULTS.items()))
        return
    for name, seed, path in _jobs(parser, arguments):
        rows, truth, _ = experiment(name, seed, arguments.every)
        write(path, rows, truth)
        events = [
            f"{e['kind']}{'' if e['alarm'] else ' (no alarm)'} at {e['onset_step']}"
            + (f", {e['recovery']} recovery" if e["recovery"] else "")
            for e in truth["events"]
        ]
        print(f"{path}: {truth['rows']} rows; {'; '.join(events) or 'healthy'}", flush=True)


def _jobs(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Iterator[tuple[str, int, Path]]:
    if arguments.all:
        if not arguments.seeds or arguments.folder is None:
            parser.error("--all was given without --seeds and --folder, expected both")
        for seed in arguments.seeds:
            for name in FAULTS:
                yield name, seed, arguments.folder / f"{name}-{seed}.jsonl"
    elif arguments.fault and arguments.out:
        yield arguments.fault, arguments.seed, arguments.out
    else:
        parser.error("nothing to do, expected --fault and --out, or --all, or --list")


if __name__ == "__main__":
    main()
