"""The context manager behind ``run.phase``."""

from __future__ import annotations

from _thread import get_ident
from time import monotonic, time

from stabilityclient.rank_state.slot import CLAIM_FIRST, MAX_EXPECT_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stabilityclient.guard import Guard
    from stabilityclient.rank_state.slot import PhaseEntry, Slot

__all__ = ["Phase", "saves"]

#: Time left to an undeclared phase inside an overdue declared one, seconds. Not 0, which
#: would mean that nothing is declared.
OVERDUE_S = 0.001

#: Words in the name of a phase in which a checkpoint is saved, and those of a part of each step: ``checkpoint_forward``
#: stores none.
_SAVING = frozenset({"checkpoint", "checkpointing", "ckpt", "save", "saving"})
_STEP_PARTS = frozenset({"forward", "backward"})


def saves(name: str) -> bool:
    """Return whether a phase of this name is one in which a checkpoint is saved."""
    words = set(name.lower().replace("-", "_").replace("/", "_").replace(" ", "_").split("_"))
    return bool(words & _SAVING) and not words & _STEP_PARTS


class Phase:
    """Shows the rank's activity in the slot; phases may be nested, the outer one comes back.

    The time of a nested phase is not its parent's. A phase without an own declaration inside a declared one is allowed
    the rest of the outer one. Durations are taken from a clock that never steps.

    Args:
        slot: None for a run that is disabled or over.
        name: of the phase. expect_s: how long it may take, seconds, or None.
    """

    __slots__ = (
        "_active",
        "_deadline",
        "_declared",
        "_entry",
        "_expect_s",
        "_guard",
        "_inner_s",
        "_label",
        "_name",
        "_outer",
        "_shown",
        "_since",
        "_slot",
        "_start",
    )

    #: Monotonic seconds at which the declared time has ended, 0.0 for never; whether this phase declared it itself.
    _deadline: float
    _declared: bool
    _entry: PhaseEntry
    _inner_s: float
    _label: bytes
    _outer: Phase | None
    _shown: bool
    _since: float
    _start: float

    def __init__(self, slot: Slot | None, guard: Guard, name: str, expect_s: float | None) -> None:
        self._slot = slot
        self._guard = guard
        self._name = name
        self._expect_s = expect_s
        self._active = False

    def __enter__(self) -> Phase:
        slot = self._slot
        if slot is None or self._active:
            return self
        try:
            name = self._name if type(self._name) is str else str(self._name)
            self._label, self._entry = slot.phases.known.get(name) or slot.phases.find(name)
            given = self._expect_s
            expect_s = 0.0 if given is None else float(given)
            self._inner_s = 0.0
            self._start = start = monotonic()
            self._shown = shown = get_ident() == slot.owner or slot.claim(CLAIM_FIRST)
            self._active = True
            if shown:
                self._outer = outer = slot.top
                slot.top = self
                self._declared = declared = 0.0 < expect_s < MAX_EXPECT_S
                if declared:
                    self._deadline = start + expect_s
                elif outer is not None and outer._deadline:
                    self._deadline = outer._deadline
                    expect_s = max(OVERDUE_S, outer._deadline - start)
                else:
                    self._deadline = expect_s = 0.0
                self._since = since = time()
                slot.show(self._label, since, expect_s)
        except Exception as error:
            self._guard.caught("phase()", error)
        return self

    def saving(self) -> tuple[PhaseEntry, float] | None:
        """Return the outermost phase that saves a checkpoint, this one or around it, and its seconds until now."""
        found = None
        phase: Phase | None = self
        while phase is not None:
            if phase._active and saves(str(phase._name)):
                found = phase._entry, monotonic() - phase._start
            phase = phase._outer
        return found

    def __exit__(self, *_: object) -> None:
        slot = self._slot
        if slot is None or not self._active:
            return
        self._active = False
        try:
            now = monotonic()
            took_s = now - self._start
            own_s = took_s - self._inner_s
            slot.phases.add(self._entry, own_s if own_s > 0.0 else 0.0)
            if not self._shown:
                return
            outer = self._outer
            while outer is not None and not outer._active:  # it ended before this one, in a generator say
                outer = outer._outer
            self._outer = None
            if outer is not None:
                outer._inner_s += took_s
            if slot.top is not self:
                return
            slot.top = outer
            if outer is None:
                slot.show(b"", time(), 0.0)
            elif outer._declared:  # its time runs on
                slot.show(outer._label, outer._since, outer._deadline - outer._start)
            else:
                slot.show(outer._label, time(), max(OVERDUE_S, outer._deadline - now) if outer._deadline else 0.0)
        except Exception as error:
            self._guard.caught("phase()", error)
