"""All seams of the product: one function each, empty, with its contract. docs/extending.md has an example of each.

A plug-in is a module with some of these functions below ``@hook``; an argument that it does not use may be left out.

    from stabilitybackend.hooks import hook

    @hook
    def detectors():
        return [SlowDataDetector]

The core calls a seam through ``plugins.Plugins`` and imports no plug-in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pluggy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import typer
    from fastapi import APIRouter
    from redis.asyncio import Redis

    from stabilityalerting import Sink
    from stabilitybackend.base.settings import Settings
    from stabilitybackend.judging.detectors.engine.base import Detector
    from stabilitybackend.judging.gpus.signs import Meaning
    from stabilitybackend.lineage.consumer import Consumer
    from stabilitybackend.schema.kinds import IncidentKind
    from stabilitybackend.server.stage import Stage
    from stabilitybackend.server.stages import Options

__all__ = ["PROJECT", "CheckResult", "hook"]

#: Name of the product in entry points and in pluggy.
PROJECT = "stabilityboard"

#: Marks a function of a plug-in that fills the seam of its name.
hook = pluggy.HookimplMarker(PROJECT)
_seam = pluggy.HookspecMarker(PROJECT)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check of ``stabilityboard doctor``.

    Args:
        name: of the check, for people.
        state: ``ok``; ``note``: works without, with less; ``fail``: the server or the client can't work like this.
        text: the finding.
        advice: the remedy; empty where none is needed.
    """

    name: str
    state: Literal["ok", "note", "fail"]
    text: str
    advice: str = ""


@_seam
def commands_of_the_program(cli: typer.Typer) -> None:
    """Add commands to the program ``stabilityboard``. Called once a process, before the arguments are read.

    Heavy imports belong into the commands: every command waits for this function.

    Args:
        cli: the program; its own commands are there already.
    """


@_seam
def checks() -> Iterable[Callable[[Settings], CheckResult | None]]:
    """Return checks of ``stabilityboard doctor``; one that does not apply returns None."""
    return ()


@_seam
def incident_kinds() -> Iterable[IncidentKind]:
    """Return further kinds of incidents; their names are new."""
    return ()


@_seam
def detectors() -> Iterable[type[Detector]]:
    """Return further detectors. They come behind the bundled ones in the right to an event; their names are new."""
    return ()


@_seam
def consumers() -> Iterable[type[Consumer]]:
    """Return further parts of a run's state, which take its rows, events and forks; names of states are new."""
    return ()


@_seam
def gpu_conditions() -> Mapping[str, Meaning]:
    """Return the meaning of conditions that agents report, by ``what``. A meaning of the core may be replaced."""
    return {}


@_seam
def importers() -> Iterable[Any]:
    """Return further formats of ``stabilityboard import``: classes below ``stabilityplugins.importers.base.Importer``.

    They are asked before the bundled ones: a format may be a special case of one of those.
    """
    return ()


@_seam
def channels() -> Iterable[type[Sink]]:
    """Return further channels of alerts; their names are new."""
    return ()


@_seam
def before_start(settings: Settings, redis: Redis, location: str) -> Awaitable[None] | None:
    """Return a check that ``up`` awaits before the server starts, None for none; StartError prevents the start.

    Args:
        redis: of the runs. location: of it, for messages.
    """
    return None


@_seam
def routes() -> Iterable[APIRouter]:
    """Return routers of the HTTP API, for processes that serve it. ``request.app`` is the server's application."""
    return ()


@_seam
def signed_requests() -> Mapping[str, int]:
    """Return paths whose requests carry a signature in place of a key -> longest body, bytes.

    The route of such a path checks the signature.
    """
    return {}


@_seam
def pages() -> Iterable[Callable[..., Any]]:
    """Return functions that draw pages and panels: below ``@page`` or ``@panel`` of ``stabilityfrontend.extend``.

    Called in the server alone, so the import of Dash belongs into this function.
    """
    return ()


@_seam
def stages(options: Options) -> Iterable[type[Stage]]:
    """Return further parts of the server: background work, routes, middleware (``server.stage.Stage``).

    A stage names those that it needs in its constructor. A subclass of a stage replaces it: ``Membership`` and
    ``Neighbours`` for several processes, ``SignIn`` for a provider.

    Args:
        options: of the process, with its settings and roles.
    """
    return ()
