"""``run.data`` stores what a step saw, in its place, and never harms the loop."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import stabilityclient
from stabilityclient.errors import RefusedError
from support.agent.spooled import stored

Start = Callable[..., stabilityclient.Run]


def test_what_a_step_saw_is_stored_with_its_facts(start: Start) -> None:
    run = start()
    run.data(7, ids={"web": np.arange(600), "code": ["a", "b"]}, epoch=1, position=602, tokens=5_000)
    run.finish()

    (event,) = stored(run.folder).events("batch")
    sets = {one["name"]: (one["samples"], one["shift"]) for one in event.data["sets"]}
    assert (event.step, event.data["of"], event.data["samples"], event.data["tokens"]) == (7, "ids", 602, 5_000)
    assert (event.data["epoch"], event.data["position"], sets) == (1, 602, {"web": (600, 6), "code": (2, 0)})


def test_a_place_without_ids_is_stored(start: Start) -> None:
    run = start()
    run.data(3, epoch=2, position=64)
    run.finish()

    assert stored(run.folder).events("batch")[0].data == {"epoch": 2, "position": 64}


def test_batches_stand_before_the_rollback_that_followed_them(start: Start) -> None:
    run = start()
    for step in range(50):
        run.data(step, ids=range(step, step + 100))
    run.rolled_back(to_step=20)
    run.data(21, ids=[1])
    run.finish()

    types = [event.type for event in stored(run.folder).events()]
    assert types == ["start", *["batch"] * 50, "segment", "restored", "batch", "finish"]


@pytest.mark.parametrize("wrong", [{"ids": 3}, {"ids": "shard"}, {"epoch": -1}, {"position": 1.5}, {"tokens": "many"}])
def test_what_is_no_fact_about_data_is_refused(start: Start, wrong: dict[str, object]) -> None:
    run = start()

    with pytest.raises((ValueError, RefusedError), match="expected"):
        run.data(1, **wrong)  # type: ignore[arg-type]


def test_a_run_that_is_disabled_or_finished_takes_no_batches(start: Start) -> None:
    run = start()
    run.finish()
    run.data(1, ids=[1, 2])

    assert not stored(run.folder).events("batch")
