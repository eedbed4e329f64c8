"""Tree of segments of a run, checkpoints, the offered rollback, and notes at steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import msgspec

#: Origin of a segment. ``resume``: a launch that did not go back.
Cause = Literal["start", "command", "declared", "restart", "resume"]
#: Source of an undeclared segment.
Inferred = Literal["", "start", "steps"]


class Branch(msgspec.Struct):
    """A segment in a command: its id, and its key at the ranks, which is stable across imports."""

    segment: int
    segment_key: str


class Segment(msgspec.Struct):
    """An unbroken interval of steps between two rollbacks or restarts.

    Attributes:
        key: its name at the ranks.
        fork_step: the step of the parent it starts from, null for the first segment.
        label: of its fork, ``R1`` a rollback, ``S1`` a restart from an earlier step; "" for neither.
        dead_after: points with a greater step are discarded (null: none; less than first_step: all of them).
        kept, discarded: steps between its first and its last one that count, and those cut off by a fork.
        on_head_path: part of the effective timeline.
        changes: requested, or declared by the job. applied: changes reported by the job.
        points: values stored in it.
        undone: a person undid this inferred segment.
        returns_to: the discarded segment whose state it continues: a rollback was undone; null for any other.
        shared_step: of one that returns, the last step that its path shares with the one it left; null for any other.
        inferred: neither declared nor requested. ``start``: from the first steps of a new process. ``steps``: from a
            process that went back. "": declared or requested, or the first segment.
    """

    id: int
    key: str
    parent: int | None
    fork_step: int | None
    label: str
    first_step: int | None
    last_step: int | None
    dead_after: int | None
    kept: int
    discarded: int
    on_head_path: bool
    cause: Cause
    reason: str
    command_id: str | None
    issuer: str | None
    changes: dict[str, Any]
    applied: dict[str, Any] | None
    created: float
    ranks: list[int]
    points: int
    undone: bool
    returns_to: int | None = None
    shared_step: int | None = None
    inferred: Inferred = ""


class Segments(msgspec.Struct):
    """All segments of a run by id, and the id of the newest of its effective timeline.

    Attributes:
        cursor: stream id of this state; the live feed continues from there.
    """

    head: int
    segments: list[Segment]
    cursor: str | None = None

    def inferred(self) -> list[Segment]:
        """Return the rollbacks and restarts inferred from steps alone and not undone.

        Each went back to ``fork_step`` (null: to before the first step); its own steps begin at ``first_step``.
        """
        return [one for one in self.segments if one.inferred and one.label and not one.undone]


class SpoiledBy(msgspec.Struct, frozen=True):
    """The open incident at or after whose onset a checkpoint was saved: it may hold the damage already."""

    incident_id: str
    kind: str
    onset_step: int
    text: str


class Checkpoint(msgspec.Struct, frozen=True):
    """A checkpoint announced by the job.

    Attributes:
        available: still present. dead: of a discarded branch.
        inside: null for one from before every open incident, and for a dead one.
        unfit: why it is not offered although present, half a sentence: incomplete, still being written, or loadable
            with another number of ranks only. "": no reason.
        kind: of its files, found by the agent; null: no agent has looked.
        complete: all of its files are there and whole; null: unknown. writing: still being written.
        unchecked: why its completeness is unknown, half a sentence; "": complete, or no look yet.
        size_bytes, files: of all its files.
        world_size: ranks that wrote it; null: unknown by its layout.
        loads_with: ranks that can load it: ``any`` number, or the ``same`` number; null: unknown.
        took_s: delay of training by the save, of the slowest rank, seconds; null without a phase.
        unverified: its only fault is an unknown writer: a command has to set ``accept_unverified``.
    """

    step: int
    path: str
    segment: int
    time: float
    available: bool
    dead: bool
    inside: SpoiledBy | None = None
    unfit: str = ""
    kind: str | None = None
    complete: bool | None = None
    writing: bool = False
    size_bytes: int | None = None
    files: int | None = None
    world_size: int | None = None
    loads_with: Literal["any", "same"] | None = None
    took_s: float | None = None
    unchecked: str = ""
    unverified: bool = False

    @property
    def usable(self) -> bool:
        """Whether a rollback can go to it."""
        return self.available and not self.dead and not self.unfit


def why_lost(available: bool, unfit: str) -> str:
    """Return the reason why a checkpoint can't be used, as the rest of a sentence after its step."""
    return f"can't be used, {unfit}" if available else "was deleted"


class Checkpoints(msgspec.Struct):
    """Newest first."""

    checkpoints: list[Checkpoint]


class OfferedCheckpoint(Checkpoint, frozen=True, kw_only=True):
    """A checkpoint for a rollback.

    Attributes:
        skip_batches: batches to leave out; null for none.
        where: ``20 steps before the onset``, "" without an incident.
    """

    skip_batches: int | None
    where: str


class OfferedBranch(msgspec.Struct, frozen=True):
    """A discarded branch that a command can return to: it undoes a rollback.

    Attributes:
        segment: ``branch`` of the command. label: of the fork that left it, "" for none.
        alive_until: its last step on the effective timeline; below its first one for none.
        left_at: its last step.
        to_step: of the newest checkpoint.
        text: a warning, a sentence or two.
        checkpoints: newest first, 40 at most; ``where`` is relative to the first incident of the branch.
    """

    segment: int
    label: str
    alive_until: int
    left_at: int
    to_step: int
    text: str
    checkpoints: list[OfferedCheckpoint]


class Offer(msgspec.Struct, frozen=True):
    """The suggested rollback of a run, the same on every page and the command line.

    Attributes:
        incident_id, onset_step: of its incident, null for none.
        to_step: null where no checkpoint is from before the onset.
        skip_range: steps whose batches are left out, inclusive; it reaches to the newest step at least, so it grows
            with the run. skip_batches: their number for a job that can only leave out those right behind the
            checkpoint. null: the data are not the cause, or the job does not promise it.
        lr_scale: factor on the schedule of the restored checkpoint.
        cannot: changes that the job does not promise, with reasons; none of them is suggested.
        checkpoints: the newest 40 usable ones, and the suggested one.
        withheld: the newest 40 unusable ones: see ``unfit``.
        branches: discarded branches with a usable checkpoint, newest first, 20 at most.
        no_return: why none of them can be returned to now, half a sentence; "" for no reason.
        no_rollback: as of the ``Run``.
    """

    incident_id: str | None
    onset_step: int | None
    to_step: int | None
    skip_batches: int | None
    skip_range: list[int] | None
    lr_scale: float | None
    reseed: bool
    cannot: dict[str, str]
    text: str
    checkpoints: list[OfferedCheckpoint]
    withheld: list[Checkpoint] = []
    branches: list[OfferedBranch] = []
    no_return: str = ""
    no_rollback: str = ""


#: Longest text of an annotation, characters.
MAX_ANNOTATION_CHARS = 2_000


class Annotation(msgspec.Struct):
    """A note at the steps ``first_step..last_step``, both inclusive, equal for one step.

    Attributes:
        metric: its chart, null for all of them.
        segment: of its first step when it was made; it stays with that branch.
        author, created: name of the key, and unix seconds.
        edited_by, edited: of the newest change, null for none.
        imported_by: name of the key that imported it; author and times are then the export's.
        dead: its first step is off the effective timeline now.
    """

    annotation_id: str
    first_step: int
    last_step: int
    text: str
    metric: str | None
    segment: int
    author: str
    created: float
    edited_by: str | None = None
    edited: float | None = None
    imported_by: str | None = None
    dead: bool = False


class Annotations(msgspec.Struct):
    """By first step."""

    annotations: list[Annotation]


class ChangedAnnotation(msgspec.Struct):
    """A new, changed or deleted (``annotation`` null) one; also the live feed's message ``annotation``."""

    annotation_id: str
    annotation: Annotation | None


def _described(description: str, **limits: int) -> dict[str, object]:
    return {"description": description, "strict": True, **limits}


@dataclass(frozen=True)
class AnnotationRequest:
    """A new annotation, or a change of an old one: text, and the place where given."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    text: str = field(metadata=_described("what to note, 1 to 2,000 characters, plain text"))
    step: int | None = field(default=None, metadata=_described("the step that it is about"))
    first_step: int | None = field(default=None, metadata=_described("or the first step of a range, with last_step"))
    last_step: int | None = field(default=None, metadata=_described("last step of the range, inclusive"))
    metric: str | None = field(default=None, metadata=_described("the chart that it is about; left out: all"))
    segment: int | None = field(
        default=None, metadata=_described("the segment that it is about; left out: that of the step on the head's path")
    )
    author: str | None = field(
        default=None, metadata=_described("PUT of a new one, from an export: who made it", max_length=200)
    )
    created: float | None = field(
        default=None, metadata={"description": "PUT of a new one, from an export: when, unix seconds"}
    )
