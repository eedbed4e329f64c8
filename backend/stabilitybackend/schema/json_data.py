"""Limits of free data from jobs and machines, and the check that it is JSON."""

from __future__ import annotations

import math
from typing import Any, Literal

import orjson

from stabilitybackend.base.errors import BadRequest

#: A logged value: a number, or the name of a non-finite one.
Number = float | Literal["NaN", "Infinity", "-Infinity"]


def json_number(value: float) -> Number:
    """Return the JSON form of a value."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def json_with_arrays(document: object) -> bytes:
    """Return JSON of a document with NumPy arrays, whose non-finite values are null.

    The one use of orjson: 600 kB of arrays take it 0.6 ms, and msgspec 1.6 ms as lists.
    """
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


#: Ranks, and GPUs, of a job that are followed; more are only counted.
MAX_RANKS = 20_000
#: Nodes of a job that are followed; the longest silent ones are dropped first.
MAX_NODES = 5_000
#: Longest name: of a node, a phase, a function, a batch, a process group; characters.
NAME_CHARS = 128
#: Longest sentence: reason of a rank, message of an exception, line of a log; characters.
SENTENCE_CHARS = 300
#: Longest text: a written reason, a fact in evidence; characters.
TEXT_CHARS = 2_000
#: Entries of a list in evidence or on a page.
MAX_LISTED = 16
#: Entries named in a sentence; the others are counted.
MAX_NAMED = 3
#: Longest text in an event, a config or a health message, characters: a stack dump of many threads fits.
MAX_TEXT_CHARS = 100_000
#: Deepest nesting: JSON encoders fail at some hundred levels.
MAX_DEPTH = 20


def check_data(data: Any, what: str) -> None:
    """Check that free data can be stored as JSON: MessagePack can carry more (bytes, dates, any depth).

    Raises:
        BadRequest: a value of another type, too deep a nesting or too long a text.
    """
    level = [data]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += value.keys()
                inner += value.values()
                if not all(isinstance(key, str) for key in value):
                    raise BadRequest(f"{what} has a key that is no text, expected texts as in JSON")
            elif isinstance(value, list):
                inner += value
            elif isinstance(value, str):
                if len(value) > MAX_TEXT_CHARS:
                    raise BadRequest(f"{what} has a text of {len(value)} characters, expected at most {MAX_TEXT_CHARS}")
            elif value is not None and not isinstance(value, bool | int | float):
                raise BadRequest(f"{what} has a value of type {type(value).__name__}, expected what JSON can hold")
        if not inner:
            return
        level = inner
    raise BadRequest(f"{what} is nested deeper than {MAX_DEPTH} levels")
