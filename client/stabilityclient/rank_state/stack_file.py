"""The file ``stacks`` of a process: where ``faulthandler`` writes without the GIL, on a signal and on a fatal error.

Never over an existing setup of the process: a signal with a handler keeps it, and so does a faulthandler that is
enabled. The registration is not undone at the end (that could undo a later registration of the user, and a late
signal would then kill the process): the descriptor is pointed at ``/dev/null`` instead.
"""

from __future__ import annotations

import os

__all__ = ["StackFile", "forked"]

#: Lowest number for our descriptor. A low one that is closed under us (``os.closerange``) is soon another file.
LOWEST_FD = 512
#: SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, as bits. A handler there is a virtual machine's (Java uses SIGSEGV for its
#: own ends) or a crash reporter's.
_FATAL = sum(1 << (number - 1) for number in (4, 6, 7, 8, 11))


class _Registered:
    """Registrations of this process so far, for all its runs one after the other."""

    fd = -1
    #: (device, inode) of the descriptor's target: if it is another file, the number has another owner now.
    identity = (0, 0)
    signal = 0
    #: The descriptor with which we enabled faulthandler, -1 when we did not.
    fatal_fd = -1
    in_use = False


def forked() -> None:
    """This is a forked child: its trouble does not belong to the parent's file."""
    _point_away()


class StackFile:
    """Where dumps of this run go, from now to ``close``. Never raises: without a file there are no dumps.

    Args:
        path: file, made if it is not there.
        dump_signal: number of the signal that asks for a dump, 0 for none.

    Attributes:
        dump_signal: the signal that works, 0 for none. missing: why there is none, in words, None where there is one.
        fatal: fatal errors are written to the file too.
    """

    def __init__(self, path: str, dump_signal: int) -> None:
        self.dump_signal = 0
        self.fatal = False
        self.missing: str | None = None
        self._mine = False
        if _Registered.in_use and _still_ours():
            self.missing = "another run of this process has the stack dumps"
            return
        try:
            self._open(path)
            self._register(dump_signal)
        except Exception as error:  # a full disk, no /proc, a Python without faulthandler
            self.missing = f"stack dumps can't be set up: {error}"

    def close(self) -> None:
        """Dumps and fatal errors go nowhere from now on."""
        if self._mine:
            self._mine = False
            _point_away()

    def _open(self, path: str) -> None:
        import fcntl

        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            if _Registered.fd >= 0 and _still_ours():
                os.dup2(fd, _Registered.fd, inheritable=False)
            else:
                try:
                    _Registered.fd = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, LOWEST_FD)
                except OSError:  # the process may have fewer descriptors
                    _Registered.fd = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
            _remember()
            _Registered.in_use = self._mine = True
        finally:
            os.close(fd)

    def _register(self, dump_signal: int) -> None:
        import faulthandler

        masks = _masks()
        stale = _Registered.fatal_fd not in (-1, _Registered.fd)
        if stale or not (faulthandler.is_enabled() or masks["SigCgt"] & _FATAL):
            faulthandler.enable(file=_Registered.fd)
            _Registered.fatal_fd = _Registered.fd
        self.fatal = _Registered.fatal_fd >= 0
        if not dump_signal:
            self.missing = "STABILITY_DUMP_SIGNAL is off"
            return
        taken = _taken(dump_signal, masks)
        if taken is not None:
            self.missing = f"signal {dump_signal} (STABILITY_DUMP_SIGNAL) is {taken} in this process already"
            return
        faulthandler.register(dump_signal, file=_Registered.fd, all_threads=True, chain=False)
        _Registered.signal = self.dump_signal = dump_signal


def _masks() -> dict[str, int]:
    """Return which signals this process handles, ignores and blocks, as the kernel sees it: one bit a signal."""
    with open("/proc/thread-self/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return {name: int(fields[name], 16) for name in ("SigCgt", "SigIgn", "SigBlk")}


def _taken(number: int, masks: dict[str, int]) -> str | None:
    """Return ``handled``, ``ignored`` or ``blocked`` where a signal is not free, as Python and the kernel see it."""
    import signal

    bit = 1 << (number - 1)
    if masks["SigBlk"] & bit:
        return "blocked"
    if masks["SigIgn"] & bit:
        return "ignored"
    if signal.getsignal(number) not in (signal.SIG_DFL, None):
        return "handled"
    # A handler unknown to Python is of an earlier run here, or a C library's.
    return "handled" if masks["SigCgt"] & bit and number != _Registered.signal else None


def _remember() -> None:
    facts = os.fstat(_Registered.fd)
    _Registered.identity = (facts.st_dev, facts.st_ino)


def _still_ours() -> bool:
    try:
        facts = os.fstat(_Registered.fd)
    except OSError:
        return False
    return (facts.st_dev, facts.st_ino) == _Registered.identity


def _point_away() -> None:
    _Registered.in_use = False
    if _Registered.fd < 0 or not _still_ours():
        return
    try:
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.dup2(null, _Registered.fd, inheritable=False)
        finally:
            os.close(null)
        _remember()
    except OSError:
        pass  # no descriptor left: late dumps lie in the file, without harm
