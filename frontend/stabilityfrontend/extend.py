"""One import for a file of pages and panels (docs/extending.md).

from stabilityfrontend.extend import Api, page, panel

@panel(page="/runs/{run}", title="Segments")
def segments(run: str, api: Api): ...
"""

from __future__ import annotations

from stabilityfrontend.controls import choice, links, panel_head, totals
from stabilityfrontend.declared import PagesError, page, panel
from stabilityfrontend.format import moment
from stabilityfrontend.tables import Cell, Column, table
from stabilityfrontend.viewer import Api, ApiError, Theme

__all__ = [
    "Api",
    "ApiError",
    "Cell",
    "Column",
    "PagesError",
    "Theme",
    "choice",
    "links",
    "moment",
    "page",
    "panel",
    "panel_head",
    "table",
    "totals",
]
