"""The context manager behind ``run.phase``."""

from __future__ import annotations

from time import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stabilityclient.guard import Guard
    from stabilityclient.slot import Slot

__all__ = ["Phase"]


class Phase:
    """Says in the slot what the rank is doing; phases may be nested, the outer one comes back.

    Args:
        slot: None for a run that is disabled or over.
        name: of the phase. expect_s: how long it may take, seconds, or None.
    """

    __slots__ = ("_before", "_expect_s", "_guard", "_name", "_slot")

    def __init__(self, slot: Slot | None, guard: Guard, name: str, expect_s: float | None) -> None:
        self._slot = slot
        self._guard = guard
        self._name = name
        self._expect_s = expect_s
        self._before: tuple[str, float] = ("", 0.0)

    def __enter__(self) -> Phase:
        if self._slot is not None:
            self._before = (self._slot.phase, self._slot.expect_s)
        self._set(self._name, self._expect_s)
        return self

    def __exit__(self, *_: object) -> None:
        self._set(*self._before)

    def _set(self, name: str, expect_s: float | None) -> None:
        if self._slot is None:
            return
        try:
            self._slot.set_phase(str(name), time(), float(expect_s or 0.0))
        except Exception as error:
            self._guard.caught("phase()", error)
