"""The commands that a Redis user needs to be allowed, and whether one is.

``doctor`` and ``up`` try each of them: within MULTI Redis looks at the rights of a command and carries out nothing, and
DISCARD forgets them all.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ConnectionError, NoPermissionError

from stabilitybackend.storage.redis_link.cluster import ClusterClient

__all__ = ["NEEDED", "NEEDED_OF_CLUSTER", "NEEDED_SINCE_7_2", "acl_line", "missing"]

#: Command -> arguments of a right shape, "k" for a key. Some are called from within scripts only.
NEEDED: Mapping[str, Sequence[str]] = {
    "get": ("k",),
    "set": ("k", "v"),
    "del": ("k",),
    "exists": ("k",),
    "expire": ("k", "1"),
    "pexpire": ("k", "1"),
    "unlink": ("k",),
    "hdel": ("k", "f"),
    "hexists": ("k", "f"),
    "hget": ("k", "f"),
    "hgetall": ("k",),
    "hincrby": ("k", "f", "1"),
    "hkeys": ("k",),
    "hlen": ("k",),
    "hmget": ("k", "f"),
    "hset": ("k", "f", "v"),
    "hsetnx": ("k", "f", "v"),
    "hvals": ("k",),
    "lrange": ("k", "0", "0"),
    "ltrim": ("k", "0", "0"),
    "rpush": ("k", "v"),
    "sadd": ("k", "v"),
    "scard": ("k",),
    "sismember": ("k", "v"),
    "smembers": ("k",),
    "smove": ("k", "k", "v"),
    "srem": ("k", "v"),
    "sunion": ("k",),
    "zadd": ("k", "1", "v"),
    "zcard": ("k",),
    "zcount": ("k", "0", "0"),
    "zmscore": ("k", "v"),
    "zrange": ("k", "0", "0"),
    "zrangebyscore": ("k", "0", "0"),
    "zrem": ("k", "v"),
    "zremrangebyscore": ("k", "0", "0"),
    "zrevrange": ("k", "0", "0"),
    "zrevrangebyscore": ("k", "0", "0"),
    "zscore": ("k", "v"),
    "xack": ("k", "g", "0-1"),
    "xadd": ("k", "*", "f", "v"),
    "xdel": ("k", "0-1"),
    "xgroup|create": ("k", "g", "0"),
    "xlen": ("k",),
    "xrange": ("k", "-", "+"),
    "xread": ("STREAMS", "k", "0"),
    "xreadgroup": ("GROUP", "g", "c", "STREAMS", "k", ">"),
    "xrevrange": ("k", "+", "-"),
    "xtrim": ("k", "MAXLEN", "1"),
    "eval": ("return 1", "1", "k"),
    "multi": (),
    "exec": (),
    "discard": (),
    "watch": ("k",),
    "unwatch": (),
    "info": ("server",),
    "ping": (),
    "select": ("0",),
    "time": (),
    "wait": ("0", "1"),
    "client|setname": ("stabilityboard",),
}
#: The same, of Redis >= 7.2 and Valkey; an older one knows no such command, and refuses a line with it.
NEEDED_SINCE_7_2: Mapping[str, Sequence[str]] = {
    "waitaof": ("0", "0", "1"),
    "client|setinfo": ("LIB-NAME", "redis-py"),
}
#: The same, on a cluster.
NEEDED_OF_CLUSTER: Mapping[str, Sequence[str]] = {
    "cluster|info": (),
    "cluster|myid": (),
    "cluster|nodes": (),
    "cluster|slots": (),
    "asking": (),
}
#: Keys that are tried: they begin as ours do.
_KEY = "sb:allowed"
#: MULTI, EXEC and DISCARD can't be tried within MULTI: they carry the trial. The last one is only wished for.
_NOT_TRIED = frozenset({"multi", "exec", "discard", "client|setinfo"})
_NO_KEY = re.compile("access (a|one of the) key")
_Command = tuple[Any, ...]


def acl_line(name: str = "stabilityboard", *, cluster: bool = True) -> str:
    """Return the command that makes a user with exactly these rights, to be copied; PASSWORD is to be replaced.

    On Redis >= 7.2 and Valkey what ``NEEDED_SINCE_7_2`` has comes on top.
    """
    needed = [*NEEDED, *(NEEDED_OF_CLUSTER if cluster else ())]
    return f"ACL SETUSER {name} on >PASSWORD resetkeys ~sb:* resetchannels -@all " + " ".join(
        f"+{one}" for one in needed
    )


async def missing(redis: Redis | ClusterClient) -> list[str]:
    """Return what the user may not do of what we need: commands as in an ACL, and ``~sb:*`` for our keys.

    Raises:
        RedisError: Redis is away.
    """
    if not isinstance(redis, ClusterClient):

        async def ask(commands: list[_Command]) -> list[Any]:
            pipe = redis.pipeline(transaction=False)
            for command in commands:
                pipe.execute_command(*command)
            return list(await pipe.execute(raise_on_error=False))

        return await _refused(ask, {**NEEDED, **NEEDED_SINCE_7_2}, _KEY)
    await redis.initialize()
    every = {**NEEDED, **NEEDED_SINCE_7_2, **NEEDED_OF_CLUSTER}
    found = list[str]()
    for node, key in redis.key_of_each(_KEY).items():
        try:
            found += await _refused(partial(redis.on_node, node), every, key)
        except ConnectionError:
            continue  # a node that is away is another trouble
    return list(dict.fromkeys(found))


async def _refused(
    ask: Callable[[list[_Command]], Awaitable[list[Any]]], needed: Mapping[str, Sequence[str]], key: str
) -> list[str]:
    # First that nothing would be carried out: without MULTI the trial would be none.
    begin: list[_Command] = [(b"MULTI",), (b"EXEC",), (b"MULTI",), (b"DISCARD",)]
    found = [
        command[0].decode().lower()
        for command, answer in zip(begin, await ask(begin), strict=True)
        if isinstance(answer, NoPermissionError) or "NOPERM" in str(answer)  # EXEC says that it aborts for that
    ]
    if found:
        return list(dict.fromkeys(found))
    tried = [name for name in needed if name not in _NOT_TRIED]
    # As bytes, so that redis-py does not read "QUEUED" as an answer of the command.
    commands = [
        (*(word.upper().encode() for word in name.split("|")), *(key if one == "k" else one for one in needed[name]))
        for name in tried
    ]
    answers = await ask([(b"MULTI",), *commands, (b"DISCARD",)])
    refused = {
        name: str(answer)
        for name, answer in zip(tried, answers[1:-1], strict=True)
        if isinstance(answer, NoPermissionError)
    }
    return list(dict.fromkeys("~sb:*" if _NO_KEY.search(text) else name for name, text in refused.items()))
