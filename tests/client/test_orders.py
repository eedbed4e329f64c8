"""Orders to stop and to save, in one rank: obeyed between two steps, or refused in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import stabilityclient
from support.agent.delivered import answers as _answers
from support.agent.delivered import command as _command
from support.agent.delivered import deliver as _deliver
from support.agent.spooled import stored

Start = Callable[..., stabilityclient.Run]


def test_after_a_stop_no_further_loop_has_steps_and_the_run_says_who_ordered_it(start: Start) -> None:
    run = start()
    told: list[stabilityclient.Stop] = []
    run.on_stop(told.append)
    _deliver(run.folder, _command(kind="stop", apply_at_step=2))
    assert (list(run.steps(0, 10)), list(run.steps(10, 20))) == ([0, 1], [])
    run.finish()
    assert run.stopped is told[0]
    assert (run.stopped.issuer, run.stopped.step, len(told)) == ("ada", 2, 1)


def test_a_checkpoint_that_is_ordered_is_saved_between_two_steps_announced_and_training_goes_on(
    start: Start, tmp_path: Path
) -> None:
    run = start()
    saved: list[int] = []

    @run.on_checkpoint
    def save(step: int) -> Path:
        saved.append(step)
        return tmp_path / f"step-{step}"

    _deliver(run.folder, _command(kind="checkpoint_now", apply_at_step=4))
    assert list(run.steps(0, 8)) == [*range(8)]
    run.finish()
    assert _answers(run) == [(0, "ready"), (4, "acted")]
    (told,) = stored(run.folder).events("checkpoint")
    assert (saved, told.step, told.data["path"]) == ([3], 3, str(tmp_path / "step-3"))
    assert [event.data for event in stored(run.folder).events("obeys")] == [{"orders": ["stop", "checkpoint_now"]}]


def test_a_checkpoint_that_can_not_be_saved_fails_the_order_and_not_the_job(start: Start, quiet: None) -> None:
    run = start()

    @run.on_checkpoint
    def save(step: int) -> None:
        raise OSError("No space left on device")

    _deliver(run.folder, _command(kind="checkpoint_now", apply_at_step=3))
    _deliver(run.folder, _command(command_id="c2", kind="stop", save=True, apply_at_step=6))
    assert list(run.steps(0, 9)) == [*range(6)]
    run.finish()
    last = {event.data["command_id"]: event.data for event in stored(run.folder).events("command")}
    assert (last["c1"]["state"], last["c2"]["state"]) == ("failed", "acted")
    assert "the checkpoint was not saved: OSError: No space left" in last["c2"]["detail"]


def test_a_job_without_a_function_that_saves_refuses_what_would_need_one(start: Start) -> None:
    run = start()
    _deliver(run.folder, _command(kind="checkpoint_now", apply_at_step=3))
    _deliver(run.folder, _command(command_id="c2", kind="stop", save=True, apply_at_step=4))
    assert list(run.steps(0, 6)) == [*range(6)]
    run.finish()
    assert _answers(run) == [(0, "rejected")] * 2
    assert stored(run.folder).events("obeys")[0].data == {"orders": ["stop"]}
