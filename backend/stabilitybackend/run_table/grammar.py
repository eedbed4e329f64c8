"""The language of the filter over the list of runs: a text becomes terms, or a refusal that says where it breaks.

    state:sick project:llm lr>3e-4 -tag:old "two words" loss<2 age<2h optimizer.name:adam* step:1000,2000

A term is a word that is looked for, or a key, an operator and a value. All terms have to fit; ``-`` before a term turns
it round. ``:`` and ``=`` mean equal (``*`` stands for anything, commas for "or"), ``!=`` is its opposite; ``<``,
``<=``, ``>`` and ``>=`` compare numbers. What has spaces or commas in it goes into double quotes.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal, get_args

from stabilitybackend.base.errors import BadRequest

__all__ = ["MAX_CHARS", "Operator", "Term", "duration", "number", "parse", "refusal"]

#: Longest filter, characters: it stands in the page's address.
MAX_CHARS = 2_000

Operator = Literal["has", ":", "!=", "<", "<=", ">", ">="]
#: The longer ones first: ``<=`` is not ``<`` with a value that begins with ``=``.
_OPERATOR = re.compile(r"<=|>=|!=|==|[:=<>]")
_BARE = re.compile(r'[^\s"]')
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
#: What may follow a number. B is a billion, as in "7B parameters".
_SCALES = {"": 1.0, "%": 0.01, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_WORDS = {
    "nan": math.nan, "inf": math.inf, "+inf": math.inf, "-inf": -math.inf, "infinity": math.inf,
    "+infinity": math.inf, "-infinity": -math.inf,
}  # fmt: skip
_SECONDS = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


@dataclass(frozen=True, slots=True)
class Term:
    """One condition.

    Attributes:
        key: "" where a word is looked for.
        values: of which one has to fit; of a comparison one.
        wrong: a run fits where the condition does not hold.
        at: where the term begins in the text, from 0.
        text: as it was given.
        quoted: the value stood in quotes: ``*`` in it is a star.
    """

    key: str
    operator: Operator
    values: tuple[str, ...]
    wrong: bool
    at: int
    text: str
    quoted: bool = False


def refusal(text: str, at: int, why: str, possible: str) -> BadRequest:
    """Return the refusal of a filter that breaks at a place: what was given, where, what is possible."""
    there = f"at character {at + 1}, {text[at : at + 40]!r}" if at < len(text) else "at its end"
    return BadRequest(
        f"q is {text[:200]!r}, which breaks {there}: {why}", hint=possible, code="bad_filter", at=at, why=why
    )


def parse(text: str) -> list[Term]:
    """Return the terms of a filter, [] of an empty one.

    Raises:
        BadRequest: ``bad_filter``: it is no filter; the message says where it breaks, the hint what is possible.
    """
    if len(text) > MAX_CHARS:
        raise BadRequest(
            f"q has {len(text)} characters, expected at most {MAX_CHARS}",
            hint="leave some of it out",
            code="bad_filter",
        )
    terms, at = list[Term](), 0
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        if at >= len(text):
            return terms
        term, at = _term(text, at)
        terms.append(term)


def _term(text: str, begin: int) -> tuple[Term, int]:
    at, wrong = begin, False
    if text[at] == "-" and at + 1 < len(text) and not text[at + 1].isspace():
        at, wrong = at + 1, True
    key, quoted, at = _piece(text, at, ends_at_operator=True)
    sign = _OPERATOR.match(text, at)
    if sign is None:
        if not key:
            raise refusal(text, begin, "a word is empty", "write a word, key:value or key>number, e.g. state:sick")
        return Term("", "has", (key,), wrong, begin, text[begin:at], quoted), at
    if not key:
        raise refusal(text, at, f"there is nothing before {sign[0]!r}", "write a key before it, e.g. loss<2")
    operator = {"=": ":", "==": ":"}.get(sign[0], sign[0])
    at = sign.end()
    values, starred = list[str](), True
    while True:
        value, in_quotes, after = _piece(text, at, ends_at_operator=False, ends_at_comma=True)
        if not value and not in_quotes:
            raise refusal(text, at, f"{key!r} has no value", f"write one behind {operator!r}; {key}:none finds none")
        values.append(value)
        starred, at = starred and not in_quotes, after
        if at >= len(text) or text[at] != ",":
            break
        at += 1
    if operator not in (":", "!=") and len(values) > 1:
        raise refusal(text, begin, f"{operator!r} compares with one number", f"write {key}{operator}{values[0]}")
    assert operator in get_args(Operator)
    return Term(key, operator, tuple(values), wrong, begin, text[begin:at], not starred), at  # type: ignore[arg-type]


def _piece(text: str, at: int, *, ends_at_operator: bool, ends_at_comma: bool = False) -> tuple[str, bool, int]:
    """Return a bare or quoted piece of a term, whether it was quoted, and where it ends."""
    if at < len(text) and text[at] == '"':
        found, place = list[str](), at + 1
        while place < len(text) and text[place] != '"':
            if text[place] == "\\" and place + 1 < len(text):
                place += 1
            found.append(text[place])
            place += 1
        if place >= len(text):
            raise refusal(text, at, "a quote is not closed", 'close it with ", or write \\" for a quote in a name')
        return "".join(found), True, place + 1
    end = at
    while end < len(text) and _BARE.match(text, end):
        if ends_at_operator and _OPERATOR.match(text, end):
            break
        if ends_at_comma and text[end] == ",":
            break
        end += 1
    return text[at:end], False, end


def number(text: str) -> float | None:
    """Return the number that a value is, None where it is none.

    Example:
        >>> number("3e-4"), number("1.5B"), number("90%"), number("nan?")
        (0.0003, 1500000000.0, 0.9, None)
    """
    word = _WORDS.get(text.lower())
    if word is not None:
        return word
    match = _NUMBER.match(text)
    scale = None if match is None else _SCALES.get(text[match.end() :])
    return None if match is None or scale is None else float(match[0]) * scale


def duration(text: str) -> float | None:
    """Return the seconds of a duration, None where it is none; a bare number is seconds.

    Example:
        >>> duration("2h"), duration("90"), duration("1.5d"), duration("soon")
        (7200.0, 90.0, 129600.0, None)
    """
    match = _NUMBER.match(text)
    scale = None if match is None else _SECONDS.get(text[match.end() :].lower() or "s")
    return None if match is None or scale is None else float(match[0]) * scale
