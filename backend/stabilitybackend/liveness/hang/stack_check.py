"""Looks at stacks before a hang that no phase explains is called a hang: it may be a save or a validation.

Scripts that declare no phases save, validate and upload all the same, for minutes. Their stacks show it: whoever is in
such work and in no collective is not stuck, and the others wait for it. As long as a hang is explained so, nothing is
said, at most as long as a declared phase may take that was never seen (``LONG_FLOOR_S``), and it is looked at again.
"""

from __future__ import annotations

from stabilitybackend.liveness.budgets import AFTER_LOOP, LONG_FLOOR_S
from stabilitybackend.liveness.hang.suspects import furthest_back
from stabilitybackend.liveness.job_snapshot import JobSnapshot
from stabilitybackend.liveness.stacks.dumps import DUMP_WAIT_S, DumpBook
from stabilitybackend.liveness.stacks.parse import in_long_work

#: A hang that is explained is checked again after so long, seconds: who saved may have got stuck.
AGAIN_S = 60.0

__all__ = ["StackCheck"]


class StackCheck:
    """The stack samples of one hang; ``dumps`` holds the agents' answers."""

    def __init__(self, dumps: DumpBook) -> None:
        self._dumps = dumps
        self._request = ""
        self._asked_at = 0.0
        #: Who is stalled, and where: the dump says nothing of another stall.
        self._place: frozenset[tuple[str, int, str]] = frozenset()
        #: Ranks that ran Python before anybody was sent a signal (``JobSnapshot.busy``).
        self.busy: frozenset[int] | None = None
        #: Ranks whose main threads went on then (``RankWatch.lively``).
        self._lively: frozenset[int] = frozenset()

    def taken(self) -> tuple[str, float]:
        """Return the sample that explained nothing and when it was asked for, "" where there is none; forget it."""
        request, self._request = self._request, ""
        return request, self._asked_at

    def holds(self, job: JobSnapshot, now: float) -> bool:
        """Say whether a hang is not to be reported yet; asks for stacks where they would show it."""
        behind = furthest_back(job.visible) or job.visible
        place = frozenset((watch.source, watch.step, watch.phase) for watch in behind)
        if place != self._place:
            self._request, self._place = "", place
        if job.stalled_s >= LONG_FLOOR_S or any(watch.phase not in ("", AFTER_LOOP) for watch in behind):
            return False
        # Whoever is stopped, or whose Python gives no sign, is in no work.
        if any(job.is_stopped(watch) or watch.python_silent_s for watch in behind):
            return False
        dump = self._dumps.dump(self._request) if self._request else None
        if self._request and dump is not None and (dump.complete or now - self._asked_at >= DUMP_WAIT_S):
            stacks = [(watch, dump.stack_of(watch.rank)) for watch in behind]
            explained = any(
                stack is not None
                and in_long_work(
                    stack.frames, stack.where, outside=watch.phase == AFTER_LOOP, lively=watch.rank in self._lively
                )
                for watch, stack in stacks
            )
            if not explained or now - self._asked_at < AGAIN_S:
                return explained
        elif self._request:
            return now - self._asked_at < DUMP_WAIT_S
        self._ask(job, now)
        return True

    def _ask(self, job: JobSnapshot, now: float) -> None:
        self._request = self._dumps.request_id("peek", now)
        self._asked_at, self.busy = now, job.all_busy()
        self._lively = frozenset(watch.rank for watch in job.visible if watch.lively)
        reason = "a rank is stalled outside of any phase: is it in a save or a validation?"
        self._dumps.ask(self._request, reason, job.running, now)
