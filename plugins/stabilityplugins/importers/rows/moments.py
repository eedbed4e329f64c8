"""Times as other programs write them: which column holds moments, and in which form. One reader for all formats.

A column called ``time`` may hold the seconds of an iteration (detectron2, mmengine) or those since the start
(Ultralytics): such numbers are metrics. Moments are after 1973, in seconds or a smaller unit, and do not go back and
forth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import pairwise
from typing import Any

from stabilityplugins.importers.rows.cells import as_number, as_time

__all__ = ["MIN_TIME", "TIME_KEYS", "ReadTime", "clock_of"]

#: Columns that may hold the time, lower case, in this order.
TIME_KEYS = ("t", "_timestamp", "timestamp", "wall_time", "wall time", "time", "datetime", "date")
#: Numbers below are no seconds since 1970: they would be before March 1973.
MIN_TIME = 1e8
#: From so many values on, a column that goes back is no clock.
_RISING_FROM = 10
#: Share of the steps between two values that may go back: several writers, rank after rank.
_FALLING = 0.1
#: Share of the values that must be of the form: single ones may be damaged.
_MOST = 0.5
_PLAIN_FORMATS = (
    "%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M", "%Y-%m-%d %H:%M:%S,%f", "%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M",
    "%b %d, %Y %I:%M:%S %p", "%b %d, %Y %H:%M:%S", "%a %b %d %H:%M:%S %Y", "%Y%m%d_%H%M%S", "%Y%m%d-%H%M%S",
    "%Y-%m-%d_%H-%M-%S", "%Y-%m-%d %I:%M:%S %p", "%Y-%m-%d %I:%M %p",
)  # fmt: skip
#: Month first and day first, the same in all else.
_SLASHED = tuple(
    (f"%m{dash}%d{dash}%Y {clock}", f"%d{dash}%m{dash}%Y {clock}")
    for dash in ("/", "-")
    for clock in ("%H:%M:%S", "%H:%M", "%I:%M:%S %p", "%I:%M %p", "%H:%M:%S.%f")
)

#: Returns unix seconds of a value, None for no moment.
ReadTime = Callable[[Any], float | None]


def clock_of(values: Sequence[Any]) -> ReadTime | str:
    """Return how a column of these values is read as moments, else in words why it is none.

    Args:
        values: of the first rows, in the file's order.
    """
    given = [value for value in values if not _is_missing(value)]
    if not given:
        return "has no value"
    numbers = [number for value in given if (number := as_number(value)) is not None]
    if len(numbers) >= _MOST * len(given):
        return _of_numbers(given, numbers)
    texts = [value.strip() for value in given if isinstance(value, str)]
    found = _form_of(texts)
    if isinstance(found, str):
        return found
    moments = [moment for text in texts if (moment := found(text)) is not None]
    return found if _rises(moments) else "goes back and forth"


def _of_numbers(given: Sequence[Any], numbers: Sequence[float]) -> ReadTime | str:
    seconds = [moment for number in numbers if (moment := as_time(number)) is not None]
    if len(seconds) < _MOST * len(numbers):
        return "is no date"
    if sorted(seconds)[len(seconds) // 2] < MIN_TIME:
        return f"is no date ({given[0]})"
    return as_time if _rises(seconds) else "goes back and forth"


def _rises(moments: Sequence[float]) -> bool:
    if len(moments) < _RISING_FROM:
        return True
    falls = sum(after < before for before, after in pairwise(moments))
    return falls <= _FALLING * len(moments)


def _form_of(texts: Sequence[str]) -> ReadTime | str:
    """Return a reader of (nearly) all of the texts, else the reason of its absence."""
    if _reads_most(as_time, texts):
        return as_time
    for form in _PLAIN_FORMATS:
        if _reads_most(read := _reader(form), texts):
            return read
    if _reads_most(_of_mail, texts):
        return _of_mail
    for month_first, day_first in _SLASHED:
        fitting = [form for form in (month_first, day_first) if _reads_most(_reader(form), texts, share=1.0)]
        if len(fitting) == 1:
            return _reader(fitting[0])
        if fitting:
            return f"is {texts[0]!r}, where day and month can't be told apart"
    return f"is {texts[0]!r}, which is no known form of a time" if texts else "holds no times"


def _reads_most(read: ReadTime, texts: Iterable[str], share: float = _MOST) -> bool:
    found = [read(text) is not None for text in texts]
    return bool(found) and sum(found) >= share * len(found)


def _reader(form: str) -> ReadTime:
    def read(value: Any) -> float | None:
        try:
            return datetime.strptime(value.strip(), form).replace(tzinfo=UTC).timestamp()
        except (AttributeError, ValueError, OverflowError):
            return None

    return read


def _of_mail(value: Any) -> float | None:
    """Return unix seconds of a text as in mail headers: ``Fri, 05 Jan 2024 10:00:00 GMT``."""
    try:
        moment = parsedate_to_datetime(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, AttributeError, OverflowError, IndexError):
        return None


def _is_missing(value: Any) -> bool:
    return (
        value is None
        or (isinstance(value, str) and (not value.strip() or value.strip().lower() in ("nan", "null", "none")))
        or (isinstance(value, float) and math.isnan(value))
    )
