"""A run's state: its worst open incident, else its phase. Decided here, shown everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from msgspec import structs

from stabilitybackend.schema.kinds import kind_of
from stabilitybackend.schema.runs import RunStatus, RunView
from stabilitybackend.schema.severity import (
    INCIDENT_APPEARANCES,
    OVER_LATER,
    PHASE_APPEARANCES,
    SHAPES,
    IncidentStatus,
    NotBack,
    RunPhase,
    ShownState,
    StateTone,
    condition_of,
)

__all__ = ["stated"]

V = TypeVar("V", bound=RunView)

#: Phase of a run that does not train, by its status.
_PHASES: Mapping[RunStatus, RunPhase] = {
    "stalled": "stalled",
    "unreachable": "lost",
    "finished": "finished",
    "offline": "offline",
    "crashed": "crashed",
    "preempted": "preempted",
    "stopped": "stopped",
    "failed": "unreadable",
}
#: Phases of a run under way: only its ranks tell them apart.
_AT_WORK: frozenset[RunPhase] = frozenset({"starting", "restoring", "training", "checkpointing", "evaluating"})


def stated(run: V, phase: RunPhase | None = None, since: float | None = None, not_back: NotBack | None = None) -> V:
    """Return a run with its state.

    Args:
        run: its other fields.
        phase: activity of its ranks, where it is under way. None: the last one stays.
        since: since when they do, unix seconds.
        not_back: the newest ended alarm whose metric has not come back; read with ``phase`` alone.
    """
    if phase is None:
        not_back = run.state.not_back
        phase, since = run.state.phase, None if run.state.incident_id else run.state.since
    phase, since = _phase(run, phase, since)
    worst, found = run.worst_incident, PHASE_APPEARANCES[phase]
    word = found.word
    if phase == "stopped":
        word += f" by {'hand' if run.stopped is None else run.stopped.by}"
    condition = condition_of(phase, None if worst is None else worst.severity)
    tone: StateTone = "info" if not_back is not None and found.tone == "good" else found.tone
    state = ShownState(word, tone, SHAPES[tone], found.order, since, None, phase, None, condition, not_back)
    # An order to end is no trouble of its own: the phase shows it.
    if worst is not None and not (phase == "preempted" and worst.kind == "process_death"):
        status: IncidentStatus = "acknowledged" if worst.acknowledged else "open"
        found = INCIDENT_APPEARANCES[worst.severity][status]
        later = OVER_LATER if condition == "over" else 0
        word, order = kind_of(worst.kind).label, found.order + later
        state = ShownState(
            word, found.tone, found.shape, order, worst.since, worst.incident_id, phase, status, condition
        )
    return run if state == run.state else structs.replace(run, state=state)


def _phase(run: RunView, phase: RunPhase, since: float | None) -> tuple[RunPhase, float | None]:
    """Return a run's activity, and its start: by its status, and by its ranks where it is under way."""
    known = _PHASES.get(run.status)
    if run.status == "unreachable" and run.logged is None and not run.agents and run.last_step is None:
        return "empty", None
    if known is None:
        return (phase, since) if phase in _AT_WORK else ("training", None)
    return ("stopped" if known == "finished" and run.stopped is not None else known), run.logged
