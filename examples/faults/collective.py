"""The collectives of the small job: torch's gloo, or a hub over a Unix socket that behaves as NCCL does.

With the hub a rank that dies or leaves says nothing to the others: they wait for ever, as in an NCCL collective whose
peer is gone. Gloo notices a closed connection, and the others die by an exception.
"""

from __future__ import annotations

import socket
import threading
from typing import Protocol

__all__ = ["Group", "Hub", "open_group"]

_WORD = 8


class Group(Protocol):
    """The ranks of a job."""

    def all_reduce(self) -> None:
        """Wait until every rank is here."""
        ...

    def leave(self) -> None:
        """Come no more, without a word to the others."""
        ...


class Hub:
    """Lets ranks meet: each sends a word, and when all have, each gets one back. Runs in the launcher.

    Args:
        path: of the Unix socket. world_size: ranks that have to come.
    """

    def __init__(self, path: str, world_size: int) -> None:
        self._world_size = world_size
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(world_size)
        self._waiting: list[socket.socket] = []
        self._ranks: list[socket.socket] = []
        self._lock = threading.Lock()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Meet no more."""
        self._closed = True
        for each in (self._listener, *self._ranks):
            try:
                each.shutdown(socket.SHUT_RDWR)  # wakes whoever waits in it
            except OSError:
                pass
            each.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                rank, _ = self._listener.accept()
            except OSError:
                return
            self._ranks.append(rank)
            threading.Thread(target=self._follow, args=(rank,), daemon=True).start()

    def _follow(self, rank: socket.socket) -> None:
        while True:
            try:
                if not rank.recv(_WORD):
                    return
            except OSError:
                return
            with self._lock:
                self._waiting.append(rank)
                if len(self._waiting) < self._world_size:
                    continue
                met, self._waiting = self._waiting, []
            for each in met:
                try:
                    each.sendall(b"together")
                except OSError:
                    pass  # it died meanwhile


class _HubGroup:
    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)

    def all_reduce(self) -> None:
        self._socket.sendall(b"arrived.")
        if not self._socket.recv(_WORD):
            raise ConnectionError("the hub is gone")

    def leave(self) -> None:
        pass  # the socket stays open: nobody is told


class _TorchGroup:
    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self._dist = dist
        self._value = torch.ones(1)

    def all_reduce(self) -> None:
        self._dist.all_reduce(self._value)

    def leave(self) -> None:
        pass  # no destroy_process_group: the others are not told


def open_group(name: str) -> Group:
    """Return the group ``torch`` or ``hub:PATH``; ranks are in the environment, as a launcher sets them."""
    if name == "torch":
        return _TorchGroup()
    return _HubGroup(name.removeprefix("hub:"))
