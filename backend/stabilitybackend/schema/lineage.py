"""The tree of segments of a run, its checkpoints, the rollback that it offers, and what people note at its steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import msgspec

#: Why a segment began. ``resume``: a launch that did not go back.
Cause = Literal["start", "command", "declared", "restart", "resume"]
#: From what a segment that nobody declared was inferred.
Inferred = Literal["", "start", "steps"]


class Branch(msgspec.Struct):
    """A segment as an order names it: its id, and what the ranks call it, which says the same after an import too."""

    segment: int
    segment_key: str


class Segment(msgspec.Struct):
    """An unbroken stretch of steps between two rollbacks or restarts.

    Attributes:
        key: what the ranks call it.
        fork_step: the step of the parent that it goes on from, null for the first segment.
        label: of its fork, ``R1`` a rollback, ``S1`` a restart from an earlier step; "" where the job did not go back.
        dead_after: points with a greater step are discarded (null: none; less than first_step: all of them).
        kept, discarded: steps between its first and its last one that count, and that a fork cut off.
        on_head_path: it is part of the effective timeline.
        changes: what else was ordered, or declared by the job. applied: what the job says that it changed.
        points: values stored in it.
        undone: a person undid this inferred segment.
        returns_to: the discarded segment whose state it went on from: a rollback was undone; null for any other.
        shared_step: of one that returns, up to where its path is the one that was left for it; null for any other.
        inferred: nobody declared or ordered it. ``start``: the first steps of a new process show it. ``steps``: those
            of a process that ran on, which went back. "": declared or ordered, or the first segment.
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
        cursor: the stream id up to which it is so; the live feed goes on from there.
    """

    head: int
    segments: list[Segment]
    cursor: str | None = None

    def inferred(self) -> list[Segment]:
        """Return the rollbacks and restarts that were inferred from steps alone, and that nobody took back.

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
    """A checkpoint that the job announced.

    Attributes:
        available: it is still there. dead: it is of a discarded branch.
        inside: null for one from before every open incident, and for a dead one.
        unfit: why nobody is offered it although it is there, half a sentence: a part is missing, it is still being
            written, or it loads with another number of ranks only. "": nothing is against it.
        kind: of its files, as the agent found them; null: no agent has looked.
        complete: all of its files are there and whole; null: not known. writing: they are still being written.
        unchecked: why it is not known whether all of it is there, half a sentence; "": it is, or nobody looked.
        size_bytes, files: all that lies there.
        world_size: ranks that wrote it; null: the layout does not tell.
        loads_with: how many ranks can load it: ``any`` number, or the ``same`` number; null: not known.
        took_s: seconds that the save held up training, of the slowest rank; null: no phase told it.
        unverified: nobody knows that a rank of the run wrote it, which is all that is against it: an order that names
            it has to say ``accept_unverified``.
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
        """Whether it can be gone back to."""
        return self.available and not self.dead and not self.unfit


def why_lost(available: bool, unfit: str) -> str:
    """Return what a checkpoint's step is followed by in a sentence about why it can't be used."""
    return f"can't be used, {unfit}" if available else "was deleted"


class Checkpoints(msgspec.Struct):
    """Newest first."""

    checkpoints: list[Checkpoint]


class OfferedCheckpoint(Checkpoint, frozen=True, kw_only=True):
    """A checkpoint that can be rolled back to.

    Attributes:
        skip_batches: how many batches to leave out when one goes back to it; null where nothing went wrong.
        where: ``20 steps before the onset``, "" where no incident is looked at.
    """

    skip_batches: int | None
    where: str


class OfferedBranch(msgspec.Struct, frozen=True):
    """A branch that was left and can be gone back to: a rollback is undone.

    Attributes:
        segment: what a command names as ``branch``. label: of the fork that left it, "" where none has one.
        alive_until: its last step that is on the effective timeline; below its first one where none is.
        left_at: its last step.
        to_step: of the newest checkpoint.
        text: what is to be known before one goes back there, a sentence or two.
        checkpoints: newest first, 40 at most; ``where`` tells where each lies from the first incident of the branch.
    """

    segment: int
    label: str
    alive_until: int
    left_at: int
    to_step: int
    text: str
    checkpoints: list[OfferedCheckpoint]


class Offer(msgspec.Struct, frozen=True):
    """The rollback that is suggested for a run now; every page and the command line show this one.

    Attributes:
        incident_id, onset_step: the incident that it goes back for, null for none.
        to_step: null where no checkpoint is from before the onset.
        skip_range: steps whose batches are left out, inclusive; it reaches to the newest step at least, so it grows
            with the run. skip_batches: how many that are for a job that can only leave out those right behind the
            checkpoint. null: the data are not the cause, or the job does not promise it.
        lr_scale: factor on the rate that the schedule of the restored checkpoint gives.
        cannot: what the job does not promise to change, and why; nothing of that is suggested.
        checkpoints: the newest 40 that can be used, and the suggested one.
        withheld: the newest 40 that are there and not offered: ``unfit`` says why.
        branches: discarded branches that have a checkpoint which can be gone back to, newest first, 20 at most.
        no_return: why none of them can be gone back to now, half a sentence; "" where they can.
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


#: Longest text of an annotation, characters: a note beside a curve, no report.
MAX_ANNOTATION_CHARS = 2_000


class Annotation(msgspec.Struct):
    """A note at the steps ``first_step..last_step``, both inclusive; the two are equal for one step.

    Attributes:
        metric: the chart that it was made on, null for all of them.
        segment: in which its first step was when it was made; it stays with that branch.
        author, created: whose key made it, and when, unix seconds.
        edited_by, edited: of the newest change, null where there was none.
        imported_by: whose key brought it in with an export; author and times are then as the export said.
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
    """One was made, changed, or deleted (``annotation`` null); also the live feed's message ``annotation``."""

    annotation_id: str
    annotation: Annotation | None


def _described(description: str, **limits: int) -> dict[str, object]:
    return {"description": description, "strict": True, **limits}


@dataclass(frozen=True)
class AnnotationRequest:
    """A new annotation, or what an old one becomes: its text is replaced, its place too where one is given."""

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
