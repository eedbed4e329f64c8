"""Declared and realised mixtures of the data."""

from __future__ import annotations

import msgspec

from stabilitybackend.schema.json_data import Number


class MixtureShare(msgspec.Struct, frozen=True):
    """A data set. Shares are 0 to 1.

    Attributes:
        metric: its logged metric, null before the first one.
        drawn_as: whether ``metric`` is this share itself, so that a chart may draw ``declared`` with it.
        declared: its target now; 0 of an undeclared one.
        realised: of the newest 128 rows. realised_since: of all rows since the declaration or the last resume.
        low, high: band of ``realised`` by chance; 0 and 1 for too few rows.
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
    """One declaration, valid from ``step`` on."""

    step: int
    shares: dict[str, float]


class MixtureCurve(msgspec.Struct):
    """A data set along the effective path; each list has a value for each bucket.

    Attributes:
        declared: null before the first declaration.
        realised: null without counts, "NaN" where a count was not finite or restarted.
        low, high: band of a bucket by chance; null for too few rows.
    """

    dataset: str
    declared: list[float | None]
    realised: list[Number | None]
    low: list[float | None]
    high: list[float | None]


class DiscardedShares(msgspec.Struct):
    """Realised shares in the discarded steps of a segment, in buckets of as many steps.

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
        first, last, rows: first and last step with a row, and rows of each bucket: 8 at least.
        discarded: the newest discarded branches, oldest first.
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
        measure: of the comparison: ``tokens``, ``samples`` or ``ratio`` (shares, in the job's unit); "" for nothing
            comparable.
        sets: in the order of the declaration. stages: all declarations, future ones too.
        note: why there is no comparison, "" otherwise.
        curves: along the effective path, null without ``buckets`` or without a comparison.
    """

    unit: str
    measure: str
    sets: list[MixtureShare]
    stages: list[MixtureStage]
    note: str = ""
    curves: MixtureCurves | None = None


class Mixture(msgspec.Struct):
    """Declared mixtures by unit; empty for none."""

    mixtures: list[DeclaredMixture]
