"""A watchdog in the training process hears when a rank begins to go back on order, and when its state is back."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

import stabilityclient
from stabilityclient import Rollback
from stabilityclient.rank_state.slot import SlotView, read_slot
from support.agent.delivered import command, deliver

Start = Callable[..., stabilityclient.Run]


def paused(run: stabilityclient.Run) -> bool:
    (slot,) = [read_slot(str(path)) for path in Path(str(run.folder)).glob("sources/*/slot")]
    assert isinstance(slot, SlotView)
    return slot.paused > 0


def watched(run: stabilityclient.Run) -> list[str]:
    said: list[str] = []

    @run.on_pause
    def pause(rollback: Rollback) -> Callable[[], None]:
        said.append(f"to {rollback.to_step}, paused: {paused(run)}")
        return lambda: said.append(f"back, paused: {paused(run)}")

    return said


def test_around_the_handler_of_steps_and_the_slot_says_so_until_the_next_step_begins(start: Start) -> None:
    run = start()
    said = watched(run)
    run.on_rollback(lambda rollback: said.append("handler"))
    for step in run.steps(0, 12):
        if step == 5 and len(said) == 1:
            deliver(run.folder, command())
        said += [f"step {step}, paused: {paused(run)}"] if step in (4, 7) else []
    run.finish()
    assert said == [
        "step 4, paused: False", "step 7, paused: False", "to 3, paused: True", "handler", "back, paused: True",
        "step 4, paused: False", "step 7, paused: False",
    ]  # fmt: skip


@pytest.mark.parametrize("end", ["restored", "refused"])
def test_from_what_boundary_returned_until_the_job_says_how_it_went(start: Start, end: str) -> None:
    run = start()
    run.can_roll_back()
    said = watched(run)
    for step in range(12):
        if step == 5:
            deliver(run.folder, command(lr_scale=None, seed=None, skip_batches=None))
        order = run.boundary(step)
        if isinstance(order, Rollback):
            said.append("restores")
            run.restored(order) if end == "restored" else run.refused(order, "no")
            break
    run.finish()
    assert said == ["to 3, paused: True", "restores", "back, paused: True"]


def test_a_hook_that_raises_does_no_harm_to_the_rollback(start: Start, quiet: None) -> None:
    run = start()
    went: list[int] = []
    run.on_rollback(lambda rollback: went.append(rollback.to_step))

    @run.on_pause
    def pause(rollback: Rollback) -> None:
        raise RuntimeError("no monitor")

    for step in run.steps(0, 12):
        if step == 5 and not went:
            deliver(run.folder, command())
        time.sleep(0)
    run.finish()
    assert went == [3]
