"""What each resume of a run was like: the new branch held against the one that it left (docs/resumes.md)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

#: ``same_data``: the same batches at the same steps, other numerics. ``repeated``: batches that the model has had come
#: again. ``skipped``: the batches of later steps came.
ResumeVerdict = Literal[
    "identical", "same_data", "other_order", "other_data", "repeated", "skipped", "not_comparable"
]  # fmt: skip
#: What a resume has to bring back, and what it computes with.
Part = Literal["weights", "optimizer", "learning_rate", "rng", "loader", "mixture", "environment"]
PARTS: tuple[Part, ...] = ("weights", "optimizer", "learning_rate", "rng", "loader", "mixture", "environment")
#: What findings about a resume as a whole are by.
BY_RESUMES = "resumes"
#: Bit-equal losses in a row that show that a job is deterministic: one or two, the first update can't spoil.
EXACT_POINTS = 8
#: The kind of incident about what was ordered, or declared, and did not happen.
ORDER_NOT_FOLLOWED = "order_not_followed"
#: What an order may ask for beside the step.
Change = Literal["lr_scale", "seed", "skip_batches", "skip_range"]
Known = Literal["equal", "different", "not_seen"]
#: ``good``: as it was, or as it was ordered. ``differs``: something is another, nobody said so. ``wrong``: for certain.
Grade = Literal["good", "differs", "wrong", "unknown"]


class PartSeen(msgspec.Struct, frozen=True):
    """Whether one part came back as it was, and why that is known; ``ordered``: it was meant to change."""

    part: Part
    known: Known
    why: str
    ordered: bool = False


class Compared(msgspec.Struct, frozen=True):
    """One metric on both branches.

    Attributes:
        points: steps at which both logged it; equal: at how many of them it is bit-equal.
        first_difference: the first of these steps at which it is not.
        difference: median of new minus old, null where none is finite.
        ratio: median of new over old, null where that has no meaning.
    """

    metric: str
    points: int
    equal: int
    first_difference: int | None
    difference: float | None
    ratio: float | None


class Shift(msgspec.Struct, frozen=True):
    """Batches of other steps that came: the new branch's step s has the batch of step s + ``steps``.

    Attributes:
        r: correlation of the residuals, null where batch ids say it.
        sigmas: how far it lies above that of unrelated stretches of this run.
        points: that were compared.
    """

    steps: int
    r: float | None
    sigmas: float | None
    points: int


class SkipCheck(msgspec.Struct, frozen=True):
    """Whether the batches that were to be skipped were.

    Attributes:
        batches: that were to be.
        known: ``equal``: they were skipped; ``different``: they were not.
    """

    batches: int
    known: Known
    why: str


class NotFollowed(msgspec.Struct, frozen=True):
    """Something that was to change with a rollback and did not: in words what was ordered, and what came instead."""

    change: Change
    ordered: str
    observed: str


class Changed(msgspec.Struct, frozen=True):
    """One entry of the environment that is another since: a version, a device, a setting, or ``$`` and a variable."""

    name: str
    before: str
    since: str


#: Where the loader went on, by its own position: from that of the checkpoint; at the beginning; further on; before it;
#: at a place that can't be ordered.
Went = Literal["goes_on", "began_again", "skipped", "repeats", "elsewhere", "not_seen"]


class PositionCheck(msgspec.Struct, frozen=True):
    """The loader's position at the fork against the first one after it.

    Attributes:
        saved_step, saved: the newest position before the fork, null where none was reported.
        step, position: the first one since.
        by: how far that lies from where it was to be, in its own unit; null where it can't be counted.
        ordered: batches were to be left out, and so many were.
    """

    went: Went
    why: str
    saved_step: int | None = None
    saved: int | str | None = None
    step: int | None = None
    position: int | str | None = None
    by: int | None = None
    ordered: bool = False


class Resume(msgspec.Struct, frozen=True, kw_only=True):
    """One resume: a rollback, a restart from an earlier step, or a process that went on where the last one ended.

    Attributes:
        segment: that it began, or went on in. fork_step: the step whose state it started from.
        created: unix seconds; 0.0 where the log has no times.
        settled: nothing that comes will change it.
        parts: all seven, in the order of ``PARTS``.
        loss: the loss that was compared, "" before there is one.
        points: steps that both branches logged; first_step, last_step: the first and the last of them.
        equal_points: how many of them from the first on have a bit-equal loss.
        r, r_sigmas: correlation of the loss residuals at the same steps, and its distance from that of unrelated
            stretches in their spread; null for too few points.
        difference: median distance of the two losses. noise: of one batch to the next, the run's own, one sigma.
        shift: where the batches of other steps came.
        ids: batch ids that were compared, of these ``same_ids`` are at the step at which they were.
        declared: what was ordered or declared to change.
        metrics: of both branches, those that differ first, the first 24.
        world_before, world_after: ranks.
        position: where the loader went on by its own account.
        environment: what is another since, the first 32; null where one side reported nothing.
        not_followed: what was ordered or declared and certainly did not happen.
    """

    segment: int
    fork_step: int
    cause: str
    created: float
    verdict: ResumeVerdict
    grade: Grade
    text: str
    settled: bool
    parts: list[PartSeen]
    loss: str = ""
    points: int = 0
    first_step: int | None = None
    last_step: int | None = None
    equal_points: int = 0
    r: float | None = None
    r_sigmas: float | None = None
    difference: float | None = None
    noise: float | None = None
    shift: Shift | None = None
    skip: SkipCheck | None = None
    ids: int = 0
    same_ids: int = 0
    declared: dict[str, Any] = {}
    metrics: list[Compared] = []
    world_before: int = 0
    world_after: int = 0
    position: PositionCheck | None = None
    environment: list[Changed] | None = None
    not_followed: list[NotFollowed] = []

    @property
    def exact(self) -> bool:
        """Whether it shows that the job gives the same numbers again: enough of them, bit for bit."""
        return self.verdict == "identical" and self.points >= EXACT_POINTS

    @property
    def world_same(self) -> bool:
        """Whether it ran on as many ranks as before."""
        return self.world_before in (0, self.world_after)

    @property
    def first_difference(self) -> int | None:
        """The first common step at which the loss is not bit-equal."""
        return next((one.first_difference for one in self.metrics if one.metric == self.loss), None)


class ResumeGrade(msgspec.Struct, frozen=True):
    """What a resume was, in short: for its mark on the timeline."""

    verdict: ResumeVerdict
    grade: Grade
    text: str
    settled: bool


class Determinism(msgspec.Struct, frozen=True):
    """Whether this job gives the same numbers again: ``equal`` where a replay was bit-equal."""

    known: Known
    text: str


class Resumes(msgspec.Struct):
    """Newest first; ``left_out``: older ones that are no longer kept."""

    resumes: list[Resume]
    determinism: Determinism
    left_out: int = 0
