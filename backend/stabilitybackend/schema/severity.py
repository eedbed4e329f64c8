"""The one table of appearances: severity and state of an incident, phase of a run -> word, tone, shape, order.

Lists, headers, banners, cards, marks, tab titles and messages use it; the pages get it with their head. Each tone has a
shape, so that colour alone carries no information.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

Severity = Literal["info", "warning", "critical"]
StateTone = Literal["critical", "warning", "info", "good", "calm"]
#: Drawn in the tone's colour: a filled octagon, triangle or disc, a tick, a ring.
Shape = Literal["octagon", "triangle", "disc", "tick", "ring"]
#: acknowledged: open, and in a person's hands. recovered: by itself. accepted: not recovered, its level counts as usual
#: since. discarded: by a rollback. ended: with the job, not cured.
IncidentStatus = Literal["open", "acknowledged", "recovered", "resolved", "accepted", "discarded", "ended"]
#: State of a run without an open incident. lost: its agents or its log are silent, and the cause is unknown.
#: unreadable: the server can't compute it. empty: registered, without data.
RunPhase = Literal[
    "starting", "restoring", "training", "checkpointing", "evaluating", "stalled", "lost", "unreadable", "crashed",
    "empty", "finished", "preempted", "stopped", "offline",
]  # fmt: skip

SHAPES: Mapping[StateTone, Shape] = {
    "critical": "octagon", "warning": "triangle", "info": "disc", "good": "tick", "calm": "ring",
}  # fmt: skip
#: Every run is exactly one of these. sick: its job is at work, or should be, and a critical or warning incident is
#: open, or it is stalled, lost or unreadable. empty: without data. over: finished, stopped or imported, with or without
#: open incidents.
RunCondition = Literal["sick", "crashed", "well", "empty", "over"]
#: Added to the order of an incident of an ended run: behind live ones, before healthy runs.
OVER_LATER = 10


class Appearance(msgspec.Struct, frozen=True):
    """Appearance of a state.

    Attributes:
        word: a word or two, no capital needed.
        tone: its colour. shape: its mark, the same without colour.
        order: rank in lists, lower first.
    """

    word: str
    tone: StateTone
    shape: Shape
    order: int


class NotBack(msgspec.Struct, frozen=True):
    """An alarm that ended because its level became the usual one, without recovery.

    Attributes:
        what: the metric, or the data set's loss: ``loss``, ``loss of code``.
        step: its onset.
    """

    what: str
    step: int


class ShownState(msgspec.Struct):
    """A run's state: its worst open incident, else its phase.

    Attributes:
        word: for its pill: the kind of the incident, or the phase.
        tone, shape: appearance.
        order: rank in lists of runs, lower first; of equals the latest ``since`` first.
        since: start, unix seconds, null for unknown.
        incident_id: the incident, null for a phase.
        phase: of the run, with or without open incidents.
        status: of the incident: open or acknowledged; null for a phase.
        condition: one of five, used in all counts.
        not_back: the newest alarm without recovery, where none is open: nothing is green then.
    """

    word: str = ""
    tone: StateTone = "calm"
    shape: Shape = "ring"
    order: int = 0
    since: float | None = None
    incident_id: str | None = None
    phase: RunPhase = "empty"
    status: IncidentStatus | None = None
    condition: RunCondition = "empty"
    not_back: NotBack | None = None


def _row(word: str, tone: StateTone, order: int) -> Appearance:
    return Appearance(word, tone, SHAPES[tone], order)


def _rows(severity: Severity, first: int) -> Mapping[IncidentStatus, Appearance]:
    return {
        "open": _row("open", severity, first),
        "acknowledged": _row("acknowledged", severity, first + 1),
        "accepted": _row("Accepted as the new level" if severity == "info" else "has not come back", "calm", 40),
        "recovered": _row("recovered", "calm", 41),
        "resolved": _row("resolved", "calm", 41),
        "discarded": _row("discarded by rollback", "calm", 42),
        "ended": _row("ended", "calm", 41),
    }


#: An acknowledged critical incident comes before an open warning: it still harms the job.
INCIDENT_APPEARANCES: Mapping[Severity, Mapping[IncidentStatus, Appearance]] = {
    "critical": _rows("critical", 0),
    "warning": _rows("warning", 3),
    "info": _rows("info", 6),
}

PHASE_APPEARANCES: Mapping[RunPhase, Appearance] = {
    "crashed": _row("crashed", "critical", 2),
    "stalled": _row("stalled", "critical", 2),
    "unreadable": _row("server error", "critical", 2),
    "lost": _row("lost", "warning", 5),
    "starting": _row("starting", "info", 20),
    "restoring": _row("restoring", "info", 20),
    "checkpointing": _row("checkpointing", "good", 20),
    "evaluating": _row("evaluating", "good", 20),
    "training": _row("training", "good", 20),
    "empty": _row("no data yet", "calm", 25),
    "preempted": _row("preempted", "info", 28),
    "finished": _row("finished", "calm", 30),
    "stopped": _row("stopped", "calm", 30),
    "offline": _row("offline", "calm", 30),
}

#: Condition by phase alone; other phases are well, or sick with an open incident.
_CONDITIONS: Mapping[RunPhase, RunCondition] = {
    "crashed": "crashed", "stalled": "sick", "unreadable": "sick", "lost": "sick", "empty": "empty",
    "finished": "over", "preempted": "over", "stopped": "over", "offline": "over",
}  # fmt: skip


def condition_of(phase: RunPhase, worst: Severity | None) -> RunCondition:
    """Return the condition of a run by its phase and its worst open incident."""
    return _CONDITIONS.get(phase, "well" if worst in (None, "info") else "sick")


def served() -> dict[str, object]:
    """Return the table for the pages."""
    return {"incidents": msgspec.to_builtins(INCIDENT_APPEARANCES), "phases": msgspec.to_builtins(PHASE_APPEARANCES)}
