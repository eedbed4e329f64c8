"""Batches of a run, repeats among them, and samples kept by ranks: ``GET .../batches``, ``GET .../batch_samples``."""

from __future__ import annotations

from typing import Literal

import msgspec

from stabilitybackend.schema.json_data import Number

#: ``again``: earlier batches; ``samples``: earlier samples in other batches; ``same``: one batch at every step;
#: ``declared``, ``pass``: another epoch, by the job or by the order.
RepeatWhat = Literal["again", "samples", "same", "declared", "pass"]


class Repeated(msgspec.Struct, frozen=True):
    """Repeated data.

    Attributes:
        onset, newest: first and newest step. ended: first step with new data, null while it lasts.
        earlier_step: earlier step of the onset's data.
        offset_steps: distance of the two, null for samples in another order.
        steps, samples, tokens: repeated, null for unknown.
        share: repeated share of the samples, null for whole batches.
        since: the last thing that happened before, a clause.
        dataset: of the samples, "" for all or unnamed.
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
    """Passes over the samples of a data set on the effective path.

    Attributes:
        name: of the data set, "" for unnamed.
        seen, distinct: samples, and different ones; exact where ``one_in`` is 1, else estimated.
        once, twice, more: shares of the different ones.
        never: unseen share of the data set; null without its size.
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
    """Share of the samples of ``first..last`` that no earlier step saw."""

    first: int
    last: int
    new: float


class SampleOverlap(msgspec.Struct, frozen=True):
    """Different samples of two intervals of steps, and those in both; estimated as in ``DatasetSamples``."""

    first: tuple[int, int]
    second: tuple[int, int]
    in_first: int
    in_second: int
    in_both: int


#: Evidence that two runs had the same data: ``ids`` of batches, or the ``loss``.
SharedBy = Literal["ids", "loss"]


class SharedData(msgspec.Struct, frozen=True):
    """Data that another run of the project had too.

    Attributes:
        first: first step with it. other_step: step of the other run with the data of ``first``.
        other_run, other_name: id and name of that run.
        by: ``ids`` of batches, or the ``loss``. r: correlation, 1 for ids.
        learned: the weights learned from it, as the run declares to continue the other one: an alarm.
        incident_id: of its incident.
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
    """Data of a run, and repeats.

    Attributes:
        steps: with ids, on the effective path; last: the newest of them, null for none.
        repeated: steps with an earlier batch. partial: steps without the ids of some ranks.
        of: content of the ids. parts, samples: of one step, now.
        notes: missing or incomparable data, a sentence each.
        repeats: newest first. new_samples: over the run, empty without named samples.
        other_runs: with the data of this one, newest first; also for runs without ids.
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
    overlap: SampleOverlap | None
    other_runs: list[SharedData]


class BatchSample(msgspec.Struct, frozen=True):
    """One sample, explained by the job's callable; null for no answer.

    Attributes:
        loss: of this sample, with the weights of that moment.
        text: decoded; beginning and end of a long one, with a mark between.
        shape: of anything but text.
        tokens: of the sample; repeated: share of them in runs of five that occurred before in it.
        discarded: a rollback discarded its step.
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
    """Answers of all ranks about one step.

    Attributes:
        ranks: with its batch. samples: inspected; 0 where time ran out.
        loss: mean of the finite losses of samples. worst: the largest. nonfinite: losses that are NaN or infinite.
        repeated: the largest share of repeated tokens.
        whole: every sample was inspected.
        discarded: a rollback discarded the step, so it may occur twice.
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
    """Answers of the ranks to one command, without samples.

    Attributes:
        request: id of the command. time: of the first answer, unix seconds.
        first, last: steps in the rings; null before an answer.
        held: capacity of a ring, batches.
        ranks: that answered. failed: rank -> error of the job's callable.
        seconds: longest delay of a rank.
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
    """Answers of the ranks to one command.

    Attributes:
        samples: the worst first. left_out: samples sent beyond these.
    """

    samples: list[BatchSample]
    left_out: int


class BatchAnswers(msgspec.Struct, frozen=True):
    """The newest answers of a run, newest first.

    Attributes:
        ranks: that keep batches now. held: batches each; on_spike: asked without a person, too.
    """

    ranks: list[int]
    held: int
    on_spike: bool
    answers: list[BatchAnswer]
