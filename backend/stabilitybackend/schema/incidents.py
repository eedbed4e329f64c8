"""Incident and suggestion; their JSON in Redis, answers, live feed and alerts.

Both are frozen and so are their contents: change with ``msgspec.structs.replace``, no copies needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from stabilitybackend.schema.evidence import CurveFacts, JudgedFacts, facts
from stabilitybackend.schema.kinds import About, IncidentKind, kind_of
from stabilitybackend.schema.reading import Misfit
from stabilitybackend.schema.severity import INCIDENT_APPEARANCES, Appearance, IncidentStatus, Severity
from stabilitybackend.schema.verdicts import Verdict

State = Literal["open", "recovered", "resolved"]
Action = Literal["roll_back", "wait", "none", "restart", "inspect"]
Fix = Literal["", "cause", "schedule", "mixture", "data position", "resume", "change"]
IncidentAction = Literal["acknowledge", "roll_back", "restart", "dump_stacks", "show_batches"]
#: Longest quote of invalid data, characters.
SHOWN_BYTES = 60
#: Name in the evidence -> field of ``RolledBack``.
_ROLLED_BACK = {
    "rolled_back_to": "step", "rolled_back_into": "segment", "rolled_back_because": "reason",
    "rolled_back_with": "changes",
}  # fmt: skip


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """Advice about an incident.

    Attributes:
        to_step: checkpoint of a rollback; of another action, the one for a later rollback.
        skip_range: steps whose batches are left out, inclusive, from the first bad one on; null: the data are good.
        skip_batches: their number for a job that can only leave out those right behind the checkpoint.
        lr_scale: factor on the schedule of the restored checkpoint; 1 and null leave it.
        reseed: continue with a new seed.
        wait_steps, until_step: wait before an action, steps from the onset, and its last step.
        fix_first: correction needed before a rollback, "" for none. ``cause``: rollbacks did not help and the cause is
            unknown; ``to_step`` is the checkpoint for after the correction.
        leads: id of the primary incident of the run; all open ones have the same advice.
        checklist: lines to go through. source: of the experience behind it.
    """

    action: Action
    to_step: int | None = None
    skip_batches: int | None = None
    skip_range: list[int] | None = None
    lr_scale: float | None = None
    reseed: bool = False
    wait_steps: int | None = None
    until_step: int | None = None
    fix_first: Fix = ""
    leads: str = ""
    checklist: list[str] = []
    text: str = ""
    source: str = ""


class RolledBack(msgspec.Struct, frozen=True):
    """The rollback that discarded an incident's onset.

    Attributes:
        step, segment: its fork step, and the new segment.
        reason: of its issuer, may be empty.
        changes: requested along with it: lr_scale, seed, skip_batches; free data of a rollback declared by the job.
    """

    step: int
    segment: int
    reason: str = ""
    changes: Mapping[str, Any] = {}


class _Reported(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of one real event in the life of a run.

    Attributes:
        kind: see ``GET /api/v1/incident_kinds``; ``alert``: from ``run.alert``.
        step: of its detection; ``step - onset_step`` is the delay.
        evidence: of the detector and gathered by the server, JSON-able.
        acknowledged: time; it resolves an ``alert``.
        dead: a rollback discarded its onset.
        version: rises with each change.
        train: id of the first of a train of similar incidents, its own for the first, "" without an alarm. Later ones
            are shown with the first and notify no receiver.
        nth: number in the train, from 1; a graver one begins a train and continues the count.
        notify_at: it may heal before, unix seconds; 0: receivers are notified immediately.
        recurring: repeated often enough, healed or rolled back each time, to notify receivers once more.
        caused_by: id of its cause, "" for none.
    """

    incident_id: str
    run_id: str
    segment: int
    opened: float
    updated: float
    resolved: float | None = None
    acknowledged_by: str | None = None
    acknowledged: float | None = None
    dead: bool = False
    version: int
    train: str = ""
    nth: int = 1
    notify_at: float = 0.0
    recurring: bool = False
    caused_by: str = ""
    evidence: Mapping[str, Any]
    kind: str
    severity: Severity
    state: State
    title: str
    text: str
    metric: str | None = None
    dataset: str | None = None
    rank: int | None = None
    node: str | None = None
    onset_step: int
    step: int
    peak_step: int | None = None
    recovered_step: int | None = None
    recovery: Literal["fast", "slow", "none", "pending"] | None = None
    score: float = 0.0
    suggestion: Suggestion | None = None


class ShownIncident(_Reported, frozen=True, kw_only=True):
    """One real event in the life of a run, as shown.

    Attributes:
        label, about: of its kind.
        alarm: false for a note: neither counted as open nor sent.
        status: a row of schema/severity.py. status_word: its label.
        since: start, unix seconds: last progress of a hang, first sign of a GPU fault, else when it opened.
        until_step: its last step; null: up to the end of its branch.
        actions: possible while the job is there.
    """

    label: str
    about: About
    alarm: bool
    status: IncidentStatus
    status_word: str
    since: float
    until_step: int | None
    actions: list[IncidentAction]


class Incident(_Reported, frozen=True, kw_only=True):
    """One real event in the life of a run, as decided on. The last fields are shown in its evidence.

    Attributes:
        key: identity of the event within the run, "" for one that no later finding can concern.
        detector: its source. now_step: newest step judged.
        closed_step: step of its end.
        rolled_back: the rollback that made it dead.
        no_rollback: of an open one, why the job cannot be rolled back, half a sentence; "" for no reason.
    """

    key: str = ""
    detector: str = ""
    now_step: int
    closed_step: int | None = None
    rolled_back: RolledBack | None = None
    no_rollback: str = ""

    @property
    def alarm(self) -> bool:
        """Whether it needs a look: graver than info, or raised by the job itself."""
        return self.severity != "info" or kind_of(self.kind).about == "user"

    @property
    def status(self) -> IncidentStatus:
        if self.state == "open":
            return "acknowledged" if self.acknowledged_by else "open"
        kind = kind_of(self.kind)
        if self.dead and not kind.of_machine:
            return "discarded"
        if self.state == "recovered":
            return "recovered"
        if kind.status == "stalled" and self.recovered_step is None:
            return "ended"  # without a further step: its processes died, or were ended
        curve = facts(self.evidence, CurveFacts)
        settled = kind.becomes_usual or curve.level_after is not None
        return "accepted" if settled and self.recovered_step is None and not curve.regained else "resolved"

    @property
    def appearance(self) -> Appearance:
        return INCIDENT_APPEARANCES[self.severity][self.status]

    @property
    def since(self) -> float:
        """Start, unix seconds."""
        if not kind_of(self.kind).of_machine:  # of a mixture the evidence has the step there
            return self.opened
        return self.verdict.since or facts(self.evidence, JudgedFacts).since or self.opened

    @property
    def verdict(self) -> Verdict:
        """Its verdict; an empty one, without class and suspects, for none."""
        return facts(self.evidence, JudgedFacts).verdict or Verdict()


def shown(incident: Incident) -> ShownIncident:
    """Return the API's form of an incident."""
    kind = kind_of(incident.kind)
    return ShownIncident(
        **_stored(incident),
        since=incident.since,
        until_step=_until(incident, kind),
        actions=_actions(incident, kind),
    )


def _stored(incident: Incident) -> dict[str, Any]:
    """Return the fields of a stored incident, with labels of its kind for readers without the table."""
    kind = kind_of(incident.kind)
    own: dict[str, Any] = {"key": incident.key, "detector": incident.detector, "now_step": incident.now_step}
    if incident.closed_step is not None:
        own["closed_step"] = incident.closed_step
    if incident.no_rollback:
        own["no_rollback"] = incident.no_rollback
    if incident.rolled_back is not None:
        own |= {name: getattr(incident.rolled_back, field) for name, field in _ROLLED_BACK.items()}
        if not incident.rolled_back.changes:
            del own["rolled_back_with"]
    shared = {name: getattr(incident, name) for name in _Reported.__struct_fields__}
    shared["evidence"] = {**incident.evidence, **own}
    return shared | {
        "label": kind.label, "about": kind.about, "alarm": incident.alarm, "status": incident.status,
        "status_word": incident.appearance.word,
    }  # fmt: skip


def _until(incident: Incident, kind: IncidentKind) -> int | None:
    # A run.alert is about a step, however late it is closed.
    if kind.about == "user":
        return incident.onset_step
    if incident.recovered_step is None and incident.state == "resolved" and not incident.dead:
        return max(incident.step, incident.peak_step or 0)
    return incident.recovered_step


def _actions(incident: Incident, kind: IncidentKind) -> list[IncidentAction]:
    opened = incident.state == "open"
    live = opened and not incident.dead
    advised = incident.suggestion is not None and incident.suggestion.action == "roll_back"
    by_agent = kind.of_machine and kind.name != "quiet_log"  # of a log that is followed no agent is there
    offered: dict[IncidentAction, bool] = {
        "acknowledge": opened and not incident.acknowledged_by,
        "roll_back": live and not incident.no_rollback and (advised or not kind.of_machine),
        "restart": live and by_agent,
        "dump_stacks": by_agent,
        "show_batches": not kind.of_machine,
    }
    return [action for action, there in offered.items() if there]


def as_json(incident: Incident) -> dict[str, Any]:
    """Return an incident as a backtest prints it."""
    found: dict[str, Any] = msgspec.to_builtins(_stored(incident))
    return found


def encoded(incident: Incident) -> bytes:
    """Return the stored form of an incident."""
    return msgspec.json.encode(_stored(incident))


def decoded(data: bytes) -> Incident:
    """Return a stored incident.

    Raises:
        Misfit: it is none.
    """
    try:
        stored = msgspec.json.decode(data)
        evidence = stored["evidence"]
        for name in ("key", "detector", "now_step", "closed_step", "no_rollback"):
            if name in evidence:
                stored[name] = evidence.pop(name)
        if "rolled_back_to" in evidence:
            stored["rolled_back"] = {
                field: evidence.pop(name) for name, field in _ROLLED_BACK.items() if name in evidence
            }
        return msgspec.convert(stored, Incident)
    except (KeyError, TypeError, AttributeError, ValueError, msgspec.MsgspecError) as error:
        raise Misfit(f"{data[:SHOWN_BYTES]!r} came, expected an incident ({type(error).__name__}: {error})") from error
