"""Notices that the process was asked to end: that a handler of the job ran for SIGTERM, or for Slurm's warning.

A handler that saves and exits 0 leaves nothing else behind: the run would look finished. The interpreter writes the
number of each signal that has a Python handler to its wake-up descriptor, whenever the handler was set and whatever it
does. Nothing of the job is wrapped or replaced. An event loop that handles signals takes the descriptor for itself: it
gets it, and then only ``run.preempted()`` reports a preemption.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["EndSignals", "forked"]

#: A process that ends so long after it was asked to ends for that, seconds: Slurm warns minutes before its time limit,
#: Kubernetes gives grace periods of that order. Later it has ignored the signal.
ENDS_WITHIN_S = 900.0
#: Lowest number for our descriptors. A low one that is closed under us (``os.closerange``) is soon another file.
LOWEST_FD = 512


class _Pipe:
    """The wake-up descriptor of this process, for all its runs one after the other."""

    read = -1
    write = -1


class EndSignals:
    """The signals of one run.

    Args:
        environ: shows whether Slurm started the job, whose warnings are SIGUSR1 and SIGUSR2 (``--signal``, submitit).
        dump_signal: number of the signal that asks for stack dumps.
    """

    def __init__(self, environ: Mapping[str, str], dump_signal: int) -> None:
        import signal

        self._names = {int(signal.SIGTERM): "SIGTERM"}
        if environ.get("SLURM_JOB_ID"):
            self._names |= {int(signal.SIGUSR1): "SIGUSR1", int(signal.SIGUSR2): "SIGUSR2"}
        self._names.pop(dump_signal, None)
        self._by = ""
        self._at = float("-inf")
        try:
            _install()
        except (ValueError, OSError):
            pass  # another thread than the main one, or no descriptor: only run.preempted() reports it

    def poll(self) -> None:
        """Read the signals since the last call; never waits."""
        if _Pipe.read < 0:
            return
        try:
            came = os.read(_Pipe.read, 65536)
        except OSError:  # no signal, or the descriptor is closed
            return
        found = [self._names[number] for number in came if number in self._names]
        if found:
            self._by, self._at = found[-1], time.monotonic()

    def asked(self) -> str:
        """Return the signal by which the process was asked to end, "" where it was not, or went on for long."""
        self.poll()
        return self._by if time.monotonic() - self._at <= ENDS_WITHIN_S else ""


def forked() -> None:
    """This is a forked child: its signals are not the parent's."""
    read = _Pipe.read
    write = _Pipe.write
    _Pipe.read = -1
    _Pipe.write = -1
    if write < 0:
        return
    import signal

    try:
        before = signal.set_wakeup_fd(-1)
        if before not in (-1, write):
            signal.set_wakeup_fd(before)
    except ValueError:  # not possible in this thread: the descriptor stays, and its other end is closed
        os.close(read)
        return
    os.close(read)
    os.close(write)


def _install() -> None:
    """Become the wake-up descriptor where there is none.

    Raises:
        ValueError: this is not the main thread. OSError: there is no descriptor left.
    """
    import fcntl
    import signal

    if _Pipe.write < 0:
        ends = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            _Pipe.read = fcntl.fcntl(ends[0], fcntl.F_DUPFD_CLOEXEC, LOWEST_FD)
            _Pipe.write = fcntl.fcntl(ends[1], fcntl.F_DUPFD_CLOEXEC, LOWEST_FD)
        finally:
            for end in ends:
                os.close(end)
    before = signal.set_wakeup_fd(_Pipe.write, warn_on_full_buffer=False)
    if before not in (-1, _Pipe.write):
        signal.set_wakeup_fd(before)  # an event loop's: it wakes up by it
