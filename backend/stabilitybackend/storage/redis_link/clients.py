"""Clients of Redis or Valkey: of one server, of a cluster, or of a primary that Sentinels watch.

One place decides on time limits, retries and reply shapes, so that all parts see the same: bytes in and out, RESP2
(the same replies from every server >= 6.2), a dead server noticed within seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis, Sentinel, SentinelConnectionPool, SSLConnection
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff, NoBackoff

from stabilitybackend.base.errors import RedisStartError
from stabilitybackend.base.redis_address import RedisAddress, shown_url
from stabilitybackend.storage.redis_link.away import POOL_WAIT_S
from stabilitybackend.storage.redis_link.closed import noticing
from stabilitybackend.storage.redis_link.cluster import ClusterClient

__all__ = ["InRedis", "make_redis", "make_watchful", "sentinel_of"]

#: A reply that takes longer than this many seconds counts as a dead server.
SOCKET_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 3.0
#: The same of a node of a cluster: one that is gone has a successor, which is asked only then.
NODE_CONNECT_TIMEOUT_S = 1.0
#: The same of a Sentinel, both: there are others, and they are asked one after the other.
SENTINEL_TIMEOUT_S = 1.0
#: Most connections of one client. None is held for longer than an answer takes, but for those that wait on streams.
MAX_CONNECTIONS = 32
#: One immediate retry: a pooled connection to a restarted server is dead, a new one works.
_RETRIES = 1
_RETRY_FIRST_S = 0.02
_RETRY_MAX_S = 0.2


class InRedis:
    """Store of the server in Redis outside the runs; ``clock`` returns unix seconds."""

    def __init__(self, redis: Redis, clock: Callable[[], float] = time.time) -> None:
        self._redis = redis
        self._clock = clock


class _SentinelPool(SentinelConnectionPool, BlockingConnectionPool):
    """Connections to the server that is the primary by now; a call that finds none free waits for one."""

    async def disconnect(self, inuse_connections: bool = True) -> None:
        await super().disconnect(inuse_connections)
        if inuse_connections:  # the client closes: redis-py leaves those to the Sentinels open
            await self.sentinel_manager.aclose()


def make_redis(url: str, *, connections: int = MAX_CONNECTIONS) -> Any:
    """Return a client for ``url`` (see ``redis_address``). It connects on first use.

    All writes of this product may be sent twice without harm, which is why a retry is safe here.

    Args:
        connections: most of them; a call that finds none free waits for one. Each client has its own, so that the
            calls of one can't starve those of another.

    Returns:
        A ``redis.asyncio.Redis``, or of a cluster a client with the same commands.

    Raises:
        RedisStartError: an option behind the ``?`` of a cluster's or a Sentinel's URL is unknown.
    """
    address = RedisAddress.of(url)
    pooled: dict[str, Any] = {"max_connections": connections, "timeout": POOL_WAIT_S}
    if address.kind == "one":
        pool = BlockingConnectionPool.from_url(url, **_limits(), **pooled)
        pool.connection_class = noticing(pool.connection_class)
        return Redis.from_pool(pool)
    try:
        given = dict(parse_url(address.of_node(*address.nodes[0])))
        options = {**given, "ssl": given.pop("connection_class", None) is SSLConnection, **_limits()}
        for unused in ("host", "port", "connection_class"):
            options.pop(unused, None)
        if address.kind == "cluster":
            options.pop("retry")
            options["socket_connect_timeout"] = NODE_CONNECT_TIMEOUT_S
            return ClusterClient(address.nodes, connections=connections, wait_s=POOL_WAIT_S, **options)
        client = sentinel_of(address).master_for(
            address.name, connection_pool_class=_SentinelPool, db=address.database or 0, **pooled,
            **{name: value for name, value in options.items() if not name.startswith("sentinel_")},
        )  # fmt: skip
        client.connection_pool.connection_class = noticing(client.connection_pool.connection_class)
        return client
    except (TypeError, ValueError) as error:  # redis-py hands the query of the URL to its connections
        raise RedisStartError(
            f"Redis at {shown_url(url)} can't be used with the options behind the '?' of its URL: {error}",
            hint="leave them out of --redis-url, or correct them",
        ) from error


def sentinel_of(address: RedisAddress) -> Sentinel:
    """Return the Sentinel client of an address: ``sentinel_username`` and ``sentinel_password`` log in there."""
    given = dict(parse_url(address.of_node(*address.nodes[0])))
    tls = given.pop("connection_class", None) is SSLConnection
    options: dict[str, Any] = {name: value for name, value in given.items() if name.startswith("ssl_")}
    for name in ("username", "password"):
        if f"sentinel_{name}" in given:
            options[name] = given[f"sentinel_{name}"]
    return Sentinel(  # type: ignore[no-untyped-call]
        address.nodes,
        sentinel_kwargs={
            "ssl": tls, "protocol": 2, "socket_timeout": SENTINEL_TIMEOUT_S,
            "socket_connect_timeout": SENTINEL_TIMEOUT_S, "retry": Retry(NoBackoff(), 0), **options,
        },
    )  # fmt: skip


def _limits() -> dict[str, Any]:
    return {
        "protocol": 2,
        "decode_responses": False,
        "socket_timeout": SOCKET_TIMEOUT_S,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        # No PING before a command: a Redis whose disk is full refuses it and would still be read.
        "health_check_interval": 0,
        "retry": Retry(ExponentialBackoff(cap=_RETRY_MAX_S, base=_RETRY_FIRST_S), _RETRIES),
        "client_name": "stabilityboard",
    }


def make_watchful(redis: Redis) -> Redis:
    """Return a client of the same single server that holds one connection and hides no loss.

    The usual clients retry immediately, and so do not notice a server that was killed and restarted within
    milliseconds, without its newest writes.
    """
    pool = redis.connection_pool
    options = {**pool.connection_kwargs, "retry": Retry(NoBackoff(), 0), "health_check_interval": 0}
    own = ConnectionPool(connection_class=pool.connection_class, max_connections=1, **options)
    client = Redis(connection_pool=own, single_connection_client=True)
    client.auto_close_connection_pool = True
    return client
