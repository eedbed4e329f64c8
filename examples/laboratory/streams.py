"""Three synthetic data sets with real structure (text, code, images), and a sampler whose place can be saved.

Nothing is downloaded and nothing is random noise: words follow each other by a grammar, code repeats its names and
closes its blocks, and a pixel resembles its neighbours. So a small model learns each of them at its own pace, and each
has a loss of its own to come down to.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

__all__ = ["CONTEXT", "DATASETS", "PARITY", "SPAN", "VOCAB_SIZE", "Batch", "Sampler", "load_streams"]

#: The three data sets; ``loss/<name>`` is logged for each.
DATASETS = ("text", "code", "image")
#: A fourth one that only the job with the late discovery trains on: bits whose rule is found suddenly.
PARITY = "parity"
#: Tokens that the model sees before each target. A row of an image and its border are 13, so the pixel above is seen.
CONTEXT = 16
#: Targets of one row of a batch.
SPAN = 24
#: 26 letters, 16 signs, 12 levels of grey, 2 bits, and room.
VOCAB_SIZE = 64

_SPACE, _STOP, _COMMA = 26, 27, 28
_EQUALS, _PLUS, _OPEN, _CLOSE, _LINE, _TAB, _DIGITS = 29, 30, 31, 32, 33, 34, 35
_GREY, _LEVELS, _BORDER, _BIT = 44, 12, 56, 58
_IMAGE_SIDE = 12
#: Tokens a stream: 48 rows a step, a third each, last for some 1,500 steps before a text repeats.
_STREAM_TOKENS = 600_000
#: A bit of ``PARITY`` is the parity of the bits that lie so far back, in runs of so many that begin anew.
_PARITY_BACK = (3, 6, 9, 11, 14)
_PARITY_RUN = 400


@lru_cache(maxsize=4)
def load_streams(seed: int) -> dict[str, np.ndarray]:
    """Return the token stream of each data set as int64; the same ``seed`` gives the same streams."""
    return {
        "text": _text(np.random.default_rng((seed, 1))),
        "code": _code(np.random.default_rng((seed, 2))),
        "image": _images(np.random.default_rng((seed, 3))),
        PARITY: _parity(np.random.default_rng((seed, 4))),
    }


def _words(rng: np.random.Generator, count: int) -> list[list[int]]:
    """Return ``count`` words of one to four syllables."""
    syllables = [(int(c), int(v)) for c in range(5, 26) for v in range(5)]
    picks = rng.integers(0, len(syllables), (count, 4))
    lengths = rng.choice([1, 2, 2, 3, 3, 4], count)
    return [[t for s in row[:n] for t in syllables[s]] for row, n in zip(picks.tolist(), lengths.tolist(), strict=True)]


def _text(rng: np.random.Generator) -> np.ndarray:
    """Sentences: each word has a few words that may follow it, the common ones far more often."""
    words = _words(rng, 300)
    common = 1.0 / np.arange(1, len(words) + 1)
    follow = rng.choice(len(words), (len(words), 12), p=common / common.sum()).tolist()
    picks = np.minimum(rng.geometric(0.3, _STREAM_TOKENS // 4) - 1, 11).tolist()
    ends = rng.random(len(picks)).tolist()
    tokens: list[int] = []
    word = 0
    for pick, end in zip(picks, ends, strict=True):
        word = follow[word][pick]
        tokens += words[word]
        tokens += [_STOP, _SPACE] if end < 0.1 else [_COMMA, _SPACE] if end < 0.2 else [_SPACE]
        if len(tokens) >= _STREAM_TOKENS:
            break
    return np.asarray(tokens[:_STREAM_TOKENS], dtype=np.int64)


def _code(rng: np.random.Generator) -> np.ndarray:
    """Lines of assignments and calls in nested blocks; a name once used comes again soon."""
    names = _words(rng, 120)
    tokens: list[int] = []
    depth, recent = 0, [0, 1, 2, 3]
    while len(tokens) < _STREAM_TOKENS:
        kind, fresh, digit, up = rng.random(4).tolist()
        if fresh < 0.15:
            recent = [*recent[1:], int(rng.integers(len(names)))]
        one, other = (names[recent[int(i)]] for i in rng.integers(0, 4, 2))
        number = _DIGITS + int(digit * 9)
        tokens += [_TAB] * depth
        if kind < 0.5:
            tokens += [*one, _EQUALS, *other, _PLUS, number, _LINE]
        elif kind < 0.8:
            tokens += [*one, _OPEN, *other, _COMMA, number, _CLOSE, _LINE]
        else:
            tokens += [*one, _EQUALS, number, _LINE]
        depth = max(0, min(3, depth + (1 if up < 0.2 else -1 if up < 0.4 else 0)))
    return np.asarray(tokens[:_STREAM_TOKENS], dtype=np.int64)


def _images(rng: np.random.Generator) -> np.ndarray:
    """Pictures of one blob on a slope of light, in rows with a border token, in twelve levels of grey."""
    side = _IMAGE_SIDE
    count = _STREAM_TOKENS // (side * (side + 1)) + 1
    y, x = np.mgrid[0:side, 0:side] / (side - 1)
    at, width, slope = rng.random((count, 2, 1, 1)), 0.05 + 0.2 * rng.random((count, 1, 1)), rng.normal(size=(2, count))
    blob = np.exp(-((x - at[:, 0]) ** 2 + (y - at[:, 1]) ** 2) / width)
    light = 0.4 * (slope[0][:, None, None] * x + slope[1][:, None, None] * y)
    grain = 0.04 * rng.normal(size=(count, side, side))
    levels = np.clip((blob + light + grain) * _LEVELS * 0.6 + 2, 0, _LEVELS - 1).astype(np.int64)
    border = np.full((count, side, 1), _BORDER)
    return np.concatenate([_GREY + levels, border], axis=2).ravel()[:_STREAM_TOKENS]


def _parity(rng: np.random.Generator) -> np.ndarray:
    """Runs of bits: the first of a run are random, each other one is the parity of five earlier ones."""
    bits = rng.integers(0, 2, (_STREAM_TOKENS // _PARITY_RUN, _PARITY_RUN))
    for i in range(CONTEXT, _PARITY_RUN):
        bits[:, i] = sum(bits[:, i - back] for back in _PARITY_BACK) % 2
    return _BIT + bits.ravel()


@dataclass
class Batch:
    """One global batch.

    Args:
        number: place in the data, from 0.
        tokens: int64, shape (rows, CONTEXT + SPAN - 1): what the model sees.
        targets: int64, shape (rows, SPAN): the token after each window of CONTEXT.
        source: index into the sampler's ``datasets`` of each row.
    """

    number: int
    tokens: np.ndarray
    targets: np.ndarray
    source: np.ndarray


@dataclass
class Sampler:
    """Serves the data sets in fixed shares of rows: whichever lags most behind its share is next.

    Args:
        streams: data set -> tokens.
        shares: data set -> share of the rows, adding up to 1. Its keys are the data sets, in order.
        rows: rows of a global batch.
        seed: order of the texts.
    """

    streams: dict[str, np.ndarray]
    shares: dict[str, float]
    rows: int
    seed: int
    number: int = 0
    drawn: list[int] = field(default_factory=list)
    served: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.datasets = tuple(self.shares)
        self.drawn = self.drawn or [0] * len(self.datasets)
        self.served = self.served or [0] * len(self.datasets)
        self._orders: dict[tuple[int, int, int], np.ndarray] = {}

    def next_batch(self) -> Batch:
        """Return the next global batch, and step on."""
        source = self._pick_sources()
        rows = np.stack([self._next_row(index) for index in source])
        self.number += 1
        return Batch(self.number - 1, rows[:, :-1], rows[:, CONTEXT:].copy(), np.asarray(source))

    def state(self) -> tuple[int, int, list[int], list[int]]:
        """Return the place in the data."""
        return self.number, self.seed, list(self.drawn), list(self.served)

    def go_to(self, state: tuple[int, int, list[int], list[int]]) -> None:
        """Go to the place that ``state`` gave."""
        self.number, self.seed, drawn, served = state
        self.drawn, self.served = list(drawn), list(served)

    def _pick_sources(self) -> list[int]:
        picks = list(range(len(self.datasets)))  # one row each, so that every loss/<name> has a point at every step
        for index in picks:
            self.served[index] += 1
        while len(picks) < self.rows:
            total = sum(self.served) + 1
            lag = [share * total - served for share, served in zip(self.shares.values(), self.served, strict=True)]
            picks.append(lag.index(max(lag)))
            self.served[picks[-1]] += 1
        return sorted(picks)

    def _next_row(self, index: int) -> np.ndarray:
        stream = self.streams[self.datasets[index]]
        chunks = (len(stream) - CONTEXT - 1) // SPAN
        epoch, place = divmod(self.drawn[index], chunks)
        self.drawn[index] += 1
        key = (self.seed, epoch, index)
        if key not in self._orders:
            self._orders[key] = np.random.default_rng(key).permutation(chunks)
        start = int(self._orders[key][place]) * SPAN
        return stream[start : start + CONTEXT + SPAN]
