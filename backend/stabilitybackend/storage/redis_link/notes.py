"""Faults of a Redis that can still be used: each in a sentence with advice.

An answer that a managed service withholds is passed over: only proven faults are noted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from stabilitybackend.base.redis_address import RedisAddress, shown_url
from stabilitybackend.storage.redis_link.checks import infos_of, named, version_of
from stabilitybackend.storage.redis_link.cluster import ClusterClient

__all__ = ["RedisNote", "examine_redis"]

#: Below this Redis can't say when it has written to its disk (WAITAOF), which a replica that takes over makes count.
WAITAOF_VERSION = (7, 2)
#: More seconds between the clocks of Redis and of this machine shift results that are counted by stream ids.
CLOCK_S = 2.0


@dataclass(frozen=True, slots=True)
class RedisNote:
    """Something about Redis that works, and should be mended."""

    text: str
    advice: str


async def examine_redis(redis: Redis | ClusterClient, url: str, clock: float | None = None) -> list[RedisNote]:
    """Return the faults of a Redis that ``check_server`` has let through.

    Args:
        clock: unix seconds now, for tests.

    Raises:
        RedisError: it is away.
    """
    address = RedisAddress.of(url)
    found = list[RedisNote]()
    infos: dict[str, dict[str, Any]] = {}
    for section in ("server", "replication", "persistence", "memory"):
        for node, info in (await infos_of(redis, section)).items():
            infos.setdefault(node, {}).update(info)
    by_note: dict[RedisNote, list[str]] = {}
    for node, info in infos.items():
        for note in _notes_of(info, address):
            by_note.setdefault(note, []).append(node or shown_url(url))
    found += [RedisNote(f"Redis at {', '.join(who)} {note.text}", note.advice) for note, who in by_note.items()]
    asked = time.time()
    seconds: Any = await redis.time()
    now = clock if clock is not None else (asked + time.time()) / 2
    ahead = seconds[0] + seconds[1] / 1e6 - now
    if abs(ahead) > CLOCK_S:
        found.append(
            RedisNote(
                f"the clock of Redis is {abs(ahead):,.0f} s {'ahead of' if ahead > 0 else 'behind'} ours: what is "
                "counted by its time, such as how old an alert may be, is wrong by that",
                "let both machines follow the same time server (chrony, systemd-timesyncd)",
            )
        )
    if isinstance(redis, ClusterClient):
        found += _notes_of_cluster(await redis.execute_command("CLUSTER INFO"), await _nodes(redis))
    return found


async def _nodes(redis: ClusterClient) -> list[list[str]]:
    """Return the lines of CLUSTER NODES, each as its words: id, address, flags, ..."""
    (text,) = await redis.on_node(redis.masters()[0], [(b"CLUSTER", "NODES")])
    return [] if isinstance(text, Exception) else [line.split() for line in text.decode().splitlines()]


def _notes_of(info: Mapping[str, Any], address: RedisAddress) -> list[RedisNote]:
    """Return the faults of one server; the texts follow its name."""
    found = list[RedisNote]()

    def note(text: str, advice: str) -> None:
        found.append(RedisNote(text, advice))

    replicas, writes = info.get("connected_slaves"), info.get("aof_enabled")
    policy = info.get("maxmemory_policy")
    if policy not in (None, "noeviction") and info.get("maxmemory") != 0:
        note(
            f"deletes keys when its memory is full (maxmemory-policy {policy}): runs would lose what is stored",
            "set it: CONFIG SET maxmemory-policy noeviction, and in its configuration file",
        )
    if info.get("maxmemory") == 0 and address.kind != "one":
        note("has no maxmemory: when the machine's memory is full it is killed", "set maxmemory in its configuration")
    if writes == 0:
        note(
            "keeps nothing on its disk that survives a crash (appendonly no)",
            "set appendonly yes and appendfsync everysec; till then what is stored goes with a crash of its machine",
        )
    elif writes == 1 and info.get("aof_last_write_status") not in (None, "ok"):
        note("can't write to its disk", "make room there, and see its log")
    if replicas == 0 and address.kind != "one":
        note(
            "has no replica that is connected: nobody takes over when it dies",
            "start one (replicaof), or see the log of its replica",
        )
    down = [value for key, value in info.items() if key.startswith("slave") and isinstance(value, dict)]
    if any(one.get("state") != "online" for one in down):
        note("has a replica that does not follow it", "see the replica's log; a first copy takes minutes")
    version = version_of(info)
    if (0,) < version < WAITAOF_VERSION and (replicas or address.kind == "cluster"):
        note(
            f"is {named(info).replace(' is version', '')}, which can't say when it has written to its disk",
            "7.2 and newer can (WAITAOF), and Valkey: upgrade it; till then it is waited for 2 s longer",
        )
    return found


def _notes_of_cluster(info: Mapping[str, Any], nodes: list[list[str]]) -> list[RedisNote]:
    found = list[RedisNote]()
    failing = [words[1].partition("@")[0] for words in nodes if "fail" in words[2].replace("?", "").split(",")]
    if failing:
        found.append(
            RedisNote(
                f"of the cluster these nodes don't answer: {', '.join(failing)}",
                "start them again, or remove them: redis-cli --cluster del-node",
            )
        )
    if info.get("cluster_state", "ok") != "ok":
        found.append(RedisNote("the cluster says that it is down", "see: redis-cli --cluster check HOST:PORT"))
    return found
