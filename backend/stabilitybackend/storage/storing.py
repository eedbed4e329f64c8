"""Whether Redis takes writes, found out within seconds, and the reason where it does not.

A server that answers PING may store nothing: its memory or its disk is full, or it has become a replica. So a small key
is written every PROBE_S, of a cluster to each of its masters, and each refused write counts too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import MovedError, RedisError

from stabilitybackend.base.keys import PROBE
from stabilitybackend.schema.runs import StoringProblem
from stabilitybackend.storage.redis_link import ClusterClient, answer_of
from stabilitybackend.storage.redis_link.notes import CLOCK_S

__all__ = ["PROBE_S", "Storing", "problem_of"]

#: How often a key is written, seconds, and how long that may take.
PROBE_S = 1.0
TIMEOUT_S = 2.0
#: The probe's key goes by itself when no server writes it any more, seconds.
_KEPT_S = 60
#: After a real write has failed, the probe alone is not believed for so long, seconds: near the edge a small key may
#: find room where a frame does not.
DOUBT_S = 3.0

_log = logging.getLogger(__name__)

#: Longest answer that still measures the clock, seconds.
SOON_S = 0.25

_NOTHING_LOST = "Training goes on: agents keep what is not stored and send it again"
#: The beginning of an error of Redis: code, its meaning, the remedy.
_PROBLEMS = {
    "OOM": (
        "redis_full",
        "Redis is full: its memory has reached maxmemory",
        "raise maxmemory, or delete runs (stabilityboard runs delete, --retention-days)",
    ),
    "MISCONF": (
        "redis_disk",
        "Redis can't write to its disk and refuses everything",
        "make room on the disk of its data folder, and see its log",
    ),
    "READONLY": (
        "redis_read_only",
        "this Redis takes no writes: it is a replica",
        "give the address of the primary with --redis-url",
    ),
    "NOREPLICAS": (
        "redis_no_replicas",
        "Redis has fewer replicas than min-replicas-to-write asks for",
        "bring them back, or lower it",
    ),
    "LOADING": ("redis_loading", "Redis is still loading its data", "wait; a large one takes minutes"),
    "CLUSTERDOWN": (
        "redis_cluster_down",
        "the Redis Cluster is down: some of its slots have no master",
        "start its nodes again, and see: redis-cli --cluster check HOST:PORT",
    ),
}
_AWAY = ("redis_away", "Redis does not answer", "start it, and check the way to it")


def problem_of(error: BaseException, since: float, node: str = "") -> StoringProblem:
    """Return the problem behind an error of Redis.

    Args:
        node: the node of a cluster that answered it; the others may be well.
    """
    text = answer_of(error)
    name = type(error).__name__
    known = {
        "OutOfMemoryError": "OOM", "ReadOnlyError": "READONLY", "BusyLoadingError": "LOADING",
        "ClusterDownError": "CLUSTERDOWN",
    }  # fmt: skip
    prefix = next((prefix for prefix in _PROBLEMS if text.startswith(prefix) or known.get(name) == prefix), "")
    code, problem, hint = _PROBLEMS.get(prefix, _AWAY)
    what = f"{problem} (node {node}). Of the runs there nothing is stored" if node else f"{problem}. Nothing is stored"
    return StoringProblem(code, what, f"{hint[0].upper()}{hint[1:]}. {_NOTHING_LOST}.", since)


class Storing:
    """Whether frames are stored. ``follow`` it in the event loop.

    Args:
        redis: a client with a connection for this alone.
        clock: unix seconds now.
        several: this process is one of several, which agree on times by the clock of Redis.
        beside: another problem of the server, shown in the same place while storing is well; given unix seconds.

    Attributes:
        problem: why nothing is stored, None while all is well.
        refused: refused writes, by code.
        ahead_s: how far Redis' clock is ahead of this machine's, seconds, by the last probe.
    """

    def __init__(
        self,
        redis: Redis,
        clock: Callable[[], float],
        *,
        several: bool = False,
        beside: Callable[[float], StoringProblem | None] = lambda now: None,
    ) -> None:
        self.problem: StoringProblem | None = None
        self.refused: dict[str, int] = {}
        self.ahead_s = 0.0
        self._off_s = 0.0
        self._redis = redis
        self._clock = clock
        self._watchers: list[Callable[[StoringProblem | None], None]] = []
        self._several = several
        self._beside = beside
        self._doubtful_until = float("-inf")
        self._notified: StoringProblem | None = None

    def watch(self, watcher: Callable[[StoringProblem | None], None]) -> None:
        """Call ``watcher`` with each new problem, and with None when all is well again."""
        self._watchers.append(watcher)

    def redis_now(self) -> float:
        """Return unix seconds by the clock of Redis."""
        return self._clock() + self.ahead_s

    def now(self) -> float:
        """Return unix seconds of this machine; with several processes those of Redis where this machine's are off.

        Commands expire at times that one process sets and another one reads. A process alone agrees with itself: where
        its machine's clock is set, that of a Redis on the same machine jumps too.
        """
        return self._clock() + self._off_s

    async def follow(self) -> None:
        """Write the probe's key again and again."""
        while True:
            await self.probe()
            await asyncio.sleep(PROBE_S)

    async def probe(self) -> None:
        """Write the key once and note the outcome."""
        value = repr(self._clock())
        try:
            node, refused = await self._refusal(value)
        except (RedisError, OSError, TimeoutError) as error:
            node, refused = "", error
        if refused is not None:
            self._note(problem_of(refused, self._clock(), node))
        elif not self._doubtful_until - DOUBT_S <= self._clock() < self._doubtful_until:
            self._note(None)

    async def _refusal(self, value: str) -> tuple[str, BaseException | None]:
        """Return the node of a cluster that refuses writes, and its error. Raises the error of a single server."""
        if not isinstance(self._redis, ClusterClient):
            pipe = self._redis.pipeline(transaction=False)
            pipe.set(PROBE, value, ex=_KEPT_S)
            pipe.time()
            asked = self._clock()
            written, time = await asyncio.wait_for(pipe.execute(raise_on_error=False), TIMEOUT_S)
            if isinstance(written, BaseException):
                raise written
            self._compare(time, asked)
            return "", None
        cluster = self._redis
        await asyncio.wait_for(cluster.initialize(), TIMEOUT_S)
        keys = cluster.key_of_each(PROBE)
        asked = [self._of_node(cluster, node, key, value) for node, key in keys.items()]
        found = zip(keys, await asyncio.gather(*asked), strict=True)
        return next(((node, error) for node, error in found if error is not None), ("", None))

    async def _of_node(self, cluster: ClusterClient, node: str, key: str, value: str) -> BaseException | None:
        calls = [("SET", key, value, "EX", _KEPT_S), ("TIME",)]
        asked = self._clock()
        try:
            answer, time = await asyncio.wait_for(cluster.on_node(node, calls), TIMEOUT_S)
        except (RedisError, OSError, TimeoutError) as error:
            return error
        if isinstance(answer, MovedError):  # to another node since: looked at a second later
            return None
        self._compare(time, asked)
        return answer if isinstance(answer, Exception) else None

    def _compare(self, time: Any, asked: float) -> None:
        """Note the lead of the clock of Redis, where its time arrived soon after the request."""
        now = self._clock()
        if isinstance(time, BaseException) or not 0 <= now - asked <= SOON_S:
            return
        seconds, micros = (int(part) for part in time)
        before = self.ahead_s
        self.ahead_s = seconds + micros / 1e6 - (asked + now) / 2
        if self._several and abs(self.ahead_s - self._off_s) > CLOCK_S:  # else it would waver with each answer
            self._off_s = self.ahead_s if abs(self.ahead_s) > CLOCK_S else 0.0
        if abs(self.ahead_s) > CLOCK_S >= abs(before):
            side = "behind" if self.ahead_s > 0 else "ahead of"
            _log.warning(
                "the clock of this machine is %s s %s that of Redis, expected at most %g s: set both by NTP%s",
                f"{abs(self.ahead_s):,.0f}", side, CLOCK_S,
                ". Until then this process goes by that of Redis" if self._several else "",
            )  # fmt: skip

    def failed(self, error: BaseException) -> None:
        """Note that Redis refused a real write."""
        problem = problem_of(error, self._clock())
        self._doubtful_until = self._clock() + DOUBT_S
        self.refused[problem.code] = self.refused.get(problem.code, 0) + 1
        self._note(problem)

    def _note(self, problem: StoringProblem | None) -> None:
        before = self.problem
        if (before and before.code) == (problem and problem.code):
            return
        self.problem = problem
        self.notify()

    def notify(self) -> None:
        """Call the watchers where the problem is another one than before."""
        before, now = self._notified, self.problem or self._beside(self.now())
        self._notified = now
        if (before and (before.code, before.problem)) == (now and (now.code, now.problem)):
            return
        for watcher in self._watchers:
            watcher(now)
