"""Fixtures: a real cluster of three masters with a replica each, and a primary with a replica and a Sentinel."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from stabilitybackend.storage.redis_link import ClusterClient, make_redis
from support.redis_servers.cluster import RedisNodes
from support.redis_servers.sentinel import WatchedRedis


@pytest.fixture(scope="session")
def standing_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisNodes]:
    """One for all tests that leave it as it is; use `nodes`, which empties it first."""
    with RedisNodes(tmp_path_factory.mktemp("cluster") / "nodes") as running:
        yield running


@pytest.fixture
def nodes(standing_cluster: RedisNodes) -> RedisNodes:
    """An empty cluster that is well."""
    standing_cluster.flush()
    return standing_cluster


@pytest.fixture
async def cluster(nodes: RedisNodes) -> AsyncIterator[ClusterClient]:
    """The product's own client of `nodes`."""
    client = make_redis(nodes.url)
    yield client
    await client.aclose()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[WatchedRedis]:
    """A primary, a replica and a Sentinel of the test's own."""
    with WatchedRedis(tmp_path / "watched") as running:
        yield running
