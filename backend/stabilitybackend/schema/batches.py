"""What a run's job handed over about its data, and what comes again: ``GET /api/v1/runs/{run_id}/batches``.

And the samples of the batches that it kept, as its ranks answered: ``GET .../batch_samples``.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from stabilitybackend.schema.json_data import Number

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


#: What shows that two runs had the same data: ``ids`` of batches, or the ``loss``.
SharedBy = Literal["ids", "loss"]


class SharedData(msgspec.Struct, frozen=True):
    """Data that another run of the project had.

    Attributes:
        first: step since which this run has it. other_step: the step of the other run that had the data of ``first``.
        other_run, other_name: id and name of that run.
        by: ``ids`` of batches, or the ``loss``. r: correlation, 1 for ids.
        learned: the weights have learned from it, as the run says that it goes on from the other one: an alarm.
        incident_id: of the incident that says so.
    """

    first: int
    other_run: str
    other_name: str
    other_step: int
    by: SharedBy
    r: float
    learned: bool
    incident_id: str


class Batches(msgspec.Struct, frozen=True):
    """What the job handed over about its data, and what comes again.

    Attributes:
        steps: with ids, on the effective path; last: the newest of them, null for none.
        repeated: of them, those whose batch had come before. partial: those that lack the ids of some ranks.
        of: what the ids are made of. parts, samples: of one step, as it is now.
        notes: what is missing or can't be compared, a sentence each.
        repeats: newest first. new_samples: over the run, empty where no samples were named.
        other_runs: that had the data of this one, newest first; also where no ids are handed over.
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
    other_runs: list[SharedData]


class BatchSample(msgspec.Struct, frozen=True):
    """One sample, as the job's own callable explained it; null where it says nothing.

    Attributes:
        loss: of this sample, with the weights that the job took it with.
        text: decoded; a long one is its beginning and its end, with a mark between.
        shape: of what is no text.
        tokens: how many the sample has; repeated: share of them that lies in five in a row that came before in it.
        discarded: the job went back to before its step since.
    """

    rank: int
    step: int
    id: str | None
    dataset: str | None
    loss: Number | None
    text: str | None
    shape: list[int] | None
    tokens: int | None
    repeated: float | None
    discarded: bool


class KeptBatch(msgspec.Struct, frozen=True):
    """What the ranks together say of one step.

    Attributes:
        ranks: that held its batch. samples: that were looked at; 0 where time ended before.
        loss: mean of the finite losses of samples. worst: the largest. nonfinite: losses that are NaN or infinite.
        repeated: the largest share of repeated tokens.
        whole: every sample was looked at.
        discarded: the job went back to before it since, so the step may be there twice.
    """

    step: int
    ranks: int
    samples: int
    loss: float | None
    worst: float | None
    nonfinite: int
    repeated: float | None
    whole: bool
    discarded: bool


class BatchAnswer(msgspec.Struct, frozen=True):
    """What the ranks answered to one order, without the samples.

    Attributes:
        request: id of the command. time: of the first answer, unix seconds.
        first, last: steps that the rings held; null while none is known.
        held: batches that a ring may hold.
        ranks: that answered. failed: rank -> what the job's callable raised.
        seconds: the longest time that a rank was held up.
        batches: by step.
    """

    request: str
    time: float
    first: int | None
    last: int | None
    held: int
    ranks: list[int]
    failed: dict[str, str]
    seconds: float
    batches: list[KeptBatch]


class BatchSamples(BatchAnswer, frozen=True):
    """What the ranks answered to one order.

    Attributes:
        samples: the worst first. left_out: samples that were sent and are not among them.
    """

    samples: list[BatchSample]
    left_out: int


class BatchAnswers(msgspec.Struct, frozen=True):
    """The newest answers of a run, newest first.

    Attributes:
        ranks: that keep batches now. held: how many each; on_spike: they are asked without anybody's order, too.
    """

    ranks: list[int]
    held: int
    on_spike: bool
    answers: list[BatchAnswer]
