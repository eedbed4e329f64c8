"""Nodes of a cluster whose machine is gone without a word, or that stand still: the others are asked meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from stabilitybackend.schema.runs import StoringProblem
from stabilitybackend.storage.redis_link import ClusterClient, make_redis
from stabilitybackend.storage.redis_link.clients import NODE_CONNECT_TIMEOUT_S
from stabilitybackend.storage.storing import Storing
from support.outside.black_hole import black_hole
from support.redis_servers.cluster import ClusterNode, RedisNodes
from support.waiting import PATIENCE, until, wait_until

KEY = "sb:{run-1}:x"


@pytest.fixture
def own_nodes(tmp_path: Path) -> Iterator[RedisNodes]:
    """A cluster that a test may leave broken."""
    with RedisNodes(tmp_path / "nodes", "--cluster-require-full-coverage", "no") as nodes:
        yield nodes


@contextlib.contextmanager
def gone(nodes: RedisNodes) -> Iterator[ClusterNode]:
    """The machine of the key's master is gone while the context lasts; its replica has taken over."""
    owner = nodes.owner(KEY)
    owner.kill()
    with black_hole(owner.port):
        wait_until(lambda: nodes.owner(KEY, without=owner) is not owner, 20, "its replica has taken over")
        yield owner


@contextlib.contextmanager
def stalled(nodes: RedisNodes) -> Iterator[ClusterNode]:
    """The same of one whose process stands still: it takes connections and answers nothing."""
    owner = nodes.owner(KEY)
    owner.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: nodes.owner(KEY, without=owner) is not owner, 20, "its replica has taken over")
        yield owner
    finally:
        owner.send_signal(signal.SIGCONT)


async def _stored(client: ClusterClient) -> None:
    """Store until it is taken."""

    async def stored() -> bool:
        with contextlib.suppress(RedisError, TimeoutError):
            return bool(await client.set(KEY, "now"))
        return False

    await until(stored, 20, "it is stored")


async def test_once_a_replica_has_taken_over_a_call_waits_for_the_gone_master_as_long_as_one_connection_may_take(
    own_nodes: RedisNodes,
) -> None:
    client = make_redis(own_nodes.url)
    await client.set(KEY, "before")
    with gone(own_nodes):
        began = time.monotonic()
        await _stored(client)
        assert time.monotonic() - began < PATIENCE * 2 * NODE_CONNECT_TIMEOUT_S
    await client.aclose()


async def test_who_has_which_slots_is_learned_though_the_nodes_of_the_address_are_gone(own_nodes: RedisNodes) -> None:
    client = make_redis(own_nodes.url)
    await client.set(KEY, "before")
    with contextlib.ExitStack() as holes:
        for node in own_nodes.masters[:2]:  # those that the address names
            node.kill()
            holes.enter_context(black_hole(node.port))
        await _stored(client)
    await client.aclose()


@pytest.mark.parametrize("away", [gone, stalled])
async def test_that_redis_stores_again_is_found_while_the_old_master_is_still_away(
    away: contextlib.AbstractContextManager[ClusterNode], own_nodes: RedisNodes
) -> None:
    client = make_redis(own_nodes.url, connections=1)
    notes: list[StoringProblem | None] = []
    storing = Storing(client, time.time)
    storing.watch(notes.append)
    await storing.probe()
    assert storing.problem is None
    with away(own_nodes):  # type: ignore[operator]

        async def well() -> bool:
            await storing.probe()
            return storing.problem is None

        await until(well, 20, "the successor of the master is asked")
    await client.aclose()


async def test_a_call_that_was_given_up_lets_the_next_one_look_who_is_in_the_masters_place(
    own_nodes: RedisNodes,
) -> None:
    client = make_redis(own_nodes.url)
    await client.set(KEY, "before")
    with stalled(own_nodes):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.set(KEY, "given up"), 0.2)
        assert await asyncio.wait_for(client.set(KEY, "now"), PATIENCE * 2)
    await client.aclose()
