"""Runs a script in this process as Python would: its ``__main__``, arguments, path, exit code and traceback."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, TracebackType
    from typing import Any

    Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]

__all__ = ["Script"]


class Script:
    """A script, or a module that is run as one.

    Args:
        arguments: its path or name, and what it finds in ``sys.argv``.
        module: it is the name of a module.

    Attributes:
        went_well: it ended by itself, or by ``sys.exit`` without an error.
    """

    def __init__(self, arguments: list[str], *, module: bool) -> None:
        self.went_well = False
        self._arguments = arguments
        self._module = module

    def run(self) -> None:
        """Run it in ``sys.modules["__main__"]``.

        Raises:
            BaseException: what the script raises. The traceback that Python prints of it is the script's alone.
        """
        try:
            self._run()
            self.went_well = True
        except SystemExit as end:
            self.went_well = end.code in (None, 0)
            raise
        except BaseException:
            # Whatever hook the script has set shows it: Python calls it, and knows which exit code follows.
            sys.excepthook = _showing_the_script(sys.excepthook)
            raise

    def _run(self) -> None:
        sys.argv[:] = self._arguments
        path = self._arguments[0]
        names = sys.modules["__main__"].__dict__
        if self._module:
            _as_module(path)
        elif os.path.isdir(path) or path.endswith((".zip", ".pyz")):
            _search_first(os.path.abspath(path))
            _as_module("__main__", keep_name=True)
        else:
            # The script's folder comes first, as without us. With -P there is no such entry, and none is made.
            _search_first(os.path.dirname(os.path.realpath(path)))
            code = _compiled(path)
            names.clear()
            names.update(_main_names(path))
            exec(code, names)


def _search_first(folder: str) -> None:
    if not getattr(sys.flags, "safe_path", False):  # from Python 3.11 on
        sys.path[0] = folder


def _compiled(path: str) -> CodeType:
    import io

    whole = os.path.abspath(path)
    try:
        with io.open_code(whole) as file:
            return compile(file.read(), whole, "exec", dont_inherit=True)
    except OSError as error:
        text = f"[Errno {error.errno}] {error.strerror}"
        print(f"{sys.executable}: can't open file {whole!r}: {text}", file=sys.stderr)
        sys.exit(2)


def _main_names(path: str) -> dict[str, object]:
    import builtins
    from importlib.machinery import SourceFileLoader

    whole = os.path.abspath(path)
    names: dict[str, object] = {
        "__name__": "__main__", "__doc__": None, "__package__": None, "__spec__": None, "__cached__": None,
        "__loader__": SourceFileLoader("__main__", whole), "__file__": whole, "__builtins__": builtins,
    }  # fmt: skip
    if sys.version_info < (3, 14):  # from then on they are made when somebody asks for them
        names["__annotations__"] = {}
    return names


def _as_module(name: str, *, keep_name: bool = False) -> None:
    import runpy

    # What `python -m` itself calls. The public run_module() takes __main__ away again when the module ends, and with
    # it what threads and exit handlers still need.
    runpy._run_module_as_main(name, not keep_name)  # type: ignore[attr-defined]


def _showing_the_script(hook: Hook) -> Hook:
    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            _clean(error)
            trace = error.__traceback__
        except Exception:  # better one with our lines than none
            pass
        hook(kind, error, trace)

    return show


def _clean(error: BaseException) -> None:
    """Take our lines out of what an exception tells, and of what led to it."""
    left, seen = [error], set()
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = _cleaned(one.__traceback__)
        left += [more for more in (one.__cause__, one.__context__, *getattr(one, "exceptions", ())) if more is not None]


def _cleaned(trace: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file == _THIS:
            kept.clear()  # all that is above the script: how Python came to us
        elif os.path.dirname(file) == _HERE:
            while kept and kept[-1].tb_frame.f_code.co_filename.startswith("<frozen importlib"):
                kept.pop()
        else:
            kept.append(trace)
        trace = trace.tb_next
    for one, following in zip(kept, [*kept, None][1:], strict=True):
        one.tb_next = following
    return kept[0] if kept else None


_THIS = _cleaned.__code__.co_filename
_HERE = os.path.dirname(_THIS)
