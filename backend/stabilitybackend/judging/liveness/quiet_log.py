"""Followed logs without new rows: neither proof of a hang nor of health.

A follower of a log sees neither process nor phase: a hang, a kill, a long evaluation and a full disk look the same. So
it is a warning of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import to_builtins

from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.liveness.rank_watch import RankWatch
from stabilitybackend.schema.evidence import QuietLogFacts, facts
from stabilitybackend.schema.health import LogFacts
from stabilitybackend.schema.incidents import Incident

if TYPE_CHECKING:
    from stabilitybackend.judging.liveness.agents import Agent

__all__ = ["QuietLogs", "quiet_text"]


def quiet_text(log: LogFacts) -> str:
    """Return the sentence about a quiet log."""
    return (
        f"Nothing new in {log.name} for longer than {_span(log.limit_s)}, which is unusual for it; whether the job "
        "hangs, has died or is busy can't be seen from its log."
    )


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"


class QuietLogs:
    """The open incidents about quiet logs of one run, by follower."""

    def __init__(self) -> None:
        self._open: dict[str, Finding] = {}

    def load(self, incident: Incident, finding: Finding) -> None:
        """Take over a stored open incident."""
        self._open[facts(incident.evidence, QuietLogFacts).agent] = finding

    def tick(self, agents: Mapping[str, Agent], ranks: Collection[RankWatch], away: Collection[str]) -> list[Finding]:
        """Return new findings.

        Args:
            agents: all of them, by name. ranks: the newest process of each rank. away: agents that are lost.
        """
        if not self._open and all(agent.log is None for agent in agents.values()):
            return []
        found = []
        step = max((watch.newest_step for watch in ranks), default=-1)
        over = not any(watch.running for watch in ranks)
        for name, agent in agents.items():
            log = agent.log
            if log is None or name in away:
                continue  # the log is unwatched: that is reported as a lost agent
            known = self._open.get(name)
            if known is None and log.is_quiet and not over:
                self._open[name] = _finding(name, log, agent.seen_at, step)
                found.append(self._open[name])
            elif known is not None and (over or not log.is_quiet):
                del self._open[name]
                how = "The log is over." if over else f"New values come again, now at step {step}."
                found.append(replace(known, state="resolved", now_step=max(step, known.now_step), text=how))
        return found


def _finding(name: str, log: LogFacts, now: float, step: int) -> Finding:
    since = now - log.quiet_s
    return Finding(
        detector="liveness",
        key=f"quiet_log:{name}:{step}",
        kind="quiet_log",
        state="open",
        severity="warning",
        title=f"Nothing new in {log.name}",
        text=f"{quiet_text(log)} The last values are of step {step}.",
        onset_step=step,
        step=step,
        now_step=step,
        score=log.quiet_s,
        evidence=to_builtins(QuietLogFacts(name, log.name, since, log.limit_s)),
    )
