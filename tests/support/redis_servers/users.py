"""Users of a real Redis."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from redis import Redis
from redis.exceptions import ResponseError

__all__ = ["PASSWORD", "allow", "denied", "user_options"]

PASSWORD = "of-the-tests"


def user_options(line: str, name: str) -> list[str]:
    """Return the options of a ``redis-server`` that has such a user from its start."""
    return ["--user", name, *line.replace("PASSWORD", PASSWORD).split()[3:]]


def allow(servers: Iterable[Redis], line: str, name: str) -> None:
    """Make a user on each server by a line of ``ACL SETUSER`` with PASSWORD in the place of one, and any name."""
    rules = line.replace("PASSWORD", PASSWORD).split()[3:]
    for client in servers:
        client.execute_command("ACL", "SETUSER", name, "reset", *rules)  # type: ignore[no-untyped-call]
        with contextlib.suppress(ResponseError):  # before 7.2 there is no such command
            client.execute_command("ACL", "SETUSER", name, "+waitaof", "+client|setinfo")  # type: ignore[no-untyped-call]


def denied(client: Redis) -> list[str]:
    """Return what users asked for and were not allowed, as Redis logged it."""
    return [f"{one['username']}: {one['object']}" for one in client.acl_log()]
