"""The table of pages is made once for all servers of a process that imports this: it is half of making a server."""

from __future__ import annotations

from typing import Any

from stabilityfrontend import layout
from stabilityfrontend.declared import Declarations
from stabilityfrontend.parts import ServerParts

_make = layout.page_table
#: By what is declared, which is kept, so that no function of other pages gets the name of one that is gone.
_made: dict[str, tuple[Declarations, list[dict[str, Any]]]] = {}


def _made_before(declared: Declarations, parts: ServerParts) -> list[dict[str, Any]]:
    key = repr(declared)
    if key not in _made:
        _made[key] = declared, _make(declared, parts)
    return _made[key][1]


layout.page_table = _made_before
