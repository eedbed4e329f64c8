"""Whether a Redis can hold the runs: a fault stops the start, in a sentence with advice.

An answer that a managed service withholds is passed over. ``doctor`` and ``up`` try each command that a user needs:
within MULTI Redis checks the rights of a command and carries out nothing, and DISCARD forgets them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, ConnectionError, NoPermissionError, RedisError, ResponseError

from stabilitybackend.base.errors import RedisStartError
from stabilitybackend.base.redis_address import RedisAddress, shown_url
from stabilitybackend.storage.redis_link.clients import make_redis, sentinel_of
from stabilitybackend.storage.redis_link.cluster import ClusterClient
from stabilitybackend.storage.redis_server.binary import OLDEST_VERSION

__all__ = [
    "NEEDED",
    "NEEDED_OF_CLUSTER",
    "NEEDED_SINCE_7_2",
    "acl_line",
    "check_server",
    "infos_of",
    "named",
    "version_of",
]

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
#: Keys of the trials: they begin as all keys of the server do.
_KEY = "sb:allowed"
#: MULTI, EXEC and DISCARD can't be tried within MULTI: they carry the trial. The last one is only wished for.
_NOT_TRIED = frozenset({"multi", "exec", "discard", "client|setinfo"})
_NO_KEY = re.compile("access (a|one of the) key")
_Command = tuple[Any, ...]


def acl_line(name: str = "stabilityboard", *, cluster: bool = True) -> str:
    """Return the command that makes a user with exactly these rights, to be copied; PASSWORD is to be replaced.

    On Redis >= 7.2 and Valkey also ``NEEDED_SINCE_7_2``.
    """
    needed = [*NEEDED, *(NEEDED_OF_CLUSTER if cluster else ())]
    return f"ACL SETUSER {name} on >PASSWORD resetkeys ~sb:* resetchannels -@all " + " ".join(
        f"+{one}" for one in needed
    )


async def missing(redis: Redis | ClusterClient) -> list[str]:
    """Return the missing rights of the user: commands as in an ACL, and ``~sb:*`` for the server's keys.

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
        if isinstance(answer, NoPermissionError) or "NOPERM" in str(answer)  # EXEC aborts for that
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


SLOTS = 16_384
#: A node that starts, or whose cluster was just made, answers "fail" until it has met the others: 2 to 5 s in Redis and
#: Valkey (CLUSTER_WRITABLE_DELAY and CLUSTER_MAX_REJOIN_DELAY of their cluster.c).
JOINING_S = 6.0
LOOK_AGAIN_S = 0.25


async def check_server(redis: Redis | ClusterClient, url: str) -> str:
    """Return the server's name and version, for example ``valkey 9.1.2``.

    Raises:
        RedisStartError: it can't be reached (code ``redis_away``), refuses us or a command that we need, is older than
            6.2, differs from its URL, or can't hold the server's keys: a replica, a cluster without all slots.
    """
    place = shown_url(url)
    address = RedisAddress.of(url)
    try:
        if address.kind == "cluster":
            await _check_nodes(address, place)
        elif address.kind == "sentinel":
            await _check_sentinels(address, place)
        lacking = await missing(redis)
        if lacking:
            raise _lacking(lacking, address, place)
        infos = await infos_of(redis, "server")
        if not isinstance(redis, ClusterClient):
            (info,) = infos.values()
            _check_mode(info, address, place)
            _check_role((await infos_of(redis, "replication"))[""], address, place)
    except AuthenticationError as error:
        raise RedisStartError(
            f"Redis at {place} refused the login: {error}", hint="put user and password into --redis-url"
        ) from error
    except NoPermissionError as error:
        raise _lacking([], address, place, str(error)) from error
    except (RedisError, OSError) as error:
        raise _away(error, address, place) from error
    except (TypeError, ValueError) as error:  # redis-py hands the query of the URL to its connections
        raise RedisStartError(
            f"Redis at {place} can't be used with the options behind the '?' of its URL: {error}",
            hint="leave them out of --redis-url, or correct them",
        ) from error
    _check_versions(infos, place)
    names = sorted({named(info).replace(" is version", "") for info in infos.values()})
    return " and ".join(names) + (f", a cluster of {len(infos)} masters" if address.kind == "cluster" else "")


def _check_versions(infos: Mapping[str, Mapping[str, Any]], place: str) -> None:
    for node, info in infos.items():
        if version_of(info) < OLDEST_VERSION:
            oldest = ".".join(map(str, OLDEST_VERSION))
            raise RedisStartError(
                f"{named(info)} at {node or place}, expected {oldest} or newer",
                hint="upgrade it, or leave --redis-url out to use the embedded server",
            )


def version_of(info: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the version in INFO, of Valkey its own."""
    version = str(info.get("valkey_version") or info.get("redis_version") or "0")
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())


def named(info: Mapping[str, Any]) -> str:
    """Return the name and version in INFO: ``redis is version 7.0.15``."""
    version = str(info.get("valkey_version") or info.get("redis_version") or "0")
    return f"{info.get('server_name') or 'redis'} is version {version}"


async def infos_of(redis: Redis | ClusterClient, section: str) -> dict[str, dict[str, Any]]:
    """Return a section of INFO of each master, of a single server under the name ""."""
    if not isinstance(redis, ClusterClient):
        return {"": await redis.info(section)}
    await redis.initialize()
    found = {}
    for node in redis.masters():
        try:
            (answer,) = await redis.on_node(node, [("INFO", section)])
        except (RedisError, OSError):
            continue  # the others can be used; that one is named by the cluster's own report
        if isinstance(answer, Exception):
            raise answer
        found[node] = answer
    return found


# --- faults that stop the start ------------------------------------------------------------------------------------


async def _check_nodes(address: RedisAddress, place: str) -> None:
    """Look at each node that the URL names: all must be of one cluster, which has all its slots."""
    end = time.monotonic() + JOINING_S
    while True:
        facts = await asyncio.gather(*(_facts(address, host, port) for host, port in address.nodes))
        answered = [fact for fact in facts if isinstance(fact, _NodeFacts)]
        if not answered:
            raise next(fact for fact in facts if isinstance(fact, Exception))
        if not any(fact.joins for fact in answered) or time.monotonic() > end:
            break
        await asyncio.sleep(LOOK_AGAIN_S)
    first = answered[0]
    for fact in answered:
        if fact.myid and first.ids and fact.myid not in first.ids:
            raise RedisStartError(
                f"{fact.name} and {first.name} in {place} are nodes of two clusters, expected nodes of one",
                hint="leave the nodes of the other cluster out of --redis-url",
            )
    assigned = first.assigned
    if assigned < SLOTS:
        raise RedisStartError(
            f"the cluster at {place} has {assigned:,} of {SLOTS:,} slots, expected all: "
            + ("it was never made" if not assigned else "a part of all keys can't be stored"),
            hint="make it with: redis-cli --cluster create HOST:PORT ... --cluster-replicas 1"
            if not assigned
            else f"give the missing slots to a node: redis-cli --cluster fix {first.name}",
        )
    if not first.is_ok:
        failing = f"{first.failing:,} of {SLOTS:,} slots have no master that answers"
        raise RedisStartError(
            f"the cluster at {place} is down: "
            + (failing if first.failing else f"{first.name} does not reach most of its masters"),
            hint=f"start its nodes again; see: redis-cli --cluster check {first.name}",
            code="redis_away",
        )


@dataclass(frozen=True, slots=True)
class _NodeFacts:
    name: str
    myid: str
    ids: frozenset[str]
    info: dict[str, str]

    @property
    def assigned(self) -> int:
        """How many slots some master has."""
        return int(self.info.get("cluster_slots_assigned", SLOTS))

    @property
    def failing(self) -> int:
        """How many of them have one that does not answer."""
        return int(self.info.get("cluster_slots_fail", 0)) + int(self.info.get("cluster_slots_pfail", 0))

    @property
    def is_ok(self) -> bool:
        """Whether it serves requests."""
        return self.info.get("cluster_state", "ok") == "ok"

    @property
    def joins(self) -> bool:
        """Whether its only fault is that it is not ready yet."""
        return not self.is_ok and self.assigned == SLOTS and not self.failing


async def _facts(address: RedisAddress, host: str, port: int) -> _NodeFacts | Exception:
    """Return the node's report of its cluster, or the reason for its silence. Raises RedisStartError: it is in none."""
    client = make_redis(address.of_node(host, port), connections=1)
    name = f"{host}:{port}"
    try:
        info = (await client.execute_command(b"CLUSTER", "INFO")).decode()
        myid, nodes = "", ""
        with contextlib.suppress(ResponseError):  # a managed service may withhold it
            myid = (await client.execute_command(b"CLUSTER", "MYID")).decode()
            nodes = (await client.execute_command(b"CLUSTER", "NODES")).decode()
    except NoPermissionError:
        raise
    except ResponseError as error:
        if "cluster support disabled" not in str(error) and "unknown command" not in str(error):
            return error
        raise RedisStartError(
            f"Redis at {name} is no node of a Redis Cluster, but the URL says redis+cluster://",
            hint=f"for a single server give --redis-url {'rediss' if address.tls else 'redis'}://{name}; "
            f"for a Sentinel redis+sentinel://{name}/name",
        ) from error
    except (RedisError, OSError) as error:
        return error
    finally:
        await client.aclose()
    pairs = (line.partition(":") for line in info.splitlines())
    return _NodeFacts(
        name, myid, frozenset(line.split()[0] for line in nodes.splitlines()), {key: value for key, _, value in pairs}
    )


async def _check_sentinels(address: RedisAddress, place: str) -> None:
    """Ask the Sentinels of the URL whether they know the name."""
    manager = sentinel_of(address)
    known, away = set[str](), None
    try:
        for sentinel, (host, port) in zip(manager.sentinels, address.nodes, strict=True):
            try:
                known |= {str(name) for name in await sentinel.sentinel_masters()}
            except AuthenticationError as error:
                raise RedisStartError(
                    f"the Sentinel at {host}:{port} refused the login: {error}",
                    hint="put its password into --redis-url: ?sentinel_password=... (and sentinel_username)",
                ) from error
            except ResponseError as error:
                if "unknown command" not in str(error):
                    raise
                raise RedisStartError(
                    f"Redis at {host}:{port} is no Sentinel, but the URL says redis+sentinel://",
                    hint=f"for a single server give --redis-url {'rediss' if address.tls else 'redis'}://{host}:{port}",
                ) from error
            except (RedisError, OSError) as error:
                away = error
    finally:
        await manager.aclose()
    if away is not None and not known:
        raise away
    if address.name not in known:
        names = ", ".join(sorted(known)) or "nothing"
        raise RedisStartError(
            f"the Sentinels at {place} don't know {address.name!r}; they watch {names}",
            hint="put the name of what they watch behind the hosts: redis+sentinel://host:port/name",
        )


def _check_mode(info: Mapping[str, object], address: RedisAddress, place: str) -> None:
    mode = str(info.get("redis_mode") or info.get("server_mode") or "standalone")
    scheme = "rediss" if address.tls else "redis"
    if mode == "cluster":
        raise RedisStartError(
            f"Redis at {place} is a node of a Redis Cluster, expected a single server",
            hint=f"give --redis-url {scheme}+cluster://{_hosts(address)}, and some more of its nodes after a comma",
        )
    if mode == "sentinel":
        raise RedisStartError(
            f"Redis at {place} is a Sentinel, which holds no data: expected the server that it watches",
            hint=f"give --redis-url {scheme}+sentinel://{_hosts(address)}/NAME; NAME is what it calls the server, see: "
            "redis-cli -p PORT sentinel masters",
        )


def _hosts(address: RedisAddress) -> str:
    return ",".join(f"{host}:{port}" for host, port in address.nodes)


def _check_role(info: Mapping[str, object], address: RedisAddress, place: str) -> None:
    if info.get("role") != "slave":
        return
    primary = f"{info.get('master_host')}:{info.get('master_port')}"
    if address.kind == "sentinel":
        raise RedisStartError(
            f"the Sentinels at {place} name a replica of {primary} as primary: a failover is under way",
            hint="try it again in some seconds", code="redis_away",
        )  # fmt: skip
    raise RedisStartError(
        f"Redis at {place} is a replica of {primary}, expected a server that takes writes and keeps them",
        hint=f"give the address of its primary to --redis-url (redis://{primary})",
    )


def _lacking(lacking: list[str], address: RedisAddress, place: str, said: str = "") -> RedisStartError:
    user = address.login.rstrip("@").partition(":")[0] or "default"
    keys = "~sb:*" in lacking
    commands = [one for one in lacking if one != "~sb:*"]
    what = " and ".join(
        [f"may not use {', '.join(one.replace('|', ' ').upper() for one in commands)}"] * bool(commands)
        + ["may not touch keys that begin with sb:"] * keys
    )
    allow = " ".join(["~sb:*"] * keys + [f"+{one}" for one in commands])
    return RedisStartError(
        f"the user {user} of Redis at {place} {what or f'may not do what we need ({said})'}",
        hint=f"allow it: ACL SETUSER {user} {allow}".rstrip() + " (docs/operations.md has all that is needed)",
        lacking=tuple(lacking),
    )


def _away(error: BaseException, address: RedisAddress, place: str) -> RedisStartError:
    text = str(error)
    hint = "start it, correct --redis-url, or leave --redis-url out to use the embedded server"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        if "Hostname mismatch" in text or "IP address mismatch" in text:
            hint = "give the name that its certificate has to --redis-url, or let its certificate have this one"
            if address.kind != "one":
                hint += "; nodes are met under the addresses that they announce (cluster-announce-hostname)"
        else:
            hint = "name the certificate of who signed it: ?ssl_ca_certs=/path/ca.pem behind --redis-url"
        return RedisStartError(f"the certificate of Redis at {place} is not trusted: {text}", hint=hint)
    if address.tls and "Timeout connecting" in text:  # a server without TLS waits for the rest of a command
        hint = "it may speak no TLS: write redis in place of rediss. Else it is away: start it, or correct --redis-url"
    elif "WRONG_VERSION_NUMBER" in text or "SSL:" in text or "record layer failure" in text:
        hint = (
            "it may speak no TLS: write redis in place of rediss; or it wants a certificate of ours (?ssl_certfile=...)"
        )
    elif "Connection closed by server" in text or "Connection reset" in text:
        hint = f"it may want TLS: write rediss in place of redis. Else {hint}" if not address.tls else hint
    return RedisStartError(f"Redis at {place} can't be reached: {text}", hint=hint, code="redis_away")
