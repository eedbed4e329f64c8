"""Healthy jobs of many kinds: nothing is wrong with the data of any, and half of them are resumed rightly."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .tiny_jobs import BATCH, Rows, TinyJob, samples_of

#: Steps of a job, and of an epoch where it has several.
STEPS, EPOCH = 1_200, 280
#: What follows in turn, each with a length of its own, so that all pairs come.
_TASKS = ("text", "fixed", "images", "numbers", "fixed")
_MODELS = ("mlp", "mlp", "gru")
_RATES = (1e-3, 3e-3)
_DROPOUTS = (0.0, 0.0, 0.1)

__all__ = ["healthy_job"]


def healthy_job(number: int, seed: int) -> tuple[str, Rows]:
    """Train one job; return what it is, in a few words, and its log.

    Args:
        number: of the job: decides its task, model, rate, dropout, epochs, and whether it is resumed.
        seed: of weights, order and task.
    """
    job = TinyJob(
        _TASKS[number % 5], _MODELS[number % 3], seed, _RATES[number % 2], _DROPOUTS[number % 3]
    )  # fmt: skip
    epochs, resumed = number % 4 != 0, number // 2 % 2 == 1
    count = (EPOCH if epochs else STEPS) * BATCH
    rows = samples_of(job.task, count, seed)

    def batches(skip: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(99):
            order = torch.randperm(count, generator=generator) if epochs else torch.arange(count)
            for first in range(0, count, BATCH):
                if skip:
                    skip -= 1
                    continue
                ids = order[first : first + BATCH]
                yield ids, rows[ids]

    place = 400 + 40 * number % 330
    if resumed:
        for batch in batches(0):
            job.train(batch)
            if job.step == place:
                saved = job.saved()
            if job.step == place + 60:
                break
        again = TinyJob(job.task, job.model, seed, job.lr, rows=job.rows)
        again.load(saved)
        job = again
    for batch in batches(job.step):
        job.train(batch)
        if job.step == STEPS:
            break
    name = f"{job.task}, {job.model}, {'epochs shuffled anew' if epochs else 'one pass in order'}"
    return name + (", resumed" if resumed else ""), job.rows
