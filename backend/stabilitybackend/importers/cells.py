"""Steps, times and values as other programs write them: what is a number, what is missing, what is neither."""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stabilitybackend.importers.troubles import Reading, shown
from stabilityclient.wire import MAX_NAME_CHARS, MAX_STEP

__all__ = [
    "MAX_RANK",
    "MAX_TIME",
    "TIME_UNITS",
    "NotAStep",
    "as_number",
    "as_rank",
    "as_step",
    "as_time",
    "count_lines",
    "note_step",
    "row_of",
]

#: How JSON, W&B, NumPy and Excel spell what is not finite. Lower case.
_NONFINITE = {
    "nan": math.nan, "infinity": math.inf, "inf": math.inf, "+infinity": math.inf, "+inf": math.inf,
    "-infinity": -math.inf, "-inf": -math.inf,
}  # fmt: skip


#: Greatest rank: far above any job's, far below what would make pages count ranks for hours.
MAX_RANK = 2**20 - 1
#: Above so many "seconds" a time is counted in smaller units: how many of them make a second.
TIME_UNITS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
#: From here on a number is no time in any unit; it is the year 5138 in nanoseconds.
MAX_TIME = 1e20


class NotAStep(ValueError):
    """What is where the step or the rank belongs is none; the text names it."""


def as_step(value: Any) -> int:
    """Return a step given as a whole number, a float without fraction or a text of one.

    Raises:
        NotAStep: it is none, or outside 0..2**53-1.
    """
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            pass
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
        # Nobody trains in the year 5138: larger numbers are milli-, micro- or nanoseconds.
        scale = next((unit for limit, unit in TIME_UNITS if abs(value) > limit), 1.0)
        return float(value) / scale if abs(value) < MAX_TIME else None
    return None


def note_step(file: Path, step: str | None, names: Collection[str], reading: Reading) -> None:
    """Say it where W&B's count of log calls was taken for the step and the file has the training step as well."""
    better = next((name for name in ("trainer/global_step", "train/global_step", "global_step") if name in names), None)
    if step == "_step" and better is not None:
        reading.note(f"{file}: the step is W&B's own count of log calls; for the training step: --step-key {better}")


def count_lines(path: Path) -> int:
    """Return how many lines a file has; an end that is no whole line does not count."""
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))


def _is_finite(value: Any) -> bool:
    """Return whether a value is a finite number; Python's own whole numbers may be too long for a float."""
    return type(value) is int or (isinstance(value, float) and math.isfinite(value))


def as_number(value: Any) -> float | None:
    """Return a value as a float (booleans count as 0 and 1), None for what is no number."""
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return _NONFINITE.get(value.strip().lower()) if isinstance(value, str) else None


def row_of(
    pairs: Iterable[tuple[str, Any]], reading: Reading, file: Path, place: str
) -> tuple[tuple[str, ...], array[float]]:
    """Return names and values of what can be stored; null is missing, the rest is noted."""
    names: list[str] = []
    values = array("d")
    for key, value in pairs:
        number = as_number(value)
        if number is None:
            if value is not None:
                reading.odd_value(file, place, key, value)
        elif not _is_text(key):
            reading.trouble(file, place, f"the metric name {shown(key)} is no text: half of a character pair")
        elif not 1 <= len(key) <= MAX_NAME_CHARS:
            reading.trouble(
                file, place, f"the metric name {shown(key)} has {len(key)} characters, expected 1 to {MAX_NAME_CHARS}"
            )
        else:
            names.append(key)
            values.append(number)
    return tuple(names), values


def _is_text(name: str) -> bool:
    """Return whether a name can be written as UTF-8; JSON's ``\\ud800`` alone can't."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
