"""A small transformer that reads Python's own library: two sources, AdamW, warm-up and cosine, clipping."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from resumes.tiny_jobs import samples_of
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["CONTEXT", "VOCAB", "Language"]

#: Characters of a sample, and how many there are.
CONTEXT, VOCAB = 23, 96
#: Samples of each source; the source ``sums`` is arithmetic, ``text`` is Python's library.
SAMPLES = 6_000
_WIDTH, _HEADS = 32, 2


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.qkv, self.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.up, self.down = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)
        self.causal: bool = True

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        parts = self.qkv(self.norm_1(x)).view(rows, length, 3, _HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*parts, is_causal=self.causal)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, -1))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, _WIDTH), nn.Embedding(CONTEXT, _WIDTH)
        self.blocks = nn.Sequential(_Block())
        self.norm, self.head = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, VOCAB)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.blocks(self.tokens(x) + self.places.weight[: x.shape[1]])
        found: Tensor = self.head(self.norm(hidden))
        return found


@dataclass
class Language:
    """A training that can be saved and gone on with.

    Args:
        seed: of weights and data. rows: samples of a batch. lr: the highest rate. steps: of the whole schedule.
        clip: largest norm of the gradient, None for no clipping. text_share: of the samples of a batch. folder: of
            checkpoints.
    """

    seed: int
    rows: int = 16
    lr: float = 3e-3
    steps: int = 1_400
    clip: float | None = 1.0
    text_share: float = 0.7
    folder: Path = Path()

    def __post_init__(self) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(self.seed)
        self.net = _Net()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), self.lr, weight_decay=0.1)
        self.sources = {
            "text": samples_of("fixed", SAMPLES, self.seed)[:, : CONTEXT + 1].long(),
            "sums": _sums(self.seed),
        }
        #: What a fault does: to a batch, to the logits of a batch, between the gradient and the step.
        self.on_batch: Callable[[int, dict[str, Tensor]], dict[str, Tensor]] = lambda step, batch: batch
        self.on_gradient: Callable[[int], bool] = lambda step: True
        self.rate: Callable[[int], float] = lambda step: 1.0
        self.loss_of: Callable[[int, Tensor], Tensor] = lambda step, rows: self.losses(rows)
        #: Of the loss that goes into the gradient; weights that a checkpoint gets in place of the trained ones.
        self.part = 1.0
        self.average: dict[str, Tensor] | None = None

    def ids(self, number: int) -> dict[str, Tensor]:
        """Return which samples of each source batch ``number`` has."""
        text = round(self.text_share * self.rows)
        return {"text": self._drawn(0, number, text), "sums": self._drawn(1, number, self.rows - text)}

    def _drawn(self, source: int, number: int, count: int) -> Tensor:
        """Return the samples of a batch: all of a source once, in an order of their own each time."""
        epoch, place = divmod(number * count, SAMPLES - SAMPLES % count)
        return _order(self.seed * 7_919 + 31 * epoch + source)[place : place + count]

    def losses(
        self, rows: Tensor, targets: Tensor | None = None, *, smoothing: float = 0.0, until: int = CONTEXT
    ) -> Tensor:
        """Return the mean loss of each row. ``smoothing``: of labels. ``until``: targets that count."""
        logits = self.net(rows[:, :-1]).transpose(1, 2)
        wanted = rows[:, 1:] if targets is None else targets
        each = functional.cross_entropy(logits, wanted, reduction="none", label_smoothing=smoothing)
        return each[:, :until].mean(1)

    def step(self, step: int, number: int | None = None) -> dict[str, float]:
        """Train one step and return its row.

        Args:
            step: decides the rate. number: of the batch, None for that of the step.
        """
        rate = self.lr * min(1.0, step / 60) * (0.55 + 0.45 * math.cos(math.pi * min(1.0, step / self.steps)))
        rate *= self.rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        drawn = self.ids(step if number is None else number)
        batch = self.on_batch(step, {name: self.sources[name][ids] for name, ids in drawn.items()})
        each = self.loss_of(step, torch.cat(list(batch.values())))
        losses = dict(zip(batch, each.split([len(rows) for rows in batch.values()]), strict=True))
        loss = each.mean()
        self.optimizer.zero_grad()
        (loss * self.part).backward()
        norm = nn.utils.clip_grad_norm_(self.net.parameters(), self.clip or math.inf)
        if self.on_gradient(step):
            self.optimizer.step()
        row = {"loss": float(loss.detach()), "grad_norm": float(norm), "lr": rate}
        return row | {f"loss/{name}": float(one.mean().detach()) for name, one in losses.items()}

    def save(self, path: Path, weights: dict[str, Tensor] | None = None) -> None:
        """Write a checkpoint, of other weights than the trained ones if need be."""
        torch.save({"net": weights or self.net.state_dict(), "optimizer": self.optimizer.state_dict()}, path)

    def load(self, path: Path, *, optimizer: bool = True) -> None:
        """Go on from a checkpoint, without the state of the optimizer if need be."""
        saved: dict[str, Any] = torch.load(path)
        self.net.load_state_dict(saved["net"])
        if optimizer:
            self.optimizer.load_state_dict(saved["optimizer"])


@lru_cache(maxsize=8)
def _order(seed: int) -> Tensor:
    return torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(seed))


def _sums(seed: int) -> Tensor:
    dice = torch.Generator().manual_seed(seed + 17)
    numbers = torch.randint(0, 1_000, (SAMPLES, 4, 2), generator=dice).tolist()
    lines = ("".join(f"{a}+{b}={a + b}\n" for a, b in row)[: CONTEXT + 1] for row in numbers)
    return torch.tensor([[min(VOCAB - 1, max(0, ord(one) - 31)) for one in line] for line in lines])
