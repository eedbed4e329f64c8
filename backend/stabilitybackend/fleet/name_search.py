"""Search of runs, metrics, incidents and machines by name. Pure.

Each word has to be in the name: at its start, at the start of a word in it, anywhere, or with its letters in order
("lss7b" finds "loss-7b"), best first.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable
from typing import TypeVar

__all__ = ["MAX_CHARS", "best"]

#: Characters of a search that count.
MAX_CHARS = 200

T = TypeVar("T")
_START, _WORD, _INSIDE, _LETTERS = 8, 5, 3, 1
#: Fewest letters in order with others between them: one letter is in nearly every name.
_LEAST_LETTERS = 3
#: Largest length of a name relative to the letters in it.
_WIDEST = 4


def score(words: Iterable[str], text: str) -> float:
    """Return the score of a text, 0 for no match.

    Args:
        words: typed ones, in small letters. text: in small letters.
    """
    total = 0.0
    for word in words:
        found = _fit(word, text)
        if not found:
            return 0.0
        total += found
    return total + 1 / (1 + len(text))  # of equals the shortest: most of its letters were typed


def best(words: list[str], things: Iterable[T], text: Callable[[T], str], limit: int) -> list[T]:
    """Return the best matches, in their order for equal scores; nothing without words."""
    if not words:
        return []
    scored = ((score(words, text(one).lower()), -place, one) for place, one in enumerate(things))
    return [one for fits, _, one in heapq.nlargest(limit, (s for s in scored if s[0]), key=lambda s: s[:2]) if fits]


def _fit(word: str, text: str) -> int:
    at = text.find(word)
    if at == 0:
        return _START
    if at > 0:
        return _WORD if not text[at - 1].isalnum() or re.search(rf"(?<![^\W_]){re.escape(word)}", text) else _INSIDE
    if len(word) < _LEAST_LETTERS:
        return 0
    place = first = -1
    for letter in word:
        place = text.find(letter, place + 1)
        if place < 0:
            return 0
        first = place if first < 0 else first
    return _LETTERS if place - first < _WIDEST * len(word) else 0
