"""What the server remembers over all runs: faulty GPUs, what stopped the jobs, and people's corrections.

It lies in three hashes of Redis and is small enough to be held in memory. It outlives the runs: a run that is deleted
takes nothing of it along. Everything is written under an identity that does not change, so that writing it once more
after a crash or a replay changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec
from msgspec import structs
from redis.asyncio import Redis
from redis.exceptions import RedisError

from stabilitybackend.errors import BadRequest, NotFound
from stabilitybackend.fleet.gpu_history import GpuFaultHistory
from stabilitybackend.fleet.interruption_table import CATEGORIES, PUBLISHED, table_of
from stabilitybackend.fleet.interruptions import shown, summed
from stabilitybackend.keys import FLEET_CATEGORIES, FLEET_GPU_FAULTS, FLEET_INTERRUPTIONS, RunKeys
from stabilitybackend.process.quiet_log import QuietLog
from stabilitybackend.redis_link import InRedis, redis_errors
from stabilitybackend.schema.fleet import (
    Correction,
    Interruption,
    InterruptionNumbers,
    Interruptions,
    JudgedInterruption,
    RunNames,
    StoppedRun,
)
from stabilitybackend.schema.gpus import FleetGpus, RememberedFault
from stabilitybackend.schema.incidents import Incident

__all__ = ["Fleet"]

T = TypeVar("T")

#: Runs whose interruptions are remembered; those that ended first go first.
MAX_RUNS = 5_000
#: Interruptions in one answer; the numbers beside them are of all.
MAX_LISTED = 500
_DAY_S = 86_400.0

_log = logging.getLogger(__name__)


class Fleet(InRedis):
    """The memory of one server."""

    def __init__(self, redis: Redis, clock: Callable[[], float]) -> None:
        super().__init__(redis, clock)
        self.gpu_history = GpuFaultHistory()
        self._runs: dict[str, StoppedRun] = {}
        #: Run -> interruption or incident -> what a person said.
        self._corrections: dict[str, dict[str, Correction]] = {}
        #: Fields that could not be written yet, by hash; None: to be removed.
        self._unsaved: dict[str, dict[str, bytes | None]] = {}
        self._quiet = QuietLog(_log)
        self._saving = asyncio.Lock()

    async def load(self) -> None:
        """Take over what is stored, but for entries that can't be read. Raises RedisError when Redis is away."""
        for field, fault in await self._stored(FLEET_GPU_FAULTS, RememberedFault):
            self.gpu_history.put(field, fault)
        self._runs = dict(await self._stored(FLEET_INTERRUPTIONS, StoppedRun))
        self._corrections = dict(await self._stored(FLEET_CATEGORIES, dict[str, Correction]))

    async def _stored(self, key: str, kind: type[T]) -> list[tuple[str, T]]:
        found: Any = await self._redis.hgetall(key)
        good = []
        for field, data in found.items():
            try:
                good.append((field.decode(), msgspec.json.decode(data, type=kind)))
            except (ValueError, msgspec.MsgspecError) as error:
                _log.warning("%s: entry %.80r can't be read and is passed over: %s", key, field, error)
        return good

    # --- what runs report -------------------------------------------------------------------------------------------

    async def faults(self, run: RunNames, incidents: Iterable[Incident]) -> None:
        """Remember the GPU faults among the incidents of a run."""
        for incident in incidents:
            for field, fault in self.gpu_history.add(incident, run):
                self._put(FLEET_GPU_FAULTS, field, fault)
        await self._save()

    async def stopped(
        self, run: RunNames, interruptions: list[JudgedInterruption], stretches: list[tuple[float, float, int]]
    ) -> None:
        """Remember what interrupted a run, and when it ran: (began, ended, ranks)."""
        entry = StoppedRun(run, interruptions, stretches, deleted=False)
        if self._runs.get(run.run_id) != entry:
            self._runs[run.run_id] = entry
            self._put(FLEET_INTERRUPTIONS, run.run_id, entry)
            if len(self._runs) > MAX_RUNS:
                oldest = min(self._runs, key=lambda name: max((s[1] for s in self._runs[name].stretches), default=0))
                del self._runs[oldest]
                self._put(FLEET_INTERRUPTIONS, oldest, None)
        await self._save()

    async def deleted(self, run_id: str) -> None:
        """Note that a run is gone; what happened to it has happened."""
        if run_id in self._runs:
            self._runs[run_id].deleted = True
            self._put(FLEET_INTERRUPTIONS, run_id, self._runs[run_id])
        await self._save()

    def _put(self, key: str, field: str, entry: Any) -> None:
        self._unsaved.setdefault(key, {})[field] = None if entry is None else msgspec.json.encode(entry)

    async def _save(self) -> None:
        """Write what is not written yet; while Redis is away it waits for the next time."""
        async with self._saving:  # an older word must not overtake a newer one
            unsaved, self._unsaved = self._unsaved, {}
            if unsaved:
                await self._write(unsaved)

    async def _write(self, unsaved: dict[str, dict[str, bytes | None]]) -> None:
        written = False
        try:
            for key, fields in unsaved.items():
                pipe = self._redis.pipeline(transaction=False)
                for field, data in fields.items():
                    if data is None:
                        pipe.hdel(key, field)
                    else:
                        pipe.hset(key, field, data)
                await pipe.execute()
            written = True
        except (RedisError, OSError) as error:
            self._quiet.log(logging.WARNING, f"what the fleet remembers is not stored for now: {error}")
        finally:
            if not written:  # also where a run's worker is stopped meanwhile
                for key, fields in unsaved.items():
                    self._unsaved[key] = fields | self._unsaved.get(key, {})

    # --- what people ask and say -----------------------------------------------------------------------------------

    def gpus(self, project: str | None = None) -> FleetGpus:
        """Return the answer of ``GET /api/v1/gpus``; with a project only what its runs saw."""
        return FleetGpus(self.gpu_history.all(self._clock(), project))

    def interruptions(self, days: float | None = None, project: str | None = None) -> Interruptions:
        """Return the answer of ``GET /api/v1/interruptions``.

        Args:
            days: only those that began in the last so many days. project: only those of its runs.

        Raises:
            BadRequest: ``days`` is no time.
        """
        if days is not None and not 0 < days < 100_000:
            raise BadRequest(f"days is {days:g}, expected more than 0", hint="leave it out for all that is remembered")
        now = self._clock()
        since = 0.0 if days is None else now - days * _DAY_S
        runs = [entry for entry in self._runs.values() if project is None or entry.run.project == project]
        found = [one for entry in runs for one in self._of(entry, now) if one.since >= since]
        found.sort(key=lambda one: (one.since, one.id), reverse=True)
        return Interruptions(
            **structs.asdict(summed(found, (stretch for entry in runs for stretch in entry.stretches), since)),
            days=days,
            project=project,
            now=now,
            not_counted=sum(not one.counted for one in found),
            runs=sum(any(ended >= since for _, ended, _ in entry.stretches) for entry in runs),
            projects=sorted({entry.run.project for entry in self._runs.values()}),
            interruptions=found[:MAX_LISTED],
            table=table_of(found),
            published=PUBLISHED,
        )

    def stops(self, run_id: str | None = None, project: str | None = None) -> InterruptionNumbers:
        """Return the numbers over the interruptions of one run, of a project, or of all runs."""
        known = [self._runs[run_id]] if run_id in self._runs else []
        runs = known if run_id is not None else [
            entry for entry in self._runs.values() if project is None or entry.run.project == project
        ]  # fmt: skip
        found = [one for entry in runs for one in self._of(entry, self._clock())]
        return summed(found, (stretch for entry in runs for stretch in entry.stretches), 0.0)

    def _of(self, entry: StoppedRun, now: float) -> list[Interruption]:
        corrections = self._corrections.get(entry.run.run_id, {})

        def correction_of(one: JudgedInterruption) -> Correction | None:
            return next((corrections[name] for name in (one.id, *one.incidents) if name in corrections), None)

        return [shown(one, entry.run, now, correction_of(one), deleted=entry.deleted) for one in entry.interruptions]

    async def correct(self, run_id: str, name: str, category: str | None, who: str) -> Interruption:
        """Take a person's word for what an interruption was, None takes it back; return the interruption.

        Args:
            name: id of the interruption, or of one of its incidents.

        Raises:
            NotFound: no interruption of the run has this name.
            BadRequest: there is no such category.
            Unavailable: Redis is away; nothing is changed then.
        """
        if category is not None and category not in CATEGORIES:
            raise BadRequest(f"category is {category!r:.80}, expected one of {', '.join(CATEGORIES)}, or null")
        entry = self._runs.get(run_id)
        known = [] if entry is None else entry.interruptions
        one = next((one for one in known if name in (one.id, *one.incidents)), None)
        if entry is None or one is None:
            raise NotFound(
                f"{name!r} belongs to no interruption of run {run_id}",
                hint="GET /api/v1/interruptions lists them; an incident during which the job went on is none",
            )
        now = self._clock()
        corrections = {k: v for k, v in self._corrections.get(run_id, {}).items() if k not in (one.id, *one.incidents)}
        if category is not None:
            corrections[one.id] = Correction(category=category, who=who, time=now)
        audit = {"interruption": one.id, "category": category, "who": who, "time": now}
        with redis_errors():
            await self._redis.hset(FLEET_CATEGORIES, run_id, msgspec.json.encode(corrections))
            await self._redis.xadd(RunKeys(run_id).command_audit, {"i": msgspec.json.encode(audit)})
        self._corrections[run_id] = corrections
        return next(found for found in self._of(entry, now) if found.id == one.id)
