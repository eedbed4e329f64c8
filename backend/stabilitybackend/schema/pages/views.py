"""Saved views: filters and columns of the table of runs, layouts of a run's charts."""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

#: runs: filter, columns, order and groups of the table of runs. layout: charts of a run's page.
ViewKind = Literal["runs", "layout"]
VIEW_KINDS: tuple[str, ...] = get_args(ViewKind)


class View(msgspec.Struct, frozen=True):
    """One saved view.

    Attributes:
        project: of its runs, "" for all.
        name: unique in its kind and project.
        state: of the page, opaque to the server.
        saved_by: name of the key, ``local`` without one.
        saved: unix seconds.
    """

    kind: ViewKind
    project: str
    name: str
    state: dict[str, Any]
    saved_by: str
    saved: float


class Views(msgspec.Struct):
    views: list[View]
