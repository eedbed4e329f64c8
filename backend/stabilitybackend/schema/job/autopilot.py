"""The autopilot of a run: its policy, what it did and why, and what it waits for now."""

from __future__ import annotations

from typing import Literal

import msgspec

from stabilitybackend.schema.commands import State

#: Issuer of its commands.
ISSUER = "autopilot"

#: Entries kept of a run, newest ones: dozens of times as many as any limit looks back for.
MAX_ENTRIES = 1_000

PilotMode = Literal["off", "dry run", "on"]
PilotAction = Literal["roll_back", "gave_up"]
#: What it does now: nothing to do, waits for a step, held back until something is over, its order is under way, left to
#: people.
PilotPhase = Literal["off", "idle", "waits", "held", "under way", "handed over"]


class PilotEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that it did, or would have done. It is stored together with the command, so that no restart doubles it.

    Attributes:
        entry_id: follows from the run, the head, the incident and the checkpoint; also the id of the command.
        gave_up: nothing is ordered: people are asked.
        time: unix seconds. step: newest step of the run then.
        head_key: of the segment that it was decided on.
        incident_id, kind, onset_step: what it is about.
        text: what and why.
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
    """An entry as it is shown.

    Attributes:
        command: state of its command; null for a dry run, where it gave up, and where the command is forgotten.
    """

    command: State | None = None


class PolicyChange(msgspec.Struct, frozen=True):
    """Somebody set the policy, or ended it (``text`` is null then)."""

    text: str | None
    who: str
    time: float


class Autopilot(msgspec.Struct, kw_only=True):
    """The autopilot of a run.

    Attributes:
        policy: the YAML as it was given, null while it is off.
        set_by, set_at: who set or ended it, and when, unix seconds; null where nobody ever did.
        phase: what it does now. text: the same in a sentence or two, with the reason.
        until_step: the step that it waits for, null for none.
        to_step: where it goes then, null where it goes nowhere.
        incident_id: what it is about, null for nothing.
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
