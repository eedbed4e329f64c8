"""Verdict of a hang: class, culprits and confidence by written rules.

The rules are in docs/liveness.md. Blind spots are listed, and nothing is claimed beyond evidence.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from stabilitybackend.judging.liveness.format import capital, gpus_of, name_ranks, nodes_of, place_of, seat_of
from stabilitybackend.judging.liveness.hang.suspects import Suspicion, suspicions
from stabilitybackend.judging.liveness.job_snapshot import RUNS_PYTHON_S, JobSnapshot, is_data
from stabilitybackend.judging.liveness.rank_watch import RankWatch
from stabilitybackend.judging.liveness.stacks.parse import calls_of, collective_of, own_call
from stabilitybackend.schema.json_data import MAX_LISTED, MAX_NAMED
from stabilitybackend.schema.verdicts import Confidence, Verdict

#: Evidence that suffices alone: the rank's own recorder, the kernel, a rank's own clean exit.
_STRONG = frozenset({"recorder", "stopped", "python_silent", "over"})
#: Evidence of some weight alone, with other readings.
_MEDIUM = frozenset({"busy", "stack", "step", "node"})
#: Classes visible in a rank's own probes.
_PLAIN = frozenset({"gil_held", "io", "livelock", "lock", "overdue", "stopped"})

#: Class -> action of the culprit, after "rank 5 (node a, GPU 2) "; {place} is its location.
_DOES = {
    "data_loader": "has been {place}",
    "peer_missing": "has not been where the others wait for it",
    "livelock": "has run Python without making a step, {place}",
    "gil_held": "has had no heartbeat, {place}",
    "stopped": "has been stopped {place}",
    "blocked": "has been blocked {place}",
    "lock": "has waited for a lock, {place}",
    "io": "has waited for a disk or file system, {place}",
    "collective_stuck": "has waited, {place}",
    "desync": "has run another collective than the others, {place}",
    "overdue": "has been {place}",
    "node_lost": "has been on a silent node",
}
#: Singular -> plural in a clause.
_SEVERAL = (("wait for it", "wait for them"),)
#: Class -> one sentence without a culprit.
_ALL = {
    "data_loader": "All visible ranks wait for data: the source that they share may be stuck.",
    "collective_stuck": "Nobody is missing, so no rank is a suspect: the network, a link or one device may be stuck.",
    "desync": "The ranks do not run the same collectives in the same order.",
    "overdue": "That is longer than such a phase took before.",
    "io": "All visible ranks wait for a disk or file system.",
    "livelock": "Python runs on all of them, but no step is made.",
    "lock": "All visible ranks wait for a lock that is not given back.",
}

#: A text in pieces, with a start time (unix seconds) for each duration.
_Parts = list[str | float]

__all__ = ["Diagnosis", "judging"]


@dataclass(slots=True)
class Diagnosis:
    """Input of a verdict, with the ranks themselves; ``why`` is the clause of the strongest evidence."""

    kind: str
    confidence: Confidence
    culprits: list[RankWatch]
    ranks: list[int]
    why: str = ""
    because: list[str] = field(default_factory=list)
    blind: list[str] = field(default_factory=list)
    since: float = 0.0
    #: Last observation of the ranks, the end of the text's durations, unix seconds.
    seen_at: float = 0.0
    parts: _Parts = field(default_factory=list)

    @property
    def text(self) -> str:
        """Return the sentences without durations, which grow; ``parts`` has the moments."""
        lasting = zip(self.parts, [*self.parts[1:], ""], strict=True)
        return "".join(
            one.removesuffix(" for ") if isinstance(after, float) else one
            for one, after in lasting
            if isinstance(one, str)
        )

    def gone(self, state: str) -> list[int]:
        """Return the suspects that left the job in order: ``finished`` (``run.finish()``), or ``left`` without."""
        return [watch.rank for watch in self.culprits if watch.state == state]

    def as_verdict(self, decided_after_s: float, dump: str | None) -> Verdict:
        return Verdict(
            kind=self.kind,
            text=self.text,
            parts=self.parts,
            confidence=self.confidence,
            culprits=self.ranks[:MAX_LISTED],
            nodes=nodes_of(self.culprits)[:MAX_LISTED],
            gpus=gpus_of(self.culprits)[:MAX_LISTED],
            because=self.because[:MAX_LISTED],
            blind=self.blind[:MAX_LISTED],
            since=self.since,
            decided_after_s=round(decided_after_s, 1),
            dump=dump,
        )


def judging(job: JobSnapshot) -> Generator[None, None, Diagnosis]:
    """Return the verdict on a hang; yield where others may be served."""
    yield from job.reading()
    found = yield from suspicions(job)
    yield
    every = {watch.rank: watch for watch in (*job.over, *job.unseen, *job.visible)}
    top = found[0] if found else None
    if top is not None:
        culprits = [every[rank] for rank in top.ranks if rank in every and top.kind != "absent"]
        ranks = list(top.ranks)
    else:
        culprits = list(job.visible) if len(job.visible) == 1 else []
        ranks = [watch.rank for watch in culprits]
    kind = _class(job, top, culprits)
    yield
    if not job.front.desync and job.front.circle:
        kind = "desync"
    verdict = Diagnosis(kind, _confidence(job, found, kind), culprits, ranks, why="" if top is None else top.why)
    yield
    seen = set(job.visible)
    stalled_s = max((job.stalled_s_of(watch) for watch in culprits if watch in seen), default=job.stalled_s)
    verdict.seen_at = max(watch.seen_at for watch in job.visible)
    verdict.since = verdict.seen_at - stalled_s
    verdict.because = _gpus(job, ranks, verdict.since) + _because(job, found, culprits, ranks)
    yield
    verdict.blind = _gaps(job)
    yield
    verdict.parts = _parts(job, verdict)
    return verdict


# --- class ---------------------------------------------------------------------------------------------------------


def _class(job: JobSnapshot, top: Suspicion | None, culprits: Sequence[RankWatch]) -> str:
    if top is not None:
        if top.kind == "recorder" and job.front.desync:
            return "desync"
        if top.kind == "node":
            return "node_lost"
        gone = set(culprits) - set(job.visible)
        if top.kind in ("over", "absent") or gone:
            return "peer_missing"
        kinds = {_class_of(job, watch) for watch in culprits}
        kind = kinds.pop() if len(kinds) == 1 else _class_of(job, culprits[0])
        return "peer_missing" if kind == "collective_stuck" else kind
    if job.front.desync:
        return "desync"
    kinds = {_class_of(job, watch) for watch in job.visible}
    if len(kinds) == 1:
        kind = kinds.pop()
        # Many ranks at one place, without evidence of their action there: they wait for each other.
        return "collective_stuck" if kind == "blocked" and len(job.visible) > 1 else kind
    return "collective_stuck" if len(job.visible) > 1 else "blocked"


def _class_of(job: JobSnapshot, watch: RankWatch) -> str:
    """Return the class of one rank by its probes, phase and stack (the truth table of docs/liveness.md)."""
    where, disk = job.where(watch), job.waits_for_disk(watch)
    if job.is_stopped(watch) or job.in_debugger(watch):
        return "stopped"
    if watch.python_silent_s:
        return "io" if disk else "gil_held"
    if watch.in_long_phase or where == "checkpoint":
        return "overdue"
    if disk:
        return "io"
    if job.runs_python(watch):
        return "livelock"
    if where == "lock":
        return "lock"
    if where == "data" or (is_data(watch.phase) and where != "collective"):
        return "data_loader"
    return "collective_stuck" if where == "collective" or job.front.waiting(watch.rank) is not None else "blocked"


def _confidence(job: JobSnapshot, found: Sequence[Suspicion], kind: str) -> Confidence:
    """Return ``high``, ``medium`` or ``low``.

    High: evidence that suffices alone, absent ranks while most arrived, or two kinds with the same ranks, one of them a
    stack. Medium: one kind with other readings, two weak ones that agree, or strong evidence with contrary evidence.
    Low: the order of the phases alone, or no distinction of ranks. With invisible ranks, only evidence that suffices
    alone is high.
    """
    if not found:
        if len(job.visible) == 1:
            return "high" if kind in _PLAIN or job.where(job.visible[0]) == "data" else "medium"
        clear = job.front.all_joined or kind in _PLAIN or kind == "data_loader"
        clear = clear or (kind == "collective_stuck" and all(job.where(w) == "collective" for w in job.visible))
        return "medium" if clear else "low"
    if found[0].kind == "absent":
        # Where most ranks were never connected, the script may call init() on the others only.
        clear = bool(job.not_back) or len(job.never) < len(job.visible)
        return "high" if clear and not job.unseen else "medium"
    agree = {one.kind for one in found if one.ranks == found[0].ranks}
    if found[0].kind in _STRONG:
        return "medium" if _against(found) else "high"
    blind = bool(job.unseen or job.absent)
    if len(agree) >= 2 and "stack" in agree and not blind:
        return "high"
    return "medium" if agree & _MEDIUM or len(agree) >= 2 else "low"


def _against(found: Sequence[Suspicion]) -> list[Suspicion]:
    """Return the hard evidence against other ranks than those of the strongest one."""
    named = set(found[0].ranks) if found else set()
    return [one for one in found if one.kind in (*_STRONG, "stack") and named.isdisjoint(one.ranks)]


def _beside(job: JobSnapshot, found: Sequence[Suspicion]) -> list[Suspicion]:
    """Return a rank stuck in its data while a silent node is suspected: no other node keeps it there."""
    if not found or found[0].kind != "node":
        return []
    data = {watch.rank for watch in job.visible if is_data(watch.phase)}
    return [one for one in found if one.kind in ("step", "phase") and data.issuperset(one.ranks)]


# --- words ---------------------------------------------------------------------------------------------------------


def _because(
    job: JobSnapshot, found: Sequence[Suspicion], culprits: Sequence[RankWatch], ranks: Sequence[int]
) -> list[str]:
    because = [f"{name_ranks(one.ranks)}: {one.why}" for one in found if set(one.ranks) & set(ranks)]
    because += [f"against it: {name_ranks(one.ranks)}: {one.why}" for one in _against(found)]
    because += [f"beside it: {name_ranks(one.ranks)}: {one.why}" for one in _beside(job, found)]
    for watch in culprits[:MAX_NAMED]:
        if watch not in job.visible:
            continue
        because += _probes(job, watch)
        stack = None if job.dump is None else job.dump.stack_of(watch.rank)
        if stack is not None:
            because.append(f"rank {watch.rank}: its main thread is in {calls_of(stack.frames)}")
    if job.front.desync:
        because.append(job.front.desync)
    if job.front.circle:
        because.append(f"{name_ranks(job.front.circle)} wait for each other in different process groups")
    for one in job.front.stuck[:MAX_NAMED]:
        clear = one.group.ranks or len(one.joined) > 1
        nobody = "nobody is missing" if clear else "the other ranks of its group are not known"
        lacking = f"missing: {name_ranks(one.missing)}" if one.missing else nobody
        if one.unknown:
            lacking += f"; not known of {name_ranks(one.unknown)}"
        joined = len(one.joined)
        because.append(f"{one.name}: {joined} rank{'' if joined == 1 else 's'} joined, {lacking}")
    return because


def _gpus(job: JobSnapshot, ranks: Sequence[int], since: float) -> list[str]:
    """Return the ranks on a broken GPU, the suspects first."""
    broken = sorted(job.broken_gpus.items(), key=lambda one: (one[0] not in ranks, one[0]))
    return [
        f"rank {rank}: {gpu.words}, seen {abs(gpu.since - since):.0f} s "
        f"{'before' if gpu.since < since else 'after'} the last progress"
        for rank, gpu in broken[:MAX_NAMED]
    ]


def _probes(job: JobSnapshot, watch: RankWatch) -> list[str]:
    """Return the free probes of a rank as text."""
    found, proc, who = [], job.proc(watch), f"rank {watch.rank}"
    if watch.python_silent_s:
        found.append(f"{who}: at the last look no heartbeat for {watch.python_silent_s:.0f} s")
    if watch.main_silent_s is not None and not watch.python_silent_s:
        if job.runs_python(watch):
            found.append(f"{who}: its main thread runs Python")
        elif watch.main_silent_s >= RUNS_PYTHON_S:
            silent_s = watch.main_silent_s
            found.append(f"{who}: at the last look its main thread had run no Python for {silent_s:.0f} s")
    if proc.get("state"):
        cpu = f", {100 * proc['cpu']:.0f} % of a core" if isinstance(proc.get("cpu"), int | float) else ""
        at = f", in {proc['wchan']}" if proc.get("wchan") not in (None, "", "0") else ""
        found.append(f"{who}: the kernel says state {proc['state']}{cpu}{at}")
    children = proc.get("children")
    if isinstance(children, list):
        odd = [one for one in children if isinstance(one, dict) and one.get("state") in ("T", "D", "Z")]
        found += [
            f"{who}: its child {one.get('name')} ({one.get('pid')}) is in state {one['state']}" for one in odd[:4]
        ]
    return found


def _gaps(job: JobSnapshot) -> list[str]:
    blind = job.blind[:MAX_NAMED]
    lost = [watch for watch in job.unseen if not watch.trouble]
    if lost:
        blind.append(f"{name_ranks([watch.rank for watch in lost])}: no agent there is connected")
    blind += [f"rank {watch.rank}: {watch.trouble}" for watch in job.unseen if watch.trouble][:4]
    if job.never:
        blind.append(f"{name_ranks(job.never)}: never connected")
    if job.not_back:
        blind.append(f"{name_ranks(job.not_back)}: not connected since the job was restarted")
    if job.dump is not None:
        dumb: dict[str, list[int]] = {}
        for watch in job.visible:
            sample = job.dump.samples.get(watch.rank)
            if sample is None or sample.stack < 0:
                dumb.setdefault(sample.missing if sample and sample.missing else "no answer", []).append(watch.rank)
        blind += [f"stacks of {name_ranks(ranks)}: {why}" for why, ranks in list(dumb.items())[:4]]
        if len(job.visible) > 1 and not any(sample.recorder for sample in job.dump.samples.values()):
            blind.append("collectives: no Flight Recorder was read")
    return blind


def _parts(job: JobSnapshot, verdict: Diagnosis) -> _Parts:
    culprits, kind = verdict.culprits, verdict.kind
    named = set(culprits)
    others = [watch for watch in job.visible if watch not in named]
    clauses: list[_Parts] = []
    if not culprits and verdict.ranks:
        clauses = [[f"{name_ranks(verdict.ranks)} {'has' if len(verdict.ranks) == 1 else 'have'} not come"]]
    elif culprits:
        clauses = [_who(job, verdict)]
    clauses += _waiting(job, others, bool(clauses), verdict.seen_at)
    end = "."
    if not verdict.ranks and kind in _ALL:
        clear = kind != "collective_stuck" or job.front.all_joined
        end += f" {_ALL[kind] if clear else 'Nothing visible tells the ranks apart: no rank is a suspect yet.'}"
    parts: _Parts = [one for clause in clauses for one in ("; ", *clause)][1:]
    return [capital(str(parts[0])), *parts[1:], end] if parts else [end]


def _who(job: JobSnapshot, verdict: Diagnosis) -> _Parts:
    """Return "rank 5 (node gpu-03, GPU 2) has been in data for 74 s"."""
    culprits, kind = verdict.culprits, verdict.kind
    first = culprits[0]
    many = len(culprits) > MAX_NAMED
    names = name_ranks(verdict.ranks) if many else " and ".join(seat_of(watch) for watch in culprits)
    place = _place(job, first, kind)
    does = _DOES.get(kind, "has been {place}").format(place=place)
    if kind == "data_loader" and not is_data(first.phase):
        does = f"has waited for data, {place}"
    if kind == "peer_missing" and first.state in ("finished", "left"):
        does = "has finished" if first.state == "finished" else "has left without run.finish()"
    elif kind == "peer_missing":
        does += f", {place}"
    if len(culprits) > 1:
        for one, several in _SEVERAL:
            does = does.replace(one, several)
        if kind == "node_lost" and len(nodes_of(culprits)) > 1:
            does = "has been on silent nodes"
        does = "have" + does.removeprefix("has")
    if first in job.visible:
        return [f"{names} {does} for ", verdict.seen_at - max(job.stalled_s_of(watch) for watch in culprits)]
    silent = job.silent_s.get(first.rank)
    return [f"{names} {does} for ", verdict.seen_at - silent] if silent and kind == "node_lost" else [f"{names} {does}"]


def _waiting(job: JobSnapshot, others: Sequence[RankWatch], after: bool, seen_at: float) -> list[_Parts]:
    """Return "the other 7 have waited in all_reduce #1841 of default_pg for 74 s"."""
    places: dict[str, list[RankWatch]] = {}
    for watch in others:
        places.setdefault(_waits_in(job, watch), []).append(watch)
    clauses: list[_Parts] = []
    order = sorted(places.items(), key=lambda place: (-len(place[1]), place[1][0].rank))
    for place, there in order[:MAX_NAMED]:
        verb = "has waited" if len(there) == 1 else "have waited"
        if after and len(order) == 1 and len(there) > 1:
            who = f"the other {len(there)}"
        else:
            who = name_ranks([watch.rank for watch in there])
        stalled_s = max(job.stalled_s_of(watch) for watch in there)
        clauses.append([f"{who} {verb} {place} for ", seen_at - stalled_s])
    if len(order) > MAX_NAMED:
        clauses.append([f"{sum(len(there) for _, there in order[MAX_NAMED:])} more wait elsewhere"])
    return clauses


def _place(job: JobSnapshot, watch: RankWatch, kind: str) -> str:
    """Return the location of a rank; at a lock, and without step and phase, the job's innermost call."""
    stack = None if job.dump is None else job.dump.stack_of(watch.rank)
    if kind == "lock" and stack is not None:
        taken = f"`{stack.lock}` " if stack.lock else ""
        return f"{taken}in {own_call(stack.frames)}"
    if stack is None or watch.phase or not (watch.sparse or watch.stepless):
        return place_of(watch)
    return f"in {own_call(stack.frames)}"


def _waits_in(job: JobSnapshot, watch: RankWatch) -> str:
    one = job.front.waiting(watch.rank)
    if one is not None:
        return f"in {one.name}"
    stack = None if job.dump is None else job.dump.stack_of(watch.rank)
    name = collective_of(stack.frames) if stack is not None and stack.where == "collective" else ""
    return f"in {name}" if name else place_of(watch)
