"""Whether a job is over, and how, or how it runs as far as its agents report: the run's status and its note. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.liveness.agents import AgentBook
from stabilitybackend.judging.liveness.death.causes import STOPPED_BY_HAND
from stabilitybackend.judging.liveness.format import name_nodes, name_ranks
from stabilitybackend.judging.liveness.job_snapshot import of_earlier_start
from stabilitybackend.judging.liveness.quiet_log import quiet_text
from stabilitybackend.judging.liveness.rank_watch import RankWatch
from stabilitybackend.schema.evidence import DeathFacts, facts
from stabilitybackend.schema.runs import RunStatus

__all__ = ["how_it_ended", "how_it_runs"]


def how_it_ended(
    ranks: Collection[RankWatch], visible: Callable[[], Sequence[RankWatch]], death: Finding | None
) -> tuple[RunStatus, str] | None:
    """Return the status of a job that is over and a note in plain words; None for one that is not.

    Args:
        ranks: the newest process of each rank. visible: returns those of them that run and are seen.
    """
    if death is not None:
        known = facts(death.evidence, DeathFacts)
        if all(one.preempted for one in known.deaths):
            return "preempted", death.text
        by_hand = known.exception is not None and known.exception.type in STOPPED_BY_HAND
        return ("stopped" if by_hand else "crashed"), death.text
    if ranks and all(watch.state in ("finished", "left") for watch in ranks):
        left = [watch.rank for watch in ranks if watch.state == "left"]
        return "finished", f"{name_ranks(left)} ended without run.finish()." if left else ""
    dead = {watch.rank for watch in ranks if watch.state == "running" and not watch.alive}
    gone = sorted(dead - of_earlier_start(ranks, visible())) if dead else []
    if gone:
        process, are = ("process", "is") if len(gone) == 1 else ("processes", "are")
        return "crashed", f"The {process} of {name_ranks(gone)} {are} gone."
    return None


def how_it_runs(
    ranks: Collection[RankWatch],
    visible: Sequence[RankWatch],
    agents: AgentBook,
    hang: Finding | None,
    lost_after_s: float,
    first_tick: float,
    now: float,
) -> tuple[RunStatus, str]:
    """Return the status word of ``docs/api.md`` and a note in plain words.

    Args:
        ranks: the newest process of each rank. visible: those of them that run and are seen.
        lost_after_s: silence after which an agent is away.
        first_tick: when this server looked first.
    """
    away = agents.all.keys() - agents.here(now, lost_after_s)
    lost = {watch.agent for watch in ranks if watch.agent in away and watch.running}
    if lost:
        nodes = name_nodes({agents.all[name].node or name for name in lost}, agents.nodes)
        who = "agent" if len(lost) == 1 else f"{len(lost)} agents"
        seen = len(visible)
        if hang is not None and seen:
            return "stalled", hang.text
        if all(agents.all[name].log is not None for name in lost):
            return "unreachable", "Its log is no longer followed; the job itself may be well."
        rest = f" {seen} other {'rank still reports' if seen == 1 else 'ranks still report'}." if seen else ""
        does = "does" if len(lost) == 1 else "do"
        note = f"No data: the {who} on {nodes} {does} not reach the server; the job itself may be well.{rest}"
        return ("running" if seen else "unreachable"), note
    unheard = not visible and any(w.running and (w.agent == "" or agents.expects(w.agent)) for w in ranks)
    soon = now - first_tick <= lost_after_s
    if hang is not None and (soon or not unheard):
        return "stalled", hang.text
    if unheard:
        if soon:
            return "running", "Waiting for the agents to come back."
        return "unreachable", "No agent has connected since the server started."
    if agents.all and not any(agent.connected for agent in agents.all.values()):
        return "running", "No agent is connected at the moment."
    logs = [agent.log for agent in agents.all.values() if agent.log is not None]
    if quiet := [log for log in logs if log.is_quiet]:
        return "unreachable", quiet_text(quiet[0])
    if logs and not visible:
        return "running", f"Only its log {logs[0].name} is followed: hangs and deaths can't be detected from there."
    troubled = [watch for watch in ranks if watch.running and watch.trouble]
    if troubled:
        who = name_ranks([watch.rank for watch in troubled])
        return "running", f"Not visible here: {who}, because {troubled[0].trouble}."
    long = sorted({watch.phase for watch in visible if watch.in_long_phase})
    return "running", f"In {', '.join(long)}." if long else ""
