"""What a run's job handed over about its data, and what comes again: ``GET /api/v1/runs/{run_id}/batches``."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Batches", "DatasetSamples", "NewSamples", "Overlap", "RepeatWhat", "Repeated"]

#: ``again``: known batches; ``samples``: known samples in other batches; ``same``: one batch at every step;
#: ``declared``, ``pass``: another epoch, as the job says, or as the order shows.
RepeatWhat = Literal["again", "samples", "same", "declared", "pass"]


class Repeated(msgspec.Struct, frozen=True):
    """Data that came again.

    Attributes:
        onset, newest: its first and its newest step; ended: the first step with new data, null while it lasts.
        earlier_step: the step at which the data of the onset came before.
        offset_steps: their distance, null where the samples came in another order.
        steps, samples, tokens: so many came again, null where that is not known.
        share: of the samples that came before, null where whole batches did.
        since: what had happened last, a clause.
        dataset: whose samples they are, "" for all, or where none is named.
    """

    what: RepeatWhat
    onset: int
    newest: int
    ended: int | None
    earlier_step: int
    offset_steps: int | None
    steps: int | None
    samples: int | None
    tokens: int | None
    share: float | None
    since: str
    dataset: str


class DatasetSamples(msgspec.Struct, frozen=True):
    """How often the samples of a data set were seen on the effective path.

    Attributes:
        name: of the data set, "" where none was named.
        seen, distinct: samples, and different ones among them; exact where ``one_in`` is 1, else estimated.
        once, twice, more: shares of the different ones.
        never: share of the data set that was not seen; null where its size was not given.
        one_in: one of so many samples was counted. error: of the shares, one standard deviation.
    """

    name: str
    seen: int
    distinct: int
    once: float
    twice: float
    more: float
    never: float | None
    one_in: int
    error: float


class NewSamples(msgspec.Struct, frozen=True):
    """Of the samples of the steps ``first..last`` the share that no earlier step had seen."""

    first: int
    last: int
    new: float


class Overlap(msgspec.Struct, frozen=True):
    """Different samples of two stretches of steps, and how many are in both; estimated as in ``DatasetSamples``."""

    first: tuple[int, int]
    second: tuple[int, int]
    in_first: int
    in_second: int
    in_both: int


class Batches(msgspec.Struct, frozen=True):
    """What the job handed over about its data, and what comes again.

    Attributes:
        steps: with ids, on the effective path; last: the newest of them, null for none.
        repeated: of them, those whose batch had come before. partial: those that lack the ids of some ranks.
        of: what the ids are made of. parts, samples: of one step, as it is now.
        notes: what is missing or can't be compared, a sentence each.
        repeats: newest first. new_samples: over the run, empty where no samples were named.
    """

    steps: int
    last: int | None
    repeated: int
    partial: int
    of: str
    parts: int
    samples: int
    notes: list[str]
    repeats: list[Repeated]
    datasets: list[DatasetSamples]
    new_samples: list[NewSamples]
    overlap: Overlap | None
