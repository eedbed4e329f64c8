"""The awaited rank of a hang, by the strongest evidence with an answer."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import NamedTuple

from stabilitybackend.judging.liveness.format import name_ranks
from stabilitybackend.judging.liveness.job_snapshot import JobSnapshot, is_data
from stabilitybackend.judging.liveness.rank_watch import PHASE_ORDER, RankWatch

#: A silence that began this long after the hang did not cause it, seconds.
SILENCE_LATER_S = 5.0

__all__ = ["Suspicion", "furthest_back", "suspicions"]


class Suspicion(NamedTuple):
    """One kind of evidence and its ranks.

    Args:
        kind: ``recorder``, ``stopped``, ``python_silent``, ``over``, ``absent``, ``node``, ``busy``, ``stack``,
            ``step`` or ``phase``.
        ranks: at least one.
        why: a clause for users.
    """

    kind: str
    ranks: tuple[int, ...]
    why: str


def suspicions(job: JobSnapshot) -> Generator[None, None, list[Suspicion]]:
    """Return the evidence, strongest first; empty where no rank is conspicuous. Yields where others may be served."""
    if len(job.visible) == 1 and not (job.unseen or job.over or job.absent):
        return []
    found = []
    for kind, judge in _KINDS:
        yield
        answer = judge(job)
        if answer is not None and answer[0]:
            ranks = tuple(sorted(answer[0]))
            found.append(Suspicion(kind, ranks, answer[1] if len(ranks) == 1 else answer[-1]))
    return found


#: Ranks, and the clause for one rank; then that for several, if different.
_Answer = tuple[Iterable[int], str] | tuple[Iterable[int], str, str] | None


def _recorder(job: JobSnapshot) -> _Answer:
    front = job.front
    if front.desync:
        return (
            front.odd,
            f"its collective is another one than that of the others: {front.desync}",
            f"their collectives are other ones than those of the others: {front.desync}",
        )
    seen = {watch.rank for watch in (*job.visible, *job.over)}
    gone = [rank for rank in front.culprits if rank in seen]
    if not gone or len(gone) > len(seen) / 2:
        return None
    one = next(one for one in front.stuck if not set(one.missing).isdisjoint(gone))
    return gone, f"never joined {one.name}, in which {name_ranks(one.joined)} {_wait(one.joined)}"


def _stopped(job: JobSnapshot) -> _Answer:
    ranks = [watch.rank for watch in job.visible if job.is_stopped(watch)]
    how = "(state T): SIGSTOP, a debugger or a frozen control group"
    return ranks, f"its process is stopped {how}", f"their processes are stopped {how}"


def _python_silent(job: JobSnapshot) -> _Answer:
    silent = [watch for watch in job.visible if watch.python_silent_s and not job.is_stopped(watch)]
    how = "Python gives no sign either: a call in C that holds the interpreter lock, or a process that gets no CPU"
    return _minority(job, silent), f"its {how}", f"their {how}"


def _over(job: JobSnapshot) -> _Answer:
    words = " or ".join(sorted({watch.state for watch in job.over}))
    return (
        [watch.rank for watch in job.over],
        f"it has {words}, while the others still wait for it",
        f"they have {words}, while the others still wait for them",
    )


def _absent(job: JobSnapshot) -> _Answer:
    # A job in its steps does not wait for them: its script calls init() on some ranks only. So it may be with few
    # connected ranks, unless one visibly waits for others.
    if any(watch.step >= 0 for watch in job.visible):
        return None
    waits = any(job.where(watch) == "collective" for watch in job.visible)
    if len(job.never) > len(job.visible) and not job.not_back and not waits:
        return None
    others = "not called init(), and the others have not begun their first step"
    return job.absent, f"it has {others}", f"they have {others}"


def _node(job: JobSnapshot) -> _Answer:
    stalled_s = job.seen_to_stand_s
    ranks = [rank for rank, silent in job.silent_s.items() if silent >= stalled_s - SILENCE_LATER_S]
    silent = set(ranks)
    where = {watch.node for watch in (*job.unseen, *job.visible) if watch.rank in silent}
    several = "their node has" if len(where) == 1 else "their nodes have"
    how = "sent nothing since the others stalled"
    return ranks, f"its node has {how}", f"{several} {how}"


def _busy(job: JobSnapshot) -> _Answer:
    busy = [watch for watch in job.visible if job.runs_python(watch)]
    return (
        _minority(job, busy),
        "its main thread runs Python and uses the processor, the others wait",
        "their main threads run Python and use the processor, the others wait",
    )


def _stack(job: JobSnapshot) -> _Answer:
    if job.dump is None:
        return None
    seen = {watch.rank for watch in job.visible}
    ranks = [rank for rank in job.dump.odd() if rank in seen]
    return (
        ranks if len(ranks) < len(seen) else [],
        "its stack is another one than that of the ranks that wait",
        "their stacks are other ones than those of the ranks that wait",
    )


def _step(job: JobSnapshot) -> _Answer:
    reporting = [watch for watch in job.reporting_ranks if not watch.stepless]
    last = min((watch.step for watch in reporting), default=-1)
    behind = [watch for watch in reporting if watch.step == last]
    return ([watch.rank for watch in behind] if len(behind) < len(reporting) else []), "behind the others by a step"


def furthest_back(visible: Sequence[RankWatch]) -> list[RankWatch]:
    """Return the awaited ranks by the order of steps and phases; empty for none."""
    reporting = [watch for watch in visible if not watch.sparse]
    if not reporting:
        return []
    there = _least_step(reporting)
    phases = {watch.phase for watch in there}
    if len(phases) == 1:
        return there if len(there) < len(reporting) else []
    data = [watch for watch in there if is_data(watch.phase)]
    if data or not phases <= set(PHASE_ORDER):
        return data
    first = min(phases, key=PHASE_ORDER.index)
    return [watch for watch in there if watch.phase == first]


def _least_step(reporting: Sequence[RankWatch]) -> list[RankWatch]:
    """Return the ranks of the least step, and those without steps that may be at it."""
    step = min((watch.step for watch in reporting if not watch.stepless), default=-1)
    return [watch for watch in reporting if watch.stepless or watch.step == step]


def _phase(job: JobSnapshot) -> _Answer:
    there = _least_step(job.reporting_ranks)
    phases = {watch.phase for watch in there}
    if len(phases) < 2:
        return None
    last = furthest_back(job.visible)
    if last:
        return [watch.rank for watch in last], f"still in {last[0].phase}, the others are further on"
    fewest = min(phases, key=lambda phase: (sum(watch.phase == phase for watch in there), phase))
    return [w.rank for w in there if w.phase == fewest], f"in {fewest or 'no phase'}, the others are elsewhere"


def _minority(job: JobSnapshot, ranks: list[RankWatch]) -> list[int]:
    """Return the ranks with a property, none where more than half have it: no explanation then."""
    return [watch.rank for watch in ranks] if 2 * len(ranks) <= len(job.visible) else []


def _wait(ranks: list[int]) -> str:
    return "waits" if len(ranks) == 1 else "wait"


#: Kind -> its test, strongest first.
_KINDS: tuple[tuple[str, Callable[[JobSnapshot], _Answer]], ...] = (
    ("stopped", _stopped),
    ("recorder", _recorder),
    ("python_silent", _python_silent),
    ("over", _over),
    ("absent", _absent),
    ("busy", _busy),
    ("stack", _stack),
    ("node", _node),
    ("step", _step),
    ("phase", _phase),
)
