"""Calls of the nodes of a cluster: one exchange with one of them, and which of them answers at all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.asyncio.cluster import ClusterNode
from redis.exceptions import AuthenticationError, ConnectionError, RedisError, ResponseError

__all__ = ["Room", "exchange", "first_to_answer"]

#: A further node is asked after so many seconds without an answer of those before: the delay of RFC 8305, section 5.
NEXT_AFTER_S = 0.25


class Room:
    """Holds a place among the calls that run; waits for one."""

    def __init__(self, room: asyncio.Semaphore, wait_s: float) -> None:
        self._room = room
        self._wait_s = wait_s

    async def __aenter__(self) -> None:
        if not self._room.locked():
            await self._room.acquire()
            return
        try:
            await asyncio.wait_for(self._room.acquire(), self._wait_s)
        except TimeoutError:
            raise ConnectionError("No connection available.") from None  # as redis-py's pool of a single server

    async def __aexit__(self, *exception: object) -> None:
        self._room.release()


async def exchange(node: ClusterNode, commands: Sequence[Sequence[Any]], *, asking: bool = False) -> list[Any]:
    """Send commands on one connection of a node and return the answers, errors of Redis among them."""
    connection = node.acquire_connection()
    wire = [("ASKING",), *commands] if asking else commands
    answers: list[Any] = []
    try:
        await node.disconnect_if_needed(connection)
        await connection.send_packed_command(connection.pack_commands(wire))
        for _ in wire:
            try:
                answers.append(await connection.read_response())
            except ResponseError as error:
                answers.append(error)
    except BaseException:
        await connection.disconnect(nowait=True)  # an answer that was not read must not meet the next command
        raise
    finally:
        node.release(connection)
    return answers[1:] if asking else answers


async def first_to_answer(nodes: Sequence[ClusterNode]) -> ClusterNode:
    """Return the first node that says who has which slots.

    A machine that is gone answers nothing at all, not even that it has no such port: whoever asks one node after the
    other waits for each of those as long as a connection may take.

    Args:
        nodes: at least one, the likeliest first.

    Raises:
        AuthenticationError: those that answer refuse the login.
        ConnectionError: none answers.
    """

    async def ask(node: ClusterNode) -> ClusterNode:
        (answer,) = await exchange(node, [("CLUSTER", "SLOTS")])
        if isinstance(answer, Exception):
            raise answer
        return node

    asked: set[asyncio.Task[ClusterNode]] = set()
    errors: list[BaseException] = []
    try:
        for node in nodes:
            asked.add(asyncio.create_task(ask(node)))
            if (found := await _first(asked, errors, NEXT_AFTER_S)) is not None:
                return found
        while asked:
            if (found := await _first(asked, errors, None)) is not None:
                return found
    finally:
        for task in asked:
            task.cancel()
    refused = next((error for error in errors if isinstance(error, AuthenticationError)), None)
    raise refused or ConnectionError(f"no node of the cluster says who has which slots ({errors[-1]})")


async def _first(
    asked: set[asyncio.Task[ClusterNode]], errors: list[BaseException], wait_s: float | None
) -> ClusterNode | None:
    """Return what one of the tasks has found within so many seconds; those that are done leave the set."""
    done, _ = await asyncio.wait(asked, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
    asked -= done
    found = None
    for task in done:
        try:
            found = task.result()
        except (RedisError, OSError) as error:
            errors.append(error)
    return found
