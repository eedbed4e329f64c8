"""Plug-ins: entry points of installed packages, bundled ones among them, and files that a setting names.

A wrong plug-in stops the start with its file and line: a detector that an operator counts on is there, or is missed
before the first run.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy

from stabilitybackend import hooks
from stabilitybackend.base.errors import SettingsError

__all__ = ["FILES", "INSTALLED", "Plugins", "load", "refusals"]

#: Files and folders of plug-ins, joined like the PATH.
FILES = "STABILITY_PLUGINS"
#: Names of the installed plug-ins that are loaded, joined by commas. Not set: all.
INSTALLED = "STABILITY_INSTALLED_PLUGINS"
#: Attribute of a function below ``@hook``.
_MARK = f"{hooks.PROJECT}_impl"


class Plugins:
    """The plug-ins of a process.

    Args:
        modules: with functions below ``@hook``, in the order in which the seams call them.

    Raises:
        SettingsError: a function fills no seam, or takes an argument that its seam does not give.
    """

    def __init__(self, modules: Iterable[ModuleType] = ()) -> None:
        self.modules: Sequence[ModuleType] = tuple(modules)
        self._manager = pluggy.PluginManager(hooks.PROJECT)
        self._manager.add_hookspecs(hooks)
        for module in reversed(self.modules):  # pluggy calls the newest first
            self._register(module)

    def _register(self, module: ModuleType) -> None:
        for name, function in vars(module).items():
            if inspect.ismodule(function) and hasattr(hooks, name):
                raise _wrong(str(module.__file__), TypeError(f"module {name} is called like a seam: rename it"))
            if inspect.isfunction(function) and hasattr(self._manager.hook, name) and not hasattr(function, _MARK):
                raise _wrong(_source(function), TypeError(f"{name}() is not marked, expected @hook above it"))
        try:
            self._manager.register(module)
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            raise _wrong(str(module.__file__), error) from error

    @property
    def added(self) -> list[ModuleType]:
        """Those that are not bundled."""
        return [module for module in self.modules if module.__name__.partition(".")[0] != "stabilityplugins"]

    def call(self, seam: str, **given: object) -> list[Any]:
        """Return what each plug-in gives for a seam, in order.

        Raises:
            SettingsError: one raises.
        """
        try:
            results: list[Any] = getattr(self._manager.hook, seam)(**given)
        except SettingsError:
            raise
        except Exception as error:
            raise _wrong(self._line_of(error), error) from error
        return results

    def fills(self, seam: str) -> bool:
        """Return whether a plug-in fills a seam."""
        return bool(getattr(self._manager.hook, seam).get_hookimpls())

    def of(self, seam: str) -> list[Any]:
        """Return the members that all plug-ins give for a seam, in order."""
        return [member for members in self.call(seam) for member in members]

    def _line_of(self, error: Exception) -> str:
        """Return the file and line of a plug-in where an error arose."""
        files = [module.__file__ for module in self.modules]
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
        return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else ", ".join(map(str, files))


def load(environ: Mapping[str, str]) -> Plugins:
    """Import every plug-in, and add its kinds, detectors, consumers and GPU conditions to the tables of this process.

    Call it once, before anything asks a table. Installed plug-ins come first, by name, then files.

    Raises:
        SettingsError: one is not there, raises, or gives what its seam does not take; names the file and the line.
    """
    plugins = Plugins([*_installed(environ.get(INSTALLED)), *map(_run, _files(environ.get(FILES, "")))])
    _fill_tables(plugins)
    return plugins


def _installed(wanted: str | None) -> Iterator[ModuleType]:
    entries = {entry.name: entry for entry in importlib.metadata.entry_points(group=hooks.PROJECT)}
    names = sorted(entries) if wanted is None else list(filter(None, map(str.strip, wanted.split(","))))
    for name in names:
        if name not in entries:
            raise SettingsError(f"{INSTALLED} names {name!r}, expected some of {', '.join(sorted(entries))}")
        try:
            yield entries[name].load()
        except Exception as error:
            raise _wrong(f"entry point {name} = {entries[name].value}", error) from error


def _files(given: str) -> Iterator[Path]:
    """Yield the files that the setting names; of a folder every ``*.py`` that does not begin with ``_``, by name."""
    for name in filter(None, given.split(os.pathsep)):
        path = Path(name).expanduser().absolute()
        if not path.exists():
            raise SettingsError(
                f"{FILES} names {path}, which is not there", hint=f"set {FILES} to files and folders, or unset it"
            )
        yield from sorted(path.glob("[!_]*.py")) if path.is_dir() else [path]


def _run(file: Path) -> ModuleType:
    name = f"stability_plugin_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise SettingsError(
            f"{FILES} names {file}, expected a Python file that ends with .py", hint="see docs/extending.md"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses and pickles look for the classes of the file
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else 1
        raise _wrong(f"{file}, line {line}", error) from error
    return module


def _fill_tables(plugins: Plugins) -> None:
    """Add to the core's tables; their modules are imported only where a plug-in has something for them."""
    if plugins.fills("incident_kinds"):
        from stabilitybackend.schema import kinds

        for kind in plugins.of("incident_kinds"):
            kinds.add(kind)
    if plugins.fills("detectors"):
        from stabilitybackend.judging.detectors import registry
        from stabilitybackend.schema import kinds

        for detector in plugins.of("detectors"):
            with refusals(detector):
                registry.add(detector)
                kinds.check_named(detector.kinds, detector.__name__)
    if plugins.fills("consumers"):
        from stabilitybackend.lineage.consumer import in_order
        from stabilitybackend.runs.consumers import CONSUMERS

        for consumer in plugins.of("consumers"):
            with refusals(consumer):
                in_order([*CONSUMERS, consumer])  # one that reads a missing consumer is refused
            CONSUMERS.insert(-1, consumer)
    if plugins.fills("gpu_conditions"):
        from stabilitybackend.judging.gpus.signs import MEANINGS

        for meanings in plugins.call("gpu_conditions"):
            MEANINGS.update(meanings)


@contextmanager
def refusals(given: object) -> Iterator[None]:
    """Name the file and line of a class of a plug-in that a table refuses.

    Raises:
        SettingsError: the table raised an error about it.
    """
    try:
        yield
    except (AttributeError, TypeError, ValueError) as error:
        raise _wrong(_source(given), error) from error


def _source(given: Any) -> str:
    """Return the file and line of a function or class, or how an object prints itself."""
    try:
        return f"{inspect.getsourcefile(given)}, line {inspect.getsourcelines(given)[1]}"
    except (OSError, TypeError):
        return repr(given)


def _wrong(where: str, error: Exception) -> SettingsError:
    return SettingsError(f"plug-in {where}: {type(error).__name__}: {error}", hint="see docs/extending.md")
