"""Curves of a backtest's plot: the detectors' input, thinned so that every spike is still there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stabilitybackend.judging.detectors.registry import DETECTORS
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.metric_roles import GRAD_NORM, LOSS, LR, VAL_LOSS, dataset_of, role_of
from stabilitybackend.storage.query.lineage_view import LineageView
from stabilitybackend.storage.query.query import select
from stabilitybackend.storage.query.request import SeriesRequest

__all__ = ["Curve", "curves_of"]

#: Points of a curve: more than a screen has columns, so that zooming in still shows something.
CURVE_POINTS = 4_000
#: Panels below the loss; further metrics are left out.
MAX_PANELS = 7
#: Curves in one panel: beyond it colours repeat and the curves can't be distinguished.
MAX_CURVES = 12
#: Panels by role, in the order in which they are drawn.
_ROLES = ((LOSS, "loss"), (VAL_LOSS, "loss"), (GRAD_NORM, "grad_norm"), (LR, "lr"))


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of the plot.

    Attributes:
        panel: where it is drawn. metric: its name.
        dead: points off the effective path. level: 0 where every row is here; else buckets of ``2**level`` steps, with
            the extremes of each at their true steps.
        steps, values: rising steps; None for values that can't be drawn (NaN, infinite).
    """

    panel: str
    metric: str
    dead: bool
    level: int
    steps: list[int]
    values: list[float | None]


def curves_of(state: RunState) -> list[Curve]:
    """Return the curves of a run's judged metrics, the loss first."""
    detectors = [made for make in DETECTORS.values() if not (made := make()).side_by_side]
    panels = _panels(state.store.metrics(), lambda name: any(detector.wants(name) for detector in detectors))
    metrics = [metric for names in panels.values() for metric in names]
    if not metrics:
        return []
    view = state.store.view(metrics)
    primary = state.judge.primary
    request = SeriesRequest(
        tuple(metrics), view="all", points=CURVE_POINTS, rank="primary" if primary is None else primary
    )
    panel_of = {metric: panel for panel, names in panels.items() for metric in names}
    curves = [
        Curve(
            panel_of[series.metric],
            series.metric,
            series.dead or series.stray,
            series.level,
            series.steps.tolist(),
            [value if math.isfinite(value) else None for value in series.values.tolist()],
        )
        for series in select(view, LineageView.of(state.fold), request).series
    ]
    order = list(panels)
    return sorted(curves, key=lambda curve: order.index(curve.panel))


def _panels(metrics: Iterable[str], wanted: Callable[[str], bool]) -> dict[str, list[str]]:
    """Return panel -> metrics: the loss, the losses of data sets, then one for each other metric that is judged."""
    panels: dict[str, list[str]] = {}
    names = list(metrics)
    for role, panel in _ROLES:
        panels.setdefault(panel, []).extend(name for name in names if role_of(name) == role)
        if role == VAL_LOSS:
            panels["loss by data set"] = [name for name in names if dataset_of(name)]
    taken = {name for some in panels.values() for name in some}
    for name in names:
        if name not in taken and wanted(name) and len(panels) <= MAX_PANELS:
            panels[name.partition("/")[0]] = [*panels.get(name.partition("/")[0], []), name]
    return {panel: some[:MAX_CURVES] for panel, some in panels.items() if some}
