"""Small real trainings on the CPU: a model, a task, an optimizer, and the rows that they log."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

#: Characters before a target that the model sees, targets of a sample, and samples of a batch.
CONTEXT, SPAN, BATCH = 24, 24, 8
#: Characters of Python's own library that are read: real text, on every machine, nothing is downloaded.
TEXT_CHARS = 3_000_000
_VOCAB = 96

#: {"step", "loss", "lr", "ids"} a step, in the order in which they were logged; ``ids`` are the batch's samples.
Rows = list[dict[str, Any]]

__all__ = ["BATCH", "Rows", "TinyJob", "samples_of"]


@dataclass
class TinyJob:
    """A model in training that can be saved and made anew from what was saved.

    Args:
        task: ``text``, ``fixed`` (text of one length from random places), ``images`` or ``numbers``.
        model: ``mlp`` or ``gru``.
        seed: of the weights. lr: learning rate of AdamW.
        dropout: of the hidden layer.
    """

    task: str = "text"
    model: str = "mlp"
    seed: int = 0
    lr: float = 3e-3
    dropout: float = 0.0
    rows: Rows = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.net = _net(self.task, self.model, self.dropout)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), self.lr)
        self.step = 0

    def train(self, batch: Any) -> torch.Tensor:
        """Make one step with a batch of sample numbers and rows, and log it."""
        ids, rows = batch
        self.optimizer.zero_grad()
        loss = self.loss(rows)
        loss.backward()
        self.optimizer.step()
        self.log(ids, float(loss.detach()))
        return loss

    def loss(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a batch."""
        if self.task in ("text", "fixed"):
            windows = rows.long().unfold(1, CONTEXT + 1, 1).reshape(-1, CONTEXT + 1)
            return nn.functional.cross_entropy(self.net(windows[:, :-1]), windows[:, -1])
        shown, wanted = rows[:, :-1], rows[:, -1]
        if self.task == "images":
            return nn.functional.cross_entropy(self.net(shown), wanted.long())
        return nn.functional.mse_loss(self.net(shown)[:, 0], wanted)

    def log(self, ids: torch.Tensor, loss: float) -> None:
        """Write down one step."""
        self.step += 1
        self.rows.append({"step": self.step, "loss": loss, "lr": self.lr, "ids": [int(i) for i in ids]})

    def saved(self) -> dict[str, Any]:
        """Return what a checkpoint holds, without the place in the data."""
        values = {name: value.clone() for name, value in self.net.state_dict().items()}
        moments = {
            key: {name: value.clone() for name, value in state.items()}
            for key, state in self.optimizer.state_dict()["state"].items()
        }
        return {"net": values, "optimizer": {**self.optimizer.state_dict(), "state": moments}, "step": self.step}

    def load(self, saved: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.net.load_state_dict(saved["net"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.step = saved["step"]


def samples_of(task: str, count: int, seed: int = 0) -> torch.Tensor:
    """Return ``count`` samples of a task, one a row: of ``text`` in the order of the text."""
    rng = np.random.default_rng(seed)
    if task in ("text", "fixed"):
        text, length = _text(), CONTEXT + SPAN
        first = seed * 104_729 % (len(text) // 2)
        places = first + np.arange(count) * SPAN if task == "text" else rng.integers(0, len(text) - length, count)
        return torch.from_numpy(text[(places[:, None] + np.arange(length)) % len(text)])
    if task == "images":
        kinds = rng.integers(0, 8, count)
        prototypes = rng.normal(0, 1, (8, 64))
        noise = rng.gamma(2, 0.9, (count, 1)) * rng.normal(0, 1, (count, 64))
        return torch.from_numpy(np.c_[prototypes[kinds] + noise, kinds].astype(np.float32))
    inputs = rng.normal(0, 1, (count, 16))
    wanted = np.sin(inputs[:, :4].sum(1)) + 0.3 * inputs[:, 4] * inputs[:, 5] + rng.standard_t(4, count) * 0.2
    return torch.from_numpy(np.c_[inputs, wanted].astype(np.float32))


def _net(task: str, model: str, dropout: float) -> nn.Module:
    if task in ("text", "fixed"):
        if model == "gru":
            return _Recurrent()
        return nn.Sequential(
            nn.Embedding(_VOCAB, 12), nn.Flatten(), nn.Linear(12 * CONTEXT, 96), nn.GELU(),
            nn.Dropout(dropout), nn.Linear(96, _VOCAB),
        )  # fmt: skip
    inputs, outputs = (64, 8) if task == "images" else (16, 1)
    return nn.Sequential(nn.Linear(inputs, 64), nn.GELU(), nn.Dropout(dropout), nn.Linear(64, outputs))


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.gru, self.out = (
            nn.Embedding(_VOCAB, 16),
            nn.GRU(16, 48, batch_first=True),
            nn.Linear(48, _VOCAB),
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.gru(self.embed(tokens))
        found: torch.Tensor = self.out(states[:, -1])
        return found


@lru_cache(maxsize=1)
def _text() -> np.ndarray:
    """Return the sources of Python's library as characters from 0 to 95."""
    found = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        found += path.read_bytes()
        if len(found) >= TEXT_CHARS:
            break
    return np.clip(np.frombuffer(bytes(found[:TEXT_CHARS]), np.uint8).astype(np.int16) - 31, 0, _VOCAB - 1)
