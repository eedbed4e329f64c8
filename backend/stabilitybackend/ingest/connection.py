"""One agent's connection: Hello, then frames and health in, answers and commands out.

Several frames may be on their way to Redis together; their answers go out in the frames' order, stored ones confirmed
in one message. Checks of frames look at steps and names as arrays, never at single values: a few microseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from fastapi import WebSocket
from starlette.websockets import WebSocketDisconnect, WebSocketState

from stabilitybackend.base.errors import AgentGone, BadRequest, Forbidden, NotFound, TakesNoPart, Unavailable
from stabilitybackend.base.keys import check_run_id, check_source_id, is_of_file
from stabilitybackend.base.tasks import end
from stabilitybackend.ingest.ingest import Apart, Duplicate, Gap, Outcome, StoredFrames
from stabilitybackend.schema.json_data import check_data
from stabilitybackend.storage.redis_link import as_unavailable
from stabilityclient.node_frames import apart
from stabilityclient.wire import (
    MAX_MESSAGE_BYTES,
    MAX_NAME_CHARS,
    MAX_STEP,
    Ack,
    Acks,
    BadMessage,
    CommandMessage,
    Durable,
    Error,
    EventBlock,
    Frame,
    FramePart,
    Health,
    Hello,
    Message,
    Nack,
    NodeFrame,
    Output,
    PointsBlock,
    SourceInfo,
    Welcome,
    WrongVersion,
    decode_message,
    encode_message,
)

if TYPE_CHECKING:
    from stabilitybackend.ingest.gateway import Gateway

__all__ = ["MAX_RECORDS", "AgentConnection", "check_frame"]

#: Answers that may wait for Redis or for a slow agent on one connection; then nothing more is read from it.
MAX_PENDING_ANSWERS = 16
_LOG = logging.getLogger(__name__)

#: A frame, its bytes, and its future outcome; or a message that is an answer already.
_Due = tuple[Frame | NodeFrame, bytes, asyncio.Future[Outcome]] | Message


class Answers:
    """Pending answers of one connection."""

    def __init__(self, gateway: Gateway, run_id: str) -> None:
        self._gateway = gateway
        self._run_id = run_id
        self._due: asyncio.Queue[_Due] = asyncio.Queue(MAX_PENDING_ANSWERS)
        #: The newest number confirmed of each source since it was taken from here.
        self.stored: dict[str, int] = {}

    async def put(self, due: _Due) -> None:
        """Take the next answer, or a frame with a future one; wait while too many are open."""
        await self._due.put(due)

    async def ready(self) -> AsyncIterator[Message]:
        """Yield the answers, without end; of several confirmations of a source only the last one."""
        due: _Due | None
        unknown: _Due | None = None
        while True:
            due, unknown = unknown or await self._due.get(), None
            stored: dict[str, int] = {}
            while due is not None:
                for answer in await self._answers(due):
                    if isinstance(answer, Ack):
                        stored[answer.source] = max(answer.last_seq, stored.get(answer.source, 0))
                        continue
                    for confirmed in self._confirmed(stored):
                        yield confirmed
                    stored = {}
                    yield answer
                due = None if self._due.empty() else self._due.get_nowait()
                if isinstance(due, tuple) and not due[2].done():  # it must not delay confirmations
                    due, unknown = None, due
            for confirmed in self._confirmed(stored):
                yield confirmed

    def settled(self, last_seq: Mapping[str, int]) -> None:
        """Remove durable numbers from ``stored``, unless more has been stored since."""
        for source, last in last_seq.items():
            if self.stored.get(source) == last:
                del self.stored[source]

    def lost(self, sources: Iterable[str]) -> None:
        """Remove lost numbers from ``stored``: they are confirmed anew when they are sent again."""
        for source in sources:
            self.stored.pop(source, None)

    def _confirmed(self, stored: dict[str, int]) -> list[Message]:
        self.stored |= stored
        if len(stored) > 1:
            return [Acks(stored)]
        return [Ack(source, last_seq) for source, last_seq in stored.items()]

    async def _answers(self, due: _Due) -> list[Message]:
        if not isinstance(due, tuple):
            return [due]
        frame, data, storing = due
        outcome = await self._outcome(storing, frame)
        if isinstance(outcome, Error):
            return [outcome]
        if isinstance(outcome, StoredFrames):
            with contextlib.suppress(Unavailable):  # only a hint: the frame is stored in any case
                await self._gateway.services.frame_stored(self._run_id, outcome.stream_id, len(data))
        if isinstance(outcome, Apart):
            assert isinstance(frame, NodeFrame)
            return [answer for one in apart(frame) for answer in await self._alone(one)]
        if isinstance(frame, NodeFrame):  # stored, now or before
            return [Ack(part.source.source, part.last_seq) for part in frame.parts]
        source = frame.source.source
        if isinstance(outcome, Gap):
            text = f"frame {frame.first_seq}..{frame.last_seq} of {source} came, expected {outcome.expected_seq} next"
            return [Nack(source, outcome.expected_seq, text)]
        return [Ack(source, outcome.last_seq if isinstance(outcome, Duplicate) else frame.last_seq)]

    async def _alone(self, frame: Frame) -> list[Message]:
        """Store one frame of a message whose sources could not be stored together."""
        data = encode_message(frame)
        return await self._answers((frame, data, await self._gateway.ingest.enqueue(self._run_id, [frame], data)))

    async def _outcome(self, storing: asyncio.Future[Outcome], frame: Frame | NodeFrame) -> Outcome | Error:
        try:
            return await storing
        except Unavailable as error:
            self._gateway.counts.add("busy")
            return Error("busy", error.message)
        except Exception:
            self._gateway.counts.add("busy")
            source = (frame if isinstance(frame, Frame) else frame.parts[0]).source.source
            _LOG.exception("run %s: a frame of %s could not be stored", self._run_id, source)
            return Error("busy", "the server failed to store the frame; see its log")


#: Largest sequence number that Lua inside Redis counts exactly.
MAX_SEQ = 2**53 - 1
#: Records that one source can have, and that one event can say to be lost: 10,000 a second for three years. A number
#: beyond it is no count of anything, and whoever sent it would have all that the source sends later taken for stored.
MAX_RECORDS = 10**12
#: Largest rank, as agents take it.
MAX_RANK = 2**31 - 1
#: Longest event type, characters.
MAX_TYPE_CHARS = 64
_SHOWN_CHARS = 40
#: Rows of a block up to which Python's own numbers are looked at quicker than an array.
_FEW_ROWS = 64
#: Sources and sets of names that are remembered as checked; names in all of the sets together.
_REMEMBERED, _NAMES_REMEMBERED = 4_096, 200_000


class Checked:
    """Checked parts of a connection's messages that recur in nearly each one."""

    def __init__(self) -> None:
        self._sources: dict[str, SourceInfo] = {}
        self._names = set[tuple[str, ...]]()
        self._in_names = 0

    def source(self, info: SourceInfo) -> None:
        """As ``check_source``."""
        if self._sources.get(info.source) != info:
            check_source(info)
            if len(self._sources) >= _REMEMBERED:
                self._sources.clear()
            self._sources[info.source] = info

    def names(self, names: Sequence[str]) -> None:
        """Check the names of a block's metrics."""
        row = tuple(names)
        if row not in self._names:
            _check_names(row)
            if len(self._names) >= _REMEMBERED or self._in_names > _NAMES_REMEMBERED:
                self._names.clear()
                self._in_names = 0
            self._names.add(row)
            self._in_names += len(row)


def check_frame(frame: Frame, checked: Checked | None = None) -> None:
    """Check names, steps, times and numbers of a frame; ``checked`` is of its connection.

    Raises:
        BadRequest: something can't be stored; the message names it, what was given and what is expected.
    """
    records, checked = 0, checked or Checked()
    for block in frame.blocks:
        if isinstance(block, PointsBlock):
            _check_points(block, checked)
            records += len(block.steps) // 8
        else:
            records += _check_event(block)
    _check_numbers(frame, records, checked)


def check_node_frame(frame: NodeFrame, checked: Checked | None = None) -> None:
    """Do the same for each source in a message; raise as ``check_frame``."""
    checked = checked or Checked()
    for table in frame.tables:
        _check_points(table, checked)
    for part in frame.parts:
        records = 0
        for one in part.blocks:
            records += _check_event(one) if isinstance(one, EventBlock) else one[1]
        _check_numbers(part, records, checked)


def _check_numbers(frame: Frame | FramePart, records: int, checked: Checked) -> None:
    checked.source(frame.source)
    if frame.last_seq > MAX_SEQ:
        raise BadRequest(f"sequence number is {frame.last_seq}, expected at most {MAX_SEQ}")
    if is_of_file(frame.source.source):
        if frame.last_seq > MAX_RECORDS:
            raise BadRequest(f"sequence number is {frame.last_seq}, expected at most {MAX_RECORDS}")
    elif frame.last_seq - frame.first_seq + 1 != records:
        raise BadRequest(
            f"frame numbers {frame.first_seq}..{frame.last_seq} stand for {frame.last_seq - frame.first_seq + 1} "
            f"records, and it holds {records}"
        )


def check_hello(hello: Hello) -> str:
    """Return the run of a Hello that can be stored. Raises BadRequest, BadMessage."""
    run_id = check_run_id(hello.run_id)
    check_source_id(hello.agent)
    for source in hello.sources:
        check_source(source)
    check_data(hello.config, "the run's config")
    check_data([hello.project, hello.name, hello.node, hello.notes, hello.tags], "Hello")
    return run_id


def check_source(info: SourceInfo) -> None:
    """Check the sender.

    Raises:
        BadRequest: its id, its rank, its start or another number of it is none that a process can have.
    """
    check_source_id(info.source)
    if info.rank is not None and not 0 <= info.rank <= MAX_RANK:
        raise BadRequest(f"rank of {info.source} is {info.rank}, expected 0 to {MAX_RANK} or none")
    if not math.isfinite(info.started):
        raise BadRequest(f"start of {info.source} is {info.started}, expected unix seconds")
    for name in ("world_size", "local_rank", "pid", "generation"):
        if abs(getattr(info, name) or 0) > MAX_STEP:
            raise BadRequest(f"{name} of {info.source} is {getattr(info, name)}, expected at most {MAX_STEP}")


def _lost(event: EventBlock) -> int:
    """Return the count of numbers in a ``lost`` event."""
    records = event.data.get("records")
    if type(records) is not int or not 1 <= records <= MAX_RECORDS:
        raise BadRequest(f"lost records are {records!r:.40}, expected a whole number of 1 to {MAX_RECORDS}")
    return records


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if not 1 <= len(name) <= MAX_NAME_CHARS:
            raise BadRequest(
                f"metric name {name[:_SHOWN_CHARS]!r} has {len(name)} characters, expected 1 to {MAX_NAME_CHARS}"
            )
    if len(set(names)) != len(names):
        raise BadRequest("a metric name is twice in one block, expected each once")


def _check_points(block: PointsBlock, checked: Checked) -> None:
    checked.names(block.names)
    if not block.steps:
        return
    steps, times = np.frombuffer(block.steps, "<i8"), np.frombuffer(block.times, "<f8")
    few: list[int] | None = steps.tolist() if len(steps) <= _FEW_ROWS else None
    for step in (min(few), max(few)) if few is not None else (int(steps.min()), int(steps.max())):
        if not 0 <= step <= MAX_STEP:
            raise BadRequest(f"step is {step}, expected 0 to {MAX_STEP}")
    if not (all(map(math.isfinite, times.tolist())) if few is not None else np.isfinite(times).all()):
        raise BadRequest("a time is not finite, expected unix seconds")


def _check_event(event: EventBlock) -> int:
    """Check an event, and return the count of its numbers."""
    if not 1 <= len(event.type) <= MAX_TYPE_CHARS:
        raise BadRequest(f"event type has {len(event.type)} characters, expected 1 to {MAX_TYPE_CHARS}")
    # -1 is "no step yet": a process may die before its first one.
    if event.step is not None and not -1 <= event.step <= MAX_STEP:
        raise BadRequest(f"step of event {event.type!r} is {event.step}, expected -1 to {MAX_STEP} or none")
    if not np.isfinite(event.time):
        raise BadRequest(f"time of event {event.type!r} is {event.time}, expected unix seconds")
    check_data(event.data, f"event {event.type!r}")
    return _lost(event) if event.type == "lost" else 1


#: Seconds an agent has for its Hello after the connection is open.
HELLO_TIMEOUT_S = 10.0
#: Seconds that a command or a last message to an agent may take. Answers to frames may take until the WebSocket's pings
#: find that nobody reads: a timer for each would be a twentieth of what small frames cost.
SEND_TIMEOUT_S = 10.0
#: Commands kept for an agent whose Welcome is not out yet.
MAX_EARLY_COMMANDS = 100
#: WebSocket close codes (RFC 6455, section 7.4).
_CLOSE_NORMAL, _CLOSE_POLICY, _CLOSE_TRY_LATER = 1000, 1008, 1013
_TOOK_OVER = "a newer connection of this agent took over"


class AgentConnection:
    """One agent's connection, from accept to close."""

    def __init__(self, gateway: Gateway, socket: WebSocket, project: str | None = None) -> None:
        self._gateway = gateway
        self._socket = socket
        #: The only project whose runs the agent's key may send, None for every project.
        self._project = project
        self._sending = asyncio.Lock()
        self._checked = Checked()
        self._answers: Answers | None = None
        self._welcomed = False
        self._early: list[CommandMessage] = []
        self._run_id = ""

    async def serve(self) -> None:
        """Talk to the agent until one side closes."""
        hello = await self._receive_hello()
        if hello is None:
            return
        name = (hello.run_id, hello.agent)
        older = self._gateway.connections.get(name)
        self._gateway.connections[name] = self
        self._gateway.counts.add("connections")
        # Half-open: the agent reconnected before its loss was noticed. Closing may take long, and is not awaited.
        closing = asyncio.create_task(older.close(_CLOSE_NORMAL, _TOOK_OVER)) if older is not None else None
        # Whichever ends first ends the connection: a reader alone would wait without end for room in the answers'
        # queue.
        answers = self._answers = Answers(self._gateway, self._run_id)
        parts = {asyncio.create_task(self._read_forever(hello, answers)), asyncio.create_task(self._answer(answers))}
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(*parts)
            ends = await asyncio.gather(*parts, return_exceptions=True)
            self._gateway.counts.add("connections", -1)
            if self._gateway.connections.get(name) is self:
                del self._gateway.connections[name]
                with contextlib.suppress(Unavailable):
                    await self._gateway.services.agent_disconnected(*name)
            await self._end(ends)
            if closing is not None:
                await closing

    async def _end(self, ends: list[BaseException | None]) -> None:
        """Close the connection; where the agent can't know the reason, send it."""
        for how in ends:
            if isinstance(how, AgentGone | WebSocketDisconnect | asyncio.CancelledError) or how is None:
                continue
            how = as_unavailable(how) or how
            if not isinstance(how, Unavailable):
                _LOG.error("run %s: the connection ended on a defect of ours", self._run_id, exc_info=how)
            text = how.message if isinstance(how, Unavailable) else "internal error, see the server log"
            await self._refuse_and_close(Error("busy", text), _CLOSE_TRY_LATER)
        await self.close(_CLOSE_NORMAL, "")

    async def push_command(self, message: CommandMessage) -> None:
        """Send a command to the agent. Raises AgentGone when the connection is closed."""
        if not self._welcomed:
            if len(self._early) >= MAX_EARLY_COMMANDS:
                raise AgentGone(f"{MAX_EARLY_COMMANDS} commands wait for an agent that is not welcomed yet")
            self._early.append(message)
            return
        await self._send(message)

    @property
    def run_id(self) -> str:
        """The run of the agent, empty before its Hello."""
        return self._run_id

    @property
    def stored(self) -> dict[str, int]:
        """The newest number confirmed of each source that is not durable yet."""
        return {} if self._answers is None else dict(self._answers.stored)

    async def durable(self, last_seq: Mapping[str, int]) -> None:
        """Notify the agent of durable numbers. Raises AgentGone when the connection is closed."""
        assert self._answers is not None
        self._answers.settled(last_seq)
        await self._send(Durable(dict(last_seq)))

    async def lost(self, last_seq: Mapping[str, int]) -> None:
        """Ask the agent for confirmed frames that were lost, behind these numbers. Raises AgentGone."""
        assert self._answers is not None
        self._answers.lost(last_seq)
        for source, last in last_seq.items():
            self._name(f"Redis has lost what it had of {source} after {last}: it is sent again")
            await self._send(Nack(source, last + 1, "Redis has lost what came after it"))

    async def close(self, code: int, reason: str) -> None:
        """Close the WebSocket if it is still open."""
        if self._socket.application_state is not WebSocketState.CONNECTED:
            return
        with contextlib.suppress(RuntimeError, WebSocketDisconnect, OSError):
            await self._socket.close(code, reason)

    async def _receive_hello(self) -> Hello | None:
        """Return a Hello that can be served, or None after an error and the close."""
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                message = self._read(await self._receive())
            if not isinstance(message, Hello):
                raise BadMessage(f"first message is {type(message).__name__}, expected Hello")
            self._run_id = check_hello(message)
            await self._check_project(message, self._project)
        except WebSocketDisconnect:
            return None
        except TimeoutError:
            problem = Error("no_hello", f"no Hello within {HELLO_TIMEOUT_S:.0f} s of the connection", fatal=True)
        except WrongVersion as error:
            problem = Error("wrong_version", str(error), fatal=True)
        except BadMessage as error:
            problem = Error("bad_message", str(error))
        except BadRequest as error:
            problem = Error("bad_hello", error.message, fatal=True)
        except Forbidden as error:
            problem = Error("wrong_project", error.message, fatal=True)
        except Unavailable as error:
            problem = Error("busy", error.message)
        else:
            return message
        self._gateway.counts.add("refused")
        await self._refuse_and_close(problem, _CLOSE_POLICY)
        return None

    async def _check_project(self, hello: Hello, ours: str | None) -> None:
        """Refuse a run of another project than in its first Hello, or than the key's; one that names none is of it."""
        try:
            known = await self._gateway.services.project(hello.run_id)
        except NotFound:  # a new run
            known = hello.project or ours or ""
        hello.project = hello.project or known
        if ours is not None and known != ours:
            # The project is not named: it is hidden from a key of another one.
            raise Forbidden(f"the key is for the project {ours!r}, and run {hello.run_id} is of another one")
        if hello.project != known:
            since = f"the project {known!r}" if known else "no project"
            raise Forbidden(
                f"run {hello.run_id} is of {since} since its first Hello, and this one says {hello.project!r}: "
                "keep the project, or give the job another STABILITY_RUN_ID"
            )

    async def _welcome(self, hello: Hello) -> None:
        gateway = self._gateway
        sources = [source.source for source in hello.sources]
        last_seq = await gateway.ingest.last_seq(hello.run_id, sources or None)
        for source, last in last_seq.items():
            if last > MAX_RECORDS:
                self._name_spoilt(source, last)
        commands = await gateway.services.agent_connected(hello, self.push_command)
        waiting = msgspec.to_builtins(commands)
        takes_output = gateway.takes_output
        now, version = gateway.clock(), gateway.server_version
        await self._send(Welcome(version, now, last_seq, waiting, takes_output, durable=True))
        if self._answers is not None:
            self._answers.stored |= {source: last for source, last in last_seq.items() if last}
        self._welcomed = True
        early, self._early = self._early, []
        for message in early:
            await self._send(message)

    async def _read_forever(self, hello: Hello, answers: Answers) -> None:
        await self._welcome(hello)
        while True:
            data = await self._receive()
            try:
                message = self._read(data)
                if isinstance(message, Frame):
                    check_frame(message, self._checked)
                    await self._store(message, data, answers)
                elif isinstance(message, NodeFrame):
                    check_node_frame(message, self._checked)
                    await self._store(message, data, answers)
                elif isinstance(message, Health):
                    await self._take_health(message)
                elif isinstance(message, Output):
                    with contextlib.suppress(Unavailable):  # best effort, as the agent sends it
                        await self._gateway.services.output(self._run_id, message)
                else:
                    raise BadMessage(f"{type(message).__name__} came after Hello, expected Frame, Health or Output")
            except WrongVersion as error:
                await self._refuse_and_close(Error("wrong_version", str(error), fatal=True), _CLOSE_POLICY)
                return
            except BadMessage as error:
                self._gateway.counts.add("bad_messages")
                self._name(str(error))
                await answers.put(Error("bad_message", str(error)))
            except BadRequest as error:
                self._gateway.counts.add("bad_frames")
                self._name(error.message)
                await answers.put(Error("bad_frame", error.message))

    async def _store(self, frame: Frame | NodeFrame, data: bytes, answers: Answers) -> None:
        try:
            await self._gateway.services.room(self._run_id)
        except (AgentGone, TakesNoPart):
            raise
        except Unavailable as error:
            self._gateway.counts.add("busy")
            await answers.put(Error("busy", error.message))
            return
        parts = frame.parts if isinstance(frame, NodeFrame) else [frame]
        await answers.put((frame, data, await self._gateway.ingest.enqueue(self._run_id, parts, data, frame)))

    async def _answer(self, answers: Answers) -> None:
        async for message in answers.ready():
            await self._write(message)

    def _name(self, problem: str) -> None:
        self._gateway.refused.log(logging.WARNING, f"run {self._run_id}: refused: {problem}")

    def _name_spoilt(self, source: str, last: int) -> None:
        self._gateway.spoilt.log(
            logging.ERROR,
            f"run {self._run_id}: all that {source} sends is taken for stored: {last} is its last number, which "
            "no process reaches, so a foreign frame set it. Start the process again (a new start has numbers of its "
            "own), and give the agents other keys",
        )

    async def _take_health(self, health: Health) -> None:
        # Health comes again within a second: one that can't be taken now is not worth an answer. An Error would
        # make the agent send its frames again.
        try:
            check_data([health.node, health.agent], "Health")  # the rest: schema/health.py
        except BadRequest as error:
            self._gateway.counts.add("bad_healths")
            self._name(error.message)
            return
        try:
            await self._gateway.services.health(self._run_id, health)
        except TakesNoPart:
            raise
        except Unavailable:
            pass

    async def _receive(self) -> bytes:
        event = await self._socket.receive()
        if event["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(event.get("code", _CLOSE_NORMAL), event.get("reason"))
        data = event.get("bytes")
        return data if data is not None else b""

    def _read(self, data: bytes) -> Message:
        if not data:
            raise BadMessage("a text message or an empty one came, expected a binary message")
        if len(data) > MAX_MESSAGE_BYTES:
            raise BadMessage(f"message of {len(data)} bytes, expected at most {MAX_MESSAGE_BYTES}: cut frames smaller")
        try:
            with contextlib.suppress(BadMessage):  # a misfit stays untyped
                return decode_message(data, self._gateway.types)
            return decode_message(data)
        except RecursionError as error:  # the decoder's own way to say so
            raise BadMessage("the message is nested too deeply to be read") from error

    async def _send(self, message: Message) -> None:
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await self._write(message)
        except TimeoutError as error:
            await self.close(_CLOSE_TRY_LATER, "too slow")
            raise AgentGone("the agent's connection is stuck") from error

    async def _write(self, message: Message) -> None:
        try:
            async with self._sending:
                await self._socket.send_bytes(encode_message(message))
        except (RuntimeError, WebSocketDisconnect, OSError) as error:
            await self.close(_CLOSE_TRY_LATER, "too slow")
            raise AgentGone(f"the agent's connection is closed ({type(error).__name__})") from error

    async def _refuse_and_close(self, error: Error, code: int) -> None:
        with contextlib.suppress(AgentGone):
            await self._send(error)
        await self.close(code, error.code)
