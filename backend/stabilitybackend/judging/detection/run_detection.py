"""Feeds the detectors of one run: rows of the right rank, in the right order, with forks, and again on demand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, takewhile
from operator import itemgetter

import numpy as np

from stabilitybackend.base.name_sets import key_of
from stabilitybackend.base.saving import SavedPart, Unfit, part_of, restore
from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.judging.detection.naming.mixture_schedule import MixtureSchedule
from stabilitybackend.judging.detection.naming.watched_names import WatchedNames
from stabilitybackend.judging.detection.other_metrics import OtherMetrics
from stabilitybackend.judging.detectors.curve.detector import CurvesDetector
from stabilitybackend.judging.detectors.engine.bank import BEFORE_FIRST_STEP, DetectorBank
from stabilitybackend.judging.detectors.engine.base import Detector, Finding, Mark, Row, State
from stabilitybackend.judging.detectors.engine.long_past import LongPast
from stabilitybackend.judging.detectors.engine.row_blocks import RowBlock
from stabilitybackend.judging.detectors.registry import DETECTORS, Settings
from stabilitybackend.judging.detectors.repeat_data import RepeatDataDetector
from stabilitybackend.lineage.batch import Batch, Placed, Source, Table
from stabilitybackend.lineage.changes import Forked, LineageEvent
from stabilitybackend.lineage.consumer import Consumer, Effects
from stabilitybackend.lineage.lineage import Lineage
from stabilitybackend.lineage.returns import left_by
from stabilitybackend.lineage.tree import FoldedSegment, PathRange
from stabilitybackend.schema.metric_roles import (
    LOSS,
    LR,
    dataset_of,
    is_of_evaluation,
    is_of_reward,
    likely_role_of,
    loss_rank,
    may_rise,
    mixture_of,
    of_machine,
    role_of,
)
from stabilitybackend.storage.points.points import Points
from stabilitybackend.storage.points.store import RunStore
from stabilitybackend.storage.query import query

#: Metrics of the primary rank, the one that is shown and judged.
PRIMARY_METRICS = ("loss", "grad_norm", "lr")
#: Points of the former branch in a fork's mark, for each metric: the steps soon trained again.
DISCARDED_POINTS = 512
#: Losses that a fork's mark holds.
DISCARDED_METRICS = 32
#: Resumes without going back that are remembered, newest ones: they have no segment.
MAX_RESUMES = 64
#: Steps that are judged again at most when a metric turns out to be another one: some ten thousand rows, half a second.
MAX_AGAIN_STEPS = 20_000
#: Names that are looked at before others may be served.
NAMES_A_SLICE = 64

__all__ = ["PRIMARY_METRICS", "Found", "Judge"]

#: Findings of a detector, with the log time of their row, unix seconds.
Found = tuple[float, Finding]


class Judge(Stateful, Consumer):
    """The detectors of one run, fed with the effective rows of one rank in the order of their steps.

    A fork's mark is given right before the first row of the new segment: by then all rows that the primary rank had
    logged on the former branch have been stored, whichever rank reported the fork first.

    """

    reads = (Lineage, Points)
    events = frozenset({"names", "mixture"})

    #: The rank that is judged, None before any rank logged one of PRIMARY_METRICS.
    primary: int | None = None
    #: Whether a name decided that: the first that logs anything of a training is judged until another one logs a loss.
    primary_known: bool = False
    #: Segments whose mark the detectors have got, and the one whose rows they saw last.
    _marked: set[int] = fresh(lambda: {0})
    _fed_segment: int = 0
    _source: str | None = None
    _resumes: list[Mark] = fresh(list)
    #: Meaning of each metric.
    names: WatchedNames = fresh(WatchedNames)
    #: Metrics that no detector looks at.
    others: OtherMetrics = fresh(OtherMetrics)
    #: Which mixture is declared for which steps.
    mixtures: MixtureSchedule = fresh(MixtureSchedule)
    #: The lowest rank that declared names: declarations of the job's other ranks are equal.
    _names_rank: int | None = None

    def __init__(self, lineage: Lineage, points: Points) -> None:
        super().__init__()
        self.fold, self._points = lineage.fold, points
        made = {name: make() for name, make in DETECTORS.items()}
        of_primary, of_ranks, side_by_side = (
            {name: make for name, make in DETECTORS.items() if (made[name].every_rank, made[name].side_by_side) == feed}
            for feed in ((False, False), (True, False), (True, True))
        )
        self._bank = DetectorBank(of_primary)
        self._ranks = DetectorBank(of_ranks, in_order=False)
        self._side_by_side = DetectorBank(side_by_side, in_order=False)
        #: The newest set of metrics that decides nothing on its rank.
        self._silent: tuple[str, ...] = ()
        #: Detectors of the primary rank that have to judge the past again -> why (``judge_again``).
        self.unfit: dict[str, str] = {}
        #: Found in rows that ``parts`` has judged and ``rows`` has not been handed yet: (place in the batch, log time,
        #: finding) in order, and how many rows of that batch were handed.
        self._ahead: list[tuple[int, float, Finding]] | None = None
        self._handed = 0

    @property
    def store(self) -> RunStore:
        """The run's points."""
        return self._points.store

    def detector(self, name: str) -> Detector | None:
        """Return the present detector of the primary rank, None where there is none of that name."""
        return self._bank.detectors.get(name)

    @property
    def past(self) -> LongPast:
        """New bytes of each loss of the effective path, a byte a point: a copy."""
        return self._bank.past(RepeatDataDetector.name)

    @property
    def past_points(self) -> int:
        """How many losses ``past`` has taken; without a copy."""
        detector = self._bank.detectors.get(RepeatDataDetector.name)
        return 0 if detector is None else detector.past.points

    @property
    def failures(self) -> dict[str, int]:
        """Exceptions by detector name."""
        return {**self._bank.failures, **self._ranks.failures, **self._side_by_side.failures}

    @property
    def followed(self) -> list[str]:
        """Metrics that no detector has a role for, and that leave a note when they leave their own past."""
        return [metric for metric in self.others.metrics if self._is_other(metric)]

    @property
    def newest_step(self) -> int:
        """The newest step of the effective path that was judged."""
        return self._bank.last_step

    def configure(self, settings: Settings) -> None:
        """Set the parameters of the detectors from here on, those not named to their default.

        Raises:
            SettingError: a setting is out of range, or unknown to its detector.
        """
        self._bank.configure(settings)
        self._ranks.configure(settings)
        self._side_by_side.configure(settings)

    def classify_names(self, names: Iterable[str]) -> Generator[None, None, None]:
        """Classify by names alone, in slices: the row that brings thousands of them is judged in one go."""
        for at, name in enumerate(names):
            if at % NAMES_A_SLICE == 0:
                yield
            for found_out in (loss_rank, mixture_of, is_of_evaluation, self._bank.wants, self._ranks.wants):
                found_out(name)

    # --- rows ----------------------------------------------------------------------------------------------------

    def needs_rows_apart(self, batch: Batch) -> bool:
        return self._is_judged(batch) and not self._is_steady(batch)

    def parts(self, batch: Batch) -> Iterator[Batch]:
        """Yield the rows of a batch in parts of which only the last row may show anything: hand each to ``rows``.

        So a finding is reported with exactly the rows up to its own, however rows were put together.
        """
        if batch.count == 1 or not self._is_judged(batch):
            yield batch
            return
        self._ahead, self._handed = self._judge_ahead(batch), 0
        try:
            rest, at = [batch], 0
            for cut in sorted({place + 1 for place, _, _ in self._ahead}):
                while rest and at < cut:
                    before, after = rest[0].split(cut - at)
                    rest = after + rest[1:]
                    for part in before:
                        at += part.count
                        yield part
            yield from rest
        finally:
            self._ahead = None

    def rows(self, batch: Batch, effects: Effects) -> None:
        if self._ahead is None:
            effects.found += [] if batch.stray else self._take(batch)
            return
        self._handed += batch.count
        while self._ahead and self._ahead[0][0] < self._handed:
            _, time, finding = self._ahead.pop(0)
            effects.found.append((time, finding))

    def _is_judged(self, batch: Batch) -> bool:
        ranked = batch.tables[0].sources[0].rank is not None
        return ranked and not batch.stray and not batch.aside and batch.segment == self.fold.tree.head

    def _is_steady(self, batch: Batch) -> bool:
        """Return whether rows may be judged before they are stored: detectors have all their input before.

        That is: the judged rank, the meaning of each metric, the fork, the mixture, and no time comes twice.
        """
        primary = self.primary
        if primary is None:
            return False
        for table in batch.tables:
            if not (self.primary_known or key_of(table.names) == self._silent or not self._is_of_training(table.names)):
                return False
            for at, source in enumerate(table.sources):
                if source.rank is None or source.rank < primary:
                    return False
                if source.rank == primary and not self._is_plain(source, batch.segment, table, at):
                    return False
        return len(batch.tables) == 1 or not batch.is_of_one or bool((np.diff(batch.merged()[1]) > 0).all())

    def _is_plain(self, source: Source, segment: int, table: Table, at: int) -> bool:
        went_on = self._source != source.source or segment != self._fed_segment
        if went_on or segment not in self._marked or not self.names.is_settled(table.names):
            return False
        times = table.times[:, at]
        rising = len(times) == 1 or bool((times[1:] > times[:-1]).all())
        return rising and int(table.steps[-1, at]) < self.mixtures.steady_to

    def _judge_ahead(self, batch: Batch) -> list[tuple[int, float, Finding]]:
        """Judge rows that are handed later; return place in the batch, log time and finding, in order."""
        found, own, places = list[tuple[int, float, Finding]](), list[Placed](), dict[float, int]()
        for table in batch.tables:
            for at, source in enumerate(table.sources):
                if source.rank == self.primary:
                    own.append(_rows_of(batch, table, at))
                    places |= zip(table.times[:, at].tolist(), table.order[:, at].tolist(), strict=True)
        if own:
            self.names.rows_since += len(places)
            self.mixtures.due(max(int(one.steps[-1]) for one in own), max(places))
            found += [(places[time], time, finding) for time, finding in self._judged(own)]
        for table in batch.tables:
            if self._ranks.wanted(table.names):
                found += self._judge_ranks(table)
            found += self._compare(table)
        named = [(place, one) for place, time, finding in found for one in self._own_names([(time, finding)])]
        return sorted(((place, time, one) for place, (time, one) in named), key=itemgetter(0))

    def _judge_ranks(self, table: Table) -> list[tuple[int, float, Finding]]:
        """Give rows of ranks to the detectors of every rank, in order of arrival."""
        found, ranks = list[tuple[int, float, Finding]](), [source.rank or 0 for source in table.sources]
        for turn in range(len(table.steps)):
            times = table.times[turn].tolist()
            news = self._ranks.feed_turn(table.names, table.steps[turn].tolist(), times, table.values[:, turn], ranks)
            found += [(int(table.order[turn, at]), times[at], finding) for at, finding in news]
        return found

    def _compare(self, table: Table) -> list[tuple[int, float, Finding]]:
        """Give rows to the detectors that compare ranks side by side, a step at a time."""
        ranks, found = [source.rank or 0 for source in table.sources], list[tuple[int, float, Finding]]()
        for turn in range(len(table.steps)):
            news = self._side_by_side.feed_table(
                table.names, table.steps[turn], table.times[turn], table.values[:, turn], ranks
            )
            found += [(int(table.order[turn, -1]), time, finding) for time, finding in news]
        return found

    def _take(self, batch: Batch) -> list[Found]:
        """Judge newly stored rows, and return the changes."""
        placed = batch.each()
        first = placed[0]
        found = [one for each in placed for one in self._choose_primary(each)]
        if first.rank is None or first.segment != self.fold.tree.head or first.aside:
            return self._own_names(found)
        if first.rank == self.primary:
            found += self._observe(placed)
            found += self._marks(int(first.steps[0]), first)
            if self.mixtures.row(int(first.steps[0])):
                self.names.declare_mixture()
            self._fed_segment, self._source = first.segment, first.source
            for stage in self._stages(placed):
                found += self._mixture_marks(stage[0])
                found += self._judged(stage)
        for each in placed:
            found += _feed(self._ranks, [each])
        for table in batch.tables:
            found += [(time, finding) for _, time, finding in self._compare(table)]
        return self._own_names(found)

    def _judged(self, stage: Sequence[Placed]) -> list[Found]:
        """Let all judge rows; those of other metrics know of each event that was found up to their row."""
        turns = [turn for each in stage for turn in self.others.take(each, self._is_other)]
        found, rest = list[Found](), list(stage)
        for turn in sorted(turns, key=lambda one: one.step):
            split = [(each, int(each.steps.searchsorted(turn.step, "right"))) for each in rest]
            now = [each.at(each.segment, slice(None, at)) for each, at in split if at]
            rest = [each.at(each.segment, slice(at, None)) for each, at in split if at < len(each.steps)]
            found += _feed(self._bank, now, self.names) if now else []
            found += self.others.report(turn, self._bank.context)
        return found + (_feed(self._bank, rest, self.names) if rest else [])

    def _is_other(self, metric: str) -> bool:
        """Say whether no detector looks at a metric, and it is none of the machine's or a learning rate."""
        judged = self.names.known_as(metric) is None or self.names.is_judged(metric, self._bank.wants)
        return not judged and not of_machine(metric) and likely_role_of(metric) != LR

    def event(self, event: LineageEvent, effects: Effects) -> None:
        """Take the names or the mixture that the job declares."""
        effects.found += self._declared(event)

    def _declared(self, event: LineageEvent) -> list[Found]:
        rank, data = event.source.rank, event.data
        if event.type == "mixture":
            self.mixtures.declared(rank, event.step, data)
            return []
        if rank is None or (self._names_rank is not None and rank > self._names_rank):
            return []
        self._names_rank, self._silent = rank, ()
        return self._own_names(self._again(self.names.declare(data.get("roles") or {}, data.get("datasets") or {})))

    def forked(self, fork: Forked, effects: Effects) -> None:
        """Go back to where the new head's segment starts."""
        if fork.is_head:
            effects.found += self._went_back(fork.segment)

    def _went_back(self, segment: FoldedSegment) -> list[Found]:
        self._resumes = [mark for mark in self._resumes if mark.step <= segment.kept_step]
        self.mixtures.forked(segment.kept_step)
        part = self.fold.tree.path(since=segment.fork_step + 1)[-1]
        banks = (self._ranks, self._side_by_side) if part.segment == segment.id else ()
        found = [(segment.created, finding) for bank in banks for finding in bank.mark(self._fork(part))]
        if self.primary is None:
            return found
        found += self.others.rewound(segment.kept_step, segment.created)
        return self._own_names(found + self._feed_again(self._bank.rewind(segment.kept_step)))

    # --- names ---------------------------------------------------------------------------------------------------

    def _observe(self, placed: Sequence[Placed]) -> list[Found]:
        """Classify the metrics of rows; where earlier rows change their meaning, judge these again."""
        steps = [
            step for each in placed if (step := self.names.observe(each.names, each.steps, each.values)) is not None
        ]
        return self._again(min(steps, default=None), before=int(placed[0].steps[0]))

    def _again(self, step: int | None, before: int | None = None) -> list[Found]:
        newest = self._bank.last_step
        if step is None or self.primary is None or newest - step > MAX_AGAIN_STEPS:
            return []
        if BEFORE_FIRST_STEP < newest < step:
            return []
        return self._feed_again(self._bank.rewind(step - 1), before)

    def _own_names(self, found: list[Found]) -> list[Found]:
        """Report findings under the names that the job logs."""
        named = [
            (time, finding if (name := self._own_name(finding)) == finding.metric else replace(finding, metric=name))
            for time, finding in found
        ]
        return [(time, one) for time, finding in named if (one := self._may_rise(finding)) is not None]

    def _may_rise(self, finding: Finding) -> Finding | None:
        """Return a finding of a loss that may rise without harm as a note: by its name, or its sign with a reward.

        A note that stays in place needs no attention. None: that such a loss does not fall is no finding.
        """
        if finding.detector != CurvesDetector.name or finding.metric is None:
            return finding
        rewarded = (finding.evidence.get("below_zero") or finding.kind == "plateau") and any(
            map(is_of_reward, self.store.metrics())
        )
        if not rewarded and not may_rise(finding.metric):
            return finding
        if finding.kind == "plateau":
            return None
        if finding.severity == "info":
            return finding
        state: State = "resolved" if finding.recovery == "none" and finding.state == "open" else finding.state
        text = f"{finding.text} A loss of reinforcement or adversarial training may rise: this is no alarm."
        return replace(finding, severity="info", state=state, text=text)

    def _own_name(self, finding: Finding) -> str | None:
        return finding.metric and self.names.own_name(finding.metric)

    def _choose_primary(self, placed: Placed) -> list[Found]:
        """The lowest rank that logs the loss is the one whose curve is shown and judged.

        Without a recognised name it is the lowest that logs anything of a training, until another one has such a name.
        """
        lower = self.primary is None or (placed.rank is not None and placed.rank < self.primary)
        if placed.rank is None or (self.primary_known and not lower):
            return []
        known = self._is_of_training(placed.names)
        if placed.rank == self.primary:
            self.primary_known = known
            return []
        if not known and (self.primary_known or not lower or all(loss_rank(name) is None for name in placed.names)):
            return []
        had_one, self.primary, self.primary_known = self.primary is not None, placed.rank, known
        if not had_one:
            return []
        self._source, self._resumes, self.others = None, [], OtherMetrics()
        return self._feed_again(self._bank.rewind(BEFORE_FIRST_STEP), before=int(placed.steps[0]))

    def _is_of_training(self, names: Sequence[str]) -> bool:
        """Return whether a name of these shows that their rank logs the training; asked again and again of the same."""
        row = key_of(names)
        if row != self._silent:
            training = self.names.of_training
            if any(name in PRIMARY_METRICS or role_of(name) == LOSS or training(name) for name in names):
                return True
            self._silent = row
        return False

    # --- marks ---------------------------------------------------------------------------------------------------

    def _marks(self, step: int, placed: Placed) -> list[Found]:
        """Give the marks that are due before the row of ``step``, the first one of ``placed``."""
        time = float(placed.times[0])
        if placed.segment not in self._marked:
            return [(time, finding) for mark in self._forks(step) for finding in self._bank.mark(mark)]
        went_on = self._source is not None and placed.source != self._source and placed.segment == self._fed_segment
        if not went_on or step <= self._bank.last_step:
            return []
        mark = _resume(self._bank.last_step, step, time)
        self._resumes = [*self._resumes[-(MAX_RESUMES - 1) :], mark]
        ended = self.others.rewound(self._bank.last_step, time)
        return [*ended, *((time, finding) for finding in self._bank.mark(mark))]

    def _mixture_marks(self, placed: Placed) -> list[Found]:
        """Give the declarations of a mixture that hold from the first row of ``placed`` on."""
        time = float(placed.times[0])
        marks = self.mixtures.due(int(placed.steps[0]), time)
        return [(time, finding) for mark in marks for finding in self._bank.mark(mark)]

    def _stages(self, placed: Sequence[Placed]) -> Iterator[Sequence[Placed]]:
        """Yield rows in parts between which another mixture is declared."""
        rest = list(placed)
        while rest:
            first, last = (f(int(each.steps[at]) for each in rest) for f, at in ((min, 0), (max, -1)))
            step = self.mixtures.next_step(first)
            if step is None or step > last:
                yield rest
                return
            split = [(each, int(each.steps.searchsorted(step))) for each in rest]
            yield [each.at(each.segment, slice(None, at)) for each, at in split if at]
            rest = [each.at(each.segment, slice(at, None)) for each, at in split if at < len(each.steps)]

    def _forks(self, step: int) -> Iterator[Mark]:
        """Give the marks of the segments of the effective path that begin at or before ``step`` and have none yet."""
        unmarked = list(takewhile(lambda part: part.segment not in self._marked, reversed(self.fold.tree.path())))
        for part in reversed(unmarked):
            if part.first <= step:
                self._marked.add(part.segment)
                yield self._fork(part)

    def _fork(self, part: PathRange) -> Mark:
        segment = self.fold.tree[part.segment]
        if segment.cause == "resume":
            return _resume(segment.fork_step, segment.fork_step + 1, segment.created)
        left = self._left_behind(segment)
        because = f" ({segment.reason})" if segment.reason else ""
        data = {
            "fork_step": segment.fork_step,
            "cause": segment.cause,
            "reason": segment.reason,
            "changes": dict(segment.changes),
            "last_step": max((points[-1][0] for points in left.values()), default=segment.fork_step),
            "left_behind": left,
        }
        where = "" if segment.returns_to is None else " of the branch that it had left"
        text = f"the run went back to step {segment.fork_step}{where}{because}"
        return Mark("fork", segment.fork_step + 1, segment.created, text, data)

    def _left_behind(self, segment: FoldedSegment) -> dict[str, list[tuple[int, float]]]:
        """Return the points past its fork step of the branch that ``segment`` left."""
        before = left_by(self.fold.tree, self.fold.heads, segment.id)
        if self.primary is None or before is None:
            return {}
        known = {name: self.names.known_as(name) or "" for name in self.store.metrics()}
        losses = [name for name, judged in known.items() if role_of(judged) == LOSS or dataset_of(judged)]
        rows = query.effective_rows(
            self.store,
            self.fold,
            losses[:DISCARDED_METRICS],
            self.primary,
            segment.fork_step + 1,
            head=before,
            limit=DISCARDED_POINTS,
        )
        left: dict[str, list[tuple[int, float]]] = {}
        for step, _, metric, value in rows:
            left.setdefault(known[metric], []).append((step, value))
        return left

    # --- again ---------------------------------------------------------------------------------------------------

    def _feed_again(self, after: int, before: int | None = None) -> list[Found]:
        """Give the effective rows after step ``after`` again, up to ``before``, and the marks between them."""
        assert self.primary is not None
        path = self.fold.tree.path()
        self._marked = {0, *(part.segment for part in path if part.first <= after)}
        resumes = [mark for mark in self._resumes if mark.step > after]
        self.names.rewound()
        self.mixtures.rewound(after)
        wanted = [name for name in self.store.metrics() if self.names.is_judged(name, self._bank.wants)]
        rows = query.effective_rows(self.store, self.fold, wanted, self.primary, after + 1)
        found: list[Found] = []
        for row in _grouped(rows):
            if before is not None and row.step >= before:
                break
            marks = [*self._forks(row.step)] if path[-1].segment not in self._marked else []
            while resumes and resumes[0].step <= row.step:
                marks.append(resumes.pop(0))
            marks += self.mixtures.due(row.step, row.time)
            found += [(row.time, finding) for mark in marks for finding in self._bank.mark(mark)]
            judged = row._replace(values=self.names.judged_row(row.values))
            found += [(row.time, finding) for finding in self._bank.feed_row(judged)]
            self._fed_segment = next(part.segment for part in reversed(path) if part.first <= row.step)
        return found

    # --- snapshots -----------------------------------------------------------------------------------------------

    def saved(self) -> list[SavedPart]:
        """Return the whole state: each detector is a part of its own."""
        return [
            part_of("judge", self),
            *self._bank.saved("detectors"),
            *self._ranks.saved("ranks"),
            *self._side_by_side.saved("compared"),
        ]

    def restore(self, saved: Mapping[str, SavedPart]) -> None:
        """Take over the answer of ``saved``. Call ``judge_again`` once the run's points are there.

        Raises:
            Unfit: shared state of the detectors is of another version, or a detector of every rank: the order in which
                the rows of ranks alternated is in the frames alone.
        """
        restore(self, saved.get("judge"), "judge")
        unfit = self._ranks.restore("ranks", saved) | self._side_by_side.restore("compared", saved)
        for name, why in unfit.items():
            raise Unfit(f"detector {name}: {why}")
        self.unfit = self._bank.restore("detectors", saved)

    def judge_again(self) -> None:
        """Let the detectors whose state was not taken over judge the stored points, as if they always had. Slow.

        Their findings there have been reported, or are past: none is reported again. All detectors judge, since they
        leave events to each other; the others stay as they are.
        """
        unfit, self.unfit = self.unfit, {}
        if not unfit or self.primary is None:
            return
        bank, marked, fed_segment = self._bank, self._marked, self._fed_segment
        self._bank = bank.empty()
        self._feed_again(BEFORE_FIRST_STEP)
        bank.replace(unfit, self._bank)
        self._bank, self._marked, self._fed_segment = bank, marked, fed_segment


def _rows_of(batch: Batch, table: Table, at: int) -> Placed:
    source = table.sources[at]
    return Placed(
        batch.segment, source.source, source.rank, source.node, table.names, table.steps[:, at], table.times[:, at],
        table.values[:, :, at],
    )  # fmt: skip


def _feed(bank: DetectorBank, placed: Sequence[Placed], known: WatchedNames | None = None) -> list[Found]:
    blocks = []
    for each in placed:
        names, columns = (each.names, each.values) if known is None else known.judged(each.names, each.values)
        wanted = {name: columns[place].tolist() for place, name in bank.wanted(names)}
        if wanted:
            blocks.append(RowBlock(names, each.steps.tolist(), each.times.tolist(), wanted))
    return bank.feed_blocks(blocks, placed[0].rank or 0) if blocks else []


def _resume(last_step: int, step: int, time: float) -> Mark:
    data = {"fork_step": last_step, "cause": "resume", "reason": "", "changes": {}, "last_step": last_step}
    data["left_behind"] = {}
    return Mark("fork", step, time, f"another process went on after step {last_step}", data)


def _grouped(rows: Iterable[tuple[int, float, str, float]]) -> Iterator[Row]:
    """Regroup rows as they were logged: those of one step and one time, each metric once in a row."""
    for (step, time), values in groupby(rows, key=lambda row: (row[0], row[1])):
        logged = list[dict[str, float]]()
        seen = Counter[str]()
        for _, _, metric, value in values:
            if seen[metric] == len(logged):
                logged.append({})
            logged[seen[metric]][metric] = value
            seen[metric] += 1
        for row in logged:
            yield Row(step, time, row)
