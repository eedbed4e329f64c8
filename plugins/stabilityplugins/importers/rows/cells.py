"""Steps, times and values in other programs' spellings: numbers, missing ones, and faults."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stabilityclient.wire import MAX_NAME_CHARS, MAX_STEP
from stabilityplugins.importers.problems import Reading, shown

__all__ = [
    "MAX_RANK",
    "MAX_TIME",
    "TIME_UNITS",
    "NotAStep",
    "as_number",
    "as_rank",
    "as_step",
    "as_time",
    "is_missing",
    "is_text",
    "row_of",
]

#: How programs spell that there is no value. Lower case.
_MISSING = frozenset({"", "null", "none", "na", "n/a", "<na>", "-"})
#: 1,234.5 and 1.234,5: signs that group digits, by whether the comma is the decimal sign.
_GROUPED = {False: re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?"), True: re.compile(r"[+-]?\d{1,3}(\.\d{3})+(,\d*)?")}
#: 1 234,5 and 1'234.5: digits grouped by spaces (also those that do not break) or apostrophes.
_SPACED = re.compile(r"[+-]?\d{1,3}(?:[ '\u00a0\u2009\u202f\u2019]\d{3})+(?:[.,]\d*)?")
_SPACES = re.compile(r"[ '\u00a0\u2009\u202f\u2019]")
#: "10/438": step 10 of 438.
_OF_ALL = re.compile(r"\s*(\d+)\s*/\s*\d+\s*")

#: Greatest rank: far above any job's, far below one at which pages would count ranks for hours.
MAX_RANK = 2**20 - 1
#: Above so many "seconds" a time is counted in smaller units: how many of them make a second.
TIME_UNITS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
#: From here on a number is no time in any unit; it is the year 5138 in nanoseconds.
MAX_TIME = 1e20


class NotAStep(ValueError):
    """The value in the place of the step or the rank is none; named in the text."""


def as_step(value: Any) -> int:
    """Return a step given as a whole number, a float without fraction or a text of one; 10 of ``10/438``.

    Raises:
        NotAStep: it is none, or outside 0..2**53-1.
    """
    if isinstance(value, str):
        of_all = _OF_ALL.fullmatch(value)
        number = as_number(of_all[1] if of_all else value)
        value = value if number is None else number
    if not _is_finite(value) or value != int(value):
        raise NotAStep(f"the step is {shown(value)}, expected a whole number" if value is not None else "no step")
    if not 0 <= value <= MAX_STEP:
        raise NotAStep(f"the step is {shown(value)}, expected 0 to {MAX_STEP}")
    return int(value)


def as_rank(value: Any) -> int:
    """Return a rank given as a whole number, a float without fraction or a text of one.

    Raises:
        NotAStep: it is none, or outside 0..MAX_RANK.
    """
    try:
        rank = as_step(value)
    except NotAStep:
        rank = -1
    if not 0 <= rank <= MAX_RANK:
        raise NotAStep(f"the rank is {shown(value)}, expected a whole number from 0 to {MAX_RANK}")
    return rank


def as_time(value: Any) -> float | None:
    """Return unix seconds given as a number or an ISO 8601 text, None for anything else. No zone means UTC."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            try:
                moment = datetime.fromisoformat(value.strip())
            except ValueError:
                return None
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if _is_finite(value):
        # No training in the year 5138: larger numbers are milli-, micro- or nanoseconds.
        scale = next((unit for limit, unit in TIME_UNITS if abs(value) > limit), 1.0)
        return float(value) / scale if abs(value) < MAX_TIME else None
    return None


def _is_finite(value: Any) -> bool:
    """Return whether a value is a finite number; Python's own whole numbers may be too long for a float."""
    return type(value) is int or (isinstance(value, float) and math.isfinite(value))


def as_number(value: Any, *, decimal_comma: bool = False) -> float | None:
    """Return a value as a float (booleans count as 0 and 1, texts of numbers as these), None for any other value."""
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return _in_text(value.strip(), decimal_comma=decimal_comma) if isinstance(value, str) else None


def _in_text(text: str, *, decimal_comma: bool) -> float | None:
    if _SPACED.fullmatch(text):
        text = _SPACES.sub("", text)
    if "," in text or decimal_comma:
        if _GROUPED[decimal_comma].fullmatch(text):
            text = text.replace("." if decimal_comma else ",", "")
        text = text.replace(",", ".") if decimal_comma else text
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


def is_missing(value: Any) -> bool:
    """Say whether a cell holds no value: null, empty, or a word for it."""
    return value is None or (isinstance(value, str) and value.strip().lower() in _MISSING)


def row_of(
    pairs: Iterable[tuple[str, Any]], reading: Reading, file: Path, place: str
) -> tuple[tuple[str, ...], array[float]]:
    """Return names and values of the metrics that can be stored; null is missing, the rest is noted."""
    names: list[str] = []
    values = array("d")
    for key, value in pairs:
        number = as_number(value)
        if number is None:
            if not is_missing(value):
                reading.odd_value(file, place, key, value)
        elif not is_text(key):
            reading.problem(file, place, f"the metric name {shown(key)} is no text: half of a character pair")
        elif not 1 <= len(key) <= MAX_NAME_CHARS:
            reading.problem(
                file, place, f"the metric name {shown(key)} has {len(key)} characters, expected 1 to {MAX_NAME_CHARS}"
            )
        else:
            names.append(key)
            values.append(number)
    return tuple(names), values


def is_text(name: str) -> bool:
    """Return whether a name can be written as UTF-8; JSON's ``\\ud800`` alone can't."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
