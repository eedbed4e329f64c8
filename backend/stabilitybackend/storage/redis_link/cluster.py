"""A client of a Redis Cluster that looks to its callers like one of a single server.

The topology, the connections of each node and the commands are redis-py's (``RedisCluster``). How one call is carried
out is our own, since redis-py 8.1 does it in ways that hurt here (docs/decisions/0027): its transactions start a thread
and an event loop for each command, its ASKING may go out on another connection than the command that it is for, and
while a master is away all calls, those of the other masters too, wait for the new topology.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from redis.asyncio.client import Pipeline
from redis.asyncio.cluster import ClusterNode, RedisCluster, _ClusterNodePoolAdapter
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    ConnectionError,
    ExecAbortError,
    MovedError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import TimeoutError as NoAnswerInTime

from stabilitybackend.storage.redis_link.closed import noticing

__all__ = ["ClusterClient", "Command"]

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
    """Return the first node that reports the owners of the slots.

    A machine that is gone answers nothing at all, not even that it has no such port: asking one node after the
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
    """Return the first result of the tasks within so many seconds; finished ones leave the set."""
    done, _ = await asyncio.wait(asked, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
    asked -= done
    found = None
    for task in done:
        try:
            found = task.result()
        except (RedisError, OSError) as error:
            errors.append(error)
    return found


class ClusterBatch(Pipeline):
    """Commands that are sent together.

    Args:
        transaction: all of them are of one slot, and are carried out together or not at all; with ``watch`` before
            them only while no watched key changes. Else each is for itself, and may be of any slot.
    """

    def __init__(self, client: ClusterClient, *, transaction: bool) -> None:
        super().__init__(None, client.response_callbacks, transaction, None)  # type: ignore[arg-type]  # it has none yet
        self._client = client

    async def watch(self, *names: Any) -> Any:  # type: ignore[override]  # redis-py's own is one too
        """Watch keys of one slot, on a connection that is held until ``reset``."""
        await self._client.initialize()
        node = self._client.nodes_manager.nodes_cache[self._client.master_of(names[0])]
        self.connection_pool = _ClusterNodePoolAdapter(node)  # type: ignore[assignment]
        try:
            return await super().watch(*names)
        except AskError as error:
            raise await self._moved(error) from error

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send the commands and return the answers.

        Args:
            raise_on_error: the first error among the answers is raised.
        """
        if self.watching or self.explicit_transaction:
            try:
                return await super().execute(raise_on_error)
            except AskError as error:
                raise await self._moved(error) from error
        commands, self.command_stack = self.command_stack, []
        if not commands:
            return []
        answers = await (self._client.together if self.is_transaction else self._client.scattered)(commands)
        if raise_on_error:
            for at, answer in enumerate(answers):
                if isinstance(answer, Exception):
                    self.annotate_exception(answer, at + 1, commands[at][0])
                    raise answer
        return answers

    async def _moved(self, error: AskError) -> TryAgainError:
        await self._client._redirected(error)
        return TryAgainError("the slot moved while its keys were watched")


#: Name and arguments, and the parser of the reply.
Command = tuple[tuple[Any, ...], Mapping[str, Any]]

#: The topology is asked for at most this often, seconds: each time costs some milliseconds.
REFRESH_EVERY_S = 0.25
#: Times that one call follows a slot that moves. While several of its keys are on their way Redis answers "try again".
REDIRECTS = 16
TRY_AGAIN_S = 0.05
#: Further tries when a node is away. More is for the caller: it knows how long it can wait.
RETRIES = 1
#: Connections of a node have no bound of their own: that of the client holds for all nodes together.
_NO_BOUND = 1 << 16
#: First words of commands without a key: any master may answer.
_KEYLESS = frozenset({"ACL", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "INFO", "PING", "TIME", "WAIT", "WAITAOF"})
#: Answers and errors that another try may cure.
_AGAIN = (AskError, TryAgainError, ClusterDownError, ConnectionError, NoAnswerInTime, OSError)
_T = TypeVar("_T")


class ClusterClient(RedisCluster):
    """One client of all masters.

    Args:
        nodes: host and port of some nodes; the others are learned from them.
        connections: most concurrent calls; further ones wait for so many seconds: ``wait_s``.
        options: of the connections, as for ``RedisCluster``.

    Attributes:
        on_loss: called whenever a connection broke or a master changed: its newest writes may be gone.
    """

    def __init__(self, nodes: Sequence[tuple[str, int]], *, connections: int, wait_s: float, **options: Any) -> None:
        # Without full coverage: where some slots have no master, the runs of the others go on.
        super().__init__(
            startup_nodes=[ClusterNode(host, port) for host, port in nodes], max_connections=_NO_BOUND,
            require_full_coverage=False, **options,
        )  # fmt: skip
        manager = self.nodes_manager
        for node in manager.startup_nodes.values():
            node.connection_class = noticing(node.connection_class)
            manager.connection_kwargs["connection_class"] = node.connection_class  # of those that are found
        self._room = asyncio.Semaphore(connections)
        self._wait_s = wait_s
        self._refreshing = asyncio.Lock()
        self._refreshed_at = float("-inf")
        self._seeds = dict(self.nodes_manager.startup_nodes)
        self.on_loss: list[Callable[[], None]] = []

    # --- the topology --------------------------------------------------------------------------------------------

    async def initialize(self, *_: Any, **__: Any) -> ClusterClient:
        """Load the owners of the slots, unless they are loaded."""
        if self._initialize:
            await self._refresh(None)
        return self

    async def _refresh(self, failed: str | None) -> None:
        """Load the owners of the slots again, unless another call just did.

        Args:
            failed: name of a node that was away; it is asked last.
        """
        async with self._refreshing:
            if not self._initialize and time.monotonic() - self._refreshed_at < REFRESH_EVERY_S:
                return
            manager = self.nodes_manager
            known = list(manager.nodes_cache.items())
            random.shuffle(known)
            nodes = dict(known)
            for name, node in self._seeds.items():  # all others may have moved to other addresses
                nodes.setdefault(name, node)
            if failed in nodes:
                nodes[failed] = nodes.pop(failed)
            try:
                first = await first_to_answer(list(nodes.values()))
                manager.startup_nodes = {first.name: first}
                await manager.initialize()
            except AuthenticationError:
                raise
            except (RedisClusterException, LookupError, AttributeError, TypeError, ValueError) as error:
                if isinstance(error.__cause__, AuthenticationError):
                    raise error.__cause__ from error
                raise ConnectionError(f"no node of the cluster says who has which slots ({error})") from error
            self._initialize = False
            self._refreshed_at = time.monotonic()

    def masters(self) -> list[str]:
        """Return the names (``host:port``) of the masters that have slots, in order; ``initialize`` it first."""
        return sorted({nodes[0].name for nodes in self.nodes_manager.slots_cache.values() if nodes})

    def master_of(self, key: str) -> str:
        """Return the name of the master that has a key. Raises ClusterDownError where none has."""
        return self._master(self.keyslot(key)).name

    def key_of_each(self, key: str) -> dict[str, str]:
        """Return for each master a key beginning with ``key`` that it has."""
        found = dict[str, str]()
        masters = self.masters()
        for number in range(1 << 16):
            if len(found) == len(masters):
                break
            one = f"{key}:{{{number}}}"
            nodes = self.nodes_manager.slots_cache.get(self.keyslot(one))
            if nodes:
                found.setdefault(nodes[0].name, one)
        return found

    def _master(self, slot: int | None) -> ClusterNode:
        nodes = self.nodes_manager.slots_cache.get(slot) if slot is not None else None
        if nodes:
            return nodes[0]
        if slot is not None:
            raise ClusterDownError(f"no master has slot {slot}")
        names = self.masters()
        if not names:
            raise ClusterDownError("no master has any slot")
        return self.nodes_manager.nodes_cache[random.choice(names)]

    def _slot(self, args: Sequence[Any]) -> int | None:
        """Return the slot of a command by its first key, None where it has none. Redis refuses keys of two slots."""
        name = str(args[0]).upper()
        if name.partition(" ")[0] in _KEYLESS:
            return None
        if name == "EVAL":
            key = args[3]
        elif name in ("XREAD", "XREADGROUP"):
            key = args[next(at for at, word in enumerate(args) if word in ("STREAMS", b"STREAMS")) + 1]
        else:
            key = args[1]
        return key_slot(self.encoder.encode(key))  # type: ignore[no-untyped-call]

    # --- one call ------------------------------------------------------------------------------------------------

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Carry out one command where its key is."""

        async def work(node: ClusterNode, asking: bool) -> Any:
            (answer,) = await self._exchange(node, [args], asking=asking)
            if isinstance(answer, Exception):
                raise answer
            return answer

        async with Room(self._room, self._wait_s):
            return self._read((args, options), await self._at(self._slot(args), work))

    def pipeline(self, transaction: bool | None = True, shard_hint: Any = None) -> Any:
        """Return a batch of commands; with ``transaction`` all of one slot, carried out together or not at all."""
        return ClusterBatch(self, transaction=bool(transaction))

    async def on_node(self, name: str, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Return the answers of one node to commands on one connection, exceptions of Redis among them.

        Tried once: the next call knows who is in its place.

        Raises:
            ConnectionError: it is away, or no node of the cluster any more.
        """
        node = self.nodes_manager.nodes_cache.get(name)
        if node is None:
            raise ConnectionError(f"{name} is no node of the cluster any more")
        try:
            answers = await self._exchange(node, commands)
        except _AGAIN as error:
            await self._lost(node, error)
            with contextlib.suppress(ConnectionError):  # the error of the node has more detail
                await self._refresh(name)
            raise
        return [self._read((tuple(args), {}), answer) for args, answer in zip(commands, answers, strict=True)]

    async def _exchange(
        self, node: ClusterNode, commands: Sequence[Sequence[Any]], *, asking: bool = False
    ) -> list[Any]:
        try:
            return await exchange(node, commands, asking=asking)
        except asyncio.CancelledError:  # mostly by who waited long enough: the next call looks who is in its place
            self._initialize = True
            raise

    def _read(self, command: Command, answer: Any) -> Any:
        """Return a reply as redis-py reads it."""
        args, options = command
        callback = self.response_callbacks.get(args[0])
        if callback is None or isinstance(answer, Exception):
            return answer
        return callback(answer, **{name: value for name, value in options.items() if name != "keys"})

    async def _at(self, slot: int | None, work: Callable[[ClusterNode, bool], Awaitable[_T]]) -> _T:
        """Do ``work`` with the node that has a slot, wherever the slot moves; ``work`` raises the errors of Redis."""
        await self.initialize()
        away, asked = 0, None
        for turn in range(1, REDIRECTS + 1):
            node = None
            try:
                node = asked or self._master(slot)
                return await work(node, asked is not None)
            except AskError as error:  # MovedError is one
                if turn == REDIRECTS:
                    raise TryAgainError(f"slot {error.slot_id} is moving") from error
                asked = await self._redirected(error)
            except TryAgainError:
                if turn == REDIRECTS:
                    raise
                asked = None
                await asyncio.sleep(TRY_AGAIN_S)
            except _AGAIN as error:  # a refused login too: a master that was killed may come back without its users
                away += 1
                if node is not None:
                    await self._lost(node, error)
                if away > RETRIES:
                    raise
                await self._refresh(None if node is None else node.name)
                asked = None
        raise TryAgainError("the slot moves on and on")

    async def _redirected(self, error: AskError) -> ClusterNode | None:
        """Note where a slot is now; returns the node for this one call, None where the topology has it."""
        manager = self.nodes_manager
        if isinstance(error, MovedError):
            manager.slots_cache.setdefault(error.slot_id, [])
            await manager.move_slot(error)
            return None
        node = manager.get_node(host=error.host, port=error.port)
        if node is None:  # it takes its first slot, and the topology is older
            node = ClusterNode(error.host, error.port, "primary", **manager.connection_kwargs)
            manager.set_nodes(manager.nodes_cache, {node.name: node})
        return node

    async def _lost(self, node: ClusterNode, error: BaseException) -> None:
        """Note that a node was away: its other connections are dead too, and its newest writes may be gone."""
        if isinstance(error, ClusterDownError):
            return
        node.update_active_connections_for_reconnect()
        await node.disconnect_free_connections()
        for tell in self.on_loss:
            tell()

    async def aclose(self) -> None:
        """Close all connections."""
        self._initialize = True
        self.nodes_manager.startup_nodes |= self._seeds
        for nodes in ("nodes_cache", "startup_nodes"):
            await self.nodes_manager.aclose(nodes)

    # --- many calls ----------------------------------------------------------------------------------------------

    async def scattered(self, commands: Sequence[Command]) -> list[Any]:
        """Carry out commands, those of each node in one trip; return the answers, errors of Redis among them.

        A node that is away fails its own commands only.
        """
        answers: list[Any] = [None] * len(commands)
        async with Room(self._room, self._wait_s):
            await self.initialize()
            todo = list(range(len(commands)))
            for attempt in range(RETRIES + 1):
                await self._scatter(commands, todo, answers)
                todo = [at for at in todo if isinstance(answers[at], _AGAIN)]
                moved = [at for at in todo if isinstance(answers[at], (AskError, TryAgainError))]
                for at in moved:
                    answers[at] = await self._alone(commands[at])
                todo = [at for at in todo if isinstance(answers[at], _AGAIN) and at not in set(moved)]
                if not todo or attempt == RETRIES:
                    break
                try:
                    await self._refresh(None)
                except ConnectionError:
                    break
        return [self._read(command, answer) for command, answer in zip(commands, answers, strict=True)]

    async def _scatter(self, commands: Sequence[Command], todo: Sequence[int], answers: list[Any]) -> None:
        by_node = dict[ClusterNode, list[int]]()
        for at in todo:
            try:
                by_node.setdefault(self._master(self._slot(commands[at][0])), []).append(at)
            except ClusterDownError as error:
                answers[at] = error

        async def ask(node: ClusterNode, places: list[int]) -> None:
            found: Sequence[Any]
            try:
                found = await self._exchange(node, [commands[at][0] for at in places])
            except _AGAIN as error:
                await self._lost(node, error)
                found = [error] * len(places)
            for at, answer in zip(places, found, strict=True):
                answers[at] = answer

        await asyncio.gather(*(ask(node, places) for node, places in by_node.items()))

    async def _split_command_across_slots(self, command: str, *keys: Any) -> int:  # type: ignore[override]
        """Split redis-py's DEL, EXISTS and UNLINK: one command a slot, and the sum of the answers."""
        by_slot = self._partition_keys_by_slot(keys)
        answers = await self.scattered([((command, *some), {}) for some in by_slot.values()])
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return sum(answers)

    async def _alone(self, command: Command) -> Any:
        async def work(node: ClusterNode, asking: bool) -> Any:
            (answer,) = await self._exchange(node, [command[0]], asking=asking)
            if isinstance(answer, _AGAIN):
                raise answer
            return answer

        try:
            return await self._at(self._slot(command[0]), work)
        except _AGAIN as error:
            return error

    async def together(self, commands: Sequence[Command]) -> list[Any]:
        """Carry out commands of one slot in a transaction; return the answers.

        Raises:
            RedisClusterException: they are of several slots.
            ResponseError: Redis refused one of them, and so all.
        """
        slots = {self._slot(args) for args, _ in commands}
        if len(slots) != 1:
            raise RedisClusterException(f"a transaction over {len(slots)} slots: {[args[:2] for args, _ in commands]}")

        async def work(node: ClusterNode, asking: bool) -> list[Any]:
            wire = [("MULTI",), *(args for args, _ in commands), ("EXEC",)]
            *queued, done = await self._exchange(node, wire, asking=asking)
            if isinstance(done, ExecAbortError):
                raise next((answer for answer in queued if isinstance(answer, Exception)), done)
            if isinstance(done, Exception):
                raise done
            return list(done)

        async with Room(self._room, self._wait_s):
            answers = await self._at(slots.pop(), work)
        return [self._read(command, answer) for command, answer in zip(commands, answers, strict=True)]
