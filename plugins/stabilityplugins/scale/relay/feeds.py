"""The live feeds of runs that other processes own: one connection to the owner for all browsers here that see the run.

The owner's messages are handed on unchanged, so that a browser sees no difference; the latest are kept for a browser
that reconnects. When the owner goes the next one is found, and browsers are asked to fetch again: they stay connected.
Where no worker is alive the store is read here (runs/reading), and the browsers are notified.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from urllib.parse import urlsplit

import orjson
from msgspec import to_builtins
from redis.exceptions import RedisError
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from stabilitybackend.access.auth import Principal
from stabilitybackend.base.errors import StabilityBoardError, Unavailable
from stabilitybackend.base.quiet_log import QuietLog
from stabilitybackend.base.streams import stream_order
from stabilitybackend.base.tasks import end
from stabilitybackend.runs.feed.pubsub import Channel, Subscriber
from stabilitybackend.runs.manager import RunManager
from stabilitybackend.runs.worker import RunWorker
from stabilitybackend.schema.runs import StoringProblem
from stabilityplugins.scale.relay.owners import Owners, Target
from stabilityplugins.scale.relay.signer import HEADER, RelaySigner

__all__ = ["Feeds", "RunFeed"]

#: Who asks the owner: it sees every run; whether a browser may is asked here.
_OURSELVES = Principal("pages", frozenset({"read"}), proxied=True)
#: A feed without a browser is ended after so long, seconds: a reconnecting one finds the messages that it missed.
IDLE_S = 30.0
#: How often it is looked who owns the runs, seconds.
LOOK_S = 1.0
#: Pause before an owner is asked again, seconds.
PAUSE_S = 0.25
CONNECT_TIMEOUT_S = 3.0
#: An owner without news sends a ping every 5 s; a silent one is given up after so long, seconds.
SILENT_S = 15.0
#: Longest wait of a browser for the feed of its run, seconds: longer than a takeover takes.
READY_TIMEOUT_S = 10.0
#: Longest wait until a browser's cursor is reached here too, seconds.
CATCH_UP_S = 2.0
#: Longest message, bytes: one frame's points as JSON.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
#: Events between the owner and this process alone.
_OWN = frozenset({"hello", "ping", "storing"})
_PATH = "/api/v1/live"

_log = logging.getLogger(__name__)


class RunFeed:
    """One run's feed, for all subscribers: ``channel`` and ``cursor`` as of a worker.

    Args:
        cursor: of the first browser: the owner sends the events after it.

    Attributes:
        target: the process asked now, None while the store is read here or no process is found.
        storing_problem: why nothing is judged; None while an owner is there.
    """

    def __init__(
        self, run_id: str, manager: RunManager, owners: Owners, signer: RelaySigner, cursor: str | None = None
    ) -> None:
        self.run_id = run_id
        self.channel = Channel()
        self.cursor = "0-0"
        self._wish = cursor
        self.target: Target | None = None
        self.storing_problem: StoringProblem | None = None
        self.used = time.monotonic()
        self._manager, self._owners, self._signer = manager, owners, signer
        self._began = False
        self._moved = asyncio.Event()
        self._ready = asyncio.Event()
        self._grown = asyncio.Event()
        self._failure: StabilityBoardError | None = None
        self._quiet = QuietLog(_log)
        self._task = asyncio.create_task(self._follow(), name=f"feed-{run_id}")

    @property
    def is_over(self) -> bool:
        """Whether it ended: there is no such run any more."""
        return self._task.done()

    async def ready(self, cursor: str | None) -> None:
        """Return when it is under way, and has reached a browser's cursor.

        Raises:
            StabilityBoardError: the run is not there, or no process answers.
        """
        self.used = time.monotonic()
        try:
            await asyncio.wait_for(self._ready.wait(), READY_TIMEOUT_S)
        except TimeoutError:
            raise Unavailable(
                f"the worker of run {self.run_id} does not answer", hint="it is tried again by itself", code="loading"
            ) from None
        if self._failure is not None:
            raise self._failure
        try:
            async with asyncio.timeout(CATCH_UP_S):
                while cursor is not None and stream_order(cursor) > stream_order(self.cursor):
                    self._grown.clear()
                    await self._grown.wait()
        except TimeoutError:
            pass  # the browser has to fetch again

    def moved(self) -> None:
        """Look for the owner again."""
        self._moved.set()

    async def stop(self) -> None:
        """End it."""
        await end(self._task)

    async def _follow(self) -> None:
        while True:
            self._moved.clear()
            try:
                self.target = await self._owners.find(self.run_id)
                await (self._read() if self.target is None else self._listen(self.target))
            except Unavailable as error:
                self._quiet.log(logging.INFO, f"run {self.run_id}: its feed is looked for: {error.message}")
            except StabilityBoardError as error:  # there is no such run
                self._fail(error)
                return
            except (WebSocketException, OSError, TimeoutError, RedisError) as error:
                self._quiet.log(logging.INFO, f"run {self.run_id}: its feed is looked for: {error}")
            except Exception:  # a bug must not leave browsers with a stalled feed
                _log.exception("run %s: its feed broke off and is begun again", self.run_id)
            self._owners.forget(self.run_id)
            await asyncio.sleep(PAUSE_S)

    def _fail(self, error: StabilityBoardError) -> None:
        self._failure = error
        self._ready.set()
        self.channel.publish({"type": "error", **error.as_json()})

    # --- an owner ------------------------------------------------------------------------------------------------

    async def _listen(self, target: Target) -> None:
        """Hand on an owner's messages, until it goes or another one is to be asked."""
        parts = urlsplit(target.address)
        url = f"{'wss' if parts.scheme == 'https' else 'ws'}://{parts.netloc}{_PATH}"
        signature = await self._signer.sign(target.member_id, "GET", _PATH.encode(), person=_OURSELVES)
        async with connect(
            url, additional_headers={HEADER.decode(): signature}, compression=None, proxy=None,
            max_size=MAX_MESSAGE_BYTES, open_timeout=CONNECT_TIMEOUT_S, close_timeout=0.5, ping_interval=None,
        ) as socket:  # fmt: skip
            wish = {"type": "subscribe", "run_id": self.run_id, "cursor": self._wish}
            await socket.send(orjson.dumps(wish).decode())
            hearing = asyncio.create_task(self._hear(socket))
            moved = asyncio.create_task(self._moved.wait())
            try:
                await asyncio.wait({hearing, moved}, return_when=asyncio.FIRST_COMPLETED)
                if hearing.done():
                    hearing.result()
            finally:
                await end(hearing, moved)

    async def _hear(self, socket: ClientConnection) -> None:
        while True:
            data = await asyncio.wait_for(socket.recv(decode=False), SILENT_S)
            message = orjson.loads(data)
            kind = message["type"]
            cursor = message.get("cursor")
            if kind == "hello":
                wish, self._wish = self._wish, None
                self._begin(cursor if wish is None else min(wish, cursor, key=stream_order), None)
            elif kind == "error":
                self._refused(message["error"])
            elif kind == "reset":
                if cursor is None:
                    raise Unavailable(message["reason"])
                self.channel.begin(cursor)
                self._pass_on(bytes(data), cursor, kept=False)
            elif kind not in _OWN:
                self._pass_on(bytes(data), self.cursor if cursor is None else cursor)

    def _refused(self, error: dict[str, str]) -> None:
        known = error["message"], error["hint"], error["code"]
        if error["code"] == "not_found":
            raise StabilityBoardError(known[0], hint=known[1], code=known[2], status=404)
        raise Unavailable(known[0], hint=known[1], code=known[2])

    def _begin(self, cursor: str, problem: StoringProblem | None) -> None:
        """Continue from ``cursor``: a new sender from now on, which may lack the messages that were on their way."""
        self.channel.begin(cursor)
        self.cursor = cursor
        if self._began:
            reason = "another process follows the run now; fetch again"
            self.channel.publish({"type": "reset", "reason": reason, "cursor": cursor})
        if problem != self.storing_problem:
            self.storing_problem = problem
            shown = self._manager.storing or problem
            self.channel.publish({"type": "storing", "storing": None if shown is None else to_builtins(shown)})
        self._began = True
        self._ready.set()
        self._grown.set()

    def _pass_on(self, data: bytes, cursor: str, *, kept: bool = True) -> None:
        self.cursor = max(self.cursor, cursor, key=stream_order)
        self._grown.set()
        self.channel.pass_on(data, self.cursor if kept else "")

    # --- no owner ------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Hand on the stored changes, until a worker is there."""
        reader = await self._manager.read(self.run_id)
        subscriber = Subscriber()
        self._begin(reader.cursor, reader.storing_problem)
        reader.channel.join(subscriber)
        passing = asyncio.create_task(self._pass_read(reader, subscriber))
        moved = asyncio.create_task(self._moved.wait())
        try:
            await asyncio.wait({passing, moved}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            reader.channel.leave(subscriber)
            await end(passing, moved)

    async def _pass_read(self, reader: RunWorker, subscriber: Subscriber) -> None:
        while True:
            try:
                data = await asyncio.wait_for(subscriber.get(), LOOK_S)
            except TimeoutError:
                if reader.is_over:
                    return
            else:
                self._pass_on(data, reader.cursor)


class Feeds:
    """The feeds of this process; ``follow`` them."""

    def __init__(self, manager: RunManager, owners: Owners, signer: RelaySigner) -> None:
        self._manager, self._owners, self._signer = manager, owners, signer
        self._feeds: dict[str, RunFeed] = {}
        manager.include_channels(self.channels)

    def channels(self) -> Iterable[Channel]:
        """Return the browsers' channels."""
        return [feed.channel for feed in self._feeds.values()]

    async def open(self, run_id: str, cursor: str | None) -> RunFeed:
        """Return the feed of a run. One of this process' own is asked for like any other: it may go elsewhere.

        Args:
            cursor: of the browser.

        Raises:
            StabilityBoardError: the run is not there, or no process answers.
        """
        feed = self._feeds.get(run_id)
        if feed is None or feed.is_over:
            feed = self._feeds[run_id] = RunFeed(run_id, self._manager, self._owners, self._signer, cursor)
        await feed.ready(cursor)
        return feed

    async def follow(self) -> None:
        """Look up the owners of the runs periodically, and end feeds without listeners."""
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                await self._end_idle()
                feeds = list(self._feeds.values())
                try:
                    found = await self._owners.find_all([feed.run_id for feed in feeds])
                except Unavailable:
                    continue
                for feed, target in zip(feeds, found, strict=True):
                    if (target and target.member_id) != (feed.target and feed.target.member_id):
                        feed.moved()
        finally:
            for feed in self._feeds.values():
                await feed.stop()

    async def _end_idle(self) -> None:
        now = time.monotonic()
        for run_id, feed in list(self._feeds.items()):
            if len(feed.channel):
                feed.used = now
            elif now - feed.used > IDLE_S or feed.is_over:
                del self._feeds[run_id]
                await feed.stop()
