"""Watched metrics of a run with reasons, unwatched ones, and faults to correct."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from stabilitybackend.judging.detection.naming.families import COUNTS, GROWING, NONE, PERCENT, UNDECIDED, Family
from stabilitybackend.judging.detection.naming.watched_names import MAX_NAMES, MISSING_ROWS, WatchedNames
from stabilitybackend.judging.detectors.curve.detector import CurvesDetector
from stabilitybackend.judging.detectors.registry import DETECTORS
from stabilitybackend.schema.json_data import MAX_NAMED
from stabilitybackend.schema.metric_roles import LOSS, RATIO, TAKEN, dataset_of, role_of
from stabilitybackend.schema.watched import WatchedMetric, WatchedMetrics, Why

__all__ = ["missing_text", "watched_of"]

#: Listed unwatched names.
MAX_UNWATCHED = 500
#: Readings of agents' GPUs are no metrics of the training.
_READINGS = "gpu/"
_NOTED = "a note where it leaves its own past by far"
_TAKEN = {
    PERCENT: "percent, taken as shares",
    COUNTS: "counts of each row, taken as shares",
    GROWING: "counts that grow, taken as shares of what each row added",
}


def watched_of(names: WatchedNames, metrics: Iterable[str], followed: Collection[str] = ()) -> WatchedMetrics:
    """Return the report on ``metrics``; ``followed``: those without a role."""
    logged = [name for name in metrics if not name.startswith(_READINGS)]
    # A detector that compares ranks takes any metric, and none of one rank alone.
    wants = {name: made.wants for name, make in DETECTORS.items() if not (made := make()).side_by_side}
    found = [one for name in logged if (one := _watched(names, name, wants)) is not None]
    found.sort(key=lambda one: (one.dataset is not None, one.role, one.dataset or "", one.metric))
    seen = {one.metric for one in found}
    others = [name for name in logged if name not in seen]
    left = set(followed).intersection(others)
    found += [WatchedMetric(name, "", None, "values", [CurvesDetector.name], _NOTED) for name in others if name in left]
    unwatched = [name for name in others if name not in left]
    notes = [*_missing(names), *_unsure(names, others)]
    incomplete = len(names.first_steps) >= MAX_NAMES
    return WatchedMetrics(found, unwatched[:MAX_UNWATCHED], len(unwatched), notes, incomplete, names.mixture)


def missing_text(names: WatchedNames) -> str:
    """Return the sentence about declared names that never appeared, "" for none."""
    return " ".join(_missing(names))


def _watched(names: WatchedNames, metric: str, wants: Mapping[str, Callable[[str], bool]]) -> WatchedMetric | None:
    family = _family(names, metric)
    if family is not None:
        dataset, taken = family.members[metric], _TAKEN.get(family.are, "")
        role, why = family.measure or RATIO, _why_of(names, metric, family)
        known = f"{RATIO}/{dataset}"
        judged = names.is_judged(metric, lambda name: True)
        knows = {known, f"{TAKEN}{family.measure or RATIO}/{dataset}"} if names.mixture else {known}
        watchers = [name for name, want in wants.items() if judged and any(map(want, knows))]
        return WatchedMetric(metric, role, dataset, why, watchers, taken) if watchers or names.mixture else None
    judged_as = names.known_as(metric)
    if judged_as is None:
        return None
    watchers = [name for name, want in wants.items() if want(judged_as)]
    role, of = role_of(judged_as) or "", dataset_of(judged_as)
    if of is not None:
        role = LOSS
    elif judged_as.startswith(f"{RATIO}/"):
        role, of = RATIO, judged_as.removeprefix(f"{RATIO}/")
    if not watchers and not role:
        return None
    return WatchedMetric(metric, role, of, _why(names, metric, judged_as), watchers)


def _family(names: WatchedNames, metric: str) -> Family | None:
    return next((f for f in names.families.values() if metric in f.members and f.is_mixture), None)


def _why(names: WatchedNames, metric: str, judged_as: str) -> Why:
    declared = metric in names.declared.values() or any(metric in sets.values() for sets in names.datasets.values())
    return "declared" if declared else "name" if judged_as == metric else "values"


def _why_of(names: WatchedNames, metric: str, family: Family) -> Why:
    return "declared" if family.declared else "name" if family.measure else "values"


def _missing(names: WatchedNames) -> list[str]:
    if names.rows_since < MISSING_ROWS:
        return []
    every = [(role, metric) for role, metric in names.declared.items()]
    every += [(f"{role} of {one}", metric) for role, sets in names.datasets.items() for one, metric in sets.items()]
    missing = [(role, metric) for role, metric in every if metric not in names.first_steps]
    if not missing or len(names.first_steps) >= MAX_NAMES:
        return []
    listed = ", ".join(f"{metric!r} as {role}" for role, metric in missing[:MAX_NAMED])
    more = f" and {len(missing) - MAX_NAMED} more" if len(missing) > MAX_NAMED else ""
    return [
        f"run.names() names {listed}{more}, which none of the {names.rows_since:,} rows since then has: correct the "
        "name. Until it comes, names that are known are watched."
    ]


def _unsure(names: WatchedNames, unwatched: list[str]) -> list[str]:
    """Return a sentence for several candidates of the loss, and for data sets' numbers without a mixture."""
    notes = []
    several = [name for name in names.candidates.several(LOSS) if name in unwatched]
    if LOSS not in names.chosen and several:
        listed = ", ".join(map(repr, several[:MAX_NAMED]))
        notes.append(f"No known loss; {listed} may be it. Say which with run.names(loss=...).")
    for family in names.families.values():
        if family.measure and family.are == NONE and len(family.members) > 1 and RATIO + "/*" not in names.families:
            listed = ", ".join(map(repr, list(family.members)[:MAX_NAMED]))
            notes.append(f"{listed} are named like a mixture, but are neither shares that add up to 1 nor counts.")
        elif family.declared and family.are == UNDECIDED and len(family.members) < 2:
            notes.append(f"{next(iter(family.members))!r} is the only declared data set: a mixture needs two.")
    return notes
