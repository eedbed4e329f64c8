"""Says which mixture was declared, and how what is taken compares with it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from stabilitybackend.judging.detection.naming.families import SHARES
from stabilitybackend.judging.detection.naming.watched_names import WatchedNames
from stabilitybackend.judging.detectors.mixture import MixtureDetector, ShownShare
from stabilitybackend.schema.metric_roles import RATIO, TAKEN
from stabilitybackend.schema.mixture import DeclaredMixture, Mixture, MixtureShare, MixtureStage

if TYPE_CHECKING:
    from stabilitybackend.judging.detection.run_detection import Judge

__all__ = ["mixture_of_run"]


def mixture_of_run(judge: Judge) -> Mixture:
    """Return what the job of a run declared and takes."""
    detector = judge.detector(MixtureDetector.name)
    shown = detector.shown() if isinstance(detector, MixtureDetector) else {}
    found = []
    for unit in dict.fromkeys(one.unit for one in judge.mixtures.known):
        stages = [MixtureStage(one.step or 0, one.shares) for one in judge.mixtures.known if one.unit == unit]
        measure, _, sets = shown.get(unit, ("", 0, []))
        shares = [_share(judge.names, measure, one) for one in sets]
        found.append(DeclaredMixture(unit, measure, shares, stages, _note(judge.names, unit, measure, sets)))
    return Mixture(found)


def _share(names: WatchedNames, measure: str, one: ShownShare) -> MixtureShare:
    metric = names.own_name(f"{TAKEN}{measure}/{one.dataset}")
    known = metric if not metric.startswith(TAKEN) else None
    drawn = known is not None and any(known in f.members and f.are == SHARES for f in names.families.values())
    realised, since = (None if math.isnan(value) else value for value in (one.realised, one.realised_since))
    return MixtureShare(one.dataset, known, drawn, one.declared, realised, since, one.low, one.high, one.off)


def _note(names: WatchedNames, unit: str, measure: str, sets: list[ShownShare]) -> str:
    if measure and any(not math.isnan(one.realised) for one in sets):
        return ""
    other = "samples" if unit == "tokens" else "tokens"
    if not any(any(True for _ in names.mixtures(one)) for one in (unit, RATIO)):
        if any(True for _ in names.mixtures(other)):
            return f"Declared in {unit}, logged in {other}: not compared. Log {unit}/<data set> too."
        return f"No metric counts what is taken: log {unit}/<data set>, or shares as ratio/<data set>."
    if measure:
        return "No data set that is logged has a declared name, or there are too few rows yet."
    return "Compared as soon as there are rows."
