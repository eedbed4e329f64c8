"""The demo's job, which also writes down what it does: ``demo_rank.py FOLDER [arguments of train.py]``.

Each rank appends to ``FOLDER/truth.<rank>`` a JSON list for each thing, at once, so that kill -9 loses none:
``["begin", pid]``, ``["step", n, loss, batch]`` (loss null but on rank 0), ``["saved", n, path]``,
``["restored", n, path]``, ``["seed", seed]``, ``["on order", n]`` (a checkpoint that somebody ordered is about to be
saved), ``["stopped", n]`` (before step n), ``["end"]``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples" / "multimodal"))

import stabilityclient
import train

_FILE = os.open(Path(sys.argv.pop(1)) / f"truth.{os.environ['RANK']}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(*what: Any) -> None:
    """Append a line."""
    os.write(_FILE, (json.dumps(what) + "\n").encode())


class Noting(train.Trainer):
    def next_batch(self) -> Any:
        batch = super().next_batch()
        self.batch = batch.number
        return batch

    def train_step(self, step: int, *given: Any) -> Any:
        metrics, losses = super().train_step(step, *given)
        note("step", step, metrics.get("loss"), self.batch)
        return metrics, losses

    def save(self, step: int) -> Path:
        path = super().save(step)
        note("saved", step, str(path))
        return path

    def restore(self, path: Path) -> None:
        super().restore(path)
        note("restored", self.step, str(path))

    def reseed(self, seed: int) -> None:
        super().reseed(seed)
        note("seed", seed)


def init(**named: Any) -> stabilityclient.Run:
    run = _init(**named)
    on_checkpoint = run.on_checkpoint

    def noting(handler: Any) -> Any:
        def save(step: int) -> Any:
            note("on order", step)
            return handler(step)

        on_checkpoint(save)
        return handler

    run.on_checkpoint = noting  # type: ignore[method-assign]
    run.on_stop(lambda order: note("stopped", order.step))
    return run


note("begin", os.getpid())
_init = stabilityclient.init
stabilityclient.init = init  # type: ignore[assignment]
train.Trainer = Noting  # type: ignore[misc]
train.main()
note("end")
