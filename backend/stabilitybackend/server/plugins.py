"""Imports what others add to the server and its commands: files that a setting names, modules of installed packages.

Such a module says by itself what it adds (docs/extending.md): ``register`` of ``detectors.registry``, ``schema.kinds``,
``importers.registry`` or ``stabilityalerting``; ``@page`` and ``@panel`` of ``stabilityfrontend``. Whatever is wrong
with one stops the start: a detector that somebody counts on is there or is missed at once.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

from stabilitybackend.base.errors import SettingsError

__all__ = ["ENTRY_POINTS", "VARIABLE", "load"]

#: Files and folders of plug-ins, joined like the PATH.
VARIABLE = "STABILITY_PLUGINS"
#: Group of entry points by which an installed package adds a module.
ENTRY_POINTS = "stabilityboard.plugins"


def load(environ: Mapping[str, str]) -> list[ModuleType]:
    """Import every plug-in and return their modules. Call it once, before anything asks a registry.

    Raises:
        SettingsError: one is not there, raises, or has a detector of a kind that nobody added; names the file and the
            line.
    """
    loaded = [_run(file) for file in _files(environ.get(VARIABLE, ""))]
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            entry.load()
        except Exception as error:
            raise _wrong(f"entry point {entry.name} = {entry.value}", error) from error
        loaded.append(sys.modules[entry.module])
    _check_kinds()
    return loaded


def _files(given: str) -> Iterator[Path]:
    """Yield the files that the setting names; of a folder every ``*.py`` that does not begin with ``_``, by name."""
    for name in filter(None, given.split(os.pathsep)):
        path = Path(name).expanduser().absolute()
        if not path.exists():
            raise SettingsError(
                f"{VARIABLE} names {path}, which is not there", hint=f"set {VARIABLE} to files and folders, or unset it"
            )
        yield from sorted(path.glob("[!_]*.py")) if path.is_dir() else [path]


def _run(file: Path) -> ModuleType:
    name = f"stability_plugin_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise SettingsError(
            f"{VARIABLE} names {file}, expected a Python file that ends with .py", hint="see docs/extending.md"
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


def _check_kinds() -> None:
    """Refuse a detector of a kind that nobody added: only now, since kinds and detectors come in any order."""
    registry = sys.modules.get("stabilitybackend.judging.detectors.registry")  # else no plug-in has
    if registry is None:
        return
    from stabilitybackend.schema.kinds import check_named  # most commands have no need of it

    for make in registry.DETECTORS.values():
        detector = type(make())
        try:
            check_named(detector.kinds, detector.__name__)
        except ValueError as error:
            line = inspect.getsourcelines(detector)[1]
            raise _wrong(f"{inspect.getsourcefile(detector)}, line {line}", error) from error


def _wrong(where: str, error: Exception) -> SettingsError:
    return SettingsError(f"plug-in {where}: {type(error).__name__}: {error}", hint="see docs/extending.md")
