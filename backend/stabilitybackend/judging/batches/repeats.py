"""Repeated batches: a loader that started over, an epoch in the same order, or one batch again and again.

Three batches in a row with earlier ids on the effective path, not all the same, are an event: one shared id (an empty
or padded batch) or two equal ones by chance are none. Its class follows from facts alone:
* ``declared``: the job reports the batch as of another epoch than its equal. Reported once, as ``info``.
* ``pass``: the batches repeat in their order from the very first one on, without a new process or a rollback at that
  step: the data is used up, and repeats in the same order. Reported once, as ``info``.
* ``again``: all others. A warning; it ends with three new batches in a row.
* ``same``: one id at STUCK_STEPS steps in a row: a stuck loader, or an id that does not depend on the data.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.judging.detectors.engine.base import Finding, Severity, State
from stabilitybackend.schema.batches import RepeatWhat

__all__ = ["CONFIRM_STEPS", "DETECTOR", "Repeats", "Resumption", "StepBatch"]

#: Source of the findings.
DETECTOR = "batch_ids"
#: Earlier batches in a row that make an event, and new ones that end it. Three: one may be shared, two may be by
#: chance.
CONFIRM_STEPS = 3
#: Steps with one id that make an event. A padded or empty batch may repeat some times in a row: so many steps are a
#: stuck loader.
STUCK_STEPS = 16
#: Steps that wait for the ids of late ranks; then they are judged incomplete, and counted as partial.
WAIT_STEPS = 64
#: Remembered starts of processes and rollbacks.
MAX_BOUNDARIES = 64
#: Events for the run's page, newest ones.
MAX_EVENTS = 64


@dataclass(frozen=True)
class Resumption:
    """The first step after a start of the job's processes or a rollback; ``text`` is a clause."""

    step: int
    text: str


@dataclass
class StepBatch:
    """Facts of a step's batch.

    Attributes:
        batch: id, of all ranks so far. parts: number of reports.
        old: the newest earlier step of the path with this id, None for none.
        time: of the newest part, unix seconds.
        samples, tokens: of all parts, 0 for unknown. of: content of the ids.
        other_epoch: the job reports ``old`` as of another epoch; None for no report.
    """

    batch: int
    parts: int
    old: int | None
    time: float
    samples: int = 0
    tokens: int = 0
    other_epoch: bool | None = None
    of: str = ""


@dataclass
class Repeat:
    """Repeated batches.

    Attributes:
        what: ``declared``, ``pass``, ``again``, ``same``.
        onset, old: its first step, and the earlier step of that batch.
        seen: step of the detection. newest: the newest repeated step.
        since: the last thing that happened at or before the onset. began: its step.
        steps, samples, tokens: repeated so far.
        in_order: whether each step repeats the one as far back as the first.
        ended: first step with a new batch, None while it lasts.
    """

    what: RepeatWhat
    onset: int
    old: int
    seen: int
    newest: int
    since: str
    began: int
    steps: int = 0
    samples: int = 0
    tokens: int = 0
    in_order: bool = True
    ended: int | None = None
    reported_at: int = 0

    @property
    def offset(self) -> int:
        """Distance of the repeated batches, steps."""
        return self.onset - self.old

    def cut(self, fork_step: int) -> None:
        """Discard repeats after ``fork_step``, and reopen the event."""
        self.ended = None
        left = max(0, fork_step - self.onset + 1) / (self.newest - self.onset + 1)
        if left < 1:
            self.steps, self.samples, self.tokens = (
                round(left * self.steps), round(left * self.samples), round(left * self.tokens),
            )  # fmt: skip
            self.newest = fork_step


class Repeats(Stateful):
    """Follows the effective path step by step; ``fold.py`` looks up earlier ids."""

    #: Step -> its batch, the newest WAIT_STEPS.
    recent: dict[int, StepBatch] = fresh(dict)
    judged_to: int = -1
    _expected: int = 1
    _streak: list[int] = fresh(list)
    _new: list[int] = fresh(list)
    _same: int = 0
    _same_id: int = -1
    _had_others: bool = False
    boundaries: list[Resumption] = fresh(list)
    #: The events of the run, newest last, and whether that one lasts.
    _lasts: bool = False
    events: list[Repeat] = fresh(list)
    #: Judged steps, steps with missing ranks, and steps with an earlier batch.
    judged: int = 0
    partial: int = 0
    repeated: int = 0

    def __init__(self) -> None:
        super().__init__()
        #: Unjudged steps, ascending: derived from ``recent`` and ``judged_to``.
        self._waiting: list[int] = []

    def restored(self) -> None:
        self._waiting = sorted(step for step in self.recent if step > self.judged_to)

    @property
    def now(self) -> Repeat | None:
        return self.events[-1] if self._lasts and self.events else None

    # --- events --------------------------------------------------------------------------------------------------

    def began(self, step: int, text: str) -> None:
        """Take a new process or a rollback, with ``step`` as its first step."""
        self.boundaries = [*self.boundaries, Resumption(step, text)][-MAX_BOUNDARIES:]
        self._streak = []

    def went_back(self, fork_step: int, text: str) -> None:
        """Forget steps after the fork step."""
        self.recent = {step: seen for step, seen in self.recent.items() if step <= fork_step}
        self.judged_to = min(self.judged_to, fork_step)
        self.restored()
        self._new, self._same = [], 0
        self.boundaries = [one for one in self.boundaries if one.step <= fork_step]
        self.events = [one for one in self.events if one.onset <= fork_step]
        self._lasts = bool(self.events) and (self.events[-1].ended is None or self.events[-1].ended > fork_step)
        if self.now is not None:
            self.now.cut(fork_step)
        self.began(fork_step + 1, text)

    def known(self, step: int) -> bool:
        """Return whether an event of this step was reported, so that a finding in the loss is a duplicate."""
        return any(one.onset <= step and (one.ended is None or step <= one.ended) for one in self.events)

    def take(self, step: int, seen: StepBatch, first: Callable[[], int | None]) -> Iterator[tuple[float, Finding]]:
        """Take the batch of a step so far, and yield changed findings.

        Args:
            first: returns the first step of the path with an id.
        """
        late = step <= self.judged_to
        if late and step not in self.recent:
            return
        self.recent[step] = seen
        self._expected = max(self._expected, seen.parts)
        if late:  # the first step of a job whose ranks were not registered yet
            return
        waiting = self._waiting
        if step not in waiting:
            insort(waiting, step)
        while waiting:
            one = waiting[0]
            whole = self.recent[one].parts >= self._expected
            if not whole and len(waiting) <= WAIT_STEPS:
                return
            self.judged_to = waiting.pop(0)
            self.partial += not whole
            yield from self._judge(one, self.recent[one], first)
        while len(self.recent) > WAIT_STEPS and (oldest := min(self.recent)) <= self.judged_to:
            del self.recent[oldest]
            if seen.parts < self._expected:
                self._expected = max(one.parts for one in self.recent.values())

    # --- one step ------------------------------------------------------------------------------------------------

    def _judge(self, step: int, seen: StepBatch, first: Callable[[], int | None]) -> Iterator[tuple[float, Finding]]:
        self.judged += 1
        self._had_others |= self._same > 0 and seen.batch != self._same_id
        self._same = self._same + 1 if seen.batch == self._same_id else 1
        self._same_id = seen.batch
        if seen.old is None:
            self._streak, self._new = [], [*self._new[-(CONFIRM_STEPS - 1) :], step]
            if self.now is not None and len(self._new) == CONFIRM_STEPS:
                yield from self._end(self._new[0], step, seen.time)
            return
        self.repeated += 1
        self._new = []
        self._streak = [*self._streak[-(STUCK_STEPS - 1) :], step]
        if self.now is not None and self._goes_on(self.now, step, seen):
            yield from self._count(self.now, step, seen)
        elif self._same >= STUCK_STEPS and (self.now is None or self.now.what != "same"):
            yield from self._open("same", self._streak[-STUCK_STEPS + 1 :], seen, step)
        elif self._differ(self._streak[-CONFIRM_STEPS:]):
            steps = self._streak[-CONFIRM_STEPS:]
            yield from self._open(self._kind(steps, first), steps, seen, step)

    def _differ(self, steps: list[int]) -> bool:
        """Return whether CONFIRM_STEPS steps have pairwise different ids."""
        ids = {self.recent[step].batch for step in steps if step in self.recent}
        return len(ids) == CONFIRM_STEPS

    def _goes_on(self, event: Repeat, step: int, seen: StepBatch) -> bool:
        """Return whether an earlier batch continues the open event."""
        if event.what == "same":
            return seen.batch == self._same_id and self._same > 1
        if event.what == "again":
            return True
        if event.what == "declared":
            return seen.other_epoch is True
        return step - (seen.old or 0) == event.offset

    def _kind(self, steps: list[int], first: Callable[[], int | None]) -> RepeatWhat:
        found = [self.recent[step] for step in steps]
        if all(seen.other_epoch for seen in found):
            return "declared"
        onset, old = steps[0], found[0].old
        begins = any(one.step == onset for one in self.boundaries)
        in_order = all(seen.old is not None and step - seen.old == onset - (old or 0) for step, seen in
                       zip(steps, found, strict=True))  # fmt: skip
        unsaid = all(seen.other_epoch is None for seen in found)
        return "pass" if in_order and not begins and unsaid and old == first() else "again"

    # --- events --------------------------------------------------------------------------------------------------

    def _open(self, what: RepeatWhat, steps: list[int], seen: StepBatch, step: int) -> Iterator[tuple[float, Finding]]:
        if self.now is not None:
            yield from self._end(steps[0], step, seen.time)
        onset = steps[0]
        since = next((one for one in reversed(self.boundaries) if one.step <= onset), Resumption(0, "the run's start"))
        old = self.recent[onset].old if onset in self.recent else seen.old
        event = Repeat(what, onset, onset if old is None else old, step, step, since.text, since.step)
        told = any(one.what == what for one in self.events) and what in ("declared", "pass")
        self.events, self._lasts = [*self.events, event][-MAX_EVENTS:], True
        for one in steps:
            if one in self.recent:
                self._add(event, one, self.recent[one])
        if not told:
            event.reported_at = event.steps
            yield seen.time, self._finding(event, step)

    @staticmethod
    def _add(event: Repeat, step: int, seen: StepBatch) -> None:
        event.steps += 1
        event.samples += seen.samples
        event.tokens += seen.tokens
        event.newest = step
        event.in_order &= seen.old is not None and step - seen.old == event.offset

    def _count(self, event: Repeat, step: int, seen: StepBatch) -> Iterator[tuple[float, Finding]]:
        self._add(event, step, seen)
        # Report it each time that it doubles: a hundred reports in any run.
        if event.what in ("again", "same") and event.steps >= 2 * event.reported_at:
            event.reported_at = event.steps
            yield seen.time, self._finding(event, step)

    def _end(self, first_new: int, step: int, time: float) -> Iterator[tuple[float, Finding]]:
        event, self._lasts = self.events[-1], False
        event.ended = first_new
        if event.what in ("again", "same"):
            yield time, self._finding(event, step)

    def _finding(self, event: Repeat, now_step: int) -> Finding:
        quiet = event.what in ("declared", "pass") or (event.what == "same" and not self._had_others)
        severity: Severity = "info" if quiet else "warning"
        state: State = "open" if event.ended is None else "recovered"
        if event.what in ("declared", "pass"):
            state = "resolved"
        title, text = _words(event)
        evidence = {
            "earlier_step": event.old,
            "offset_steps": event.offset,
            "repeated_steps": event.steps,
            "repeated_samples": event.samples or None,
            "repeated_tokens": event.tokens or None,
            "same_order": event.in_order,
            "since": event.since,
            "since_step": event.began,
            "what": event.what,
            "recovered_at": event.ended,
            "score_unit": "repeated steps",
        }
        return Finding(
            DETECTOR, f"{DETECTOR}:{event.onset}", "repeat_data", state, severity, title, text, event.onset, event.seen,
            now_step, recovered_step=event.ended, score=float(event.steps), evidence=evidence,
        )  # fmt: skip


def _words(event: Repeat) -> tuple[str, str]:
    """Return title and text."""
    many = f"{event.steps:,} steps"
    if event.tokens:
        many += f" ({event.tokens:,} tokens)"
    elif event.samples:
        many += f" ({event.samples:,} samples)"
    order = "in the same order" if event.in_order else "in another order"
    if event.what == "same":
        title = f"The same batch since step {event.onset}"
        text = f"Every step since {event.onset} hands over one and the same batch id, {many} so far."
        text += " The loader is stuck on one batch, or what is handed over does not depend on the data."
    elif event.what in ("declared", "pass"):
        title = f"A further epoch since step {event.onset}"
        how = "the job says so" if event.what == "declared" else "the data was through"
        text = (
            f"Since step {event.onset} the batches of step {event.old} and later come again, batch for batch, {order}:"
        )
        text += f" another epoch ({how}). This is reported once. If each epoch should have an order of its own,"
        text += " it has not (set_epoch, a new seed)."
    else:
        title = f"Known batches are fed again since step {event.onset}"
        text = f"The batches since step {event.onset} are those of step {event.old} and later, {event.offset:,} steps"
        text += f" back, {order}: their ids are equal, {many} so far. It began"
        text += f" {'with' if event.began == event.onset else 'after'} {event.since}. Is the loader's place restored?"
    if event.ended is not None and event.what in ("again", "same"):
        text += f" It ended before step {event.ended}."
    return title, text
