"""Longest stay of a rank in its phase: learned per phase, by all ranks together, over restarts.

Rules (docs/liveness.md), ``longest`` being the longest observed time:
* a usual phase: 5 x longest, at least the floor and 2 x the longest step, at most the ceiling; a new one: 5 x the
  longest step;
* no phase: 5 x the longest step or stall of this rank (a job may report 1 step in 100), at least 3 x the floor: it may
  be in an undeclared checkpoint;
* a phase listed as long, and the first step of a process: 600 s at first, from its second time on 5 x longest, 120 to
  7,200 s;
* a declared length: 1.5 times the length, whatever was learned.

A longer time was reported as a hang. It is learned only so far that the budget doubles: a job whose phases really grow
is understood after some alarms, and one hang of an hour does not hide the next one.
"""

from __future__ import annotations

import math
import re
from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stabilityclient import run_components

__all__ = ["AFTER_LOOP", "LONG_FLOOR_S", "Budgets", "Limits", "LongestTime", "is_long"]

#: Clients' phase of a rank that has left the loop of its steps: the same as no phase.
AFTER_LOOP = run_components.AFTER_LOOP.decode()

#: Budget relative to the longest time so far: NVRx's ``safety_factor`` (docs/liveness.md) ...
FACTOR = 5.0
#: ... and at least relative to the longest step: a shorter stall is slow, not stuck.
STEP_FACTOR = 2.0
#: Factor on the floor without a phase: a save or a validation looks like a hang there.
UNNAMED_FACTOR = 3.0
#: Budget of a long phase, or of a first step, not seen twice yet, seconds.
LONG_FLOOR_S = 600.0
#: Least budget of those from then on, seconds: a slow file system doubles a healthy save.
LONG_SEEN_FLOOR_S = 120.0
#: Greatest budget of those, seconds.
LONG_CEILING_S = 7_200.0
#: Budget relative to a declared length.
DECLARED_FACTOR = 1.5
#: Largest raise of a budget by a reported hang.
HANG_RAISES = 2.0
#: The same phase on many ranks at one time is one observation: they begin and end together, seconds.
SAME_TIME_S = 5.0
#: Phases with a learned length; of others only the step time counts. Slots hold 24 names.
MAX_PHASES = 128
#: Newest step times in the median.
STEP_TIMES = 64
#: Fewest step times from slots, before times between logged rows are used: slots are sampled once a second, rows are
#: complete.
FEW_STEP_TIMES = 3

_LONG = frozenset(
    {
        "checkpoint", "checkpointing", "ckpt", "compile", "eval", "evaluate", "evaluation", "init", "load", "restore",
        "rollback", "save", "setup", "test", "val", "valid", "validate", "validation", "warmup",
    }
)  # fmt: skip
#: Loading one of these is a part of each step.
_A_STEP = frozenset({"batch", "batches", "data", "sample", "samples"})
_WORDS = re.compile(r"[a-z]+")


@lru_cache(maxsize=4_096)
def is_long(phase: str) -> bool:
    """Return whether a phase's name is of a long one."""
    words = set(_WORDS.findall(phase.lower()))
    if not words.isdisjoint(_A_STEP):
        words.discard("load")
    return not _LONG.isdisjoint(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of the learned budgets, all in seconds.

    Args:
        hang_floor_s: least budget (``STABILITY_HANG_FLOOR_S``).
        hang_ceiling_s: greatest learned budget of a usual phase (``STABILITY_HANG_CEILING_S``).
        agent_lost_s: longest silence of an agent (``STABILITY_AGENT_LOST_S``). Above 20: an agent stopped for 20 s has
            harmed nothing.
    """

    hang_floor_s: float = 10.0
    hang_ceiling_s: float = 1_800.0
    agent_lost_s: float = 30.0


@dataclass(slots=True)
class LongestTime:
    """The longest time of an action, its number of observations, and the last one (``at``, unix seconds)."""

    longest_s: float = 0.0
    times: int = 0
    at: float = -math.inf


@dataclass(slots=True)
class Budgets:
    """Observed times of the ranks of one run. Bounded; part of the run's snapshot."""

    phases: dict[str, LongestTime] = field(default_factory=dict)
    step: LongestTime = field(default_factory=LongestTime)
    first_step: LongestTime = field(default_factory=LongestTime)
    _steps_s: deque[float] = field(default_factory=lambda: deque(maxlen=STEP_TIMES))
    _rows_s: deque[float] = field(default_factory=lambda: deque(maxlen=STEP_TIMES))
    #: Seconds between two rows, for any number of steps between them.
    _waits_s: deque[float] = field(default_factory=lambda: deque(maxlen=STEP_TIMES))

    @property
    def usual_step_s(self) -> float | None:
        """Return the median step time, None before one."""
        times = sorted(self._steps_s if len(self._steps_s) >= FEW_STEP_TIMES else [*self._steps_s, *self._rows_s])
        return times[len(times) // 2] if times else None

    def of(
        self, phase: str, expect_s: float, limits: Limits, *, first_step_done: bool, stand_s: float = 0.0
    ) -> float:  # fmt: skip
        """Return the budget of a rank in a phase, seconds.

        Args:
            phase: its name, empty for none.
            expect_s: the declared length, 0 for none.
            limits: floor and ceiling.
            first_step_done: whether the process has finished a step.
            stand_s: the longest stall of this rank without a phase.
        """
        usual = self._usual(phase, limits, stand_s)
        if expect_s > 0:
            return max(DECLARED_FACTOR * expect_s, usual)
        if is_long(phase):
            return _long(self.phases.get(phase))
        return usual if first_step_done else max(_long(self.first_step), usual)

    def _usual(self, phase: str, limits: Limits, stand_s: float = 0.0) -> float:
        step_s = max(self.step.longest_s, self._wait_s(), 0.0 if phase else stand_s)
        if step_s == 0.0:
            step_s = self.first_step.longest_s  # the only one yet: too long rather than too short
        seen = None if is_long(phase) else self.phases.get(phase)
        learned = (
            FACTOR * step_s if seen is None or seen.times == 0 else max(FACTOR * seen.longest_s, STEP_FACTOR * step_s)
        )
        return max(min(learned, limits.hang_ceiling_s), _floor(phase, limits))

    def _budget_for(self, took_s: float, phase: str, limits: Limits, stand_s: float = 0.0) -> float:
        """Return the budget for ``_take``, or any larger one that has the same effect."""
        floor_s = min(_floor(phase, limits), LONG_FLOOR_S)
        return floor_s if took_s <= floor_s else self._usual(phase, limits, stand_s)

    def _wait_s(self) -> float:
        if self.step.times >= FEW_STEP_TIMES or not self._waits_s:
            return 0.0
        return sorted(self._waits_s)[len(self._waits_s) // 2]

    def learn_phase(self, phase: str, took_s: float, now: float, limits: Limits) -> None:
        """Take the length of one completed pass through a phase."""
        seen = self.phases.get(phase)
        if seen is None:
            if len(self.phases) >= MAX_PHASES:
                return
            seen = self.phases[phase] = LongestTime()
        elif _is_known(seen, took_s, now):
            return
        _take(seen, took_s, _long(seen) if is_long(phase) else self._budget_for(took_s, phase, limits), now)

    def learn_step(self, took_s: float, now: float, limits: Limits) -> None:
        """Take the time of one step."""
        known = took_s <= limits.hang_floor_s and _is_known(self.step, took_s, now)
        if known or _take(self.step, took_s, self._budget_for(took_s, "", limits), now):
            self._steps_s.append(took_s)

    def learn_first_step(self, took_s: float, now: float) -> None:
        """Take the time from a process's first report to the end of its first step."""
        _take(self.first_step, took_s, _long(self.first_step), now)

    def learn_rows(self, took_s: float, steps: int) -> None:
        """Take the time of some steps between two logged rows; one that can be no step time is passed over."""
        if 0 < took_s <= LONG_FLOOR_S:
            self._rows_s.append(took_s / steps)
            self._waits_s.append(took_s)

    def learn_many(self, order: NDArray[np.int64], took_s: NDArray[np.float64], steps: NDArray[np.int64]) -> None:
        """Take many, as ``learn_rows`` takes each in its order."""
        usable = (took_s > 0) & (took_s <= LONG_FLOOR_S)
        newest = np.argsort(order[usable])[-STEP_TIMES:]
        took_s, steps = took_s[usable][newest], steps[usable][newest]
        self._rows_s.extend((took_s / steps).tolist())
        self._waits_s.extend(took_s.tolist())

    def learn_stand(self, seen: LongestTime, took_s: float, now: float, limits: Limits, *, sparse: bool) -> None:
        """Take the stall of a rank without a phase.

        Args:
            seen: earlier ones of that rank.
            sparse: the others made steps meanwhile: no hang at any length.
        """
        budget_s = math.inf if sparse else self._budget_for(took_s, "", limits, seen.longest_s)
        seen.times = max(seen.times, 1)  # the first one may be a hang like any other
        _take(seen, took_s, budget_s, now)

    def is_known(self, phase: str) -> bool:
        """Return whether the length of a phase was learned."""
        return phase in self.phases


def _floor(phase: str, limits: Limits) -> float:
    return limits.hang_floor_s * (1.0 if phase else UNNAMED_FACTOR)


def _long(seen: LongestTime | None) -> float:
    if seen is None or seen.times == 0:
        return LONG_FLOOR_S
    floor_s = LONG_FLOOR_S if seen.times < 2 else LONG_SEEN_FLOOR_S
    return min(max(floor_s, FACTOR * seen.longest_s), LONG_CEILING_S)


def _is_known(seen: LongestTime, took_s: float, now: float) -> bool:
    """Return whether a time is no news, as nearly all of thousands of ranks in the same step."""
    return 0 <= took_s <= seen.longest_s and 0 <= now - seen.at < SAME_TIME_S


def _take(seen: LongestTime, took_s: float, budget_s: float, now: float) -> bool:
    """Record a time; return whether it was within its budget."""
    if not 0 <= took_s < math.inf:
        return False
    usual = took_s <= (budget_s if seen.times else LONG_FLOOR_S)
    seen.longest_s = max(seen.longest_s, took_s if usual else min(took_s, HANG_RAISES * budget_s / FACTOR))
    if not 0 <= now - seen.at < SAME_TIME_S:
        seen.times += 1
        seen.at = now
    return usual
