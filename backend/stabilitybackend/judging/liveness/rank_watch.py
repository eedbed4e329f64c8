"""What is known of one rank's process from its slot: is it moving, and for how long has it been stalled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from stabilitybackend.judging.liveness.budgets import Budgets, Limits, Seen, is_long
from stabilitybackend.schema.health import GpuOfRank, PhaseTimes, Proc, RankHealth, WaitSamples
from stabilitybackend.schema.json_data import NAME_CHARS

#: The beat grows once a second while Python runs. Standing still so long means: stopped, or the GIL is held, seconds.
BEAT_STOPPED_AFTER_S = 5.0
#: Weight of one report in the share of those in which the main thread had run and in what it uses of a core, and the
#: share from which it is lively.
LIVELY_FADE = 0.1
LIVELY_SHARE = 0.4
#: Agents report once a second. After a longer silence the first report may be of before it: what it shows as a hang
#: counts only when the second report shows it too, seconds.
GAP_S = 3.0
#: Tables of phases are looked at every so many reports of an agent: phases shorter than this have the floor as budget.
TABLE_EVERY = 5
#: Names in a slot's table of phases.
MAX_TABLE = 24
#: Passes through a phase that a table must hold before it is believed at first sight (after a restart of the server).
FIRST_SIGHT_PASSES = 3
#: At first sight the longest pass is believed up to this many times the mean of the others: it may have been a compile.
FIRST_SIGHT_FACTOR = 20.0
#: Passes through a phase that took so much longer than the step so far were not all of this step, seconds.
OUTLASTS_S = 0.05
#: Largest rank that is believed.
MAX_RANK = 1_000_000
#: Largest number that is believed: no time and no counter is larger, and as a whole number JSON holds it.
MAX_NUMBER = 1e18

#: Order of the usual phases within a step: the rank that is furthest back is the one that the others wait for.
PHASE_ORDER = ("data", "forward", "backward", "optimizer")
_NO_PROC = Proc()
_STATES = ("running", "finished", "left", "exception")

__all__ = ["PHASE_ORDER", "RankWatch", "number"]


def number(value: object, default: float = 0.0) -> float:
    """Return a number as it is, anything else and what is beyond MAX_NUMBER as ``default``."""
    if type(value) is int or type(value) is float:
        return value if -MAX_NUMBER <= value <= MAX_NUMBER else default
    return default


class RankPlace(NamedTuple):
    """Where a process was: step, phase, seconds since anything changed, when the step began (server's unix seconds)."""

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
    stands: Seen = field(default_factory=Seen)
    #: It does not report each step: the others made several while it was stalled (``hang/overdue.py``).
    sparse: bool = False
    #: It reported no step though the others made several: only its phase says where it is (``hang/overdue.py``).
    stepless: bool = False
    #: How often it was seen to move.
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
    #: Why the slot can't be read, empty where it can.
    trouble: str = ""
    world_size: int = 0
    #: What the kernel said last.
    proc: Proc = field(default_factory=Proc)
    #: Share of a core that its main thread used of late.
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
        """True while the process is there and has neither finished nor died."""
        return self.alive and self.state == "running" and not self.dead

    @property
    def newest_step(self) -> int:
        """The newest step that its slot or a row shows, -1 before any."""
        return self.step if self._logged is None else max(self.step, self._logged[0])

    @property
    def since(self) -> float:
        """Since when it is where it is, unix seconds of the server."""
        return self._since[0]

    @property
    def in_long_phase(self) -> bool:
        """True in a phase that may be long: a known long one, or one with a declared length."""
        return self.expect_s > 0 or is_long(self.phase)

    @property
    def stalled_s(self) -> float:
        """Seconds for which neither step nor phase had changed when the rank was last seen.

        Not counted on from there: what we do not see is not claimed.
        """
        return self._stood_s

    @property
    def python_silent_s(self) -> float:
        """Seconds for which the process's Python had given no sign, 0 below BEAT_STOPPED_AFTER_S."""
        silent_s = self._for(self._beat_since) if self._beat >= 0 else 0.0
        return silent_s if silent_s >= BEAT_STOPPED_AFTER_S else 0.0

    @property
    def main_silent_s(self) -> float | None:
        """Seconds for which the main thread had run no Python (the pending calls), None where that is not known."""
        return self._for(self._pending_since) if self._pending >= 0 else None

    @property
    def lively(self) -> bool:
        """Whether the main thread has run Python again and again of late, though it reported no progress.

        One that waits for a batch or a rank that never comes does not, or once in 5 s: torch's loaders look after their
        workers so often.
        """
        return self._main_ran >= LIVELY_SHARE

    def observe(
        self, slot: RankHealth, agent: str, node: str, at: float, clock: float, now: float
    ) -> None:  # fmt: skip
        """Take the newest slot of this process.

        Args:
            agent, node: who says it.
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
            # It moved between the last message and this one; the node's own clock says when, if that is believable.
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
        """Go on with the clock of another agent: what passed in between is not counted."""
        if self.seen_at:
            self._since = (now - self._stood_s, at - self._stood_s)
            self._beat_since = self._pending_since = (now, at)
        self._at = at

    # --- learning ------------------------------------------------------------------------------------------------

    def learn(self, before: RankPlace, budgets: Budgets, limits: Limits, excused_until: float, now: float) -> None:
        """Learn from what changed with the newest slot.

        Args:
            before: where it was before ``observe``.
            excused_until: when some rank was last in a long phase: who waited for it was not slow, unix seconds.
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

    def logged(self, step: int, time: float, rows: int, budgets: Budgets) -> None:
        """Take a row that this process logged at ``time`` (its own clock): its first steps are done, and how fast.

        A process that stops within its first second shows only one slot, and after a restart of the server none that
        moved.

        Args:
            rows: how many came since the row that was taken before.
        """
        before, self._logged = self._logged, (step, time)
        if before is None or step <= before[0]:
            return
        budgets.learn_rows(time - before[1], step - before[0], max(1, rows))
        self.first_step_done = True

    def unseen(self) -> None:
        """Forget where the slot was seen: nobody has looked since. What the process reported and its pace stay."""
        self.agent, self.phase, self.expect_s, self.trouble = "", "", 0.0, ""
        self.seen_at = self.moved_at = self._step_start = self._phase_start = self._stood_s = 0.0
        self._beat, self._pending, self._at, self._learned_at = -1, -1, 0.0, 0.0
        self._first_seen = self._step_seen = 0.0
        self.proc, self.table, self._learned = _NO_PROC, {}, {}

    @property
    def place(self) -> RankPlace:
        """Where it is."""
        # A named tuple's own constructor costs three times as much.
        return tuple.__new__(RankPlace, (self.step, self.phase, self._stood_s, self._step_seen))


def _outlasts(table: Mapping[str, PhaseTimes], seconds: float) -> bool:
    """Say whether the passes through a phase took longer than the step has: then they began in an earlier one."""
    return any(
        not is_long(name) and seen.count >= 2 and seen.total_s > max(0.0, seconds) + OUTLASTS_S
        for name, seen in islice(table.items(), MAX_TABLE)
    )
