"""A bank for the law of detectors: it feeds one detector a run, and lets nobody start afresh."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import NoReturn

from .bank import DetectorBank
from .base import Detector, Finding, Mark, Row

Factory = Callable[[], Detector]
Series = Sequence[Row | Mark]

__all__ = ["Factory", "LawBroken", "Raised", "Series", "checked_bank", "fed", "fed_at_once", "given", "where"]


class LawBroken(AssertionError):
    """A detector breaks the law. The text names the check, what was expected and what was seen."""


class Raised(LawBroken):
    """A detector raises: what the other checks would find says no more."""


class _Bank(DetectorBank):
    """A bank that lets nobody start afresh."""

    def _failed(self, detector: Detector, error: Exception) -> NoReturn:
        raise Raised(f"no exception: {detector.name} raised {where(detector, error)}") from error


def where(detector: Detector, error: Exception) -> str:
    """Return an exception in words, with the last line of the detector's own file that it came through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == type(detector).update.__code__.co_filename]
    return f"{type(error).__name__}: {error} ({(own or frames)[-1].filename}, line {(own or frames)[-1].lineno})"


def checked_bank(make: Factory) -> DetectorBank:
    """Return a bank of one detector, which raises ``Raised`` where the detector raises."""
    return _Bank({make().name: make}, in_order=not make().every_rank)


def given(bank: DetectorBank, series: Iterable[Row | Mark]) -> list[Finding]:
    """Give rows, one by one, and marks; return what is found. Raises Raised, with the step."""
    found = []
    for item in series:
        try:
            found += bank.mark(item) if isinstance(item, Mark) else bank.feed_row(item)
        except Raised as error:
            raise Raised(f"{error} at step {item.step}") from error.__cause__
    return found


def fed(make: Factory, series: Iterable[Row | Mark]) -> list[Finding]:
    """Return what a fresh detector finds in a run."""
    return given(checked_bank(make), series)


def fed_at_once(make: Factory, series: Series) -> list[Finding]:
    """Return the same as ``fed``; rows of the same metrics that follow each other are given at once."""
    bank, found = checked_bank(make), list[Finding]()
    for (is_row, rank, names), some in groupby(series, key=_alike):
        items = list(some)
        if not is_row:
            found += given(bank, items)
            continue
        rows = [item for item in items if isinstance(item, Row)]
        columns = {name: [row.values[name] for row in rows] for name in names if bank.wants(name)}
        steps, times = [row.step for row in rows], [row.time for row in rows]
        found += [finding for _, finding in bank.feed_rows(names, steps, times, columns, rank)]
    return found


def _alike(item: Row | Mark) -> tuple[bool, int, tuple[str, ...]]:
    return (True, item.rank, tuple(item.values)) if isinstance(item, Row) else (False, 0, ())
