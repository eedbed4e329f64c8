"""Base of the framework adapters: hooks whose errors stay here, calls around methods, and a rollback's way back."""

from __future__ import annotations

from contextlib import contextmanager
from functools import wraps

from stabilityclient.integrations.shared.rates import scale_rates
from stabilityclient.integrations.shared.unsaved import Unsaved
from stabilityclient.rollback.decision import Rewind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, TypeVar

    from stabilityclient.rank_state.phase import Phase
    from stabilityclient.rollback.decision import Rollback
    from stabilityclient.run import Run

    Hook = TypeVar("Hook", bound=Callable[..., None])
    Around = tuple[Any, str, Callable[..., Any]]

__all__ = ["Adapter", "guarded", "stand_around", "standing_around", "within"]


def guarded(hook: Hook) -> Hook:
    """Keep the errors of a hook out of training, as calls of a run do; ``Rewind`` passes.

    Its object has the run as ``_run``.
    """
    framework = hook.__module__.rpartition(".")[2].partition("_")[0]

    @wraps(hook)
    def call(self: Any, *given: Any, **named: Any) -> None:
        try:
            hook(self, *given, **named)
        except Exception as error:
            self._run._guard.caught(f"{framework} {hook.__name__}()", error)

    return call  # type: ignore[return-value]


def stand_around(owner: Any, name: str, around: Callable[..., Any]) -> Callable[[], None]:
    """Call ``around`` in place of a method, with the method as first argument; return the function that undoes it."""
    original = getattr(owner, name)
    own = vars(owner).get(name)

    @wraps(original)
    def call(*given: Any, **named: Any) -> Any:
        return around(original, *given, **named)

    def put_back() -> None:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)

    setattr(owner, name, call)
    return put_back


@contextmanager
def standing_around(around: Iterable[Around]) -> Iterator[None]:
    """Stand around methods, ``(owner, name, function)`` each, inside the context."""
    undo = [stand_around(*one) for one in around]
    try:
        yield
    finally:
        for each in undo:
            each()


def within(run: Run, phase: str) -> Callable[..., Any]:
    """Return a function for :func:`stand_around` that calls the method inside a phase."""

    def call(original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        with run.phase(phase):
            return original(*given, **named)

    return call


class Adapter:
    """One job of a framework, seen from one rank.

    Args:
        run: of :func:`stabilityclient.init`.
        inside: as of :class:`Unsaved`.
    """

    def __init__(self, run: Run, *, inside: bool = False) -> None:
        super().__init__()  # a framework's own base may follow
        self._run = run
        self._unsaved = Unsaved(run, inside=inside)
        #: Promised changes; None before the promise.
        self._can: tuple[str, ...] | None = None
        #: The rollback that is being carried out.
        self._rollback: Rollback | None = None
        #: Id of the command that changed the loaded checkpoint last.
        self._ordered = ""
        self._phase: Phase | None = None

    def _enter(self, phase: str | None) -> None:
        """End the current phase, and enter another one unless it is None."""
        if self._phase is not None:
            self._phase.__exit__()
        self._phase = None if phase is None else self._run.phase(phase).__enter__()

    def _promise(self, *changes: str) -> None:
        """Promise rollbacks with these changes."""
        self._can = changes
        self._run.can_roll_back(*changes)

    def _accepts(self, rollback: Rollback, problem: Callable[[], str] | None = None) -> bool:
        """Return whether this job can carry out a rollback; refuse it otherwise.

        Args:
            problem: returns why its checkpoint can't be loaded, "" if it can.
        """
        cannot = sorted(rollback.changes().keys() - set(self._can or ()))
        if rollback.checkpoint is None:
            why = f"no checkpoint of step {rollback.to_step} is known"
        elif cannot:
            why = f"this job can't change {', '.join(cannot)}"
        else:
            why = problem() if problem is not None else ""
        if why:
            self._run.refused(rollback, why)
        return not why

    def _rewind(self, rollback: Rollback, problem: Callable[[], str] | None = None) -> None:
        """Leave the framework's loop for a rollback (:class:`Rewind`), unless this job refuses it."""
        try:
            accepted = self._accepts(rollback, problem)
        except Exception as error:
            self._run._guard.caught("rollback", error)
            return
        if accepted:
            raise Rewind(rollback)

    def _scaled(self, factor: float | None, optimizers: Iterable[Any], schedules: Iterable[Any]) -> dict[str, Any]:
        """Multiply the learning rates by a factor, None for none; return the applied changes."""
        return {} if factor is None else {"rates": scale_rates(optimizers, schedules, factor), "lr_scale": factor}

    def _report_back(self, rollback: Rollback, step: int, applied: dict[str, Any]) -> None:
        """Report that the checkpoint of a rollback is loaded: it should have the state of its ``to_step``.

        Args:
            step: of the loaded state. applied: changes to it.
        """
        if step == rollback.to_step:
            self._run.restored(rollback, applied=applied)
        else:
            self._run.refused(rollback, f"{rollback.checkpoint} holds the state of step {step}")
            self._run.rolled_back(step, "another checkpoint than the one that was ordered", **applied)
