"""The one table of how bad things are: severity and state of an incident, phase of a run -> word, tone, shape, order.

Lists, headers, banners, cards, marks, tab titles and messages ask it and hold none of their own; the pages get it with
their head. A shape goes with each tone, so that nothing is told by colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

Severity = Literal["info", "warning", "critical"]
StateTone = Literal["critical", "warning", "info", "good", "calm"]
#: Drawn in the tone's colour: a filled octagon, triangle or disc, a tick, a ring.
Shape = Literal["octagon", "triangle", "disc", "tick", "ring"]
#: What an incident is now. acknowledged: open, and somebody looks after it. recovered: it came back by itself.
#: accepted: it did not, and its level counts as the usual one since. discarded: a rollback left it behind. ended: the
#: job ended, and with it what was wrong: nothing was cured.
IncidentStatus = Literal["open", "acknowledged", "recovered", "resolved", "accepted", "discarded", "ended"]
#: What a run does where no incident is open. lost: its agents or its log are silent, and the cause is unknown.
#: unreadable: the server itself can't work it out. empty: registered, nothing has come yet.
RunPhase = Literal[
    "starting", "restoring", "training", "checkpointing", "evaluating", "stalled", "lost", "unreadable", "crashed",
    "empty", "finished", "preempted", "stopped", "offline",
]  # fmt: skip

SHAPES: Mapping[StateTone, Shape] = {
    "critical": "octagon", "warning": "triangle", "info": "disc", "good": "tick", "calm": "ring",
}  # fmt: skip
#: Every run is exactly one of these. sick: its job is at work, or should be, and a critical or warning incident is
#: open, or it is stalled, lost or unreadable. empty: nothing has come yet. over: finished, stopped or imported,
#: whatever is open.
RunCondition = Literal["sick", "crashed", "well", "empty", "over"]
#: Added to the order of an incident of a run that is over: live trouble comes first, healthy runs come later.
OVER_LATER = 10


class Appearance(msgspec.Struct, frozen=True):
    """How something is shown.

    Attributes:
        word: a word or two, no capital needed.
        tone: its colour. shape: its mark, which says the same without colour.
        order: place in lists, lower comes first.
    """

    word: str
    tone: StateTone
    shape: Shape
    order: int


class NotBack(msgspec.Struct, frozen=True):
    """An alarm that is over because its level became the usual one, and not because it came back.

    Attributes:
        what: the metric, or the data set's loss: ``loss``, ``loss of code``.
        step: its onset.
    """

    what: str
    step: int


class ShownState(msgspec.Struct):
    """What a run's state is: its worst open incident, else its phase.

    Attributes:
        word: for its pill: the kind of the incident, or the phase.
        tone, shape: how it is drawn.
        order: place in lists of runs, lower comes first; of equals the latest ``since`` first.
        since: since when, unix seconds, null where nothing says so.
        incident_id: the incident, null where it is the phase.
        phase: what the run does or did, whatever is open.
        status: of the incident: open or acknowledged; null where it is the phase.
        condition: the one of five that it is counted as, everywhere.
        not_back: the newest alarm whose metric has not come back, where none is open: nothing is green then.
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


#: An acknowledged critical incident comes before an open warning: somebody looks after it, and the job is still ill.
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

#: What a phase alone makes of a run; where none is named it is well, or sick while something is open.
_CONDITIONS: Mapping[RunPhase, RunCondition] = {
    "crashed": "crashed", "stalled": "sick", "unreadable": "sick", "lost": "sick", "empty": "empty",
    "finished": "over", "preempted": "over", "stopped": "over", "offline": "over",
}  # fmt: skip


def condition_of(phase: RunPhase, worst: Severity | None) -> RunCondition:
    """Return what a run is counted as: by what it does, and by its worst open incident."""
    return _CONDITIONS.get(phase, "well" if worst in (None, "info") else "sick")


def served() -> dict[str, object]:
    """Return the table as the pages get it."""
    return {"incidents": msgspec.to_builtins(INCIDENT_APPEARANCES), "phases": msgspec.to_builtins(PHASE_APPEARANCES)}
