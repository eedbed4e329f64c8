"""Faults that come more than once, or as a single point: what a rule for one tall spike misses."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from data_faults import DataFault
from fault import Injected, Settings
from optimizer_faults import LrBump
from streams import VOCAB_SIZE, Batch
from training import Job

__all__ = ["OddBatch", "SparseSpike", "SpikeAfterKill", "SpikeTrain"]


class SpikeTrain(LrBump):
    """The rate is pushed again and again: each push is a spike of its own."""

    name = "spike_train"
    text = "five to eight times, 60 to 90 steps apart, the learning rate is 20 to 60 times too high for 2 or 3 steps"
    BEGINS = (250, 350)

    def throw(self) -> None:
        self.factor = float(self.rng.uniform(*self.FACTOR))
        gaps = self.rng.integers(60, 91, int(self.rng.integers(4, 8))).tolist()
        starts = [self.first + sum(gaps[:i]) for i in range(len(gaps) + 1)]
        lengths = self.rng.integers(2, 4, len(starts)).tolist()
        self.stretches = [(start, start + n - 1) for start, n in zip(starts, lengths, strict=True)]
        self.last = self.stretches[-1][1]

    def lr_factor(self, step: int) -> float:
        return self.factor if any(first <= step <= last for first, last in self.stretches) else 1.0

    def injected(self) -> list[Injected]:
        ends = [first - 1 for first, _ in self.stretches[1:]] + [None]
        return [
            Injected("spike", first, last_step=last, sought_until=end, cause="learning_rate")
            for (first, last), end in zip(self.stretches, ends, strict=True)
        ]


class SpikeAfterKill(LrBump):
    """The hidden units die and the loss settles higher; later a pocket of noise comes: an event of its own."""

    name = "spike_after_kill"
    text = "a rate 200 to 600 times too high kills the hidden units, and 150 to 250 steps later six batches are noise"
    BEGINS = (350, 450)

    def throw(self) -> None:
        self.factor = float(self.rng.uniform(200, 600))
        self.last = self.first + int(self.rng.integers(10, 30)) - 1
        self.noise = self.first + int(self.rng.integers(150, 250))

    def batch(self, step: int, batch: Batch, job: Job) -> Batch:
        return _noise(batch, job.seed, step) if self.noise <= step < self.noise + 6 else batch

    def injected(self) -> list[Injected]:
        return [
            Injected("spike", self.first, last_step=self.last, sought_until=self.noise - 1, cause="learning_rate"),
            Injected("spike", self.noise, last_step=self.noise + 5, above_before=True),
        ]


class OddBatch(DataFault):
    """One batch is noise: a note, and nobody is called."""

    name = "odd_batch"
    text = "one batch is noise: worth a note"

    def throw(self) -> None:
        self.last = self.first

    def batch(self, step: int, batch: Batch, job: Job) -> Batch:
        return _noise(batch, job.seed, step) if self.now(step) else batch

    def injected(self) -> list[Injected]:
        return [Injected("spike", self.first, last_step=self.last, one_point=True)]


class SparseSpike(DataFault):
    """A log of few rows: what lasts for one to three rows is many steps of bad data."""

    name = "sparse_spike"
    text = "a row of the log each 5 to 50 steps; the data of one to three rows' steps are noise"
    STEPS: ClassVar[dict[int, int]] = {5: 2_000, 10: 2_500, 20: 3_500, 50: 6_000}

    def throw(self) -> None:
        self.every = int(self.rng.choice(list(self.STEPS)))
        row = int(self.STEPS[self.every] / self.every * self.rng.uniform(0.5, 0.8))
        self.rows_hit = int(self.rng.integers(1, 4))
        self.first = row * self.every - self.every // 2
        self.last = self.first + self.rows_hit * self.every - 1
        self.part = float(self.rng.uniform(0.3, 1.0))

    def settings(self) -> Settings:
        return Settings(steps=self.STEPS[self.every], rows=12, log_every=self.every)

    def batch(self, step: int, batch: Batch, job: Job) -> Batch:
        return _noise(batch, job.seed, step, self.part) if self.now(step) else batch

    def injected(self) -> list[Injected]:
        return [Injected("spike", self.first, last_step=self.last, one_point=self.rows_hit == 1)]


def _noise(batch: Batch, seed: int, step: int, part: float = 1.0) -> Batch:
    """Put noise in place of some rows."""
    dice = np.random.default_rng((seed, step))
    rows = dice.random(len(batch.source)) < part
    batch.tokens[rows] = dice.integers(0, VOCAB_SIZE, batch.tokens[rows].shape)
    batch.targets[rows] = dice.integers(0, VOCAB_SIZE, batch.targets[rows].shape)
    return batch
