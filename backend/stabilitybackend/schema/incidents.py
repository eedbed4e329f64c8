"""An incident and its suggestion, as types; their JSON in Redis, in answers, in the live feed and in alerts.

Both are frozen: who changes one makes another one with ``msgspec.structs.replace``. What they hold is not changed in
place either, so that nobody needs a copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import orjson

from stabilitybackend.schema.evidence import CurveFacts, JudgedFacts, facts
from stabilitybackend.schema.kinds import About, IncidentKind, kind_of
from stabilitybackend.schema.reading import Misfit
from stabilitybackend.schema.severity import INCIDENT_APPEARANCES, Appearance, IncidentStatus, Severity
from stabilitybackend.schema.verdicts import Verdict

State = Literal["open", "recovered", "resolved"]
Action = Literal["roll_back", "wait", "none", "restart", "inspect"]
Fix = Literal["", "cause", "schedule", "mixture", "data position", "resume", "change"]
IncidentAction = Literal["acknowledge", "roll_back", "restart", "dump_stacks", "show_batches"]
#: Characters shown of what is no incident.
SHOWN_BYTES = 60
#: Name in the evidence -> field of ``RolledBack``.
_ROLLED_BACK = {
    "rolled_back_to": "step", "rolled_back_into": "segment", "rolled_back_because": "reason",
    "rolled_back_with": "changes",
}  # fmt: skip


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """What to do about an incident.

    Attributes:
        to_step: the checkpoint of a rollback; beside another action where one should go if it comes to that.
        skip_range: steps whose batches are left out, inclusive: from the first bad one on; null: the data are good.
        skip_batches: how many that are for a job that can only leave out those right behind the checkpoint.
        lr_scale: factor on the rate that the schedule of the restored checkpoint gives; 1 and null leave it.
        reseed: go on with a new seed.
        wait_steps, until_step: how long to wait first, steps from the onset on, and the step at which that is over.
        fix_first: what to correct before a rollback can help, "" for nothing. ``cause``: rollbacks did not help, and
            it is not known what does; ``to_step`` is where to go on from when it is corrected.
        leads: id of the incident of the run that this advice is for; each open one of the run has the same.
        checklist: lines to go through. source: whose experience it is.
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
    """The rollback that left an incident's onset behind.

    Attributes:
        step, segment: to which step it went, and into which segment.
        reason: of who ordered it, may be empty.
        changes: what else it was meant to change: lr_scale, seed, skip_batches. Free data of the job where it declared
            the rollback by itself.
    """

    step: int
    segment: int
    reason: str = ""
    changes: Mapping[str, Any] = {}


class _Reported(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one real event in the life of a run.

    Attributes:
        kind: ``GET /api/v1/incident_kinds`` lists them; ``alert``: what the job says with ``run.alert``.
        step: at which it was first seen; ``step - onset_step`` is the delay.
        evidence: what the detector says and what the server gathers beside it, JSON-able.
        acknowledged: when somebody did so. An ``alert`` is resolved by that.
        dead: the run went back to before its onset.
        version: rises with each change.
        train: id of the incident that began the train of alike ones to which this one belongs, its own where it is the
            first, "" where it was never an alarm. What only follows is shown with the first and alerts nobody.
        nth: its place in the train, 1 for the first; one that is graver begins a train and goes on counting.
        notify_at: it may heal by itself before, unix seconds; 0: receivers are notified at once.
        recurring: it came again often enough, healed or gone back for each time, that receivers are notified once more.
        caused_by: id of the incident that it follows from, "" where none is known.
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
    """One real event in the life of a run, as it is shown.

    Attributes:
        label, about: of its kind.
        alarm: false for what is only worth knowing: it is not counted as open and alerts nobody.
        status: what it is now, for people: a row of schema/severity.py. status_word: the same in words.
        since: since when, unix seconds: the last progress of what hangs, the first sign of a GPU, else when it opened.
        until_step: where what it is about ended; null: it goes on, as far as its branch does.
        actions: what people can do about it while the job is there.
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
    """One real event in the life of a run, as it is decided on. The last fields are shown in its evidence.

    Attributes:
        key: identity of the event within the run, "" for one that no later finding can concern.
        detector: who found it. now_step: newest step that it was judged at.
        closed_step: of one that is over, the step at which that was known.
        rolled_back: by what it became dead.
        no_rollback: of one that lasts: why nobody can order the job back, half a sentence; "" where somebody can.
    """

    key: str = ""
    detector: str = ""
    now_step: int
    closed_step: int | None = None
    rolled_back: RolledBack | None = None
    no_rollback: str = ""

    @property
    def alarm(self) -> bool:
        """True for one that people are to look at: graver than info, or raised by the job itself."""
        return self.severity != "info" or kind_of(self.kind).about == "user"

    @property
    def status(self) -> IncidentStatus:
        """What it is now, for people."""
        if self.state == "open":
            return "acknowledged" if self.acknowledged_by else "open"
        kind = kind_of(self.kind)
        if self.dead and not kind.of_machine:
            return "discarded"
        if self.state == "recovered":
            return "recovered"
        if kind.status == "stalled" and self.recovered_step is None:
            return "ended"  # no step came: its processes died, or somebody ended them
        curve = facts(self.evidence, CurveFacts)
        settled = kind.becomes_usual or curve.level_after is not None
        return "accepted" if settled and self.recovered_step is None and not curve.regained else "resolved"

    @property
    def appearance(self) -> Appearance:
        """How it is shown."""
        return INCIDENT_APPEARANCES[self.severity][self.status]

    @property
    def since(self) -> float:
        """Since when it lasts, unix seconds."""
        if not kind_of(self.kind).of_machine:  # of a mixture the evidence has the step there
            return self.opened
        return self.verdict.since or facts(self.evidence, JudgedFacts).since or self.opened

    @property
    def verdict(self) -> Verdict:
        """Its verdict; of one that has none an empty one, of no class and without suspects."""
        return facts(self.evidence, JudgedFacts).verdict or Verdict()


def shown(incident: Incident) -> ShownIncident:
    """Return an incident as the API has it."""
    kind = kind_of(incident.kind)
    return ShownIncident(
        **_stored(incident),
        since=incident.since,
        until_step=_until(incident, kind),
        actions=_actions(incident, kind),
    )


def _stored(incident: Incident) -> dict[str, Any]:
    """Return the fields of a stored incident, with the words of its kind for readers without the table of kinds."""
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
    # What a job says with run.alert is about a step, however late somebody closes it.
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
    """Return an incident as it is stored."""
    return msgspec.json.encode(_stored(incident))


def decoded(data: bytes) -> Incident:
    """Return a stored incident, also one of an older server.

    Raises:
        Misfit: it is none.
    """
    try:
        stored = orjson.loads(data)
        evidence = stored["evidence"]
        for name in ("key", "detector", "now_step", "closed_step", "no_rollback"):
            if name in evidence:
                stored[name] = evidence.pop(name)
        if "rolled_back_to" in evidence:
            stored["rolled_back"] = {
                field: evidence.pop(name) for name, field in _ROLLED_BACK.items() if name in evidence
            }
        return msgspec.convert(stored, Incident)
    except (KeyError, TypeError, AttributeError, ValueError, msgspec.ValidationError) as error:
        raise Misfit(f"{data[:SHOWN_BYTES]!r} came, expected an incident ({type(error).__name__}: {error})") from error
