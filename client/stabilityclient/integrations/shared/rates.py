"""Scales learning rates where they are kept: in the parameter groups and in the base rates of schedules."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__all__ = ["names_of_rates", "scale_rates"]

#: Of a parameter group: the rate now, and those from which schedules of torch compute the next one.
_OF_GROUPS = ("lr", "initial_lr", "max_lr", "min_lr")
#: Of a schedule, lists of one rate a group; those of the second line are DeepSpeed's.
_OF_SCHEDULES = (
    "base_lrs", "_last_lr", "max_lrs", "min_lrs",
    "delta_lrs", "org_lrs", "min_lr",
)  # fmt: skip
#: Of a schedule, one rate for all groups.
_SINGLE = ("eta_min",)


def scale_rates(optimizers: Iterable[Any], schedules: Iterable[Any], factor: float) -> list[float]:
    """Multiply all learning rates by ``factor``, so that the next step has it and each step of the schedule keeps it.

    Of torch's and DeepSpeed's own schedules each number that is a rate is scaled, also of those inside of
    ``SequentialLR`` and ``ChainedScheduler``. Another schedule that sets rates from numbers under other
    names undoes it at its next step.

    Args:
        optimizers: with ``param_groups``.
        schedules: with ``base_lrs`` and the like; missing ones are passed over.
        factor: 0.5 halves.

    Returns:
        The rate of each parameter group now.
    """
    rates = []
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for name in _OF_GROUPS:
                if name in group:
                    group[name] = group[name] * factor
            rates.append(float(group["lr"]))
    done: set[int] = set()
    for schedule in schedules:
        _scale_schedule(schedule, factor, done)
    return rates


def names_of_rates(schedule: Any) -> list[str]:
    """Return the attributes of a schedule that hold rates, without those of schedules inside."""
    lists = [name for name in _OF_SCHEDULES if isinstance(getattr(schedule, name, None), list | tuple)]
    return lists + [name for name in _SINGLE if isinstance(getattr(schedule, name, None), int | float)]


def _scale_schedule(schedule: Any, factor: float, done: set[int]) -> None:
    if id(schedule) in done:
        return
    done.add(id(schedule))
    for name in names_of_rates(schedule):
        held = getattr(schedule, name)
        setattr(schedule, name, held * factor if name in _SINGLE else [rate * factor for rate in held])
    for inner in getattr(schedule, "_schedulers", None) or ():
        _scale_schedule(inner, factor, done)
