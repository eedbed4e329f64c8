"""Which mixture of the data a job declared, and what it takes."""

from __future__ import annotations

import msgspec

from stabilitybackend.schema.json_data import Number


class MixtureShare(msgspec.Struct, frozen=True):
    """A data set. Shares are 0 to 1.

    Attributes:
        metric: the logged metric that it is measured by, null where none came yet.
        drawn_as: whether ``metric`` is this share itself, so that a chart may draw ``declared`` beside it.
        declared: its target now; 0 of one that is taken but was not declared.
        realised: of the newest 128 rows. realised_since: of all rows since the declaration or the last resume.
        low, high: the band in which ``realised`` lies by chance; 0 and 1 while too little is known.
        off: an incident about it is open.
    """

    dataset: str
    metric: str | None
    drawn_as: bool
    declared: float
    realised: Number | None
    realised_since: Number | None
    low: float
    high: float
    off: bool


class MixtureStage(msgspec.Struct, frozen=True):
    """One declaration: what holds from ``step`` on."""

    step: int
    shares: dict[str, float]


class MixtureCurve(msgspec.Struct):
    """A data set along the effective path; each list has a value for each bucket.

    Attributes:
        declared: null before the first declaration.
        realised: null where nothing was counted, "NaN" where a count was not finite or began again.
        low, high: the band in which a bucket of so many rows lies by chance; null while too little is known.
    """

    dataset: str
    declared: list[float | None]
    realised: list[Number | None]
    low: list[float | None]
    high: list[float | None]


class DiscardedShares(msgspec.Struct):
    """What the discarded steps of a segment took, in buckets of as many steps.

    Attributes:
        realised: data set -> as of the curve, a value for each bucket.
    """

    segment: int
    first: list[int]
    last: list[int]
    realised: dict[str, list[Number | None]]


class MixtureCurves(msgspec.Struct):
    """Shares over steps, in buckets of ``bucket_steps`` steps, cut at forks and at declarations.

    Attributes:
        first, last, rows: first and last step with a row of each bucket, and how many it has: 8 at least.
        discarded: the newest branches that were left, oldest first.
    """

    bucket_steps: int
    first: list[int]
    last: list[int]
    rows: list[int]
    sets: list[MixtureCurve]
    discarded: list[DiscardedShares]


class DeclaredMixture(msgspec.Struct):
    """The mixture of one unit.

    Attributes:
        unit: ``tokens`` or ``samples``.
        measure: what it is compared by: ``tokens``, ``samples`` or ``ratio`` (shares, whose unit the job knows); ""
            while nothing that was logged can be compared.
        sets: in the order of the declaration. stages: all declarations, those of the future too.
        note: why nothing is compared, "" where something is.
        curves: along the effective path, null where ``buckets`` is not asked for or nothing is compared.
    """

    unit: str
    measure: str
    sets: list[MixtureShare]
    stages: list[MixtureStage]
    note: str = ""
    curves: MixtureCurves | None = None


class Mixture(msgspec.Struct):
    """What was declared, by unit; empty where the job declared nothing."""

    mixtures: list[DeclaredMixture]
