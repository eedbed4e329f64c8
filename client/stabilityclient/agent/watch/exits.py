"""How a process that is not our child ended: through a pidfd, the kernel's own handle of one process.

A pidfd never means another process that got the same pid later. It becomes readable when the process is dead.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import struct
from typing import NamedTuple

from stabilityclient.agent.watch.probes import read_stat

__all__ = ["ExitStatus", "exit_status", "has_ended", "open_process", "send_signal", "signal_name"]

# Numbers of the system calls, the same on every architecture (include/uapi/asm-generic/unistd.h of torvalds/linux).
# A Python that was built with the headers of an old Linux lacks os.pidfd_open, also on a new one.
_NR_PIDFD_SEND_SIGNAL, _NR_PIDFD_OPEN = 424, 434

# struct pidfd_info, version 0, 64 bytes: mask u64, cgroupid u64, 11 ids u32, exit code i32; the request number and
# the bit are from include/uapi/linux/pidfd.h of torvalds/linux. The exit status is there from Linux 6.15 on, and only
# after the parent has asked for it; before that the process is a zombie, whose /proc entry shows it.
_INFO = struct.Struct("<QQ11Ii")
_PIDFD_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
_PIDFD_INFO_EXIT = 1 << 3


class ExitStatus(NamedTuple):
    """How a process ended.

    Args:
        signal: number of the signal that killed it, None when none did or that is unknown.
        exit_code: 0 to 255, None when it was killed or that is unknown.
        how: ``pidfd``, ``zombie``, or ``none`` when it is unknown. why: then the reason.
    """

    signal: int | None
    exit_code: int | None
    how: str
    why: str = ""


def open_process(pid: int, ticks: int) -> int | None:
    """Return a pidfd of the process, None when it is gone already. The caller closes it.

    Args:
        pid: of the process. ticks: its start (0: do not compare).

    Raises:
        OSError: the kernel has no pidfds (before Linux 5.3, some sandboxes), or no file descriptor is left.
    """
    try:
        fd = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else _system_call(_NR_PIDFD_OPEN, pid, 0)
    except ProcessLookupError:
        return None
    # After the open: from here on the handle can't mean another process any more.
    stat = read_stat(pid)
    if stat is None or ticks not in (0, stat.start_ticks):
        os.close(fd)
        return None
    return fd


def send_signal(fd: int, number: int) -> None:
    """Send a signal to the process of a pidfd, never to another one; 0 only asks whether we may.

    Raises:
        OSError: we may not, or it is gone.
    """
    if hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(fd, number)
    else:
        _system_call(_NR_PIDFD_SEND_SIGNAL, fd, number, None, 0)


def _system_call(*arguments: int | None) -> int:
    found: int = ctypes.CDLL(None, use_errno=True).syscall(*arguments)
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found


def has_ended(fd: int) -> bool:
    """Whether the process of a pidfd is dead, all its threads included."""
    return bool(select.select([fd], [], [], 0)[0])


def exit_status(fd: int | None, pid: int, ticks: int) -> ExitStatus:
    """Return how a dead process ended.

    Args:
        fd: its pidfd, None where there is none. pid, ticks: for its /proc entry, while it is a zombie.
    """
    # The parent may ask in between, and then the first two know nothing: the third does.
    for read in (_from_pidfd, _from_zombie, _from_pidfd):
        found = read(fd, pid, ticks)
        if found is not None:
            return found
    why = (
        "no handle of it was there in time" if fd is None else "this kernel shows it to the parent only (Linux < 6.15)"
    )
    return ExitStatus(None, None, "none", why)


def signal_name(number: int) -> str:
    """Return e.g. ``SIGKILL`` or ``SIGRTMIN+6``."""
    if signal.SIGRTMIN < number < signal.SIGRTMAX:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _from_pidfd(fd: int | None, pid: int, ticks: int) -> ExitStatus | None:
    if fd is None:
        return None
    data = bytearray(_INFO.size)
    struct.pack_into("<Q", data, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(fd, _PIDFD_GET_INFO, data)
    except OSError:
        return None  # an older kernel
    fields = _INFO.unpack(data)
    return _decoded(fields[-1], "pidfd") if fields[0] & _PIDFD_INFO_EXIT else None


def _from_zombie(fd: int | None, pid: int, ticks: int) -> ExitStatus | None:
    stat = read_stat(pid)
    if stat is None or stat.state not in "ZX" or ticks not in (0, stat.start_ticks):
        return None
    # 0 is also the value of another user's process: only a permitted tracer sees more.
    return _decoded(stat.exit_code, "zombie") if stat.exit_code or _same_user(pid) else None


def _same_user(pid: int) -> bool:
    try:
        return os.geteuid() in (0, os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return False


def _decoded(status: int, how: str) -> ExitStatus:
    number = status & 0x7F
    return ExitStatus(number, None, how) if number else ExitStatus(None, status >> 8 & 0xFF, how)
