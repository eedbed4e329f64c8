"""Makes the clients that talk to Redis or Valkey, and checks that the server is new enough.

One place decides on time limits, retries and reply shapes, so that all parts see the same: bytes in and out, RESP2
(the same replies from every server >= 6.2), a dead server noticed within seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)

from stabilitybackend.errors import RedisStartError, Unavailable
from stabilitybackend.redis_server.binary import OLDEST_VERSION

__all__ = [
    "InRedis", "answer_of", "as_unavailable", "check_server", "make_redis", "make_watchful", "redis_errors",
    "shown_url",
]  # fmt: skip

#: A reply that takes longer than this many seconds counts as a dead server.
SOCKET_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 3.0
#: Most connections of one client. None is held for longer than an answer takes, but for those that wait on streams.
MAX_CONNECTIONS = 32
#: Seconds that a call waits for one of them; only a Redis that hardly answers makes it as long.
POOL_WAIT_S = 10.0
#: One more try at once: a pooled connection to a restarted server is dead, a new one works.
_RETRIES = 1
_RETRY_FIRST_S = 0.02
_RETRY_MAX_S = 0.2

#: Answers that mean "not now". Everything else that Redis refuses is a defect of ours.
_AWAY = (
    ConnectionError,
    TimeoutError,
    BusyLoadingError,
    ReadOnlyError,
    OutOfMemoryError,
    ClusterDownError,
    TryAgainError,
)
#: Error codes without a class of their own in redis-py: disk full or failing, replica without master, and the like.
_AWAY_CODES = ("MISCONF", "MASTERDOWN", "NOREPLICAS", "LOADING", "OOM", "READONLY", "CLUSTERDOWN")
#: What redis-py says when all connections of our own pool are in use.
_NONE_FREE = "No connection available."


class InRedis:
    """What the server keeps in Redis beside the runs; ``clock`` returns unix seconds."""

    def __init__(self, redis: Redis, clock: Callable[[], float] = time.time) -> None:
        self._redis = redis
        self._clock = clock


def make_redis(url: str, *, connections: int = MAX_CONNECTIONS) -> Redis:
    """Return a client for ``url`` (``redis://``, ``rediss://``, ``unix://``). It connects on first use.

    All writes of this product may be sent twice without harm, which is why a retry is safe here.

    Args:
        connections: most of them; a call that finds none free waits for one. Each client has its own, so that the
            calls of one can't starve those of another.
    """
    pool = BlockingConnectionPool.from_url(
        url,
        protocol=2,
        decode_responses=False,
        socket_timeout=SOCKET_TIMEOUT_S,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        # No PING before a command: a Redis whose disk is full refuses it and would still be read.
        health_check_interval=0,
        max_connections=connections,
        timeout=POOL_WAIT_S,
        retry=Retry(ExponentialBackoff(cap=_RETRY_MAX_S, base=_RETRY_FIRST_S), _RETRIES),
        client_name="stabilityboard",
    )
    return Redis.from_pool(pool)


def make_watchful(redis: Redis) -> Redis:
    """Return a client of the same server that holds one connection and hides no loss of it.

    The usual clients try again at once, and so do not notice a server that was killed and came back within
    milliseconds, without its newest writes.
    """
    pool = redis.connection_pool
    options = {**pool.connection_kwargs, "retry": Retry(NoBackoff(), 0), "health_check_interval": 0}
    own = ConnectionPool(connection_class=pool.connection_class, max_connections=1, **options)
    client = Redis(connection_pool=own, single_connection_client=True)
    client.auto_close_connection_pool = True
    return client


async def check_server(redis: Redis, url: str) -> str:
    """Return the server's name and version, for example ``valkey 9.1.2``.

    Raises:
        RedisStartError: it can't be reached (code ``redis_away``), refuses us, is older than 6.2, or can't hold our
            keys: a node of a cluster, a Sentinel, a replica.
    """
    place = shown_url(url)
    try:
        info = await redis.info("server")
        _check_mode(info, place)
        _check_role(await redis.info("replication"), place)
    except AuthenticationError as error:
        raise RedisStartError(
            f"Redis at {place} refused the login: {error}", hint="put user and password into --redis-url"
        ) from error
    except (RedisError, OSError) as error:
        raise RedisStartError(
            f"Redis at {place} can't be reached: {error}",
            hint="start it, correct --redis-url, or leave --redis-url out to use the embedded server",
            code="redis_away",
        ) from error
    except (TypeError, ValueError) as error:  # redis-py hands what follows the URL's "?" to its connections
        raise RedisStartError(
            f"Redis at {place} can't be used with the options behind the '?' of its URL: {error}",
            hint="leave them out of --redis-url, or correct them",
        ) from error
    flavour = str(info.get("server_name") or "redis")
    version = str(info.get("valkey_version") or info.get("redis_version") or "0")
    if tuple(int(part) for part in version.split(".")[:3] if part.isdigit()) < OLDEST_VERSION:
        oldest = ".".join(map(str, OLDEST_VERSION))
        raise RedisStartError(
            f"{flavour} at {place} is version {version}, expected {oldest} or newer",
            hint="upgrade it, or leave --redis-url out to use the embedded server",
        )
    return f"{flavour} {version}"


def _check_mode(info: Mapping[str, object], place: str) -> None:
    mode = str(info.get("redis_mode") or info.get("server_mode") or "standalone")
    if mode == "cluster":
        raise RedisStartError(
            f"Redis at {place} is a node of a Redis Cluster, expected a single server or the primary of replicas: "
            "a cluster is not supported yet",
            hint="start a Redis or Valkey with cluster-enabled no and name it with --redis-url, or leave --redis-url "
            "out to use the embedded server",
        )
    if mode == "sentinel":
        raise RedisStartError(
            f"Redis at {place} is a Sentinel, which holds no data: expected the server that it watches",
            hint="ask it with: redis-cli -p PORT sentinel get-master-addr-by-name NAME, and give that address to "
            "--redis-url",
        )


def _check_role(info: Mapping[str, object], place: str) -> None:
    if info.get("role") == "slave":
        primary = f"{info.get('master_host')}:{info.get('master_port')}"
        raise RedisStartError(
            f"Redis at {place} is a replica of {primary}, expected a server that takes writes and keeps them",
            hint=f"give the address of its primary to --redis-url (redis://{primary})",
        )


def answer_of(error: BaseException) -> str:
    """Return what Redis answered: of a pipeline redis-py puts the number of the command and its text before it."""
    _, pipeline, text = str(error).rpartition(" of pipeline caused error: ")
    return text.lstrip("('\"").rstrip("),'\"") if pipeline else text


def as_unavailable(error: BaseException) -> Unavailable | None:
    """Return Unavailable if ``error`` means that Redis is away for now, else None."""
    away = isinstance(error, (OSError, *_AWAY)) or (
        isinstance(error, ResponseError) and answer_of(error).startswith(_AWAY_CODES)
    )
    if not away:
        return None
    if str(error) == _NONE_FREE:  # it may be well: nobody asked it
        text = f"Redis is slow: no connection to it became free within {POOL_WAIT_S:g} s"
    elif isinstance(error, ResponseError):
        text = f"Redis refuses it: {answer_of(error)}"
    else:
        text = f"Redis is away: {error or type(error).__name__}"
    return Unavailable(text, hint="nothing was lost; it is tried again", code="redis_away")


@contextmanager
def redis_errors() -> Iterator[None]:
    """Turn "Redis is away" errors of the block into Unavailable; let all others through."""
    try:
        yield
    except (RedisError, OSError) as error:
        unavailable = as_unavailable(error)
        if unavailable is None:
            raise
        raise unavailable from error


def shown_url(url: str) -> str:
    """Return ``url`` without its password, for messages."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"
