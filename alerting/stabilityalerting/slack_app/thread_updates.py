"""Keeps the message of each thread as the incident is, beside the messages that wake people."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from redis.exceptions import RedisError

from stabilityalerting.actions import Facts
from stabilityalerting.alert import Alert
from stabilityalerting.errors import SendError
from stabilityalerting.lease import pause

from .messages import Shown, message
from .parts import Parts, soonest
from .texts import mrkdwn
from .threads import Thread
from .web_api import GONE, NO_CHART

#: Shortest time between two updates, seconds: Slack takes some 50 a minute.
BETWEEN_S = 1.2
#: Shortest time between two updates of one thread, seconds: an incident can change with each step.
SAME_THREAD_S = 5.0
#: Incidents that wait for an update; of more, the oldest is left as it is.
MAX_WAITING = 2_000

__all__ = ["ThreadUpdates"]

_Work = Callable[[tuple[str, str], Alert], Awaitable[None]]


class ThreadUpdates:
    """Updates wait here and the newest one of an incident counts: nothing is urgent in them."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._waiting: dict[tuple[str, str], Alert] = {}
        self._pictures: dict[tuple[str, str], Alert] = {}
        self._updated: dict[tuple[str, str], float] = {}
        self._wake = asyncio.Event()

    def shown(self, alert: Alert, facts: Facts) -> Shown:
        """Return what the message of a thread is made from."""
        parts = self._parts
        mute = parts.actions is not None and parts.actions.offers_mute
        url = parts.url(alert.run_id, alert.incident_id)
        return Shown(alert, facts, url, parts.chart, parts.actions is not None, mute)

    def note(self, stream: str, alert: Alert) -> None:
        """The incident changed."""
        key = (stream, alert.incident_id)
        self._waiting.pop(key, None)
        if len(self._waiting) >= MAX_WAITING:
            del self._waiting[next(iter(self._waiting))]
            self._parts.counts["updates_dropped"] += 1
        self._waiting[key] = alert
        self._wake.set()

    def picture(self, stream: str, alert: Alert) -> None:
        """The thread is new: it gets a picture of the curve, where the chart block does not show it."""
        if self._parts.pictures and len(self._pictures) < MAX_WAITING:
            self._pictures[(stream, alert.incident_id)] = alert
            self._wake.set()

    async def run(self, over: asyncio.Event) -> None:
        """Work until ``over`` is set."""
        while not over.is_set():
            self._wake.clear()
            for key in list(self._pictures):
                await self._guarded(self._draw, key, self._pictures.pop(key), over)
            for key in list(self._waiting):
                if over.is_set():
                    return
                if time.monotonic() - self._updated.get(key, float("-inf")) < SAME_THREAD_S:
                    continue
                await self._guarded(self._update, key, self._waiting.pop(key), over)
                await pause(over, BETWEEN_S)
            if self._waiting:
                await pause(over, 0.5)
            else:
                await soonest(self._wake, over, 60.0)

    async def _guarded(self, work: _Work, key: tuple[str, str], alert: Alert, over: asyncio.Event) -> None:
        try:
            await work(key, alert)
        except SendError as error:
            self._parts.trouble.note("a thread is not up to date", error)
            if error.recoverable:
                self._waiting.setdefault(key, alert)
                await pause(over, max(1.0, error.retry_after_s or 0.0))
        except (RedisError, OSError) as error:
            self._parts.trouble.note("a thread is not up to date", error)
            self._waiting.setdefault(key, alert)
            await pause(over, 1.0)
        except Exception as error:  # one thread must not stop the others
            self._parts.trouble.note("a thread is not up to date", error)

    async def _update(self, key: tuple[str, str], alert: Alert) -> None:
        stream, incident_id = key
        thread = await self._parts.threads.read(stream, incident_id)
        if thread is None:
            return
        facts = await self._parts.facts(alert.run_id, incident_id)
        self._updated[key] = time.monotonic()
        while len(self._updated) > MAX_WAITING:
            del self._updated[next(iter(self._updated))]
        shown = self.shown(alert, facts)
        try:
            await self._write(thread, shown)
        except SendError as error:
            if error.code in GONE:
                await self._parts.threads.forget(stream, incident_id)
                return
            if error.code not in NO_CHART or not message(shown).has_chart():
                raise
            self._parts.chart = False
            await self._write(thread, replace(shown, chart=False))
        self._parts.counts["updates"] += 1
        if alert.acknowledged_by and alert.acknowledged_by != thread.acknowledged_by:
            who = mrkdwn(alert.acknowledged_by, 200)
            await self._parts.api.call(
                "chat.postMessage", channel=thread.channel, thread_ts=thread.ts, text=f"{who} takes care of it"
            )
            await self._parts.threads.write(stream, incident_id, replace(thread, acknowledged_by=alert.acknowledged_by))

    async def _write(self, thread: Thread, shown: Shown) -> None:
        said = message(shown)
        await self._parts.api.call(
            "chat.update", channel=thread.channel, ts=thread.ts, text=said.text, blocks=said.blocks
        )

    async def _draw(self, key: tuple[str, str], alert: Alert) -> None:
        from .chart_block import chart_of
        from .picture import picture_of

        stream, incident_id = key
        thread = await self._parts.threads.read(stream, incident_id)
        if thread is None or thread.picture or not self._parts.pictures:
            return
        curve = (await self._parts.facts(alert.run_id, incident_id)).curve
        if curve is None or (self._parts.chart and chart_of(curve) is not None):
            return
        drawn = await asyncio.to_thread(picture_of, curve)
        title = f"{curve.metric} around step {curve.onset_step}"[:200]
        try:
            await self._parts.api.upload("curve.png", drawn.png, title, drawn.words, thread.channel, thread.ts)
        except SendError as error:
            if error.code in ("missing_scope", "not_allowed_token_type"):
                self._parts.pictures = False  # words have to do
                return
            raise
        self._parts.counts["pictures"] += 1
        newest = await self._parts.threads.read(stream, incident_id) or thread
        await self._parts.threads.write(stream, incident_id, replace(newest, picture=True))
