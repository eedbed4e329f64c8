"""Commands that the agent wrote for the ranks; a counter in mapped memory shows a new one."""

from __future__ import annotations

import mmap
import os
import struct

from stabilityclient.rollback.decision import ENDED_STATES
from stabilityclient.sidecar import read_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["MAILBOX_BYTES", "CommandFiles", "add_to_mailbox", "make_mailbox", "map_counter"]

MAILBOX_BYTES = 8
#: Commands whose newest answered attempt is remembered; the server keeps 2,000 a run and one rollback at a time.
MAX_REMEMBERED = 4000

_U64 = struct.Struct("<Q")


def make_mailbox(path: str) -> None:
    """Make the counter file if it is not there; all ranks and the agent may try in parallel."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(fd).st_size < MAILBOX_BYTES:
            os.posix_fallocate(fd, 0, MAILBOX_BYTES)
    finally:
        os.close(fd)


def add_to_mailbox(path: str) -> None:
    """Add 1 to the counter: a command file changed. One writer: the agent of the node."""
    make_mailbox(path)
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), MAILBOX_BYTES) as mail:
        _U64.pack_into(mail, 0, _U64.unpack_from(mail)[0] + 1)


def map_counter(path: str) -> mmap.mmap:
    """Return the counter file mapped for reading; it is made if it is not there.

    Raises:
        OSError: it can't be made or mapped.
    """
    make_mailbox(path)
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), MAILBOX_BYTES, prot=mmap.PROT_READ)


class CommandFiles:
    """The commands on this node, for one reader of one rank: each attempt of a command is handed out once.

    Args:
        folder: of the run on this node.

    Raises:
        OSError: the mailbox can't be made or mapped.
    """

    def __init__(self, folder: str) -> None:
        self._folder = os.path.join(folder, "commands")
        self._mail = map_counter(os.path.join(folder, "mailbox"))
        self._seen = b""  # unlike any counter: the first look reads the commands already there
        self._files: dict[str, int] = {}
        self._taken: dict[str, int] = {}

    def new(self) -> list[dict[str, Any]]:
        """Return the open commands whose newest attempt was not handed out yet, oldest first; nearly always none."""
        counter = self._mail[:MAILBOX_BYTES]
        if counter == self._seen:
            return []
        self._seen = counter
        return self._changed()

    def close(self) -> None:
        """Unmap the mailbox."""
        self._mail.close()

    def _changed(self) -> list[dict[str, Any]]:
        found = []
        try:
            entries = [entry for entry in os.scandir(self._folder) if entry.name.endswith(".json")]
        except FileNotFoundError:
            return []
        for entry in entries:
            changed = entry.stat().st_mtime_ns
            if self._files.get(entry.name) == changed:
                continue
            self._files[entry.name] = changed
            command = read_json(entry.path)
            # The agent writes whole files. A file without a command is foreign, and must not hide the next one.
            if not isinstance(command.get("command_id"), str) or not isinstance(command.get("attempt", 1), int):
                continue
            command_id, attempt = command["command_id"], int(command.get("attempt") or 1)
            if command.get("state") in ENDED_STATES or self._taken.get(command_id, 0) >= attempt:
                continue
            if len(self._taken) >= MAX_REMEMBERED:
                del self._taken[next(iter(self._taken))]
            self._taken[command_id] = attempt
            found.append(command)
        names = {entry.name for entry in entries}
        self._files = {name: changed for name, changed in self._files.items() if name in names}
        return sorted(found, key=lambda command: float(command.get("issued") or 0.0))
