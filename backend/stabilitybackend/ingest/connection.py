"""One agent's connection: Hello, then frames and health in, answers and commands out.

Several frames may be on their way to Redis at once; their answers go out in the frames' order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
from fastapi import WebSocket
from starlette.websockets import WebSocketDisconnect, WebSocketState

from stabilitybackend.base.errors import AgentGone, BadRequest, Forbidden, NotFound, TakesNoPart, Unavailable
from stabilitybackend.base.keys import check_run_id, check_source_id
from stabilitybackend.base.tasks import end
from stabilitybackend.ingest.answers import Answers
from stabilitybackend.ingest.frame_checks import MAX_RECORDS, Checked, check_frame, check_node_frame, check_source
from stabilitybackend.schema.json_data import check_data
from stabilitybackend.storage.redis_link import as_unavailable
from stabilityclient.wire import (
    MAX_MESSAGE_BYTES,
    NODE_FRAMES,
    PROTOCOL_VERSION,
    BadMessage,
    CommandMessage,
    Durable,
    Error,
    Frame,
    Health,
    Hello,
    Message,
    Nack,
    NodeFrame,
    Output,
    Welcome,
    WrongVersion,
    decode_message,
    encode_message,
)

if TYPE_CHECKING:
    from stabilitybackend.ingest.gateway import Gateway

__all__ = ["AgentConnection"]

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
_LOG = logging.getLogger(__name__)


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
        self._gateway.counts.connections += 1
        # Half-open: the agent came back before we noticed that it was gone. Closing may take long: nobody waits for it.
        closing = asyncio.create_task(older.close(_CLOSE_NORMAL, _TOOK_OVER)) if older is not None else None
        # Whichever ends first ends the connection: a reader alone would wait without end for room in the answers'
        # queue.
        answers = Answers(self._gateway, self._run_id, hello.protocol)
        self._answers = answers if hello.protocol >= NODE_FRAMES else None
        parts = {asyncio.create_task(self._read_forever(hello, answers)), asyncio.create_task(self._answer(answers))}
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end(*parts)
            ends = await asyncio.gather(*parts, return_exceptions=True)
            self._gateway.counts.connections -= 1
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
        """The newest number confirmed of each source that is not durable yet; none where the agent would not know."""
        return {} if self._answers is None else dict(self._answers.stored)

    async def durable(self, last_seq: Mapping[str, int]) -> None:
        """Tell the agent what of it can't be lost any more. Raises AgentGone when the connection is closed."""
        assert self._answers is not None
        self._answers.settled(last_seq)
        await self._send(Durable(dict(last_seq)))

    async def lost(self, last_seq: Mapping[str, int]) -> None:
        """Ask the agent for what was confirmed and is not there any more, behind these numbers. Raises AgentGone."""
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
        """Return a Hello that can be served, or None after saying what is wrong and closing."""
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                message = self._read(await self._receive())
            if not isinstance(message, Hello):
                raise BadMessage(f"first message is {type(message).__name__}, expected Hello")
            self._run_id = check_run_id(message.run_id)
            check_source_id(message.agent)
            for source in message.sources:
                check_source(source)
            check_data(message.config, "the run's config")
            check_data([message.project, message.name, message.node, message.notes, message.tags], "Hello")
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
        self._gateway.counts.refused += 1
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
            # The project is not named: who may not see a run does not learn of it either.
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
        await self._send(Welcome(version, now, last_seq, waiting, takes_output, PROTOCOL_VERSION, durable=True))
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
                self._gateway.counts.bad_messages += 1
                self._name(str(error))
                await answers.put(Error("bad_message", str(error)))
            except BadRequest as error:
                self._gateway.counts.bad_frames += 1
                self._name(error.message)
                await answers.put(Error("bad_frame", error.message))

    async def _store(self, frame: Frame | NodeFrame, data: bytes, answers: Answers) -> None:
        try:
            await self._gateway.services.room(self._run_id)
        except (AgentGone, TakesNoPart):
            raise
        except Unavailable as error:
            self._gateway.counts.busy += 1
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
            self._gateway.counts.bad_healths += 1
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
            with contextlib.suppress(BadMessage):  # what does not fit comes as it is
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
