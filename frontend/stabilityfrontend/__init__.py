"""The pages: runs list, run page with its live stitched chart, rollback dialog.

``attach(app)`` puts them on a FastAPI application. The pages know the backend as ``/api/v1`` over HTTP and WebSocket
and nothing else; importing this package does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from stabilityfrontend.declared import PagesError

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["PagesError", "attach"]


def attach(
    app: FastAPI,
    *,
    title: str = "Stabilityboard",
    tables: Mapping[str, object] = MappingProxyType({}),
    added: Iterable[Callable[..., Any]] = (),
) -> list[str]:
    """Serve the pages from ``app``: the last thing to do to it, since Dash ends its routes with a catch-all.

    Returns the hashes of the scripts that stand in a page, as a Content-Security-Policy names them.

    Args:
        app: the application that serves ``/api/v1``, on the same origin.
        title: of the browser's tab before a run is open.
        tables: the server's tables that the scripts have at hand, JSON-able, by name: ``kinds`` of incidents,
            ``statuses`` of runs, ``ranks``, ``gpus``; without them each is called by its name.
        added: functions below ``@page`` or ``@panel`` of ``stabilityfrontend.extend``, next to the bundled ones.

    Raises:
        PagesError: one of those can't be used; it is a ValueError.
    """
    # Dash costs half a second of import: only who serves pages pays it.
    from stabilityfrontend.app import attach as attach_pages

    return attach_pages(app, title=title, tables=tables, added=added)
