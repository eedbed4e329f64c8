"""Tells the thread what became of an order, as it happens, also over a restart of the server."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from redis.exceptions import RedisError

from stabilityalerting.actions import CommandNews
from stabilityalerting.errors import SendError
from stabilityalerting.lease import pause

from .messages import order_text, outcome_text
from .parts import Parts, soonest
from .threads import OpenOrder

#: How often the state of an order is looked at, seconds.
LOOK_EVERY_S = 0.2
#: Shortest time between two updates of the message about one order, seconds.
BETWEEN_S = 1.0
#: How often Redis is asked for orders that another process of the server took, seconds.
LOAD_EVERY_S = 5.0
#: An order whose command nobody knows any more is let go after so long, seconds.
UNKNOWN_S = 60.0

__all__ = ["Orders"]


class Orders:
    """The orders that were given in Slack and have not ended."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._open: dict[str, OpenOrder] = {}
        self._told_at: dict[str, float] = {}
        self._unknown_since: dict[str, float] = {}
        self._wake = asyncio.Event()

    async def begin(self, channel: str, thread: str, who: str, to_step: int, reason: str, run_id: str,
                    news: CommandNews) -> None:  # fmt: skip
        """Write into the thread who ordered what, and follow the command."""
        order = OpenOrder(run_id, news.command_id, channel, thread, "", who, to_step, reason)
        await self._parts.threads.keep_order(order)
        self._open[news.command_id] = order
        self._wake.set()

    async def run(self, over: asyncio.Event) -> None:
        """Work until ``over`` is set."""
        self._open = {}
        loaded_at = float("-inf")
        while not over.is_set():
            try:
                if time.monotonic() - loaded_at >= LOAD_EVERY_S:
                    found = {order.command_id: order for order in await self._parts.threads.orders()}
                    self._open = found | self._open
                    loaded_at = time.monotonic()
                for order in list(self._open.values()):
                    await self._follow(order)
            except SendError as error:
                self._parts.trouble.note("the outcome of an order waits", error)
                await pause(over, max(1.0, error.retry_after_s or 0.0))
            except (RedisError, OSError) as error:
                self._parts.trouble.note("the outcome of an order waits", error)
                await pause(over, 1.0)
            except Exception as error:
                self._parts.trouble.note("the outcome of an order waits", error)
                await pause(over, 5.0)
            self._wake.clear()
            await soonest(self._wake, over, LOOK_EVERY_S if self._open else LOAD_EVERY_S)

    async def _follow(self, order: OpenOrder) -> None:
        parts = self._parts
        assert parts.actions is not None
        news = await parts.actions.command(order.run_id, order.command_id)
        if not order.reply:
            first = news or CommandNews(order.command_id, "pending", "")
            text = order_text(order.who, order.to_step, order.reason, first)
            answer = await parts.api.call(
                "chat.postMessage", channel=order.channel, thread_ts=order.thread, text=text, unfurl_links=False
            )
            order = await self._keep(replace(order, reply=str(answer.get("ts")), told=text))
            self._told_at[order.command_id] = time.monotonic()
        if news is None:
            since = self._unknown_since.setdefault(order.command_id, time.monotonic())
            if time.monotonic() - since > UNKNOWN_S:
                await self._end(order.command_id)
            return
        text = order_text(order.who, order.to_step, order.reason, news)
        due = time.monotonic() - self._told_at.get(order.command_id, float("-inf")) >= BETWEEN_S
        if text != order.told and (news.ended or due):
            await parts.api.call("chat.update", channel=order.channel, ts=order.reply, text=text)
            order = await self._keep(replace(order, told=text))
            self._told_at[order.command_id] = time.monotonic()
        if news.ended:
            await parts.api.call(
                "chat.postMessage", channel=order.channel, thread_ts=order.thread,
                text=outcome_text(order.to_step, news), reply_broadcast=news.failed,
            )  # fmt: skip
            await self._end(order.command_id)

    async def _keep(self, order: OpenOrder) -> OpenOrder:
        self._open[order.command_id] = order
        await self._parts.threads.keep_order(order)
        return order

    async def _end(self, command_id: str) -> None:
        await self._parts.threads.end_order(command_id)
        for known in (self._open, self._told_at, self._unknown_since):
            known.pop(command_id, None)
