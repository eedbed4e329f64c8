"""A road between agents and the server that can be closed: then packets go nowhere, and no connection is refused."""

from __future__ import annotations

import socket
import threading

__all__ = ["Road"]


class Road:
    """Forwards TCP connections to a port of this machine until ``cut``.

    Args:
        port: of the server.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._open = threading.Event()
        self._open.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """What agents are told instead of the server's address."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        """Let nothing through any more, in either direction."""
        self._open.clear()

    def mend(self) -> None:
        """Let everything through again, also what waited."""
        self._open.set()

    def close(self) -> None:
        """Stop for good."""
        self.mend()
        for each in (self._listener, *self._pairs):
            try:
                each.shutdown(socket.SHUT_RDWR)  # wakes whoever waits in it
            except OSError:
                pass
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(near,), daemon=True).start()

    def _join(self, near: socket.socket) -> None:
        self._pairs.append(near)
        self._open.wait()
        try:
            far = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            near.close()
            return
        self._pairs.append(far)
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                self._open.wait()
                sink.sendall(data)
        except OSError:
            pass
        self._open.wait()
        for each in (source, sink):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
