"""One rank's process by its slot: moves and stalls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.judging.liveness.budgets import Budgets, Limits, LongestTime, is_long
from stabilitybackend.schema.health import GpuOfRank, PhaseTimes, Proc, RankHealth, WaitSamples
from stabilitybackend.schema.json_data import NAME_CHARS

#: The beat grows once a second while Python runs. A longer standstill means: stopped, or the GIL is held, seconds.
BEAT_STOPPED_AFTER_S = 5.0
#: Weight of one report in the share of those with a running main thread and in its use of a core, and the share of a
#: lively one.
LIVELY_FADE = 0.1
LIVELY_SHARE = 0.4
#: Agents report once a second. After a longer silence the first report may be old: a hang in it counts only when the
#: second report shows it too, seconds.
GAP_S = 3.0
#: Reports of an agent between reads of a table of phases: shorter phases have the floor as budget.
TABLE_EVERY = 5
#: Names in a slot's table of phases.
MAX_TABLE = 24
#: Fewest passes in a table that count at its first report (after a restart of the server).
FIRST_SIGHT_PASSES = 3
#: Largest ratio of the longest pass to the mean of the others at the first report: it may have been a compile.
FIRST_SIGHT_FACTOR = 20.0
#: Passes through a phase that took so much longer than the step so far began before it, seconds.
OUTLASTS_S = 0.05
#: Largest valid rank.
MAX_RANK = 1_000_000
#: Largest valid number: no time and no counter is larger, and as a whole number JSON holds it.
MAX_NUMBER = 1e18

#: Order of the usual phases within a step: the rank furthest back is the awaited one.
PHASE_ORDER = ("data", "forward", "backward", "optimizer")
_NO_PROC = Proc()
_STATES = ("running", "finished", "left", "exception")

__all__ = ["PHASE_ORDER", "RankWatch", "number"]


def number(value: object, default: float = 0.0) -> float:
    """Return a number, or ``default`` for anything else and beyond MAX_NUMBER."""
    if type(value) is int or type(value) is float:
        return value if -MAX_NUMBER <= value <= MAX_NUMBER else default
    return default


class RankPlace(NamedTuple):
    """Position of a process: step, phase, seconds since a change, start of the step (server's unix seconds)."""

    step: int
    phase: str
    stalled_s: float
    step_seen: float


@dataclass(slots=True, eq=False)
class RankWatch:
    """One process of one rank.

    Times are measured by two clocks, the server's and the agent's (made steady by ``agents.py``), and the shorter one
    counts: a clock that jumps, a message that waited and an agent that was stopped make no hang.
    """

    rank: int
    source: str
    #: The longest stall of this rank without a phase, over its processes.
    stands: LongestTime = field(default_factory=LongestTime)
    #: It skips steps in its reports: the others made several while it was stalled (``hang/overdue.py``).
    sparse: bool = False
    #: It reported no step though the others made several: it has only a phase (``hang/overdue.py``).
    stepless: bool = False
    #: Number of observed moves.
    moves: int = 0
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
    dead: bool = False
    #: Why the slot can't be read, empty for no reason.
    trouble: str = ""
    world_size: int = 0
    #: The newest facts of the kernel.
    proc: Proc = field(default_factory=Proc)
    #: Recent share of a core of its main thread.
    main_cpu: float = 0.0
    gpu: GpuOfRank | None = None
    #: The newest table of phases.
    table: Mapping[str, PhaseTimes] = field(default_factory=dict)
    #: The newest samples of whether it waits for other ranks.
    waits: WaitSamples | None = None
    _step_start: float = 0.0
    _phase_start: float = 0.0
    _at: float = 0.0
    _stood_s: float = 0.0
    _since: tuple[float, float] = (0.0, 0.0)
    _beat: int = -1
    _beat_since: tuple[float, float] = (0.0, 0.0)
    _pending: int = -1
    _pending_since: tuple[float, float] = (0.0, 0.0)
    #: Share of the newest writes in which the main thread had run Python since the report before.
    _main_ran: float = 0.0
    _first_seen: float = 0.0
    _step_seen: float = 0.0
    _looks: int = 0
    _learned: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    _learned_at: float = 0.0
    _logged: tuple[int, float] | None = None

    @property
    def running(self) -> bool:
        """True for a process that has neither finished nor died."""
        return self.alive and self.state == "running" and not self.dead

    @property
    def newest_step(self) -> int:
        """The newest step of its slot or a row, -1 before any."""
        return self.step if self._logged is None else max(self.step, self._logged[0])

    @property
    def since(self) -> float:
        """Start of its present position, unix seconds of the server."""
        return self._since[0]

    @property
    def in_long_phase(self) -> bool:
        """True in a long phase: a listed one, or one with a declared length."""
        return self.expect_s > 0 or is_long(self.phase)

    @property
    def stalled_s(self) -> float:
        """Seconds without a change of step and phase up to the last report. Unobserved time does not count."""
        return self._stood_s

    @property
    def python_silent_s(self) -> float:
        """Seconds without a sign of the process's Python, 0 below BEAT_STOPPED_AFTER_S."""
        silent_s = self._for(self._beat_since) if self._beat >= 0 else 0.0
        return silent_s if silent_s >= BEAT_STOPPED_AFTER_S else 0.0

    @property
    def main_silent_s(self) -> float | None:
        """Seconds without Python in the main thread (the pending calls), None for unknown."""
        return self._for(self._pending_since) if self._pending >= 0 else None

    @property
    def lively(self) -> bool:
        """Whether the main thread ran Python repeatedly of late, though without progress.

        A rank that waits for a batch or an absent rank does not, or once in 5 s: torch's loaders check their workers so
        often.
        """
        return self._main_ran >= LIVELY_SHARE

    def observe(
        self, slot: RankHealth, agent: str, node: str, at: float, clock: float, now: float
    ) -> None:  # fmt: skip
        """Take the newest slot of this process.

        Args:
            agent, node: of the report.
            at: the same moment by the agent's steady clock, seconds.
            clock: the message's own time, on the clock of the slot's times.
            now: unix seconds of the server.
        """
        first, gap = self.seen_at == 0.0, now - self.seen_at > GAP_S
        if agent != self.agent:
            self._anchor(at, now)
        passed_s = max(0.0, min(now - self.seen_at, at - self._at)) if not first else 0.0
        self.agent, self.node, self._at = agent, node, at
        self.alive = slot.alive is not False
        self.pid, self.world_size = slot.pid or 0, slot.world_size or 0
        self.gpu, self.proc = slot.gpu, slot.proc or _NO_PROC
        self.trouble = (slot.trouble or "")[:200]
        if slot.step is None:  # there is a process, and its slot can't be read
            self.trouble = self.trouble or "its slot can't be read"
            self.seen_at = now
            return
        if self.state not in ("finished", "left"):  # a slot that was read just before must not take it back
            self.state = slot.state if slot.state in _STATES else "running"
        step, phase = slot.step, (slot.phase or "")[:NAME_CHARS]
        step_start, phase_start = slot.step_start or 0.0, slot.phase_start or 0.0
        self.expect_s = max(0.0, slot.expect_s or 0.0)
        if first or step != self.step or phase != self.phase or (step_start, phase_start) != (
            self._step_start, self._phase_start,
        ):  # fmt: skip
            self.moved_at = now
            self.moves += not first
            # It moved between the last message and this one; the node's own clock has the moment, if plausible.
            ago = min(max(0.0, clock - max(step_start, phase_start)), passed_s) if step_start or phase_start else 0.0
            self._since = (now - ago, at - ago)
            self._stood_s = ago
            if first or step != self.step:
                self._step_seen = now - ago
        else:
            stalled_s = self._for(self._since, now)
            self._stood_s = min(stalled_s, self._stood_s + GAP_S) if gap else stalled_s
        self.step, self.phase, self._step_start, self._phase_start = step, phase, step_start, phase_start
        self.stepless &= step < 0
        beat, moment = -1 if slot.beat is None else slot.beat, (now, at)
        if first or beat != self._beat:
            self._beat, self._beat_since = beat, moment
        elif gap:
            self._beat_since = (max(self._beat_since[0], now - GAP_S), self._beat_since[1])
        pending = slot.pending
        ran = pending is not None and pending != self._pending
        self._main_ran += (ran - self._main_ran) * LIVELY_FADE
        self.main_cpu += (max(0.0, self.proc.cpu or 0.0) - self.main_cpu) * LIVELY_FADE
        if pending is not None and (first or ran):
            self._pending, self._pending_since = pending, moment
        self.seen_at = now
        if first and self._first_seen == 0.0:
            self._first_seen = now
        self.waits = slot.waits
        if slot.phases is not None:
            if not self.table and step_start:
                self.first_step_done |= _outlasts(slot.phases, phase_start - step_start)
            self.table = slot.phases

    def _for(self, since: tuple[float, float], now: float | None = None) -> float:
        return max(0.0, min((self.seen_at if now is None else now) - since[0], self._at - since[1]))

    def _anchor(self, at: float, now: float) -> None:
        """Continue with the clock of another agent: the time in between does not count."""
        if self.seen_at:
            self._since = (now - self._stood_s, at - self._stood_s)
            self._beat_since = self._pending_since = (now, at)
        self._at = at

    # --- learning ------------------------------------------------------------------------------------------------

    def learn(self, before: RankPlace, budgets: Budgets, limits: Limits, excused_until: float, now: float) -> None:
        """Learn from the changes of the newest slot.

        Args:
            before: its position before ``observe``.
            excused_until: last time of some rank in a long phase, unix seconds: waits for it were not slow.
        """
        moved = self.moved_at == now
        if moved and before.step >= 0 and not before.phase:
            alone = self.first_step_done and excused_until < now - before.stalled_s
            if self.sparse or alone:
                budgets.learn_stand(self.stands, before.stalled_s, now, limits, sparse=self.sparse)
        if self.step > before.step >= 0:
            if not self.first_step_done:
                self.first_step_done = True
                if self._first_seen and not self.sparse:
                    budgets.learn_first_step(now - self._first_seen, now)
            elif excused_until < before.step_seen:
                budgets.learn_step((self._step_seen - before.step_seen) / (self.step - before.step), now, limits)
        if moved and not self.table and is_long(before.phase):
            budgets.learn_phase(before.phase, before.stalled_s, now, limits)  # a client without tables
        self._looks += 1
        if self.table and (self._looks + self.rank) % TABLE_EVERY == 0:
            self._learn_table(budgets, limits, excused_until, now)

    def _learn_table(self, budgets: Budgets, limits: Limits, excused_until: float, now: float) -> None:
        at_first_sight = self._learned_at == 0.0
        clean = excused_until < self._learned_at
        for name, seen in islice(self.table.items(), MAX_TABLE):
            count, total, longest = seen.count, seen.total_s, seen.longest_s
            known = self._learned.get(name)
            if known is None and len(self._learned) >= MAX_TABLE:
                self._learned.clear()  # names that change all the time: nothing to learn from
            if known == (count, total, longest) or min(count, total, longest) < 0:
                continue
            self._learned[name] = (count, total, longest)
            took = None
            if is_long(name):
                old = known or (0.0, 0.0, 0.0)
                if count > old[0]:
                    took = longest if longest > old[2] else (total - old[1]) / (count - old[0])
            elif known is not None:
                if count > known[0] and clean and self.first_step_done:
                    took = longest if longest > known[2] else (total - known[1]) / (count - known[0])
            elif at_first_sight and count >= FIRST_SIGHT_PASSES and not budgets.is_known(name):
                took = min(longest, FIRST_SIGHT_FACTOR * max(0.0, total - longest) / (count - 1))
            if took is not None:
                budgets.learn_phase(name[:NAME_CHARS], took, now, limits)
        self._learned_at = now

    def logged(self, step: int, time: float, budgets: Budgets) -> None:
        """Take a row that this process logged at ``time`` (its own clock): its first steps are done, and how fast.

        A process that stops within its first second sends only one slot, and after a restart of the server none that
        moved.
        """
        before, self._logged = self._logged, (step, time)
        if before is None or step <= before[0]:
            return
        budgets.learn_rows(time - before[1], step - before[0])
        self.first_step_done = True

    def logged_rows(
        self, steps: NDArray[np.int64], times: NDArray[np.float64], order: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
        """Take rows as ``logged`` takes each; return the order, the seconds and the steps of those that go on."""
        if self._logged is not None:
            steps, times = np.append(self._logged[0], steps), np.append(self._logged[1], times)
        else:
            order = order[1:]
        self._logged = int(steps[-1]), float(times[-1])
        made = np.diff(steps)
        with np.errstate(invalid="ignore"):  # of a clock that is no number
            took = np.diff(times)
        on = made > 0
        self.first_step_done = self.first_step_done or bool(on.any())
        return order[on], took[on], made[on]

    def unseen(self) -> None:
        """Forget the last position of the slot: unobserved since. Reports and pace of the process stay."""
        self.agent, self.phase, self.expect_s, self.trouble = "", "", 0.0, ""
        self.seen_at = self.moved_at = self._step_start = self._phase_start = self._stood_s = 0.0
        self._beat, self._pending, self._at, self._learned_at = -1, -1, 0.0, 0.0
        self._first_seen = self._step_seen = 0.0
        self.proc, self.table, self._learned = _NO_PROC, {}, {}

    @property
    def place(self) -> RankPlace:
        # A named tuple's own constructor costs three times as much.
        return tuple.__new__(RankPlace, (self.step, self.phase, self._stood_s, self._step_seen))


def _outlasts(table: Mapping[str, PhaseTimes], seconds: float) -> bool:
    """Return whether the passes through a phase took longer than the step: then they began in an earlier one."""
    return any(
        not is_long(name) and seen.count >= 2 and seen.total_s > max(0.0, seconds) + OUTLASTS_S
        for name, seen in islice(table.items(), MAX_TABLE)
    )
