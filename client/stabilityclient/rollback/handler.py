"""Carries out an ordered rollback with the job's own code, and reports its capabilities and results."""

from __future__ import annotations

from stabilityclient.arguments import cut, plain
from stabilityclient.errors import RefusedError
from stabilityclient.rollback.decision import Rollback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from stabilityclient.guard import Guard
    from stabilityclient.rank_state.slot import Slot
    from stabilityclient.rollback.boundary import Boundary

__all__ = ["CHANGES", "RankLineage", "Restoring"]

#: Changes that a command may ask for in addition to the step.
CHANGES = ("lr_scale", "seed", "skip_batches", "skip_range")
#: Facts that a handler may report of one rollback.
MAX_APPLIED = 32
#: Longest text of a handler's exception, characters.
MAX_TEXT_CHARS = 10_000


class Restoring:
    """The rollbacks of one rank: a handler's, or those that ``run.boundary`` returned.

    Args:
        event: logs an event: ``event(kind, step, data)``.
        guard: takes exceptions that must not reach training.
    """

    def __init__(self, event: Callable[[str, int | None, dict[str, Any]], object], guard: Guard) -> None:
        self._event = event
        self._guard = guard
        self._handler: Callable[[Rollback], object] | None = None
        self._later = False
        #: The job itself carries out the result of ``boundary()``.
        self.promised = False
        #: The rollback whose state is not back yet: command, step of its boundary, whether the next row is in its
        #: segment already (a handler noted it), or the old one continues until then (``boundary()`` returned it).
        self._open: tuple[Mapping[str, Any], int, bool] | None = None

    @property
    def has_handler(self) -> bool:
        """Whether there is a handler for loops over ``steps()``."""
        return self._handler is not None

    def named(self, can: Iterable[str] | None) -> list[str] | None:
        """Return the changes in ``can``, in the order of CHANGES; None where nothing, or nothing usable, was given."""
        if can is None:
            return None
        try:
            given = [] if isinstance(can, str) else [str(name) for name in can]
            if isinstance(can, str) or not set(given) <= set(CHANGES):
                raise RefusedError([f"can is {can!r:.80}, expected a tuple of some of {', '.join(CHANGES)}"])
            return [name for name in CHANGES if name in given]
        except Exception as error:
            self._guard.caught("on_rollback()", error)
            return None

    def take(self, handler: Callable[[Rollback], object], can: list[str] | None, later: bool) -> None:
        """Register the handler and report its supported changes."""
        self._handler, self._later = handler, later
        self._say(can, "on_rollback()")

    def promise(self, can: list[str]) -> None:
        """The job carries out the result of ``boundary()``: report its supported changes."""
        self.promised = True
        self._say(can, "can_roll_back()")

    def _say(self, can: list[str] | None, place: str) -> None:
        try:
            self._event("handler", None, {"can": can, "branches": True})
        except Exception as error:
            self._guard.caught(place, error)

    def call(self, command: Mapping[str, Any], step: int) -> tuple[Rollback, object]:
        """Call the handler and return its argument and its answer.

        Raises:
            Exception: raised by the handler; the command is reported as failed.
        """
        rollback = Rollback.of(command)
        assert self._handler is not None  # a rank without one rejects, and then no rank acts
        try:
            return rollback, self._handler(rollback)
        except BaseException as error:
            text = cut(f"the handler raised {type(error).__name__}: {error}", MAX_TEXT_CHARS)
            self.report(command, "failed", text, step)
            raise

    def back(self, command: Mapping[str, Any], step: int, answer: object) -> bool:
        """The handler returned: report whether the rank has gone back, or it only noted the order."""
        if self._later:
            self._open = (command, step, True)
        else:
            self.acted(command, step, answer)
        return not self._later

    def hand_out(self, command: Mapping[str, Any], step: int) -> Rollback:
        """Return the rollback that the job itself is to carry out, and wait for its report."""
        self._open = (command, step, False)
        return Rollback.of(command)

    def noted(self, rollback: Rollback, place: str) -> tuple[Mapping[str, Any], int, bool]:
        """Return the open rollback, which the job reports, and wait for it no longer.

        Returns:
            Its command, the step of its boundary, and whether the next row is in its segment already.

        Raises:
            RefusedError: another one is open, or none.
        """
        known = self._open
        if known is None or known[0]["command_id"] != rollback.command_id:
            expected = "the rollback that the handler noted or boundary() returned, once, or a step"
            raise RefusedError([f"{place} came for {rollback.command_id!r:.80}, expected {expected}"])
        self._open = None
        return known

    def abandon(self) -> tuple[Mapping[str, Any], int] | None:
        """Return a rollback that ``boundary()`` returned and whose state is not back, and wait for it no longer."""
        known = self._open
        if known is None or known[2]:
            return None
        self._open = None
        return known[:2]

    def report(self, command: Mapping[str, Any], state: str, detail: str, step: int, **more: Any) -> None:
        """Log this rank's state of a command."""
        attempt = int(command.get("attempt") or 1)
        data = {"command_id": command["command_id"], "attempt": attempt, "state": state, "detail": detail}
        self._event("command", step, data | more)

    def acted(self, command: Mapping[str, Any], step: int, answer: object) -> None:
        """Report that this rank went back, and the job's other changes."""
        applied: dict[str, Any] | None = None
        trouble: Exception | None = None
        try:
            applied = _applied(answer)
        except Exception as error:  # the state is back nevertheless: the others must know that first
            trouble = error
        try:
            where = " of the branch that was left" if command.get("branch") else ""
            self.report(command, "acted", f"went back to step {command['to_step']}{where}", step, applied=applied)
        except Exception as error:
            trouble = trouble or error
        if trouble is not None:
            self._guard.caught("on_rollback()", trouble)


def _applied(answer: Any) -> dict[str, Any] | None:
    """Return the applied changes of an answer, as free data; None without any.

    Raises:
        RefusedError: it is no mapping of at most MAX_APPLIED names.
    """
    if answer is None:
        return None
    try:
        applied = {str(name): value for name, value in answer.items()}
    except Exception as error:
        what = f"the rollback handler returned a {type(answer).__name__}, expected None or a mapping of what was"
        raise RefusedError([f"{what} applied, like {{'lr_scale': 0.5}}"]) from error
    if len(applied) > MAX_APPLIED:
        raise RefusedError([f"the rollback handler returned {len(applied)} facts, expected at most {MAX_APPLIED}"])
    found: dict[str, Any] = plain(applied)
    return found


class RankLineage:
    """The segment that a rank is in.

    Args:
        event: logs an event: ``event(kind, step, data)``.

    Attributes:
        key: of the segment, "" before the first rollback of this process.
    """

    def __init__(self, event: Callable[[str, int | None, dict[str, Any]], object]) -> None:
        self.key = ""
        self._event = event
        self._declared = 0
        self._boundary: Boundary | None = None
        self._slot: Slot | None = None

    def attach(self, boundary: Boundary, slot: Slot) -> None:
        """Notify these two from now on when a segment is entered."""
        self._boundary = boundary
        self._slot = slot

    def declare(self, to_step: int, reason: str, changes: Mapping[str, Any]) -> None:
        """The job went back to ``to_step`` by itself. The key follows from the calls alone (docs/wire.md)."""
        import hashlib

        self._declared += 1
        text = f"{self.key}\n{self._declared}\n{to_step}"
        key = "d-" + hashlib.sha256(text.encode()).hexdigest()[:16]
        self._enter(key, to_step, reason, changes)

    def follow(self, rollback: Rollback) -> None:
        """An ordered rollback was carried out: its command names the segment."""
        self._enter(rollback.command_id, rollback.to_step, rollback.reason, rollback.changes(), rollback)

    def _enter(
        self, key: str, to_step: int, reason: str, changes: Mapping[str, Any], ordered: Rollback | None = None
    ) -> None:
        data = {
            "key": key,
            "to_step": to_step,
            "cause": "command" if ordered else "declared",
            "reason": reason,
            "command_id": ordered.command_id if ordered else None,
            "issuer": ordered.issuer if ordered else "",
            "changes": plain(dict(changes)),
        }
        if ordered is not None and ordered.branch is not None:
            data["branch"] = {"segment": ordered.branch[0], "segment_key": ordered.branch[1]}
        self._event("segment", to_step, data)
        self.key = key
        if self._boundary is not None and self._slot is not None:
            self._boundary.entered(key)
            self._slot.set_segment(key)
