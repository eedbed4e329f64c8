"""Frames of a job that goes back: each batch has a loss of its own, so that what was fed again can be recognised."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence

from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.resumes import Resume
from stabilityclient.wire import Frame
from support.job_frames import Job

__all__ = ["Resumed", "folded", "newest"]

#: Which batch is fed at a step.
Feed = Callable[[int], int]


class Resumed:
    """One rank that trains, goes back and trains again.

    Args:
        ids: report the id of each batch.
        loss: its name.
        seed: of the data.
    """

    def __init__(self, *, ids: bool = False, seed: int = 5, loss: str = "loss") -> None:
        rng = random.Random(seed)
        self._noise = [rng.gauss(0, 0.05) for _ in range(5_000)]
        self._numerics = random.Random(seed + 1)
        #: What stands before the number of a batch in its id, None for no ids; and in how many parts it is handed over.
        self.ids = "b" if ids else None
        self.parts = 1
        self._name = loss
        self._starts = 1
        self.job = Job()
        self.frames: list[Frame] = []

    def loss(self, step: int, batch: int) -> float:
        """Return the loss of a batch with the weights before a step."""
        return 2.0 + math.exp(-step / 200) + self._noise[batch]

    def train(
        self,
        first: int,
        last: int,
        feed: Feed = lambda step: step,
        *,
        off: Callable[[int], float] = lambda step: 0.0,
        numerics: float = 0.0,
        lr: Callable[[int], float] = lambda step: 3e-4 * (1 - step / 2_000),
        **more: Callable[[int], float],
    ) -> None:
        """Train ``first..last``, both included.

        Args:
            feed: the batch of a step. off: what the loss lies off by the weights. numerics: sigma of what it differs by
            in another pass. lr, more: further metrics.
        """
        for begin in range(first, last + 1, 20):
            steps = range(begin, min(begin + 20, last + 1))
            losses = [self.loss(s, feed(s)) + off(s) + self._numerics.gauss(0, numerics) for s in steps]
            if self.ids is not None:
                marks = [(step, f"{self.ids}{feed(step)}/{part}") for step in steps for part in range(self.parts)]
                self.frames += [self.job.event("batch", step, fingerprint=mark) for step, mark in marks]
            columns = {self._name: losses, "lr": [lr(s) for s in steps]}
            self.frames.append(self.job.rows(steps, columns | {n: [of(s) for s in steps] for n, of in more.items()}))

    def back(self, to_step: int, key: str = "d-1", **changes: object) -> None:
        """Declare a rollback."""
        self.frames.append(self.job.rolled_back(to_step, key, changes=changes))

    def another_process(self, world_size: int = 1) -> None:
        """Die, and start again."""
        self._starts += 1
        self.job = Job(start=self._starts, world_size=world_size)


def folded(frames: Iterable[Frame], state: RunState | None = None) -> RunState:
    """Return the run after these frames."""
    state = state or RunState("r", lambda: 5_000.0)
    for frame in frames:
        state.apply(frame, replayed=False)
    return state


def newest(frames: Sequence[Frame]) -> Resume:
    """Return what is found of the newest resume."""
    return folded(frames).resumes.view().resumes[0]
