"""Memory over all runs: faulty GPUs, interruptions, corrections by hand, lost GPU-hours.

Stored in hashes of Redis and held in memory. It outlives the runs, but for their incidents, which are listed here and
stored with the run. Every entry has a stable identity, so that a repeated write after a crash or a replay changes
nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import structs
from redis.asyncio import Redis
from redis.exceptions import RedisError

from stabilitybackend.base.errors import BadRequest, NotFound
from stabilitybackend.base.keys import (
    FLEET_CATEGORIES,
    FLEET_GPU_FAULTS,
    FLEET_INTERRUPTIONS,
    FLEET_NODES,
    FLEET_ROLLBACKS,
    RUNS,
    RUNS_WITH_INCIDENTS,
    RunKeys,
)
from stabilitybackend.base.quiet_log import QuietLog
from stabilitybackend.base.tasks import end
from stabilitybackend.fleet.catalog import Catalog
from stabilitybackend.fleet.gpu_history import GpuFaultHistory
from stabilitybackend.fleet.incident_list import IncidentList
from stabilitybackend.fleet.interruption_table import CATEGORIES, PUBLISHED, table_of
from stabilitybackend.fleet.interruptions import shown, summed
from stabilitybackend.fleet.rollback_sums import summed_rollbacks
from stabilitybackend.schema.fleet import (
    Correction,
    FleetRollbacks,
    FoundRun,
    Interruption,
    InterruptionNumbers,
    Interruptions,
    JudgedInterruption,
    LostToRollback,
    RunNames,
    RunRollbacks,
    StoppedRun,
)
from stabilitybackend.schema.gpus import FleetGpus, RememberedFault
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.storage.redis_link import InRedis, redis_errors
from stabilityclient.wire import Hello

__all__ = ["Fleet"]

# Reads stored names and incidents of all runs when the server starts, in the background and in slices; newer reports of
# a run win.

#: Runs read in one call to Redis.
_BATCH = 50


class _StoredView(msgspec.Struct):
    """The fields read of a run's stored view."""

    rollbacks: int = 0


async def fill(redis: Redis, catalog: Catalog, incidents: IncidentList, went_back: Callable[[str, bool], None]) -> None:
    """Read all runs, those with the newest incidents first.

    Args:
        went_back: called for each run with whether it has rollbacks.

    Raises:
        RedisError: Redis is away; a repeated call is safe.
    """
    found: Any = await redis.zrevrange(RUNS, 0, -1, withscores=True)
    created = {run_id.decode(): score for run_id, score in found}
    ill: Any = await redis.zrevrange(RUNS_WITH_INCIDENTS, 0, -1)
    first = [run_id.decode() for run_id in ill if run_id.decode() in created]
    have_incidents = set(first)
    order = [*first, *(run_id for run_id in created if run_id not in have_incidents)]
    for at in range(0, len(order), _BATCH):
        some = order[at : at + _BATCH]
        pipe = redis.pipeline(transaction=False)
        for run_id in some:
            pipe.hmget(RunKeys(run_id).meta, "name", "project", "view")
            if run_id in have_incidents:
                pipe.hvals(RunKeys(run_id).incidents)
        answers = iter(await pipe.execute())
        for run_id in some:
            name, project, view = next(answers)
            catalog.put(FoundRun(run_id, (name or b"").decode(), (project or b"").decode(), created[run_id]))
            went_back(run_id, _rollbacks(view) > 0)
            if run_id in have_incidents:
                incidents.stored(run_id, next(answers))
            await asyncio.sleep(0)
    incidents.complete = True


def _rollbacks(view: bytes | None) -> int:
    try:
        return msgspec.json.decode(view or b"{}", type=_StoredView).rollbacks
    except msgspec.MsgspecError:
        return 0


T = TypeVar("T")

#: Runs whose interruptions are remembered; those that ended first are dropped first.
MAX_RUNS = 5_000
#: Interruptions in one answer; its totals are over all.
MAX_LISTED = 500
_DAY_S = 86_400.0
#: Pause before another try to read, where Redis was away, seconds.
_AGAIN_S = 1.0

_log = logging.getLogger(__name__)


class Fleet(InRedis):
    """The memory of one server.

    Args:
        publish: sends a message to the browsers that see all runs.
    """

    def __init__(
        self, redis: Redis, clock: Callable[[], float], publish: Callable[[dict[str, Any]], None] = lambda _: None
    ) -> None:
        super().__init__(redis, clock)
        self.gpu_history = GpuFaultHistory()
        self.catalog = Catalog()
        self.incidents = IncidentList(self.catalog.names, publish, clock)
        self._rollbacks: dict[str, RunRollbacks] = {}
        #: Runs with rollbacks of unknown cost.
        self.unknown_rollbacks: set[str] = set()
        self._filling: asyncio.Task[None] | None = None
        self._runs: dict[str, StoppedRun] = {}
        #: Run -> interruption or incident -> a person's correction.
        self._corrections: dict[str, dict[str, Correction]] = {}
        #: Unwritten fields, by hash; None: to be removed.
        self._unsaved: dict[str, dict[str, bytes | None]] = {}
        self._quiet = QuietLog(_log)
        self._saving = asyncio.Lock()

    async def load(self) -> None:
        """Read the store, without unreadable entries. Raises RedisError when Redis is away."""
        await self._load()
        for node, runs in await self._stored(FLEET_NODES, list[str]):
            self.catalog.put_node(node, runs)
        if self._filling is None:
            self._filling = asyncio.create_task(self._fill(), name="fleet-filling")

    async def refresh(self) -> None:
        """Read changes of other processes. Raises RedisError when Redis is away."""
        await self._load()
        self.catalog.replace_nodes(dict(await self._stored(FLEET_NODES, list[str])))

    async def refresh_faults(self) -> None:
        """Read GPU faults stored by other processes. Raises RedisError when Redis is away."""
        for field, fault in await self._stored(FLEET_GPU_FAULTS, RememberedFault):
            self.gpu_history.put(field, fault)

    async def _load(self) -> None:
        await self.refresh_faults()
        self._runs = dict(await self._stored(FLEET_INTERRUPTIONS, StoppedRun))
        self._corrections = dict(await self._stored(FLEET_CATEGORIES, dict[str, Correction]))
        self._rollbacks = dict(await self._stored(FLEET_ROLLBACKS, RunRollbacks))

    async def stop(self) -> None:
        """End the background work."""
        await end(self._filling)

    async def _fill(self) -> None:
        def went_back(run_id: str, has: bool) -> None:
            if has and run_id not in self._rollbacks:
                self.unknown_rollbacks.add(run_id)

        while not self.incidents.complete:
            try:
                await fill(self._redis, self.catalog, self.incidents, went_back)
            except (RedisError, OSError) as error:
                self._quiet.log(logging.WARNING, f"the incidents of all runs are not read yet: {error}")
                await asyncio.sleep(_AGAIN_S)

    async def _stored(self, key: str, kind: type[T]) -> list[tuple[str, T]]:
        found: Any = await self._redis.hgetall(key)
        good = []
        for field, data in found.items():
            try:
                good.append((field.decode(), msgspec.json.decode(data, type=kind)))
            except (ValueError, msgspec.MsgspecError) as error:
                _log.warning("%s: entry %.80r can't be read and is passed over: %s", key, field, error)
        return good

    # --- reports of runs --------------------------------------------------------------------------------------------

    async def announced(self, hello: Hello) -> None:
        """Take an agent's name of its run, and its node."""
        for node, runs in self.catalog.announced(hello, self._clock()):
            self._unsaved.setdefault(FLEET_NODES, {})[node] = runs
        await self._save()

    async def changed(self, run: RunNames, incidents: list[Incident]) -> None:
        """List the incidents of a run, and remember the GPU faults among them."""
        self.incidents.reported(run.run_id, incidents)
        for incident in incidents:
            for field, fault in self.gpu_history.add(incident, run):
                self._put(FLEET_GPU_FAULTS, field, fault)
        await self._save()

    async def stopped(
        self,
        run: RunNames,
        interruptions: list[JudgedInterruption],
        stretches: list[tuple[float, float, int]],
        gpus: int | None = None,
    ) -> None:
        """Take the interruptions of a run, its intervals (start, end, ranks), and its number of GPUs."""
        entry = StoppedRun(run, interruptions, stretches, deleted=False, gpus=gpus)
        if self._runs.get(run.run_id) != entry and (interruptions or stretches or run.run_id in self._runs):
            self._runs[run.run_id] = entry
            self._put(FLEET_INTERRUPTIONS, run.run_id, entry)
            if len(self._runs) > MAX_RUNS:
                oldest = min(self._runs, key=lambda name: max((s[1] for s in self._runs[name].stretches), default=0))
                del self._runs[oldest]
                self._put(FLEET_INTERRUPTIONS, oldest, None)
        await self._save()

    async def rolled_back(self, run: RunNames, rollbacks: list[LostToRollback]) -> None:
        """Take the costs of the rollbacks of a run."""
        self.unknown_rollbacks.discard(run.run_id)
        entry = RunRollbacks(run, rollbacks)
        if self._rollbacks.get(run.run_id) != entry and (rollbacks or run.run_id in self._rollbacks):
            self._rollbacks[run.run_id] = entry
            self._put(FLEET_ROLLBACKS, run.run_id, entry)
            if len(self._rollbacks) > MAX_RUNS:
                every = self._rollbacks.items()
                oldest = min(every, key=lambda one: max((r.created for r in one[1].rollbacks), default=0.0))[0]
                del self._rollbacks[oldest]
                self._put(FLEET_ROLLBACKS, oldest, None)
        await self._save()

    async def deleted(self, run_id: str) -> None:
        """Mark a run as deleted; its interruptions stay."""
        self.catalog.forget(run_id)
        self.incidents.forget(run_id)
        self.unknown_rollbacks.discard(run_id)
        if run_id in self._rollbacks:
            self._rollbacks[run_id] = structs.replace(self._rollbacks[run_id], deleted=True)
            self._put(FLEET_ROLLBACKS, run_id, self._rollbacks[run_id])
        if run_id in self._runs:
            self._runs[run_id] = structs.replace(self._runs[run_id], deleted=True)
            self._put(FLEET_INTERRUPTIONS, run_id, self._runs[run_id])
        await self._save()

    def _put(self, key: str, field: str, entry: Any) -> None:
        self._unsaved.setdefault(key, {})[field] = None if entry is None else msgspec.json.encode(entry)

    async def _save(self) -> None:
        """Write unwritten fields; while Redis is away they stay for the next call."""
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

    # --- questions and corrections ---------------------------------------------------------------------------------

    def gpus(self, project: str | None = None) -> FleetGpus:
        """Return the answer of ``GET /api/v1/gpus``; with a project only of its runs."""
        return FleetGpus(self.gpu_history.all(self._clock(), project))

    def interruptions(self, days: float | None = None, project: str | None = None) -> Interruptions:
        """Return the answer of ``GET /api/v1/interruptions``.

        Args:
            days: only the last ones. project: only its runs.

        Raises:
            BadRequest: ``days`` is no time.
        """
        _check_days(days)
        now = self._clock()
        since = 0.0 if days is None else now - days * _DAY_S
        runs = [entry for entry in self._runs.values() if project is None or entry.run.project == project]
        of_runs = [(self._of(entry, now), entry) for entry in runs]
        every = sorted(
            (one for found, _ in of_runs for one in found), key=lambda one: (one.since, one.id), reverse=True
        )
        found = [one for one in every if one.since >= since]
        within = (([one for one in some if one.since >= since], entry) for some, entry in of_runs)
        return Interruptions(
            **structs.asdict(summed(within, since)),
            days=days,
            project=project,
            now=now,
            not_counted=sum(not one.counted for one in found),
            runs=sum(any(ended >= since for _, ended, _ in entry.stretches) for entry in runs),
            projects=sorted({entry.run.project for entry in self._runs.values()}),
            down=[one for one in every if one.open and one.counted and not one.deleted][:MAX_LISTED],
            interruptions=found[:MAX_LISTED],
            table=table_of(found),
            published=PUBLISHED,
        )

    def rollbacks(self, days: float | None = None, project: str | None = None) -> FleetRollbacks:
        """Return the answer of ``GET /api/v1/rollback_costs``. Args, Raises: as ``interruptions``."""
        _check_days(days)
        runs = [entry for entry in self._rollbacks.values() if project is None or entry.run.project == project]
        names = map(self.catalog.names, self.unknown_rollbacks)
        unknown = sum(project is None or run.project == project for run in names)
        return summed_rollbacks(runs, self._clock(), days, project, unknown)

    def stops(self, run_id: str | None = None, project: str | None = None) -> InterruptionNumbers:
        """Return the numbers over the interruptions of one run, of a project, or of all runs."""
        known = [self._runs[run_id]] if run_id in self._runs else []
        runs = known if run_id is not None else [
            entry for entry in self._runs.values() if project is None or entry.run.project == project
        ]  # fmt: skip
        now = self._clock()
        return summed(((self._of(entry, now), entry) for entry in runs), 0.0)

    def _of(self, entry: StoppedRun, now: float) -> list[Interruption]:
        corrections = self._corrections.get(entry.run.run_id, {})

        def correction_of(one: JudgedInterruption) -> Correction | None:
            return next((corrections[name] for name in (one.id, *one.incidents) if name in corrections), None)

        return [shown(one, entry.run, now, correction_of(one), deleted=entry.deleted) for one in entry.interruptions]

    async def correct(self, run_id: str, name: str, category: str | None, who: str) -> Interruption:
        """Set a person's category of an interruption, None removes it; return the interruption.

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


def _check_days(days: float | None) -> None:
    if days is not None and not 0 < days < 100_000:
        raise BadRequest(f"days is {days:g}, expected more than 0", hint="leave it out for all that is remembered")
