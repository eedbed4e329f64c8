"""A dead man's switch: says "all is well" to a watcher outside, who raises the alarm when that stops.

A server without power, disk or network can tell nobody. So something elsewhere has to notice its silence:
healthchecks.io, Dead Man's Snitch, an uptime monitor with a push address, or a job of one's own.
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

#: Beats that all have to be bad before a watcher is told so: what is over in between wakes nobody.
BAD_BEATS = 2

Style = Literal["plain", "healthchecks"]

_log = logging.getLogger(__name__)


class Heartbeat:
    """Asks for one address every EVERY_S while all is well.

    Args:
        url: of the watcher; may itself hold a token, so it is never shown.
        trouble: why live runs are not judged, what comes is not stored or alerts reach nobody, "" while all is well.
        style: ``plain``: says nothing else. ``healthchecks``: says ``/start`` at the start, and ``/fail`` with the
            reason from the second bad beat on. Not before the first good one: a server that starts is not ready yet,
            and a watcher that heard ``/start`` raises the alarm if no good one follows.
        every_s: seconds between two beats.
        outcomes: where it is noted what was accepted and refused; None: nowhere.

    Attributes:
        sent: beats that were taken. missed: those that were not, or were not sent because something is wrong.
    """

    def __init__(
        self,
        url: str,
        trouble: Callable[[], str],
        every_s: float = EVERY_S,
        *,
        style: Style = "plain",
        outcomes: Outcomes | None = None,
    ) -> None:
        self.sent = self.missed = 0
        self._url = url
        self._trouble = trouble
        self._every_s = every_s
        self._tells_more = style == "healthchecks"
        self._outcomes = outcomes
        self._reached = True

    async def run(self, stop: asyncio.Event) -> None:
        """Beat until ``stop`` is set."""
        was_well, bad = False, 0
        with secrets_hidden([self._url, self._at("/start"), self._at("/fail")]):
            async with httpx.AsyncClient(timeout=HTTP_TIMEOUT_S, follow_redirects=False) as client:
                if self._tells_more:
                    await self._ask(client, "/start")
                while not stop.is_set():
                    trouble = self._trouble()
                    bad = bad + 1 if trouble else 0
                    was_well = was_well or not trouble
                    taken = False
                    if not trouble:
                        taken = await self._ask(client)
                    elif self._tells_more and was_well and bad >= BAD_BEATS:
                        await self._ask(client, "/fail", trouble)
                    self.sent += taken
                    self.missed += not taken
                    await pause(stop, self._every_s)

    async def _ask(self, client: httpx.AsyncClient, what: str = "", why: str = "") -> bool:
        status = None
        try:
            answer = await (client.post(self._at(what), content=why) if why else client.get(self._at(what)))
            status = answer.status_code
            trouble = "" if answer.is_success else f"it answered {status}"
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            trouble = redact(f"{type(error).__name__}: {error}", [self._at(what), self._url])
        if trouble and self._reached:
            _log.warning("the watcher of STABILITY_HEARTBEAT_URL was not reached (%s); it is tried again", trouble)
        self._reached = not trouble
        if self._outcomes is not None and trouble:
            await self._outcomes.refused(HEARTBEAT, SendError(trouble, recoverable=True, status=status))
        elif self._outcomes is not None and not what:
            await self._outcomes.accepted(HEARTBEAT)
        return self._reached

    def _at(self, what: str) -> str:
        """Return the address for a word of the watcher's; a query stays behind it."""
        parts = urlsplit(self._url)
        return urlunsplit(parts._replace(path=parts.path.rstrip("/") + what)) if what else self._url


def heartbeat_from_env(env: Mapping[str, str], outcomes: Outcomes, trouble: Callable[[], str]) -> Heartbeat | None:
    """Return the heartbeat that ``STABILITY_HEARTBEAT_URL``, ``_STYLE`` and ``_S`` set up, None without an address.

    Raises:
        AlertingSettingsError: a value has the wrong form.
    """
    variables = Variables(env)
    url = variables.url("STABILITY_HEARTBEAT_URL")
    style = variables.choice("STABILITY_HEARTBEAT_STYLE", ("plain", "healthchecks"))
    more: Style = "healthchecks" if style == "healthchecks" else "plain"
    every_s = variables.every_s()
    return None if url is None else Heartbeat(url, trouble, every_s, style=more, outcomes=outcomes)
