"""A port of a machine that is gone: who connects to it hears nothing, not even that nobody listens there."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

__all__ = ["black_hole"]

#: Connections that fill the queue of a listener with a backlog of 0; what comes after them is dropped by the kernel.
_ENOUGH = 8


@contextlib.contextmanager
def black_hole(port: int, host: str = "127.0.0.1") -> Iterator[None]:
    """Take a free port and answer nothing there while the context lasts."""
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(0)
        for _ in range(_ENOUGH):
            one = sockets.enter_context(socket.socket())
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.connect((host, port))
        yield
