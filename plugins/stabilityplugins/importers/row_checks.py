"""Notices that a file was rewritten since it was imported: its first records are no longer those that are stored.

Numbers alone can't tell: a file that was cut back and has grown again (a trainer that went back to a checkpoint) looks
as if it had
only grown. So the end of each import leaves a sum over its rows with the run, and the next import compares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.base.errors import BadRequest
from stabilityplugins.importers.batches import Batch

__all__ = ["CHECK_KEY", "MAX_CHECKS", "RowCheck", "stored_checks"]

#: Where the sums are in a run's config: source -> [records, sum].
CHECK_KEY = "import_check"
#: Streams of a run whose sums are kept: the config of a run stays small.
MAX_CHECKS = 64
# Odd numbers, so that multiplying loses nothing (splitmix64's and a prime).
_STEP, _VALUE = np.uint64(0x9E3779B97F4A7C15), np.uint64(0x165667B19E3779F9)
#: Before every sum: one made otherwise, by another version, is no evidence.
_MADE_SO = "v"


class RowCheck:
    """The sum over the rows of one stream, and over those of them that were imported before.

    Args:
        name: of the file, for the message. before: (records, sum) of the last import, None for none.
    """

    def __init__(self, name: str, before: tuple[int, str] | None) -> None:
        self._name = name
        self._before = before
        self._sum = np.uint64(0)
        self._items = 0

    @property
    def entry(self) -> tuple[int, str]:
        """(records, sum) up to here."""
        return self._items, f"{_MADE_SO}{int(self._sum):016x}"

    @property
    def behind(self) -> bool:
        """Whether fewer records arrived so far than were imported before."""
        return self._before is not None and self._items < self._before[0]

    def add(self, batch: Batch) -> None:
        """Take the next rows.

        Raises:
            BadRequest: the rows up to the last one of the import before are others now.
        """
        if self._before is not None and batch.last_item > self._before[0]:
            first = int(np.searchsorted(batch.items, self._before[0], side="right"))
            self._take(batch, slice(0, first))
            self.settle()
            self._take(batch, slice(first, None))
        else:
            self._take(batch, slice(None))
        self._items = batch.last_item

    def settle(self) -> None:
        """Compare, once: at the first record after the old ones, or at the end of the file."""
        before, self._before = self._before, None
        if before is not None and self.entry[1] != before[1]:
            raise BadRequest(
                f"{self._name} was rewritten: its first {before[0]} records are not those that were imported",
                hint="import it as another run: --run-id NEW; the first import stays as it is",
            )

    def _take(self, batch: Batch, rows: slice) -> None:
        steps = batch.steps[rows].astype(np.uint64)
        if not len(steps) or not batch.names:
            return
        # Of steps and values only: how the values of a step fall into rows depends on where a file ended for a while.
        place = steps * _STEP
        total = self._sum
        with np.errstate(over="ignore"):
            for name, values in zip(batch.names, batch.values, strict=True):
                bits: NDArray[np.uint64] = np.ascontiguousarray(values[rows]).view(np.uint64)
                total = total + np.sum((bits ^ (bits >> np.uint64(29)) ^ _hash(name)) * _VALUE * (place | np.uint64(1)))
        self._sum = np.uint64(total)


def stored_checks(config: Mapping[str, Any] | None) -> dict[str, tuple[int, str]]:
    """Return the sums in a run's config; none where it has none, or others."""
    found = (config or {}).get(CHECK_KEY)
    checks: dict[str, tuple[int, str]] = {}
    for source, entry in found.items() if isinstance(found, dict) else ():
        if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], int)):
            continue
        if isinstance(entry[1], str) and entry[1].startswith(_MADE_SO):
            checks[str(source)] = entry[0], entry[1]
    return checks


@lru_cache(maxsize=10_000)
def _hash(name: str) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little"))
