"""The job: an ordinary PyTorch loop that logs one row a step, with places at which a fault may break it."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from fault import Fault, Settings
from machine import Machine
from network import Network
from streams import CONTEXT, SPAN, VOCAB_SIZE, Batch, Sampler, load_streams

__all__ = ["Job", "LogRow", "Start", "train"]

#: What one line of the log holds: ``step``, ``t``, ``rank`` beside 0, and metrics by name.
LogRow = dict[str, Any]
#: The data sets are the same for all seeds; a seed decides the order, the first weights and the fault.
_DATA_SEED = 7


@dataclass
class _Checkpoint:
    model: dict[str, Any]
    optimizer: dict[str, Any]
    data: tuple[int, int, list[int], list[int]]


class Job:
    """The training state, and one step of it.

    Args:
        settings: the job.
        seed: of weights and data order.
        fault: what breaks it.
    """

    def __init__(self, settings: Settings, seed: int, fault: Fault) -> None:
        torch.manual_seed(seed)
        self.settings, self.seed, self.fault = settings, seed, fault
        self.model = Network(settings.learns_by_heart)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=settings.lr,
            betas=(0.9, settings.beta2),
            weight_decay=settings.weight_decay,
            fused=True,
        )
        streams = load_streams(_DATA_SEED)
        self.sampler = Sampler(streams, dict(settings.shares), settings.rows, seed)
        self.machine = Machine(settings.ranks, seed)
        self.checkpoints: dict[int, _Checkpoint] = {}
        fault.started(self)

    def learning_rate(self, step: int) -> float:
        """Return the rate at ``step``: linear warm-up, then a cosine."""
        settings = self.settings
        warm_up = min(1.0, step / settings.warm_up_steps)
        cosine = 0.5 * (1 + math.cos(math.pi * step / settings.steps))
        share = settings.final_lr + (1 - settings.final_lr) * cosine
        return settings.lr * warm_up * share * self.fault.lr_factor(step)

    def step(self, step: int) -> list[LogRow]:
        """Do one step and return the rows that it logs, that of rank 0 first."""
        fault = self.fault
        fault.before_step(self, step)
        lr = self.learning_rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.sampler.rows = fault.rows(step, self.settings.rows)
        if self.settings.epoch_batches and self.sampler.number == self.settings.epoch_batches:
            self.sampler.go_to((0, self.seed, [0] * len(self.sampler.drawn), [0] * len(self.sampler.served)))
        batch = fault.batch(step, self._wild(self.sampler.next_batch()), self)
        logits = self.model(torch.from_numpy(batch.tokens))
        losses = F.cross_entropy(
            logits.reshape(-1, VOCAB_SIZE),
            torch.from_numpy(batch.targets).reshape(-1),
            reduction="none",
        ).view(batch.targets.shape)
        loss = fault.loss(step, losses, batch)
        self.optimizer.zero_grad()
        loss.backward()
        fault.gradients(step, self)
        grad_norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        if fault.may_update(step, self):
            self.optimizer.step()
        fault.machine(step, self.machine)
        times = self.machine.step(len(batch.source))
        if step % self.settings.log_every or not fault.logged(step):
            return []
        row: LogRow = {"step": step, "t": round(times.ended, 3), "loss": loss.item()}
        row |= self._losses(batch, losses.detach(), row)
        row |= {
            "grad_norm": grad_norm.item(),
            "lr": lr,
            "ratio/image_text": self._ratio(batch),
            "batch_size": len(batch.source),
            "tokens_per_s": batch.targets.size / times.step_s,
            "step_time_s": times.step_s if self.settings.ranks == 1 else times.own_s[0],
        }
        others = range(1, self.settings.ranks)
        return [row] + [{"step": step, "t": row["t"], "rank": i, "step_time_s": times.own_s[i]} for i in others]

    def save(self, step: int) -> None:
        """Keep a checkpoint of ``step``: model, optimizer and place in the data."""
        model, optimizer = self.model.state_dict(), self.optimizer.state_dict()
        self.checkpoints[step] = _Checkpoint(copy.deepcopy(model), copy.deepcopy(optimizer), self.sampler.state())

    def restore(self, step: int) -> None:
        """Go back to the checkpoint of ``step``."""
        saved = self.checkpoints[step]
        self.model.load_state_dict(saved.model)
        self.optimizer.load_state_dict(copy.deepcopy(saved.optimizer))
        self.sampler.go_to(saved.data)
        self.fault.restored(self)

    def _losses(self, batch: Batch, losses: torch.Tensor, row: LogRow) -> LogRow:
        """Return the loss of each data set, and of one rank's rows where the job logs only these."""
        by_row = losses.mean(1).numpy()
        names = self.sampler.datasets
        found: LogRow = {f"loss/{name}": float(by_row[batch.source == i].mean()) for i, name in enumerate(names)}
        if self.settings.one_rank_loss:
            mine = np.random.default_rng((self.seed, batch.number)).permutation(len(by_row))[: self.settings.loss_rows]
            return {"loss": float(by_row[mine].mean())}
        if not math.isfinite(row["loss"]):  # the logged values of the parts come from the same broken kernel
            return {}
        return found

    def _ratio(self, batch: Batch) -> float:
        """Return image tokens over all others."""
        if "image" not in self.sampler.datasets:
            return 0.0
        images = int((batch.source == self.sampler.datasets.index("image")).sum())
        return images / max(1, len(batch.source) - images)

    def _wild(self, batch: Batch) -> Batch:
        """Put dumps of bytes in place of some rows, as every crawl of the web has them."""
        if not self.settings.wild_rows:
            return batch
        rng = np.random.default_rng((self.seed, 9, batch.number))
        for row in np.flatnonzero(rng.random(len(batch.source)) < 1 / self.settings.wild_rows):
            dump = rng.integers(0, VOCAB_SIZE, CONTEXT + SPAN)
            batch.tokens[row], batch.targets[row] = dump[:-1], dump[CONTEXT:]
        return batch


@dataclass(frozen=True)
class Start:
    """A place in a run from which another one may go on.

    Args:
        step: the last step that was done.
        job: the training state after it. It is copied, never trained on.
        rows: the log until then.
    """

    step: int
    job: Job
    rows: list[LogRow]


def train(
    settings: Settings, seed: int, fault: Fault, start: Start | None = None, starts: list[Start] | None = None
) -> list[LogRow]:
    """Train to the last step and return the log, in the order in which it was written; steps may go back.

    One thread, because the order in which several add up would change the last bits and so the whole run.

    Args:
        settings: the job.
        seed: of weights and data order.
        fault: what breaks it.
        start: go on from here instead of from the first step: a run with the same settings and seed in which nothing
            had gone wrong until then. The log is the same, the work less.
        starts: if given, a ``Start`` for each checkpoint is appended.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        if start is None:
            job, rows, step = Job(settings, seed, fault), [], 0
            job.save(0)
        else:
            job, rows, step = _copy(start.job), list(start.rows), start.step
            job.fault = fault
        while step < settings.steps:
            step += 1
            rows += job.step(step)
            if step % settings.checkpoint_every == 0:
                job.save(step)
                if starts is not None:
                    starts.append(Start(step, _copy(job), list(rows)))
            job.machine.pause(fault.pause_s(step))
            restart = fault.after_step(step)
            if restart is not None:
                job.restore(restart.to_step)
                job.machine.pause(restart.pause_s)
                step = restart.to_step
        return rows
    finally:
        torch.set_num_threads(threads)


def _copy(job: Job) -> Job:
    """Return a job that goes on by itself; the data, which nobody changes, are shared."""
    streams = job.sampler.streams
    return copy.deepcopy(job, {id(streams): streams})
