"""What a fault is: the places at which it may break the job, and what it says it did there."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from torch import Tensor

from streams import Batch

if TYPE_CHECKING:
    from machine import Machine
    from training import Job

__all__ = ["SHARES", "Fault", "Injected", "Restart", "Settings"]

#: Share of the rows that each data set gets.
SHARES = {"text": 0.375, "code": 0.3125, "image": 0.3125}


@dataclass(frozen=True)
class Settings:
    """The job. Two jobs with equal settings and seed give the same log.

    Args:
        steps: last step.
        rows: rows of a global batch, 24 targets each.
        lr: highest learning rate.
        warm_up_steps: steps of the linear warm-up.
        final_lr: the cosine ends at this fraction of ``lr``.
        shares: (data set, share of the rows), adding up to 1.
        log_every: a row of the log each so many steps.
        checkpoint_every: steps between checkpoints.
        ranks: ranks that log a row of their own; one logs nothing of the ranks.
        one_rank_loss: ``loss`` is that of the first rows only, as where each rank logs its own and nobody averages.
        loss_rows: how many rows these are.
        wild_rows: about one of so many rows is no text but a dump of bytes; 0 for none.
        clip: largest gradient norm.
        weight_decay: of AdamW.
        beta2: of AdamW: its second moments look back on some ``1 / (1 - beta2)`` steps.
        learns_by_heart: the model has a large table of what followed longer contexts, so that it remembers batches.
        epoch_batches: the data are so many batches, in one order, again and again; 0 for a stream.
    """

    steps: int = 1000
    rows: int = 32
    lr: float = 2e-3
    warm_up_steps: int = 40
    final_lr: float = 0.1
    shares: tuple[tuple[str, float], ...] = tuple(SHARES.items())
    log_every: int = 1
    checkpoint_every: int = 100
    ranks: int = 1
    one_rank_loss: bool = False
    loss_rows: int = 4
    wild_rows: int = 0
    clip: float = 1.0
    weight_decay: float = 0.01
    beta2: float = 0.95
    learns_by_heart: bool = False
    epoch_batches: int = 0


@dataclass(frozen=True)
class Restart:
    """The job goes back to a checkpoint.

    Args:
        to_step: the checkpoint's step.
        pause_s: virtual seconds until it goes on.
    """

    to_step: int
    pause_s: float


@dataclass(frozen=True)
class Injected:
    """What a fault did, to be turned into truth.

    Args:
        kind: incident kind of the board, or of the quiet ones: ``sudden_drop``, ``lr_drop``, ``batch_size``,
            ``warm_up``.
        step: the first step that it touched.
        metric: what it should be seen in.
        dataset: the only data set that it touched.
        rank: the only rank that it touched.
        last_step: the last step that it touched, None for the end of the run.
        alarm: whether people should be called, if it has an effect at all.
        measured: whether the effect is measured on the loss against the twin; otherwise the event is as injected.
        sought_until: an effect that begins later is that of another fault; None for the end of the run.
        above_before: the loss is above the twin already: the effect is what comes on top.
        one_point: it shows in one logged point.
        cause: incident kind that names the cause rather than the effect, None where no kind does.
    """

    kind: str
    step: int
    metric: str = "loss"
    dataset: str | None = None
    rank: int | None = None
    last_step: int | None = None
    alarm: bool = True
    measured: bool = True
    sought_until: int | None = None
    above_before: bool = False
    one_point: bool = False
    cause: str | None = None


class Fault:
    """Nothing goes wrong. The others override what they break.

    Class attributes:
        name: for ``--fault``.
        text: what breaks, one plain clause.

    Args:
        seed: decides when it happens, how badly, and to which data set.
    """

    name: ClassVar[str]
    text: ClassVar[str]

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng((seed, zlib.crc32(self.name.encode())))
        self.prepare()

    def prepare(self) -> None:
        """Throw the dice: when, how badly, to whom."""

    def settings(self) -> Settings:
        """Return the job that this fault needs. Its healthy twin has the same."""
        return Settings()

    def injected(self) -> list[Injected]:
        """Return what was done, in the order of steps."""
        return []

    # --- places to break ------------------------------------------------------------------------------------------

    def started(self, job: Job) -> None:
        """Called when the job is built, before its first step."""

    def before_step(self, job: Job, step: int) -> None:
        """Called before each step."""

    def rows(self, step: int, usual: int) -> int:
        """Return how many rows the batch of ``step`` has."""
        return usual

    def lr_factor(self, step: int) -> float:
        """Return by what the learning rate is multiplied."""
        return 1.0

    def batch(self, step: int, batch: Batch, job: Job) -> Batch:
        """Return the batch as the loader hands it out."""
        return batch

    def loss(self, step: int, losses: Tensor, batch: Batch) -> Tensor:
        """Return the loss that is learnt from, from the loss of each target."""
        return losses.mean()

    def gradients(self, step: int, job: Job) -> None:
        """Called between the backward pass and the clipping."""

    def may_update(self, step: int, job: Job) -> bool:
        """Return whether the optimizer does its step."""
        return True

    def machine(self, step: int, machine: Machine) -> None:
        """Called before the machine does its step."""

    def after_step(self, step: int) -> Restart | None:
        """Return where the job goes back to after ``step``, None to go on."""
        return None

    def restored(self, job: Job) -> None:
        """Called after a checkpoint was loaded whole: model, optimizer, place in the data."""

    def logged(self, step: int) -> bool:
        """Return whether the job logs this step, if it is one that is logged at all."""
        return True

    def pause_s(self, step: int) -> float:
        """Return virtual seconds that pass after ``step`` for something else, such as an evaluation."""
        return 0.0
