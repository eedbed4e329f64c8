"""Hooks of a process, one each for all its runs: exception hook, exit hook, fork hook."""

from __future__ import annotations

import os
import sys

from stabilityclient.rank_state import end_signals, stack_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Protocol

    class Hooked(Protocol):
        def _on_exception(self, error: BaseException) -> None: ...
        def _on_exit(self) -> None: ...
        def _on_fork(self) -> None: ...


__all__ = ["open_runs", "unwatch", "watch"]

#: Open runs of this process. Bounded by the runs that a process opens and finishes: one, nearly always.
_open_runs: list[Hooked] = []
_installed = False


def watch(run: Hooked) -> None:
    """Call ``run`` when an exception ends the process, when it exits, and when a child is forked."""
    global _installed
    _open_runs.append(run)
    if _installed:
        return
    _installed = True
    import atexit

    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        for each in _open_runs:
            each._on_exception(error)
        before(kind, error, trace)

    sys.excepthook = hook
    atexit.register(_exit)
    os.register_at_fork(after_in_child=_forked)


def open_runs() -> list[Hooked]:
    """Return the runs that are open in this process."""
    return list(_open_runs)


def unwatch(run: Hooked) -> None:
    """Leave ``run`` alone from now on."""
    if run in _open_runs:
        _open_runs.remove(run)


def _exit() -> None:
    for run in _open_runs:
        run._on_exit()


def _forked() -> None:
    # A DataLoader worker shares the parent's mapped chunk: it must never write there.
    for run in _open_runs:
        run._on_fork()
    _open_runs.clear()
    stack_file.forked()
    end_signals.forked()
