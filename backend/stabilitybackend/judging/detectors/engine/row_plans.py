"""Receivers of a row's metrics, the same for nearly all rows of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stabilitybackend.base.name_sets import key_of
from stabilitybackend.schema.metric_roles import BATCH_SIZE, GRAD_NORM, LR, NAMES_REMEMBERED, SEQUENCE_LENGTH, role_of

from .base import Detector

#: Roles of companion metrics.
COMPANIONS = frozenset({LR, GRAD_NORM, BATCH_SIZE, SEQUENCE_LENGTH})
#: Metric names with remembered receivers; beyond that they are looked up each time.
MAX_REMEMBERED_METRICS = NAMES_REMEMBERED
#: Sets of metrics with a remembered plan; others are looked up one by one.
MAX_REMEMBERED_SETS = 64

__all__ = ["RowPlan", "RowPlans"]


class RowPlan(NamedTuple):
    """Receivers of the metrics of one set, cached, as nearly all rows of a run are of a few sets.

    Attributes:
        wanted: metrics with a receiver, each with its index in the set.
        receivers: indices of metrics for detectors, by name, since rows from the store have no order; each with the
            detectors' names.
        companions: (role, metric) for the context.
    """

    wanted: tuple[tuple[int, str], ...]
    receivers: tuple[tuple[int, tuple[str, ...]], ...]
    companions: tuple[tuple[str, str], ...]


class RowPlans:
    """The plans of one bank of detectors.

    Args:
        detectors: of the bank, by name; ``wants`` does not depend on the state.
        with_companions: whether learning rate, gradient norm and batch size go to the context.
    """

    def __init__(self, detectors: Mapping[str, Detector], *, with_companions: bool) -> None:
        self._detectors = dict(detectors)
        self._companions = COMPANIONS if with_companions else frozenset()
        self._receivers: dict[str, tuple[str, ...]] = {}
        self._plans: dict[tuple[str, ...], RowPlan] = {}

    def wants(self, metric: str) -> bool:
        """Return whether points of ``metric`` go to any detector or to the context."""
        return bool(self._receivers_of(metric)) or role_of(metric) in self._companions

    def of(self, names: Sequence[str]) -> RowPlan:
        """Return the plan of a row of these metrics."""
        row = key_of(names)
        found = self._plans.get(row)
        if found is None:
            receivers = {place: who for place, name in enumerate(row) if (who := self._receivers_of(name))}
            companions = {place: role for place, name in enumerate(row) if (role := role_of(name)) in COMPANIONS}
            wanted = sorted({*receivers, *(place for place, role in companions.items() if role in self._companions)})
            found = RowPlan(
                tuple((place, row[place]) for place in wanted),
                tuple((place, receivers[place]) for place in sorted(receivers, key=row.__getitem__)),
                tuple((role, row[place]) for place, role in companions.items()),
            )
            if len(self._plans) < MAX_REMEMBERED_SETS:
                self._plans[row] = found
        return found

    def _receivers_of(self, metric: str) -> tuple[str, ...]:
        receivers = self._receivers.get(metric)
        if receivers is None:
            receivers = tuple(name for name, detector in self._detectors.items() if detector.wants(metric))
            if len(self._receivers) < MAX_REMEMBERED_METRICS:
                self._receivers[metric] = receivers
        return receivers
