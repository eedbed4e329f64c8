"""Output of one backtest: small enough to return from another process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stabilitybackend.base.errors import StabilityBoardError
from stabilitybackend.judging.detection.naming.watched_report import watched_of
from stabilitybackend.judging.detectors.engine.base import SEVERITIES
from stabilitybackend.runs.backtest import backtest
from stabilitybackend.schema.incidents import Incident, as_json
from stabilitybackend.schema.watched import WatchedMetrics
from stabilityplugins.backtest.curves import Curve, curves_of
from stabilityplugins.backtest.sources import Log
from stabilityplugins.importers.problems import Reading

__all__ = ["Filter", "Judged", "judge"]


@dataclass(frozen=True, slots=True)
class Filter:
    """Which incidents are shown; all are judged.

    Args:
        severity: the least one.
        only: names of detectors or kinds; empty for all.
    """

    severity: str = "info"
    only: frozenset[str] = frozenset()

    def takes(self, incident: Incident) -> bool:
        """Return whether an incident is shown."""
        if SEVERITIES.index(incident.severity) < SEVERITIES.index(self.severity):
            return False
        return not self.only or incident.kind in self.only or incident.detector in self.only


@dataclass(frozen=True, slots=True)
class Judged:
    """One log.

    Attributes:
        name: as in ``Log``. incidents: that the filter takes, oldest first, in the shape of docs/api.md.
        rows, points, seconds, failures, unreadable: as in ``Backtest``.
        error, hint: why nothing could be judged, empty where it could.
        reading: problems of the file's rows.
        curves: for a plot.
        watched: the metrics judged, by role; None where no metric was.
    """

    name: str
    incidents: list[dict[str, Any]] = field(default_factory=list)
    rows: int = 0
    points: int = 0
    seconds: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)
    unreadable: int = 0
    error: str = ""
    hint: str = ""
    reading: Reading = field(default_factory=Reading)
    curves: Sequence[Curve] = ()
    watched: WatchedMetrics | None = None


def judge(log: Log, settings: Mapping[str, Mapping[str, float]], shown: Filter, *, with_curves: bool = False) -> Judged:
    """Backtest one log. A fault of its file is in the answer, not raised.

    Args:
        settings: detector -> parameter -> value. shown: which incidents. with_curves: whether a plot follows.

    Raises:
        SettingError: a setting is unknown or out of range.
    """
    try:
        found = backtest(log.frames(), settings=settings, run_id=log.name)
    except (StabilityBoardError, OSError) as error:
        hint = error.hint if isinstance(error, StabilityBoardError) else ""
        return Judged(log.name, error=str(error), hint=hint, reading=log.reading)
    incidents = [as_json(incident) for incident in found.incidents if shown.takes(incident)]
    return Judged(
        log.name,
        incidents,
        found.rows,
        found.points,
        found.seconds,
        found.failures,
        found.unreadable,
        reading=log.reading,
        curves=curves_of(found.state) if with_curves else (),
        watched=watched_of(found.state.judge.names, found.state.store.metrics(), found.state.judge.followed),
    )
