"""What an enabled run holds in its process."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stabilityclient.boundary import Boundary
    from stabilityclient.heart import Heart
    from stabilityclient.sidecar import Sidecar
    from stabilityclient.slot import Slot
    from stabilityclient.spool import SpoolWriter

__all__ = ["Parts"]


class Parts:
    """What an enabled run holds. Plain data, made by ``init()``."""

    __slots__ = ("boundary", "folder", "heart", "sidecar", "slot", "source", "spool")

    boundary: Boundary
    folder: str
    heart: Heart
    sidecar: Sidecar | None
    slot: Slot
    source: str
    spool: SpoolWriter

    def leave(self, step: int) -> None:
        """The loop of steps() ends before ``step``."""
        self.heart.stepping = False
        self.boundary.leave(step)
