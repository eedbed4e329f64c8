"""Ratings of alerts, kept for longer than the runs, and the precision of each detector from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from stabilitybackend.base.keys import ALERT_RATINGS
from stabilitybackend.schema.fleet import ListedIncident
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.kinds import kind_of
from stabilitybackend.schema.pages.alerting import KindPrecision, Precision, Rating, ReceiverPrecision
from stabilitybackend.storage.redis_link import InRedis, redis_errors

__all__ = ["Ratings", "precision", "rating_of"]

#: Ratings are kept for so long, seconds.
KEEP_S = 400 * 86_400.0
MAX_RATINGS = 50_000


class Ratings(InRedis):
    """Ratings by incident; the newest one counts."""

    async def put(self, rating: Rating) -> None:
        """Store a rating. Raises Unavailable when Redis is away."""
        with redis_errors():
            await self._redis.hset(ALERT_RATINGS, rating.incident_id, msgspec.json.encode(rating))
            if await self._redis.hlen(ALERT_RATINGS) > MAX_RATINGS:
                await self._forget()

    async def drop(self, incident_id: str) -> None:
        """Delete a rating. Raises Unavailable when Redis is away."""
        with redis_errors():
            await self._redis.hdel(ALERT_RATINGS, incident_id)

    async def get(self, incident_id: str) -> Rating | None:
        """Return the rating of an incident. Raises Unavailable when Redis is away."""
        with redis_errors():
            raw: Any = await self._redis.hget(ALERT_RATINGS, incident_id)
        return None if raw is None else msgspec.json.decode(raw, type=Rating)

    async def since(self, since: float, project: str | None) -> list[Rating]:
        """Return the ratings of incidents that opened since then. Raises Unavailable when Redis is away."""
        with redis_errors():
            found: Any = await self._redis.hvals(ALERT_RATINGS)
        ratings = (msgspec.json.decode(one, type=Rating) for one in found)
        return [one for one in ratings if one.opened >= since and project in (None, one.project)]

    async def _forget(self) -> None:
        found: Any = await self._redis.hgetall(ALERT_RATINGS)
        oldest = sorted((msgspec.json.decode(one, type=Rating) for one in found.values()), key=lambda one: one.rated)
        before = self._clock() - KEEP_S
        gone = [one.incident_id for at, one in enumerate(oldest) if at < MAX_RATINGS // 10 or one.rated < before]
        await self._redis.hdel(ALERT_RATINGS, *gone)


def rating_of(incident: Incident, project: str, useful: bool, receivers: list[str], who: str, now: float) -> Rating:
    """Return a rating. ``receivers``: those that were sent the incident. ``now``: unix seconds."""
    return Rating(
        incident_id=incident.incident_id,
        run_id=incident.run_id,
        project=project,
        kind=incident.kind,
        label=kind_of(incident.kind).label,
        useful=useful,
        receivers=receivers,
        opened=incident.opened,
        rated=now,
        who=who,
    )


def precision(
    days: float, ratings: Iterable[Rating], incidents: Iterable[ListedIncident], since: float, job_days: float
) -> Precision:
    """Return counts of useful alerts and noise, by kind and by receiver.

    Args:
        incidents: of the visible runs. since: unix seconds; older ones are left out.
        job_days: days that jobs ran since then, over all runs.
    """
    alerted = [one for one in incidents if one.opened >= since and one.alarm]
    labels = {one.kind: one.label for one in alerted}
    counts = Counter(one.kind for one in alerted)
    useful: Counter[str] = Counter()
    noise: Counter[str] = Counter()
    by_receiver: dict[str, Counter[bool]] = {}
    for rating in ratings:
        labels.setdefault(rating.kind, rating.label)
        (useful if rating.useful else noise)[rating.kind] += 1
        for name in rating.receivers:
            by_receiver.setdefault(name, Counter())[rating.useful] += 1
    kinds = [
        KindPrecision(
            kind, label, max(counts[kind], useful[kind] + noise[kind]), useful[kind], noise[kind],
            _share(useful[kind], noise[kind]), noise[kind] / job_days if job_days else None,
        )
        for kind, label in labels.items()
    ]  # fmt: skip
    kinds.sort(key=lambda one: (-one.noise, -one.incidents, one.kind))
    receivers = [
        ReceiverPrecision(name, found[True], found[False], _share(found[True], found[False]))
        for name, found in sorted(by_receiver.items())
    ]
    false_per_job_day = noise.total() / job_days if job_days else None
    return Precision(days, job_days, false_per_job_day, kinds, receivers)


def _share(useful: int, noise: int) -> float | None:
    return useful / (useful + noise) if useful + noise else None
