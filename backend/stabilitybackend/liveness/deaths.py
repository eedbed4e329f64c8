"""Gathers the deaths of a job's processes into one incident per job death: the first, and those that it pulled down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stabilitybackend.detectors.contract import Finding, Severity
from stabilitybackend.liveness.naming import MAX_NAMED_RANKS, capital, name_ranks
from stabilitybackend.liveness.rank_watch import number, start_of

#: Deaths described one by one in the evidence of one incident; all are counted.
MAX_DESCRIBED = 16
#: Sources of deaths remembered, so that an event that comes again opens nothing again.
MAX_REMEMBERED = 4_096
#: Characters and entries of one fact that an agent tells of a death.
MAX_FACT_CHARS = 2_000
MAX_FACT_ENTRIES = 16
#: Characters of an exception's message or of the agent's words in a text.
MAX_SAID_CHARS = 300
#: Exceptions by which people stop a job on purpose.
STOPPED_BY_HAND = frozenset({"KeyboardInterrupt"})
#: Deaths so soon after the first one may be its consequence, seconds: collectives that fail, a launcher that ends all.
CASCADE_S = 60.0
#: Signals by which a launcher ends the other processes of a job that has lost one.
LAUNCHER_SIGNALS = frozenset({"SIGTERM", "SIGINT", "SIGHUP"})
#: What an exception says that only passes on the death of a peer, in lower case.
PASSED_ON = (
    "nccl", "gloo", "connection closed by peer", "connection reset by peer", "broken pipe", "connection refused",
    "remote process exited", "socket timeout", "processgroup", "distbackenderror", "distnetworkerror", "watchdog",
)  # fmt: skip
#: Facts of a ``process_death`` event that are kept (docs/wire.md).
FACTS = (
    "pid", "last_phase", "evidence", "cause", "signal", "signal_name", "exit_code", "oom", "fatal", "how",
)  # fmt: skip
CAUSES = frozenset({"oom_kill", "signal", "crash", "exit_code", "exception", "unknown"})

#: How an agent knows the end of a process (``how`` of docs/wire.md), in words.
KNOWN_BY = {
    "pidfd": "by its exit status, which the kernel kept",
    "zombie": "by its exit status, read before its launcher asked",
    "kernel log": "by the kernel's log",
    "slot": "by what it wrote down before it ended",
}

__all__ = ["FACTS", "DeathWatch"]


class DeathWatch:
    """The open death of a job, if there is one."""

    def __init__(self) -> None:
        self._deaths: dict[int, dict[str, Any]] = {}
        self._more = 0
        self._key = ""
        #: Newest step that was told of the open death: what starts anew may be behind it and is news all the same.
        self._told_step = -1
        self._changed = False
        self._over: dict[str, None] = {}
        #: When a new process was seen last, on its node's clock, and its start, ns.
        self._over_at = float("-inf")
        self._newest_start = 0
        self._runs_again: str | None = None

    @property
    def is_open(self) -> bool:
        """True while the job is dead and no process of it has started anew."""
        return bool(self._deaths) and self._runs_again is None

    def knows(self, source: str) -> bool:
        """Say whether this process is known to be dead."""
        return source in self._over or any(death["source"] == source for death in self._deaths.values())

    def load(self, incident: Mapping[str, Any]) -> None:
        """Take over a stored ``process_death`` incident, open or over."""
        evidence = incident["evidence"]
        deaths = {int(death["rank"]): dict(death) for death in evidence.get("deaths", [])}
        if incident["state"] != "open":
            self._remember(str(death["source"]) for death in deaths.values())
            if str(evidence.get("key")) == self._key:  # a snapshot knew it while it was open
                self._deaths, self._more, self._runs_again = {}, 0, None
            return
        self._deaths, self._key = deaths, str(evidence["key"])
        self._told_step = _step({"step": evidence.get("now_step")})
        self._more = int(evidence.get("not_described", 0))

    def tell_again(self) -> None:
        """Let the next ``news`` tell an open death once more: a snapshot does not know whether it was heard."""
        self._changed = bool(self._deaths)

    def add(
        self, source: str, rank: int, node: str, event: Mapping[str, Any], facts: Mapping[str, Any], now: float
    ) -> None:
        """Take one death. A second report of the same rank adds its facts to the first."""
        time = number(event.get("time")) or now
        # Of a death that is over: it came again, or was told later than the new start. Clocks of nodes differ, so what
        # started with the new process or after it is none of them, whatever its time.
        if source in self._over or (time < self._over_at and start_of(source) < self._newest_start):
            return
        known = self._deaths.get(rank)
        if known is None and len(self._deaths) >= MAX_DESCRIBED:
            self._more += 1
            self._remember([source])
            self._changed = True
            return
        if not self._deaths:
            self._key, self._told_step = f"process_death:{source}", -1
        fresh = dict(known or {"source": source, "rank": rank, "node": node, "step": _step(event), "time": time})
        fresh["time"] = min(time, float(fresh["time"]))
        fresh["step"] = max(_step(event), int(fresh["step"]))
        fresh |= {name: _bounded(fact) for name, fact in facts.items()}
        if fresh != known:
            self._deaths[rank] = fresh
            self._changed = True

    def runs_again(self, rank: int, source: str, step: int, time: float, *, newer: bool = False) -> None:
        """Take note that a process is alive; one that is newer than a dead one of its rank ends the incident.

        Args:
            rank, source, step: of the process. time: unix seconds.
            newer: it is known to be newer, whatever its id says (a clock was put back between the two starts).
        """
        death = self._deaths.get(rank)
        if death is None or self.knows(source):
            return
        if newer or start_of(source) >= start_of(str(death["source"])):
            self._over_at = max(self._over_at, time)
            self._newest_start = max(self._newest_start, start_of(source))
            self._runs_again = f"The job runs again: rank {rank} has a new process, at step {max(step, 0)}."

    def open_finding(self, now_step: int) -> Finding | None:
        """Return how the open death reads now, or None."""
        return self._finding(now_step) if self._deaths and self._runs_again is None else None

    def news(self, now_step: int, now: float) -> list[Finding]:
        """Return what changed since the last call, ``now`` in unix seconds."""
        if not self._deaths:
            return []
        found = []
        for death in self._deaths.values():
            death.setdefault("heard", now)
        if self._changed and self._runs_again is None:
            found.append(self._finding(now_step))
        self._changed = False  # one that is over before it was told is told once, as over
        if self._runs_again is not None:
            text, self._runs_again = self._runs_again, None
            found.append(self._finding(now_step, over=text))
            self._remember(str(death["source"]) for death in self._deaths.values())
            self._deaths, self._more = {}, 0
        return found

    def _remember(self, sources: Iterable[str]) -> None:
        for source in sources:
            self._over[source] = None
        while len(self._over) > MAX_REMEMBERED:
            del self._over[next(iter(self._over))]

    def _finding(self, now_step: int, over: str = "") -> Finding:
        by_time = sorted(self._deaths.values(), key=lambda death: (death["time"], death["rank"]))
        first = _root(by_time)
        pulled_down = [death for death in by_time if death is not first]
        exception = first.get("exception") or {}
        by_hand = exception.get("type") in STOPPED_BY_HAND
        severity: Severity = "info" if by_hand else ("warning" if over else "critical")
        rank, cause = first["rank"], _cause(first)
        # A process that lived for less than a beat told no step.
        where = f"at step {first['step']}" if first["step"] >= 0 else "before it told a step"
        if first.get("last_phase"):
            where += f", in {first['last_phase']}"
        together = _ended_together(by_time)
        seat = f"rank {rank}" + (f" (node {first['node']}{_gpu_words(first)})" if first["node"] else "")
        if by_hand:
            text = f"{capital(seat)} was stopped by hand (Ctrl-C) {where}"
        elif together:
            text = f"{len(by_time)} ranks were ended from outside by {first['signal_name']} {where}"
        else:
            text = f"{capital(seat)} ended {where}" if cause == "exception" else f"{_how(seat, cause, first)} {where}"
        if exception and not by_hand:
            text += f": {exception.get('type', 'an exception')}: {_cut(exception.get('message', ''))}".removesuffix(
                ": "
            )
        elif first.get("evidence") and cause == "unknown":  # else it says the same, and stands in the verdict
            text += f" ({_say(first['evidence'])})"
        text += "."
        if together:
            text += " None of them died of itself: a scheduler, a launcher or a person ended the job."
        elif pulled_down:
            text += f" {_pulled(first, pulled_down, self._more)}"
        # The first death seen names the incident, also when one that was earlier is reported later.
        named = next((d for d in by_time if self._key == f"process_death:{d['source']}"), first)
        title = _how(f"rank {rank}", cause, first)
        if together:
            title = f"The job was ended from outside by {first['signal_name']}"
        self._told_step = max(self._told_step, now_step, named["step"])
        return Finding(
            detector="liveness",
            key=self._key,
            kind="process_death",
            state="resolved" if over else "open",
            severity=severity,
            title=f"Rank {rank} was stopped by hand" if by_hand else title,
            text=over + " " + text if over else text,
            onset_step=named["step"],
            step=named["step"],
            now_step=self._told_step,
            rank=None if together else rank,
            node=None if together else first["node"] or None,
            score=float(len(by_time) + self._more),
            evidence={
                "deaths": [first, *pulled_down],
                "not_described": self._more,
                "exception": exception or None,
                "verdict": _verdict(first, pulled_down, cause, text, together),
            },
        )


def _root(by_time: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the death that the others follow from: the earliest that no other death explains.

    Clocks of nodes differ by seconds, and a launcher ends the peers within them: a peer that only passes on what
    happened elsewhere, or that the launcher ended, is not the first while one within CASCADE_S has a cause of its own.
    """
    near = [death for death in by_time if death["time"] - by_time[0]["time"] <= CASCADE_S]
    return next((death for death in near if not _is_cascade(death)), near[0])


def _ended_together(by_time: list[dict[str, Any]]) -> bool:
    """Say whether one signal ended several ranks at once, and nothing else ended any: a preemption, a cancel."""
    names = {death.get("signal_name") for death in by_time}
    near = by_time[-1]["time"] - by_time[0]["time"] <= CASCADE_S
    calm = near and len(by_time) > 1 and not any(death.get("exception") for death in by_time)
    return calm and len(names) == 1 and names <= LAUNCHER_SIGNALS


def _is_cascade(death: Mapping[str, Any]) -> bool:
    exception = death.get("exception")
    if isinstance(exception, Mapping):
        said = f"{exception.get('type', '')} {exception.get('message', '')}".lower()
        return any(word in said for word in PASSED_ON)
    fatal = str(death.get("fatal") or "").lower()
    if death.get("signal_name") == "SIGABRT" and any(word in fatal for word in ("nccl", "gloo", "watchdog")):
        return True
    return death.get("signal_name") in LAUNCHER_SIGNALS


def _cause(death: Mapping[str, Any]) -> str:
    if death.get("exception") and death.get("cause") not in ("oom_kill", "signal", "crash"):
        return "exception"
    cause = death.get("cause")
    return cause if cause in CAUSES else "unknown"


def _how(who: str, cause: str, death: Mapping[str, Any]) -> str:
    """Say how a process died, without an end: "Rank 1 was killed by the kernel for memory (OOM)"."""
    who = who[:1].upper() + who[1:]
    name = death.get("signal_name") or (f"signal {death['signal']}" if death.get("signal") else "a signal")
    code = death.get("exit_code")
    return {
        "oom_kill": f"{who} was killed by the kernel for memory (OOM)",
        "signal": f"{who} was killed from outside by {name}",
        "crash": f"{who} crashed with {name}",
        "exception": f"{who} ended with {(death.get('exception') or {}).get('type') or 'an exception'}",
        "exit_code": f"{who} ended with exit code {code}" if code is not None else f"{who} ended with an exit code",
    }.get(cause, f"The process of {who[:1].lower() + who[1:]} died")


def _gpu_words(death: Mapping[str, Any]) -> str:
    gpu = death.get("gpu")
    return f", GPU {gpu['index']}" if isinstance(gpu, Mapping) and gpu.get("index") is not None else ""


def _pulled(first: Mapping[str, Any], others: list[dict[str, Any]], more: int) -> str:
    after = [death["rank"] for death in others]
    shown = ", ".join(str(rank) for rank in after[:MAX_NAMED_RANKS])
    rest = more + len(after) - min(len(after), MAX_NAMED_RANKS)
    earlier = [death["rank"] for death in others if death["time"] < first["time"]]
    text = f"{'Also' if earlier else 'After it'} died: {'rank' if len(after) == 1 else 'ranks'} {shown}"
    text += f" and {rest} more." if rest else "."
    cascade = [death["rank"] for death in others if _is_cascade(death)]
    if cascade:
        text += f" Pulled down by it, by what they say: {name_ranks(cascade)}."
    if earlier:
        text += f" {name_ranks(earlier).capitalize()} died earlier by the clock of its node, but only passed on an end."
    return text


def _verdict(
    first: Mapping[str, Any], others: list[dict[str, Any]], cause: str, text: str, together: bool
) -> dict[str, Any]:  # fmt: skip
    """Return the verdict, in the shape of docs/api.md."""
    because, blind = [], []
    if first.get("evidence"):
        because.append(_say(first["evidence"]))
    if first.get("how") and first["how"] != "none":
        because.append(f"known {KNOWN_BY.get(first['how'], 'by ' + _cut(first['how']))}")
    if first.get("fatal"):
        because.append(f"its last words: {_cut(first['fatal'])}")
    oom = first.get("oom")
    if isinstance(oom, Mapping):
        because.append(_cut(oom.get("text") or ", ".join(f"{name} {value}" for name, value in oom.items())))
    because += [f"rank {death['rank']} died {_apart(death['time'] - first['time'])}" for death in others[:8]]
    if cause == "unknown":
        blind.append("how the process ended: nobody who could read its exit status told")
    gpu = first.get("gpu")
    certain = cause in ("oom_kill", "crash", "exception", "exit_code") or (cause == "signal" and first.get("signal"))
    heard = number(first.get("heard"))
    alone = not others or min(death["time"] for death in others) - first["time"] > 1.0
    return {
        "class": cause,
        "text": text,
        "confidence": "high" if certain and (alone or not _is_cascade(first)) else ("medium" if certain else "low"),
        "culprits": [] if together else [first["rank"]],
        "nodes": [first["node"]] if first["node"] and not together else [],
        "gpus": [{"rank": first["rank"], "node": first["node"], **gpu}]
        if isinstance(gpu, Mapping) and not together
        else [],
        "because": because,
        "blind": blind,
        "since": first["time"],
        "decided_after_s": round(max(0.0, heard - first["time"]), 1) if heard else None,
        "dump": None,
    }


def _apart(seconds: float) -> str:
    return f"{abs(seconds):.1f} s {'later' if seconds >= 0 else 'earlier'}"


def _bounded(fact: Any) -> Any:
    """Return a fact of an agent within bounds: it stands in the incident's evidence."""
    if isinstance(fact, Mapping):
        return {str(name)[:MAX_FACT_CHARS]: _bounded(one) for name, one in list(fact.items())[:MAX_FACT_ENTRIES]}
    if isinstance(fact, list | tuple):
        return [_bounded(one) for one in fact[:MAX_FACT_ENTRIES]]
    return fact[:MAX_FACT_CHARS] if isinstance(fact, str) else fact


def _step(event: Mapping[str, Any]) -> int:
    return int(number(event.get("step"), -1))


def _say(evidence: object) -> str:
    """Return what the agent saw, in its own words where it has some."""
    if isinstance(evidence, Mapping):
        text = evidence.get("text") or ", ".join(f"{name} {value}" for name, value in evidence.items())
        return _cut(text)
    return _cut(evidence)


def _cut(text: object) -> str:
    return str(text)[:MAX_SAID_CHARS]
