"""Looks at a rank that is stalled outside of any phase before that is called a hang: it may be at work.

Scripts that declare no phases save, merge, push and validate all the same, for minutes, and a cell of a notebook ends
with the process alive. No list of names knows all such work. So whoever is in no collective, waits for no data and
holds no lock is at work while it uses the processor or talks to the network, and the others wait for it. That is "no
row after step N" and no hang, at most as long as a declared phase may take that was never seen (``LONG_FLOOR_S``), and
it is looked at again.
"""

from __future__ import annotations

from collections.abc import Sequence

from stabilitybackend.judging.liveness.budgets import AFTER_LOOP, LONG_FLOOR_S
from stabilitybackend.judging.liveness.format import capital, name_ranks
from stabilitybackend.judging.liveness.hang.suspects import furthest_back
from stabilitybackend.judging.liveness.job_snapshot import RUNS_PYTHON_S, USES_CPU, JobSnapshot, tree_cpu_s
from stabilitybackend.judging.liveness.rank_watch import RankWatch
from stabilitybackend.judging.liveness.stacks.dumps import DUMP_WAIT_S, Dump, DumpBook, Stack
from stabilitybackend.judging.liveness.stacks.parse import at_prompt, in_long_work, works_elsewhere

#: A hang that is explained is checked again after so long, seconds: who saved may have got stuck.
AGAIN_S = 60.0
#: CPU seconds of a process with its threads and children are compared over so long, seconds.
COMPARE_S = 5.0
#: Places in the kernel in which a thread waits for a peer of its connection.
_NETWORK = frozenset({"inet_csk_accept", "sk_stream_wait_memory", "sk_wait_data", "wait_woken"})

#: What a rank does that is idle by intent; any other work ends, or is a hang.
_AT_PROMPT = "its interpreter waits for input, as after a cell that ended or was interrupted"

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
        #: As they were then: ranks whose main threads went on (``RankWatch.lively``), and those that used the processor
        #: though they wait for no other rank.
        self._lively: frozenset[int] = frozenset()
        self._computing: frozenset[int] = frozenset()
        #: CPU seconds of each rank's process with threads and children at an earlier sample, and when that was asked.
        self._cpu_s: dict[int, float | None] = {}
        self._cpu_at = 0.0
        #: Ranks that are at work -> at what, as of the newest sample.
        self.at_work: dict[int, str] = {}
        #: How long the job had been stalled when an interpreter was seen to wait for input last, seconds.
        self._idle_s = 0.0

    def forget(self) -> None:
        """Forget what explained a stall: the ranks go on."""
        self.at_work = {}

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
            self._cpu_s, self.at_work, self._idle_s = {}, {}, 0.0
        if _AT_PROMPT in self.at_work.values():
            self._idle_s = job.stalled_s
            if not any(watch.lively or watch.main_cpu >= USES_CPU for watch in behind):
                return True
        if job.stalled_s - self._idle_s >= LONG_FLOOR_S or not _may_work(job, behind):
            self.at_work = {}
            return False
        dump = self._dumps.dump(self._request) if self._request else None
        waited_s = now - self._asked_at
        if self._request and dump is not None and (dump.complete or waited_s >= DUMP_WAIT_S):
            self.at_work = {watch.rank: work for watch in behind if (work := self._work_of(watch, dump, job))}
            if self.at_work:
                if waited_s < AGAIN_S:
                    return True
            elif self._cpu_s or not any(_may_compute_aside(job, watch, dump) for watch in behind):
                return False
            elif waited_s < COMPARE_S:
                return True
            self._cpu_s = {watch.rank: tree_cpu_s(dump, watch.rank) for watch in behind}
            self._cpu_at = self._asked_at
        elif self._request:
            return waited_s < DUMP_WAIT_S
        self._ask(job, now)
        return True

    def note(self, step: int) -> str:
        """Return what is said of the job meanwhile, "" while nothing explains that no row comes."""
        if not self.at_work:
            return ""
        rank, work = min(self.at_work.items())
        where = f"No row after step {step}" if step >= 0 else "No row yet"
        return f"{where}. {capital(name_ranks([rank]))}: {work}."

    def _work_of(self, watch: RankWatch, dump: Dump, job: JobSnapshot) -> str:
        """Return at what a rank is that may take long, "" where nothing shows that it works."""
        stack, rank = dump.stack_of(watch.rank), watch.rank
        if stack is None:
            return ""
        if at_prompt(stack.frames):
            return _AT_PROMPT
        outside = watch.phase == AFTER_LOOP
        if in_long_work(stack.frames, stack.where, outside=outside, lively=rank in self._lively):
            return "it is after its step loop" if outside else "it saves or validates"
        if stack.where == "collective":
            return ""
        if rank in self._computing:
            return "its main thread uses the processor"
        if stack.where == "data":
            return ""
        if works_elsewhere(stack.frames) or (_alone(job) and job.proc(watch).get("wchan") in _NETWORK):
            return "it waits for a transfer, a compiler or a child process"
        before, after = self._cpu_s.get(rank), tree_cpu_s(dump, rank)
        if before is None or after is None or not _may_compute_aside(job, watch, dump):
            return ""
        passed_s = max(1.0, self._asked_at - self._cpu_at)
        return "its threads or children use the processor" if (after - before) / passed_s >= USES_CPU else ""

    def _ask(self, job: JobSnapshot, now: float) -> None:
        self._request = self._dumps.request_id("peek", now)
        self._asked_at, self.busy = now, job.all_busy()
        self._lively = frozenset(watch.rank for watch in job.visible if watch.lively)
        # Who waits for a GPU or for other ranks may spin in a call into C: it runs no Python meanwhile.
        self._computing = frozenset(
            watch.rank
            for watch in job.visible
            if watch.main_cpu >= USES_CPU and (_alone(job) or (watch.main_silent_s or 0.0) <= RUNS_PYTHON_S)
        )
        reason = "a rank is stalled outside of any phase: is it at work?"
        self._dumps.ask(self._request, reason, job.running, now)


def _may_work(job: JobSnapshot, behind: Sequence[RankWatch]) -> bool:
    """Say whether ranks may be in work that nobody declared: whoever is stopped, or gives no sign, is in none."""
    return not any(
        watch.phase not in ("", AFTER_LOOP) or job.is_stopped(watch) or watch.python_silent_s for watch in behind
    )


def _alone(job: JobSnapshot) -> bool:
    """Say whether the job is of one process: it waits for no other rank."""
    return len(job.visible) == 1 and not (job.unseen or job.absent or job.over)


def _may_compute_aside(job: JobSnapshot, watch: RankWatch, dump: Dump) -> bool:
    """Say whether a rank's threads or children may be at work for it: those of other ranks spin while they wait."""
    stack: Stack | None = dump.stack_of(watch.rank)
    return stack is not None and (stack.where == "idle" or (_alone(job) and stack.where in ("user", "native")))
