"""Judges whether ranks read the same data: samplers that lost their rank, one seed or one shard for all.

Ranks of one data-parallel replica (tensor or pipeline parallel) get the same batch by design, from the first step on.
So what counts is a number of different batches a step that the run had before, and has no longer.
"""

from __future__ import annotations

from stabilitybackend.base.stateful import Stateful
from stabilitybackend.judging.batches.repeats import CONFIRM_STEPS, DETECTOR, STUCK_STEPS
from stabilitybackend.judging.detectors.engine.base import Finding

__all__ = ["MAX_DIFFERENT", "RanksAlike"]

#: Different batches of a step that are counted: as many ranks are enough to see that there are fewer than before.
MAX_DIFFERENT = 64


class RanksAlike(Stateful):
    """Follows how many different batches the ranks of a step hand over; the parts of a step are one rank's each."""

    _parts: int = 0
    _usual: int = 0
    _steps: int = 0
    _began: bool = False
    _first: int = 0
    _few: int = 0
    _many: int = 0
    #: Onset, the step at which it was seen, and different batches a step; empty while there is no event.
    _event: tuple[int, ...] = ()

    def began(self, step: int) -> None:
        """A process goes on at ``step``, or the run went back there."""
        self._began, self._few, self._many = True, 0, 0
        self._event = self._event if self._event and self._event[0] < step else ()

    def take(self, step: int, parts: int, different: int) -> Finding | None:
        """Take a step of which all is known, and return what it shows.

        Args:
            parts: ranks that handed over a batch. different: of their batches, at most MAX_DIFFERENT.
        """
        if parts > self._parts or (self._began and parts != self._parts):
            self._parts, self._usual, self._steps, self._event = parts, 0, 0, ()
        self._began = False
        if parts < self._parts or parts < 2:
            return None  # a rank is missing
        if self._steps < STUCK_STEPS:
            self._usual, self._steps = max(self._usual, different), self._steps + 1
            return None
        few = different < self._usual
        self._first = self._first if few and self._few else step
        self._few, self._many = (self._few + 1, 0) if few else (0, self._many + 1)
        if not self._event and self._few == STUCK_STEPS:
            self._event = (self._first, step, different)
            return self._finding(step, None)
        if self._event and self._many == CONFIRM_STEPS:
            found, self._event = self._finding(step, step - CONFIRM_STEPS + 1), ()
            return found
        return None

    def _finding(self, step: int, ended: int | None) -> Finding:
        onset, seen, different = self._event
        text = f"Since step {onset} only {different} of the {self._parts} batches that the ranks hand over at a step"
        text += (
            f" differ from each other, before it was {self._usual}: ranks read the same data. Does each sampler have"
        )
        text += " its rank, and a seed or a shard of its own?"
        text += f" It ended before step {ended}." if ended is not None else ""
        evidence = {
            "what": "ranks", "ranks": self._parts, "different_batches": different, "different_before": self._usual,
            "recovered_at": ended, "score_unit": "ranks with the data of another one",
        }  # fmt: skip
        return Finding(
            DETECTOR, f"{DETECTOR}:ranks:{onset}", "repeat_data", "open" if ended is None else "recovered", "warning",
            f"Ranks read the same data since step {onset}", text, onset, seen, step, recovered_step=ended,
            score=float(self._usual - different), evidence=evidence,
        )  # fmt: skip
