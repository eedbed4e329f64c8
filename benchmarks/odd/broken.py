"""Ways in which a training breaks, each in a real training of a small transformer with the real client."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .language import CONTEXT, VOCAB, Language

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
        one_sampler: from AT on all ranks read the data of rank 0.
    """

    arm: Callable[[Language, int, dict[str, float]], None]
    kinds: tuple[str, ...]
    advice: tuple[str, ...] = ("roll_back", "wait", "inspect")
    resumed: bool = False
    ranks: int = 1
    number: Callable[[int, int], int] = lambda attempt, step: step
    severity: str = "warning"
    keep_optimizer: bool = True
    one_sampler: bool = False


def train(fault: Broken, run: Any, seed: int, attempt: int, rank: int, folder: Path) -> bool:
    """Train one attempt; return whether the job is at its end."""
    job, extra = Language(seed, folder=folder), dict[str, float]()
    first = 1
    if attempt:
        job.load(folder / f"{SAVED}.pt", optimizer=fault.keep_optimizer)
        first = SAVED + 1
        run.restored(SAVED)
    fault.arm(job, attempt, extra)
    if fault.ranks > 1:
        _reduce(job, rank, fault, extra)
    last = DIED if fault.resumed and not attempt else LAST
    for step in run.steps(first, last + 1):
        number = fault.number(attempt, step)
        place = number * fault.ranks + (0 if fault.one_sampler and step >= AT else rank)
        row = job.step(step, place)
        ids = job.ids(place)
        run.data(step, ids=[int(one) * 2 + at for at, part in enumerate(ids.values()) for one in part])
        run.log(step, row | extra)
        if step % EVERY == 0 and rank == 0:
            path = folder / f"{step}.pt"
            job.save(path, job.average)
            run.checkpoint(step, str(path))
    return last == LAST


def _norm(job: Language) -> float:
    return math.sqrt(sum(float(one.detach().square().sum()) for one in job.net.parameters()))


def _reduce(job: Language, rank: int, fault: Broken, extra: dict[str, float]) -> None:
    """Average the gradients of all ranks; where they don't read the same, rank 1 goes on with its own from AT on."""
    import torch.distributed as distributed

    def reduced(step: int) -> bool:
        for parameter in job.net.parameters():
            assert parameter.grad is not None
            own = parameter.grad.clone()
            distributed.all_reduce(parameter.grad)
            parameter.grad /= fault.ranks
            if rank == 1 and step >= AT and not fault.one_sampler:
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


# --- resumes that bring back less than there was, loaders and losses that change -------------------------------------


def _smoothing_off(job: Language, attempt: int, extra: dict[str, float]) -> None:
    """Label smoothing is a setting that the second attempt doesn't have: the loss is lower, the model as good."""
    job.loss_of = lambda step, rows: job.losses(rows, smoothing=0.0 if attempt else 0.1)


def _dropout(job: Language, on: Callable[[int], bool], at: list[int]) -> None:
    def drop(module: Any, args: Any, out: Tensor) -> Tensor:
        return torch.nn.functional.dropout(out, 0.15, training=on(at[0]))

    job.net.tokens.register_forward_hook(drop)
    job.net.blocks.register_forward_hook(drop)


def _dropout_lost(job: Language, attempt: int, extra: dict[str, float]) -> None:
    """The second attempt trains without dropout."""
    _dropout(job, lambda step: not attempt, [0])


def _left_in_eval(job: Language, attempt: int, extra: dict[str, float]) -> None:
    """After an evaluation nobody switches the model back: no dropout from then on."""
    at = [0]
    _dropout(job, lambda step: step < AT, at)

    def batch(step: int, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        at[0] = step
        return rows

    job.on_batch = batch


def _wrong_eps(job: Language, attempt: int, extra: dict[str, float]) -> None:
    """The second attempt has an epsilon of 0.01 in AdamW: its steps are a small part of the usual ones."""
    for group in job.optimizer.param_groups:
        group["eps"] = 1e-2 if attempt else 1e-8


def _worker_repeats(job: Language, attempt: int, extra: dict[str, float]) -> None:
    """One of four workers is stuck at its shard of 96 samples: a quarter of each batch are these."""
    plain = job.ids

    def ids(number: int) -> dict[str, Tensor]:
        drawn = plain(number)
        if number >= AT:
            dice = torch.Generator().manual_seed(number)
            drawn = {name: one.clone() for name, one in drawn.items()}
            drawn["text"][:4] = torch.randperm(96, generator=dice)[:4]
        return drawn

    job.ids = ids  # type: ignore[method-assign]


def _warm_restart(job: Language, attempt: int, extra: dict[str, float]) -> None:
    """The scheduler's count of steps is not restored: warm-up and cosine from the first step."""
    again = lambda step: min(1.0, (step - SAVED) / 60) / (0.55 + 0.45 * math.cos(math.pi * step / job.steps))  # noqa: E731
    job.rate = lambda step: again(step) if attempt else 1.0


def _other_tokenizer(job: Language, attempt: int, extra: dict[str, float]) -> None:
    """The second attempt reads the sums with another vocabulary."""
    if attempt:
        other = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(job.seed))
        job.sources["sums"] = other[job.sources["sums"]]


def _embedding_row(job: Language, attempt: int, extra: dict[str, float]) -> None:
    """The row of the commonest character is overwritten."""
    common = int(torch.bincount(job.sources["text"].flatten(), minlength=VOCAB).argmax())

    def gradient(step: int) -> bool:
        if step == AT:
            with torch.no_grad():
                job.net.tokens.weight[common] = 3 * torch.randn(job.net.tokens.weight.shape[1])
        return True

    job.on_gradient = gradient


def _accumulation(job: Language, attempt: int, extra: dict[str, float]) -> None:
    """Half of the micro-batches are lost, while the sum is still divided by all of them."""

    def batch(step: int, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        job.part = 0.5 if step >= AT else 1.0
        return {name: one[: len(one) // 2] for name, one in rows.items()} if step >= AT else rows

    job.on_batch = batch


def _skips_for_ever(job: Language, attempt: int, extra: dict[str, float]) -> None:
    """The scaler finds an inf in one layer that is not logged, and skips each step from AT on."""
    job.on_gradient = lambda step: step < AT


def _average_loaded(job: Language, attempt: int, extra: dict[str, float]) -> None:
    """The second attempt takes the average of the weights (EMA) for the trained ones."""
    job.average = {name: one.clone() for name, one in job.net.state_dict().items()} if not attempt else None

    def gradient(step: int) -> bool:
        for name, one in job.net.state_dict().items():
            if job.average is not None:
                job.average[name].lerp_(one, 0.005)
        return True

    job.on_gradient = gradient


def _packing(job: Language, attempt: int, extra: dict[str, float]) -> None:
    """Two halves of different documents are one sample, without a mask between them."""

    def batch(step: int, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        if step >= AT:
            rows = {
                name: torch.cat([one[:, :8], one.roll(1, 0)[:, 8:16], one.roll(2, 0)[:, 16:]], 1)
                for name, one in rows.items()
            }
        return rows

    job.on_batch = batch


def _labels_shuffled(job: Language, attempt: int, extra: dict[str, float]) -> None:
    """The targets of the sums are those of other samples."""

    def loss(step: int, rows: Tensor) -> Tensor:
        wanted = rows[:, 1:].clone()
        if step >= AT:
            sums = len(rows) - round(job.text_share * job.rows)
            wanted[-sums:] = wanted[-sums:].roll(1, 0)
        return job.losses(rows, wanted)

    job.loss_of = loss


def _mask_lost(job: Language, attempt: int, extra: dict[str, float]) -> None:
    """A third of each sample is padding, which from AT on counts in the loss."""

    def batch(step: int, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: torch.cat([one[:, :16], torch.zeros_like(one[:, 16:])], 1) for name, one in rows.items()}

    job.on_batch = batch
    job.loss_of = lambda step, rows: job.losses(rows, until=CONTEXT if step >= AT else 15)


def _sees_ahead(job: Language, attempt: int, extra: dict[str, float]) -> None:
    """The second attempt has no causal mask: the model learns to read the answer."""
    job.net.blocks[0].causal = not attempt


def _older_weights(job: Language, attempt: int, extra: dict[str, float]) -> None:
    """The newest checkpoint's weights are those of an older one: the save was not yet over."""
    if attempt:
        saved = torch.load(job.folder / f"{SAVED - 4 * EVERY}.pt")
        job.net.load_state_dict(saved["net"])


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
    "smoothing_off": Broken(
        _smoothing_off, ("resume_artifact", "level_shift", "metric"), resumed=True, severity="info"
    ),
    "dropout_lost": Broken(_dropout_lost, ("resume_artifact", "level_shift", "metric"), resumed=True, severity="info"),
    "left_in_eval": Broken(_left_in_eval, ("level_shift", "metric"), severity="info"),
    "wrong_eps": Broken(_wrong_eps, ("resume_artifact", "plateau", "grad_norm", *_CURVES), resumed=True),
    "worker_repeats": Broken(_worker_repeats, ("repeat_data",)),
    "warm_restart": Broken(_warm_restart, ("resume_artifact", "learning_rate"), resumed=True),
    "other_tokenizer": Broken(_other_tokenizer, ("resume_artifact", *_CURVES), resumed=True),
    "embedding_row": Broken(_embedding_row, _CURVES),
    "accumulation": Broken(_accumulation, ("grad_norm", "metric"), severity="info"),
    "skips_for_ever": Broken(_skips_for_ever, ("plateau", "frozen", "metric")),
    "average_loaded": Broken(_average_loaded, ("resume_artifact", *_CURVES), resumed=True),
    "packing": Broken(_packing, _CURVES),
    "labels_shuffled": Broken(_labels_shuffled, _CURVES),
    "mask_lost": Broken(_mask_lost, ("level_shift", "metric"), severity="info"),
    "sees_ahead": Broken(_sees_ahead, ("resume_artifact", "metric"), resumed=True),
    "older_weights": Broken(_older_weights, ("resume_artifact", *_CURVES), resumed=True),
    "same_data": Broken(_nothing, ("repeat_data",), ranks=2, one_sampler=True),
    "norm_nan": Broken(_norm_nan, ("nonfinite",)),
}
