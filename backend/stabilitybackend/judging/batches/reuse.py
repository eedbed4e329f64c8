"""Judges samples that come again in other batches: a new order after a resume that begins in the middle of the data.

At each step some samples are known of which every earlier place is known (``samples.py``). Of a first pass over the
data none was seen before; drawing with replacement, and small data sets in a mixture, bring some again at a rate that
changes slowly. What is judged is a rate that is higher than the run's own rate right before, by more than chance: the
probability of so many under the rate before is below CHANCE. Nothing else is a threshold.

Right after a resume it is a warning. Where nothing began, the data is through: said once, as ``info``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.judging.batches.repeats import DETECTOR, Boundary
from stabilitybackend.judging.detectors.engine.base import Finding, Severity, State

__all__ = ["Reuse"]

#: One false event in so many judged steps, of which a long run has 10**7.
CHANCE = 1e-9
#: Steps that tell the rate before, and steps after a resume in which it is compared with what came before it.
STEPS = 64
#: Events that are remembered for the run's page, newest ones.
MAX_EVENTS = 64
#: Known samples from the step after the onset on that make it a pass over all of the data: it is through in one step.
WHOLE = 0.8
#: Newest steps whose rate is compared; three at least, since equal batches are reported at the third one.
WINDOW, LEAST_STEPS = 8, 3


@dataclass
class Reused:
    """Samples that came before.

    Attributes:
        dataset: "" where none is named.
        onset, seen, newest: first step, the step at which it was noticed, and the newest one.
        since, began: what happened last before it, and its step. resumed: whether that was a start of a process, or a
            way back.
        share: of the samples, when it was noticed. before: the share right before.
        low, high: steps at which they had come.
        whole: since the onset nearly all samples are known ones.
        ended: first step of the window in which the share was back; None while it lasts.
    """

    dataset: str
    onset: int
    seen: int
    newest: int
    since: str
    began: int
    resumed: bool
    share: float
    before: float
    low: int
    high: int
    whole: bool
    ended: int | None = None


class Reuse(Stateful):
    """Follows how many samples of a data set were seen before, step by step; steps with known batches are left out."""

    #: (step, samples, of these seen before): the newest steps, and those before the last start of a process.
    _newest: deque[tuple[int, int, int]] = fresh(deque, maxlen=STEPS + WINDOW)
    _before: list[tuple[int, int, int]] = fresh(list)
    _boundary: Boundary | None = None
    events: list[Reused] = fresh(list)
    _lasts: bool = False

    def began(self, boundary: Boundary) -> None:
        """A process goes on, or the run went back."""
        kept = [one for one in self._newest if one[0] < boundary.step]
        # A second start right after the first tells no rate of its own: what came before both stays.
        if sum(samples for _, samples, _ in kept[-STEPS:]) or not self._before:
            self._before = kept[-STEPS:]
        self._newest.clear()
        self._boundary = boundary
        self.events = [one for one in self.events if one.onset < boundary.step]
        self._lasts = self._lasts and bool(self.events) and self.events[-1].resumed

    def another_epoch(self) -> None:
        """The job says that a pass over the data begins: what came before it does not count any more."""
        self._newest.clear()
        self._before, self._boundary, self._lasts = [], None, False

    def take(self, step: int, samples: int, seen: int) -> tuple[float, float] | None:
        """Take the next step; return (share, share before) where an event begins or ends, else None."""
        self._newest.append((step, samples, seen))
        window = list(self._newest)[-WINDOW:]
        if not self._lasts and sum(one[2] > 0 for one in window) < LEAST_STEPS:
            return None
        since = self._boundary is not None and len(self._newest) <= STEPS
        before = self._before if since else list(self._newest)[:-WINDOW]
        n, x = sum(one[1] for one in window), sum(one[2] for one in window)
        n0, x0 = sum(one[1] for one in before), sum(one[2] for one in before)
        if not n0:
            return None
        share, rate = x / max(n, 1), (x0 + 1) / (n0 + 2)
        if self._lasts and self.events:
            event = self.events[-1]
            event.newest = step
            return (share, rate) if len(window) == WINDOW and share < (event.share + event.before) / 2 else None
        return (share, rate) if share > rate and _tail(n, x, rate) < CHANCE else None

    def window(self) -> int:
        """Return the first of the newest steps that are compared."""
        return list(self._newest)[-WINDOW:][0][0]

    def change(
        self, step: int, dataset: str, shares: tuple[float, float], places: tuple[int, int]
    ) -> Iterator[Finding]:
        """Yield what there is to say where ``take`` returned shares.

        Args:
            places: first and last step at which the samples of the newest steps had come before.
        """
        share, before = shares
        window = list(self._newest)[-WINDOW:]
        if self._lasts and self.events:
            event = self.events[-1]
            event.ended, self._lasts = window[0][0], False
            if event.resumed:
                yield _finding(event, step)
            return
        onset = next(at for at, _, seen in window if seen)
        resumed = self._boundary is not None and len(self._newest) <= STEPS
        since = self._boundary if resumed and self._boundary is not None else Boundary(0, "the run's start")
        later = [(samples, known) for at, samples, known in window if at > onset]
        whole = sum(known for _, known in later) > WHOLE * sum(samples for samples, _ in later)
        event = Reused(dataset, onset, step, step, since.text, since.step, resumed, share, before, *places, whole)
        self.events, self._lasts = [*self.events[-(MAX_EVENTS - 1) :], event], True
        yield _finding(event, step)


def _finding(event: Reused, now_step: int) -> Finding:
    severity: Severity = "warning" if event.resumed else "info"
    state: State = "recovered" if event.ended is not None else "open" if event.resumed else "resolved"
    of = f" of {event.dataset}" if event.dataset else ""
    seen = f"{100 * event.share:.0f} % of the samples{of} have been seen before, in other batches"
    if event.resumed:
        title = f"Known samples in a new order since step {event.onset}"
        text = f"Since {event.since} {seen}, between step {event.low} and {event.high}; right before it was"
        text += f" {100 * event.before:.2g} %. The order was made again and begins in the middle: is the state of the"
        text += " sampler (its seed, epoch and place) restored?"
        text += f" It ended before step {event.ended}." if event.ended is not None else ""
    else:
        begins, why = f"Known samples{of} since step", "a part of the data is through, or a worker repeats its shard"
        if event.whole:
            begins, why = f"The data{of} is through at step", "another pass over the data"
        title = f"{begins} {event.onset}"
        text = f"Since step {event.onset} {seen}; no process began there: {why}. This is reported once a run;"
        text += " run.data(epoch=) says it before."
    evidence = {
        "seen_share": round(event.share, 4),
        "share_before": round(event.before, 6),
        "earlier_step": event.low,
        "earlier_last_step": event.high,
        "since": event.since,
        "since_step": event.began,
        "what": "samples",
        "recovered_at": event.ended,
        "score_unit": "share of the samples",
    }
    return Finding(
        DETECTOR, f"{DETECTOR}:samples:{event.dataset}:{event.onset}", "repeat_data", state, severity, title, text,
        event.onset, event.seen, now_step, dataset=event.dataset or None, recovered_step=event.ended,
        score=event.share, evidence=evidence,
    )  # fmt: skip


def _tail(n: int, x: int, rate: float) -> float:
    """Return the probability of ``x`` or more of ``n`` at this rate (binomial)."""
    if rate >= 1.0:
        return 1.0
    log, other = math.log(rate), math.log1p(-rate)
    total = math.lgamma(n + 1)
    terms = (total - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * log + (n - k) * other for k in range(x, n + 1))
    return min(1.0, sum(map(math.exp, terms)))
