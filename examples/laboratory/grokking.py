"""A small network that learns sums modulo 59 by heart first, and understands them hundreds of steps later.

The loss of its training data is next to nothing after a hundred steps, that of the held-out half gets worse all the
while and then falls: grokking (Power et al. 2022). Weight decay is what makes the rule cheaper than the memory.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from training import LogRow

__all__ = ["grok"]

_MODULUS, _WIDTH = 59, 256
#: Half of all sums are trained on, in one batch.
_TRAINED = 0.5
_STEPS, _LOG_EVERY = 1_400, 4
_LR, _WEIGHT_DECAY = 1e-2, 0.3


def grok(seed: int) -> list[LogRow]:
    """Train and return the log: ``loss``, ``val/loss`` and ``val/accuracy`` (a share) each four steps; 20 s of a core.

    Args:
        seed: of the weights and of which sums are held out.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    first, second = torch.meshgrid(torch.arange(_MODULUS), torch.arange(_MODULUS), indexing="ij")
    pairs = [F.one_hot(one.flatten(), _MODULUS).float() for one in (first, second)]
    inputs, sums = torch.cat(pairs, 1), ((first + second) % _MODULUS).flatten()
    order = torch.randperm(len(sums))
    trained, held_out = order[: int(_TRAINED * len(sums))], order[int(_TRAINED * len(sums)) :]
    network = torch.nn.Sequential(
        torch.nn.Linear(2 * _MODULUS, _WIDTH, bias=False),
        torch.nn.ReLU(),
        torch.nn.Linear(_WIDTH, _MODULUS, bias=False),
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=_LR, weight_decay=_WEIGHT_DECAY, betas=(0.9, 0.98))
    rows: list[LogRow] = []
    for step in range(1, _STEPS + 1):
        loss = F.cross_entropy(network(inputs[trained]), sums[trained])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % _LOG_EVERY == 0:
            rows.append({"step": step, "loss": loss.item()} | _judged(network, inputs[held_out], sums[held_out]))
    return rows


@torch.no_grad()
def _judged(network: torch.nn.Module, inputs: torch.Tensor, sums: torch.Tensor) -> LogRow:
    logits = network(inputs)
    right = (logits.argmax(1) == sums).float().mean().item()
    return {"val/loss": F.cross_entropy(logits, sums).item(), "val/accuracy": right}
