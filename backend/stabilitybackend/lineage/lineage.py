"""The lineage of one run, and its external inputs, as consumers read them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from stabilitybackend.base.stateful import Stateful
from stabilitybackend.lineage.consumer import Consumer
from stabilitybackend.lineage.fold import LineageFold

__all__ = ["Given", "Lineage"]


@dataclass(eq=False)
class Given(Consumer):
    """External inputs of a run.

    Args:
        clock: returns unix seconds.
        config: returns the run's config, which is stored apart from its frames.
        remember: adds to a finding about a GPU, of a given incident or a new one, that GPU's history in other runs.
    """

    run_id: str
    clock: Callable[[], float]
    config: Callable[[], Mapping[str, Any]] = dict
    remember: Callable[[Any, Any], Any] = lambda finding, incident: finding


class Lineage(Consumer):
    """The fold that places rows and events before any consumer gets them.

    Args:
        undone: keys of inferred segments that were undone.
    """

    def __init__(self, undone: Collection[str] = ()) -> None:
        self.fold = LineageFold(undone)

    def state(self) -> Mapping[str, Stateful]:
        return {"lineage": self.fold}
