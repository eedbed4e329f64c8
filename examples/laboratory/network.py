"""A model small enough for some milliseconds a step: a multi-layer perceptron over the last sixteen tokens.

Beside the tokens themselves it looks up a table by the last three of them, or, where it should learn by heart as a
large model does, by the last six: what it saw once it then knows again, which makes repeated data visible in the loss.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from streams import CONTEXT, VOCAB_SIZE

__all__ = ["WIDTH", "Network"]

#: Channels of the hidden layers.
WIDTH = 64
#: Channels of a token.
_TOKEN = 12
#: Rows of the table of the last three tokens, and of the one of the last six.
_TABLE_ROWS, _LARGE_TABLE_ROWS = 4_096, 16_384
#: By what the large table's rows are multiplied: one update then changes what is said next.
_LARGE_TABLE_SCALE = 12.0
#: Primes that mix the last tokens into a row of the table, newest first.
_PRIMES = (4_099, 67, 1, 65_537, 257, 8_191)


class Network(nn.Module):
    """Gives the logits of the next token from a window of ``CONTEXT`` tokens.

    Args:
        learns_by_heart: look up six tokens and not three.
    """

    def __init__(self, learns_by_heart: bool = False) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCAB_SIZE, _TOKEN)
        self.inner = nn.Linear(CONTEXT * _TOKEN, WIDTH)
        self.table = nn.Embedding(_LARGE_TABLE_ROWS if learns_by_heart else _TABLE_ROWS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.block = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, VOCAB_SIZE)
        self._looked_up, self._scale = (6, _LARGE_TABLE_SCALE) if learns_by_heart else (3, 1.0)
        nn.init.normal_(self.table.weight, std=0.02 / self._scale)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of shape (rows, targets, vocabulary) for tokens of shape (rows, CONTEXT + targets - 1)."""
        windows = tokens.unfold(1, CONTEXT, 1)
        x = self.inner(self.token(tokens).unfold(1, CONTEXT, 1).flatten(-2))
        place = torch.zeros_like(windows[..., 0])
        for i in range(self._looked_up):
            place = place + windows[..., -1 - i] * _PRIMES[i]
        x = x + self._scale * self.table(place % self.table.num_embeddings)
        x = self.norm(torch.relu(x))
        return self.out(x + torch.relu(self.block(x)))
