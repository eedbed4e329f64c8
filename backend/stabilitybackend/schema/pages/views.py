"""What people save of a page under a name: filters and columns of the table of runs, layouts of a run's charts."""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

#: runs: filter, columns, order and groups of the table of runs. layout: which charts a run's page has, and how.
ViewKind = Literal["runs", "layout"]
VIEW_KINDS: tuple[str, ...] = get_args(ViewKind)


class View(msgspec.Struct, frozen=True):
    """One saved view.

    Attributes:
        project: whose runs it is for, "" for all.
        name: unique among those of its kind and project.
        state: what the page needs to show it again; only the page reads it.
        saved_by: name of the key, ``local`` where none is needed.
        saved: unix seconds.
    """

    kind: ViewKind
    project: str
    name: str
    state: dict[str, Any]
    saved_by: str
    saved: float


class Views(msgspec.Struct):
    """Saved views, by name."""

    views: list[View]
