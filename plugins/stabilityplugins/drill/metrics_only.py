"""The drill of a job that the probe did not see (no torch, ``python -I``): by what it logs alone.

Fewer things can be told apart: a learning rate and a step number are logged, weights and optimizer only show in what
follows from them.
"""

from __future__ import annotations

from stabilityplugins.drill.alignment import Alignment
from stabilityplugins.drill.checks import Check, Legs
from stabilityplugins.drill.data_check import check_data
from stabilityplugins.drill.result import Result
from stabilityplugins.drill.series import compare_series
from stabilityplugins.drill.trace import LegTrace

__all__ = ["judge_metrics"]

_UNSEEN = (
    "the probe was not loaded, so weights, optimizer and random numbers were not seen: the job has no torch, or Python "
    "ignores PYTHONPATH"
)


def judge_metrics(straight: LegTrace, again: LegTrace, stopped: LegTrace, resumed: LegTrace) -> Result:
    """Return what a drill found by metrics, batches and step numbers."""
    saved = max(step for step, _ in stopped.checkpoints)
    first = min(step for names in resumed.metrics.values() for steps in names.values() for step in steps)
    reported = {step for step, _ in stopped.checkpoints}
    legs = Legs(straight, again, stopped, resumed, Alignment(saved, max(saved, first - 1)))
    # A job ended between a save and its report goes on from one that nobody saw: then its metrics fit its steps.
    fits = first - 1 > saved and all(one.verdict != "different" for one in compare_series(legs))
    restored = first - 1 in reported or fits
    if not restored:
        legs.at = Alignment(saved, saved)
    series = compare_series(legs)
    checks = [
        _by_name(legs, "learning rate", ("lr", "learning_rate")),
        check_data(legs),
        Check("step counter", restored, "" if restored else f"the first step is called {first}, expected {saved + 1}"),
    ]
    wrong = [check for check in checks if check.restored is False]
    differing = [one for one in series if one.verdict == "different"]
    name = wrong[0].name if wrong else _guess(differing, first)
    if name is None:
        text = f"CLEAN as far as its metrics show (stopped after step {saved}, resumed)"
    else:
        text = f"NOT RESTORED: {name}"
    loss = next((one for one in differing if one.name == "loss"), None)
    cost = "" if loss is None or loss.mean is None else f"the loss is {loss.mean:+.4g} on average"
    compared = max((one.steps for one in series), default=0)
    return Result(
        name is None, name, text, cost, checks, series, saved, first - 1, compared,
        [len(straight.metrics), len(resumed.metrics)], False, [_UNSEEN],
    )  # fmt: skip


def _by_name(legs: Legs, thing: str, names: tuple[str, ...]) -> Check:
    found = [one for one in compare_series(legs) if one.name in names]
    if not found:
        return Check(thing, None, "not logged")
    wrong = next((one for one in found if one.verdict == "different"), None)
    return Check(thing, wrong is None, "" if wrong is None else f"{wrong.name} differs from step {wrong.since} on")


def _guess(differing: list, first: int) -> str | None:  # type: ignore[type-arg]
    """Return what the first difference points to: a loss that is right at first has the right weights and data."""
    if not differing:
        return None
    since = differing[0].since
    if since is not None and since > first:
        return f"optimizer state, or what else acts after a step (all is equal up to step {since - 1})"
    return "weights, random numbers or data: they can't be told apart by metrics"
