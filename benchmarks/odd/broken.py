"""Ways in which a training breaks, each in a real training of a small transformer with the real client."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .language import VOCAB, Language

__all__ = ["BROKEN", "Broken"]

#: Step of the fault, the last one, the step at which the first attempt of a resumed job dies, and its checkpoint.
AT, LAST, DIED, SAVED = 700, 1_300, 730, 700
#: Steps between two checkpoints.
EVERY = 100


@dataclass(frozen=True)
class Broken:
    """A fault and the answer to it.

    Attributes:
        arm: gets the job, the seed, the attempt and what is added to each row, and plants the fault.
        kinds: names for it that are right, of the fault or of its effect.
        advice: actions that are right.
        resumed: the job dies at DIED and goes on from SAVED. ranks: processes.
        number: (attempt, step) -> batch.
        severity: the least that it deserves.
    """

    arm: Callable[[Language, int, dict[str, float]], None]
    kinds: tuple[str, ...]
    advice: tuple[str, ...] = ("roll_back", "wait", "inspect")
    resumed: bool = False
    ranks: int = 1
    number: Callable[[int, int], int] = lambda attempt, step: step
    severity: str = "warning"
    keep_optimizer: bool = True


def train(fault: Broken, run: Any, seed: int, attempt: int, rank: int, folder: Path) -> bool:
    """Train one attempt; return whether the job is at its end."""
    job, extra = Language(seed), dict[str, float]()
    first = 1
    if attempt:
        job.load(folder / f"{SAVED}.pt", optimizer=fault.keep_optimizer)
        first = SAVED + 1
        run.restored(SAVED)
    fault.arm(job, attempt, extra)
    if fault.ranks > 1:
        _reduce(job, rank, fault.ranks, extra)
    last = DIED if fault.resumed and not attempt else LAST
    for step in run.steps(first, last + 1):
        number = fault.number(attempt, step)
        row = job.step(step, number * fault.ranks + rank)
        ids = job.ids(number * fault.ranks + rank)
        run.data(step, ids=[int(one) * 2 + at for at, part in enumerate(ids.values()) for one in part])
        run.log(step, row | extra)
        if step % EVERY == 0 and rank == 0:
            path = folder / f"{step}.pt"
            job.save(path)
            run.checkpoint(step, str(path))
    return last == LAST


def _norm(job: Language) -> float:
    return math.sqrt(sum(float(one.detach().square().sum()) for one in job.net.parameters()))


def _reduce(job: Language, rank: int, ranks: int, extra: dict[str, float]) -> None:
    """Average the gradients of all ranks; from AT on rank 1 goes on with its own."""
    import torch.distributed as distributed

    def reduced(step: int) -> bool:
        for parameter in job.net.parameters():
            assert parameter.grad is not None
            own = parameter.grad.clone()
            distributed.all_reduce(parameter.grad)
            parameter.grad /= ranks
            if rank == 1 and step >= AT:
                parameter.grad.copy_(own)
        extra["weight_norm"] = _norm(job)
        return True

    job.on_gradient = reduced


# --- data ------------------------------------------------------------------------------------------------------------


def _corrupted_shard(job: Language, attempt: int, extra: dict[str, float]) -> None:
    def batch(step: int, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        if AT <= step < AT + 40:
            rows["sums"] = torch.randint(0, VOCAB, rows["sums"].shape)
        return rows

    job.on_batch = batch


def _label_shift(job: Language, attempt: int, extra: dict[str, float]) -> None:
    def loss(step: int, rows: Tensor) -> Tensor:
        return job.losses(rows, rows[:, :-1].roll(-2, 1)) if step >= AT else job.losses(rows)

    job.loss_of = loss


def _free_running(job: Language, attempt: int, extra: dict[str, float]) -> None:
    """The model reads what it foretold in place of the text."""

    def loss(step: int, rows: Tensor) -> Tensor:
        if step < AT:
            return job.losses(rows)
        with torch.no_grad():
            own = job.net(rows[:, :-1]).argmax(2)
        read = torch.cat([rows[:, :1], own[:, :-1], rows[:, -1:]], 1)
        return job.losses(read, rows[:, 1:])

    job.loss_of = loss


def _batch_halved(job: Language, attempt: int, extra: dict[str, float]) -> None:
    full = job.rows

    def batch(step: int, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: one[: len(one) // 2] for name, one in rows.items()} if step >= AT else rows

    job.on_batch = batch
    job.rows = full * 2


# --- optimizer and weights ----------------------------------------------------------------------------------------


def _decay_sign(job: Language, attempt: int, extra: dict[str, float]) -> None:
    def gradient(step: int) -> bool:
        for group in job.optimizer.param_groups:
            group["weight_decay"] = -2.0 if step >= AT else 0.1
        extra["weight_norm"] = _norm(job)
        return True

    job.on_gradient = gradient


def _no_clipping(job: Language, attempt: int, extra: dict[str, float]) -> None:
    """SGD with momentum, whose steps are as long as the gradient: clipping is what holds it."""
    job.lr, job.clip = 10.0, 0.05
    job.optimizer = torch.optim.SGD(job.net.parameters(), job.lr, momentum=0.9)

    def batch(step: int, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        job.clip = None if step >= AT else 0.05
        return rows

    job.on_batch = batch


def _bit_flip(job: Language, attempt: int, extra: dict[str, float]) -> None:
    def gradient(step: int) -> bool:
        if step == AT:
            with torch.no_grad():
                job.net.head.weight[5, 7] *= 2.0**16
        return True

    job.on_gradient = gradient


def _norm_nan(job: Language, attempt: int, extra: dict[str, float]) -> None:
    def gradient(step: int) -> bool:
        if step == AT:
            with torch.no_grad():
                job.net.blocks[0].norm_2.weight[3] = math.nan
        return True

    job.on_gradient = gradient


def _loss_scale(job: Language, attempt: int, extra: dict[str, float]) -> None:
    """Each gradient overflows from AT on: the step is skipped and the scale halved, down to 0."""
    extra["loss_scale"] = 65_536.0

    def gradient(step: int) -> bool:
        if step >= AT:
            extra["loss_scale"] = extra["loss_scale"] / 2 if extra["loss_scale"] > 1e-30 else 0.0
            extra["grad_norm"] = math.inf
            return False
        return True

    job.on_gradient = gradient


def _nothing(job: Language, attempt: int, extra: dict[str, float]) -> None:
    """The fault is in the loop."""


def _rate_times_ten(job: Language, attempt: int, extra: dict[str, float]) -> None:
    job.rate = lambda step: 10.0 if attempt else 1.0


_CURVES = ("spike", "level_shift", "divergence")
BROKEN = {
    "corrupted_shard": Broken(_corrupted_shard, ("spike", "level_shift")),
    "label_shift": Broken(_label_shift, _CURVES),
    "optimizer_lost": Broken(_nothing, ("resume_artifact", "spike"), resumed=True, keep_optimizer=False),
    "decay_sign": Broken(_decay_sign, (*_CURVES, "metric")),
    "no_all_reduce": Broken(_nothing, (*_CURVES, "rank_drift", "metric"), ranks=2),
    "loss_scale_zero": Broken(_loss_scale, ("nonfinite", "frozen", "plateau", "metric")),
    "rate_times_ten": Broken(
        _rate_times_ten, ("resume_artifact", "learning_rate", "spike", "divergence"), resumed=True
    ),
    "order_again": Broken(_nothing, ("repeat_data",), resumed=True, number=lambda attempt, step: step - 300 * attempt),
    "bit_flip": Broken(_bit_flip, ("spike", "divergence", "level_shift")),
    "batch_halved": Broken(_batch_halved, ("grad_norm",), severity="info"),
    "no_clipping": Broken(_no_clipping, (*_CURVES, "nonfinite", "grad_norm")),
    "free_running": Broken(_free_running, _CURVES),
    "norm_nan": Broken(_norm_nan, ("nonfinite",)),
}
