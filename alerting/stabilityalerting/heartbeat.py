"""A dead man's switch: says "all is well" to a watcher outside, who raises the alarm when that stops.

A server without power, disk or network can tell nobody. So something elsewhere has to notice its silence:
healthchecks.io, Dead Man's Snitch, an uptime monitor with a push address, or a job of one's own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import httpx

from .lease import pause
from .sink import HTTP_TIMEOUT_S, redact, secrets_hidden

__all__ = ["EVERY_S", "Heartbeat"]

#: Seconds between two beats: let the watcher wait for some of them before it wakes somebody.
EVERY_S = 30.0

_log = logging.getLogger(__name__)


class Heartbeat:
    """Asks for one address every EVERY_S while all is well, and says nothing else.

    Args:
        url: of the watcher; may itself hold a token, so it is never shown.
        well: whether live runs are judged and what comes is stored.

    Attributes:
        sent: beats that were taken. missed: those that were not, or were not sent because something is wrong.
    """

    def __init__(self, url: str, well: Callable[[], bool], every_s: float = EVERY_S) -> None:
        self.sent = self.missed = 0
        self._url = url
        self._well = well
        self._every_s = every_s
        self._reached = True

    async def run(self, stop: asyncio.Event) -> None:
        """Beat until ``stop`` is set."""
        with secrets_hidden([self._url]):
            async with httpx.AsyncClient(timeout=HTTP_TIMEOUT_S, follow_redirects=False) as client:
                while not stop.is_set():
                    taken = self._well() and await self._beat(client)
                    self.sent += taken
                    self.missed += not taken
                    await pause(stop, self._every_s)

    async def _beat(self, client: httpx.AsyncClient) -> bool:
        try:
            answer = await client.get(self._url)
            trouble = "" if answer.is_success else f"it answered {answer.status_code}"
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            trouble = redact(f"{type(error).__name__}: {error}", [self._url])
        if trouble and self._reached:
            _log.warning("the watcher of STABILITY_HEARTBEAT_URL was not reached (%s); it is tried again", trouble)
        self._reached = not trouble
        return self._reached
