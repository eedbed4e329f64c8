"""What the parts of the Slack app share."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from stabilityalerting.actions import ActionRefused, Actions, Facts
from stabilityalerting.alert import incident_url

from .people import People
from .threads import ThreadLog
from .web_api import SlackApi

#: Longest wait for what a message says beside the incident, seconds: it goes out without that.
FACTS_TIMEOUT_S = 2.0
#: The same trouble is logged at most once in so many seconds.
LOG_EVERY_S = 60.0

__all__ = ["Parts", "Trouble", "soonest"]

_log = logging.getLogger(__name__)


@dataclass
class Trouble:
    """Logs trouble that may come a thousand times, once a minute."""

    _at: dict[str, float] = field(default_factory=dict)

    def note(self, what: str, error: Exception) -> None:
        """Log it, or not."""
        now = time.monotonic()
        if now - self._at.get(what, float("-inf")) >= LOG_EVERY_S:
            self._at[what] = now
            _log.warning("slack_app: %s: %s", what, error)


@dataclass
class Parts:
    """The app in its workspace, and the server behind it.

    Args:
        channel: id of the channel. people: None where everybody who is not named may only look.
        counts: of what was done beside messages, by name.
        pictures: curves that the chart block can't show are uploaded. chart: the chart block is used; turned off when
            the workspace refuses it.
    """

    api: SlackApi
    channel: str
    people: People
    threads: ThreadLog
    base_url: str
    clock: Callable[[], float]
    may_send: Callable[[], bool]
    actions: Actions | None
    secret: str = field(repr=False)
    chart: bool = True
    pictures: bool = True
    counts: Counter[str] = field(default_factory=Counter)
    trouble: Trouble = field(default_factory=Trouble)

    def url(self, run_id: str, incident_id: str) -> str:
        """Return the address of an incident's page."""
        return incident_url(self.base_url, run_id, incident_id)

    async def facts(self, run_id: str, incident_id: str) -> Facts:
        """Return what a message says beside the incident; nothing where the server can't say it at once."""
        if self.actions is None:
            return Facts()
        try:
            return await asyncio.wait_for(self.actions.facts(run_id, incident_id), FACTS_TIMEOUT_S)
        except (ActionRefused, TimeoutError) as error:
            self.trouble.note("a message goes out without its curve", error)
        except Exception as error:  # a fault of ours must not keep the alert back
            self.trouble.note("a message goes out without its curve", error)
        return Facts()


async def soonest(first: asyncio.Event, second: asyncio.Event, most_s: float) -> None:
    """Wait until one of them is set, or for ``most_s`` seconds."""
    tasks = [asyncio.create_task(event.wait()) for event in (first, second)]
    try:
        await asyncio.wait(tasks, timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
