"""Measures what the tee adds to a call that a script makes to its tracker.

    python benchmarks/tee_overhead.py [--repeats 30] [--calls 200] [--json]

In one process blocks of calls to the function as it is and as the tee has it take turns, so that both see the same
machine; a call's cost is that of its quickest block, as whatever else runs on the machine only adds to it.
The run of ours is offline: its records go to the memory-mapped spool, as they always do, and no agent takes cores away.
Trackers that are not installed are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

METRICS = 5
WARM_UP_BLOCKS = 3


class Contender(NamedTuple):
    """A function as it is and as the tee has it, both called with a step."""

    name: str
    alone: Callable[[int], object]
    teed: Callable[[int], object]


def values(step: int) -> dict[str, float]:
    return {f"train/metric{number}": step * 0.5 + number for number in range(METRICS)}


def contenders(folder: Path, recording: Any) -> Iterator[Contender]:
    from stabilityclient.tee.of_tensorboard import TensorBoard
    from stabilityclient.tee.of_wandb import Wandb

    class Run:
        starting_step = 0
        config: dict[str, Any] = {}  # noqa: RUF012 - as W&B's

        def log(self, data: dict[str, float], step: int | None = None) -> None:
            return

    alone, nothing = Run.log, Run()
    Wandb(recording).patch("wandb", SimpleNamespace(Run=Run, init=Run))  # type: ignore[arg-type]
    yield Contender(
        f"a tracker that does nothing, {METRICS} values",
        lambda step: alone(nothing, values(step), step),
        lambda step: nothing.log(values(step), step),
    )
    if find_spec("wandb"):
        os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(folder)}
        import wandb

        log = wandb.Run.log
        Wandb(recording).patch("wandb", wandb)
        run = wandb.init(project="bench")
        yield Contender(
            f"wandb.log, offline, {METRICS} values",
            lambda step: log(run, values(step), step=step),
            lambda step: run.log(values(step), step=step),
        )
        run.finish()
    if find_spec("tensorboard") and find_spec("torch"):
        from torch.utils.tensorboard import writer

        add = writer.SummaryWriter.add_scalar
        TensorBoard(recording).patch("torch.utils.tensorboard.writer", writer)
        events = writer.SummaryWriter(str(folder / "events"))
        yield Contender(
            "SummaryWriter.add_scalar",
            lambda step: add(events, "loss", step * 0.5, step),
            lambda step: events.add_scalar("loss", step * 0.5, step),
        )
        events.close()


def block(call: Callable[[int], object], steps: range) -> float:
    """Return microseconds a call."""
    begun = time.perf_counter()
    for step in steps:
        call(step)
    return (time.perf_counter() - begun) / len(steps) * 1e6


def measured(contender: Contender, repeats: int, calls: int) -> dict[str, float]:
    pairs = []
    for repeat in range(repeats + WARM_UP_BLOCKS):
        first = 2 * repeat * calls
        alone = block(contender.alone, range(first, first + calls))
        pairs.append((alone, block(contender.teed, range(first + calls, first + 2 * calls))))
    alone, teed = (min(times) for times in zip(*pairs[WARM_UP_BLOCKS:], strict=True))
    return {"alone_us": alone, "teed_us": teed, "added_us": teed - alone}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    os.environ |= {"STABILITY_MODE": "offline"}
    import stabilityclient
    from stabilityclient.tee.recording import Recording

    with tempfile.TemporaryDirectory() as folder, stabilityclient.init(name="tee", dir=folder) as run:
        recording = Recording(run, print)
        figures = {
            each.name: measured(each, given.repeats, given.calls) for each in contenders(Path(folder), recording)
        }
    if given.json:
        print(json.dumps(figures, indent=2))
        return
    print(f"{'microseconds a call':45} {'alone':>8} {'teed':>8} {'added':>8}")
    for name, one in figures.items():
        print(f"{name:45} {one['alone_us']:8.1f} {one['teed_us']:8.1f} {one['added_us']:8.1f}")


if __name__ == "__main__":
    main()
