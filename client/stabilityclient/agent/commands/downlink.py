"""Brings commands to the ranks of the node: a file for each, then 1 more in the mailbox."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stabilityclient.rollback.command_files import add_to_mailbox
from stabilityclient.rollback.decision import ENDED_STATES
from stabilityclient.sidecar import read_json
from stabilityclient.start import write_whole

__all__ = ["MAX_COMMAND_FILES", "Downlink"]

#: Command files kept; the oldest ended ones go first. The ranks list all of them when the mailbox changes.
MAX_COMMAND_FILES = 200
#: Longest command, bytes of JSON. A server that sends more is not believed.
MAX_COMMAND_BYTES = 64 * 1024

_COMMAND_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


class Downlink:
    """Writes commands where the ranks read them.

    Args:
        log: takes a text about a command that can't be delivered.
    """

    def __init__(self, run_folder: Path, log: Callable[[str], None], now: Callable[[], float] = time.time) -> None:
        self._folder = run_folder / "commands"
        self._mailbox = run_folder / "mailbox"
        self._log = log
        self._now = now

    def take(self, command: dict[str, Any], clock_offset_s: float) -> None:
        """Write one command. Never raises: a foreign or broken one is logged and left out.

        Args:
            command: as in docs/api.md.
            clock_offset_s: server's time minus ours; the ranks judge the expiry by the server's clock.
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
        if {**before, "clock_offset_s": 0.0} == {**facts, "clock_offset_s": 0.0}:
            return
        self._folder.mkdir(0o700, parents=True, exist_ok=True)
        write_whole(str(path), data)
        add_to_mailbox(str(self._mailbox))
        self._tidy()

    def _tidy(self) -> None:
        files = sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        for path in files[: max(0, len(files) - MAX_COMMAND_FILES)]:
            if read_json(str(path)).get("state") in ENDED_STATES:
                path.unlink(missing_ok=True)
