"""Follows one run's stream: folds what is stored, writes down what follows from it, notifies the browsers.

How frames reach it: what this process stored itself is handed over (``arrivals/handed.py``). For all else it rests
until it is woken, then reads its stream, without waiting in Redis: ``arrived`` wakes it for a frame that this process
stored and that was not handed over, ``StreamWatch`` for one of another process, time once in a while (``Wakeups``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from weakref import proxy

from redis.asyncio import Redis
from redis.exceptions import RedisError

from stabilitybackend.base.errors import Unavailable
from stabilitybackend.base.slices import Slices
from stabilitybackend.base.streams import stream_order
from stabilitybackend.base.tasks import end
from stabilitybackend.fleet.fleet import Fleet
from stabilitybackend.judging.liveness.budgets import Limits
from stabilitybackend.lineage.consumer import Effects
from stabilitybackend.lineage.lineage import Given
from stabilitybackend.runs.agents.connected_agents import Senders, hand_out
from stabilitybackend.runs.archiving.archiver import ArchiveFiles, RunArchive
from stabilitybackend.runs.archiving.points_loading import PointsLoader
from stabilitybackend.runs.archiving.recovery import Recovery
from stabilitybackend.runs.archiving.restart_points import RestartPoints, place_of
from stabilitybackend.runs.archiving.window import RunWindow
from stabilitybackend.runs.arrivals.handed import Handed, HandedBytes
from stabilitybackend.runs.derived.autopilot import RunAutopilot
from stabilitybackend.runs.derived.fleet_reporter import FleetReporter
from stabilitybackend.runs.detector_settings import DetectorSettings
from stabilitybackend.runs.feed.health import HealthFeed
from stabilitybackend.runs.feed.messages import publish
from stabilitybackend.runs.feed.pubsub import Channel
from stabilitybackend.runs.index import RunIndex
from stabilitybackend.runs.internal_errors import FOLLOWING, JUDGING, InternalErrors
from stabilitybackend.runs.journal import Journal
from stabilitybackend.runs.orders.waiting import Orders
from stabilitybackend.runs.ownership.fence import NotOwner, Ownership
from stabilitybackend.runs.pending_frames import PendingFrames
from stabilitybackend.runs.readiness import Readiness
from stabilitybackend.runs.reconcile_incidents import Reconciliation
from stabilitybackend.runs.run_listing import RunListing
from stabilitybackend.runs.state import RunState
from stabilitybackend.runs.wakeups import Wakeups
from stabilitybackend.schema.commands import Command
from stabilitybackend.storage.points.unloaded import PointsMissing, strictly

__all__ = ["RunFollower"]

_log = logging.getLogger(__name__)


class RunFollower:
    """Owns the state of one run in this process.

    Args:
        clock: unix seconds now.
        overview: channel of the list of runs. files: the archive of all runs.
        window_bytes: bytes of frames that the stream keeps.
        limits: how long its ranks may be stalled. fleet: what is remembered over all runs.
        ownership: how this process takes runs.
    """

    def __init__(
        self,
        run_id: str,
        redis: Redis,
        clock: Callable[[], float],
        overview: Channel,
        files: ArchiveFiles,
        window_bytes: int,
        limits: Limits,
        fleet: Fleet,
        ownership: Ownership,
    ) -> None:
        me = proxy(self)  # one that is let go is freed at once: a run's points are many MiB
        self.run_id = run_id
        self.channel = Channel()
        self._limits = limits
        self._health = HealthFeed(self.channel)
        self.cursor = "0-0"
        self._clock, self.used = clock, clock()
        self.rest = Wakeups(clock, lambda: me.busy, lambda: me.expects)
        self.rest.silent_s = limits.agent_lost_s
        #: What this process stored itself.
        self.handed = Handed(HandedBytes(), self.rest.notify, self.rest.wake)
        self.fence = ownership.fence(run_id, redis)  # what it writes counts while it owns the run
        self.fence.dropped = self.rest.wake
        self.journal = Journal(run_id, self.fence, clock)
        self.detectors = DetectorSettings(run_id, self.fence, self.journal.patiently, self.channel, clock)
        self.autopilot = RunAutopilot(run_id, self.fence, self.journal.patiently, self.channel, clock)
        self.listing = RunListing(run_id, RunIndex(redis), self.fence, self.channel, overview)
        #: Who is connected is known here; with doors elsewhere that takes a moment after a takeover.
        self.agents_known = asyncio.Event()
        #: What came while nobody owned the run.
        self.orders = Orders(run_id, redis, clock)
        self._fleet_reporter = FleetReporter(run_id, fleet)
        listing, remember = self.listing, self._fleet_reporter.remember
        self._given = Given(run_id, clock, lambda: listing.run.config, remember)
        self.state = RunState(run_id, clock, given=self._given)
        self._archive = RunArchive(run_id, self.fence, files, lambda: me.state.fold.tree.cuts())
        self.window = RunWindow(run_id, self._archive, window_bytes, clock, self.listing.touch)
        self._restart = RestartPoints(run_id, files.restart, place_of(run_id, files.restart, self.fence), clock)
        self.points = PointsLoader(
            run_id, self.fence.redis, files.restart.turns, lambda: me.state, lambda: len(me.channel) > 0,
            lambda: me.points_loaded(), clock,
        )  # fmt: skip
        self._senders: Senders = {}
        self._unsaved = Effects()
        self._closed = False
        self._taking_orders = asyncio.Lock()
        self._turning = asyncio.Lock()  # held by whoever stops and starts it
        self.readiness = Readiness(run_id)
        self.internal_errors = InternalErrors(run_id)
        self._task: asyncio.Task[None] | None = None
        #: Stream ids up to which all that follows is in ``_unsaved`` or stored (in a batch the cursor is ahead of it);
        #: and up to which it is stored for certain: frames up to there may leave the stream.
        self._concluded = self._stored_to = "0-0"
        #: Up to where Redis says that all that follows is stored: it is not noted where nothing follows.
        self._applied = "0-0"
        self._reconciliation = Reconciliation()
        self._noted_full = ""
        #: Called with each batch that is judged for the first time: when its oldest frame was stored, by Redis' clock.
        self.judged: Callable[[float], None] = lambda stored: None
        self._slices = Slices()

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self, after: RunFollower | None = None) -> None:
        """Begin to follow the stream, in the place of ``after``, which is over or about to be."""
        if after is not None:
            self._senders = after._senders
            self.state.agents.all.update(after.state.agents.all)
            self.internal_errors = after.internal_errors
        self._task = asyncio.create_task(self._follow(after), name=f"run-{self.run_id}")
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, NotOwner):
                self.internal_errors.note(FOLLOWING, error)
            self.readiness.fail(error)  # the next request starts another worker

    @property
    def is_over(self) -> bool:
        """Whether it was stopped, or following the stream ended with a mistake of ours."""
        return self._closed or (self._task is not None and self._task.done() and not self._task.cancelled())

    async def stop(self) -> None:
        """Stop for good; what is not stored yet is found again in the stream by the next worker."""
        self._closed = True
        await self._pause()
        self._task = None

    async def let_go(self) -> None:
        """Stop for good, and let any worker take the run at once."""
        await self.stop()
        await self._restart.write_last(self.state)
        with contextlib.suppress(RedisError, OSError):  # whoever takes it finds that nobody follows it
            await self.fence.release()

    @property
    def moved(self) -> bool:
        """Whether it ended because another worker owns the run."""
        return self.is_over and isinstance(self.readiness.failure, NotOwner)

    async def _pause(self) -> None:
        await end(self._task)
        self.handed.clear()
        await self._pause_work()

    async def _pause_work(self) -> None:
        await self.points.stop()
        await self.window.stop()
        await self._restart.stop()

    async def ready(self, timeout_s: float = 30.0) -> RunState:
        """Return the state once everything that was stored at the start is in it.

        Raises:
            Unavailable: that took longer than ``timeout_s``, or Redis is away.
        """
        self.used = self._clock()
        if self._closed or (self._task is not None and self._task.done()):
            raise Unavailable(f"the worker of run {self.run_id} has stopped", hint="see the log", code="failed")
        await self.readiness.wait(timeout_s)
        return self.state

    async def _follow(self, after: RunFollower | None = None) -> None:
        if after is not None:
            await after.stop()  # two would write the same parts
            after = None
        applied = await self._begin()
        while True:
            try:
                await self._follow_from(applied)
                reason = "Redis lost its newest writes"
            except NotOwner:
                _log.warning("run %s: another server took it over, or Redis lost that it is ours", self.run_id)
                reason = "the run was taken over"
                self._unsaved = Effects()  # whoever owns the run has found the same
            except PointsMissing:
                reason = "what came since it was taken over depends on the points before"
                _log.info("run %s: %s; they are loaded first", self.run_id, reason)
                self.readiness.lose()  # a frame is folded in part
                self._restart.offer(await self.points.needed())
            else:
                await self._restart.forget()
            await self._pause_work()
            if not await self.journal.patiently(self.listing.is_listed):
                return  # Redis came back empty: the agents have to say again what run this is
            self.readiness.lose()
            applied = await self._begin()
            self.channel.publish({"type": "reset", "reason": f"{reason}; fetch again"})

    async def _follow_from(self, applied: str) -> None:
        """Follow the stream until what Redis holds is no longer what is folded. Raises NotOwner."""
        while True:
            self.rest.turn()
            entries = self.handed.take(self.cursor)
            if not entries:
                due = self.rest.read_due() or self.journal.more or not self.readiness.reached
                if due:
                    entries = await self.journal.read(self.cursor)
                    self.window.found_waiting(self.state.store, self.journal)
            self.fence.check()
            if await self.window.has_diverged(self.journal, self.state, self.cursor):
                return
            changes = Effects()
            waiting = PendingFrames(entries, self.handed.read)
            while waiting:
                if not (replayed := waiting.is_replayed(applied)):
                    await self._reconcile_incidents()
                if names := waiting.first_met(self.state.metric_names):
                    await self._slices.run(self.state.judge.classify_names(names))
                begin, room = partial(self.window.read, self.state), self.window.until_cut(self.state)
                fold = partial(waiting.fold, self.state, self.detectors, begin, applied, room)
                with self.state.store.strictly():
                    changes.add(self._restart.folding(fold), with_incidents=not replayed)
                self.cursor, message = waiting.newest
                if self.window.cut_when_due(self.state):
                    self._restart.sealed(self.state.store, message)
                if len(entries) > 1:
                    await asyncio.sleep(0)  # a long history must not hold up the live requests of other runs
            if not entries and not self.readiness.reached:
                await self._reconcile_incidents()
                self.readiness.reach()
                if self.listing.run.status in ("running", "stalled"):  # as the server before said last
                    self.state.liveness.expect_agents(self._clock())
                self.internal_errors.mended(FOLLOWING)
                self.rest.begin()
                _log.info("run %s: caught up at %s", self.run_id, self.cursor)
            if entries:
                self.handed.folded(*entries[-1])
                self.listing.frame_stored(stream_order(self.cursor)[0] / 1000, self._clock())
                self.rest.active()
                self._concluded = max(self._concluded, self.cursor, key=stream_order)
                await self._conclude(changes)
                self._stored_to = self.cursor
                new = (at for at, _ in entries if stream_order(at) > stream_order(applied))
                if (oldest := next(new, None)) is not None:
                    self.judged(stream_order(oldest)[0] / 1000)
                self._restart.concluded(*entries[-1], self._applied)
            self._restart.write_when_due(self.state)
            self.window.archive_when_due(self.state, lambda: self._stored_to)
            if self.readiness.reached:
                if self.rest.tick_due():
                    await self.tick()
                if not self.journal.more:
                    await self.rest.wait()

    async def _begin(self) -> str:
        """Start from what is stored; return the stream id up to which incidents and commands are complete."""
        self.handed.clear()
        await self.journal.patiently(self.fence.take)
        self._noted_full = ""
        stored = await self.journal.load()
        await self.journal.patiently(self.orders.load)
        await self.detectors.load()
        await self.autopilot.load()
        agents = self.state.agents.all
        async with self.window.changing:
            processes = self._reconciliation.begun(stored.incidents, stored.retell)
            recovery = Recovery(
                self.run_id, self._archive, self._given, stored.undone, self.detectors, processes, self._restart,
                self.journal.message, stored.applied,
            )  # fmt: skip
            self.state, self.cursor = await self.journal.patiently(lambda: recovery.restored(self.readiness.troubled))
            self.window.restarted(self._restart.lost)
            self._stored_to = self.cursor
            self.points.begin(self._restart.taken)
        self.journal.interrupted = False
        self.state.agents.all.update(agents)
        self.state.liveness.limits = self._limits
        for agent in self._senders:
            self.state.liveness.agent_connected(agent, self._clock())
        await self.journal.patiently(self.listing.load)
        stored.into(self.state, with_incidents=processes is None)
        self.internal_errors.checked("reading its stored incidents", stored.unreadable)
        await self._fleet_reporter.incidents(self.listing.names, stored.incidents)
        self._concluded = self._applied = stored.applied
        return stored.applied

    def points_loaded(self) -> None:
        """Note that the points before the run was taken over are there now, or are not what they should be."""
        if self.points.failed:
            self.window.diverged = True
            self.rest.wake()
        else:
            self.channel.publish({"type": "reset", "reason": "all points are loaded; fetch again"}, self.cursor)

    async def _reconcile_incidents(self) -> None:
        """Let the incidents that were judged again, if they were, take the place of the stored ones."""
        if self.state.reconciling:
            self._unsaved.add_incidents(self._reconciliation.end(self.state, self._clock()))
            await self._conclude(Effects())
            await self.journal.reconciled()

    async def tick(self) -> None:
        """Judge silence and expiry, store and publish the summary."""
        changes = Effects()
        with self.internal_errors.noted(JUDGING):
            changes = await self._slices.run(strictly(self.state.store, self.state.ticking()))
            with self.state.store.strictly():
                self.autopilot.judge(self.state, changes)
        await self._conclude(changes)
        await self._take_acknowledged()
        await self.detectors.take_waiting(self.cursor)
        if self.orders.waiting:
            await self._take_orders()
        self.autopilot.publish(self.state)
        with self.internal_errors.noted("reporting it"):
            await self.report_to_fleet()
            await self._slices.run(self._health.flushing(self.state.statuses))
        await self._slices.breathe()
        if self._summary_due():
            view = self.internal_errors.view(self.state.view, self.listing.run)
            await self.listing.publish(view, self._clock(), self.state.store.metrics)

    def _summary_due(self) -> bool:
        try:
            status, *_ = self.state.job.status(self._clock())
        except Exception:  # a mistake of ours: the view meets it, too, and names it
            return True
        return self.internal_errors.any or self.listing.is_due(status, self._clock())

    async def _take_orders(self) -> None:
        """Make commands of orders that waited for an owner, each once whoever ticks at the same time."""
        async with self._taking_orders:
            if taken := await self.orders.take(self.state, self.fence, self.journal.patiently):
                await self._conclude(Effects(commands=taken))

    async def _take_acknowledged(self) -> None:
        """Write down what was acknowledged while the run had no owner."""
        if names := list((acknowledged := self.orders.acknowledged).waiting):  # others may come while these are stored
            await self._conclude(Effects(incidents=acknowledged.given(self.state, self._clock())))
            await acknowledged.taken(names, self.fence, self.journal.patiently)

    async def report_to_fleet(self) -> None:
        """Let the fleet's memory know what stopped the job up to now, and what its rollbacks cost."""
        if not self.state.store.loading:
            await self._fleet_reporter.report(self.state, self.listing.names, self._clock())

    # --- what follows from changes -------------------------------------------------------------------------------

    async def _conclude(self, changes: Effects) -> None:
        """Store what changed (once, together with the place in the stream), then publish and deliver it."""
        await self._store(changes)
        await self._show(changes)

    async def _store(self, changes: Effects) -> None:
        self._unsaved.keep(changes)
        if self._unsaved.unsaved:
            unsaved, self._unsaved, applied = self._unsaved, Effects(), self._concluded
            await self.journal.save(unsaved, applied)
            self._applied = applied
            await self._fleet_reporter.incidents(self.listing.names, unsaved.incidents.values())

    async def _show(self, changes: Effects) -> None:
        """Publish and deliver what is stored."""
        if changes:
            if changes.beside_rows:
                self.listing.touch()
            with self.internal_errors.noted("showing what is new"):
                publish(self.channel, self.state, changes, self.cursor)
        with contextlib.suppress(NotOwner):  # it is stored: whoever owns the run by now hands it out
            for command in changes.commands.values():
                await self._deliver(command)

    async def _deliver(self, command: Command) -> None:
        """Hand a command to every agent of the run, and note that it was."""
        if reached := await hand_out(self._senders, command, self.run_id):
            await self._delivered([command], f"sent to {reached} {'agent' if reached == 1 else 'agents'}")

    async def _delivered(self, commands: list[Command], detail: str) -> None:
        if changed := self.state.commands.delivered(commands, self._clock(), detail):
            await self._conclude(Effects(commands={command.command_id: command for command in changed}))
