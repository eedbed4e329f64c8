"""Which errors of Redis mean "not now", and the text of its answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import (
    AskError,
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

from stabilitybackend.base.errors import Unavailable

__all__ = ["POOL_WAIT_S", "answer_of", "as_unavailable", "redis_errors"]

#: Seconds that a call waits for a free connection; only a Redis that hardly answers makes it as long.
POOL_WAIT_S = 10.0
#: Answers that mean "not now". Every other refusal of Redis is a defect of the server.
_AWAY = (
    ConnectionError,
    TimeoutError,
    BusyLoadingError,
    ReadOnlyError,
    OutOfMemoryError,
    ClusterDownError,
    TryAgainError,
    AskError,  # and MovedError: a slot that moved on while it was followed
)
#: Error codes without a class of their own in redis-py: disk full or failing, replica without master, and the like.
_AWAY_CODES = ("MISCONF", "MASTERDOWN", "NOREPLICAS", "LOADING", "OOM", "READONLY", "CLUSTERDOWN")
#: Message of redis-py when all connections of the pool are in use.
_NONE_FREE = "No connection available."


def answer_of(error: BaseException) -> str:
    """Return the answer of Redis: of a pipeline redis-py puts the number of the command and its text before it."""
    _, pipeline, text = str(error).rpartition(" of pipeline caused error: ")
    return text.lstrip("('\"").rstrip("),'\"") if pipeline else text


def as_unavailable(error: BaseException) -> Unavailable | None:
    """Return Unavailable if ``error`` means that Redis is away for now, else None."""
    away = isinstance(error, (OSError, *_AWAY)) or (
        isinstance(error, ResponseError) and answer_of(error).startswith(_AWAY_CODES)
    )
    if not away:
        return None
    if str(error) == _NONE_FREE:  # it may be up: no request was sent
        text = f"Redis is slow: no connection to it became free within {POOL_WAIT_S:g} s"
    elif isinstance(error, (AskError, TryAgainError)):
        text = "Redis moves a part of its data to another node"
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
