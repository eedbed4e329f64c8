"""What is known of one rank's process from its slot: is it moving, and how long may it stand still."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: A rank may stand for this many times the longest step that it was seen to take ...
STEP_BUDGET_FACTOR = 5.0
#: ... but never less than the monitor's floor, because short pauses are normal, and never more than this, seconds.
STEP_BUDGET_CEILING_S = 1_800.0
#: Budget of a process that has not finished its first step yet, and of a long phase without a declared length, seconds.
LONG_FLOOR_S = 600.0
#: Longest budget that a learned long phase may get, seconds.
LONG_CEILING_S = 7_200.0
#: A declared phase may take this many times what it declared.
DECLARED_FACTOR = 1.5
#: Step times remembered per rank.
STEP_TIMES = 64
#: Step times below which those between logged rows are taken too: slots are seen once a second, rows all.
FEW_STEP_TIMES = 3
#: Long phases whose length is learned, per rank.
MAX_LEARNED_PHASES = 32
#: The beat grows once a second while Python runs. Standing still so long means: stopped, or the GIL is held, seconds.
BEAT_STOPPED_AFTER_S = 5.0

#: Phases that may be long without being a hang.
LONG_PHASES = frozenset({"checkpoint", "eval", "validation", "compile", "init", "restore", "rollback"})
#: Order of the usual phases within a step: the rank that is furthest back is the one that the others wait for.
PHASE_ORDER = ("data", "forward", "backward", "optimizer")
_STATES = ("running", "finished", "left", "exception")

__all__ = ["LONG_PHASES", "PHASE_ORDER", "RankWatch", "start_of"]


def start_of(source: str) -> int:
    """Return the start time in a source id (``r<rank>-<start in hex ns>-<pid>``), 0 where there is none."""
    parts = source.split("-")
    try:
        return int(parts[1], 16) if len(parts) > 1 else 0
    except ValueError:
        return 0


@dataclass(slots=True)
class RankWatch:
    """One process of one rank.

    Args:
        rank: global rank.
        source: id of the process start.
    """

    rank: int
    source: str
    agent: str = ""
    node: str = ""
    pid: int = 0
    alive: bool = True
    state: str = "running"
    step: int = -1
    phase: str = ""
    expect_s: float = 0.0
    seen_at: float = 0.0
    moved_at: float = 0.0
    first_step_done: bool = False
    exception: dict[str, Any] | None = None
    dead: bool = False
    _step_start: float = 0.0
    _phase_start: float = 0.0
    _stood_s: float = 0.0
    _beat: int = -1
    _beat_at: float = 0.0
    _excused_until: float = 0.0
    _step_times: deque[float] = field(default_factory=lambda: deque(maxlen=STEP_TIMES))
    _phase_times: dict[str, float] = field(default_factory=dict)
    _logged: tuple[int, float] | None = None

    @property
    def running(self) -> bool:
        """True while the process is there and has neither finished nor died."""
        return self.alive and self.state == "running" and not self.dead

    @property
    def in_long_phase(self) -> bool:
        """True in a phase that may be long: a known long one, or one with a declared length."""
        return self.phase in LONG_PHASES or self.expect_s > 0

    @property
    def usual_step_s(self) -> float | None:
        """Return the median step time, or None before two steps were seen."""
        times = sorted(self._step_times)
        return times[len(times) // 2] if times else None

    def observe(self, slot: Mapping[str, Any], health: Mapping[str, Any], now: float) -> None:
        """Take the newest slot of this process.

        Args:
            slot: one entry of a Health message's ``ranks``.
            health: the message; its ``time`` is on the same clock as the slot's times.
            now: unix seconds of the server.
        """
        step, phase = int(slot.get("step", -1)), str(slot.get("phase") or "")
        step_start, phase_start = float(slot.get("step_start") or 0.0), float(slot.get("phase_start") or 0.0)
        first = self.seen_at == 0.0
        moved = first or (step, phase, phase_start, step_start) != (
            self.step,
            self.phase,
            self._phase_start,
            self._step_start,
        )
        if not first:
            self._learn(step, step_start, phase_start, now)
        if moved:
            self.moved_at = now
        if first or int(slot.get("beat") or 0) != self._beat:
            self._beat, self._beat_at = int(slot.get("beat") or 0), now
        self.step, self.phase, self._step_start, self._phase_start = step, phase, step_start, phase_start
        self.expect_s = float(slot.get("expect_s") or 0.0)
        self.alive = bool(slot.get("alive", True))
        if self.state != "finished":  # its own word; a slot that was read just before must not take it back
            self.state = _state(slot.get("state", "running"))
        self.pid = int(slot.get("pid") or 0)
        self.agent, self.node = str(health["agent"]), str(health.get("node") or "")
        self.seen_at = now
        entered = max(step_start, phase_start)
        self._stood_s = max(0.0, float(health["time"]) - entered) if entered > 0 else now - self.moved_at
        if self.in_long_phase:
            self._excused_until = now

    @property
    def stood_s(self) -> float:
        """Seconds for which neither step nor phase had changed when the rank was last seen.

        Not counted on from there: what we do not see is not claimed.
        """
        return self._stood_s

    @property
    def python_silent_s(self) -> float:
        """Seconds for which the process's Python had given no sign, 0 below BEAT_STOPPED_AFTER_S."""
        stood = self.seen_at - self._beat_at
        return stood if stood >= BEAT_STOPPED_AFTER_S else 0.0

    def budget_s(self, floor_s: float) -> float:
        """Return how long this rank may stand where it is before that is out of the ordinary, seconds."""
        longest = max(self._step_times, default=0.0)
        step_budget = min(max(STEP_BUDGET_FACTOR * longest, floor_s), STEP_BUDGET_CEILING_S)
        if self.expect_s > 0:
            return max(DECLARED_FACTOR * self.expect_s, step_budget)
        if self.phase in LONG_PHASES:
            learned = STEP_BUDGET_FACTOR * self._phase_times.get(self.phase, 0.0)
            return min(max(LONG_FLOOR_S, learned), LONG_CEILING_S)
        return step_budget if self.first_step_done else max(LONG_FLOOR_S, step_budget)

    def unseen(self) -> None:
        """Forget where the slot was seen: nobody has looked since. What the process said and how fast it is stays."""
        self.agent, self.phase, self.expect_s = "", "", 0.0
        self.seen_at = self.moved_at = self._step_start = self._phase_start = self._stood_s = 0.0
        self._beat, self._beat_at, self._excused_until = -1, 0.0, 0.0

    def excuse(self, now: float) -> None:
        """Another rank is in a long phase: what this one waits now is not its usual step time."""
        self._excused_until = now

    def logged(self, step: int, time: float) -> None:
        """Take a row that this process logged at ``time`` (its own clock): its first steps are done, and how fast.

        A process that stops within its first second shows only one slot, and after a restart of the server none that
        moved.
        """
        before, self._logged = self._logged, (step, time)
        if before is None or step <= before[0]:
            return
        took = (time - before[1]) / (step - before[0])
        if len(self._step_times) < FEW_STEP_TIMES and 0 <= took <= LONG_FLOOR_S:
            self._step_times.append(took)
            self.first_step_done = True

    def _learn(self, step: int, step_start: float, phase_start: float, now: float) -> None:
        """Learn from the change between the last slot and this one, unless the time was spent in a long phase."""
        if self.phase in LONG_PHASES and phase_start > self._phase_start > 0:
            known = self.phase in self._phase_times or len(self._phase_times) < MAX_LEARNED_PHASES
            if known:
                took = phase_start - self._phase_start
                self._phase_times[self.phase] = max(took, self._phase_times.get(self.phase, 0.0))
        if step <= self.step:
            return
        steps = step - self.step
        if self.step >= 0 and 0 < self._step_start < step_start:
            took = (step_start - self._step_start) / steps
            if self._excused_until < self.seen_at and took <= self.budget_s(LONG_FLOOR_S):
                self._step_times.append(took)
            self.first_step_done = True


def _state(value: object) -> str:
    """Return the slot's state as a word, whether it came as one or as its number."""
    if isinstance(value, int):
        return _STATES[value] if 0 <= value < len(_STATES) else "running"
    return str(value)
