"""Keeps a worker for every run with senders or readers, and lets idle ones go."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator

from redis.asyncio import Redis
from redis.exceptions import RedisError

from stabilitybackend.base.errors import AgentGone, Conflict, NotFound, StabilityBoardError, Unavailable
from stabilitybackend.base.judging_lag import JudgingLag
from stabilitybackend.base.keys import check_run_id
from stabilitybackend.base.tasks import end
from stabilitybackend.fleet.fleet import Fleet
from stabilitybackend.judging.liveness.budgets import Limits
from stabilitybackend.runs.agents.connected_agents import Send
from stabilitybackend.runs.agents.output import OutputLog
from stabilitybackend.runs.archiving.archiver import ArchiveFiles
from stabilitybackend.runs.arrivals.arrivals import Arrivals
from stabilitybackend.runs.feed.pubsub import Channel
from stabilitybackend.runs.idle_runs import FOLLOWED_STATES, LIVE_STATES, WATCH_AGAIN_S, IdleRuns
from stabilitybackend.runs.index import RunIndex
from stabilitybackend.runs.ownership.fence import Ownership
from stabilitybackend.runs.reading.readers import RunReaders
from stabilitybackend.runs.resume_runs import RunResumer
from stabilitybackend.runs.stream_watch import StreamWatch
from stabilitybackend.runs.wakeups import TICK_S
from stabilitybackend.runs.worker import RunWorker
from stabilitybackend.schema.commands import Command
from stabilitybackend.schema.runs import Run, RunPage, StoringProblem, listed
from stabilitybackend.schema.server import RunStorage
from stabilitybackend.storage.redis_link import redis_errors
from stabilityclient.wire import Health, Hello, Output

__all__ = ["RunManager"]

#: How often such runs are looked for, seconds.
SWEEP_S = 1.0
#: How often one of the runs that were over before the server started is archived, seconds.
LEFTOVER_S = 30.0
#: Ticks of all runs together: a fifth of a core; with more runs than this each is judged less often than once a second.
MAX_TICKS_A_SECOND = 500.0

_log = logging.getLogger(__name__)


class RunManager:
    """All runs of this process; the gateway's ``RunServices``.

    Args:
        clock: unix seconds now.
        window_bytes: bytes of frames that the stream of each run keeps.
        limits: how long ranks may be stalled.
        ownership: how this process takes runs.
        two_persons: autopilots order no rollback.
        lag: where the waits of frames are counted; by default a new one.
    """

    def __init__(
        self,
        redis: Redis,
        clock: Callable[[], float],
        files: ArchiveFiles,
        window_bytes: int,
        limits: Limits,
        ownership: Ownership | None = None,
        *,
        two_persons: bool = False,
        lag: JudgingLag | None = None,
    ) -> None:
        self.overview = Channel()
        #: Memory over all runs.
        self.fleet = Fleet(redis, clock, self.overview.publish)
        self._redis = redis
        self._clock = clock
        self.files = files
        self._window_bytes = window_bytes
        self._limits = limits
        self.ownership = ownership or Ownership()
        self._placed = self.ownership.placed
        self._index = RunIndex(redis)
        self.output_log = OutputLog(redis)
        self._workers: dict[str, RunWorker] = {}
        self.arrivals = Arrivals(redis, self._workers)
        self._leaving: set[str] = set()  # runs that are being deleted
        self._two_persons = two_persons
        self._stopping = False
        self._sweeper: asyncio.Task[None] | None = None
        self._watch = StreamWatch(redis, self._workers.values)
        self._watcher: asyncio.Task[None] | None = None
        self.waking = RunResumer(self._worker)  # the runs that are taken up after a restart
        self.lag = lag or JudgingLag(clock)
        #: The runs under way are not loaded yet: Redis was away at the start, and is asked again each second.
        self.late = False
        self.storing: StoringProblem | None = None  # mostly why nothing is stored; None: all is well
        self.idle = IdleRuns(self._workers, self._index, clock, self.get, placed=self._placed)
        #: Runs that other processes follow, or none.
        self.readers = RunReaders(redis, clock, files, window_bytes, limits, self.fleet)
        self._channels: list[Callable[[], Iterable[Channel]]] = [self._own_channels]

    async def start(self) -> None:
        """Watch the runs that were under way when the server stopped, as soon as Redis lists them."""
        await self._take_up()
        self._sweeper = asyncio.create_task(self._sweep(), name="run-sweeper")

    async def _take_up(self) -> None:
        self.late = True
        try:
            await self.fleet.load()
            if not self.ownership.reads_only:
                await self._index.complete()
            if self._placed or self.ownership.reads_only:
                self.late = False
                return
            heard = await self._index.stored_all(await self._index.active_since(self._clock() - WATCH_AGAIN_S))
            live = {run.run_id: None for run in heard if run.status in FOLLOWED_STATES}
            self.idle.leftover = [run_id for run_id in await self._index.ids() if run_id not in live]
            self.waking.start(live)
            self.late = False
            await self._forget_unknown()
        except (RedisError, OSError) as error:
            _log.warning("runs under way are watched when Redis is back: %s", error)

    async def _forget_unknown(self) -> None:
        """Remove local restart files of runs that are not in Redis."""
        folders = await asyncio.to_thread(self.files.restart.run_ids)
        for run_id in folders:
            if not await self._index.exists(run_id):
                await asyncio.to_thread(self.files.restart.forget, run_id)

    async def stop(self) -> None:
        """Stop all workers."""
        self._stopping = True  # a call from now on would start a worker that is never stopped
        await end(self._sweeper, self._watcher)
        await self.waking.stop()
        await self.readers.stop()
        await self.fleet.stop()
        await asyncio.gather(*(worker.let_go() for worker in self._workers.values()))
        await self.arrivals.stop()
        self._workers.clear()

    def _worker(self, run_id: str) -> RunWorker:
        self._check_stays(run_id)
        worker = self._workers.get(run_id)
        if worker is None or worker.is_over:
            before = worker
            worker = self._workers[run_id] = RunWorker(
                run_id, self._redis, self._clock, self.overview, self.files, self._window_bytes, self._limits,
                self.fleet, self.ownership,
            )  # fmt: skip
            worker.rest.tick_s, worker.autopilot.two_persons = self._tick_s, self._two_persons
            worker.judged = self.lag.judged
            self.arrivals.serve(worker)
            if not self._placed:
                worker.agents_known.set()
            worker.start(after=before)
            if self._watcher is None:
                self._watcher = asyncio.create_task(self._watch.follow(), name="stream-watch")
        return worker

    def _tick_s(self) -> float:
        return max(TICK_S, len(self._workers) / MAX_TICKS_A_SECOND)

    def _check_stays(self, run_id: str) -> None:
        if self._stopping:
            raise Unavailable("the server stops", code="stopping")
        if run_id in self._leaving:
            raise Unavailable(f"run {run_id} is being deleted", hint="try again in a moment", code="deleting")

    async def _sweep(self) -> None:
        leftover_at = time.monotonic() + LEFTOVER_S
        while True:
            await asyncio.sleep(SWEEP_S)
            if self.late:
                await self._take_up()
            await self.idle.let_go_idle()
            await self.readers.let_idle_go()
            if time.monotonic() < leftover_at:
                continue
            leftover_at = time.monotonic() + LEFTOVER_S
            try:
                await self.idle.archive_leftover()
            except (RedisError, OSError, StabilityBoardError) as error:
                _log.warning("runs that are over stay in Redis for now: %s", error)

    async def give_up(self, run_id: str) -> None:
        """Let another worker take a run."""
        if (worker := self._workers.get(run_id)) is not None:
            await worker.let_go()
            if self._workers.get(run_id) is worker:
                del self._workers[run_id]

    async def get(self, run_id: str) -> RunWorker:
        """Return the worker of a run, its state complete.

        Raises:
            NotFound: there is no such run.
            Unavailable: Redis is away.
        """
        check_run_id(run_id)
        if run_id not in self._workers:
            with redis_errors():
                if not await self._index.exists(run_id):
                    raise NotFound(f"there is no run {run_id!r}", hint="GET /api/v1/runs lists them")
        if self.ownership.reads_only:
            return await self.readers.get(run_id)
        worker = self._worker(run_id)
        await worker.ready()
        return worker

    async def read(self, run_id: str) -> RunWorker:
        """Return the worker of a run as ``get``; where other processes follow runs too, and this one not, a reader."""
        if not self._placed or run_id in self._workers:
            return await self.get(run_id)
        await self.project(run_id)
        return await self.readers.get(run_id)

    async def glance(self, run_id: str) -> RunWorker:
        """Return the worker of a run as ``get``; it is let go directly if it was not requested before."""
        if self._placed:
            return await self.read(run_id)
        was_there = run_id in self._workers
        worker = await self.get(run_id)
        if not was_there:
            worker.used = 0.0
        return worker

    async def project(self, run_id: str) -> str:
        """Return the project of a run, "" where it has none, without reading the run.

        Raises:
            NotFound: there is no such run.
            Unavailable: Redis is away.
        """
        check_run_id(run_id)
        with redis_errors():
            found = await self._index.project(run_id)
        if found is None:
            raise NotFound(f"there is no run {run_id!r}", hint="GET /api/v1/runs lists them")
        return found

    async def runs(self, limit: int, cursor: str | None = None, project: str | None = None) -> RunPage:
        """Return a page of the runs, newest first; those that are followed as they are now.

        Raises:
            BadRequest: the cursor is none that a page gave.
        """
        with redis_errors():
            page = await self._index.page(limit, cursor, project)
            away = [run_id for run_id in page.ids if self._ready(run_id) is None]
            stored = {run.run_id: run for run in await self._index.stored_all(away)}
        runs = [self._shown(run_id, stored.get(run_id)) for run_id in page.ids]
        return RunPage([listed(run) for run in runs if run is not None], page.total, page.next, self.storing)

    def _ready(self, run_id: str) -> RunWorker | None:
        worker = self._workers.get(run_id)
        return worker if worker is not None and worker.readiness.reached else None

    def _shown(self, run_id: str, stored: Run | None) -> Run | None:
        if (ready := self._ready(run_id)) is not None:
            return ready.run()
        return None if stored is None else self.marked(stored)

    def marked(self, run: Run) -> Run:
        """Return a stored run as ``failed`` where the server can't work it out."""
        worker = self._workers.get(run.run_id)
        return run if worker is None else worker.internal_errors.marked(run)

    # --- storage -------------------------------------------------------------------------------------------------

    async def compact_run(self, run_id: str) -> RunStorage:
        """Archive a run that is not live, merge its small parts; return the storage facts after it.

        Raises:
            NotFound: there is no such run.
            ArchiveError: a file could not be read or written.
        """
        worker = await self.get(run_id)
        if not worker.busy and worker.run().status not in LIVE_STATES:
            await worker.flush()
        await worker.compact()
        return worker.window.facts(worker.state.store)

    async def delete_run(self, run_id: str, force: bool = False) -> None:
        """Remove a run for good: its frames, its files, its incidents and commands.

        Args:
            force: also while its job is live; an agent that still sends makes the run again.

        Raises:
            NotFound: there is no such run, or another process deleted it meanwhile.
            Conflict: its job is live.
        """
        try:
            worker = await self.get(run_id)
        except Unavailable as error:
            # Its files are out of reach, or lost: they stay. Or a defect of the server, for which no run is to be kept.
            if error.code != "failed" and not (force and error.code in ("archive_away", "loading")):
                raise
            worker = self._workers.get(run_id) or self._worker(run_id)
        status = worker.run().status
        if not force and (worker.has_agents or status in LIVE_STATES):
            raise Conflict(
                f"run {run_id} is {status} and was not deleted",
                hint="stop the job first, or force it (an agent that goes on creates the run again)",
            )
        self._check_stays(run_id)
        self._leaving.add(run_id)
        try:
            await worker.delete_files()
            self._workers.pop(run_id, None)
            with redis_errors():
                forgotten = await self._index.forget(run_id)
        finally:
            self._leaving.discard(run_id)
        await self.fleet.deleted(run_id)
        if not forgotten:
            raise NotFound(f"run {run_id} was deleted by another process", hint="GET /api/v1/runs lists those left")
        _log.warning("run %s deleted", run_id)

    # --- whether arrivals are stored ------------------------------------------------------------------------------

    def note_storing(self, problem: StoringProblem | None) -> None:
        """Show a problem of the server, mostly that nothing is stored, to every browser; None: all is well."""
        self.storing = problem
        message = {"type": "storing", "storing": problem}
        for channel in self._every_channel():
            channel.publish(message)
        if problem is None:
            _log.warning("frames are stored again")
        else:
            _log.error("%s. %s", problem.problem, problem.hint)

    def include_channels(self, channels: Callable[[], Iterable[Channel]]) -> None:
        """Count and notify further browsers: those that see runs of other processes here."""
        self._channels.append(channels)

    def _own_channels(self) -> Iterable[Channel]:
        return (self.overview, *(worker.channel for worker in self._workers.values()))

    def _every_channel(self) -> list[Channel]:
        return [channel for channels in self._channels for channel in channels()]

    def owned(self) -> dict[str, RunWorker]:
        """Return the workers of the runs that this process owns or takes up now, by run."""
        return {run_id: worker for run_id, worker in self._workers.items() if not worker.is_over}

    def followed(self) -> dict[str, RunWorker]:
        """Return the workers of the runs that are followed and judged, by run."""
        return {run_id: worker for run_id, worker in self._workers.items() if worker.readiness.reached}

    def statuses(self) -> Iterator[str]:
        """Yield the status of each run that is followed; ``restoring`` for one that is not judged yet."""
        for worker in self._workers.values():
            yield worker.listing.status if worker.readiness.reached else "restoring"

    def folding_s(self) -> dict[str, float]:
        """Return the seconds that folding and judging took, by run that is followed."""
        spent = self.files.restart.folding_s
        for gone in spent.keys() - self._workers.keys():
            del spent[gone]
        return dict(spent)

    def browsers(self) -> int:
        """Return how many pages are connected."""
        return sum(map(len, self._every_channel()))

    def has_agents(self, run_id: str) -> bool:
        """Return whether an agent of the run is connected."""
        worker = self._workers.get(run_id)
        return worker is not None and worker.has_agents

    # --- the gateway's RunServices -------------------------------------------------------------------------------

    async def agent_connected(self, hello: Hello, send: Send) -> list[Command]:
        """Take a new agent in; return the commands that wait for it."""
        self._check_stays(hello.run_id)
        with redis_errors():
            await self._index.register(hello, self._clock())
        await self.fleet.announced(hello)
        return await self._worker(hello.run_id).agent_connected(hello, send)

    async def agent_disconnected(self, run_id: str, agent: str) -> None:
        """Note that an agent is gone."""
        if (worker := self._workers.get(run_id)) is not None:
            worker.agent_disconnected(agent)

    async def health(self, run_id: str, health: Health) -> None:
        """Take an agent's newest value."""
        if (worker := self._workers.get(run_id)) is not None:
            worker.health(health)

    async def output(self, run_id: str, output: Output) -> None:
        """Keep lines that ranks printed, of a run that is followed."""
        if run_id in self._workers:
            with redis_errors():
                await self.output_log.add(run_id, output)

    async def room(self, run_id: str) -> None:
        """Wait for room in the run's window. Raises AgentGone where the run was deleted or its worker failed."""
        worker = self._workers.get(run_id)
        if worker is None or worker.is_over:
            raise AgentGone(f"nobody follows run {run_id} any more")
        await worker.window.room()

    async def frame_stored(self, run_id: str, frame_id: str, size: int) -> None:
        """Wake the run's worker, and note its distance to the end of the stream."""
        if (worker := self._workers.get(run_id)) is not None:
            worker.arrived(frame_id, size)
