"""An interleaved image-text mixture from what every machine has: real digit images, library code and prose.

One vocabulary serves all: 256 bytes, 17 pixel levels and three separators. Nothing is downloaded. The mixture hands out
whole global batches by number, so that every rank agrees on them without talking and a checkpoint can name its place.
"""

from __future__ import annotations

import ast
import os
import platform
import sysconfig
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["SHARES", "SOURCES", "VOCAB_SIZE", "Batch", "Mixture", "decoded", "is_pixel", "load_sources"]

#: The three data sets; ``loss/<name>`` is logged for each.
SOURCES = ("digits_captions", "code", "prose")
#: What share of all tokens each source should get. Digits are about 84 % pixels, hence ratio/image_text near 0.43.
SHARES = (0.375, 0.3125, 0.3125)

_PIXEL_0 = 256  # 17 levels of grey: 256..272
_DOC, _IMAGE, _END = 273, 274, 275
VOCAB_SIZE = 276
#: From black to white, for people.
_SHADES = " ░▒▓█"

#: Library code to read, bytes. 3 MB last for some 4,600 steps before a text repeats; reading takes 2 s.
_CODE_BYTES = 3_000_000
_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def load_sources(cache_dir: Path | None = None) -> list[np.ndarray]:
    """Return the token stream of each source, in the order of SOURCES, as int64 arrays.

    The same Python installation gives the same streams, on every rank and after every restart.

    Args:
        cache_dir: where they are kept for the next start, which then takes 0.1 s instead of 3; None keeps nothing.
    """
    kept = None if cache_dir is None else cache_dir / f"tokens-python-{platform.python_version()}.npz"
    if kept is not None:
        try:
            with kept.open("rb") as file, np.load(file) as found:
                return [found[name].astype(np.int64) for name in SOURCES]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            pass  # not there yet, or only in part: made anew
    code, prose = _library_code_and_prose()
    streams = [_digits_with_captions(), code, prose]
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        fresh = kept.with_name(f"{kept.name}.{os.getpid()}")  # all ranks write the same; the last one stays
        with fresh.open("wb") as file:
            np.savez(file, **{name: stream.astype(np.int16) for name, stream in zip(SOURCES, streams, strict=True)})
        fresh.replace(kept)
    return streams


def is_pixel(tokens: np.ndarray) -> np.ndarray:
    """Return where ``tokens`` are pixels of an image rather than text."""
    return (tokens >= _PIXEL_0) & (tokens < _DOC)


def decoded(tokens: np.ndarray) -> str:
    """Return tokens as text: bytes as UTF-8, a pixel as a shade of grey, a separator as its name."""
    parts: list[bytes] = []
    for token in tokens.tolist():
        if token < _PIXEL_0:
            parts.append(bytes([token]))
        elif token < _DOC:
            parts.append(_SHADES[4 * (token - _PIXEL_0) // (_DOC - 1 - _PIXEL_0)].encode())
        else:
            parts.append({_DOC: b"<doc>", _IMAGE: b"<image>", _END: b"<end>"}[token])
    return b"".join(parts).decode("utf-8", "replace")


def _digits_with_captions() -> np.ndarray:
    from sklearn.datasets import load_digits  # here, as it takes a second that a start with kept tokens saves

    digits = load_digits()
    parts: list[Sequence[int]] = []
    for image, label in zip(digits.images.astype(int), digits.target, strict=True):
        caption = f"the digit {_NAMES[label]}"
        parts += [(_DOC, *caption.encode(), _IMAGE), (_PIXEL_0 + image.ravel()).tolist(), (_END,)]
    return np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])


def _library_code_and_prose() -> tuple[np.ndarray, np.ndarray]:
    """Split the standard library into code without docstrings, and prose: licence and docstrings."""
    library = Path(sysconfig.get_paths()["stdlib"])
    code = bytearray()
    licence = library / "LICENSE.txt"
    prose = bytearray(licence.read_bytes() if licence.exists() else b"")
    for path in sorted(library.rglob("*.py")):
        if {"site-packages", "test", "tests", "idlelib", "lib2to3", "encodings"} & set(path.parts):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        lines = text.splitlines(keepends=True)
        for node, docstring in _docstrings(text):
            prose += docstring.encode() + b"\n\n"
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
        code += "".join(lines).encode()
        if len(code) > _CODE_BYTES:
            break
    return (np.frombuffer(bytes(text), dtype=np.uint8).astype(np.int64) for text in (code, prose))


def _docstrings(text: str) -> Iterator[tuple[ast.expr, str]]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(node)
            if docstring:
                yield node.body[0], docstring


@dataclass(frozen=True)
class Batch:
    """One rank's part of a global batch.

    Args:
        number: place in the data stream, from 0; a rollback that skips batches jumps over numbers.
        tokens: int64, shape (rows, context + 1): inputs and, shifted by one, targets.
        source: index into SOURCES of each row.
    """

    number: int
    tokens: np.ndarray
    source: np.ndarray


@dataclass
class _State:
    """All that decides what comes next. Restoring it restores the stream exactly."""

    number: int
    seed: int
    drawn: list[int]
    tokens_served: list[int]
    rng: dict[str, Any] = field(default_factory=dict)
    #: First and last number of batches that are passed over when they come.
    left_out: list[list[int]] = field(default_factory=list)


class Mixture:
    """Serves the sources in fixed shares of tokens: whichever lags most behind its share is next.

    Args:
        sources: token streams, in the order of SOURCES.
        rows: rows of a global batch, over all ranks.
        context: tokens per row.
        seed: order of the texts and of the crops.
    """

    def __init__(self, sources: list[np.ndarray], *, rows: int, context: int, seed: int) -> None:
        self._sources = sources
        self._rows = rows
        self._context = context
        self._orders: dict[int, tuple[tuple[int, int], np.ndarray]] = {}
        self._state = _State(0, seed, [0] * len(sources), [0] * len(sources))
        self.reseed(seed)

    @property
    def number(self) -> int:
        """Number of the next batch."""
        return self._state.number

    def next_batch(self, rank: int, world_size: int) -> Batch:
        """Return the rows of ``rank`` in the next global batch, and step on."""
        while any(first <= self.number <= last for first, last in self._state.left_out):
            self._draw()
        number = self.number
        plan = self._draw()[rank::world_size]
        rows = [self._sources[source][start : start + self._context + 1] for source, start in plan]
        return Batch(number, np.stack(rows), np.asarray([source for source, _ in plan]))

    def skip(self, batches: int) -> None:
        """Pass over ``batches`` global batches as if they had been trained on."""
        for _ in range(batches):
            self._draw()

    def leave_out(self, first: int, last: int) -> None:
        """Pass over the ``first``-th to ``last``-th batch from here on when they come; the next one is the first."""
        self._state.left_out.append([self.number + first - 1, self.number + last - 1])

    def reseed(self, seed: int) -> None:
        """From here on, take texts and crops in another order."""
        self._state.seed = seed
        self._rng = np.random.default_rng(seed)

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the data as plain numbers."""
        self._state.rng = self._rng.bit_generator.state
        return asdict(self._state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to the place that ``state_dict`` gave."""
        lists = {name: list(state.get(name, [])) for name in ("drawn", "tokens_served", "left_out")}
        self._state = _State(**{**state, **lists})
        self._rng.bit_generator.state = state["rng"]

    def _draw(self) -> list[tuple[int, int]]:
        """Return (source, first token) of each row of the next global batch, sorted by source."""
        state = self._state
        picks = list(range(len(self._sources)))  # one row each, so that every loss/<source> has a point at every step
        for source in picks:
            state.tokens_served[source] += self._context
        while len(picks) < self._rows:
            total = sum(state.tokens_served) + self._context
            lag = [share * total - served for share, served in zip(SHARES, state.tokens_served, strict=True)]
            picks.append(int(np.argmax(lag)))
            state.tokens_served[picks[-1]] += self._context
        state.number += 1
        return [(source, self._next_start(source)) for source in sorted(picks)]

    def _next_start(self, source: int) -> int:
        chunks = len(self._sources[source]) // self._context - 2
        epoch, place = divmod(self._state.drawn[source], chunks)
        self._state.drawn[source] += 1
        key = (self._state.seed, epoch)
        if self._orders.get(source, (None,))[0] != key:
            self._orders[source] = (key, np.random.default_rng((*key, source)).permutation(chunks))
        return int(self._orders[source][1][place]) * self._context + int(self._rng.integers(self._context))
