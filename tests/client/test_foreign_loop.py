"""A loop that belongs to somebody else obeys by run.boundary: nothing has acted before the state is said to be back."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stabilityclient
from stabilityclient import RefusedError, Rewind, Rollback, Stop
from stabilityclient.agent.commands.downlink import Downlink
from support.agent.spooled import stored

Start = Callable[..., stabilityclient.Run]


def _deliver(run: stabilityclient.Run, **more: Any) -> None:
    now = time.time()
    command = {
        "command_id": "c1", "kind": "rollback", "to_step": 3, "lr_scale": 0.5, "seed": None, "skip_batches": 4,
        "reason": "spike", "issuer": "ada", "issued": now, "expires": now + 600,
        "fence": {"segment": 0, "segment_key": ""}, "attempt": 1, "apply_at_step": 8, "world_size": 1,
        "checkpoint": None, "state": "pending", **more,
    }  # fmt: skip
    problems: list[str] = []
    Downlink(Path(str(run.folder)), problems.append).take(command, 0.0)
    assert problems == []


def _answers(run: stabilityclient.Run) -> list[tuple[int | None, str]]:
    return [(event.step, event.data["state"]) for event in stored(run.folder).events("command")]


def _order(run: stabilityclient.Run, start: int = 0, **more: Any) -> Any:
    """Train until an order comes, and return it."""
    for step in range(start, start + 20):
        if step == start + 6:
            _deliver(run, **more)
        if (order := run.boundary(step)) is not None:
            return order
        run.log(step, {"loss": 1.0})
    raise AssertionError("no order came")


def test_a_rollback_out_of_nested_loops_goes_on_behind_its_step_and_then_has_acted(start: Start) -> None:
    run = start()
    run.can_roll_back("skip_batches", "lr_scale")
    seen: list[int] = []

    def epochs(step: int) -> None:
        for _ in range(4):
            for _ in range(3):
                if len(seen) == 6:
                    _deliver(run)
                if isinstance(order := run.boundary(step, 12), Rollback):
                    raise Rewind(order)
                seen.append(step)
                run.log(step, {"loss": 1.0})
                step += 1

    with pytest.raises(Rewind) as left:
        epochs(0)
    before = _answers(run)
    run.restored(left.value.rollback, applied={"lr_scale": 0.5})
    epochs(left.value.rollback.to_step + 1)
    run.finish()

    assert left.value.rollback == Rollback(3, 0.5, None, 4, "spike", "c1", None, "ada")
    assert seen == [*range(8), *range(4, 16)]
    assert before == [(6, "ready")]
    store = stored(run.folder)
    assert _answers(run) == [(6, "ready"), (8, "acted")]
    assert [e.data.get("applied") for e in store.events("command")] == [None, {"lr_scale": 0.5}]
    assert [(e.step, e.data["key"], e.data["cause"]) for e in store.events("segment")] == [(3, "c1", "command")]
    assert [e.data for e in store.events("handler")] == [{"can": ["lr_scale", "skip_batches"], "branches": True}]
    order = [e.type for e in store.events() if e.type in ("segment", "command", "restored")]
    assert order == ["command", "segment", "command", "restored"]


def test_a_job_that_does_not_say_that_it_can_go_back_refuses(start: Start) -> None:
    run = start()
    run.on_rollback(lambda rollback: None)  # for steps(): boundary() calls no handler
    _deliver(run)
    assert [run.boundary(step) for step in range(10)] == [None] * 10
    run.finish()
    assert _answers(run) == [(0, "rejected")]


def test_a_job_that_goes_back_by_boundary_alone_refuses_within_steps(start: Start) -> None:
    run = start()
    run.can_roll_back()
    _deliver(run)
    assert list(run.steps(0, 10)) == [*range(10)]
    run.finish()
    assert _answers(run) == [(0, "rejected")]


def test_a_stop_is_returned_from_then_on_and_has_acted_once(start: Start) -> None:
    run = start()
    order = _order(run, kind="stop")
    assert isinstance(order, Stop)
    assert (order.step, order.reason, order.command_id, order.issuer) == (8, "spike", "c1", "ada")
    assert run.boundary(8) is run.boundary(9) is run.stopped is order
    run.finish()
    assert _answers(run) == [(6, "ready"), (8, "acted")]


def test_a_refused_rollback_has_failed_and_training_goes_on_in_its_segment(start: Start) -> None:
    run = start()
    run.can_roll_back()
    run.refused(_order(run), "no checkpoint")
    for step in range(8, 10):
        assert run.boundary(step) is None
        run.log(step, {"loss": 1.0})
    run.finish()
    store = stored(run.folder)
    assert _answers(run) == [(6, "ready"), (8, "failed")]
    assert store.events("command")[-1].data["detail"] == "the job refused: no checkpoint"
    assert store.events("segment") == []
    assert store.steps(0) == [*range(10)]


def test_a_step_that_is_logged_before_the_state_is_back_fails_the_rollback_and_is_stored(
    start: Start, quiet: None
) -> None:
    run = start()
    run.can_roll_back()
    order = _order(run)
    run.log(4, {"loss": 1.0})
    run.restored(order)
    run.finish()
    store = stored(run.folder)
    assert _answers(run) == [(6, "ready"), (8, "failed")]
    assert "logged without run.restored()" in store.events("command")[-1].data["detail"]
    assert store.steps(0) == [*range(8), 4]
    assert run._guard.swallowed == 2


def test_a_step_that_begins_before_the_state_is_back_fails_the_rollback(start: Start, quiet: None) -> None:
    run = start()
    run.can_roll_back()
    _order(run)
    assert run.boundary(4) is None
    assert _answers(run) == [(6, "ready"), (8, "failed")]
    assert "step 4 began without run.restored()" in stored(run.folder).events("command")[-1].data["detail"]


def test_a_test_of_the_job_sees_that_the_state_was_not_said_to_be_back(start: Start) -> None:
    run = start()
    run.can_roll_back()
    _order(run)
    with pytest.raises(RefusedError, match=r"without run\.restored\(\)"):
        run.log(4, {"loss": 1.0})


@pytest.mark.parametrize("end", ["finish", "exit", "raise"])
def test_a_rollback_that_is_open_when_the_job_ends_has_failed(start: Start, end: str) -> None:
    run = start()
    run.can_roll_back()
    order = _order(run)
    if end == "raise":
        run._on_exception(Rewind(order))
    if end != "finish":
        run._on_exit()
    run.finish()
    assert _answers(run) == [(6, "ready"), (8, "failed")]


def test_the_end_of_the_loop_takes_the_vote_back(start: Start) -> None:
    run = start()
    run.can_roll_back()
    _deliver(run)
    assert [run.boundary(step) for step in range(4)] == [None] * 4
    assert run.boundary(4, stop=4) is None
    run.finish()
    assert _answers(run) == [(0, "ready"), (4, "aborted")]


def test_the_end_of_the_job_takes_the_vote_back(start: Start) -> None:
    run = start()
    run.can_roll_back()
    _deliver(run)
    assert [run.boundary(step) for step in range(4)] == [None] * 4
    run.finish()
    assert _answers(run) == [(0, "ready"), (4, "aborted")]


def test_a_second_rollback_works_as_the_first_one(start: Start) -> None:
    run = start()
    run.can_roll_back()
    first = _order(run)
    run.restored(first)
    fence = {"segment": 1, "segment_key": "c1"}
    second = _order(run, 4, command_id="c2", apply_at_step=12, to_step=5, fence=fence)
    run.restored(second)
    run.log(6, {"loss": 1.0})
    run.finish()
    assert _answers(run) == [(6, "ready"), (8, "acted"), (10, "ready"), (12, "acted")]
    assert [event.data["key"] for event in stored(run.folder).events("segment")] == ["c1", "c2"]


@pytest.mark.parametrize("say", ["restored", "refused"])
def test_a_rollback_that_was_not_returned_is_refused(start: Start, say: str) -> None:
    run = start()
    other = Rollback(3, command_id="c9")
    with pytest.raises(RefusedError, match=rf"{say}\(\) came for 'c9'"):
        run.restored(other) if say == "restored" else run.refused(other, "no")


def test_a_loop_over_steps_needs_no_boundary(start: Start) -> None:
    run = start()
    for step in run.steps(0, 1):
        with pytest.raises(RefusedError, match="within a loop over steps"):
            run.boundary(step)


@pytest.mark.parametrize("changes", [("lr",), (("lr_scale",),), (3,)])
def test_a_change_that_no_order_asks_for_is_refused(start: Start, changes: Any) -> None:
    with pytest.raises(RefusedError, match="expected a tuple of some of lr_scale"):
        start().can_roll_back(*changes)


@pytest.mark.parametrize("step", [-1, "3", 2.5, None])
def test_a_step_that_is_none_is_refused_and_harms_no_training(start: Start, quiet: None, step: Any) -> None:
    run = start()
    assert run.boundary(step) is None
    assert run._guard.swallowed == 1


def test_the_first_boundary_reports_where_training_goes_on(start: Start) -> None:
    run = start()
    for step in range(7, 9):
        run.boundary(step)
        run.log(step, {"loss": 1.0})
    assert run._components is not None
    assert run._components.slot.step == 8
    run.finish()
    store = stored(run.folder)
    assert [event.step for event in store.events("restored")] == [6]
    assert len(store.events("environment")) == 1


def test_a_checkpoint_that_another_thread_reports_has_no_random_numbers_of_now(start: Start) -> None:
    run = start()
    run.boundary(1)
    run.checkpoint(1, "/c/1")
    thread = threading.Thread(target=run.checkpoint, args=(2, "/c/2"))
    thread.start()
    thread.join()
    run.finish()
    assert ["rng" in event.data for event in stored(run.folder).events("checkpoint")] == [True, False]


def test_a_disabled_run_returns_nothing(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STABILITY_MODE", "disabled")
    run = start(url="http://127.0.0.1:9")
    assert run.folder is None
    run.can_roll_back("seed")
    assert [run.boundary(step) for step in range(3)] == [None] * 3
    run.restored(Rollback(1))
    run.refused(Rollback(1), "no")


def test_a_rewind_survives_a_trip_to_another_process_and_no_handler_of_errors_stops_it() -> None:
    rewind = pickle.loads(pickle.dumps(Rewind(Rollback(3, command_id="c1"))))
    assert rewind.rollback == Rollback(3, command_id="c1")
    assert not isinstance(rewind, Exception)
