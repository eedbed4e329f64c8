"""Declaration of a page or a panel: a function that draws it, and a decorator with its place.

A decorator only writes the declaration on the function: importing a module of pages does nothing, and the server
collects the modules' declarations (``collect``).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

__all__ = [
    "GIVEN",
    "LIVE_PAGES",
    "MOVED",
    "Declarations",
    "DeclaredPage",
    "DeclaredPanel",
    "PagesError",
    "collect",
    "functions_of",
    "page",
    "panel",
]

Function = TypeVar("Function", bound=Callable[..., Any])

#: Arguments that a function may ask for, by name.
GIVEN: Mapping[str, str] = {
    "run": "the run's id, where the page's path has {run}",
    "incident": "the incident's id, where the page's path has {incident}",
    "api": "the server's API with the rights of whoever looks (Api)",
    "theme": "colours of the theme that is on, and its Plotly template (Theme)",
    "query": "parameters of the page's address (dict of str)",
}
#: Pages under the address that they had once -> the one that they have.
MOVED: Mapping[str, str] = {"/fleet": "/interruptions"}
_ATTRIBUTE = "__stability_declared__"
_PATH = re.compile(r"/|(/([A-Za-z0-9_.-]+|\{[a-z]+\}))+")
_PLACEHOLDER = re.compile(r"\{([a-z]+)\}")
#: First parts of addresses that are the server's own.
_TAKEN = ("api", "healthz", "readyz", "metrics")


class PagesError(ValueError):
    """A declaration, or its file, can't be used; the message has the place, the value given and the one expected."""


@dataclass(frozen=True, slots=True)
class DeclaredPage:
    """One page.

    Attributes:
        path: its address; ``{run}`` and ``{incident}`` are placeholders of ids.
        name: in the navigation and the browser's tab.
        draw: returns its content.
        order: its place in the navigation, small ones first; None leaves it out.
        live: the browser's class that draws it (``assets/page_lifecycle.js``); without one ``draw`` does.
        panels: whether it has a place for panels.
    """

    path: str
    name: str
    draw: Callable[..., Any] | None = None
    order: float | None = None
    live: str = ""
    panels: bool = True

    @property
    def pattern(self) -> str:
        """The regular expression of its addresses, for Python and for browsers."""
        return "^" + _PLACEHOLDER.sub("([^/]+)", self.path.replace(".", r"\.")) + "$"

    @property
    def ids(self) -> list[str]:
        """Names of the ids in its path, in order."""
        return _PLACEHOLDER.findall(self.path)


@dataclass(frozen=True, slots=True)
class DeclaredPanel:
    """One panel on a page.

    Attributes:
        page: path of the page.
        title: of its head.
        draw: returns its content.
    """

    page: str
    title: str
    draw: Callable[..., Any] = field(repr=False)


@dataclass(slots=True)
class Declarations:
    """All that is served.

    Attributes:
        pages: by path, in the order of the navigation.
        panels: in the order in which they were found.
    """

    pages: dict[str, DeclaredPage] = field(default_factory=dict)
    panels: list[DeclaredPanel] = field(default_factory=list)


#: Pages that browser modules draw.
LIVE_PAGES = (
    DeclaredPage("/", "Runs", order=0, live="runs"),
    DeclaredPage("/runs", "Runs", live="runs"),
    DeclaredPage("/runs/{run}", "Run", live="run"),
    DeclaredPage("/runs/{run}/incidents/{incident}", "Incident", live="incident"),
    DeclaredPage("/runs/{run}/attempts", "Attempts", live="attempts"),
    DeclaredPage("/incidents", "Incidents", order=5, live="incidents"),
    DeclaredPage("/alerting", "Alerting", order=15, live="alerting"),
    DeclaredPage("/compare", "Compare", order=20, live="compare"),
    DeclaredPage("/gallery", "Gallery", order=40, live="gallery"),
    DeclaredPage("/login", "Login", live="login", panels=False),
)


def page(path: str, *, name: str, order: float | None = None) -> Callable[[Function], Function]:
    """Declare that a function draws a page.

    It returns Dash components, a Plotly figure or text, and is called when a viewer opens the page, each 15 s after
    that, and when the theme changes. Its input is chosen by the names of its arguments (``GIVEN``).

    Args:
        path: the page's address, such as ``/budget`` or ``/runs/{run}/budget``.
        name: in the navigation and the browser's tab.
        order: its place in the navigation; runs are 0, incidents 5, interruptions 10, the comparison 20. None leaves
            it out.

    Raises:
        PagesError: the path has another form, or an argument has a name that nothing is given for.
    """
    if not _PATH.fullmatch(path) or path.split("/")[1].startswith("_") or path.split("/")[1] in _TAKEN:
        raise PagesError(f'page path is {path!r}, expected one such as "/budget" or "/runs/{{run}}/budget"')
    if path in MOVED:
        raise PagesError(f"page path {path!r} leads to {MOVED[path]!r}, expected another one")
    if other := set(_PLACEHOLDER.findall(path)) - {"run", "incident"}:
        raise PagesError(f"page path {path!r} has {sorted(other)}, expected {{run}} and {{incident}} alone")
    return lambda function: _declare(function, DeclaredPage(path, name, function, order))


def panel(*, page: str, title: str) -> Callable[[Function], Function]:
    """Declare that a function draws a panel on a page: below its present ones.

    Args:
        page: path of the page as it is declared; the run page is ``/runs/{run}``, an incident's
            ``/runs/{run}/incidents/{incident}``, the interruptions ``/interruptions``.
        title: of the panel's head.

    Raises:
        PagesError: an argument of the function has a name that nothing is given for.
    """
    return lambda function: _declare(function, DeclaredPanel(MOVED.get(page, page), title, function))


def collect(functions: Iterable[Callable[..., Any]], live: Iterable[DeclaredPage] = ()) -> Declarations:
    """Return the pages and panels that functions declare, and the ``live`` pages.

    Raises:
        PagesError: two pages have one path, a panel is for a page that is not there or takes none, or a function
            declares neither.
    """
    found = Declarations({one.path: one for one in live})
    for one in [one for function in functions for one in _declared_by(function)]:
        if isinstance(one, DeclaredPanel):
            found.panels.append(one)
        elif (other := found.pages.setdefault(one.path, one)) is not one:
            raise PagesError(f"{_place(one.draw)}: page {one.path!r} is already declared at {_place(other.draw)}")
    pages = sorted(found.pages.values(), key=lambda one: (one.order is None, one.order or 0.0))
    found.pages = {one.path: one for one in pages}
    for panel in found.panels:
        if panel.page not in found.pages:
            known = ", ".join(sorted(found.pages))
            raise PagesError(
                f"{_place(panel.draw)}: panel {panel.title!r} is for page {panel.page!r}, expected: {known}"
            )
        if not found.pages[panel.page].panels:
            raise PagesError(f"{_place(panel.draw)}: page {panel.page!r} takes no panels")
    return found


def functions_of(modules: Iterable[ModuleType]) -> Iterator[Callable[..., Any]]:
    """Yield the functions of modules that declare something, in their order."""
    for module in modules:
        for function in vars(module).values():
            if (
                inspect.isfunction(function)
                and function.__module__ == module.__name__
                and hasattr(function, _ATTRIBUTE)
            ):
                yield function


def _declared_by(function: Callable[..., Any]) -> list[DeclaredPage | DeclaredPanel]:
    declared: list[DeclaredPage | DeclaredPanel] | None = getattr(function, _ATTRIBUTE, None)
    if declared is None:
        raise PagesError(f"{function!r} declares no page, expected @page or @panel above it")
    return declared


def _place(function: Callable[..., Any] | None) -> str:
    """Return file and line of a function."""
    if function is None:
        return "this package"
    code = inspect.unwrap(function).__code__
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}"


def _declare(function: Function, declared: DeclaredPage | DeclaredPanel) -> Function:
    path = declared.path if isinstance(declared, DeclaredPage) else declared.page
    names = [name for name in GIVEN if name not in ("run", "incident") or name in _PLACEHOLDER.findall(path)]
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name not in names and parameter.default is parameter.empty:
            raise PagesError(
                f"{function.__name__}() asks for {parameter.name!r}, expected some of: "
                + "; ".join(f"{name}: {GIVEN[name]}" for name in names)
            )
    setattr(function, _ATTRIBUTE, [*getattr(function, _ATTRIBUTE, ()), declared])
    return function
