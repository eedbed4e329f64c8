"""The laboratory's job as one that obeys an advice: faults of the data lie in batches, and causes can be corrected."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples" / "laboratory"))

import torch

from gallery import make_fault
from training import Job

__all__ = ["FollowedJob", "first_step"]


def first_step(fault: str, seed: int) -> int:
    """Return the first step that a fault touches."""
    return min(one.step for one in make_fault(fault, seed).injected())


class _InBatches:
    """A fault whose bad data lie in the batches and not in the steps, and whose schedule and sampler can be mended."""

    def __init__(self, fault: Any, corrected: Callable[[], bool]) -> None:
        self.fault, self.corrected = fault, corrected

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fault, name)

    def lr_factor(self, step: int) -> float:
        return 1.0 if self.corrected() else float(self.fault.lr_factor(step))

    def before_step(self, job: Job, step: int) -> None:
        if not self.corrected():
            self.fault.before_step(job, step)

    def batch(self, step: int, batch: Any, job: Job) -> Any:
        return self.fault.batch(batch.number + 1, batch, job)

    def loss(self, step: int, losses: Any, batch: Any) -> Any:
        return self.fault.loss(batch.number + 1, losses, batch)


class FollowedJob:
    """A training with a fault.

    Args:
        fault: its name. seed: of weights, data order and the fault's dice.
        corrected: whether schedule and sampler have been corrected by now.
    """

    def __init__(self, fault: str, seed: int, corrected: Callable[[], bool]) -> None:
        torch.set_num_threads(1)
        broken = make_fault(fault, seed)
        self.settings = broken.settings()
        self.job = Job(self.settings, seed, _InBatches(broken, corrected))  # type: ignore[arg-type]
        self._plain, self._scale = self.job.learning_rate, 1.0
        self.job.learning_rate = lambda step: self._plain(step) * self._scale  # type: ignore[method-assign]
        #: Step -> number of the batch that it was trained on, as of now; numbers that are left out from now on.
        self._fed: dict[int, int] = {}
        self._left_out: set[int] = set()
        self._next_batch = self.job.sampler.next_batch
        self.job.sampler.next_batch = self._next_good  # type: ignore[method-assign]
        self.job.save(0)

    def step(self, step: int) -> dict[str, float]:
        """Do a step and return what it logs, nothing where the job logs fewer steps."""
        row = next(iter(self.job.step(step)), {})
        self._fed[step] = self.job.sampler.number - 1
        return {name: value for name, value in row.items() if name not in ("step", "t", "rank")}

    def _next_good(self) -> Any:
        while (batch := self._next_batch()).number in self._left_out:
            pass
        return batch

    def go_back(
        self, to_step: int, lr_scale: float | None, seed: int | None, skip_range: tuple[int, int] | None
    ) -> None:
        """Restore a checkpoint and change what the order says; what was left out once is not met again."""
        if skip_range is not None:
            newest = max(self._fed)
            steps = range(skip_range[0], skip_range[1] + 1)
            self._left_out.update(self._fed.get(step, self._fed[newest] + step - newest) for step in steps)
        self._fed = {step: number for step, number in self._fed.items() if step <= to_step}
        self.job.restore(to_step)
        self.job.sampler.shares = dict(self.settings.shares)
        self._scale = lr_scale or 1.0
        if seed is not None:
            self.job.sampler.seed = seed
