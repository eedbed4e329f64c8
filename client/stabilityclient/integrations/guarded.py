"""Keeps trouble of ours out of a framework's loop."""

from __future__ import annotations

from functools import wraps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    Hook = TypeVar("Hook", bound=Callable[..., None])

__all__ = ["guarded"]


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
