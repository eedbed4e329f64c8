"""The frame that stays while pages come and go, and the table of pages that it brings.

The table has the addresses of a page, its name, and the places of its server-drawn parts. All else of a page is
made by its browser module (``assets/page_lifecycle.js``).
"""

from __future__ import annotations

import json
import re
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from stabilityfrontend.declared import Declarations, DeclaredPage
from stabilityfrontend.parts import ServerParts

__all__ = ["is_page", "layout", "page_table"]


def layout(config: dict[str, Any], pages: list[dict[str, Any]]) -> html.Div:
    """Return the frame.

    Args:
        config: the result of ``figures.browser_config``.
        pages: the result of ``page_table``.
    """
    return html.Div(
        [
            # Number of changes of the address. `dcc.Location` goes back to the page before where a click follows
            # another before that was drawn.
            dcc.Store(id="address"),
            dcc.Store(id="chart-config", data=config),
            dcc.Store(id="page-table", data=pages),
            # Input of everything that the server draws: address, theme, number of requests (assets/core/parts.js).
            dcc.Store(id="viewer"),
            html.Div(id="page"),
            html.Div(id="toasts", role="status", **{"aria-live": "polite"}),
        ],
        id="root",
    )


def page_table(declared: Declarations, parts: ServerParts) -> list[dict[str, Any]]:
    """Return all pages as plain JSON: pattern of the addresses, names of the ids in it, name, order, element.

    They come with the frame: going to a page costs no request, and the first chart waits for one less. The first
    pattern that fits an address is its page; the last fits all and means that there is none.

    Args:
        declared: pages and panels.
        parts: places of the server-drawn parts.
    """
    pages = sorted(declared.pages.values(), key=lambda page: len(page.ids))
    missing = DeclaredPage(".*", "Page not found", live="missing")
    return [*(_entry(page, page.pattern, parts) for page in pages), _entry(missing, ".*", parts)]


def is_page(path: str, declared: Declarations) -> bool:
    """Return whether a page is at an address."""
    asked = path.rstrip("/") or "/"
    return any(re.fullmatch(page.pattern, asked) for page in declared.pages.values())


def _entry(page: DeclaredPage, pattern: str, parts: ServerParts) -> dict[str, Any]:
    places = parts.places(page)
    element = html.Div(places, className="page", **{"data-page": page.live or "server"})
    return {
        "path": page.path,
        "pattern": pattern,
        "ids": page.ids,
        "name": page.name,
        "order": None if page.ids else page.order,
        "skeleton": json.loads(json.dumps(element, default=Component.to_plotly_json)),
    }
