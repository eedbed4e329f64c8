"""Free TCP ports for the servers that tests start."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that was free a moment ago, below those that connections get by themselves.

    A port among those may be given to any other connection before the server takes it, and a client that asks for it
    too early may be connected to itself: TCP allows that on one machine.
    """
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no free port among 100 between 20000 and 32000")
