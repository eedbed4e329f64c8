"""What ``log()`` does with a call that is not plain floats under plain names: sort, hand on, refuse."""

from __future__ import annotations

from stabilityclient.errors import RefusedError
from stabilityclient.metrics.schemas import MAX_NAMES
from stabilityclient.metrics.values import Types, sort_values, split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from stabilityclient.guard import Guard
    from stabilityclient.metrics.device_values import Deferred
    from stabilityclient.spool import SpoolWriter

__all__ = ["MetricCoercion"]

#: Refusals named in one message.
MAX_REFUSED_SHOWN = 4
#: Calls whose names fit no row that are remembered.
MAX_SPLIT = 16
#: Seconds that a rollback, finish() and exit wait for values that still live on a device.
DEVICE_WAIT_S = 5.0


class MetricCoercion:
    """The slower way of a row into the spool.

    Args:
        spool: of this process. guard: counts device values that can't be stored.

    Attributes:
        deferred: reads values that live on a device; None before the first one.
    """

    def __init__(self, spool: SpoolWriter, guard: Guard) -> None:
        self.deferred: Deferred | None = None
        self._spool = spool
        self._guard = guard
        self._types = Types()
        #: Names of a call that fit no row -> the sets in which they are stored.
        self._split: dict[tuple[str, ...], list[tuple[str, ...]]] = {}

    def sort(self, step: int, now: float, metrics: Mapping[str, Any]) -> None:
        """Store what can be stored of a call, hand on what lives on a device, refuse the rest.

        Raises:
            RefusedError: something was refused.
        """
        types, values = self._types, metrics.values()
        if self._split and types.all_plain(map(type, values)):
            sets = self._split.get(tuple(metrics))
            if sets is not None:
                self._store_split(step, now, metrics, sets)
                return
        if types.all_tensors(map(type, values)) and (types.only_cpu or all(map(types.is_cpu, values))):
            # In one breath, without a call of ours: with cold caches each costs as much as reading some tensors.
            try:
                self._spool.append_row(tuple(metrics), step, now, map(types.item, values))
                return
            except Exception:  # sort_values() below finds out what it was, and says it in words
                pass
        elif types.only_cpu and types.all_known(map(type, values)):
            plain, item = types.plain, types.item
            try:
                row = [value if type(value) in plain else item(value) for value in values]
                self._spool.append_row(tuple(metrics), step, now, row)
                return
            except Exception:  # as above
                pass
        elif self._store_known(step, now, metrics):
            return
        good, device, refused = sort_values(metrics, self._types)
        if good:
            self._store(step, now, good)
        if device:
            self._defer(step, now, device)
        if refused:
            raise RefusedError(refused[:MAX_REFUSED_SHOWN], len(refused) - MAX_REFUSED_SHOWN)

    def _store_known(self, step: int, now: float, metrics: Mapping[str, Any]) -> bool:
        """Store a call whose types are all known; False, and nothing is stored, where something has to be checked."""
        try:
            found = split(metrics, self._types)
            if found is None:
                return False
            good, device = found
            if good:
                self._spool.append_row(tuple(good), step, now, good.values())
        except Exception:  # as above
            return False
        if device:
            self._defer(step, now, device)
        return True

    def _defer(self, step: int, now: float, device: dict[str, Any]) -> None:
        if self.deferred is None:
            from stabilityclient.metrics.device_values import Deferred  # most jobs never need it

            self.deferred = Deferred(
                self._store,
                lambda error: self._guard.refuse("log()", RefusedError([f"a device value: {error}"])),
                self._spool.drop,
            )
        self.deferred.put(step, now, device)

    def drain(self) -> None:
        """Let the values that still live on a device be stored: those logged before an event belong before it."""
        if self.deferred is not None:
            self.deferred.drain(DEVICE_WAIT_S)

    def _store(self, step: int, now: float, metrics: dict[str, float]) -> None:
        names = tuple(metrics)
        try:
            self._spool.append_row(names, step, now, metrics.values())
        except ValueError:  # more than fits one row, or more than a run can have
            if len(self._split) >= MAX_SPLIT:
                self._split.clear()
            sets = self._split[names] = self._spool.schemas.fitting(names)
            self._store_split(step, now, metrics, sets)

    def _store_split(self, step: int, now: float, metrics: Mapping[str, Any], sets: list[tuple[str, ...]]) -> None:
        for names in sets:
            self._spool.append_row(names, step, now, [metrics[name] for name in names])
        more = len(metrics) - sum(map(len, sets))
        if more:
            raise RefusedError(
                [f"{more} metrics are beyond the {MAX_NAMES:,} names that a run can have: leave the step out of names"],
                more - 1,
            )
