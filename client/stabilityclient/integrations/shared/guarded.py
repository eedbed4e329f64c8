"""Ways into a framework's loop: hooks whose trouble stays ours, and calls around its methods."""

from __future__ import annotations

from functools import wraps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    Hook = TypeVar("Hook", bound=Callable[..., None])
    from stabilityclient.rank_state.phase import Phase
    from stabilityclient.run import Run

__all__ = ["OnePhase", "guarded", "stand_around"]


def guarded(hook: Hook) -> Hook:
    """Keep trouble of a hook of ours out of training, as calls of a run do; ``Rewind`` is none.

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
    """Let ``around`` be called in place of a method, with the method first; return what makes it as it was."""
    original, own = getattr(owner, name), vars(owner).get(name)

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


class OnePhase:
    """Each phase that is entered ends the one before.

    Args:
        run: of :func:`stabilityclient.init`.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._open: Phase | None = None

    def enter(self, name: str | None) -> None:
        """End the phase, and enter another one; None: none."""
        if self._open is not None:
            self._open.__exit__()
        self._open = None if name is None else self._run.phase(name).__enter__()
