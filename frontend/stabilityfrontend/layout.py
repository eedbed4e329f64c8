"""The frame that stays while pages come and go, and the table of pages that it brings.

The table is made from what pages declare: an address's page, what stands there until it is filled, the navigation, and
what the server answers. Skeletons of live pages have no data: ``assets/`` finds the regions by id and fills them, so
that a page shows its shape at once and a point never waits for a callback.
"""

from __future__ import annotations

import json
import re
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from stabilityfrontend.controls import frame, more_panels, rail_link
from stabilityfrontend.declared import Declarations, DeclaredPage, PagesError
from stabilityfrontend.parts import ServerParts
from stabilityfrontend.runs_page import missing_page

__all__ = ["is_page", "layout", "page_table"]


def layout(config: dict[str, Any], pages: list[dict[str, Any]]) -> html.Div:
    """Return the frame.

    Args:
        config: what ``figures.browser_config`` returns.
        pages: what ``page_table`` returns.
    """
    return html.Div(
        [
            # How often the address changed. `dcc.Location` goes back to the page before where a click follows another
            # before that was drawn.
            dcc.Store(id="address"),
            dcc.Store(id="chart-config", data=config),
            dcc.Store(id="page-table", data=pages),
            # What the server draws depends on it: address and theme, and how often it was asked (assets/core/parts.js).
            dcc.Store(id="viewer"),
            html.Div(id="page"),
            html.Div(id="toasts", role="status", **{"aria-live": "polite"}),
        ],
        id="root",
    )


def page_table(declared: Declarations, parts: ServerParts) -> list[dict[str, Any]]:
    """Return all pages as plain JSON: which addresses one has, its name, which module fills it, and its skeleton.

    They come with the frame: going to a page costs no request, and the first chart waits for one less. The first whose
    pattern fits an address is its page; the last fits all and says that there is none.

    Args:
        declared: pages and panels.
        parts: places of what the server draws.

    Raises:
        PagesError: a panel is for a page that takes none.
    """
    pages = sorted(declared.pages.values(), key=lambda page: len(page.ids))
    table = [_entry(page.pattern, page.ids, page.name, page.live, _skeleton(page, declared, parts)) for page in pages]
    missing = DeclaredPage(".*", "Page not found", missing_page, live="missing")
    return [*table, _entry(".*", [], missing.name, "missing", _skeleton(missing, declared, parts))]


def is_page(path: str, declared: Declarations) -> bool:
    """Return whether a page is at an address."""
    asked = path.rstrip("/") or "/"
    return any(re.fullmatch(page.pattern, asked) for page in declared.pages.values())


def _entry(pattern: str, ids: list[str], name: str, live: str, skeleton: html.Div) -> dict[str, Any]:
    skeleton.__setattr__("data-page", live or "server")
    return {
        "pattern": pattern,
        "ids": ids,
        "name": name,
        "skeleton": json.loads(json.dumps(skeleton, default=Component.to_plotly_json)),
    }


def _skeleton(page: DeclaredPage, declared: Declarations, parts: ServerParts) -> html.Div:
    panels = parts.panels(page.path)
    skeleton = page.draw() if page.live else _server_page(page.name, parts.page(page))
    places = {one.id: one for one in skeleton._traverse() if getattr(one, "id", None) in ("pages", "more-panels")}
    if "pages" in places:
        places["pages"].children = [
            rail_link(one.name, one.path, here=_is_under(page, one))
            for one in declared.pages.values()
            if one.order is not None and not one.ids
        ]
    if "more-panels" in places:
        places["more-panels"].children = panels
    elif panels:
        raise PagesError(f"page {page.path!r} takes no panels, expected one with a place for them")
    return skeleton


def _is_under(page: DeclaredPage, listed: DeclaredPage) -> bool:
    """Say whether a page belongs to one of the navigation; a run's page, and what is below it, to the list of runs."""
    return page is listed or page.name == listed.name or (listed.path == "/" and page.path.startswith("/runs/"))


def _server_page(name: str, body: html.Div) -> html.Div:
    pill = html.Span(id="live-pill", className="pill quiet")
    main = html.Main([body, more_panels()], className="list stack")
    return frame([html.H1(name, className="crumb-here"), html.Span(className="grow"), pill], main)
