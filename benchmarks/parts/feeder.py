"""Feeds frames to a server as fast as it takes them: the agents' protocol on a bare socket, for next to no work.

A real agent reads a spool and judges what it does; here only the wire matters. Frames go out as the protocol says:
at most 16 on their way, sent again from the first one that was not taken when the server is busy.
"""

from __future__ import annotations

import base64
import os
import socket
import struct
import time
from collections import deque
from types import TracebackType

from stabilityclient.wire import (
    Ack,
    Acks,
    Error,
    Frame,
    Hello,
    Message,
    Nack,
    NodeFrame,
    SourceInfo,
    Welcome,
    decode_message,
    encode_message,
)

__all__ = ["WINDOW_FRAMES", "WireAgent"]

#: Frames on their way at once, as the agent has it (docs/wire.md).
WINDOW_FRAMES = 16
#: Pause before frames are sent again to a busy server, seconds.
BUSY_PAUSE_S = 0.2
TIMEOUT_S = 120.0
_RECEIVE_BYTES = 256 * 1024
_BINARY, _CLOSE, _PING, _PONG = 2, 8, 9, 10


class WireAgent:
    """One agent's connection; a context manager.

    Args:
        host, port: of the server.
        run_id: the run.
        agent, node: who this is.
        sources: whose frames it will send.
        project, name: of the run.

    Attributes:
        sent: messages sent, repeated ones included.
        acked: frames that the server has confirmed.
        busy: times that the server asked to wait.
    """

    def __init__(
        self,
        host: str,
        port: int,
        run_id: str,
        agent: str,
        *,
        node: str = "bench",
        sources: tuple[SourceInfo, ...] = (),
        project: str = "bench",
        name: str = "",
    ) -> None:
        self.sent = self.acked = self.busy = 0
        #: Messages without an answer, each with the last number of each of its sources; what is confirmed of each.
        self._waiting: deque[tuple[bytes, dict[str, int]]] = deque()
        self._confirmed: dict[str, int] = {}
        self._buffer = bytearray()
        self._socket = socket.create_connection((host, port), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._upgrade(host, port)
        hello = Hello(run_id, agent, node, "bench", project, name, sources=list(sources))
        self._write(encode_message(hello))
        welcome = self._receive()
        if not isinstance(welcome, Welcome):
            raise SystemExit(f"the server answered Hello with {welcome}")
        #: Newest number that the server holds of each source.
        self.last_seq = welcome.last_seq
        #: Newest version of the messages that the server takes.

    def send(self, frame: Frame | NodeFrame) -> None:
        """Send a frame; wait first while as many are on their way as the protocol allows."""
        data = encode_message(frame)
        while len(self._waiting) >= WINDOW_FRAMES:
            self._take_answer()
        parts = frame.parts if isinstance(frame, NodeFrame) else [frame]
        self._waiting.append((data, {part.source.source: part.last_seq for part in parts}))
        self._write(data)

    def drain(self) -> None:
        """Return when everything is confirmed."""
        while self._waiting:
            self._take_answer()

    def offer(self, frame: Frame | NodeFrame) -> Message:
        """Send a frame once, whatever becomes of it, while no other is on its way; return the server's answer."""
        self._write(encode_message(frame))
        return self._receive()

    def __enter__(self) -> WireAgent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    # --- answers -------------------------------------------------------------------------------------------------

    def _take_answer(self) -> None:
        if not self._take(self._receive()):
            self._send_again()

    def _take(self, answer: Message) -> bool:
        """Note what is confirmed; return False where something has to be sent again."""
        if isinstance(answer, Ack):
            self._confirmed[answer.source] = answer.last_seq
        elif isinstance(answer, Acks):
            self._confirmed |= answer.last_seq
        elif isinstance(answer, Nack) or (isinstance(answer, Error) and answer.code == "busy"):
            return False
        elif isinstance(answer, Error):
            raise SystemExit(f"the server refused a frame: {answer.code}: {answer.message}")
        while self._waiting and all(self._confirmed.get(name, 0) >= last for name, last in self._waiting[0][1].items()):
            self._waiting.popleft()
            self.acked += 1
        return True

    def _send_again(self) -> None:
        """Give the server time, then send all again that it has not confirmed: what it has it keeps once."""
        self.busy += 1
        until = time.monotonic() + BUSY_PAUSE_S
        while (left := until - time.monotonic()) > 0:
            self._socket.settimeout(left)
            try:
                self._take(self._receive())
            except TimeoutError:
                break
        self._socket.settimeout(TIMEOUT_S)
        for data, _ in self._waiting:
            self._write(data)

    # --- the socket ----------------------------------------------------------------------------------------------

    def _upgrade(self, host: str, port: int) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall(
            f"GET /api/v1/agent HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        while b"\r\n\r\n" not in self._buffer:
            self._more()
        head, _, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 101"):
            raise SystemExit(f"the server answered the upgrade with {head[:200]!r}")
        self._buffer = bytearray(rest)

    def _write(self, data: bytes, opcode: int = _BINARY) -> None:
        # A client must mask what it sends. With the mask 0 the bytes stay as they are: the server's work is the same,
        # ours is saved.
        size = len(data)
        if size < 126:
            head = struct.pack("!BBI", 0x80 | opcode, 0x80 | size, 0)
        elif size < 65536:
            head = struct.pack("!BBHI", 0x80 | opcode, 0x80 | 126, size, 0)
        else:
            head = struct.pack("!BBQI", 0x80 | opcode, 0x80 | 127, size, 0)
        self._socket.sendall(head + data)
        self.sent += 1

    def _receive(self) -> Message:
        """Return the next message of the server; answer its pings meanwhile."""
        while True:
            opcode, data = self._receive_raw()
            if opcode == _BINARY:
                return decode_message(data)
            if opcode == _PING:
                self._write(data, _PONG)
            elif opcode == _CLOSE:
                raise SystemExit(f"the server closed the connection: {data[2:].decode(errors='replace')}")

    def _receive_raw(self) -> tuple[int, bytes]:
        buffer = self._buffer
        while len(buffer) < 2:
            self._more()
        size, at = buffer[1] & 127, 2
        if size >= 126:
            wide = 2 if size == 126 else 8
            while len(buffer) < 2 + wide:
                self._more()
            size, at = int.from_bytes(buffer[2 : 2 + wide], "big"), 2 + wide
        while len(buffer) < at + size:
            self._more()
        opcode, data = buffer[0] & 15, bytes(buffer[at : at + size])
        del buffer[: at + size]
        return opcode, data

    def _more(self) -> None:
        data = self._socket.recv(_RECEIVE_BYTES)
        if not data:
            raise SystemExit("the server closed the connection")
        self._buffer += data
