"""Parameters of a chart's request, checked: an error names the parameter, the given value and the expected one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stabilitybackend.base.errors import BadRequest
from stabilitybackend.storage.query.downsampling import MIN_POINTS
from stabilitybackend.storage.query.ema import MAX_WEIGHT
from stabilitybackend.storage.query.lineage_view import LineageView

__all__ = ["MAX_METRICS", "MAX_POINTS", "SeriesRequest"]

#: Metrics answered in one call.
MAX_METRICS = 200
#: Greatest ``points`` of a line.
MAX_POINTS = 1_000_000


@dataclass(frozen=True, slots=True)
class SeriesRequest:
    """A checked wish.

    Attributes:
        metrics: names, each once.
        segment: of the view ``segment``, else None.
        start, stop: first and last step, inclusive; None for no bound.
        points: at most about this many a line (a metric of one rank, all its segments together); None for all rows.
        rank: one rank; ``primary``: the lowest that logs the metric; ``all``.
        x: ``step``, ``time``, or the name of a metric.
        smooth: weight of the past, None for no smoothing.
    """

    metrics: tuple[str, ...]
    view: Literal["effective", "all", "segment"] = "effective"
    segment: int | None = None
    start: int | None = None
    stop: int | None = None
    points: int | None = None
    rank: int | Literal["primary", "all"] = "all"
    x: str = "step"
    smooth: float | None = None

    @classmethod
    def of(
        cls,
        metrics: Sequence[str],
        *,
        view: str = "effective",
        start: int | None = None,
        stop: int | None = None,
        points: int | None = None,
        rank: str = "all",
        x: str = "step",
        smooth: float | None = None,
    ) -> SeriesRequest:
        """Return the wish that these parameters of a call name. Raises BadRequest where one of them is wrong."""
        if len(metrics) > MAX_METRICS:
            raise BadRequest(
                f"{len(metrics)} metrics asked for, expected at most {MAX_METRICS}", hint="ask in several calls"
            )
        if start is not None and stop is not None and start > stop:
            raise BadRequest(
                f"start is {start} and stop is {stop}, expected start <= stop", hint="both are steps, both inclusive"
            )
        if points is not None and not MIN_POINTS <= points <= MAX_POINTS:
            raise BadRequest(
                f"points is {points}, expected {MIN_POINTS} to {MAX_POINTS}",
                hint="leave it out for every row, or export the run",
            )
        if smooth is not None and not 0.0 <= smooth <= MAX_WEIGHT:
            raise BadRequest(
                f"smooth is {smooth}, expected 0 (not smoothed) to {MAX_WEIGHT}",
                hint="it is the weight of the past, as in TensorBoard",
            )
        if not x:
            raise BadRequest("x is empty, expected step, time or the name of a metric", hint="leave it out for step")
        kind, segment = _view(view)
        names = tuple(dict.fromkeys(metrics))
        return cls(names, kind, segment, start, stop, points, _rank(rank), x, smooth or None)

    def check(self, lineage: LineageView) -> None:
        """Raise BadRequest where the run has no such segment."""
        if self.segment is not None and self.segment >= len(lineage):
            raise BadRequest(
                f"view is segment:{self.segment}, expected segment:0 to segment:{len(lineage) - 1} in this run",
                hint="GET .../segments lists them",
            )


def _view(view: str) -> tuple[Literal["effective", "all", "segment"], int | None]:
    if view == "effective":
        return "effective", None
    if view == "all":
        return "all", None
    name, _, number = view.partition(":")
    if name == "segment" and number.isascii() and number.isdigit():
        return "segment", int(number)
    raise BadRequest(
        f"view is {view!r}, expected effective, all or segment:<id>", hint="GET .../segments lists the segments"
    )


def _rank(rank: str) -> int | Literal["primary", "all"]:
    if rank == "all":
        return "all"
    if rank == "primary":
        return "primary"
    if rank.isascii() and rank.isdigit():
        return int(rank)
    raise BadRequest(
        f"rank is {rank!r}, expected a rank (0 or more), primary or all",
        hint="primary is the lowest rank that logs the metric",
    )
