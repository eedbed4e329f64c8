"""Carries an import's frames through the gateway: a window of frames on their way, again after problem, once
each."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

import websockets
from websockets.asyncio.client import ClientConnection, connect

from stabilitybackend.base.errors import BadRequest, Forbidden, Unavailable
from stabilitybackend.base.tasks import end
from stabilityclient.secrets.messages import cleaned
from stabilityclient.wire import (
    MAX_MESSAGE_BYTES,
    Ack,
    Acks,
    BadMessage,
    Error,
    Frame,
    Health,
    Hello,
    Nack,
    Welcome,
    decode_message,
    encode_message,
)

__all__ = ["MAX_SILENCE_S", "POLL_S", "Following", "deliver"]

#: Frames that wait for their answer at a time; the gateway keeps as many answers waiting.
WINDOW = 16
#: An import gives up when nothing was confirmed for so long, seconds.
MAX_SILENCE_S = 60.0
#: Pause before the next attempt after problem, seconds.
RETRY_S = 0.5
#: Seconds for the connection and for the Welcome.
CONNECT_TIMEOUT_S = 10.0

#: Files that are followed are looked at so often, seconds.
POLL_S = 0.5
#: While files are followed, the server hears of them so often, as it does of an agent, seconds.
HEALTH_S = 1.0
#: ... and the connection is tried so often, and given up when no answer arrived within the same time, seconds.
PING_S = 10.0

MakeFrames = Callable[[Mapping[str, int]], Iterator[Frame | None]]


class Following(Protocol):
    """Who follows files while they grow: None of the frames is where they have nothing more for now."""

    def paused(self) -> bool:
        """Take note that everything that the files have is confirmed; return whether to connect again, with Hello."""

    def health(self) -> Health:
        """Return the health to report to the server."""

    def connection(self, problem: str | None) -> None:
        """Take note of the reason why the server can't be reached, None once it is."""


_END = object()


class _ReadAgain(Exception):
    """The connection is of no use any more; read again from the server's last numbers."""


async def deliver(
    hello: Hello,
    frames: MakeFrames,
    url: str,
    api_key: str | None,
    progress: Callable[[], None] = lambda: None,
    max_silence_s: float = MAX_SILENCE_S,
    following: Following | None = None,
) -> int:
    """Send all frames of a run and return how many the server confirmed, once it confirmed the last one.

    Args:
        hello: the run's identity. frames: makes them, given the server's last numbers (source -> last number); called
            again
            after every loss of the connection. url, api_key: of the server's agents' door (``ws://.../api/v1/agent``).
        progress: called after each frame.
        following: given: it waits for the server and for new rows of the files without end.

    Raises:
        Forbidden: the key is missing, wrong, or may not send data.
        BadRequest: the server refuses a frame: the same again will not help.
        Unavailable: nothing was confirmed for ``max_silence_s``.
    """
    sending = _Sending(hello, frames, url, api_key, progress, following)
    while True:
        try:
            done = await sending.once()
        except (OSError, TimeoutError, websockets.WebSocketException, BadMessage, _ReadAgain) as error:
            if following is not None:
                following.connection(str(error) or type(error).__name__)
            elif time.monotonic() - sending.moved > max_silence_s:
                raise Unavailable(
                    f"nothing was confirmed for {max_silence_s:.0f} s by {url}: {str(error) or type(error).__name__}",
                    hint="import again later: what was confirmed is not sent again",
                ) from error
            await asyncio.sleep(RETRY_S)
        else:
            if done:
                return sending.confirmed


class _WaitingFrame(NamedTuple):
    """A frame without an answer."""

    source: str
    first_seq: int
    last_seq: int
    message: bytes


class _Sending:
    """One delivery, over as many connections as it takes."""

    def __init__(
        self,
        hello: Hello,
        frames: MakeFrames,
        url: str,
        api_key: str | None,
        progress: Callable[[], None],
        following: Following | None,
    ) -> None:
        self._following = following
        self._hello = hello
        self._make = frames
        self._url = url
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._progress = progress
        self._frames: Iterator[Frame | None] | None = None
        #: Sent or not, not confirmed; at most WINDOW.
        self._waiting: deque[_WaitingFrame] = deque()
        self._acked: dict[str, int] = {}
        #: Monotonic seconds when something was confirmed last.
        self.moved = time.monotonic()
        self.confirmed = 0

    async def once(self) -> bool:
        """Send everything that the server does not hold, over one connection; return whether that was all."""
        socket = await self._connect()
        telling: asyncio.Task[None] | None = None
        try:
            held = await self._shake_hands(socket)
            if self._frames is None or not self._goes_on(held):
                self._waiting.clear()
                self._frames = self._make(held)
            if self._following is not None:
                self._following.connection(None)
                telling = asyncio.create_task(_tell(socket, self._following))
            for waiting in list(self._waiting):
                await socket.send(waiting.message)
            while (frame := await self._next()) is not _END:
                if isinstance(frame, Frame):
                    await self._send(socket, frame)
                    continue
                await self._confirm(socket)
                assert self._following is not None
                if self._following.paused():
                    return False
                await self._rest(socket)
            await self._confirm(socket)
            return True
        finally:
            if telling is not None:
                await end(telling)
            await socket.close()

    async def _send(self, socket: ClientConnection, frame: Frame) -> None:
        message = encode_message(cleaned(frame))
        self._waiting.append(_WaitingFrame(frame.source.source, frame.first_seq, frame.last_seq, message))
        while len(self._waiting) > WINDOW:
            await self._take_answer(socket)
        await socket.send(message)
        self._progress()

    async def _confirm(self, socket: ClientConnection) -> None:
        """Wait until everything is confirmed."""
        while self._waiting:
            await self._take_answer(socket)

    async def _next(self) -> Frame | object | None:
        """Return the next frame, None for a pause, or ``_END``."""
        assert self._frames is not None
        try:
            if self._following is None:
                return next(self._frames, _END)
            # A large file takes a while, and the server is to hear of us meanwhile.
            return await asyncio.to_thread(next, self._frames, _END)
        except OSError:
            self._frames = None  # it has ended in the midst of a file, and looks as if it had come to the end
            raise

    async def _rest(self, socket: ClientConnection) -> None:
        """Wait for the next look at the files."""
        until = time.monotonic() + POLL_S
        with contextlib.suppress(TimeoutError):
            while (left := until - time.monotonic()) > 0:
                await self._take_answer(socket, left)

    def _goes_on(self, held: Mapping[str, int]) -> bool:
        """Return whether the waiting frames follow the server's numbers; else the files are read again."""
        if any(held.get(source, 0) < last for source, last in self._acked.items()):
            return False  # the server lost frames that it had confirmed
        self._waiting = deque(each for each in self._waiting if each.last_seq > held.get(each.source, 0))
        following = dict(held)
        for each in self._waiting:
            if each.first_seq != following.get(each.source, 0) + 1:
                return False
            following[each.source] = each.last_seq
        return True

    async def _connect(self) -> ClientConnection:
        try:
            return await connect(
                self._url,
                additional_headers=self._headers,
                compression=None,
                max_size=MAX_MESSAGE_BYTES,
                open_timeout=CONNECT_TIMEOUT_S,
                close_timeout=1,
                user_agent_header=None,
                # Reading a file holds up the loop, maybe for longer than a ping waits; one that is followed does not.
                ping_interval=PING_S if self._following is not None else None,
                ping_timeout=PING_S,
                proxy=None if _loopback(self._url) else True,
            )
        except websockets.InvalidStatus as error:
            if error.response.status_code in (401, 403):
                what = "does not accept this API key" if self._headers else "needs an API key"
                raise Forbidden(
                    f"{self._url} {what} (HTTP {error.response.status_code})",
                    hint="give one with the scope agent: --api-key or STABILITY_API_KEY; see stabilityboard keys",
                ) from error
            raise
        except websockets.InvalidURI as error:
            raise BadRequest(f"{self._url} is no URL of a server", hint="expected http://host:port") from error

    async def _shake_hands(self, socket: ClientConnection) -> dict[str, int]:
        await socket.send(encode_message(cleaned(self._hello)))
        answer = await _answer(socket, CONNECT_TIMEOUT_S)
        if isinstance(answer, Error):
            if answer.fatal:
                raise BadRequest(f"the server refuses run {self._hello.run_id}: {answer.message}", code=answer.code)
            raise _ReadAgain(answer.message)
        if not isinstance(answer, Welcome):
            raise _ReadAgain(f"{type(answer).__name__} came before Welcome")
        return answer.last_seq

    async def _take_answer(self, socket: ClientConnection, timeout_s: float = MAX_SILENCE_S) -> None:
        """Take the next answer. A confirmed number covers all frames of its source up to it."""
        answer = await _answer(socket, timeout_s)
        if isinstance(answer, Ack | Acks):
            confirmed = answer.last_seq if isinstance(answer, Acks) else {answer.source: answer.last_seq}
            before = len(self._waiting)
            self._waiting = deque(each for each in self._waiting if each.last_seq > confirmed.get(each.source, 0))
            for source, last_seq in confirmed.items():
                self._acked[source] = max(last_seq, self._acked.get(source, 0))
            self.confirmed += before - len(self._waiting)
            self.moved = time.monotonic()
        elif isinstance(answer, Nack):
            raise _ReadAgain(answer.message)
        elif isinstance(answer, Error):
            if answer.code == "busy":
                raise _ReadAgain(answer.message)
            raise BadRequest(
                f"the server refuses a frame ({answer.code}): {answer.message}", hint="please report this file"
            )


async def _tell(socket: ClientConnection, following: Following) -> None:
    """Send the health to the server, again and again."""
    with contextlib.suppress(websockets.ConnectionClosed):  # the sender of frames finds that out
        while True:
            await socket.send(encode_message(cleaned(following.health())))
            await asyncio.sleep(HEALTH_S)


def _loopback(url: str) -> bool:
    return (urlsplit(url).hostname or "") in ("127.0.0.1", "localhost", "::1")


async def _answer(socket: ClientConnection, timeout_s: float) -> object:
    async with asyncio.timeout(timeout_s):
        data = await socket.recv()
    if isinstance(data, str):
        raise BadMessage("a text message came, expected a binary one")
    return decode_message(data)
