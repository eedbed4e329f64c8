"""Faults of the optimisation: a learning rate out of bounds, overflow, gradients, weights that do not move."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from data_faults import DataFault
from fault import Injected
from streams import Batch
from training import Job

__all__ = ["GradSpikes", "KilledByLr", "LossScale", "LrBump", "LrCreep", "LrWindow", "NegativeDecay", "StaleParameters"]


class LrWindow(DataFault):
    """Somebody edits the schedule: for a while the learning rate is many times too high."""

    name = "lr_window"
    text = "for 12 to 25 steps the learning rate is 30 to 80 times too high"
    FACTOR: ClassVar[tuple[float, float]] = (30.0, 80.0)
    LASTS: ClassVar[tuple[int, int]] = (12, 25)

    def throw(self) -> None:
        self.factor = float(self.rng.uniform(*self.FACTOR))
        self.last = self.first + int(self.rng.integers(*self.LASTS)) - 1

    def lr_factor(self, step: int) -> float:
        return self.factor if self.now(step) else 1.0

    def injected(self) -> list[Injected]:
        return [Injected("spike", self.first, last_step=self.last, cause="learning_rate")]


class LrBump(LrWindow):
    """The rate is pushed for two or three steps only."""

    name = "lr_bump"
    text = "for 2 or 3 steps the learning rate is 20 to 60 times too high"
    FACTOR = (20.0, 60.0)
    LASTS = (2, 4)


class KilledByLr(LrWindow):
    """A rate so high that the hidden units die: the loss stays where a model without them is."""

    name = "killed_by_lr"
    text = "for 10 to 30 steps the learning rate is 200 to 600 times too high, which kills the hidden units"
    FACTOR = (200.0, 600.0)
    LASTS = (10, 30)


class LrCreep(DataFault):
    """A schedule with a wrong sign: the rate grows by a constant factor each step instead of falling."""

    name = "lr_creep"
    text = "from a step on the learning rate grows by 2 to 3.5 % a step instead of falling"

    def throw(self) -> None:
        self.last = 10**9
        self.growth = float(self.rng.uniform(1.02, 1.035))

    def lr_factor(self, step: int) -> float:
        return self.growth ** max(0, step - self.first + 1)

    def injected(self) -> list[Injected]:
        return [Injected("divergence", self.first, cause="learning_rate")]


class NegativeDecay(DataFault):
    """A sign gets lost in a change of the optimizer: weight decay makes the weights grow."""

    name = "negative_decay"
    text = "from a step on weight decay has the wrong sign: the weights grow by 0.3 to 0.6 % a step"

    def throw(self) -> None:
        self.last = 10**9
        self.growth = float(self.rng.uniform(0.003, 0.006))

    def gradients(self, step: int, job: Job) -> None:
        if self.now(step):
            with torch.no_grad():
                for parameter in job.model.parameters():
                    parameter.mul_(1 + self.growth)

    def injected(self) -> list[Injected]:
        return [Injected("divergence", self.first)]


class LossScale(DataFault):
    """The loss scaler starts anew with a scale that is too high: overflow, a skipped step, half the scale, and again.

    The sum of the losses is taken in float16, which ends at 65,504.
    """

    name = "loss_scale"
    text = "the float16 loss scale is set too high: the loss is Inf for 3 to 7 steps, which are skipped"

    def throw(self) -> None:
        self.steps = int(self.rng.integers(3, 8))
        self.last = 10**9
        self.scale = 1.0

    def loss(self, step: int, losses: Tensor, batch: Batch) -> Tensor:
        if step == self.first:
            self.scale = 65_504.0 * 2.0 ** (self.steps - 0.5) / float(losses.detach().sum())
        scaled = (losses.sum() * self.scale).half()
        self.overflown = bool(scaled.isinf())
        if self.overflown:
            self.scale /= 2
            return scaled.float() / self.scale
        return losses.mean()

    def may_update(self, step: int, job: Job) -> bool:
        return not self.overflown

    def injected(self) -> list[Injected]:
        return [Injected("nonfinite", self.first)]


class GradSpikes(DataFault):
    """Now and then the gradients of the ranks are summed and not averaged; clipping makes that harmless."""

    name = "grad_spikes"
    text = (
        "four times, for one to four steps, the gradient is 15 to 60 times too long (summed over ranks); it is clipped"
    )

    def throw(self) -> None:
        self.last = self.first + 240
        lengths = self.rng.integers(1, 5, 4).tolist()
        self.stretches = [(self.first + 80 * i, self.first + 80 * i + n - 1) for i, n in enumerate(lengths)]
        self.factor = float(self.rng.uniform(15, 60))

    def gradients(self, step: int, job: Job) -> None:
        if any(first <= step <= last for first, last in self.stretches):
            for parameter in job.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(self.factor)

    def injected(self) -> list[Injected]:
        return [
            Injected("grad_norm", first, metric="grad_norm", last_step=last, alarm=False, measured=False)
            for first, last in self.stretches
        ]


class StaleParameters(DataFault):
    """The model was rebuilt (wrapped, cast, moved) and the optimizer holds the old parameters: nothing is learnt."""

    name = "stale_parameters"
    text = "early in the run the optimizer is left with parameters that are no longer the model's"
    BEGINS = (150, 250)

    def throw(self) -> None:
        self.last = 10**9

    def may_update(self, step: int, job: Job) -> bool:
        return not self.now(step)

    def injected(self) -> list[Injected]:
        return [Injected("plateau", self.first)]


class NeverLearns(DataFault):
    """A job that is broken from the first step: a rate of zero, shuffled targets, or units that were never alive."""

    name = "never_learns"
    text = "from the first step on the rate is 0, the targets are shuffled, or all hidden units are dead"
    WAYS: ClassVar[tuple[str, ...]] = ("rate", "targets", "dead")

    def throw(self) -> None:
        self.first, self.last = 1, 10**9
        self.way = str(self.rng.choice(self.WAYS))

    def started(self, job: Job) -> None:
        if self.way == "dead":
            with torch.no_grad():
                job.model.inner.bias.fill_(-100.0)
                job.model.block.bias.fill_(-100.0)

    def lr_factor(self, step: int) -> float:
        return 0.0 if self.way == "rate" else 1.0

    def batch(self, step: int, batch: Batch, job: Job) -> Batch:
        if self.way == "targets":
            batch.targets[:] = self.rng.permutation(batch.targets.ravel()).reshape(batch.targets.shape)
        return batch

    def injected(self) -> list[Injected]:
        return [Injected("plateau", self.first, cause="learning_rate" if self.way == "rate" else None)]
