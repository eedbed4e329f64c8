"""Everything that the client raises, one tree.

StabilityError
|-- SettingError        init() was given something that can't work; raised always, before training starts
|-- RefusedError        a call gave a value that can't be stored; raised under pytest, else logged and counted
`-- NotReadyError       the machine is in the way (disk, folder); raised under pytest, else the run is disabled
"""

from __future__ import annotations

__all__ = ["NotReadyError", "RefusedError", "SettingError", "StabilityError"]


class StabilityError(Exception):
    """Root of the client's errors."""


class SettingError(StabilityError, ValueError):
    """A setting given to ``init()`` or by the environment is wrong.

    Attributes:
        setting: name of the argument or environment variable.
    """

    def __init__(self, setting: str, given: object, expected: str) -> None:
        shown = repr(given)
        super().__init__(f"{setting} is {shown[:120]}, expected {expected}")
        self.setting = setting


class RefusedError(StabilityError, ValueError):
    """A call gave a value that can't be stored. The good values of the same call are stored.

    Attributes:
        refused: one sentence for each thing that was refused. count: how many things that were.
    """

    def __init__(self, refused: list[str], more: int = 0) -> None:
        super().__init__("; ".join([*refused, f"and {more} more"] if more > 0 else refused))
        self.refused = refused
        self.count = len(refused) + max(0, more)


class NotReadyError(StabilityError):
    """The run's folder can't be made or written: nothing of this process will be recorded."""
