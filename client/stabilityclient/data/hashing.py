"""Hashes of samples, the id of a batch, and the few hashes by which samples are counted over the run.

A sample's hash has 64 bits and is the same in every process. The id of a batch is the sum of its samples' hashes modulo
2**64: their order, and how they are spread over ranks and calls, does not matter.

Of all samples those are kept whose hash begins with ``shift`` zero bits. So a sample that is kept at one step is kept
at every step, and those that are kept stand for all: how many were seen twice is counted, not modelled (bottom-k
sampling: Cohen and Kaplan, PODC 2007; the threshold that is halved: Wegman's adaptive sampling in Flajolet, Computing
43, 1990). A mergeable sketch that only estimates distinct counts (HyperLogLog) can't tell what was seen twice.

The arithmetic is on signed 64-bit integers that wrap, alike on plain integers, NumPy arrays and tensors; shifts are
masked, since those of signed numbers bring in ones.
"""

from __future__ import annotations

from binascii import b2a_base64

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

__all__ = ["KEPT", "MASK", "factors", "kept_of", "mixed", "sample_hash", "shift_for", "unsigned"]

MASK = 2**64 - 1
#: Hashes that a call keeps of a data set, at most on average; at least half as many. 8 bytes of text each: 64 to 128
#: bytes a step.
KEPT = 16
#: Bytes of a hash that travel: of 300,000 samples two are taken for one with a probability of 2**-12.
HASH_BYTES = 6

# The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), its factors as signed numbers.
_ADD, _FIRST, _SECOND = 0x9E3779B97F4A7C15 - 2**64, 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


def mixed(values: Any) -> Any:
    """Return the hash of each of some signed 64-bit integers, as an array or tensor of the same kind."""
    values = values + _ADD
    values = (values ^ ((values >> 30) & 0x3FFFFFFFF)) * _FIRST
    values = (values ^ ((values >> 27) & 0x1FFFFFFFFF)) * _SECOND
    return values ^ ((values >> 31) & 0x1FFFFFFFF)


def _mixed_one(value: int) -> int:
    value = (value + _ADD) & MASK
    value = ((value ^ (value >> 30)) * _FIRST) & MASK
    value = ((value ^ (value >> 27)) * _SECOND) & MASK
    return value ^ (value >> 31)


def factors(count: int) -> list[int]:
    """Return ``count`` odd numbers, signed: a row of tokens is multiplied with them and added up.

    Two rows that differ have one sum with a probability of 2**-44 at most (multilinear hashing, Lemire and Kaser 2014;
    20 bits are lost where all differences are multiples of a large power of two, which tokens can't exceed).
    """
    numbers = (_mixed_one(at) | 1 for at in range(1, count + 1))
    return [number - 2**64 if number >= 2**63 else number for number in numbers]


def sample_hash(sample: object, salt: int = 0) -> int:
    """Return the hash of one id: a whole number, text or bytes; ``salt`` tells data sets apart.

    Raises:
        ValueError: it is none.
    """
    if isinstance(sample, str | bytes):
        from hashlib import blake2b  # most jobs have numbers

        text = sample if isinstance(sample, bytes) else sample.encode("utf-8", "surrogatepass")
        return _mixed_one(int.from_bytes(blake2b(text, digest_size=8).digest(), "little") + salt)
    try:
        return _mixed_one(sample.__index__() + salt)  # type: ignore[attr-defined]
    except Exception:
        kind = type(sample).__name__
        raise ValueError(f"an id of ids= is a {kind}, expected whole numbers or texts that name the samples") from None


def shift_for(samples: int) -> int:
    """Return how many leading zero bits the hashes of a batch of so many samples need to be kept."""
    return max(0, (max(samples, 1) - 1) // KEPT).bit_length()


def kept_of(hashes: Iterable[int], shift: int) -> str:
    """Return the upper HASH_BYTES of the hashes with ``shift`` leading zero bits, as base64."""
    limit = 64 - shift
    kept: Sequence[int] = sorted({one for one in hashes if not one >> limit})
    data = b"".join([one.to_bytes(8, "big")[:HASH_BYTES] for one in kept[: 4 * KEPT]])
    return b2a_base64(data, newline=False).decode()


def unsigned(values: Iterable[int]) -> list[int]:
    """Return signed 64-bit numbers as hashes."""
    return [value & MASK for value in values]
