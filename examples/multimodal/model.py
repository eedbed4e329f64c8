"""A small GPT: pre-norm transformer over one vocabulary of bytes, pixel levels and separators."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["GPT", "GPTConfig"]


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of the model. The defaults give 0.84 M parameters: about 10 steps a second on two CPU cores.

    Args:
        vocab_size: number of tokens that can stand at a position.
        context: longest sequence, tokens.
        layers: transformer blocks.
        heads: attention heads per block; must divide ``width``.
        width: channels of the residual stream.
    """

    vocab_size: int
    context: int = 128
    layers: int = 4
    heads: int = 4
    width: int = 128


class GPT(nn.Module):
    """Decoder-only language model with learned positions and an output layer tied to the embedding."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.token = nn.Embedding(config.vocab_size, config.width)
        self.position = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.register_buffer("places", torch.arange(config.context), persistent=False)
        self.apply(_init_weights)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits, shape (batch, time, vocabulary), for tokens of shape (batch, time)."""
        x = self.token(tokens) + self.position(self.places[: tokens.shape[1]])
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token.weight)


class _Block(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.norm_1 = nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        self.norm_2 = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        shape = (batch, time, self.heads, width // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(self.norm_1(x)).split(width, dim=2))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(F.relu(self.up(self.norm_2(x))))


def _init_weights(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
