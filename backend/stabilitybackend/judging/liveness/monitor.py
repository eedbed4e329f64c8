"""Hanging jobs, dead processes and lost agents of a run, distinguished.

Pure: reports of agents and the time are arguments, ``tick`` returns findings. A hang is reported only of visible ranks,
and a suspect is called a suspect. The rules: docs/liveness.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
from msgspec import to_builtins

from stabilitybackend.base.slices import at_once
from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.liveness.agents import SILENT_AFTER_S, AgentBook
from stabilitybackend.judging.liveness.budgets import Budgets, Limits, LongestTime
from stabilitybackend.judging.liveness.death.causes import STOPPED_BY_HAND, known_beside
from stabilitybackend.judging.liveness.death.monitor import DeathMonitor, reported_by
from stabilitybackend.judging.liveness.format import gpus_of, name_nodes, name_ranks
from stabilitybackend.judging.liveness.gpu_facts import broken_gpus
from stabilitybackend.judging.liveness.hang.monitor import HangMonitor
from stabilitybackend.judging.liveness.hang.overdue import Allowance, StallDetection, budget_of, has_pace
from stabilitybackend.judging.liveness.job_snapshot import (
    USES_CPU,
    JobSnapshot,
    JobStart,
    of_earlier_start,
    of_larger_start,
    tree_cpu_s,
)
from stabilitybackend.judging.liveness.quiet_log import QuietLogs, quiet_text
from stabilitybackend.judging.liveness.rank_status import Overdue, RankStatuses, judge_ranks
from stabilitybackend.judging.liveness.rank_watch import MAX_RANK, RankWatch
from stabilitybackend.judging.liveness.slow_ranks import SlowRanks
from stabilitybackend.judging.liveness.stacks.dumps import DUMP_WAIT_S, Dump, DumpBook, DumpRequest
from stabilitybackend.judging.liveness.stacks.parse import ParsedFrame, in_long_work, works_elsewhere
from stabilitybackend.lineage.batch import Batch
from stabilitybackend.lineage.changes import LineageEvent
from stabilitybackend.schema.evidence import DeathFacts, facts
from stabilitybackend.schema.gpus import CriticalFault
from stabilitybackend.schema.health import AgentHealth, RankHealth
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.json_data import MAX_RANKS
from stabilitybackend.schema.runs import RunStatus
from stabilitybackend.schema.severity import RunPhase
from stabilityclient.wire import pid_of, started_ns

__all__ = ["LivenessMonitor"]


def how_it_ended(
    ranks: Collection[RankWatch], visible: Callable[[], Sequence[RankWatch]], death: Finding | None
) -> tuple[RunStatus, str] | None:
    """Return status and note of an ended job; None for others.

    Args:
        ranks: the newest process of each rank. visible: returns those of them that run and report.
    """
    if death is not None:
        known = facts(death.evidence, DeathFacts)
        if all(one.preempted for one in known.deaths):
            return "preempted", death.text
        by_hand = known.exception is not None and known.exception.type in STOPPED_BY_HAND
        return ("stopped" if by_hand else "crashed"), death.text
    if ranks and all(watch.state in ("finished", "left") for watch in ranks):
        left = [watch.rank for watch in ranks if watch.state == "left"]
        return "finished", f"{name_ranks(left)} ended without run.finish()." if left else ""
    dead = {watch.rank for watch in ranks if watch.state == "running" and not watch.alive}
    gone = sorted(dead - of_earlier_start(ranks, visible())) if dead else []
    if gone:
        process, are = ("process", "is") if len(gone) == 1 else ("processes", "are")
        return "crashed", f"The {process} of {name_ranks(gone)} {are} gone."
    return None


def how_it_runs(
    ranks: Collection[RankWatch],
    visible: Sequence[RankWatch],
    agents: AgentBook,
    hang: Finding | None,
    lost_after_s: float,
    first_tick: float,
    now: float,
) -> tuple[RunStatus, str]:
    """Return the status of ``docs/api.md`` and a note.

    Args:
        ranks: the newest process of each rank. visible: those of them that run and report.
        lost_after_s: silence of a lost agent.
        first_tick: of this server.
    """
    away = agents.all.keys() - agents.here(now, lost_after_s)
    lost = {watch.agent for watch in ranks if watch.agent in away and watch.running}
    if lost:
        nodes = name_nodes({agents.all[name].node or name for name in lost}, agents.nodes)
        who = "agent" if len(lost) == 1 else f"{len(lost)} agents"
        seen = len(visible)
        if hang is not None and seen:
            return "stalled", hang.text
        if all(agents.all[name].log is not None for name in lost):
            return "unreachable", "Its log is no longer followed; the job itself may be well."
        rest = f" {seen} other {'rank still reports' if seen == 1 else 'ranks still report'}." if seen else ""
        does = "does" if len(lost) == 1 else "do"
        note = f"No data: the {who} on {nodes} {does} not reach the server; the job itself may be well.{rest}"
        return ("running" if seen else "unreachable"), note
    unheard = not visible and any(w.running and (w.agent == "" or agents.expects(w.agent)) for w in ranks)
    soon = now - first_tick <= lost_after_s
    if hang is not None and (soon or not unheard):
        return "stalled", hang.text
    if unheard:
        if soon:
            return "running", "Waiting for the agents to come back."
        return "unreachable", "No agent has connected since the server started."
    if agents.all and not any(agent.connected for agent in agents.all.values()):
        return "running", "No agent is connected at the moment."
    logs = [agent.log for agent in agents.all.values() if agent.log is not None]
    if quiet := [log for log in logs if log.is_quiet]:
        return "unreachable", quiet_text(quiet[0])
    if logs and not visible:
        return "running", f"Only its log {logs[0].name} is followed: hangs and deaths can't be detected from there."
    troubled = [watch for watch in ranks if watch.running and watch.trouble]
    if troubled:
        who = name_ranks([watch.rank for watch in troubled])
        return "running", f"Not visible here: {who}, because {troubled[0].trouble}."
    long = sorted({watch.phase for watch in visible if watch.in_long_phase})
    return "running", f"In {', '.join(long)}." if long else ""


#: Least time of a rank in a phase of the job, seconds: a short save in each step is part of training.
SHOWN_AFTER_S = 2.0
#: Ranks' names of phases -> phase of the job; the first match counts.
_WORDS: Sequence[tuple[RunPhase, frozenset[str]]] = (
    ("restoring", frozenset({"load", "restore", "rollback"})),
    ("checkpointing", frozenset({"checkpoint", "checkpointing", "ckpt", "save"})),
    (
        "evaluating",
        frozenset({"eval", "evaluate", "evaluation", "test", "val", "valid", "validate", "validation"}),
    ),
    ("starting", frozenset({"init", "setup", "compile", "warmup"})),
)
_NAME = re.compile(r"[a-z]+")


def job_phase(visible: Sequence[RankWatch]) -> tuple[RunPhase, float | None]:
    """Return the phase of the job and its start, unix seconds of the server; None for training, without a start.

    Args:
        visible: ranks that run and report. One that saves or evaluates counts for all: the others wait for it.
    """
    found: dict[RunPhase, float] = {}
    for watch in visible:
        if not watch.in_long_phase or watch.stalled_s < SHOWN_AFTER_S:
            continue
        words = set(_NAME.findall(watch.phase.lower()))
        for phase, names in _WORDS:
            if not names.isdisjoint(words):
                found[phase] = min(found.get(phase, watch.since), watch.since)
                break
    if visible and all(watch.newest_step < 0 for watch in visible):
        return "starting", found.get("starting")
    for phase, _ in _WORDS:
        if phase in found:
            return phase, found[phase]
    return "training", None


# Stuck first steps, found well before their budget (600 s). A first step compiles, fills caches and builds extensions,
# for an unknown time. But where no rank moves, no main thread uses the processor and two stack samples are equal, no
# work is done. A wait for data is served by workers: then no thread and no child of the rank may have used the
# processor either.

#: Time without a move before the first stack sample, and before the second: relative to the floor, and at most. With
#: the time for an answer the hang is reported within 120 s.
CHECK_FLOORS = 4.0
CHECK_S = 40.0
#: Rounds of two stack samples in one hang: each of them disturbs the job a little.
MAX_ROUNDS = 4
#: The same of all threads of a process and its children together: a loader that fetches or decodes uses more, mere
#: watchers less.
TREE_USES_CPU = 0.02

#: Innermost frames of a wait for a lock file: its holder may be long gone.
_LOCKS = re.compile(r"/file_baton\.py$|/filelock/")
#: Innermost frames that may show a wait for a lock file.
_LOCK_DEPTH = 3


class FirstStep:
    """The stack samples of one hang before the end of the first step; ``dumps`` holds the agents' answers."""

    def __init__(self, dumps: DumpBook) -> None:
        self._dumps = dumps
        self._check_s = CHECK_S
        self._forget(frozenset())

    def _forget(self, place: frozenset[tuple[str, int, str]]) -> None:
        self._place, self._rounds = place, 0
        self._request, self._asked_at = "", 0.0
        self._before: dict[int, tuple[ParsedFrame, ...]] = {}
        #: CPU seconds of each rank's process and children at the first sample, where reported.
        self._cpu_s: dict[int, float | None] = {}
        self._used: set[int] = set()
        self._stuck = False

    @staticmethod
    def concerns(visible: Sequence[RankWatch], limits: Limits) -> bool:
        """Return whether all ranks are before the end of their first step, in no long phase."""
        check_s = _check_s(limits)
        return bool(visible) and all(
            not watch.first_step_done and not watch.in_long_phase and watch.stalled_s >= check_s for watch in visible
        )

    def stuck(self, job: JobSnapshot, limits: Limits, now: float) -> bool:
        """Return whether such a job is stuck; asks for stacks where they would decide."""
        self._check_s = check_s = _check_s(limits)
        place = frozenset((watch.source, watch.step, watch.phase) for watch in job.visible)
        if place != self._place:
            self._forget(place)
        if job.unseen or job.absent or job.over:
            return False  # an unseen rank may be at work; an absent one is reported after the budget
        self._used |= {watch.rank for watch in job.visible if (watch.proc.cpu or 0.0) >= USES_CPU}
        if self._stuck or self._rounds >= MAX_ROUNDS:
            return self._stuck
        dump = self._dumps.dump(self._request) if self._request else None
        waited = now - self._asked_at
        if not self._request:
            self._ask(job, now)
        elif dump is None or not (dump.complete or waited >= DUMP_WAIT_S):
            if waited >= check_s:
                self._ask(job, now)  # no answer
        elif not self._before:
            if waited >= check_s:
                self._before = {rank: one.frames for rank in dump.samples if (one := dump.stack_of(rank)) is not None}
                self._cpu_s = {rank: tree_cpu_s(dump, rank) for rank in dump.samples}
                self._ask(job, now)
        else:
            self._stuck = all(self._is_stalled(watch, dump, job) for watch in job.visible)
            self._rounds += 1
            self._request, self._before, self._used = "", {}, set()
        return self._stuck

    def _is_stalled(self, watch: RankWatch, dump: Dump, job: JobSnapshot) -> bool:
        """Return whether a rank is idle, by two stacks and the processor."""
        stack = dump.stack_of(watch.rank)
        if stack is None or self._before.get(watch.rank) != stack.frames or job.waits_for_disk(watch):
            return False
        # A main thread that waits for a GPU or for others may spin.
        if watch.rank in self._used and stack.where != "collective":
            return False
        if any(_LOCKS.search(frame.file) for frame in stack.frames[:_LOCK_DEPTH]):
            return True
        if stack.where == "data":
            if not self._fetches_nothing(watch.rank, dump):
                return False
        elif stack.where == "checkpoint" or in_long_work(stack.frames, stack.where, outside=False):
            return False
        return not works_elsewhere(stack.frames)

    def _fetches_nothing(self, rank: int, dump: Dump) -> bool:
        """Return whether a rank that waits for data has no thread or worker at work."""
        before, after = self._cpu_s.get(rank), tree_cpu_s(dump, rank)
        if before is None or after is None or any(one.get("state") == "D" for one in _children(dump, rank)):
            return False
        return abs(after - before) < TREE_USES_CPU * self._check_s  # less than before: a worker has come to its end

    def _ask(self, job: JobSnapshot, now: float) -> None:
        self._request, self._asked_at = self._dumps.request_id("first step", now), now
        reason = "no rank moves in its first step: does it compile, or does it hang?"
        self._dumps.ask(self._request, reason, job.running, now)


def _check_s(limits: Limits) -> float:
    return min(CHECK_S, CHECK_FLOORS * limits.hang_floor_s)


def _children(dump: Dump, rank: int) -> list[Mapping[str, Any]]:
    children = dump.proc_of(rank).get("children")
    return [one for one in children if isinstance(one, Mapping)] if isinstance(children, list) else []


#: Remembered ranks.
MAX_DUPLICATES = 64
#: Longest overlap of a restart, seconds; two living processes for longer are two jobs.
OVERLAP_S = 5.0
#: Time of the note after both were last seen, seconds.
FORGET_S = 10.0


class DuplicateRanks:
    """Ranks claimed by two processes."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[str, str, float, float]] = {}

    def note(self, rank: int, first: str, second: str, now: float) -> None:
        """Take two living processes, by their sources, of one rank."""
        known = self._seen.get(rank)
        pair = (min(first, second), max(first, second))
        if known is None or known[:2] != pair or now - known[3] > FORGET_S:
            if known is None and len(self._seen) >= MAX_DUPLICATES:
                del self._seen[next(iter(self._seen))]
            self._seen[rank] = (*pair, now, now)
        else:
            self._seen[rank] = (*pair, known[2], now)

    def note_for(self, run_id: str, now: float) -> str:
        """Return the note for users, "" for none."""
        both = [
            (rank, one, other)
            for rank, (one, other, since, last) in self._seen.items()
            if now - last <= FORGET_S and last - since >= OVERLAP_S
        ]
        if not both:
            return ""
        rank, one, other = min(both)
        more = f" So do {len(both) - 1} more." if len(both) > 1 else ""
        return (
            f"Two living processes say that they are rank {rank} of this run (pid {pid_of(one)} and pid "
            f"{pid_of(other)}).{more} Do two jobs use the run id {run_id}? Give each its own."
        )


class LivenessMonitor(Stateful):
    """Monitor of the processes of one run. ``limits`` may be replaced at any time."""

    #: Answers of agents to requests for stacks.
    dumps: DumpBook = fresh(DumpBook)
    _ranks: dict[int, RankWatch] = fresh(dict)
    _budgets: Budgets = fresh(Budgets)
    _deaths: DeathMonitor = fresh(DeathMonitor)
    #: Duplicate slots in a message, slots of invalid ranks, and unreadable stacks.
    bad_slots: int = 0
    #: Ranks left out beyond MAX_RANKS.
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
        #: Last time of some rank in a long phase, unix seconds: ranks that waited for it were not stalled by
        #: themselves.
        self._excused_until = 0.0
        self._first_tick = math.inf
        self._gpu_faults: Iterable[CriticalFault] = ()
        #: Of the job, as reported by its frames.
        self.newest_start = JobStart(0.0, 0)

    # --- storage -------------------------------------------------------------------------------------------------

    def load(self, incidents: Iterable[Incident]) -> None:
        """Take the stored incidents of the run: a restarted server continues them."""
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
        """Reset agents after a restart. Call ``load``: an open hang or a lost agent is in stored incidents."""
        for watch in self._ranks.values():
            watch.unseen()

    # --- reports of agents ---------------------------------------------------------------------------------------

    def agent_connected(self, agent: str, now: float) -> None:
        """Take an opened connection of an agent."""
        self._agents.connected(agent, now)

    def agent_disconnected(self, agent: str, now: float) -> None:
        """Take a closed connection, or the absence of an expected agent."""
        self._agents.disconnected(agent, now)

    def expect_agents(self, now: float) -> None:
        """Wait for the agents of a job from before a restart of the server: call it once all is read."""
        running = [watch for watch in self._ranks.values() if watch.running]
        self._agents.expect(running, now, self.limits.agent_lost_s)

    def left_at(self, agent: str) -> float | None:
        """Return the end of an agent's connection, unix seconds; None for an open or unknown one."""
        return self._agents.left_at(agent)

    def observe(self, health: AgentHealth, now: float) -> None:
        """Take an agent's report, received at ``now``."""
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
        """Return the state of another process of a rank; None for an older one."""
        source = slot.source
        lives = slot.alive is not False and slot.state in (None, "running")
        if known is not None and lives and known.running and now - known.seen_at <= SILENT_AFTER_S:
            self._duplicate_ranks.note(rank, known.source, source, now)
        if known is not None and not known.running and lives and not self._deaths.knows(source):
            # The followed process is gone, and this one lives, whatever its clock at the start.
            self._deaths.runs_again(rank, source, -1, now, newer=True)
            self._ranks[rank] = watch = RankWatch(rank, source, known.stands)
            return watch
        return self._watch_of(rank, source)

    def _budget_of(self, watch: RankWatch) -> float:
        return budget_of(watch, self._budgets, self.limits)

    def logged(self, rank: int, source: str, step: int, time: float) -> None:
        """Take note of the newest row that a process logged.

        Args:
            rank, source: of the process. step: of the row. time: unix seconds of its own clock.
        """
        watch = self._watch_of(rank, source)
        if watch is not None:
            watch.logged(step, time, self._budgets)

    def rows(self, batch: Batch) -> None:
        """Take rows of ranks, in order of arrival."""
        tables, learned = batch.tables, []
        if batch.count > 1 and batch.is_of_one:
            watch = self._watch_of(tables[0].sources[0].rank or 0, tables[0].sources[0].source)
            if watch is not None:
                learned.append(watch.logged_rows(*batch.merged()))
            tables = ()
        for table in tables:
            steps, times = table.steps, table.times
            for at, source in enumerate(table.sources):
                if len(steps) == 1:
                    self.logged(source.rank or 0, source.source, int(steps[0, at]), float(times[0, at]))
                elif (watch := self._watch_of(source.rank or 0, source.source)) is not None:
                    learned.append(watch.logged_rows(steps[:, at], times[:, at], table.order[:, at]))
        if learned:
            self._budgets.learn_many(*map(np.concatenate, zip(*learned, strict=True)))

    def logs_own_work(self, rank: int, now: float) -> None:
        """Take that a rank logs times of its own work, which the straggler detector compares better."""
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
        # A follower of a log is on a machine of its own.
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
            # Its slot may have had "left" before: sys.exit(3) runs the hooks of the exit first, the code comes last.
            watch.dead, watch.alive = True, False
        if kind in ("exception", "process_death", "preempted") and not data.get("ordered"):
            # An end by a restart is no incident: the reason of the restart is one already.
            self._deaths.add(watch.source, rank, node, event, reported_by(kind, data), beside, now)

    def _running(self) -> list[int]:
        return [watch.rank for watch in self._ranks.values() if watch.running]

    # --- reports -------------------------------------------------------------------------------------------------

    def tick(self, now: float, gpu_faults: Iterable[CriticalFault] = ()) -> list[Finding]:
        """Return changed findings, about once a second; ``gpu_faults`` as for ``broken_gpus``."""
        return at_once(self.ticking(now, gpu_faults))

    def ticking(self, now: float, gpu_faults: Iterable[CriticalFault] = ()) -> Generator[None, None, list[Finding]]:
        """``tick`` in slices: it yields where others may be served, without updates of the monitor meanwhile."""
        self._gpu_faults = gpu_faults
        self._first_tick = min(self._first_tick, now)
        visible = self._visible(now)
        yield
        found = self._deaths.news(self._newest_step(), now, self._hang.finding)
        over = bool(self._ranks) and not any(watch.running for watch in self._ranks.values())
        yield
        # Ranks that a command ended are to come back: the job ends only without them.
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
        """Return the dumps to request, once each; call it after ``tick``."""
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
        """Return the ranks of a job by its processes' own reports; 0 for none."""
        return max((watch.world_size for watch in self._ranks.values() if watch.running), default=0)

    def status(self, now: float) -> tuple[RunStatus, str]:
        """Return the run's status of ``docs/api.md`` and a note, "" for none."""
        return self._with_duplicates(self._status(now), now)

    def phase(self, now: float) -> tuple[RunPhase, float | None]:
        """Return the phase of a job under way and its start, unix seconds (``job_phase``)."""
        return job_phase(self._visible(now))

    def ended(self, now: float) -> tuple[RunStatus, str] | None:
        """Return the same of an ended job, None for others."""
        ended = self._ended(lambda: self._visible(now))
        return None if ended is None else self._with_duplicates(ended, now)

    def _with_duplicates(self, status: tuple[RunStatus, str], now: float) -> tuple[RunStatus, str]:
        return status[0], " ".join(filter(None, (status[1], self.duplicates(now))))

    def _ended(self, visible: Callable[[], list[RankWatch]]) -> tuple[RunStatus, str] | None:
        death = self._deaths.open_finding(self._newest_step()) if self._deaths.is_open else None
        return how_it_ended(self._ranks.values(), visible, death)

    def is_settled(self, now: float) -> bool:
        """Return whether no more reports of ended processes are expected."""
        return self._deaths.is_settled(now)

    def duplicates(self, now: float) -> str:
        """Return the note about two living processes of one rank (two jobs under one run id), "" for none."""
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
        """Return the present budgets."""
        return Allowance(self._budgets, self.limits)

    def budget_s(self, rank: int, source: str, allowed: Allowance | None = None) -> float | None:
        """Return the budget of a process, seconds; None for an older one, or one without a pace."""
        watch, allowed = self._ranks.get(rank), allowed or self.allowance()
        return allowed.of(watch) if watch is not None and watch.source == source and has_pace(watch) else None

    def placed(self, finding: Finding, known: Incident | None) -> Finding:
        """Return a finding about a rank with its node and GPU, as reported by its agent, or as stored."""
        watch = None if finding.rank is None else self._ranks.get(finding.rank)
        node, gpus = (known.node, known.evidence.get("gpus")) if known is not None else (None, None)
        if watch is not None:
            node, gpus = watch.node or node, to_builtins(gpus_of([watch])) or gpus
        return replace(finding, node=node, evidence=finding.evidence | ({"gpus": gpus} if gpus else {}))

    def statuses(self, culprits: Collection[int], now: float) -> RankStatuses:
        """Return the state of each rank, as of the last tick; ``culprits``: of open verdicts."""
        unheard, usual_s = self._agents.unheard(now), self._budgets.usual_step_s
        return judge_ranks(self._ranks.values(), unheard, self._overdue, culprits, usual_s)

    def _watch_of(self, rank: int, source: str) -> RankWatch | None:
        """Return the state of a process, None for a replaced one."""
        watch = self._ranks.get(rank)
        if watch is not None and watch.source == source:
            return watch
        if watch is not None and started_ns(source) < started_ns(watch.source):
            return None
        if watch is None and len(self._ranks) >= MAX_RANKS:
            self.ranks_not_followed += 1
            return None
        stands = LongestTime() if watch is None else watch.stands
        watch = self._ranks[rank] = RankWatch(rank, source, stands, dead=self._deaths.knows(source))
        return watch

    def _visible(self, now: float) -> list[RankWatch]:
        """Return the running ranks with arriving slots, by rank; drop those that left the job."""
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
    return Finding(**{field.name: getattr(incident, field.name) for field in fields(Finding)})
