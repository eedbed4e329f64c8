"""Carries out an ordered rollback with the job's own handler, and reports what it can do and what it did."""

from __future__ import annotations

from stabilityclient.arguments import cut, plain
from stabilityclient.errors import RefusedError
from stabilityclient.rollback.decision import Rollback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from stabilityclient.guard import Guard

__all__ = ["CHANGES", "Restoring"]

#: What an order may ask for beside the step.
CHANGES = ("lr_scale", "seed", "skip_batches", "skip_range")
#: Facts that a handler may report of one rollback.
MAX_APPLIED = 32
#: Longest text of what a handler raised, characters.
MAX_TEXT_CHARS = 10_000


class Restoring:
    """The handler of one rank.

    Args:
        event: logs an event: ``event(kind, step, data)``.
        guard: takes what must not reach training.
    """

    def __init__(self, event: Callable[[str, int | None, dict[str, Any]], object], guard: Guard) -> None:
        self._event = event
        self._guard = guard
        self._handler: Callable[[Rollback], object] | None = None
        self._later = False
        #: The rollback that the handler only noted, until ``restored``.
        self._noted: tuple[Mapping[str, Any], int] | None = None

    def named(self, can: Iterable[str] | None) -> list[str] | None:
        """Return what ``can`` names, in the order of CHANGES; None where nothing, or nothing usable, was given."""
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
        """Register the handler and say what it can change."""
        self._handler, self._later = handler, later
        try:
            self._event("handler", None, {"can": can})
        except Exception as error:
            self._guard.caught("on_rollback()", error)

    def call(self, command: Mapping[str, Any], step: int) -> tuple[Rollback, object]:
        """Call the handler and return what it got and what it answered.

        Raises:
            Exception: what the handler raises; the command is reported as failed.
        """
        rollback = Rollback.of(command)
        assert self._handler is not None  # a rank without one rejects, and then nobody acts
        try:
            return rollback, self._handler(rollback)
        except BaseException as error:
            text = cut(f"the handler raised {type(error).__name__}: {error}", MAX_TEXT_CHARS)
            self.report(command, "failed", text, step)
            raise

    def back(self, command: Mapping[str, Any], step: int, answer: object) -> bool:
        """The handler returned: say whether the rank has gone back, or it only noted the order."""
        if self._later:
            self._noted = (command, step)
        else:
            self._acted(command, step, answer)
        return not self._later

    def restored(self, rollback: Rollback, answer: object) -> int:
        """The state of a rollback that was noted is back: report it, and return the step of that state.

        Raises:
            RefusedError: the handler has noted another one, or none.
        """
        noted = self._noted
        if noted is None or noted[0]["command_id"] != rollback.command_id:
            what = f"restored() came for {rollback.command_id!r:.80}"
            raise RefusedError([f"{what}, expected the rollback that the handler noted, or a step"])
        self._noted = None
        self._acted(*noted, answer)
        return int(noted[0]["to_step"])

    def report(self, command: Mapping[str, Any], state: str, detail: str, step: int, **more: Any) -> None:
        """Log what this rank says of a command."""
        attempt = int(command.get("attempt") or 1)
        data = {"command_id": command["command_id"], "attempt": attempt, "state": state, "detail": detail}
        self._event("command", step, data | more)

    def _acted(self, command: Mapping[str, Any], step: int, answer: object) -> None:
        """Report that this rank went back, and what else the job says that it changed."""
        applied: dict[str, Any] | None = None
        trouble: Exception | None = None
        try:
            applied = _applied(answer)
        except Exception as error:  # the state is back all the same: the others must know that first
            trouble = error
        try:
            self.report(command, "acted", f"went back to step {command['to_step']}", step, applied=applied)
        except Exception as error:
            trouble = trouble or error
        if trouble is not None:
            self._guard.caught("on_rollback()", trouble)


def _applied(answer: Any) -> dict[str, Any] | None:
    """Return what an answer says was applied, as free data; None where it says nothing.

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
