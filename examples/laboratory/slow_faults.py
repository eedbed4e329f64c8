"""Faults that grow slowly, hide in one data set or at a loss near zero, or sit in one bit."""

from __future__ import annotations

import numpy as np
import torch

from data_faults import DataFault
from fault import Injected, Settings
from optimizer_faults import LrBump, LrCreep
from streams import DATASETS, VOCAB_SIZE, Batch
from training import Job

__all__ = ["BitFlip", "EarlyCreep", "LowLossSpike", "PartlyCorruptDataset", "SlowCreep"]


class EarlyCreep(LrCreep):
    """The rate leaves its schedule early in the run, slowly."""

    name = "early_creep"
    text = "from a step between 60 and 160 on the learning rate grows by 0.8 to 1.5 % a step"
    BEGINS = (60, 160)

    def throw(self) -> None:
        self.last = 10**9
        self.growth = float(self.rng.uniform(1.008, 1.015))


class SlowCreep(LrCreep):
    """The same in mid-run, slower still: the rate is twice as high only after some 100 steps."""

    name = "slow_creep"
    text = "from a step in mid-run on the learning rate grows by 0.5 to 1.2 % a step"
    BEGINS = (350, 500)

    def throw(self) -> None:
        self.last = 10**9
        self.growth = float(self.rng.uniform(1.005, 1.012))

    def settings(self) -> Settings:
        return Settings(steps=1200, rows=self.rows_a_step)


class PartlyCorruptDataset(DataFault):
    """A part of one data set's rows is noise: that set alone rises, by some ten per cent."""

    name = "partly_corrupt_dataset"
    text = "8 to 30 % of one data set's targets are noise for 30 to 60 steps; the others are fine"

    def throw(self) -> None:
        self.last = self.first + int(self.rng.integers(30, 60)) - 1
        self.dataset = str(self.rng.choice(DATASETS))
        self.part = float(self.rng.uniform(0.08, 0.3))

    def batch(self, step: int, batch: Batch, job: Job) -> Batch:
        if self.now(step):
            dice = np.random.default_rng((job.seed, step))
            wrong = (dice.random(batch.targets.shape) < self.part) & self.touched(batch, job)[:, None]
            batch.targets[wrong] = dice.integers(0, VOCAB_SIZE, int(wrong.sum()))
        return batch

    def injected(self) -> list[Injected]:
        return [Injected("spike", self.first, dataset=self.dataset, last_step=self.last)]


class BitFlip(DataFault):
    """A bit of an exponent flips in one weight, as silent corruption does: it is 256 or 65,536 times as large."""

    name = "bit_flip"
    text = "one weight is multiplied by 256 or 65,536: a flipped bit of its exponent, which nothing reports"

    def throw(self) -> None:
        self.last = 10**9
        self.where = str(self.rng.choice(["norm.weight", "token.weight", "out.weight"]))
        self.at, self.bit = int(self.rng.integers(10**6)), int(self.rng.choice([3, 4]))

    def before_step(self, job: Job, step: int) -> None:
        if step == self.first:
            weights = dict(job.model.named_parameters())[self.where]
            with torch.no_grad():
                # Bits 3 and 4 of the exponent, not set in a weight below 1.
                weights.view(-1)[self.at % weights.numel()] *= 2.0**2**self.bit

    def injected(self) -> list[Injected]:
        return [Injected("spike", self.first)]


class LowLossSpike(LrBump):
    """A small set that is learnt by heart: the loss is near zero when the rate is pushed."""

    name = "low_loss_spike"
    text = "on 40 batches that come again and again the loss is near zero; the learning rate is pushed for 2 or 3 steps"
    FACTOR = (10.0, 30.0)

    def settings(self) -> Settings:
        return Settings(steps=1000, rows=8, lr=3e-3, learns_by_heart=True, epoch_batches=40)
