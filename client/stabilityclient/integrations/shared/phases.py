"""The one phase in which a framework's loop is, where hooks say what begins and none says what ends."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stabilityclient.rank_state.phase import Phase
    from stabilityclient.run import Run

__all__ = ["OnePhase"]


class OnePhase:
    """Each phase that is entered ends the one before.

    Args:
        run: of :func:`stabilityclient.init`.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._open: Phase | None = None

    def enter(self, name: str | None) -> None:
        """End the phase, and enter another one; None: none."""
        if self._open is not None:
            self._open.__exit__()
        self._open = None if name is None else self._run.phase(name).__enter__()
