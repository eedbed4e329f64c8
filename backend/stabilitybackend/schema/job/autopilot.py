"""The autopilot of a run: policy, actions with reasons, and its present state."""

from __future__ import annotations

from typing import Literal

import msgspec

from stabilitybackend.schema.commands import State

#: Issuer of its commands.
ISSUER = "autopilot"

#: Entries of a run, newest ones: dozens of times as many as any limit looks back for.
MAX_ENTRIES = 1_000

PilotMode = Literal["off", "dry run", "on"]
PilotAction = Literal["roll_back", "gave_up"]
#: Nothing to do, waiting for a step, held back, its command under way, left to a person.
PilotPhase = Literal["off", "idle", "waits", "held", "under way", "handed over"]


class PilotEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An action, or one of a dry run. Stored together with the command, so that no restart doubles it.

    Attributes:
        entry_id: hash of the run, the head, the incident and the checkpoint; also the id of the command.
        gave_up: no command, an alert instead.
        time: unix seconds. step: newest step of the run then.
        head_key: of the segment that it was decided on.
        incident_id, kind, onset_step: of the incident.
        text: action and reason.
        to_step, segment: of the checkpoint.
    """

    entry_id: str
    action: PilotAction
    dry_run: bool
    time: float = 0.0
    step: int
    head_key: str
    incident_id: str
    kind: str
    onset_step: int
    text: str
    to_step: int | None = None
    segment: int | None = None
    skip_range: list[int] | None = None
    skip_batches: int | None = None
    lr_scale: float | None = None
    seed: int | None = None


class ShownEntry(PilotEntry, frozen=True, kw_only=True, omit_defaults=False):
    """An entry as shown.

    Attributes:
        command: state of its command; null for a dry run, for one that gave up, and for a forgotten command.
    """

    command: State | None = None


class PolicyChange(msgspec.Struct, frozen=True):
    """A new policy, or its end (``text`` is null then)."""

    text: str | None
    who: str
    time: float


class Autopilot(msgspec.Struct, kw_only=True):
    """The autopilot of a run.

    Attributes:
        policy: the YAML, null while it is off.
        set_by, set_at: author and time (unix seconds) of the last change; null for none.
        phase: its state. text: the same in a sentence or two, with the reason.
        until_step: the step it waits for, null for none.
        to_step: target of its rollback, null for none.
        incident_id: null for none.
        entries: newest first, 200 at most.
    """

    mode: PilotMode
    policy: str | None
    set_by: str | None
    set_at: float | None
    phase: PilotPhase
    text: str
    until_step: int | None
    to_step: int | None
    incident_id: str | None
    entries: list[ShownEntry]
