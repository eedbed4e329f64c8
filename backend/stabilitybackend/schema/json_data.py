"""How much is kept of what a job and its machines say, and whether free data is what JSON can hold."""

from __future__ import annotations

import math
from typing import Any, Literal

from stabilitybackend.base.errors import BadRequest

#: A logged value: a number, or the name of one that is none.
Number = float | Literal["NaN", "Infinity", "-Infinity"]


def json_number(value: float) -> Number:
    """Return a value as JSON has it."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


#: Ranks, and GPUs, of a job that are followed; more are counted, not followed.
MAX_RANKS = 20_000
#: Nodes of a job that are followed; those that have been silent longest go first.
MAX_NODES = 5_000
#: Characters kept of a name: of a node, a phase, a function, a batch, a process group.
NAME_CHARS = 128
#: Characters kept of a sentence: why a rank did not do something, the message of an exception, a line of a log.
SENTENCE_CHARS = 300
#: Characters kept of a longer text: a reason that people give, a fact in evidence.
TEXT_CHARS = 2_000
#: Entries of a list that people read, in evidence or on a page.
MAX_LISTED = 16
#: Of those the ones that a sentence names; of the others it gives the number.
MAX_NAMED = 3
#: Longest text in an event, a config or a health message, characters: a stack dump of many threads fits.
MAX_TEXT_CHARS = 100_000
#: Deepest nesting of such data: JSON encoders give up at some hundred levels.
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
