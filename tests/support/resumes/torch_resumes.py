"""A real PyTorch job that goes back, and comes back with all that it had, or without one part of it."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from stabilityclient.wire import Frame
from support.job_frames import Job

__all__ = ["trained"]

WORDS, CONTEXT, ROWS = 24, 6, 16


class _Trainer:
    """A small language model on a Markov chain, with dropout, AdamW, warm-up and a cosine."""

    def __init__(self, seed: int, dropout: float) -> None:
        torch.manual_seed(seed)
        chain = torch.softmax(2.5 * torch.randn(WORDS, WORDS), 1).tolist()
        words, text = random.Random(seed), [0]
        for _ in range(12_000):
            text += words.choices(range(WORDS), chain[text[-1]])
        self.tokens = torch.tensor(text)
        self.model = nn.Sequential(
            nn.Embedding(WORDS, 16), nn.Flatten(), nn.Linear(16 * CONTEXT, 48), nn.GELU(), nn.Dropout(dropout),
            nn.Linear(48, WORDS),
        )  # fmt: skip
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.order = torch.randperm(len(text) - CONTEXT - 1, generator=torch.Generator().manual_seed(seed))
        self.seed, self.batch, self.scale, self.late = seed, 0, 1.0, 0

    def step(self, step: int) -> dict[str, float]:
        at = step - self.late
        lr = 3e-3 * self.scale * min(1.0, at / 40) * (0.1 + 0.9 * (0.5 + 0.5 * math.cos(math.pi * at / 1_000)))
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        rows = self.order[self.batch * ROWS : (self.batch + 1) * ROWS]
        self.batch += 1
        windows = self.tokens[rows[:, None] + torch.arange(CONTEXT + 1)]
        loss = F.cross_entropy(self.model(windows[:, :-1]), windows[:, -1])
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        grad_norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return {"loss": loss.item(), "grad_norm": grad_norm.item(), "lr": lr}

    def saved(self) -> dict[str, Any]:
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        return copy.deepcopy(state) | {"rng": torch.get_rng_state(), "batch": self.batch}

    def load(self, state: Mapping[str, Any], but: str) -> None:
        """Take over a checkpoint but for one part of it."""
        self.model.load_state_dict(copy.deepcopy(state["model"]))
        if but == "optimizer":
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        else:
            self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        torch.manual_seed(self.seed + 77) if but == "rng" else torch.set_rng_state(state["rng"])
        self.batch = 0 if but == "loader" else state["batch"]
        if but == "order":
            self.order = torch.randperm(len(self.order), generator=torch.Generator().manual_seed(self.seed + 5))


def trained(
    but: str = "", *, seed: int = 1, dropout: float = 0.1, to_step: int = 260, until: int = 300, last: int = 460,
    **changes: Any,
) -> list[Frame]:  # fmt: skip
    """Return the frames of a job that trained up to ``until``, went back to ``to_step`` and on to ``last``.

    Args:
        but: what did not come back: ``optimizer``, ``rng``, ``loader`` (from its start), ``order``, ``rate`` (the
            schedule starts again), ``skip`` (what was to be skipped is fed), ``scale`` (of the rate), "" for nothing;
            ``numerics``: all of it came back, on another machine.
        changes: what the rollback was to change.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        trainer, job, frames = _Trainer(seed, dropout), Job(), []
        state: dict[str, Any] = {}
        for first, end in ((1, until), (to_step + 1, last)):
            if first > 1:
                trainer.load(state, but)
                trainer.late = to_step if but == "rate" else 0
                trainer.scale = 1.0 if but == "scale" else changes.get("lr_scale", 1.0)
                trainer.batch += 0 if but == "skip" else changes.get("skip_batches", 0)
                if but == "numerics":
                    rounding = torch.Generator().manual_seed(3)
                    with torch.no_grad():
                        for parameter in trainer.model.parameters():
                            parameter.mul_(1 + 1e-6 * torch.randn(parameter.shape, generator=rounding))
                frames.append(job.rolled_back(to_step, "d-1", changes=changes))
            for begin in range(first, end + 1, 20):
                steps = list(range(begin, min(begin + 20, end + 1)))
                rows = []
                for step in steps:
                    rows.append(trainer.step(step))
                    if step == to_step and first == 1:
                        state = trainer.saved()
                frames.append(job.rows(steps, {name: [row[name] for row in rows] for name in rows[0]}))
        return frames
    finally:
        torch.set_num_threads(threads)
