"""Gathers the deaths of a job's processes into one incident per job death: the first, and those that it pulled down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stabilitybackend.detectors.contract import Finding, Severity
from stabilitybackend.liveness.rank_watch import start_of

#: Deaths described one by one in the evidence of one incident; all are counted.
MAX_DESCRIBED = 16
#: Sources of deaths remembered, so that an event that comes again opens nothing again.
MAX_REMEMBERED = 4_096
#: Characters of an exception's message or of the agent's words in a text.
MAX_SAID_CHARS = 300
#: Exceptions by which people stop a job on purpose.
STOPPED_BY_HAND = frozenset({"KeyboardInterrupt"})

__all__ = ["DeathWatch"]


class DeathWatch:
    """The open death of a job, if there is one."""

    def __init__(self) -> None:
        self._deaths: dict[int, dict[str, Any]] = {}
        self._more = 0
        self._key = ""
        self._changed = False
        self._over: dict[str, None] = {}
        self._over_at = float("-inf")
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
        self._more = int(evidence.get("not_described", 0))

    def tell_again(self) -> None:
        """Let the next ``news`` tell an open death once more: a snapshot does not know whether it was heard."""
        self._changed = bool(self._deaths)

    def add(
        self, source: str, rank: int, node: str, event: Mapping[str, Any], facts: Mapping[str, Any], now: float
    ) -> None:
        """Take one death. A second report of the same rank adds its facts to the first."""
        time = float(event.get("time") or now)
        if source in self._over or time < self._over_at:
            return  # belongs to a death that is over: came again, or later than the new start
        known = self._deaths.get(rank)
        if known is None and len(self._deaths) >= MAX_DESCRIBED:
            self._more += 1
            self._remember([source])
            self._changed = True
            return
        if not self._deaths:
            self._key = f"process_death:{source}"
        fresh = dict(known or {"source": source, "rank": rank, "node": node, "step": _step(event), "time": time})
        fresh["time"] = min(time, float(fresh["time"]))
        fresh["step"] = max(_step(event), int(fresh["step"]))
        fresh |= facts
        if fresh != known:
            self._deaths[rank] = fresh
            self._changed = True

    def runs_again(self, rank: int, source: str, step: int, time: float) -> None:
        """Take note that a process is alive; one that is newer than a dead one of its rank ends the incident."""
        death = self._deaths.get(rank)
        if death is not None and not self.knows(source) and start_of(source) >= start_of(str(death["source"])):
            self._over_at = max(self._over_at, time)
            self._runs_again = f"The job runs again: rank {rank} has a new process, at step {max(step, 0)}."

    def open_finding(self, now_step: int) -> Finding | None:
        """Return how the open death reads now, or None."""
        return self._finding(now_step) if self._deaths and self._runs_again is None else None

    def news(self, now_step: int) -> list[Finding]:
        """Return what changed since the last call."""
        if not self._deaths:
            return []
        found = []
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
        deaths = sorted(self._deaths.values(), key=lambda death: (death["time"], death["rank"]))
        first, pulled_down = deaths[0], deaths[1:]
        exception = first.get("exception") or {}
        by_hand = exception.get("type") in STOPPED_BY_HAND
        severity: Severity = "warning" if over or by_hand else "critical"
        rank = first["rank"]
        # A process that lived for less than a beat told no step.
        where = f"at step {first['step']}" if first["step"] >= 0 else "before it told a step"
        text = f"The process of rank {rank} died {where}"
        if first.get("last_phase"):
            text += f", in {first['last_phase']}"
        if exception:
            text += f", by {exception.get('type', 'an exception')}: {_cut(exception.get('message', ''))}"
        elif first.get("evidence"):
            text += f" ({_say(first['evidence'])})"
        text += "."
        if pulled_down:
            others = ", ".join(str(death["rank"]) for death in pulled_down)
            text += f" After it died: rank {others}" + (f" and {self._more} more." if self._more else ".")
        # The first death seen names the incident, also when one that was earlier is reported later.
        named = next((d for d in deaths if self._key == f"process_death:{d['source']}"), first)
        return Finding(
            detector="liveness",
            key=self._key,
            kind="process_death",
            state="resolved" if over else "open",
            severity=severity,
            title=f"Rank {rank} was stopped by hand" if by_hand else f"The process of rank {rank} died",
            text=over + " " + text if over else text,
            onset_step=named["step"],
            step=named["step"],
            now_step=max(now_step, named["step"]),
            rank=rank,
            node=first["node"] or None,
            score=float(len(deaths) + self._more),
            evidence={"deaths": deaths, "not_described": self._more, "exception": exception or None},
        )


def _step(event: Mapping[str, Any]) -> int:
    step = event.get("step")
    return -1 if step is None else int(step)


def _say(evidence: object) -> str:
    """Return what the agent saw, in its own words where it has some."""
    if isinstance(evidence, Mapping):
        text = evidence.get("text") or ", ".join(f"{name} {value}" for name, value in evidence.items())
        return _cut(text)
    return _cut(evidence)


def _cut(text: object) -> str:
    return str(text)[:MAX_SAID_CHARS]
