"""Checks of each resume of a run: the new branch against the discarded one (docs/resumes.md)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

#: ``same_data``: the same batches at the same steps, other numerics. ``repeated``: earlier batches. ``skipped``:
#: batches of later steps.
ResumeVerdict = Literal[
    "identical", "same_data", "other_order", "other_data", "repeated", "skipped", "not_comparable"
]  # fmt: skip
#: State to restore at a resume, and the environment.
Part = Literal["weights", "optimizer", "learning_rate", "rng", "loader", "mixture", "environment"]
PARTS: tuple[Part, ...] = ("weights", "optimizer", "learning_rate", "rng", "loader", "mixture", "environment")
#: Detector of findings about a resume as a whole.
BY_RESUMES = "resumes"
#: Bit-equal losses in a row that prove a deterministic job: the first update can't spoil one or two.
EXACT_POINTS = 8
#: Kind of incident for a change that was requested or declared and did not happen.
ORDER_NOT_FOLLOWED = "order_not_followed"
#: Changes of a rollback besides the step.
Change = Literal["lr_scale", "seed", "skip_batches", "skip_range"]
Known = Literal["equal", "different", "not_seen"]
#: ``good``: unchanged, or as requested. ``differs``: an undeclared change. ``wrong``: for certain.
Grade = Literal["good", "differs", "wrong", "unknown"]


class PartSeen(msgspec.Struct, frozen=True):
    """Whether one part was restored, with the evidence; ``ordered``: a requested change."""

    part: Part
    known: Known
    why: str
    ordered: bool = False


class Compared(msgspec.Struct, frozen=True):
    """One metric on both branches.

    Attributes:
        points: common steps; equal: those with bit-equal values.
        first_difference: the first other step.
        difference: median of new minus old, null without finite ones.
        ratio: median of new over old, null for undefined.
    """

    metric: str
    points: int
    equal: int
    first_difference: int | None
    difference: float | None
    ratio: float | None


class Shift(msgspec.Struct, frozen=True):
    """Batches of other steps: the new branch's step s has the batch of step s + ``steps``.

    Attributes:
        r: correlation of the residuals, null for evidence by batch ids.
        sigmas: distance above that of unrelated intervals of this run.
        points: compared.
    """

    steps: int
    r: float | None
    sigmas: float | None
    points: int


class SkipCheck(msgspec.Struct, frozen=True):
    """Whether the batches to skip were skipped.

    Attributes:
        batches: to skip.
        known: ``equal``: they were skipped; ``different``: they were not.
    """

    batches: int
    known: Known
    why: str


class NotFollowed(msgspec.Struct, frozen=True):
    """A change of a rollback that did not happen: expected and actual, as text."""

    change: Change
    ordered: str
    observed: str


class Changed(msgspec.Struct, frozen=True):
    """One changed entry of the environment: a version, a device, a setting, or ``$`` and a variable."""

    name: str
    before: str
    since: str


#: Position of the loader after the resume, relative to that of the checkpoint: continued; at the beginning; further on;
#: before it; unordered.
Went = Literal["goes_on", "began_again", "skipped", "repeats", "elsewhere", "not_seen"]


class PositionCheck(msgspec.Struct, frozen=True):
    """The loader's position at the fork against the first one after it.

    Attributes:
        saved_step, saved: the newest position before the fork, null for none.
        step, position: the first one since.
        by: its distance from the expected one, in its own unit; null for unordered positions.
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
    """One resume: a rollback, a restart from an earlier step, or a process that continues the last one.

    Attributes:
        segment: of its steps. fork_step: the step whose state it started from.
        created: unix seconds; 0.0 for logs without times.
        settled: final.
        parts: all seven, in the order of ``PARTS``.
        loss: the compared loss, "" before there is one.
        points: steps on both branches; first_step, last_step: the first and the last of them.
        equal_points: bit-equal losses from the first step on.
        r, r_sigmas: correlation of the loss residuals at the same steps, and its distance from that of unrelated
            intervals in their spread; null for too few points.
        difference: median distance of the two losses. noise: of one batch to the next, the run's own, one sigma.
        shift: of batches of other steps.
        ids: compared batch ids, of these ``same_ids`` at their old step.
        declared: requested or declared changes.
        metrics: of both branches, differing ones first, the first 24.
        world_before, world_after: ranks.
        position: of the loader, as reported.
        environment: changes, the first 32; null without reports of both sides.
        not_followed: requested or declared changes that certainly did not happen.
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
        """Whether it proves a deterministic job: enough bit-equal losses."""
        return self.verdict == "identical" and self.points >= EXACT_POINTS

    @property
    def world_same(self) -> bool:
        return self.world_before in (0, self.world_after)

    @property
    def first_difference(self) -> int | None:
        """First common step with losses that are not bit-equal."""
        return next((one.first_difference for one in self.metrics if one.metric == self.loss), None)


class ResumeGrade(msgspec.Struct, frozen=True):
    """Grade of a resume, for its mark on the timeline."""

    verdict: ResumeVerdict
    grade: Grade
    text: str
    settled: bool


class Determinism(msgspec.Struct, frozen=True):
    """Whether this job is deterministic: ``equal`` after a bit-equal replay."""

    known: Known
    text: str


class Resumes(msgspec.Struct):
    """Newest first; ``left_out``: older ones that were dropped."""

    resumes: list[Resume]
    determinism: Determinism
    left_out: int = 0
