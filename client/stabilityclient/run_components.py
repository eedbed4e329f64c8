"""What an enabled run holds in its process."""

from __future__ import annotations

from time import time

from stabilityclient.rank_state.slot import CLAIM_STEPS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from stabilityclient.rank_state.end_signals import EndSignals
    from stabilityclient.rank_state.heartbeat import HeartbeatThread
    from stabilityclient.rank_state.probe import Probe
    from stabilityclient.rank_state.slot import Slot
    from stabilityclient.rank_state.stack_file import StackFile
    from stabilityclient.rollback.boundary import Boundary
    from stabilityclient.sidecar import Sidecar
    from stabilityclient.spool import SpoolWriter

#: Phase of a rank between two loops of steps() and after the last one, where it declares none itself.
AFTER_LOOP = b"after-loop"

__all__ = ["AFTER_LOOP", "RunComponents"]


class RunComponents:
    """What an enabled run holds. Plain data, made by ``init()``."""

    boundary: Boundary
    end_signals: EndSignals
    environment: Callable[[], None] | None = None
    folder: str
    heartbeat: HeartbeatThread
    probe: Probe
    sidecar: Sidecar | None
    slot: Slot
    source: str
    spool: SpoolWriter
    stack_file: StackFile

    def enter(self) -> None:
        """The loop of steps() begins, in this thread."""
        self.heartbeat.stepping = True
        self.slot.claim(CLAIM_STEPS)
        if self.slot.top is None:
            self.slot.show(b"", time(), 0.0)

    def leave(self, step: int) -> None:
        """The loop of steps() ends before ``step``. What comes next, a last save say, is no stalled step."""
        self.heartbeat.stepping = False
        self.boundary.leave(step)
        if self.slot.top is None:
            self.slot.show(AFTER_LOOP, time(), 0.0)
