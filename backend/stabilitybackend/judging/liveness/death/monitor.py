"""One incident per death of a job: the first dead process, and those that it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import convert, to_builtins
from msgspec.structs import replace

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.judging.detectors.engine.base import Finding, Severity
from stabilitybackend.judging.liveness.budgets import AFTER_LOOP
from stabilitybackend.judging.liveness.death.causes import (
    CASCADE_S,
    STOPPED_BY_HAND,
    asked_to_end,
    cause_of,
    from_outside,
    is_cascade,
    passes_on,
    root_of,
    stopped_from_outside,
    weight_of,
)
from stabilitybackend.judging.liveness.death.known_errors import explained, printed
from stabilitybackend.judging.liveness.format import MAX_NAMED_RANKS, capital, name_ranks, sentence
from stabilitybackend.lineage.changes import LineageEvent
from stabilitybackend.schema.evidence import Death, DeathFacts, Explained, HangFacts, Hung, Raised, facts
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.json_data import MAX_LISTED, MAX_RANKS, SENTENCE_CHARS, TEXT_CHARS
from stabilitybackend.schema.verdicts import SuspectGpu, Verdict
from stabilityclient.arguments import cut_inside, gist
from stabilityclient.wire import started_ns

__all__ = ["DeathMonitor", "meaning", "reported_by"]

#: Source of an agent's observation (``how`` of docs/wire.md) as text.
KNOWN_BY = {
    "pidfd": "by its exit status, which the kernel kept",
    "zombie": "by its exit status, read from the process",
    "kernel log": "by the kernel's log",
    "slot": "by what it wrote down before it ended",
}

#: Possible senders of SIGTERM to a whole job.
WHO_ASKS = "a scheduler (preemption, time limit, eviction), a launcher or a person"


def how_it_died(who: str, cause: str, death: Death) -> str:
    """Return "Rank 1 was killed by the kernel for memory (OOM)", without a stop."""
    who = who[:1].upper() + who[1:]
    name = death.signal_name or (f"signal {death.signal}" if death.signal else "a signal")
    if death.preempted:
        return f"{who} was preempted" + (f" by {name}" if death.signal_name else f" ({cut(death.preempted)})")
    raised = "" if death.exception is None else death.exception.type
    code = "an exit code" if death.exit_code is None else f"exit code {death.exit_code}"
    return {
        "oom_kill": f"{who} was killed by the kernel for memory (OOM)",
        "signal": f"{who} was {'ended' if asked_to_end(death) else 'killed'} from outside by {name}",
        "crash": f"{who} crashed with {name}",
        "exception": f"{who} ended with {raised or 'an exception'}",
        "exit_code": f"{who} ended with {code}",
    }.get(cause, f"The process of {who[:1].lower() + who[1:]} died")


def gpu_text(death: Death) -> str:
    """Return ", GPU 3", "" for unknown."""
    return "" if death.gpu is None or death.gpu.index is None else f", GPU {death.gpu.index}"


def others_after(ranks: int, nodes: int) -> str:
    """Return "63 ranks of 8 nodes died after it"."""
    where = f" of {nodes} nodes" if nodes > 1 else ""
    return f"{ranks} {'rank' if ranks == 1 else 'ranks'}{where} died after it"


def pulled(first: Death, others: Sequence[Death], more: int) -> str:
    """Return "After it died: ranks 1, 2 and 61 more."."""
    after = [death.rank for death in others]
    shown = ", ".join(str(rank) for rank in after[:MAX_NAMED_RANKS])
    rest = more + len(after) - min(len(after), MAX_NAMED_RANKS)
    earlier = [death.rank for death in others if death.time < first.time]
    text = f"{'Also' if earlier else 'After it'} died: {'rank' if len(after) == 1 else 'ranks'} {shown}"
    text += f" and {rest} more." if rest else "."
    cascade = [death.rank for death in others if is_cascade(death)]
    if cascade:
        text += f" Pulled down by it, by what {'it says' if len(cascade) == 1 else 'they say'}: {name_ranks(cascade)}."
    if earlier:
        clock = "the clock of its node" if len(earlier) == 1 else "the clocks of their nodes"
        text += f" {capital(name_ranks(earlier))} died earlier by {clock}, but only passed on an end."
    return text


def verdict_of(
    first: Death, others: Sequence[Death], cause: str, text: str, together: bool, hung: Hung | None
) -> Verdict:
    because = [] if hung is None else [f"the job hung before: {hung.title}"]
    blind = []
    if first.evidence:
        because.append(fact_text(first.evidence))
    if first.how not in ("", "none"):
        because.append(f"known {KNOWN_BY.get(first.how, 'by ' + cut(first.how))}")
    if first.fatal:
        because.append(f"its last output: {cut(first.fatal)}")
    if first.oom is not None:
        because.append(fact_text(first.oom))
    because += [f"rank {death.rank} died {_apart(death.time - first.time)}" for death in others[:8]]
    if cause == "unknown":
        blind.append("how the process ended: its exit status was not read")
    gpus = []
    if first.gpu is not None and not together:
        gpus = [SuspectGpu(first.rank, first.node, first.gpu.index, first.gpu.uuid)]
    certain = cause in ("oom_kill", "crash", "exception", "exit_code", "preempted") or (
        cause == "signal" and first.signal
    )
    alone = not others or min(death.time for death in others) - first.time > 1.0
    sure = cause == "preempted" or (not passes_on(first) and (alone or not is_cascade(first)))
    return Verdict(
        kind=cause,
        text=text,
        confidence="high" if certain and sure else ("medium" if certain else "low"),
        culprits=[] if together else [first.rank],
        nodes=[first.node] if first.node and not together else [],
        gpus=gpus,
        because=because,
        blind=blind,
        since=first.time,
        decided_after_s=round(max(0.0, first.heard - first.time), 1) if first.heard else None,
    )


def meaning(known: Explained) -> str:
    """Return the meaning of a recognised error as appended sentences, "" for none."""
    return f" {known.name}: {known.means} Usual cause: {known.cause}" if known.name else ""


def _apart(seconds: float) -> str:
    return f"{abs(seconds):.1f} s {'later' if seconds >= 0 else 'earlier'}"


def where_it_was(death: Death) -> str:
    """Return the step; a process of less than a heartbeat reported none, and in many jobs only rank 0 reports."""
    of_job = "before its first step" if step_of(death) < 0 else f"while the job was at step {step_of(death)}"
    return f"at step {death.step}" if death.step >= 0 else of_job


def step_of(death: Death) -> int:
    """Return the step of a dead process, or of its job."""
    return max(death.step, death.job_step)


def fact_text(evidence: object) -> str:
    """Return the agent's observation, in its own text where it has one."""
    if isinstance(evidence, Mapping):
        text = evidence.get("text") or ", ".join(f"{name} {value}" for name, value in evidence.items())
        return cut(text)
    return cut(evidence)


def cut(text: object) -> str:
    whole = str(text)
    return whole if len(whole) <= SENTENCE_CHARS else whole[: SENTENCE_CHARS - 1] + "…"


#: Longest time between a process's end and its report, and then the end of its hang, seconds.
REPORT_S = 5.0
#: Wait after the newest death before a plan, seconds: the first reported rank need not be the cause, and reports of
#: kernel, driver and other ranks arrive within it.
LAST_MESSAGE_S = 3.0
#: Retained facts of a ``process_death`` event (docs/wire.md).
_FACTS = (
    "pid", "last_phase", "evidence", "cause", "signal", "signal_name", "exit_code", "oom", "fatal", "how",
)  # fmt: skip


class DeathMonitor(Stateful):
    """The open death of a job, if any."""

    _deaths: dict[int, Death] = fresh(dict)
    _more: int = 0
    _key: str = ""
    #: Newest reported step of the open death: a new start behind it is news nevertheless.
    _reported_step: int = -1
    _changed: bool = False
    _over: dict[str, None] = fresh(dict)
    #: Last new process, on its node's clock, and its start, ns.
    _over_at: float = float("-inf")
    _newest_start: int = 0
    _runs_again: str | None = None
    #: The newest open hang, its time, and the one that was open at the first of these deaths.
    _hang: Hung | None = None
    _hang_at: float = 0.0
    _hung: Hung | None = None
    #: One of the undescribed deaths was not by a signal from outside.
    _more_by_itself: bool = False
    #: Nodes of the dead, and the described one that explains least of the cause.
    _nodes: set[str] = fresh(set)
    _least: tuple[int, float, int] | None = None
    #: Newest death of a job that runs again, on its node's clock.
    _died_at: float = float("-inf")
    #: A process ended since the last call of ``news``, and the time of the first call after the last one.
    _ended: bool = False
    _ended_at: float = float("-inf")

    @property
    def is_open(self) -> bool:
        """True while the job is dead and none of its processes has started again."""
        return bool(self._deaths) and self._runs_again is None

    def ended(self) -> None:
        """Take the end of a process."""
        self._ended = True

    def is_settled(self, now: float) -> bool:
        """Return whether ``news`` reported all deaths, and no more are expected.

        Args:
            now: unix seconds of the clock of ``news``; clocks of nodes differ.
        """
        return not (self._ended or self._changed) and not 0.0 <= now - self._ended_at < LAST_MESSAGE_S

    def knows(self, source: str) -> bool:
        """Return whether this process is dead."""
        return source in self._over or any(death.source == source for death in self._deaths.values())

    def load(self, incident: Incident) -> None:
        """Take a stored ``process_death`` incident, open or closed."""
        known = facts(incident.evidence, DeathFacts)
        deaths = {death.rank: death for death in known.deaths}
        if incident.state != "open":
            self._remember(deaths.values())
            if incident.key == self._key:  # a snapshot knew it while it was open
                self._forget()
                self._runs_again = None
            return
        self._deaths, self._key = deaths, incident.key
        self._reported_step = incident.now_step
        self._more = known.not_described
        self._nodes = {death.node for death in deaths.values()}
        self._hung = known.hung

    def restored(self) -> None:
        # Let the next ``news`` report an open death once more: a snapshot does not know whether it was reported.
        self._changed = bool(self._deaths)

    def add(
        self,
        source: str,
        rank: int,
        node: str,
        event: LineageEvent,
        reported: Mapping[str, Any],
        beside: Callable[[], Mapping[str, Any]],
        now: float,
    ) -> None:
        """Take one death. A second report of the same rank adds its facts to the first.

        Args:
            reported: the answer of ``reported_by``.
            beside: returns other facts of the process; called only for a described death.
        """
        step, time = -1 if event.step is None else event.step, event.time or now
        fresh = Death(source, rank, node, step, time, **reported)
        if source in self._over or self._is_late(fresh):
            return
        known = self._deaths.get(rank)
        if known is None:
            self._nodes.add(node)
            if len(self._deaths) >= MAX_LISTED and not self._make_room(fresh):
                self._leave_out(fresh)
                return
        else:
            fresh = replace(known, **reported, time=min(time, known.time), step=max(step, known.step))
        if not self._deaths:
            self._key, self._reported_step = f"process_death:{source}", -1
        fresh = replace(fresh, **beside())
        if fresh != known:
            self._deaths[rank], self._least = fresh, None
            self._changed = True

    def _is_late(self, death: Death) -> bool:
        """Return whether a death is of a job that runs again: a late report, or a late end by its launcher.

        Clocks of nodes differ, so a process started with the new one or later is no such case, at any time.
        """
        if started_ns(death.source) >= self._newest_start:
            return False
        if death.time < self._over_at:
            return True
        if death.time - self._died_at > CASCADE_S or not (is_cascade(death) or from_outside(death)):
            return False
        self._died_at = max(self._died_at, death.time)
        self._remember([death])
        return True

    def _make_room(self, fresh: Death) -> bool:
        """Describe a death in the place of one that explains less; return whether there is one."""
        if self._least is None:
            self._least = max(map(_order, self._deaths.values()))
        if _order(fresh) >= self._least:
            return False
        self._leave_out(self._deaths.pop(self._least[-1]))
        self._least = None
        return True

    def _leave_out(self, death: Death) -> None:
        """Count an undescribed death."""
        self._more += 1
        self._more_by_itself |= not from_outside(death)
        self._remember([death])
        self._changed = True

    def runs_again(self, rank: int, source: str, step: int, time: float, *, newer: bool = False) -> None:
        """Take a living process; one newer than a dead one of its rank ends the incident.

        Args:
            rank, source, step: of the process, "" where the job restarted without this rank. time: unix seconds.
            newer: certainly newer, whatever its id (a clock was put back between the two starts).
        """
        death = self._deaths.get(rank)
        if death is None or self.knows(source):
            return
        if newer or started_ns(source) >= started_ns(death.source):
            self._over_at = max(self._over_at, time)
            self._newest_start = max(self._newest_start, started_ns(source))
            at = f", at step {step}" if step > 0 else ""  # a resumed one reports its first step when it has made it
            how = f"has a new process{at}" if source else "is none of its ranks any more"
            self._runs_again = f"The job runs again: rank {rank} {how}."

    def open_finding(self, now_step: int) -> Finding | None:
        """Return the finding of the open death, or None."""
        return self._finding(now_step) if self._deaths and self._runs_again is None else None

    def news(self, now_step: int, now: float, hang: Finding | None = None) -> list[Finding]:
        """Return the changes since the last call; ``hang``: the open one, possibly ended by a person or a launcher."""
        if self._ended:
            self._ended, self._ended_at = False, now
        if hang is not None:
            self._hang, self._hang_at = _short(hang), now
        if not self._deaths:
            return []
        if self._hung is None and now - self._hang_at <= REPORT_S:
            self._hung = self._hang
        found = []
        for rank, death in self._deaths.items():
            if death.heard is None:
                self._deaths[rank] = replace(death, heard=now)
        if self._changed and self._runs_again is None:
            found.append(self._finding(now_step))
        self._changed = False  # one that ended before its report is reported once, as ended
        if self._runs_again is not None:
            text, self._runs_again = self._runs_again, None
            found.append(self._finding(now_step, over=text))
            self._died_at = max(death.time for death in self._deaths.values())
            self._remember(self._deaths.values())
            self._forget()
        return found

    def _before(self, death: Death) -> str:
        """Return the clause about the death of a rank that gave up waiting."""
        if self._hung is not None:
            return f"the job hung before, {self._hung.title}"
        if death.over_before:
            return f"{name_ranks(death.over_before)} {'was' if len(death.over_before) == 1 else 'were'} over before"
        return "what it waited for did not come"

    def _forget(self) -> None:
        self._deaths, self._more, self._hung, self._more_by_itself = {}, 0, None, False
        self._nodes, self._least = set(), None

    def _ended_hung(self, first_at: float) -> Hung | None:
        """Return the hang that signals from outside ended, None for none, or for another cause of a death.

        A death at the time of the hang may be its cause, though reported late: its agent was away.
        """
        hung = self._hung
        if hung is None or self._more_by_itself or not all(map(from_outside, self._deaths.values())):
            return None
        return hung if first_at - hung.since >= hung.stood_s / 2 else None

    def _remember(self, deaths: Iterable[Death]) -> None:
        for death in deaths:
            self._over[death.source] = None
        while len(self._over) > MAX_RANKS:
            del self._over[next(iter(self._over))]

    def _finding(self, now_step: int, over: str = "") -> Finding:
        by_time = sorted(self._deaths.values(), key=lambda death: (death.time, death.rank))
        stopped = not self._more_by_itself and stopped_from_outside(by_time)
        first = by_time[0] if stopped else root_of(by_time)
        pulled_down = [death for death in by_time if death is not first]
        exception = first.exception
        by_hand = exception is not None and exception.type in STOPPED_BY_HAND
        hung = self._ended_hung(by_time[0].time)
        severity: Severity = "warning" if over or hung or stopped else "critical"
        if by_hand or (stopped and over):
            severity = "info"
        rank, cause = first.rank, cause_of(first)
        at = where_it_was(first)
        if first.last_phase not in ("", AFTER_LOOP):
            at += f", in {first.last_phase}"
        together = len(by_time) > 1 and (stopped or hung is not None)
        signals = ", ".join(sorted({death.signal_name for death in by_time if death.signal_name})) or "preemption"
        seat = f"rank {rank}" + (f" (node {first.node}{gpu_text(first)})" if first.node else "")
        if by_hand:
            text = f"{capital(seat)} was stopped by hand (Ctrl-C) {at}"
        elif together:
            text = f"{len(by_time)} ranks were ended from outside by {signals} {at}"
        else:
            text = f"{capital(seat)} ended" if cause == "exception" else how_it_died(seat, cause, first)
            text += f" {at}"
        if exception is not None and not by_hand:
            text += f": {exception.type or 'an exception'}: {cut(gist(exception.message))}".removesuffix(": ")
        elif first.evidence and cause == "unknown":  # else it repeats the verdict
            text += f" ({fact_text(first.evidence)})"
        text = sentence(text)
        if hung is not None:
            text += f" The job hung before, {hung.title}; somebody or its launcher ended it."
        elif stopped and all(death.preempted for death in by_time):
            text += f" {'They were' if together else 'It was'} asked to end{_asked_by(by_time)}, and left in order."
        elif stopped:
            text += f" {'None of them died' if together else 'It did not die'} of itself"
            text += f": {WHO_ASKS} ended the job."
        else:
            if passes_on(first):
                text += f" It need not be the cause: {self._before(first)}."
            text += f" {pulled(first, pulled_down, self._more)}" if pulled_down else ""
        known = Explained() if stopped or hung is not None else explained(printed(exception, first.fatal))
        # The first reported death names the incident, also after a late report of an earlier one.
        named = next((death for death in by_time if self._key == f"process_death:{death.source}"), first)
        title = how_it_died(f"rank {rank}", cause, first)
        if together:
            title = f"The job {'hung and ' if hung else ''}was ended from outside by {signals}"
        elif hung is not None:
            title += " while the job hung"
        elif self._more and not by_hand:
            title += f"; {others_after(len(pulled_down) + self._more, len(self._nodes))}"
        self._reported_step = max(self._reported_step, now_step, named.step)
        return Finding(
            detector="liveness",
            key=self._key,
            kind="process_death",
            state="resolved" if over else "open",
            severity=severity,
            title=f"Rank {rank} was stopped by hand" if by_hand else title,
            text=f"{over} {text}{meaning(known)}".lstrip(),
            onset_step=step_of(named),
            step=step_of(named),
            now_step=self._reported_step,
            rank=None if together else rank,
            node=None if together else first.node or None,
            score=float(len(by_time) + self._more),
            evidence={
                "deaths": to_builtins([first, *pulled_down]),
                "not_described": self._more,
                "rank_count": len(by_time) + self._more,
                "node_count": len(self._nodes),
                "exception": to_builtins(exception),
                "hung": to_builtins(hung),
                "explained": to_builtins(known),
                "verdict": to_builtins(verdict_of(first, pulled_down, cause, text, together, hung)),
            },
        )


def reported_by(kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a ``Death`` in the data of an ``exception`` or ``process_death``, within bounds."""
    known = {name: _bounded(fact) for name, fact in data.items() if fact is not None}
    if kind == "process_death":
        return {name: known[name] for name in _FACTS if name in known}
    by = {"preempted": known.get("preempted") or (known.get("by") if kind == "preempted" else None) or ""}
    if kind == "preempted":
        name = by["preempted"] if by["preempted"].startswith("SIG") else ""
        return {"cause": "signal", "signal_name": name, **by}
    raised = convert(known, Raised)
    return {} if raised == Raised() else {"exception": raised, **by}


def _asked_by(deaths: Sequence[Death]) -> str:
    """Return possible senders of a lone signal, "" where the job named the sender."""
    return f" by {WHO_ASKS}" if any(death.signal_name for death in deaths) else ""


def _short(hang: Finding) -> Hung:
    """Return the summary of a hang for the deaths that ended it."""
    known = facts(hang.evidence, HangFacts)
    verdict = known.verdict or Verdict()
    title = hang.title.removeprefix("The job hangs ")
    return Hung(hang.key, verdict.kind, title, verdict.since or 0.0, known.stood_s)


def _bounded(fact: Any) -> Any:
    """Return an agent's fact within bounds, for evidence."""
    if isinstance(fact, Mapping):
        return {str(name)[:TEXT_CHARS]: _bounded(one) for name, one in list(fact.items())[:MAX_LISTED]}
    if isinstance(fact, list | tuple):
        return [_bounded(one) for one in fact[:MAX_LISTED]]
    return cut_inside(fact, TEXT_CHARS) if isinstance(fact, str) else fact


def _order(death: Death) -> tuple[int, float, int]:
    """Return the sort key of deaths, the most explaining first."""
    return weight_of(death), death.time, death.rank
