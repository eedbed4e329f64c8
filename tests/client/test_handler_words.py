"""A job says what its rollback handler can change and what it did; rubbish in its words harms no training."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stabilityclient
from stabilityclient.agent.commands.downlink import Downlink
from support.agent.spooled import stored

Start = Callable[..., stabilityclient.Run]


def _deliver(run_folder: Any, **more: Any) -> None:
    now = time.time()
    command = {
        "command_id": "c1", "kind": "rollback", "to_step": 3, "lr_scale": 0.5, "seed": 9, "skip_batches": 4,
        "reason": "spike", "issuer": "ada", "issued": now, "expires": now + 600,
        "fence": {"segment": 0, "segment_key": ""}, "attempt": 1, "apply_at_step": 8, "world_size": 1,
        "checkpoint": None, "state": "pending", **more,
    }  # fmt: skip
    problems: list[str] = []
    Downlink(Path(run_folder), problems.append).take(command, 0.0)
    assert problems == []


def _roll_back_once(run: stabilityclient.Run) -> None:
    for step in run.steps(0, 12):
        run.log(step, {"loss": 1.0})
        if step == 5:
            _deliver(run.folder)
            break
    for _ in run.steps(6, 10):
        pass
    run.finish()


def _acted(run: stabilityclient.Run) -> list[Any]:
    return [e.data["applied"] for e in stored(run.folder).events("command") if e.data["state"] == "acted"]


@pytest.mark.parametrize("told", [None, {"lr_scale": 0.5, "skip_batches": 4}, {}])
def test_what_the_handler_returns_is_told_as_applied(start: Start, told: Any) -> None:
    run = start()

    @run.on_rollback(can=("skip_batches", "lr_scale"))
    def restore(rollback: stabilityclient.Rollback) -> Any:
        return told

    _roll_back_once(run)
    assert _acted(run) == [told]
    assert [e.data for e in stored(run.folder).events("handler")] == [
        {"can": ["lr_scale", "skip_batches"], "branches": True}
    ]


def test_a_bare_handler_promises_the_step_alone(start: Start) -> None:
    run = start()
    run.on_rollback(lambda rollback: None)
    run.finish()
    assert [e.data for e in stored(run.folder).events("handler")] == [{"can": None, "branches": True}]


class _Rubbish:
    def items(self) -> Any:
        raise RuntimeError("no")


RUBBISH = [7, "lr", [1], _Rubbish(), {str(n): n for n in range(33)}]


@pytest.mark.parametrize("rubbish", RUBBISH)
def test_rubbish_from_the_handler_is_raised_under_pytest(start: Start, rubbish: Any) -> None:
    run = start()
    run.on_rollback(lambda rollback: rubbish)
    with pytest.raises(stabilityclient.RefusedError, match="the rollback handler"):
        _roll_back_once(run)
    run.finish()
    assert _acted(run) == [None]


@pytest.mark.parametrize("rubbish", RUBBISH)
def test_rubbish_from_the_handler_is_only_told_in_a_job(start: Start, rubbish: Any) -> None:
    run = start()
    run._guard.strict = False
    run.on_rollback(lambda rollback: rubbish)
    _roll_back_once(run)
    assert _acted(run) == [None]
    assert run._guard.swallowed == 1


@pytest.mark.parametrize("can", ["lr_scale", ("lr",), (3,), 5])
def test_a_list_of_abilities_that_no_order_asks_for_is_refused(start: Start, can: Any) -> None:
    run = start()
    with pytest.raises((stabilityclient.RefusedError, TypeError)):
        run.on_rollback(can=can)
    run._guard.strict = False
    assert run.on_rollback(can=can)(print) is print
    run.finish()


def test_a_handler_that_only_notes_the_order_has_acted_when_the_state_is_restored(start: Start) -> None:
    run = start()
    noted: list[stabilityclient.Rollback] = []
    run.on_rollback(noted.append, later=True)
    said: list[Any] = []
    for step in run.steps(0, 8):
        if noted:
            said.append(_acted(run))
            run.restored(noted.pop(), applied={"seed": 9})
            said.append(_acted(run))
        run.log(step, {"loss": 1.0})
        if step == 5 and not said:
            _deliver(run.folder, apply_at_step=6)
    run.finish()
    assert said == [[], [{"seed": 9}]]


def test_a_restore_that_nobody_ordered_is_refused(start: Start) -> None:
    run = start()
    with pytest.raises(stabilityclient.RefusedError, match="expected the rollback that the handler noted"):
        run.restored(stabilityclient.Rollback(3, command_id="c9"))
    run.finish()
