"""Stages, the parts of a server: each is constructed complete from the stages that its constructor names.

The order is derived from those names, so that a missing stage or a circle is an error before anything starts. Stages
start in that order and stop in the reverse one. A stage of a plug-in that is a subclass of another one replaces it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar, get_type_hints

from fastapi import APIRouter, Depends
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp

from stabilitybackend.base.tasks import Watched, end

__all__ = ["Server", "Stage", "graph", "in_order", "needs", "part"]

T = TypeVar("T")


class Stage:
    """One part of the server. ``__init__`` opens no connection; its annotations name the stages that it needs."""

    async def start(self) -> None:
        """Begin. The stages that this one needs have started."""

    def work(self) -> Mapping[str, Coroutine[Any, Any, object]]:
        """Return background work by name. It begins after ``start`` and is cancelled before any stage stops."""
        return {}

    async def stop(self) -> None:
        """End; also without a ``start`` before. The stages that this one needs still run."""

    def routes(self) -> Sequence[APIRouter]:
        """Return the HTTP calls of this stage."""
        return ()

    def inside(self, app: ASGIApp) -> ASGIApp:
        """Return ``app`` with middleware between the check of a request and its route."""
        return app

    def around(self, app: ASGIApp) -> ASGIApp:
        """Return ``app`` with middleware before the check of a request."""
        return app


def needs(stage: type[Stage]) -> dict[str, type]:
    """Return the types that the constructor of a stage names, by parameter."""
    hints = get_type_hints(stage.__init__)
    return {name: kind for name, kind in hints.items() if name != "return"}


def in_order(stages: Iterable[type[Stage]], given: Iterable[type] = ()) -> list[type[Stage]]:
    """Return the stages, each after those that it needs, otherwise in the order given.

    Args:
        given: further types that stages may need.

    Raises:
        TypeError: a stage needs one that is missing, or stages need each other in a circle.
    """
    listed = list(stages)
    left = list(dict.fromkeys(next(other for other in reversed(listed) if issubclass(other, one)) for one in listed))
    ready: list[type] = list(given)
    found: list[type[Stage]] = []
    while left:
        for stage in left:
            if all(any(issubclass(one, need) for one in ready) for need in needs(stage).values()):
                break
        else:
            wanted = {one.__name__: sorted(kind.__name__ for kind in needs(one).values()) for one in left}
            raise TypeError(f"stages with a missing need, or in a circle: {wanted}")
        left.remove(stage)
        ready.append(stage)
        found.append(stage)
    return found


def graph(stages: Iterable[type[Stage]], given: Iterable[type] = ()) -> str:
    """Return one line a stage, in the order of their start: its name, its purpose, and the stages that it needs."""
    ordered, others = in_order(stages, given), set(given)
    width = max(len(one.__name__) for one in ordered)
    lines = []
    for stage in ordered:
        named = [kind.__name__ for kind in needs(stage).values() if kind not in others]
        purpose = (stage.__doc__ or "").split("\n")[0]
        lines.append(f"{stage.__name__:{width}}  {purpose}  <- {', '.join(named) or 'nothing'}")
    return "\n".join(lines)


class Server:
    """All stages of one process, by type: ``server[Runs]``.

    Args:
        stages: in any order. given: further objects that stages may need.

    Raises:
        TypeError: see ``in_order``.
    """

    def __init__(self, stages: Iterable[type[Stage]], *given: object) -> None:
        self.watched = Watched()
        self._parts: dict[type, Any] = {type(one): one for one in (self.watched, *given)}
        self.stages: list[Stage] = []
        for kind in in_order(stages, list(self._parts)):
            stage = kind(**{name: self[need] for name, need in needs(kind).items()})
            self.stages.append(stage)
            self._parts |= {base: stage for base in kind.__mro__ if issubclass(base, Stage) and base is not Stage}

    def __getitem__(self, kind: type[T]) -> T:
        """Return the stage, or the given object, of a type. Raises KeyError where there is none."""
        found: T = self._parts[kind]
        return found

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start the stages in order; stop all of them at the end, also after a start that failed."""
        async with AsyncExitStack() as stack:
            for stage in self.stages:
                stack.push_async_callback(stage.stop)
            for stage in self.stages:
                await stage.start()
                tasks = [asyncio.create_task(work, name=name) for name, work in stage.work().items()]
                self.watched.add(*tasks)
                stack.push_async_callback(end, *tasks)
            yield


def part(kind: type[Any]) -> Any:
    """Return the dependency of a route on a stage, or on a given object: ``Annotated[Runs, part(Runs)]``."""

    async def found(connection: HTTPConnection) -> Any:  # async, since FastAPI calls others in a thread
        return connection.app.server[kind]

    return Depends(found)
