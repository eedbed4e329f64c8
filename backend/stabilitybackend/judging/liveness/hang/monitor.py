"""A hang from the first doubt to its end: verdict from free probes, dump, sharper verdict, recovery."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from dataclasses import replace

from msgspec import to_builtins

from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.liveness.budgets import AFTER_LOOP, LONG_FLOOR_S
from stabilitybackend.judging.liveness.format import MAX_NAMED_RANKS, capital, name_ranks, nodes_of, place_of, seat_of
from stabilitybackend.judging.liveness.hang.overdue import Allowance
from stabilitybackend.judging.liveness.hang.suspects import furthest_back
from stabilitybackend.judging.liveness.hang.verdict import Diagnosis, judging
from stabilitybackend.judging.liveness.job_snapshot import RUNS_PYTHON_S, USES_CPU, JobSnapshot, tree_cpu_s
from stabilitybackend.judging.liveness.rank_watch import RankWatch
from stabilitybackend.judging.liveness.stacks.dumps import DUMP_WAIT_S, Dump, DumpBook, Stack
from stabilitybackend.judging.liveness.stacks.parse import at_prompt, in_long_work, works_elsewhere
from stabilitybackend.schema.evidence import HangFacts, JudgedFacts, facts
from stabilitybackend.schema.json_data import MAX_LISTED
from stabilitybackend.schema.verdicts import Verdict

__all__ = ["HangMonitor"]

# Check of a rank stalled outside of any phase: it may be at work. Scripts without declared phases save, merge, push and
# validate too, for minutes, and a cell of a notebook ends with the process alive. No list of names covers such work. So
# a rank in no collective, without a wait for data or a lock, is at work while it uses the processor or the network, and
# the others wait for it. That is "no row after step N" and no hang, at most for the budget of a new declared phase
# (``LONG_FLOOR_S``), with repeated checks.

#: Time between checks of an explained stall, seconds: a save may have got stuck.
AGAIN_S = 60.0
#: Interval of the comparison of CPU seconds of a process with its threads and children, seconds.
COMPARE_S = 5.0
#: Kernel functions in which a thread waits for a peer of its connection.
_NETWORK = frozenset({"inet_csk_accept", "sk_stream_wait_memory", "sk_wait_data", "wait_woken"})

#: A rank that is idle by intent; any other work ends, or is a hang.
_AT_PROMPT = "its interpreter waits for input, as after a cell that ended or was interrupted"


class StackCheck:
    """The stack samples of one hang; ``dumps`` holds the agents' answers."""

    def __init__(self, dumps: DumpBook) -> None:
        self._dumps = dumps
        self._request = ""
        self._asked_at = 0.0
        #: Stalled ranks and their locations: the dump holds for this stall only.
        self._place: frozenset[tuple[str, int, str]] = frozenset()
        #: Ranks that ran Python before the first signal (``JobSnapshot.busy``).
        self.busy: frozenset[int] | None = None
        #: At that time: ranks with a running main thread (``RankWatch.lively``), and users of the processor that wait
        #: for no other rank.
        self._lively: frozenset[int] = frozenset()
        self._computing: frozenset[int] = frozenset()
        #: CPU seconds of each rank's process with threads and children at an earlier sample, and its time.
        self._cpu_s: dict[int, float | None] = {}
        self._cpu_at = 0.0
        #: Ranks at work -> their work, as of the newest sample.
        self.at_work: dict[int, str] = {}
        #: Stall of the job when an interpreter last waited for input, seconds.
        self._idle_s = 0.0

    def forget(self) -> None:
        """Reset: the ranks continue."""
        self.at_work = {}

    def taken(self) -> tuple[str, float]:
        """Return the sample without an explanation and its time, "" for none; reset."""
        request, self._request = self._request, ""
        return request, self._asked_at

    def holds(self, job: JobSnapshot, now: float) -> bool:
        """Return whether a hang is not to be reported yet; asks for stacks where they would decide."""
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
        """Return the note about the job meanwhile, "" without an explanation of missing rows."""
        if not self.at_work:
            return ""
        rank, work = min(self.at_work.items())
        where = f"No row after step {step}" if step >= 0 else "No row yet"
        return f"{where}. {capital(name_ranks([rank]))}: {work}."

    def _work_of(self, watch: RankWatch, dump: Dump, job: JobSnapshot) -> str:
        """Return the long work of a rank, "" without evidence of any."""
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
        # A wait for a GPU or for other ranks may spin in a call into C: it runs no Python meanwhile.
        self._computing = frozenset(
            watch.rank
            for watch in job.visible
            if watch.main_cpu >= USES_CPU and (_alone(job) or (watch.main_silent_s or 0.0) <= RUNS_PYTHON_S)
        )
        reason = "a rank is stalled outside of any phase: is it at work?"
        self._dumps.ask(self._request, reason, job.running, now)


def _may_work(job: JobSnapshot, behind: Sequence[RankWatch]) -> bool:
    """Return whether ranks may be in undeclared work: a stopped or silent one is in none."""
    return not any(
        watch.phase not in ("", AFTER_LOOP) or job.is_stopped(watch) or watch.python_silent_s for watch in behind
    )


def _alone(job: JobSnapshot) -> bool:
    """Return whether the job is of one process."""
    return len(job.visible) == 1 and not (job.unseen or job.absent or job.over)


def _may_compute_aside(job: JobSnapshot, watch: RankWatch, dump: Dump) -> bool:
    """Return whether a rank's threads or children may be at work for it: those of other ranks spin in their wait."""
    stack: Stack | None = dump.stack_of(watch.rank)
    return stack is not None and (stack.where == "idle" or (_alone(job) and stack.where in ("user", "native")))


#: A hang is reported again when it has lasted this many times longer.
NEWS_FACTOR = 2.0
#: A hang that began so much earlier than first observed predates the observation, seconds.
AWAY_S = 5.0

#: Kernel's facts of a rank in the evidence; all of them are in the dump.
_PROC = ("state", "cpu", "wchan", "threads")

#: Earliest signal of a dump after its request, and its end, seconds.
SIGNALLED_AFTER_S = 1.5
SIGNAL_S = 20.0


class HangMonitor:
    """The open hang of a job, if any; ``dumps`` holds the agents' answers."""

    def __init__(self, dumps: DumpBook) -> None:
        self.finding: Finding | None = None
        self._dumps = dumps
        self._stack_check = StackCheck(dumps)
        self._asked_at = 0.0
        self._answers = -1
        self._opened_at = 0.0
        self._absent_then: frozenset[int] = frozenset()
        self._broken_then: frozenset[int] = frozenset()
        self._busy: frozenset[int] = frozenset()
        #: Another verdict than the reported one, seen once: free probes flicker.
        self._doubt: tuple[str, list[int]] | None = None
        #: Sources of the stalled ranks, and their locations: a rank elsewhere has continued.
        self._places: dict[int, tuple[str, int, str]] = {}

    @property
    def at_work(self) -> Collection[int]:
        """Ranks past their budgets and at work: no hang yet."""
        return self._stack_check.at_work

    def note(self, step: int) -> str:
        """Return the note about a job without a row after ``step`` and without a hang; "" for none."""
        return self._stack_check.note(step)

    def load(self, finding: Finding) -> None:
        """Take over a stored open hang."""
        self.finding = finding
        for rank, place in facts(finding.evidence, HangFacts).ranks.items():
            if rank.isdigit():
                self._places[int(rank)] = (place.source, place.step, place.phase)

    def ticking(
        self,
        job: JobSnapshot | None,
        overdue: Sequence[RankWatch],
        died: bool,
        excused: bool,
        over: bool,
        budget: Allowance,
        now: float,
    ) -> Generator[None, None, list[Finding]]:
        """Return new findings about the hang; yield where others may be served.

        Args:
            job: its snapshot; None for an invisible job.
            overdue: ranks past their budgets.
            died: a process of the job is dead, the certain cause of the wait.
            excused: some rank is in a long phase, within its budget.
            over: no process of the job runs any more.
            budget: returns a rank's budget and the usual step time.
        """
        if self.finding is None:
            if job is None or not overdue or died or excused:
                self._stack_check.forget()
                return []
            if self._stack_check.holds(job, now):
                return []
            return [(yield from self._open(job, overdue, budget, now))]
        if died:
            return [self._close("A process of the job died; see that incident.", None, job)]
        if job is None:
            return [self._close("No process of the job runs any more.", None, None)] if over else []
        anew = self._restarted(job)
        if not overdue and (anew or self._went_on(job)):
            where = f"at step {self.finding.onset_step}" if self.finding.onset_step >= 0 else "before the first step"
            text = f"The ranks had been hung {where}."
            if anew:  # it did not recover: it was ended
                return [self._close(f"The job was started again. {text}", None, job)]
            return [self._close(f"The steps go on again. {text}", max(w.step for w in job.visible), job)]
        return (yield from self._follow(job, overdue, budget, now)) if overdue else []

    def _open(
        self, job: JobSnapshot, overdue: Sequence[RankWatch], budget: Allowance, now: float
    ) -> Generator[None, None, Finding]:
        step = job.step
        key = f"hang:{step}:{job.visible[0].source}"
        request, asked_at = self._stack_check.taken()
        self._opened_at, self._answers = now, -1
        self._places = {w.rank: (w.source, w.step, w.phase) for w in job.visible}
        self._busy, self._broken_then = job.all_busy(), frozenset(job.broken_gpus)
        if request:  # the stacks are here already
            self._asked_at, job.dump, job.busy = asked_at, self._dumps.dump(request), self._stack_check.busy
            self._answers = len(job.dump.samples) if job.dump is not None else -1
        else:
            request = self._ask(key, step, job, now)
        verdict = yield from judging(job)
        self.finding = _finding(job, verdict, key, step, request, budget, now - verdict.since)
        return self.finding

    def _ask(self, key: str, step: int, job: JobSnapshot, now: float, request: str = "") -> str:
        """Request the stacks of a hang at ``step``, under the given id or a new one, which the incident keeps."""
        request = request or self._dumps.request_id(key, now)
        self._asked_at = now
        reason = f"the job hangs {f'at step {step}' if step >= 0 else 'before its first step'}"
        self._dumps.ask(request, reason, job.running, now)
        return request

    def _follow(
        self, job: JobSnapshot, overdue: Sequence[RankWatch], budget: Allowance, now: float
    ) -> Generator[None, None, list[Finding]]:
        old = self.finding
        assert old is not None
        before = facts(old.evidence, JudgedFacts).verdict or Verdict()
        earlier_s = max(watch.seen_at for watch in job.visible) - job.seen_to_stand_s - (before.since or 0.0)
        job.before_s = earlier_s if before.since and earlier_s > AWAY_S else 0.0
        request = before.dump or ""
        if not self._asked_at:
            self._busy = job.all_busy()  # no signal was sent while the server was away
            request = self._ask(old.key, old.onset_step, job, now, request)
        dump = self._dumps.dump(request)
        ready = dump is not None and (dump.complete or now - self._asked_at >= DUMP_WAIT_S)
        job.dump = dump if ready else None
        if now - self._asked_at < SIGNAL_S:
            if dump is None and now - self._asked_at < SIGNALLED_AFTER_S:
                self._busy = job.all_busy()
            job.busy = self._busy
        news = ready and dump is not None and len(dump.samples) != self._answers
        longer = job.stalled_s > NEWS_FACTOR * old.score
        broken = bool(job.broken_gpus.keys() - self._broken_then)
        if self._answers >= 0 and not (news or longer or broken) and self._gone(job) == self._absent_then:
            return []
        verdict = yield from judging(job)
        reported = (before.kind, before.culprits)
        seen = (verdict.kind, verdict.ranks[:MAX_LISTED])
        settled, self._doubt = self._doubt == seen, seen
        other = seen != reported and (settled or news)
        if not (other or news or longer or broken):
            return []
        if news and dump is not None:
            self._answers = len(dump.samples)
        took = now - verdict.since if other or news else before.decided_after_s or now - verdict.since
        fresh = _finding(job, verdict, old.key, old.onset_step, request, budget, took)
        self._absent_then, self._broken_then = self._gone(job), frozenset(job.broken_gpus)
        self.finding = replace(fresh, step=old.step, now_step=max(old.now_step, fresh.now_step))
        return [self.finding]

    def _gone(self, job: JobSnapshot) -> frozenset[int]:
        return frozenset(watch.rank for watch in (*job.unseen, *job.over))

    def _restarted(self, job: JobSnapshot) -> bool:
        """Return whether another process has replaced a stalled rank."""
        places = ((self._places.get(watch.rank), watch.source) for watch in job.visible)
        return any(known is not None and known[0] not in ("", source) for known, source in places)

    def _went_on(self, job: JobSnapshot) -> bool:
        """Return whether a rank has left the location of its stall; a restarted server has not seen it move."""
        for watch in job.visible:
            known = self._places.get(watch.rank)
            if known is None:
                continue
            _, step, phase = known
            if watch.step != step or watch.phase != phase:
                return True
            if self._opened_at and watch.moved_at > self._opened_at:
                return True
        return not any(watch.rank in self._places for watch in job.visible)

    def _close(self, text: str, recovered: int | None, job: JobSnapshot | None) -> Finding:
        finding = self.finding
        assert finding is not None
        newest = max((watch.step for watch in job.visible), default=-1) if job is not None else -1
        now_step = max(finding.now_step, newest)
        self.finding, self._asked_at, self._answers, self._places = None, 0.0, -1, {}
        self._opened_at, self._absent_then, self._doubt = 0.0, frozenset(), None
        return replace(
            finding,
            state="resolved",
            severity="warning",
            title=finding.title.replace("The job hangs", "The job hung", 1),
            text=text,
            now_step=now_step,
            recovered_step=None if recovered is None else max(recovered, now_step),
        )


def _finding(
    job: JobSnapshot, verdict: Diagnosis, key: str, step: int, request: str, budget: Allowance, decided_after_s: float
) -> Finding:
    culprits = verdict.culprits
    one = culprits[0] if len(verdict.ranks) == 1 and culprits else None
    usual = budget.usual_step_s
    text = verdict.text
    if usual is not None:
        text += f" A step usually takes {usual:.3g} s."
    if verdict.ranks and verdict.why:
        text += f" Suspect: {name_ranks(verdict.ranks)} ({verdict.why})."
    unseen = sorted({*(watch.rank for watch in job.unseen), *job.absent})
    if unseen and not (_have_not_come(job, verdict) and set(unseen) <= set(verdict.ranks)):
        text += f" No data from {name_ranks(unseen)}: {'it' if len(unseen) == 1 else 'they'} may be the cause."
    blamed = set(culprits)
    named = [*culprits, *(watch for watch in job.visible if watch not in blamed)][:MAX_NAMED_RANKS]
    return Finding(
        detector="liveness",
        key=key,
        kind="hang",
        state="open",
        severity="critical",
        title=_title(job, verdict, step),
        text=text,
        onset_step=step,
        step=step,
        now_step=max(watch.step for watch in job.visible),
        rank=verdict.ranks[0] if len(verdict.ranks) == 1 else None,
        node=(one.node or None) if one is not None else None,
        score=job.stalled_s,
        evidence={
            "stood_s": job.stalled_s,
            "usual_step_s": usual,
            "suspects": verdict.ranks[:MAX_NAMED_RANKS],
            "why": verdict.why,
            "finished": verdict.gone("finished")[:MAX_NAMED_RANKS],
            "left": verdict.gone("left")[:MAX_NAMED_RANKS],
            "unseen_ranks": unseen[:MAX_NAMED_RANKS],
            "verdict": to_builtins(verdict.as_verdict(decided_after_s, request)),
            "ranks": {
                str(watch.rank): {
                    "step": watch.step,
                    "phase": watch.phase,
                    "stood_s": job.stalled_s_of(watch),
                    "budget_s": budget.of(watch),
                    "python_silent_s": watch.python_silent_s,
                    "main_silent_s": watch.main_silent_s,
                    "proc": {name: one for name, one in job.proc(watch).items() if name in _PROC},
                    "pid": watch.pid,
                    "node": watch.node,
                    "source": watch.source,
                }
                for watch in named
            },
        },
    )


def _have_not_come(job: JobSnapshot, verdict: Diagnosis) -> bool:
    return bool(verdict.ranks) and set(verdict.ranks) <= set(job.absent)


def _title(job: JobSnapshot, verdict: Diagnosis, step: int) -> str:
    """Return rank and location without the duration: the title stays on screens and in messages."""
    title = f"The job hangs at step {step}" if step >= 0 else "The job hangs before its first step"
    if verdict.kind == "node_lost":
        nodes = nodes_of(verdict.culprits) or ["unknown"]
        return f"{title}: {'node' if len(nodes) == 1 else 'nodes'} {', '.join(nodes[:MAX_NAMED_RANKS])} silent"
    if len(verdict.culprits) == 1:
        watch = verdict.culprits[0]
        if verdict.kind == "lock":
            return f"{title}: {seat_of(watch)} waits for a lock"
        if watch in job.visible:
            return f"{title}: {seat_of(watch)}" + (f" {place_of(watch)}" if watch.phase else "")
        gone = {"finished": "has finished", "running": "is not seen"}.get(watch.state, "has left")
        return f"{title}: {seat_of(watch)} {gone}"
    if verdict.kind == "stopped" and len(verdict.ranks) == len(job.visible):
        return f"{title}: {name_ranks(verdict.ranks)} are stopped"
    if _have_not_come(job, verdict):
        return f"{title}: {name_ranks(verdict.ranks)} {'has' if len(verdict.ranks) == 1 else 'have'} not come"
    if verdict.ranks:
        return f"{title}: the others wait for {name_ranks(verdict.ranks)}"
    if verdict.kind == "collective_stuck" and verdict.confidence == "low":
        return f"{title}: no rank stands out"
    return f"{title}: {verdict.kind.replace('_', ' ')}"
