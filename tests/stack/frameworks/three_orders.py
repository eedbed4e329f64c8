"""Three rollbacks of a job whose loop somebody else owns, and the laws that hold of each rank's steps afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stack.fitted_runs import Fitted, Step
from support.waiting import wait_until

__all__ = ["Branches", "as_ordered", "losses_again", "ordered", "rates_scaled", "right_batches", "truth_of"]

#: The steps that a rank trained, of each segment.
Branches = list[list[Step]]


def ordered(job: Fitted, long: int = 120, within_s: float = 60.0) -> list[dict[str, Any]]:
    """Order: to step 40 as it was; again with changes; to a later checkpoint without a range of steps.

    Args:
        long: step that the first branch reaches at least, so that there is something to compare with.
        within_s: how long it may take to it.
    """
    job.wait_for_run()
    job.wait_for_checkpoint(40, 0)
    wait_until(lambda: job.truth()[-1].number > long, within_s, "the first branch is long")
    commands = [job.order(to_step=40), job.order(to_step=40, lr_scale=0.5, skip_batches=3)]
    job.wait_for_checkpoint(80, 2)
    commands.append(job.order(to_step=60, skip_range=[70, 72]))
    job.wait_for_checkpoint(80, 3)
    return commands


def as_ordered(commands: list[dict[str, Any]], ranks: list[Branches]) -> None:
    """Assert that each order was carried out and reported as such, on all ranks."""
    print("seconds from an order to its end:", [round(one["took_s"], 2) for one in commands])
    assert [one["state"] for one in commands] == ["done"] * 3, [one["history"] for one in commands]
    applied = [one["ranks"]["0"]["applied"] for one in commands]
    reported = [(one.get("lr_scale"), one.get("skip_batches"), one.get("skip_range")) for one in applied]
    assert reported == [(None, None, None), (0.5, 3, None), (None, None, [70, 72])], reported
    begins = [[branch[0].number for branch in branches] for branches in ranks]
    assert begins == [[1, 41, 41, 61]] * len(ranks), begins


def losses_again(ranks: list[Branches]) -> None:
    """Assert that a rollback which changes nothing gives the same losses, to the last bit."""
    for first, again, *_ in ranks:
        length = min(len(again), len(first) - 40)
        assert length > 0
        assert again[:length] == first[40 : 40 + length], (again[:3], first[40:43])


def rates_scaled(ranks: list[Branches], schedule: Callable[[int], float]) -> None:
    """Assert that the first step after each rollback and all that follow have the scaled rate of the schedule."""
    for branches in ranks:
        for branch, scale in zip(branches, [1.0, 1.0, 0.5, 0.5], strict=True):
            assert [step.rate for step in branch] == pytest.approx([scale * schedule(one.number) for one in branch])


def right_batches(ranks: list[Branches]) -> None:
    """Assert that exactly what was ordered is left out of the data; the first branch has every batch."""
    for first, _, third, fourth in ranks:
        at = {step.number: step.sample for step in first}
        moved = [(step, step.number + 3) for step in third]
        moved += [(step, step.number + 3 + 3 * (step.number >= 70)) for step in fourth]
        seen = [(step.sample, at[place]) for step, place in moved if place in at]
        assert len(seen) > 60, len(seen)
        assert [sample for sample, _ in seen] == [sample for _, sample in seen]


def truth_of(branches: Branches) -> list[Step]:
    """Return the steps of the effective series: each once."""
    first, _, third, fourth = branches
    return first[:40] + third[:20] + fourth
