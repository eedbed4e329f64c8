"""Faults of the data: garbage, one broken data set, a wrong tokenizer, label noise, a mixture that drifts."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fault import SHARES, Fault, Injected, Settings
from streams import DATASETS, VOCAB_SIZE, Batch
from training import Job

__all__ = [
    "CorruptDataset",
    "DataFault",
    "EmptyRow",
    "GarbageBatches",
    "LabelNoise",
    "LabelNoiseDataset",
    "MixDrift",
    "WrongTokenizer",
]

#: Rows of a batch that a fault's dice choose from: noise of the loss from 9 % to 5 %.
_ROWS = (16, 32, 48)


class DataFault(Fault):
    """A fault that lasts from ``self.first`` to ``self.last``, on one data set or on all."""

    #: Steps between which the fault begins.
    BEGINS: ClassVar[tuple[int, int]] = (450, 750)

    first: int
    last: int
    dataset: str | None = None

    def prepare(self) -> None:
        self.first = int(self.rng.integers(*self.BEGINS))
        self.rows_a_step = int(self.rng.choice(_ROWS))
        self.throw()

    def throw(self) -> None:
        """Throw the dice that this fault has besides."""

    def settings(self) -> Settings:
        return Settings(steps=1000, rows=self.rows_a_step)

    def now(self, step: int) -> bool:
        """Return whether the fault acts at ``step``."""
        return self.first <= step <= self.last

    def touched(self, batch: Batch, job: Job) -> np.ndarray:
        """Return which rows are of the data set that breaks."""
        if self.dataset is None:
            return np.ones(len(batch.source), dtype=bool)
        return np.asarray(batch.source == job.sampler.datasets.index(self.dataset))


class GarbageBatches(DataFault):
    """A shard holds a pocket of bytes that are no text: a few batches of noise, then all is well again."""

    name = "garbage_batches"
    text = "a pocket of a shard is noise: two to six batches without any structure"

    def throw(self) -> None:
        self.last = self.first + int(self.rng.integers(2, 7)) - 1
        self.part = float(self.rng.uniform(0.4, 1.0))

    def batch(self, step: int, batch: Batch, job: Job) -> Batch:
        if self.now(step):
            noise = np.random.default_rng((job.seed, step))
            rows = noise.random(len(batch.source)) < self.part
            batch.tokens[rows] = noise.integers(0, VOCAB_SIZE, batch.tokens[rows].shape)
            batch.targets[rows] = noise.integers(0, VOCAB_SIZE, batch.targets[rows].shape)
        return batch

    def injected(self) -> list[Injected]:
        return [Injected("spike", self.first, last_step=self.last)]


class CorruptDataset(DataFault):
    """The reader of one data set loses its place and hands out noise, until it is opened again."""

    name = "corrupt_dataset"
    text = "the reader of one data set hands out noise for 12 to 60 steps; the others are fine"

    def throw(self) -> None:
        self.last = self.first + int(self.rng.integers(12, 60)) - 1
        self.dataset = str(self.rng.choice(DATASETS))

    def batch(self, step: int, batch: Batch, job: Job) -> Batch:
        if self.now(step):
            rows = self.touched(batch, job)
            noise = np.random.default_rng((job.seed, step))
            batch.tokens[rows] = noise.integers(0, VOCAB_SIZE, batch.tokens[rows].shape)
            batch.targets[rows] = noise.integers(0, VOCAB_SIZE, batch.targets[rows].shape)
        return batch

    def injected(self) -> list[Injected]:
        return [Injected("spike", self.first, dataset=self.dataset, last_step=self.last)]


class WrongTokenizer(DataFault):
    """Some shards were written with another vocabulary: all data sets are readable, but every token means another."""

    name = "wrong_tokenizer"
    text = "for 15 to 50 steps the shards of all data sets are in another vocabulary"

    def throw(self) -> None:
        self.last = self.first + int(self.rng.integers(15, 50)) - 1
        self.table = self.rng.permutation(VOCAB_SIZE)

    def batch(self, step: int, batch: Batch, job: Job) -> Batch:
        if self.now(step):
            return Batch(batch.number, self.table[batch.tokens], self.table[batch.targets], batch.source)
        return batch

    def injected(self) -> list[Injected]:
        return [Injected("spike", self.first, last_step=self.last)]


class LabelNoise(DataFault):
    """A new version of the preprocessing cuts documents at the wrong place: some targets belong to other tokens."""

    name = "label_noise"
    text = "from a step on 0.5 to 2.5 % of all targets are those of another row, for good"

    def throw(self) -> None:
        self.last = 10**9
        self.part = float(self.rng.uniform(0.005, 0.025))

    def batch(self, step: int, batch: Batch, job: Job) -> Batch:
        if self.now(step):
            dice = np.random.default_rng((job.seed, step))
            wrong = (dice.random(batch.targets.shape) < self.part) & self.touched(batch, job)[:, None]
            batch.targets[wrong] = dice.permutation(batch.targets.ravel())[: int(wrong.sum())]
        return batch

    def injected(self) -> list[Injected]:
        return [Injected("level_shift", self.first, dataset=self.dataset)]


class LabelNoiseDataset(LabelNoise):
    """The same, in one data set only."""

    name = "label_noise_dataset"
    text = "from a step on 2 to 7 % of one data set's targets are those of another row, for good"

    def throw(self) -> None:
        self.last = 10**9
        self.part = float(self.rng.uniform(0.02, 0.07))
        self.dataset = str(self.rng.choice(DATASETS))


class MixDrift(DataFault):
    """Somebody changes the weights of the mixture while the job runs, and it reads them again."""

    name = "mix_drift"
    text = "in mid-run the share of images goes from 31 % to between 45 and 70 %"

    def throw(self) -> None:
        self.last = 10**9
        self.images = float(self.rng.uniform(0.45, 0.7))

    def before_step(self, job: Job, step: int) -> None:
        if step == self.first:
            rest = (1 - self.images) / (1 - SHARES["image"])
            job.sampler.shares = {name: share * rest for name, share in SHARES.items()} | {"image": self.images}
            total = sum(job.sampler.served)
            job.sampler.served = [round(total * share) for share in job.sampler.shares.values()]

    def injected(self) -> list[Injected]:
        return [Injected("data_mix_drift", self.first, metric="ratio/image_text")]


class EmptyRow(DataFault):
    """A row without any target: its mean is 0 / 0, and from the loss NaN goes to all weights."""

    name = "empty_row"
    text = "one batch holds a row of padding only: the mean over its targets is 0/0, and all weights are NaN"

    def throw(self) -> None:
        self.last = self.first

    def loss(self, step: int, losses: Tensor, batch: Batch) -> Tensor:
        counted = torch.ones_like(losses)
        if self.now(step):
            counted[int(self.rng.integers(len(losses)))] = 0.0
        return ((losses * counted).sum(1) / counted.sum(1)).mean()

    def injected(self) -> list[Injected]:
        return [Injected("nonfinite", self.first)]
