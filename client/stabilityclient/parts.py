"""What an enabled run holds in its process."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stabilityclient.boundary import Boundary
    from stabilityclient.heart import Heart
    from stabilityclient.probe import Probe
    from stabilityclient.sidecar import Sidecar
    from stabilityclient.slot import Slot
    from stabilityclient.spool import SpoolWriter
    from stabilityclient.stack_file import StackFile

__all__ = ["Parts"]


class Parts:
    """What an enabled run holds. Plain data, made by ``init()``."""

    __slots__ = ("boundary", "folder", "heart", "probe", "sidecar", "slot", "source", "spool", "stack_file")

    boundary: Boundary
    folder: str
    heart: Heart
    probe: Probe
    sidecar: Sidecar | None
    slot: Slot
    source: str
    spool: SpoolWriter
    stack_file: StackFile

    def leave(self, step: int) -> None:
        """The loop of steps() ends before ``step``."""
        self.heart.stepping = False
        self.boundary.leave(step)
