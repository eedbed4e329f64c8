"""A dead man's switch: regular requests to a watcher outside, which raises the alarm when they stop.

A server without power, disk or network can't send an alert. A service elsewhere has to notice its silence:
healthchecks.io, Dead Man's Snitch, an uptime monitor with a push address, or a cron job.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

import httpx

from .errors import SendError
from .lease import pause
from .outcomes import HEARTBEAT, Outcomes
from .sink import HTTP_TIMEOUT_S, redact, secrets_hidden
from .variables import EVERY_S, Variables

__all__ = ["Heartbeat", "Style", "heartbeat_from_env"]

#: Bad beats in a row before the watcher is notified: a short problem wakes no one.
BAD_BEATS = 2

Style = Literal["plain", "healthchecks"]

_log = logging.getLogger(__name__)


class Heartbeat:
    """Requests one address every EVERY_S seconds while the server is healthy.

    Args:
        url: of the watcher; it may hold a token, so it is not logged.
        problem: reason why runs are not judged, data not stored or alerts not delivered, "" without one.
        style: ``plain``: nothing else. ``healthchecks``: also ``/start`` at the start, and ``/fail`` with the reason
            from the second bad beat on. Not before the first good one: a starting server is not ready yet, and after
            ``/start`` the watcher raises the alarm if no good one follows.
        every_s: seconds between two beats.
        outcomes: log of accepted and refused beats; None: no log.

    Attributes:
        sent: accepted beats. missed: refused ones, and those left out because of a problem.
    """

    def __init__(
        self,
        url: str,
        problem: Callable[[], str],
        every_s: float = EVERY_S,
        *,
        style: Style = "plain",
        outcomes: Outcomes | None = None,
    ) -> None:
        self.sent = self.missed = 0
        self._url = url
        self._problem = problem
        self._every_s = every_s
        self._verbose = style == "healthchecks"
        self._outcomes = outcomes
        self._reached = True

    async def run(self, stop: asyncio.Event) -> None:
        """Beat until ``stop`` is set."""
        was_well = False
        bad = 0
        with secrets_hidden([self._url, self._at("/start"), self._at("/fail")]):
            async with httpx.AsyncClient(timeout=HTTP_TIMEOUT_S, follow_redirects=False) as client:
                if self._verbose:
                    await self._ask(client, "/start")
                while not stop.is_set():
                    problem = self._problem()
                    bad = bad + 1 if problem else 0
                    was_well = was_well or not problem
                    taken = False
                    if not problem:
                        taken = await self._ask(client)
                    elif self._verbose and was_well and bad >= BAD_BEATS:
                        await self._ask(client, "/fail", problem)
                    self.sent += taken
                    self.missed += not taken
                    await pause(stop, self._every_s)

    async def _ask(self, client: httpx.AsyncClient, signal: str = "", why: str = "") -> bool:
        status = None
        try:
            answer = await (client.post(self._at(signal), content=why) if why else client.get(self._at(signal)))
            status = answer.status_code
            refused = "" if answer.is_success else f"it answered {status}"
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            refused = redact(f"{type(error).__name__}: {error}", [self._at(signal), self._url])
        if refused and self._reached:
            _log.warning("the watcher of STABILITY_HEARTBEAT_URL was not reached (%s); it is tried again", refused)
        self._reached = not refused
        if self._outcomes is not None and refused:
            await self._outcomes.refused(HEARTBEAT, SendError(refused, recoverable=True, status=status))
        elif self._outcomes is not None and not signal:
            await self._outcomes.accepted(HEARTBEAT)
        return self._reached

    def _at(self, signal: str) -> str:
        """Return the address of a signal; a query stays behind it."""
        parts = urlsplit(self._url)
        return urlunsplit(parts._replace(path=parts.path.rstrip("/") + signal)) if signal else self._url


def heartbeat_from_env(env: Mapping[str, str], outcomes: Outcomes, problem: Callable[[], str]) -> Heartbeat | None:
    """Return the heartbeat that ``STABILITY_HEARTBEAT_URL``, ``_STYLE`` and ``_S`` set up, None without an address.

    Raises:
        AlertingSettingsError: a value has the wrong form.
    """
    variables = Variables(env)
    url = variables.url("STABILITY_HEARTBEAT_URL")
    style = variables.choice("STABILITY_HEARTBEAT_STYLE", ("plain", "healthchecks"))
    more: Style = "healthchecks" if style == "healthchecks" else "plain"
    every_s = variables.every_s()
    return None if url is None else Heartbeat(url, problem, every_s, style=more, outcomes=outcomes)
