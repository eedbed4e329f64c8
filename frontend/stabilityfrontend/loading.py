"""Collects pages and panels: our own, those of a file or folder that the server is given, those of installed packages.

Whatever is wrong with one of them stops the start: a page that somebody counts on is there or is missed at once.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from stabilityfrontend.declared import DeclaredPage, DeclaredPanel, PagesError, declarations, place

__all__ = ["ENTRY_POINTS", "Declarations", "collect", "from_packages", "from_path"]

#: Group of entry points by which an installed package adds a module of pages and panels.
ENTRY_POINTS = "stabilityboard.pages"


@dataclass(slots=True)
class Declarations:
    """All that is served.

    Attributes:
        pages: by path, in the order of the navigation.
        panels: in the order in which they were found.
    """

    pages: dict[str, DeclaredPage] = field(default_factory=dict)
    panels: list[DeclaredPanel] = field(default_factory=list)


def collect(modules: Iterable[ModuleType]) -> Declarations:
    """Return what modules declare.

    Raises:
        PagesError: two pages have one path, or a panel is for a page that is not there.
    """
    pages: list[DeclaredPage] = []
    found = Declarations()
    for module in modules:
        for one in declarations(module):
            if isinstance(one, DeclaredPanel):
                found.panels.append(one)
                continue
            for other in pages:
                if other.path == one.path:
                    raise PagesError(f"{place(one.draw)}: page {one.path!r} is already declared at {place(other.draw)}")
            pages.append(one)
    found.pages = {one.path: one for one in sorted(pages, key=lambda one: (one.order is None, one.order or 0.0))}
    for panel in found.panels:
        if panel.page not in found.pages:
            known = ", ".join(sorted(found.pages))
            raise PagesError(
                f"{place(panel.draw)}: panel {panel.title!r} is for page {panel.page!r}, expected: {known}"
            )
    return found


def from_path(path: Path) -> list[ModuleType]:
    """Return the module in a file, or those in a folder: every ``*.py`` that does not begin with ``_``.

    Raises:
        PagesError: there is no such file, it can't be run, or it declares nothing.
    """
    if not path.exists():
        raise PagesError(f"{path}: there is no such file or folder")
    files = sorted(one for one in path.glob("*.py") if not one.name.startswith("_")) if path.is_dir() else [path]
    if not files:
        raise PagesError(f"{path}: no Python file, expected one that declares a page or a panel")
    return [_module(file) for file in files]


def from_packages() -> list[ModuleType]:
    """Return the modules that installed packages name in the group ``stabilityboard.pages``.

    Raises:
        PagesError: one can't be imported, or declares nothing.
    """
    modules = []
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            module = entry.load()
        except Exception as error:
            raise PagesError(f"entry point {entry.name} = {entry.value}: {_words(error)}") from error
        modules.append(_checked(module, f"entry point {entry.name} = {entry.value}"))
    return modules


def _module(file: Path) -> ModuleType:
    name = f"stability_pages_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise PagesError(f"{file}: not a Python file, expected one that ends with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses and type hints of the file look
    try:
        spec.loader.exec_module(module)
    except PagesError:
        raise
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else 1
        raise PagesError(f"{file}, line {line}: {_words(error)}") from error
    return _checked(module, str(file))


def _checked(module: object, where: str) -> ModuleType:
    if not isinstance(module, ModuleType) or not any(declarations(module)):
        raise PagesError(f"{where} declares nothing, expected a function below @page(...) or @panel(...)")
    return module


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
