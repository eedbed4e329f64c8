"""Ranks that keep their newest batches, and their answers about the samples in them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import msgspec
from msgspec import structs

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.lineage.changes import LineageEvent
from stabilitybackend.lineage.consumer import Consumer, Effects
from stabilitybackend.schema.batches import BatchAnswer, BatchAnswers, BatchSample, BatchSamples, KeptBatch
from stabilitybackend.schema.events import KeepsBatches, SampleSeen, SamplesShown, StepSeen

__all__ = ["MAX_RANKS", "MAX_SAMPLES", "KeptBatches"]

#: Answers kept per run, newest ones; each has some hundred samples of at most 2,000 characters.
MAX_ANSWERS = 8
#: Samples and batches of one answer: those of 64 ranks with a ring of 8.
MAX_SAMPLES = 128
MAX_BATCHES = 512
#: Ranks whose rings, and whose errors, are remembered.
MAX_RANKS = 65_536
MAX_ERRORS = 16


@dataclass(slots=True)
class _Batch:
    ranks: int = 0
    samples: int = 0
    loss_sum: float = 0.0
    with_loss: int = 0
    worst: float | None = None
    nonfinite: int = 0
    repeated: float | None = None
    whole: bool = True

    def add(self, seen: StepSeen) -> None:
        self.ranks += 1
        self.samples += seen.samples
        self.nonfinite += seen.nonfinite
        self.whole &= seen.whole and seen.samples > 0
        if seen.loss is not None:  # the mean of a rank counts by its samples
            count = max(1, seen.samples - seen.nonfinite)
            self.loss_sum += seen.loss * count
            self.with_loss += count
        self.worst = _larger(self.worst, seen.worst)
        self.repeated = _larger(self.repeated, seen.repeated)

    def shown(self, step: int, discarded: bool) -> KeptBatch:
        loss = self.loss_sum / self.with_loss if self.with_loss else None
        return KeptBatch(
            step, self.ranks, self.samples, loss, self.worst, self.nonfinite, self.repeated, self.whole, discarded
        )


@dataclass(slots=True)
class _Answer:
    """Answers of the ranks to one command."""

    request: str
    time: float
    held: int = 0
    seconds: float = 0.0
    ranks: set[int] = field(default_factory=set)
    failed: dict[int, str] = field(default_factory=dict)
    batches: dict[tuple[int, bool], _Batch] = field(default_factory=dict)
    samples: list[BatchSample] = field(default_factory=list)
    left_out: int = 0

    def take(self, rank: int, shown: SamplesShown) -> None:
        """Take the first answer of a rank."""
        if rank in self.ranks or len(self.ranks) >= MAX_RANKS:
            return
        self.ranks.add(rank)
        self.held = max(self.held, shown.last)
        self.seconds = max(self.seconds, shown.seconds)
        if shown.error and len(self.failed) < MAX_ERRORS:
            self.failed[rank] = shown.error
        discarded = set()
        for step in shown.steps:
            if step.discarded:
                discarded.add(step.step)
            if (step.step, step.discarded) in self.batches or len(self.batches) < MAX_BATCHES:
                self.batches.setdefault((step.step, step.discarded), _Batch()).add(step)
        every = [*self.samples, *(_sample(rank, one, one.step in discarded) for one in shown.samples)]
        self.samples = _fair(every)
        self.left_out += len(every) - len(self.samples)

    def shown(self) -> BatchAnswer:
        """Return its API form, without samples."""
        steps = [step for step, _ in self.batches]
        return BatchAnswer(
            request=self.request,
            time=self.time,
            first=min(steps, default=None),
            last=max(steps, default=None),
            held=self.held,
            ranks=sorted(self.ranks),
            failed={str(rank): why for rank, why in sorted(self.failed.items())},
            seconds=self.seconds,
            batches=[one.shown(step, discarded) for (step, discarded), one in sorted(self.batches.items())],
        )


class KeptBatches(Stateful, Consumer):
    """The rings of a run's ranks, and the newest answers from them."""

    events = frozenset({"keeps_batches", "batch_samples", "start"})

    #: Rank -> (batches that it may hold, whether it is asked without anybody's order).
    _rings: dict[int, tuple[int, bool]] = fresh(dict)
    _answers: dict[str, _Answer] = fresh(dict)

    def state(self) -> Mapping[str, Stateful]:
        return {"kept": self}

    def event(self, event: LineageEvent, effects: Effects) -> None:
        rank = event.source.rank
        if rank is None:
            return
        if event.type == "start":  # another process: the offers of the one before have ended
            self._rings.pop(rank, None)
            gone = [one for one in self._rings if one >= event.source.world_size]
            for one in gone:
                del self._rings[one]
        elif event.type == "keeps_batches":
            ring = msgspec.convert(event.data, KeepsBatches)
            if rank in self._rings or len(self._rings) < MAX_RANKS:
                self._rings[rank] = (ring.last, ring.on_spike)
        else:
            shown = msgspec.convert(event.data, SamplesShown)
            answer = self._answers.get(shown.command_id)
            if answer is None:
                answer = self._answers[shown.command_id] = _Answer(shown.command_id, event.time)
                while len(self._answers) > MAX_ANSWERS:
                    del self._answers[next(iter(self._answers))]
            answer.take(rank, shown)

    @property
    def ranks(self) -> int:
        """Ranks that keep batches."""
        return len(self._rings)

    def keeps(self, rank: int | None) -> bool:
        """Return whether a rank keeps batches."""
        return rank in self._rings

    @property
    def on_spike(self) -> bool:
        """Whether the job is to be asked after a spike."""
        return any(on_spike for _, on_spike in self._rings.values())

    def get(self, request: str) -> BatchSamples | None:
        """Return the answer to a command, None for none or a dropped one."""
        answer = self._answers.get(request)
        if answer is None:
            return None
        return BatchSamples(**structs.asdict(answer.shown()), samples=answer.samples, left_out=answer.left_out)

    def view(self) -> BatchAnswers:
        """Return the API form."""
        held = max((last for last, _ in self._rings.values()), default=0)
        answers = [answer.shown() for answer in reversed(self._answers.values())]
        return BatchAnswers(sorted(self._rings), held, self.on_spike, answers)


def _sample(rank: int, seen: SampleSeen, discarded: bool) -> BatchSample:
    return BatchSample(
        rank, seen.step, seen.id, seen.dataset, seen.loss, seen.text, seen.shape, seen.tokens, seen.repeated, discarded
    )


def _fair(samples: Sequence[BatchSample]) -> list[BatchSample]:
    """Return at most MAX_SAMPLES, the worst of each step before the second of any, then the worst of all first."""
    if len(samples) > MAX_SAMPLES:
        steps: dict[tuple[int, bool], list[BatchSample]] = {}
        for sample in _worst_first(samples):
            steps.setdefault((sample.step, sample.discarded), []).append(sample)
        in_turn = zip_longest(*steps.values())
        samples = [sample for of_steps in in_turn for sample in of_steps if sample is not None][:MAX_SAMPLES]
    return _worst_first(samples)


def _worst_first(samples: Sequence[BatchSample]) -> list[BatchSample]:
    """Return samples in turn by loss and by repetition, as the ranks sort them: repeated text may be learned soon."""
    places = {}
    by_loss = sorted(range(len(samples)), key=lambda at: -_height(samples[at]))
    for place, at in enumerate(by_loss):
        places[at] = 2 * place
    repeated = [(one.repeated, at) for at, one in enumerate(samples) if one.repeated is not None]
    for place, (_, at) in enumerate(sorted(repeated, key=lambda one: -one[0])):
        places[at] = min(places[at], 2 * place + 1)
    return [samples[at] for at in sorted(by_loss, key=places.__getitem__)]


def _height(sample: BatchSample) -> float:
    """Return the sort key of a loss: a non-finite one is the worst."""
    return math.inf if isinstance(sample.loss, str) else -math.inf if sample.loss is None else sample.loss


def _larger(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else max(one, other)
