"""Tells apart a job that hangs, a process that died, and an agent that does not reach the server.

Pure: what agents report and the time are handed in, findings come out of ``tick``. It never claims more than it sees:
a hang is only reported of ranks whose slots arrive, and a suspect is called a suspect. The rules: docs/liveness.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Iterable
from dataclasses import fields, replace
from functools import partial
from operator import attrgetter

from msgspec import to_builtins

from stabilitybackend.base.slices import at_once
from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.liveness.agents import SILENT_AFTER_S, AgentBook
from stabilitybackend.judging.liveness.budgets import Budgets, Limits, Seen
from stabilitybackend.judging.liveness.death.causes import known_beside
from stabilitybackend.judging.liveness.death.monitor import DeathMonitor, reported_by
from stabilitybackend.judging.liveness.duplicate_ranks import DuplicateRanks
from stabilitybackend.judging.liveness.first_step import FirstStep
from stabilitybackend.judging.liveness.format import gpus_of
from stabilitybackend.judging.liveness.gpu_facts import broken_gpus
from stabilitybackend.judging.liveness.hang.monitor import HangMonitor
from stabilitybackend.judging.liveness.hang.overdue import Allowance, StallDetection, budget_of, has_pace
from stabilitybackend.judging.liveness.job_phase import job_phase
from stabilitybackend.judging.liveness.job_snapshot import JobSnapshot, JobStart, of_earlier_start, of_larger_start
from stabilitybackend.judging.liveness.job_status import how_it_ended, how_it_runs
from stabilitybackend.judging.liveness.quiet_log import QuietLogs
from stabilitybackend.judging.liveness.rank_status import Overdue, RankStatuses, judge_ranks
from stabilitybackend.judging.liveness.rank_watch import MAX_RANK, RankWatch
from stabilitybackend.judging.liveness.slow_ranks import SlowRanks
from stabilitybackend.judging.liveness.stacks.dumps import DumpBook, DumpRequest
from stabilitybackend.lineage.changes import LineageEvent
from stabilitybackend.schema.gpus import CriticalFault
from stabilitybackend.schema.health import AgentHealth, RankHealth
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.json_data import MAX_RANKS
from stabilitybackend.schema.runs import RunStatus
from stabilitybackend.schema.states.severity import RunPhase
from stabilityclient.wire import started_ns

__all__ = ["LivenessMonitor"]


class LivenessMonitor(Stateful):
    """Watches the processes of one run. ``limits`` may be replaced at any time."""

    #: What agents collected on suspicion.
    dumps: DumpBook = fresh(DumpBook)
    _ranks: dict[int, RankWatch] = fresh(dict)
    _budgets: Budgets = fresh(Budgets)
    _deaths: DeathMonitor = fresh(DeathMonitor)
    #: Slots that came twice in one message or of a rank that no job has, and stacks that say nothing.
    bad_slots: int = 0
    #: Ranks not followed because there were more than MAX_RANKS.
    ranks_not_followed: int = 0

    def __init__(self, run_id: str, limits: Limits | None = None) -> None:
        super().__init__()
        self.run_id = run_id
        self.limits = limits or Limits()
        self._agents = AgentBook()
        self._quiet_logs = QuietLogs()
        self.dumps.run_id = run_id
        self._hang = HangMonitor(self.dumps)
        self._first_step = FirstStep(self.dumps)
        self._slow = SlowRanks()
        self._stalls = StallDetection()
        self._duplicate_ranks = DuplicateRanks()
        self._overdue = Overdue()
        #: When some rank was last in a long phase: who waited for it since has not stood by itself, unix seconds.
        self._excused_until = 0.0
        self._first_tick = math.inf
        self._gpu_faults: Iterable[CriticalFault] = ()
        #: Of the job, as its frames report it.
        self.newest_start = JobStart(0.0, 0)

    # --- what is stored ------------------------------------------------------------------------------------------

    def load(self, incidents: Iterable[Incident]) -> None:
        """Take over the stored incidents of the run: a restarted server goes on with them and opens none twice."""
        for incident in incidents:
            if incident.kind == "process_death":
                self._deaths.load(incident)
            elif incident.state == "open" and incident.kind == "hang":
                self._hang.load(_finding_of(incident))
            elif incident.state == "open" and incident.kind == "agent_lost":
                self._agents.load(incident, _finding_of(incident))
            elif incident.state == "open" and incident.kind == "quiet_log":
                self._quiet_logs.load(incident, _finding_of(incident))
            elif incident.state == "open" and incident.kind == "straggler" and incident.detector == "liveness":
                self._slow.load(_finding_of(incident))

    def restored(self) -> None:
        """No agent has reached us yet. Call ``load``: an open hang or a lost agent is known from stored incidents."""
        for watch in self._ranks.values():
            watch.unseen()

    # --- what agents say -----------------------------------------------------------------------------------------

    def agent_connected(self, agent: str, now: float) -> None:
        """Take note that an agent's connection opened."""
        self._agents.connected(agent, now)

    def agent_disconnected(self, agent: str, now: float) -> None:
        """Take note that an agent's connection closed; also call it for an agent that should be there and is not."""
        self._agents.disconnected(agent, now)

    def expect_agents(self, now: float) -> None:
        """Wait for the agents of a job that was under way before a restart of the server: call it once all is read."""
        running = [watch for watch in self._ranks.values() if watch.running]
        self._agents.expect(running, now, self.limits.agent_lost_s)

    def left_at(self, agent: str) -> float | None:
        """Return when an agent's connection ended, unix seconds; None where it is there, or was never known."""
        return self._agents.left_at(agent)

    def observe(self, health: AgentHealth, now: float) -> None:
        """Take what an agent reports, received at ``now``."""
        clock = self._agents.of(health.agent).hear(health, now)
        for slot in health.ranks:
            self._observe_slot(slot, health, clock, now)

    def _observe_slot(self, slot: RankHealth, health: AgentHealth, clock: float, now: float) -> None:
        rank, source = slot.rank, slot.source
        if rank is None:
            return
        if rank > MAX_RANK:
            self.bad_slots += 1
            return
        watch = self._ranks.get(rank)
        if watch is None and slot.alive is False and self.newest_start.left_out(rank, source):
            return
        if watch is None or watch.source != source:
            watch = self._other_process(slot, rank, watch, now)
            if watch is None:
                return
        if watch.seen_at == now and watch.agent == health.agent:
            self.bad_slots += 1  # twice in one message: the first one counts
            return
        before, first = watch.place, watch.seen_at == 0.0
        ran = watch.running
        watch.observe(slot, health.agent, health.node, clock, health.time, now)
        if not watch.running:
            if ran:
                self._deaths.ended()
            return
        if watch.in_long_phase and not watch.trouble and watch.stalled_s <= self._budget_of(watch):
            self._excused_until = now
        if not first:
            watch.learn(before, self._budgets, self.limits, self._excused_until, now)
        self._deaths.runs_again(rank, watch.source, watch.step, now)

    def _other_process(self, slot: RankHealth, rank: int, known: RankWatch | None, now: float) -> RankWatch | None:
        """Return the state of a process that is not the one we follow; None where it is an older one."""
        source = slot.source
        lives = slot.alive is not False and slot.state in (None, "running")
        if known is not None and lives and known.running and now - known.seen_at <= SILENT_AFTER_S:
            self._duplicate_ranks.note(rank, known.source, source, now)
        if known is not None and not known.running and lives and not self._deaths.knows(source):
            # The one that we knew is over, and this one lives, whatever the clock said when it started.
            self._deaths.runs_again(rank, source, -1, now, newer=True)
            self._ranks[rank] = watch = RankWatch(rank, source, known.stands)
            return watch
        return self._watch_of(rank, source)

    def _budget_of(self, watch: RankWatch) -> float:
        return budget_of(watch, self._budgets, self.limits)

    def logged(self, rank: int, source: str, step: int, time: float, rows: int = 1) -> None:
        """Take note of the newest row that a process logged.

        Args:
            rank, source: of the process. step: of the row. time: unix seconds of its own clock.
            rows: how many it logged since the row that was reported before.
        """
        watch = self._watch_of(rank, source)
        if watch is not None:
            watch.logged(step, time, rows, self._budgets)

    def logs_own_work(self, rank: int, now: float) -> None:
        """Take note that a rank logs times of its own work, which the straggler detector compares better."""
        self._slow.logs_own_work(rank, now)

    def event(self, event: LineageEvent, now: float) -> None:
        """Take one event of a source at ``now``, unix seconds: those of processes and ``stacks`` matter."""
        kind, data, time = event.type, event.data, event.time or now
        if kind == "stacks":
            self.bad_slots += self.dumps.take(data, event.source.node, time, self._running) is None
            return
        if kind not in ("start", "finish", "preempted", "left", "exception", "process_death"):
            return
        of_agent = kind in ("left", "process_death")
        rank = data["rank"] if of_agent else event.source.rank
        if rank is None or rank > MAX_RANK:
            return
        source = data["source"] if of_agent else event.source.source
        watch = self._ranks.get(rank)
        seen = watch is not None and watch.running and now - watch.seen_at <= SILENT_AFTER_S
        if not seen and self.newest_start.left_out(rank, source):
            return  # late report of a job that runs on fewer ranks by now
        watch = self._watch_of(rank, source) if source else self._ranks.get(rank)
        if watch is None:
            return  # of a process that a newer one has replaced
        watch.step = max(watch.step, -1 if event.step is None else event.step)
        if not of_agent and not watch.node:
            watch.node = event.source.node
        agent = self._agents.all.get(watch.agent)
        # Who follows a log is on a machine of its own.
        seen_on = "" if agent is not None and agent.log is not None else watch.node
        node = seen_on or event.source.node
        if kind == "start":
            self._deaths.runs_again(rank, watch.source, watch.step, time)
            return
        self._deaths.ended()
        beside = partial(known_beside, watch, self._ranks.values())
        if kind in ("finish", "preempted"):
            watch.state = "finished"
        elif kind == "left":
            watch.state = "left"
        elif kind == "exception":
            watch.state = "exception"
        elif watch.state == "finished":
            return
        else:
            # Its slot may have said "left" before: sys.exit(3) runs the hooks of the exit first, the code comes last.
            watch.dead, watch.alive = True, False
        if kind in ("exception", "process_death", "preempted") and not data.get("ordered"):
            # One that a restart ended is no trouble of its own: what that was ordered for is reported already.
            self._deaths.add(watch.source, rank, node, event, reported_by(kind, data), beside, now)

    def _running(self) -> list[int]:
        return [watch.rank for watch in self._ranks.values() if watch.running]

    # --- reports -------------------------------------------------------------------------------------------------

    def tick(self, now: float, gpu_faults: Iterable[CriticalFault] = ()) -> list[Finding]:
        """Return what changed since the last call, about once a second; ``gpu_faults`` as for ``broken_gpus``."""
        return at_once(self.ticking(now, gpu_faults))

    def ticking(self, now: float, gpu_faults: Iterable[CriticalFault] = ()) -> Generator[None, None, list[Finding]]:
        """``tick`` in slices: it yields where others may be served; the monitor must get nothing new meanwhile."""
        self._gpu_faults = gpu_faults
        self._first_tick = min(self._first_tick, now)
        visible = self._visible(now)
        yield
        found = self._deaths.news(self._newest_step(), now, self._hang.finding)
        over = bool(self._ranks) and not any(watch.running for watch in self._ranks.values())
        yield
        # Ranks that were ended on order are to come back: only then it is over.
        gone = over and not any(watch.dead for watch in self._ranks.values())
        found += yield from self._tick_hang(visible, gone, now)
        yield
        hang, usual_s = self._hang.finding, self._budgets.usual_step_s
        found += self._agents.tick(self._ranks, now, self.limits.agent_lost_s, usual_s, hang)
        away = self._agents.all.keys() - self._agents.here(now, self.limits.agent_lost_s)
        found += self._quiet_logs.tick(self._agents.all, self._ranks.values(), away)
        yield
        if not self._deaths.is_open and hang is None:
            found += self._slow.tick(visible, self._excused_until, over, now)
            yield
        return found

    def wants(self) -> list[DumpRequest]:
        """Return the dumps that shall be ordered, once each; call it after ``tick``."""
        return self.dumps.wants()

    def _tick_hang(self, visible: list[RankWatch], over: bool, now: float) -> Generator[None, None, list[Finding]]:
        self._stalls.update(visible, now)
        yield
        allowed = self.allowance()
        overdue, excused = self._stalls.overdue(visible, self._ranks.values(), allowed, self._excused_until, now)
        first = not (overdue or excused) and FirstStep.concerns(visible, self.limits)
        found: list[Finding] = []
        if overdue or first or self._hang.finding is not None or self._hang.at_work:
            job = self._job_snapshot(visible, now) if visible else None
            yield
            if job is not None and first and self._first_step.stuck(job, self.limits, now):
                overdue = visible
            found = yield from self._hang.ticking(job, overdue, self._deaths.is_open, excused, over, allowed, now)
        self._overdue = Overdue.of(overdue, self._hang.at_work, excused, self._stalls.waiting)
        return found

    def _job_snapshot(self, visible: list[RankWatch], now: float) -> JobSnapshot:
        seen = {watch.rank for watch in visible}
        silent: dict[int, float] = {}
        unseen, over, world = [], [], 0
        earlier = of_earlier_start(self._ranks.values(), visible)
        for watch in self._ranks.values():
            world = max(world, watch.world_size)
            if watch.running and watch.rank not in seen:
                unseen.append(watch)
                if watch.agent and not watch.trouble:
                    silent[watch.rank] = self._agents.silent_s(watch.agent, now)
            elif not watch.running and watch.state in ("finished", "left") and watch.rank not in earlier:
                over.append(watch)
        late = [watch for watch in visible if self._agents.silent_s(watch.agent, now) > SILENT_AFTER_S]
        silent |= {watch.rank: self._agents.silent_s(watch.agent, now) for watch in late}
        if len(late) < len(visible):
            hidden = set(late)
            unseen, visible = [*unseen, *late], [watch for watch in visible if watch not in hidden]
        never = [rank for rank in range(world) if rank not in self._ranks] if world <= MAX_RANKS else []
        return JobSnapshot(
            visible=visible, unseen=sorted(unseen, key=lambda watch: watch.rank), over=over, never=never,
            not_back=sorted(earlier), broken_gpus=broken_gpus((*visible, *unseen), self._gpu_faults),
            silent_s=silent, blind=self._agents.gaps({watch.agent for watch in visible}), now=now,
        )  # fmt: skip

    def announced_size(self) -> int:
        """Return the ranks that a job has by its processes' own word; 0 where none has spoken."""
        return max((watch.world_size for watch in self._ranks.values() if watch.running), default=0)

    def status(self, now: float) -> tuple[RunStatus, str]:
        """Return the run's status word of ``docs/api.md`` and a note in plain words, empty when all is well."""
        return self._with_duplicates(self._status(now), now)

    def phase(self, now: float) -> tuple[RunPhase, float | None]:
        """Return what the job does where it is under way, and since when, unix seconds (``job_phase``)."""
        return job_phase(self._visible(now))

    def ended(self, now: float) -> tuple[RunStatus, str] | None:
        """Return the same of a job that is over, None of one that is not."""
        ended = self._ended(lambda: self._visible(now))
        return None if ended is None else self._with_duplicates(ended, now)

    def _with_duplicates(self, status: tuple[RunStatus, str], now: float) -> tuple[RunStatus, str]:
        return status[0], " ".join(filter(None, (status[1], self.duplicates(now))))

    def _ended(self, visible: Callable[[], list[RankWatch]]) -> tuple[RunStatus, str] | None:
        death = self._deaths.open_finding(self._newest_step()) if self._deaths.is_open else None
        return how_it_ended(self._ranks.values(), visible, death)

    def is_settled(self, now: float) -> bool:
        """Say whether nothing more is to be expected of processes that ended."""
        return self._deaths.is_settled(now)

    def duplicates(self, now: float) -> str:
        """Return what is said of two living processes of one rank (two jobs under one run id), empty without any."""
        return self._duplicate_ranks.note_for(self.run_id, now) or self._agents.duplicates()

    def _status(self, now: float) -> tuple[RunStatus, str]:
        visible = self._visible(now)
        ended = self._ended(lambda: visible)
        if ended is not None:
            return ended
        ranks, hang, lost_after_s = list(self._ranks.values()), self._hang.finding, self.limits.agent_lost_s
        status, note = how_it_runs(ranks, visible, self._agents, hang, lost_after_s, self._first_tick, now)
        return status, note or self._hang.note(self._newest_step())

    def allowance(self) -> Allowance:
        """Return how long ranks may be stalled at this moment."""
        return Allowance(self._budgets, self.limits)

    def budget_s(self, rank: int, source: str, allowed: Allowance | None = None) -> float | None:
        """Return how long a process may stay where it is, seconds; None for an older one, or one without a pace."""
        watch, allowed = self._ranks.get(rank), allowed or self.allowance()
        return allowed.of(watch) if watch is not None and watch.source == source and has_pace(watch) else None

    def placed(self, finding: Finding, known: Incident | None) -> Finding:
        """Return a finding about a rank with its node and GPU, as its agent reports them, or as it is known."""
        watch = None if finding.rank is None else self._ranks.get(finding.rank)
        node, gpus = (known.node, known.evidence.get("gpus")) if known is not None else (None, None)
        if watch is not None:
            node, gpus = watch.node or node, to_builtins(gpus_of([watch])) or gpus
        return replace(finding, node=node, evidence=finding.evidence | ({"gpus": gpus} if gpus else {}))

    def statuses(self, culprits: Collection[int], now: float) -> RankStatuses:
        """Return what each rank does, as of the last tick; ``culprits``: the ranks that open verdicts name."""
        unheard, usual_s = self._agents.unheard(now), self._budgets.usual_step_s
        return judge_ranks(self._ranks.values(), unheard, self._overdue, culprits, usual_s)

    def _watch_of(self, rank: int, source: str) -> RankWatch | None:
        """Return the state of a process, None for one that a newer process of its rank has replaced."""
        watch = self._ranks.get(rank)
        if watch is not None and watch.source == source:
            return watch
        if watch is not None and started_ns(source) < started_ns(watch.source):
            return None
        if watch is None and len(self._ranks) >= MAX_RANKS:
            self.ranks_not_followed += 1
            return None
        stands = Seen() if watch is None else watch.stands
        watch = self._ranks[rank] = RankWatch(rank, source, stands, dead=self._deaths.knows(source))
        return watch

    def _visible(self, now: float) -> list[RankWatch]:
        """Return the running ranks whose slots we see now, by rank; forget those that the job has no more."""
        lost_after_s = self.limits.agent_lost_s
        here = self._agents.here(now, lost_after_s)
        fresh = [
            watch
            for watch in self._ranks.values()
            if watch.agent in here and watch.running and not watch.trouble and watch.seen_at
        ]
        for rank in of_larger_start(self._ranks.values(), fresh, self.newest_start):
            del self._ranks[rank]
            self._deaths.runs_again(rank, "", -1, now, newer=True)
        return sorted(fresh, key=attrgetter("rank"))

    def _newest_step(self) -> int:
        return max((watch.step for watch in self._ranks.values()), default=-1)


def _finding_of(incident: Incident) -> Finding:
    """Return the finding that a stored incident was made of."""
    return Finding(**{field.name: getattr(incident, field.name) for field in fields(Finding)})
