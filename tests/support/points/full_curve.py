"""Reads the curve of one metric the way a chart does, in full resolution."""

from __future__ import annotations

from stabilitybackend.lineage.fold import LineageFold
from stabilitybackend.storage.points.store import RunStore
from stabilitybackend.storage.query.lineage_view import LineageView
from stabilitybackend.storage.query.query import Series, select
from stabilitybackend.storage.query.request import SeriesRequest

__all__ = ["entries"]


def entries(store: RunStore, fold: LineageFold, metric: str, view: str = "effective") -> list[Series]:
    """Return all entries of one metric."""
    return select(store.view([metric]), LineageView.of(fold), SeriesRequest.of([metric], view=view)).series
