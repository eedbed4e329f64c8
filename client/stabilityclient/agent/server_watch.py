"""Reports to an address of the job's own that the server is away for long: one message, and one when it is back.

Otherwise the loss of monitoring itself would stay unnoticed.

One agent of a run does it, the one on the node of rank 0. It waits, posts and retries in the agent's process, never in
that of the training.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stabilityclient.agent.sources import Sources
from stabilityclient.agent.statefile import StateFile
from stabilityclient.agent.upload.uplink import Uplink
from stabilityclient.sidecar import read_json

__all__ = ["AFTER_S", "ServerWatch"]

#: A server has to be away for so long, seconds, unless STABILITY_AGENT_ALERT_AFTER_S is set: a restart is
#: over by then.
AFTER_S = 120.0
#: Seconds between two looks.
LOOK_S = 1.0
#: Seconds that the address has to take a message.
POST_TIMEOUT_S = 10.0
#: Pauses after a message that was not taken, doubled from the first to the longest, seconds.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0

_URL, _AFTER = "STABILITY_AGENT_ALERT_URL", "STABILITY_AGENT_ALERT_AFTER_S"


class ServerWatch:
    """Posts ``{"text": ...}``, which Slack's incoming webhooks and others understand.

    Sent messages are on disk, so that an agent that is started again neither repeats it nor forgets to report that the
    server is back. A kill between message and disk can repeat one.

    Args:
        folder: of the run. environ: the agent's.
        server: address of the server. node: name of this one.
        sources: whether rank 0 runs here. uplink: whether the server is there.
        log: of the agent; the address never appears in it, it may hold a token.
        clock: unix seconds now.
    """

    def __init__(
        self,
        folder: Path,
        environ: Mapping[str, str],
        server: str,
        node: str,
        sources: Sources,
        uplink: Uplink,
        log: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._url = environ.get(_URL, "").strip()
        self._folder = folder
        parts = urlsplit(server)
        self._where = parts.netloc.rpartition("@")[2] + parts.path.rstrip("/")
        self._node = node
        self._sources = sources
        self._uplink = uplink
        self._log = log
        self._clock = clock
        self._file = StateFile(folder / "agent" / "server_watch.json")
        stored = self._file.read()
        #: Since when the server is away, unix seconds, None while it is there; and whether that was reported.
        self._since = _time(stored.get("since"))
        self._said = stored.get("said") is True and self._since is not None
        if self._url and urlsplit(self._url).scheme not in ("http", "https"):
            log(f"{_URL} is not an address, expected https://host/path: nobody hears when the server is away")
            self._url = ""
        self._after_s = _seconds(environ.get(_AFTER) or "") or AFTER_S
        if environ.get(_AFTER) and not _seconds(environ[_AFTER]):
            log(f"{_AFTER} is {environ[_AFTER]!r}, expected seconds > 0: {AFTER_S:.0f} is used")

    async def run(self) -> None:
        """Watch until cancelled; return immediately where no address is set."""
        pause_s = FIRST_PAUSE_S
        while self._url:
            text = self._news()
            if text is None or await self._posted(text):
                pause_s = FIRST_PAUSE_S
                await asyncio.sleep(LOOK_S)
            else:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _news(self) -> str | None:
        """Return the message due now; it is noted as sent once it is accepted (``_posted``)."""
        now = self._clock()
        if self._uplink.connected:
            if self._since is None:
                return None
            if self._said:
                return self._back(now - self._since)
            self._note(None, said=False)
        elif self._since is None or self._since > now:
            self._note(now, said=False)
        elif not self._said and now - self._since >= self._after_s and self._leads():
            return self._away(now - self._since)
        return None

    def _leads(self) -> bool:
        return any(source.info.rank == 0 and not source.over for source in self._sources.ranks())

    def _away(self, seconds: float) -> str:
        how = "refuses the agent" if self._uplink.refused else "can't be reached"
        return (
            f":warning: Stabilityboard at {self._where} {how} from {self._node} for {_span(seconds)} now. Nobody "
            f"watches run {self._run()}: no alert comes, no command arrives. The training itself goes on; what it logs "
            f"is kept on the nodes."
        )

    def _back(self, seconds: float) -> str:
        return (
            f":white_check_mark: Stabilityboard at {self._where} is back after {_span(seconds)}: run {self._run()} is "
            f"watched again, what it logged meanwhile is being sent."
        )

    def _run(self) -> str:
        known = read_json(str(self._folder / "run.json"))
        name, run_id = (str(known.get(key) or "") for key in ("name", "run_id"))
        text = f"{name} ({run_id})" if name and name != run_id else run_id or self._folder.name
        # Slack would read these as a mention or a link.
        return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

    async def _posted(self, text: str) -> bool:
        """Post a message; return whether it was taken."""
        away = not self._uplink.connected
        trouble = await asyncio.to_thread(_post, self._url, {"text": text})
        if trouble:
            self._log(f"the address of {_URL} did not take a message ({trouble}); it is tried again")
            return False
        self._note(self._since if away else None, said=away)
        return True

    def _note(self, since: float | None, *, said: bool) -> None:
        self._since, self._said = since, said
        self._file.write({"since": since, "said": said})


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """An address that holds a token is not followed elsewhere."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _post(url: str, message: dict[str, str]) -> str:
    """Post JSON; return the fault, without the address, or "" when it was accepted."""
    try:
        request = urllib.request.Request(
            url, json.dumps(message).encode(), {"Content-Type": "application/json", "User-Agent": "stabilityclient"}
        )
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=POST_TIMEOUT_S):
            return ""
    except urllib.error.HTTPError as error:
        error.close()
        return f"it answered {error.code}"
    except (OSError, HTTPException, ValueError) as error:
        return type(error).__name__  # its text may name the address


def _time(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _seconds(text: str) -> float | None:
    try:
        return float(text) if 0 < float(text) < math.inf else None
    except ValueError:
        return None


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"
