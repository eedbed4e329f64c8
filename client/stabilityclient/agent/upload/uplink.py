"""Carries frames to the gateway: at most 16 in flight, each confirmed, again after every kind of trouble, without end.

The gateway's last numbers are the truth about the stored records. This side rewinds its readers to them; so nothing
is lost and nothing is stored twice, whichever side was killed when.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

import websockets
from websockets.asyncio.client import ClientConnection

from stabilityclient.agent.sources import Source, Sources
from stabilityclient.agent.upload.door import CONNECT_TIMEOUT_S, Door, Refused
from stabilityclient.agent.upload.framing import MAX_FRAME_RECORDS, READ_BYTES, next_frame
from stabilityclient.node_frames import together
from stabilityclient.rank_state.slot import MAX_TIME_S
from stabilityclient.secrets.messages import cleaned
from stabilityclient.wire import (
    FRAME_TARGET_BYTES,
    MAX_PARTS,
    Ack,
    Acks,
    BadMessage,
    CommandMessage,
    Durable,
    Error,
    Frame,
    Health,
    Hello,
    Nack,
    Output,
    Welcome,
    decode_message,
    encode_message,
)

__all__ = [
    "WINDOW",
    "Backoff",
    "Callbacks",
    "Outbox",
    "Uplink",
    "begin_source",
    "begin_sources",
    "clock_offset_s",
    "confirmed",
]


class Outbox:
    """Frames that one agent has sent and those that it gathers.

    Attributes:
        sent: messages with frames since the start.
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._send: Callable[[bytes], Awaitable[None]] | None = None
        self._gathered: list[tuple[Frame, bytes]] = []
        self.sent = 0

    def begin(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Use a new connection. Frames gathered for the one before are read from the spools again."""
        self._send = send
        self._gathered = []

    @property
    def in_flight(self) -> int:
        """How many messages have frames without an answer."""
        return len({number for source in self._sources for _, _, _, number in source.in_flight})

    async def put(self, source: Source, frame: Frame, data: bytes, *, full: bool) -> None:
        """Send a frame immediately where it is full or has to leave alone, else with those of the other sources.

        Args:
            data: the bytes of ``frame``.
        """
        if full:
            self._note(source, frame)
            await self._out(data)
            return
        size = sum(len(one) for _, one in self._gathered) + len(data)
        # A source that had waited for the connection has more by now: a message has one part of each.
        again = any(one.source == frame.source for one, _ in self._gathered)
        if self._gathered and (again or size > FRAME_TARGET_BYTES or len(self._gathered) == MAX_PARTS):
            await self.flush()
        self._note(source, frame, with_others=bool(self._gathered))
        self._gathered.append((frame, data))

    async def flush(self) -> None:
        """Send the gathered frames."""
        gathered, self._gathered = self._gathered, []
        if gathered:
            alone = len(gathered) == 1
            await self._out(gathered[0][1] if alone else encode_message(together([frame for frame, _ in gathered])))

    async def _out(self, data: bytes) -> None:
        assert self._send is not None, "begin comes first"
        await self._send(data)

    def _note(self, source: Source, frame: Frame, *, with_others: bool = False) -> None:
        self.sent += not with_others
        source.in_flight.append((frame.first_seq, frame.last_seq, time.monotonic(), self.sent))


def begin_sources(sources: Iterable[Source], hello: Hello, welcome: Welcome) -> list[str]:
    """Go to where sending begins with each source; return the implausible numbers of a Welcome, in words."""
    troubles = [begin_source(source, welcome.last_seq.get(source.info.source, 0)) for source in sources]
    named = {info.source for info in hello.sources}
    foreign = sorted(set(welcome.last_seq) - named) if named else []  # a Hello without names gets the whole run's
    if foreign:
        troubles.append(
            f"the server has numbers of {len(foreign)} sources that were not asked for, e.g. {foreign[0]!r:.140}: "
            "left aside"
        )
    return troubles


def begin_source(source: Source, last_seq: int) -> str:
    """Go to where sending begins on a new connection.

    Args:
        last_seq: the last number that the server claims to have; 0 for none.

    Returns:
        The implausible number, in words; empty when it is plausible.
    """
    before, known = source.acked, max(0, last_seq)
    source.held, source.doubted, source.claimed = "", False, 0
    source.rewind(known + 1)
    written = _written(source)
    trouble = ""
    if last_seq < 0:
        trouble = f"{last_seq}, expected 0 or more"
    elif last_seq > written:
        source.doubted = True
        known, trouble = min(before, written), f"{last_seq}, and {written} were written"
    elif last_seq > source.high and not source.served_before:
        source.claimed = last_seq
        known, trouble = source.high, f"{last_seq}, and {source.high} were sent"
    if trouble:
        source.rewind(known + 1)
        trouble = (
            f"{source.info.source}: the server claims to have all up to {trouble}: not believed, "
            f"sending begins at {known + 1}"
        )
    source.high = max(source.high, known)
    source.served_before = False  # from here on this agent alone sends its records
    return trouble


def confirmed(source: Source, last_seq: int) -> tuple[int | None, str]:
    """Return the number up to which an answer confirms, None where it is implausible; and the reason."""
    if last_seq <= source.high:
        return last_seq, ""
    if last_seq <= source.claimed:
        return source.high, ""  # it has more than we sent, and so all that we did
    trouble = f"the server confirms {last_seq}, and {source.high} were sent"
    if source.doubted:
        source.rewind(source.acked + 1)
        source.held = trouble = (
            f"{trouble}: nothing of it is sent before the next connection, and what it holds here is kept"
        )
    return None, f"{source.info.source}: {trouble}"


def clock_offset_s(server_time: float, now: float) -> tuple[float, str]:
    """Return the server's time minus the local one, seconds, and why it is implausible: then 0 is taken."""
    if abs(server_time) < MAX_TIME_S:
        return server_time - now, ""
    return 0.0, f"the server's time is {server_time} unix seconds: not believed, ours is taken"


def _written(source: Source) -> int:
    """Return the last number in the spool, or in its writer's slot: damage can hide some. Seek behind it before."""
    last = 0 if source.slot is None else source.slot.last_seq
    return max(source.reader.next_seq - 1, last)


class Backoff:
    """Pauses that double, with jitter so that 1,000 agents don't come back at the same time.

    Args:
        first_s, longest_s: bounds of the pause before jitter.
        draw: random number in [0, 1).
    """

    def __init__(self, first_s: float, longest_s: float, draw: Callable[[], float] = random.random) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._draw = draw
        self._next_s = first_s

    def pause_s(self) -> float:
        """Return the next pause, between half and all of the doubled one before."""
        pause = self._next_s
        self._next_s = min(2 * pause, self._longest_s)
        return pause * (0.5 + 0.5 * self._draw())

    def reset(self) -> None:
        """Something worked: begin with the shortest pause again."""
        self._next_s = self._first_s


#: Frames in flight per connection; the gateway keeps as many answers waiting.
WINDOW = 16
#: First and longest pause between two attempts to connect, seconds.
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0
#: A connection that held for so long was a good one: the next attempt comes soon, seconds.
STEADY_S = 5.0
#: A server that refuses us for good (wrong key, wrong version) is asked again after so long, seconds: keys are
#: repaired.
REFUSED_PAUSE_S = 30.0
#: A connection on which frames wait for an answer but none comes for so long is given up, seconds.
ANSWER_TIMEOUT_S = 15.0
#: A frame that is not full leaves at most so often per source, seconds: points go together, and 30 ms are invisible.
FLUSH_S = 0.03
#: Seconds between two polls of the spools: while records come, and after a second without any.
ACTIVE_POLL_S = 0.02
IDLE_POLL_S = 0.1
IDLE_AFTER_S = 1.0
#: Seconds between two messages with lines that ranks printed.
OUTPUT_S = 0.5
#: First and longest pause after an answer that was not an Ack, when nothing was confirmed in between, seconds.
FIRST_RETRY_S = 0.05
LONGEST_RETRY_S = 5.0


class _Broken(Exception):
    """The connection is of no use any more: connect again."""


class Callbacks(NamedTuple):
    """Functions that an :class:`Uplink` calls.

    Args:
        command: takes a command (docs/api.md) and the server's time minus the agent's, seconds.
        acked: called when numbers were confirmed.
        state: called with ``connecting``, ``connected`` or ``refused``, and a text.
        records: called with a source and the records of a frame before they leave.
        health: makes a Health message, or None. output: likewise with lines that ranks printed.
    """

    command: Callable[[dict[str, Any], float], None] = lambda command, offset: None
    acked: Callable[[], None] = lambda: None
    state: Callable[[str, str], None] = lambda state, text: None
    records: Callable[[Source, list[Any]], None] = lambda source, records: None
    health: Callable[[], Health | None] = lambda: None
    output: Callable[[], Output | None] = lambda: None


class Uplink:
    """One agent's connection to the server.

    Args:
        url: of the server. api_key: or None.
        sources: origin of the records; new ones may appear while it runs.
        hello: makes the first message of a connection.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None,
        sources: Sources,
        hello: Callable[[], Hello],
        callbacks: Callbacks,
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._door = Door(url, api_key, log)
        self._sources = sources
        self._hello = hello
        self._callbacks = callbacks
        self.takes_output = False
        self._log = log
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._retry = Backoff(FIRST_RETRY_S, LONGEST_RETRY_S)
        self._resend_at = 0.0
        self._ready = asyncio.Event()
        self._outbox = Outbox(sources)
        #: Whether the server sends Durable; else each confirmed record counts as durable.
        self._hears_durable = False
        self._welcomed: set[str] = set()
        #: Set when the Hello has changed: the agent connects again.
        self.news = asyncio.Event()
        self._offset_s = 0.0
        self.connected = False
        #: Set while the last answer of the server was a refusal for good.
        self.refused = ""
        self.records_sent = 0

    @property
    def frames_sent(self) -> int:
        """Messages with frames sent since the start."""
        return self._outbox.sent

    async def run(self) -> None:
        """Connect and send until cancelled."""
        while True:
            pause = 0.0
            began = time.monotonic()
            try:
                await self._session()
            except Refused as error:
                self.refused = str(error)
                self._callbacks.state("refused", self.refused)
                pause = REFUSED_PAUSE_S
            except (OSError, asyncio.TimeoutError, BadMessage, _Broken, websockets.WebSocketException) as error:
                text = f"{type(error).__name__}: {error}"[:300]
                self._callbacks.state("connecting", text)
                self._log(f"no connection to {self._door.url}: {text}")
                if self.connected and time.monotonic() - began > STEADY_S:
                    self._backoff.reset()
                pause = self._backoff.pause_s()
            finally:
                self.connected = False
            await asyncio.sleep(pause)

    async def _session(self) -> None:
        async with await self._door.open() as socket:
            await self._shake_hands(socket)
            work = (self._receive(socket), self._send(), self._send_health(socket), self._send_output(socket))
            tasks = [asyncio.create_task(part) for part in (*work, self.news.wait())]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                if tasks[-1] not in done:
                    raise _Broken("the connection ended")
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await socket.close()

    async def _shake_hands(self, socket: ClientConnection) -> None:
        for source in self._sources:
            source.observe()
        self.news.clear()
        hello = cleaned(self._hello())
        await socket.send(encode_message(hello))
        answer = decode_message(_binary(await asyncio.wait_for(socket.recv(), CONNECT_TIMEOUT_S)))
        if isinstance(answer, Error):
            if answer.fatal:
                raise Refused(f"{answer.code}: {answer.message}")
            raise _Broken(f"{answer.code}: {answer.message}")
        if not isinstance(answer, Welcome):
            raise _Broken(f"{type(answer).__name__} came before Welcome")
        self._offset_s, trouble = clock_offset_s(answer.server_time, time.time())
        for text in (trouble, *begin_sources(self._sources, hello, answer)):
            if text:
                self._log(text)
        self._welcomed = {source.info.source for source in self._sources}
        self.refused = ""
        self.connected, self.takes_output = True, answer.output
        self._hears_durable = answer.durable
        if not answer.durable:
            for source in self._sources:
                source.durable = source.acked
        self._outbox.begin(socket.send)
        self._resend_at = 0.0
        self._callbacks.state("connected", "")
        self._callbacks.acked()
        for command in answer.commands:
            self._callbacks.command(command, self._offset_s)

    # --- from the server -----------------------------------------------------------------------------------------

    async def _receive(self, socket: ClientConnection) -> None:
        async for data in socket:
            message = decode_message(_binary(data))
            if isinstance(message, Ack):
                self._acked(message)
            elif isinstance(message, Acks):
                for source, last_seq in message.last_seq.items():
                    self._acked(Ack(source, last_seq))
            elif isinstance(message, Durable):
                self._durable(message)
            elif isinstance(message, Nack):
                self._nacked(message)
            elif isinstance(message, CommandMessage):
                self._callbacks.command(message.command, self._offset_s)
            elif isinstance(message, Error):
                if message.fatal:
                    raise Refused(f"{message.code}: {message.message}")
                self._log(f"the server answers {message.code}: {message.message}")
                self._send_again()
            else:
                raise _Broken(
                    f"{type(message).__name__} came, expected Ack, Acks, Durable, Nack, Error or CommandMessage"
                )

    def _acked(self, ack: Ack) -> None:
        source = self._sources.get(ack.source)
        if source is None or source.held:
            return
        last, trouble = confirmed(source, ack.last_seq)
        if last is None:
            self._log(trouble)
            self._callbacks.acked()
            return
        while source.in_flight and source.in_flight[0][1] <= last:
            source.in_flight.popleft()
        if last > source.acked:
            source.acked = last
            if not self._hears_durable:
                source.durable = last
            self._backoff.reset()
            self._retry.reset()
        if last > source.sent:  # sent before a rewind, and stored nevertheless
            source.rewind(last + 1)
        self._ready.set()
        self._callbacks.acked()

    def _durable(self, durable: Durable) -> None:
        for name, last_seq in durable.last_seq.items():
            source = self._sources.get(name)
            if source is not None and not source.held:
                source.durable = max(source.durable, min(last_seq, source.acked))

    def _nacked(self, nack: Nack) -> None:
        source = self._sources.get(nack.source)
        if source is None or source.held:
            return
        if not source.in_flight and nack.expected_seq == source.acked + 1:
            return  # the frames behind a refused one are refused too; it is being repaired already
        if not 1 <= nack.expected_seq <= source.high + 1:
            raise _Broken(f"{nack.source}: the server expects {nack.expected_seq}, at most {source.high} was sent")
        if nack.expected_seq <= source.acked:
            # Records that it confirmed are lost, of other sources too: all begin again together, so that the process
            # that started first is sent before later ones.
            raise _Broken(f"{nack.source}: the server has lost what it confirmed, from {nack.expected_seq} on")
        self._log(f"{nack.source}: {nack.message}")
        source.rewind(nack.expected_seq)
        self._pause_sending()
        self._callbacks.acked()

    def _send_again(self) -> None:
        """An Error names no frame: every unconfirmed one is sent again. The server stores each once."""
        for source in self._sources:
            if source.in_flight:
                source.rewind(source.acked + 1)
        self._pause_sending()

    def _pause_sending(self) -> None:
        self._resend_at = max(self._resend_at, time.monotonic() + self._retry.pause_s())
        self._ready.set()

    # --- to the server -------------------------------------------------------------------------------------------

    async def _send(self) -> None:
        active_until = 0.0
        last_sent: dict[str, float] = {}
        while True:
            now = time.monotonic()
            if now < self._resend_at:
                await asyncio.sleep(self._resend_at - now)
                continue
            self._check_answers(now)
            for source in self._sources:
                if source.held or (source.reader.at_rest and not source.final and source.info.source in self._welcomed):
                    continue  # a hundred ranks that log now and then cost little
                soon = now - last_sent.get(source.info.source, 0.0) < FLUSH_S
                if soon or await self._send_source(source, last_sent, now):
                    active_until = now + IDLE_AFTER_S
            await self._outbox.flush()
            self._ready.clear()
            poll = ACTIVE_POLL_S if now < active_until else IDLE_POLL_S
            if self._outbox.in_flight >= WINDOW:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._ready.wait(), 1.0)
            else:
                await asyncio.sleep(poll)

    async def _send_source(self, source: Source, last_sent: dict[str, float], now: float) -> bool:
        """Send the records of one source, as far as the window allows; True when there were any."""
        name = source.info.source
        if name not in self._welcomed:
            begin_source(source, 0)  # it began after the Hello, so the server can't know it
            self._welcomed.add(name)
        sent = False
        while self._outbox.in_flight < WINDOW and time.monotonic() >= self._resend_at:
            if time.monotonic() - last_sent.get(name, 0.0) < FLUSH_S:
                return True
            # Before the poll: records written after it belong to the next one.
            final = source.final
            found = next_frame(source.info, source.reader)
            if found is None:
                if final and not source.reader.in_doubt:
                    source.drained = True
                return sent
            source.drained = False
            records, frame, data = found
            self._callbacks.records(source, records)
            source.sent = frame.last_seq
            source.high = max(source.high, source.sent)
            self.records_sent += len(records)
            full = len(records) >= MAX_FRAME_RECORDS or len(data) >= READ_BYTES // 2
            if not full:
                last_sent[name] = now  # the same for all of a round: so they leave together the next time, too
            await self._outbox.put(source, frame, data, full=full)
            sent = True
        return sent

    def _check_answers(self, now: float) -> None:
        for source in self._sources:
            if source.in_flight and now - source.in_flight[0][2] > ANSWER_TIMEOUT_S:
                raise _Broken(f"no answer to a frame of {source.info.source} for {ANSWER_TIMEOUT_S:.0f} s")

    async def _send_health(self, socket: ClientConnection) -> None:
        while True:
            health = self._callbacks.health()
            if health is not None:
                await socket.send(encode_message(cleaned(health)))
            await asyncio.sleep(1.0)

    async def _send_output(self, socket: ClientConnection) -> None:
        """Send the output of ranks while little else is on its way: points go first."""
        while True:
            free = self.takes_output and self._outbox.in_flight <= WINDOW // 4
            message = self._callbacks.output() if free else None
            if message is not None:
                await socket.send(encode_message(cleaned(message)))
            await asyncio.sleep(OUTPUT_S)


def _binary(data: bytes | str) -> bytes:
    if isinstance(data, str):
        raise BadMessage(f"a text message of {len(data)} characters came, expected a binary one")
    return data
