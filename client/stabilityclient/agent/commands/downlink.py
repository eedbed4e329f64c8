"""Brings commands to the ranks of the node: a file for each, then 1 more in the mailbox."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stabilityclient.rollback.command_files import add_to_mailbox
from stabilityclient.rollback.decision import ENDED_STATES
from stabilityclient.sidecar import read_json
from stabilityclient.start import write_whole

__all__ = ["MAX_COMMAND_FILES", "MAX_OPEN", "Downlink"]

#: Command files kept; the oldest ended ones go first. The ranks list all of them when the mailbox changes.
MAX_COMMAND_FILES = 32
#: Commands that ranks may have open together: each is judged between two steps. A server has one rollback under way.
MAX_OPEN = 8
#: Longest command, bytes of JSON. A server that sends more is not believed.
MAX_COMMAND_BYTES = 64 * 1024

_COMMAND_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


class Downlink:
    """Writes commands where the ranks read them.

    Args:
        log: takes a text about a command that can't be delivered.
        reject: takes the data of a ``command`` event (docs/wire.md) about one that the ranks do not get.
    """

    def __init__(
        self,
        run_folder: Path,
        log: Callable[[str], None],
        now: Callable[[], float] = time.time,
        reject: Callable[[dict[str, Any]], None] = lambda data: None,
    ) -> None:
        self._folder = run_folder / "commands"
        self._mailbox = run_folder / "mailbox"
        self._log, self._reject = log, reject
        self._now = now
        #: Id -> when it expires by this node's clock, of those that the ranks have and that have not ended.
        self._open: dict[str, float] = {}
        for path in self._folder.glob("*.json"):
            self._note(path.stem, read_json(str(path)))
        #: Rejected ids: reported once each, so that a flood of the server does not fill the spool.
        self._rejected: dict[str, None] = {}

    def take(self, command: dict[str, Any], clock_offset_s: float) -> None:
        """Write one command. Never raises: a foreign or broken one is logged and left out.

        Args:
            command: as in docs/api.md.
            clock_offset_s: server's time minus the local one; the ranks judge the expiry by the server's clock.
        """
        try:
            self._take(command, clock_offset_s)
        except (OSError, ValueError, TypeError, KeyError) as error:
            self._log(f"a command can't be delivered: {type(error).__name__}: {error}"[:300])

    def _take(self, command: dict[str, Any], clock_offset_s: float) -> None:
        command_id = str(command["command_id"])
        if not _COMMAND_ID.fullmatch(command_id):  # it becomes a file name
            raise ValueError(f"command_id is {command_id!r:.60}, expected letters, digits, . _ -")
        path = self._folder / f"{command_id}.json"
        before = read_json(str(path))
        facts = {
            **command,
            # The first time that this node saw it: older than the rank's segment means stale.
            "received": before.get("received", self._now()),
            "clock_offset_s": clock_offset_s,
        }
        data = json.dumps(facts).encode()
        if len(data) > MAX_COMMAND_BYTES:
            raise ValueError(f"command {command_id} has {len(data)} bytes, expected at most {MAX_COMMAND_BYTES}")
        if self._is_one_too_many(command_id, facts):
            return
        if {**before, "clock_offset_s": 0.0} == {**facts, "clock_offset_s": 0.0}:
            return
        self._folder.mkdir(0o700, parents=True, exist_ok=True)
        write_whole(str(path), data)
        self._note(command_id, facts)
        add_to_mailbox(str(self._mailbox))
        self._tidy()

    def _note(self, command_id: str, facts: dict[str, Any]) -> None:
        if facts.get("state") in ENDED_STATES:
            self._open.pop(command_id, None)
            return
        expires = facts.get("expires")
        offset_s = float(facts.get("clock_offset_s") or 0.0)
        self._open[command_id] = float(expires) - offset_s if isinstance(expires, int | float) else math.inf

    def _is_one_too_many(self, command_id: str, facts: dict[str, Any]) -> bool:
        """Whether the ranks have enough to do already; reported to the server once."""
        if facts.get("state") in ENDED_STATES or command_id in self._open or len(self._open) < MAX_OPEN:
            return False
        now = self._now()
        self._open = {each: until for each, until in self._open.items() if until > now}
        if len(self._open) < MAX_OPEN:
            return False
        if command_id not in self._rejected and len(self._rejected) < MAX_COMMAND_FILES:
            self._rejected[command_id] = None
            why = f"{MAX_OPEN} commands are open on this node: order it again when one has ended"
            attempt = facts.get("attempt")
            self._reject({"command_id": command_id, "attempt": attempt, "state": "rejected", "detail": why})
        self._log(f"commands are rejected: {MAX_OPEN} are open already")
        return True

    def _tidy(self) -> None:
        files = sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        for path in files[: max(0, len(files) - MAX_COMMAND_FILES)]:
            if read_json(str(path)).get("state") in ENDED_STATES:
                path.unlink(missing_ok=True)
