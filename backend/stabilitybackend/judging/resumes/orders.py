"""Changes of a rollback that did not happen, by the rate, the batches and the job's report. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.judging.resumes.branches import changes_rate, lr_scale
from stabilitybackend.judging.resumes.overlap import ForkMeasures
from stabilitybackend.judging.resumes.parts import RATE_EQUAL, RATE_NEAR, RATE_POINTS, rate_ratios
from stabilitybackend.judging.resumes.residuals import median_of
from stabilitybackend.schema.resumes import Change, NotFollowed, SkipCheck

__all__ = ["not_followed", "reported"]

#: Value in ``lineage.tree`` of two ranks with different reports.
DIFFERING = "differs between ranks"
#: Changes of the batches; one of them at a time.
_SKIPS: tuple[Change, ...] = ("skip_batches", "skip_range")
_CHANGES: tuple[Change, ...] = ("lr_scale", "seed", *_SKIPS)


def not_followed(
    seen: ForkMeasures | None, applied: Mapping[str, Any] | None, skip: SkipCheck | None
) -> list[NotFollowed]:
    """Return the changes that certainly did not happen, in a fixed order; empty for none, or for unknown.

    Measurements count more than the job's report. A reported refusal with a reason is no such case.

    Args:
        applied: changes reported by the job, None for no report.
        skip: whether the batches were left out.
    """
    if seen is None:
        return []
    said = applied or {}
    ordered = {name: seen.declared[name] for name in _CHANGES if seen.declared.get(name) is not None}
    open_ = {name: value for name, value in ordered.items() if not _refused(said.get(name), value)}
    known: set[str] = set()
    found = []
    if "lr_scale" in open_ and (rate := _rate(seen)) is not None:
        known.add("lr_scale")
        found += rate
    if skip is not None and skip.known != "not_seen":
        known |= set(_SKIPS)
        if skip.known == "different":
            name = next((name for name in _SKIPS if name in open_), None)
            found += [] if name is None else [NotFollowed(name, _words(name, ordered[name]), skip.why)]
    if applied is None or seen.new_points < RATE_POINTS:  # until then later points may show it
        return found
    return found + [
        NotFollowed(name, _words(name, value), f"the job reports {_reported(name, said)}")
        for name, value in open_.items()
        if name not in known and _denied(name, value, said)
    ]


def reported(applied: Mapping[str, Any] | None) -> dict[str, str] | None:
    """Return the job's report about possible changes, in short texts; None for none."""
    return None if applied is None else {name: str(applied[name])[:80] for name in _CHANGES if name in applied}


def _refused(said: Any, ordered: Any) -> bool:
    return isinstance(said, str) and said != DIFFERING and said != str(ordered)


def _rate(seen: ForkMeasures) -> list[NotFollowed] | None:
    """Return whether the rate differs from the requested one (a list of one); None for unknown.

    Compared with the rate of the discarded branch at the same steps, so that warm-up and decay are in both. Only a
    constant factor counts: a moving one is that of another schedule.
    """
    scale = lr_scale(seen.declared)
    ratios = rate_ratios(seen)
    if scale == 1 or changes_rate(seen.declared) or ratios is None:
        return None
    steady = next(_steady(ratios), None)
    # A schedule may set the old rate again, some steps after the change.
    over_all = median_of(ratios) if len(ratios) >= RATE_POINTS else math.nan
    old_again = abs(over_all - 1) <= RATE_NEAR < min(abs(expected - 1) for expected in seen.rates)
    if steady is None and not old_again:
        return None
    came = 1.0 if old_again or steady is None else steady
    if any(abs(came / expected - 1) <= RATE_NEAR for expected in seen.rates):
        return []
    old = ", the old rate," if abs(came - 1) <= RATE_NEAR else ""
    observed = f"× {came:.4g}{old} at {len(ratios)} common steps"
    return [NotFollowed("lr_scale", _words("lr_scale", scale), observed)]


def _steady(ratios: NDArray[np.float64]) -> Iterator[float]:
    """Yield the medians of intervals of RATE_POINTS with a constant ratio."""
    for end in range(RATE_POINTS, len(ratios) + 1):
        window = ratios[end - RATE_POINTS : end]
        if window.max() / window.min() - 1 <= RATE_EQUAL:
            yield median_of(window)


def _denied(name: str, ordered: Any, said: Mapping[str, Any]) -> bool:
    """Return whether the job reports another change."""
    if name not in said:
        # A report without any of these names is about other things.
        return not said or any(other in said for other in _CHANGES)
    value = said[name]
    if value == ordered:
        return False
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float) and isinstance(ordered, int | float):
        return not math.isclose(value, ordered, rel_tol=RATE_EQUAL)
    if isinstance(value, Sequence) and isinstance(ordered, Sequence):
        return list(value) != list(ordered)
    return True


def _reported(name: str, said: Mapping[str, Any]) -> str:
    if name not in said:
        return "other changes, and not this one" if said else "that it changed nothing"
    return f"{said[name]}"[:80] if said[name] is not None else "none"


def _words(name: str, value: Any) -> str:
    if name == "lr_scale" and isinstance(value, int | float):
        return f"× {value:.4g}"
    if name == "seed":
        return f"seed {value}"[:80]
    if name == "skip_range" and isinstance(value, Sequence) and len(value) == 2:
        return f"without the batches of steps {value[0]} to {value[1]}"
    return f"without the next {value} batches"[:80] if name == "skip_batches" else f"{name} {value}"[:80]
