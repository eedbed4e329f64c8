"""Follows the kernel's log and keeps the lines about dead ranks and faulty nodes. Never waits.

The format is that of /dev/kmsg: ``priority,number,microseconds,flags;text``, then lines that begin with a space and
belong to the record before (https://docs.kernel.org/admin-guide/abi-testing.html, dev-kmsg). A read of the device
gives one record; a file or FIFO in the same format (``STABILITY_KMSG``) gives bytes, so both go through one parser.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Mapping

from stabilityclient.agent.watch.kernel_lines import KernelMessage, LineReader
from stabilityclient.start import pid_namespace

__all__ = ["KMSG", "KernelLog", "KernelMessage", "names_our_pids"]

#: Where the kernel gives its log away record by record.
KMSG = "/dev/kmsg"
#: Bytes of one read: more than the longest record (8 KiB, CONSOLE_EXT_LOG_MAX), or the device answers EINVAL without
#: end.
READ_BYTES = 16 * 1024
#: Reads and bytes of one poll: a log that is written faster than it is read holds nothing up; the rest is for the next.
MAX_READS, MAX_BYTES = 2_000, 1024 * 1024
#: Lines that matter of one poll; of further ones those that differ from all before them, as many again, and the rest
#: is counted in ``dropped``: a dying disk or a bad kernel writes thousands a second, and the cause is one among them.
MAX_LINES = 200
#: Bytes of an unfinished line from a file that is no kernel log.
MAX_PARTIAL_BYTES = 64 * 1024
#: Seconds between two tries to open a log that could not be opened.
RETRY_S = 10.0
#: Device number of /dev/null, which some container runtimes put in the log's place.
_NULL_DEVICE = os.makedev(1, 3)
#: Inode of the first process-id namespace (PROC_PID_INIT_INO in the kernel's include/linux/proc_ns.h).
_FIRST_PID_NAMESPACE = "pid:[4026531836]"


class KernelLog:
    """Gives the lines that matter and are newer than this object.

    Args:
        path: of the log; None: ``STABILITY_KMSG`` of ``environ``, else /dev/kmsg.
        environ: the environment.
        now: unix seconds. uptime: seconds since boot on the clock of the kernel's log.

    Attributes:
        blind: why the log can't be read; None while it is read.
        do: the remedy; empty while it is read.
        lost: records that the kernel overwrote before a read. dropped: lines that matter beyond MAX_LINES a poll.
    """

    def __init__(
        self,
        path: str | None = None,
        environ: Mapping[str, str] | None = None,
        *,
        now: Callable[[], float] = time.time,
        uptime: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path or (environ or {}).get("STABILITY_KMSG") or KMSG
        self.blind: str | None = None
        self.do = ""
        self.lost = 0
        self.dropped = 0
        self._now = now
        self._uptime = uptime
        self._fd: int | None = None
        self._retry_at = 0.0
        self._partial = b""
        self._reader = LineReader()
        self._seen = now()
        self._open()

    def read(self) -> list[KernelMessage]:
        """Return the lines since the last call, oldest first; empty where the log can't be read."""
        if self._fd is None and self._uptime() >= self._retry_at:
            self._open()
        if self._fd is None:
            return []
        before, self._seen = self._seen, self._now()
        behind = self._seen - self._uptime()  # unix time of boot, by the clocks of now
        lines: list[KernelMessage] = []
        different: set[tuple[object, ...]] = set()
        for record in self._records():
            line = self._reader.take(record)
            if line is None:
                continue
            what = (line.what, line.bus_id, line.xid, line.pid)
            if len(lines) >= MAX_LINES and (what in different or len(lines) >= 2 * MAX_LINES):
                self.dropped += 1
                continue
            different.add(what)
            # The log's clock drifts from the wall clock by seconds in months; the line was written between two polls.
            lines.append(line._replace(time=min(max(line.time + behind, before), self._seen)))
        return lines

    def close(self) -> None:
        """Close the log; a later ``read`` opens it again."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> None:
        self._retry_at = self._uptime() + RETRY_S
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self._note_gap(error)
            return
        status = os.fstat(fd)
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == _NULL_DEVICE:
            os.close(fd)
            self.blind = f"the kernel log {self.path} is /dev/null in this container"
            self.do = "give the container the host's /dev/kmsg and CAP_SYSLOG"
            return
        try:
            os.lseek(fd, 0, os.SEEK_END)  # records older than this agent are not reported
        except OSError:
            pass  # a FIFO: all its records are new
        self._fd = fd
        self._partial = b""
        self._seen = self._now()
        self.blind, self.do = None, ""

    def _records(self) -> list[str]:
        """Return the new records: each its first line and the lines that continue it."""
        assert self._fd is not None
        chunks, size = [self._partial], 0
        for _ in range(MAX_READS):
            if size >= MAX_BYTES:
                break
            try:
                chunk = os.read(self._fd, READ_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:  # overwritten: the next read gives the oldest that is still there
                self.lost += 1
                continue
            except OSError as error:
                self.close()
                self._retry_at = self._uptime() + RETRY_S
                self._note_gap(error)
                break
            if not chunk:
                break
            chunks.append(chunk)
            size += len(chunk)
        whole, end, rest = b"".join(chunks).rpartition(b"\n")
        self._partial = rest[-MAX_PARTIAL_BYTES:]
        records: list[str] = []
        for line in whole.decode("utf-8", "replace").split("\n") if end else ():
            if line.startswith(" ") and records:
                records[-1] += "\n" + line
            elif line:
                records.append(line)
        return records

    def _note_gap(self, error: OSError) -> None:
        self.blind = f"the kernel log {self.path} can't be read: {(error.strerror or str(error)).lower()}"
        if isinstance(error, PermissionError):
            self.do = "run the job with CAP_SYSLOG, or set kernel.dmesg_restrict=0 on the node"
        elif isinstance(error, FileNotFoundError):
            self.do = "give the container the host's /dev/kmsg"
        else:
            self.do = "check the permissions of the file"


def names_our_pids() -> bool:
    """Whether a process id in the kernel's log is the one that this process sees: not in most containers."""
    return pid_namespace() == _FIRST_PID_NAMESPACE
