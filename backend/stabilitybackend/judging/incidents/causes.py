"""Which incident another one follows from: people read the cause first, and the consequence names it. Pure.

A rule is a pair of kinds, how long before the consequence its cause may have begun, and what they have to share. Of
several causes the one that began first counts: the others may follow from it too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from stabilitybackend.judging.incidents.illness import marked_by_rate, rates_of
from stabilitybackend.schema.evidence import (
    DeathFacts,
    GpuFaultFacts,
    LostAgentsFacts,
    MessageFacts,
    StragglerFacts,
    facts,
)
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.kinds import kind_of

__all__ = ["alarms", "cause_of", "first_to_read", "may_cause"]

#: A cause is seen this long after its consequence at most, seconds: agents read a kernel log every few seconds, and
#: report once a second.
SEEN_LATER_S = 30.0
#: What slows a whole job began so long before it at most, seconds: a block of steps is judged at its end.
SLOWED_WITHIN_S = 600.0
#: Processes that others wait for died so long before at most, seconds: NCCL's watchdog ends the others after ten
#: minutes (``TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC``), and a hang is reported well before.
DIED_WITHIN_S = 900.0


class _Rule(NamedTuple):
    """One way in which an incident follows from another.

    Attributes:
        cause: kind of the cause.
        within_s: the cause began so long before at most; infinite: it only has to last until then.
        shares: they are about the same rank, GPU or node; else about the whole job.
    """

    cause: str
    within_s: float
    shares: bool


_RULES: Mapping[str, Sequence[_Rule]] = {
    "hang": (
        _Rule("gpu_fault", math.inf, shares=True),
        _Rule("process_death", DIED_WITHIN_S, shares=False),
        _Rule("agent_lost", DIED_WITHIN_S, shares=True),
    ),
    "process_death": (_Rule("gpu_fault", math.inf, shares=True), _Rule("hang", math.inf, shares=False)),
    "agent_lost": (_Rule("gpu_fault", DIED_WITHIN_S, shares=True),),
    "straggler": (
        _Rule("gpu_fault", math.inf, shares=True),
        _Rule("hang", SLOWED_WITHIN_S, shares=False),
    ),
    "throughput": (
        _Rule("hang", SLOWED_WITHIN_S, shares=False),
        _Rule("gpu_fault", SLOWED_WITHIN_S, shares=False),
        _Rule("straggler", SLOWED_WITHIN_S, shares=False),
    ),
}
_CAUSES = frozenset(rule.cause for rules in _RULES.values() for rule in rules)


class _Place(NamedTuple):
    """What an incident is about."""

    ranks: frozenset[int]
    nodes: frozenset[str]
    gpus: frozenset[str]


def may_cause(incident: Incident) -> bool:
    """Say whether an incident may be the cause of another one: of notes a slow rank only, for which all others wait."""
    grave = incident.severity != "info" or incident.kind == "straggler"
    return (incident.kind in _CAUSES or kind_of(incident.kind).leads) and grave


def cause_of(incident: Incident, every: Iterable[Incident]) -> str:
    """Return the id of the incident that another one follows from, "" for none.

    Args:
        every: the incidents of the run.
    """
    rules = {rule.cause: rule for rule in _RULES.get(incident.kind, ())}
    kind = kind_of(incident.kind)
    if kind.about == "user":  # a message to people may name the incident that it is about
        of = facts(incident.evidence, MessageFacts).about
        return of if any(one.incident_id == of for one in every) else ""
    if not rules and (kind.leads or not kind.curable):
        return ""
    others = [one for one in every if one.incident_id != incident.incident_id and may_cause(one)]
    if kind.curable:
        rates = rates_of(others)
        found = marked_by_rate(incident, rates) if rates else []
    else:
        found = [one for one in others if one.kind in rules and _explains(rules[one.kind], one, incident)]
    return min(found, key=lambda one: (one.since, one.incident_id)).incident_id if found else ""


def _explains(rule: _Rule, cause: Incident, of: Incident) -> bool:
    if cause.caused_by == of.incident_id or cause.dead != of.dead:
        return False
    if of.kind == "process_death" and cause.kind == "hang":
        hung = facts(of.evidence, DeathFacts).hung
        return hung is not None and hung.key == cause.key
    early = of.since - cause.since
    if not -SEEN_LATER_S <= early <= rule.within_s:
        return False
    if cause.resolved is not None and cause.state != "open" and cause.resolved < of.since - SEEN_LATER_S:
        return False
    return not rule.shares or _share(_place(cause), _place(of))


def _share(cause: _Place, of: _Place) -> bool:
    if cause.gpus and of.gpus:
        return not cause.gpus.isdisjoint(of.gpus)
    if cause.ranks and of.ranks:
        return not cause.ranks.isdisjoint(of.ranks)
    return not cause.nodes.isdisjoint(of.nodes)


def _place(incident: Incident) -> _Place:
    verdict = incident.verdict
    ranks, nodes, gpus = set(verdict.culprits), set(verdict.nodes), {gpu.uuid for gpu in verdict.gpus}
    if incident.rank is not None:
        ranks.add(incident.rank)
    if incident.node:
        nodes.add(incident.node)
    if incident.kind == "gpu_fault":
        fault = facts(incident.evidence, GpuFaultFacts)
        ranks.update(fault.ranks)
        for gpu in (fault.gpu, *fault.gpus):
            ranks.update(gpu.ranks)
            nodes.add(gpu.node or "")
            gpus.add(gpu.uuid)
    elif incident.kind == "process_death":
        for death in facts(incident.evidence, DeathFacts).deaths:
            ranks.add(death.rank)
            nodes.add(death.node)
            gpus.add(None if death.gpu is None else death.gpu.uuid)
    elif incident.kind == "agent_lost":
        nodes.update(facts(incident.evidence, LostAgentsFacts).nodes)
    elif incident.kind == "straggler":
        ranks.update(facts(incident.evidence, StragglerFacts).slow)
    return _Place(frozenset(ranks), frozenset(nodes - {""}), frozenset(gpu for gpu in gpus if gpu))


def alarms(incidents: Iterable[Incident]) -> list[Incident]:
    """Return the open incidents that people are to look at."""
    return [one for one in incidents if one.state == "open" and one.alarm]


def first_to_read(incidents: Iterable[Incident]) -> tuple[Incident, Incident] | None:
    """Return what to read first of the open incidents, and how bad it is; None without any.

    Returns:
        The cause of the worst of them (of equals the newest), and the worst that follows from it.
    """
    every = {one.incident_id: one for one in alarms(incidents)}
    worst = min(every.values(), key=lambda one: (one.appearance.order, -one.opened), default=None)
    if worst is None:
        return None
    cause, seen = worst, {worst.incident_id}
    while cause.caused_by in every and cause.caused_by not in seen:
        cause = every[cause.caused_by]
        seen.add(cause.incident_id)
    return cause, worst
