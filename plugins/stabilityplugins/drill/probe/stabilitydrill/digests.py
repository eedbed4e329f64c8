"""Checksums of tensors: the same numbers give the same 64 bits in every process, on every device.

A multiply-and-add of whole 64-bit words, each mixed first and weighted by its place: integers only, so neither the
order of a parallel sum nor the device changes it, and a GPU reads its memory once.
"""

from __future__ import annotations

import hashlib
from typing import Any

__all__ = ["Totals", "of_rows", "of_text"]

#: Odd 64-bit constants (splitmix64's, as signed numbers): they spread a flipped bit over the word.
_MIX = 0xBF58476D1CE4E5B9 - (1 << 64)
_PLACE = 0x9E3779B97F4A7C15 - (1 << 64)
#: Words per read: 32 MiB, so that a checksum needs little memory next to the model.
_CHUNK_WORDS = 4 * 1024 * 1024
#: Rows of one batch that get a checksum of their own; of more the first ones.
MAX_ROWS = 4096


def of_text(text: object) -> str:
    """Return the checksum of a plain value's ``repr``."""
    return hashlib.blake2b(repr(text).encode(), digest_size=8).hexdigest()


class Totals:
    """Collects checksums and squares of many tensors, and fetches them from each device with one wait."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._numbers: list[Any] = []
        self._squares: list[Any] = []

    def add(self, tensor: Any) -> None:
        """Take one tensor; of a sharded one the part that is here."""
        local = _local(tensor)
        self._numbers.append(_checksum(self._torch, local))
        floats = local.is_floating_point() and local.numel() > 0
        norm = self._torch.linalg.vector_norm
        self._squares.append(norm(local, dtype=self._torch.float64) ** 2 if floats else None)

    def read(self) -> tuple[list[int], float]:
        """Return a checksum a tensor, in order, and the sum of the squares of all floating-point numbers."""
        squares = _fetch(self._torch, [value for value in self._squares if value is not None])
        return _fetch(self._torch, self._numbers), float(sum(squares))


def of_rows(torch: Any, tensors: list[Any]) -> list[int]:
    """Return a checksum for each row of tensors that have their first dimension in common: one a sample.

    The rows of tensors of another first dimension follow as rows of their own.
    """
    by_rows: dict[int, Any] = {}
    for number, tensor in enumerate(tensors):
        local = _local(tensor)
        if local.dim() == 0 or local.numel() == 0:
            continue
        rows = local[:MAX_ROWS].reshape(min(len(local), MAX_ROWS), -1)
        words = _mixed(_words(torch, rows))
        sums = (words * _weights(torch, 0, words.shape[1], words.device)).sum(1) * (2 * number + 1)
        known = by_rows.get(len(local))
        by_rows[len(local)] = sums if known is None else known + sums.to(known.device)
    return [int(value) for sums in by_rows.values() for value in sums.tolist()]


def _local(tensor: Any) -> Any:
    tensor = tensor.detach()
    tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return tensor.to_dense() if tensor.is_sparse else tensor


def _checksum(torch: Any, tensor: Any) -> Any:
    words = _words(torch, tensor.reshape(1, -1))[0]
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for start in range(0, len(words), _CHUNK_WORDS):
        part = words[start : start + _CHUNK_WORDS]
        total = total + (_mixed(part) * _weights(torch, start, len(part), part.device)).sum()
    return total


def _words(torch: Any, rows: Any) -> Any:
    """Return the bytes of each row as 64-bit words, filled up with zeros."""
    rows = torch.view_as_real(rows).flatten(1) if rows.is_complex() else rows
    data = rows.contiguous().view(torch.uint8)
    missing = -data.shape[1] % 8
    if missing:
        data = torch.nn.functional.pad(data, (0, missing))
    elif data.storage_offset() % 8 or data.data_ptr() % 8:
        data = data.clone()  # a view of a larger buffer that begins between two words
    return data.view(torch.int64)


def _mixed(words: Any) -> Any:
    words = words * _MIX
    return words ^ (words >> 32)


def _weights(torch: Any, start: int, count: int, device: Any) -> Any:
    return torch.arange(start + 1, start + 1 + count, dtype=torch.int64, device=device) * _PLACE | 1


def _fetch(torch: Any, scalars: list[Any]) -> list[Any]:
    """Return the values of scalars in order, with one wait a device."""
    found: list[Any] = [None] * len(scalars)
    places: dict[Any, list[int]] = {}
    for at, scalar in enumerate(scalars):
        places.setdefault(scalar.device, []).append(at)
    for numbers in places.values():
        values = torch.stack([scalars[at] for at in numbers]).tolist()
        for at, value in zip(numbers, values):  # noqa: B905 the job's Python may be older than 3.10
            found[at] = value
    return found
