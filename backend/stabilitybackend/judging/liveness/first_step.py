"""Tells a stuck first step from a long one, well before its budget (600 s) is over.

A first step compiles, fills caches and builds extensions: for minutes nobody knows how long it may take. But where no
rank moves, no main thread uses the processor and two stack samples are the same, nothing is being made. Who waits
for data is at it through its workers: of it no thread and no child may have used the processor either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from stabilitybackend.judging.liveness.budgets import Limits
from stabilitybackend.judging.liveness.job_snapshot import USES_CPU, JobSnapshot, tree_cpu_s
from stabilitybackend.judging.liveness.rank_watch import RankWatch
from stabilitybackend.judging.liveness.stacks.dumps import DUMP_WAIT_S, Dump, DumpBook
from stabilitybackend.judging.liveness.stacks.parse import ParsedFrame, in_long_work, works_elsewhere

__all__ = ["FirstStep"]

#: Stacks are sampled when nobody has moved for so long, and again so long after the first sample: so many
#: times what a rank may always stall, and at most so many seconds. With the time that an answer may take the hang is
#: reported within 120 s.
CHECK_FLOORS = 4.0
CHECK_S = 40.0
#: Rounds of two stack samples in one hang: each of them disturbs the job a little.
MAX_ROUNDS = 4
#: The same of all threads of a process and of its children together: a loader that fetches or decodes uses more, the
#: threads that only look after something less.
TREE_USES_CPU = 0.02

#: Innermost frames of a wait for a lock file: its holder may be long gone.
_LOCKS = re.compile(r"/file_baton\.py$|/filelock/")
#: Frames, from the innermost, in which a wait for a lock file shows.
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
        #: Of each rank the CPU seconds of its process and children at the first sample, where its agent reports them.
        self._cpu_s: dict[int, float | None] = {}
        self._used: set[int] = set()
        self._stuck = False

    @staticmethod
    def concerns(visible: Sequence[RankWatch], limits: Limits) -> bool:
        """Say whether all ranks are before the end of their first step, in no phase that may be long."""
        check_s = _check_s(limits)
        return bool(visible) and all(
            not watch.first_step_done and not watch.in_long_phase and watch.stalled_s >= check_s for watch in visible
        )

    def stuck(self, job: JobSnapshot, limits: Limits, now: float) -> bool:
        """Say whether a job of which ``concerns`` holds is stuck there; asks for stacks where they would show it."""
        self._check_s = check_s = _check_s(limits)
        place = frozenset((watch.source, watch.step, watch.phase) for watch in job.visible)
        if place != self._place:
            self._forget(place)
        if job.unseen or job.absent or job.over:
            return False  # who is not seen may be at work; who has not come is reported when the budget is over
        self._used |= {watch.rank for watch in job.visible if (watch.proc.cpu or 0.0) >= USES_CPU}
        if self._stuck or self._rounds >= MAX_ROUNDS:
            return self._stuck
        dump = self._dumps.dump(self._request) if self._request else None
        waited = now - self._asked_at
        if not self._request:
            self._ask(job, now)
        elif dump is None or not (dump.complete or waited >= DUMP_WAIT_S):
            if waited >= check_s:
                self._ask(job, now)  # nobody answered
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
        """Say whether a rank does nothing, by two stacks and the processor."""
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
        """Say whether nobody is at work for a rank that waits for data: no thread of it, and none of its workers."""
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
