"""Puts what people changed on the timeline of PagerDuty's service: what came before an incident. It pages nobody.

Each change is sent at most once: PagerDuty has no key by which it would know a second one. It is marked in Redis at the
last moment before its body leaves, so that a kill after that does not repeat it.

Source: https://developer.pagerduty.com/docs/send-change-events
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from redis.exceptions import RedisError

from stabilityalerting.errors import SendError
from stabilityalerting.lease import pause
from stabilityalerting.server import BoardChange, SinkContext
from stabilityalerting.sink import BeforeWrite, Outgoing

from .events import change_event
from .memory import Memory

#: The streams are read so often, seconds.
EVERY_S = 5.0
#: Pause after each change that was sent, seconds: PagerDuty takes some 120 events a minute by one key, alerts too.
BETWEEN_S = 2.0
#: A change is tried for so long, seconds, 1 s to 60 s apart; then it is left out and the next one gets its turn.
GIVE_UP_S, LONGEST_PAUSE_S = 600.0, 60.0

__all__ = ["ChangeEvents"]

_log = logging.getLogger(__name__)


class ChangeEvents:
    """Sends the changes of one receiver.

    Args:
        post: sends one request; raises SendError.
        url: of the alert events; changes have an address beside it.
    """

    def __init__(
        self,
        post: Callable[[Outgoing, BeforeWrite], Awaitable[None]],
        memory: Memory,
        context: SinkContext,
        url: str,
        routing_key: str,
    ) -> None:
        self._post = post
        self._memory = memory
        self._context = context
        self._url = f"{url.rstrip('/').removesuffix('/enqueue')}/change/enqueue"
        self._routing_key = routing_key

    async def run(self, stop: asyncio.Event) -> None:
        """Send what changes until ``stop`` is set."""
        if self._routing_key.startswith("R"):
            # https://developer.pagerduty.com/docs/events-api-v2-overview: such a key is one of a ruleset.
            _log.info("pagerduty: the key is one of a ruleset, which takes no change events; none is sent")
            return
        while not stop.is_set():
            if self._context.may_send():
                try:
                    await self._once(stop)
                except (RedisError, OSError) as error:
                    _log.debug("pagerduty: changes wait, Redis is away: %s", error)
                except Exception:
                    _log.exception("pagerduty: changes are not sent for a while")
                    await pause(stop, LONGEST_PAUSE_S)
            await pause(stop, EVERY_S)

    async def _once(self, stop: asyncio.Event) -> None:
        assert self._context.server.changes_since is not None
        changes, cursors = await self._context.server.changes_since(await self._memory.cursors())
        for change in changes:
            if not await self._memory.was_sent(change.key):
                await self._send(change, stop)
            if stop.is_set() or not self._context.may_send():
                return  # the next one reads them again, and knows which were sent
        await self._memory.read_to(cursors)

    async def _send(self, change: BoardChange, stop: asyncio.Event) -> None:
        outgoing = Outgoing(self._url, change_event(change, self._routing_key, self._context.server.base_url))
        began, pause_s = time.monotonic(), 1.0
        while self._context.may_send() and not stop.is_set():
            try:
                await self._post(outgoing, lambda: self._memory.sending(change.key))
            except SendError as error:
                if not error.recoverable or time.monotonic() - began >= GIVE_UP_S:
                    _log.warning("pagerduty: a change is left out: %s", error)
                    return
                await pause(stop, min(max(pause_s, error.retry_after_s or 0.0), LONGEST_PAUSE_S))
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                await pause(stop, BETWEEN_S)
                return
