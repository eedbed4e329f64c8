"""Patches of the tee in one library, and the wrapper of a function, invisible to the script."""

from __future__ import annotations

import functools
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any, ClassVar

    from stabilityclient.tee.recording import Recording

__all__ = ["Library"]


class Library:
    """One library that takes values of scripts, or saves for them.

    Attributes:
        title: display name. modules: those that are patched when they are imported.
    """

    title: ClassVar[str]
    modules: ClassVar[tuple[str, ...]]

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._inside = threading.local()

    def patch(self, name: str, module: ModuleType) -> None:
        """Follow the functions of a module that was imported just now.

        Raises:
            Exception: this version lacks the patched function.
        """
        raise NotImplementedError

    def follow(self, owner: Any, name: str, told: Callable[..., None], *, whole: bool = True) -> None:
        """Call ``told`` with the result of the function, and its arguments, after each call.

        Args:
            owner: class or module that has the function ``name``.
            whole: its own calls within this library are not reported again.

        Raises:
            AttributeError: it has no such function.
        """
        original = getattr(owner, name)
        if getattr(original, "_stability_tee", None) is self:
            return
        recording, inside = self._recording, self._inside

        @functools.wraps(original)
        def call(*given: Any, **named: Any) -> Any:
            if getattr(inside, "busy", False):
                return original(*given, **named)
            inside.busy = whole
            try:
                answer = original(*given, **named)
            finally:
                inside.busy = False
            try:
                told(answer, *given, **named)
            except Exception as error:
                recording.trouble(f"{name}() of {self.title} could not be taken", error)
            return answer

        call._stability_tee = self  # type: ignore[attr-defined]
        setattr(owner, name, call)
