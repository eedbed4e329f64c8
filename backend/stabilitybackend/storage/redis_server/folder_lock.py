"""One Stabilityboard per data folder: a lock that dies with its holder, so it can't go stale.

The lock is ``flock`` on one open file. The embedded server inherits that open file, so the lock is free only when the
server is gone too: two servers never write the same append-only file, not even for the moment that an orphan needs to
stop after its parent was killed.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import msgspec

from stabilitybackend.base.errors import FolderInUse

__all__ = ["FolderLock", "Holder", "read_holder"]

#: How long to wait for the server of a killed Stabilityboard to leave, seconds. It stops in about 0.1 s.
_LEAVING_TIMEOUT_S = 10.0
_POLL_S = 0.02
_MAX_NOTE_BYTES = 4096


class Holder(msgspec.Struct):
    """Who holds a lock: its process, and the address of its server once that is up."""

    pid: int = 0
    url: str | None = None


class FolderLock:
    """Holds ``path`` locked from ``acquire`` to ``release`` and keeps a note in it about who does.

    Args:
        path: the lock file; it stays when the lock is released (removing it would race with the next holder).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    @property
    def fd(self) -> int:
        """The open file that carries the lock, for a child to inherit; -1 while not held."""
        return self._fd

    def acquire(self) -> None:
        """Take the lock. Raises FolderInUse, which names the pid, where a living process holds it."""
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + _LEAVING_TIMEOUT_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = read_holder(self.path)
                pid = holder.pid
                if (pid and _is_alive(pid)) or time.monotonic() > deadline:
                    os.close(fd)
                    raise FolderInUse(
                        f"{self.path.parent} is used by another Stabilityboard (process {pid or 'unknown'})",
                        hint=f"stop it (kill {pid or 'its pid'}) or give another --data-dir",
                        pid=pid,
                        url=holder.url,
                    ) from None
                time.sleep(_POLL_S)
        self._fd = fd
        self.note(None)

    def note(self, url: str | None) -> None:
        """Replace the note in the lock file; ``read_holder`` gives it to others."""
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, msgspec.json.encode(Holder(os.getpid(), url)), 0)

    def release(self) -> None:
        """Let go. Children that inherited the file still hold it until they end."""
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> FolderLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def read_holder(path: Path) -> Holder:
    """Return the note of the holder of the lock at ``path``, an empty one without a holder."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_MAX_NOTE_BYTES), type=Holder)
    except (OSError, msgspec.MsgspecError):
        return Holder()  # no file, or the holder is just writing it


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
