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


def test_an_integration_saves_where_the_job_has_no_function_of_its_own_or_says_why_it_can_not(start: Start) -> None:
    run = start()
    saved: list[str] = []
    run._framework_saves(lambda step: saved.append(f"framework {step}"))
    _deliver(run.folder, _command(kind="checkpoint_now", apply_at_step=2))
    steps = run.steps(0, 9)
    assert [next(steps) for _ in range(4)] == [0, 1, 2, 3]
    run.on_checkpoint(lambda step: saved.append(f"job {step}"))
    _deliver(run.folder, _command(command_id="c2", kind="checkpoint_now", apply_at_step=6))
    assert [next(steps) for _ in range(4)] == [4, 5, 6, 7]
    run.finish()
    assert saved == ["framework 1", "job 5"]


def test_why_an_integration_saves_none_is_said_before_and_when_it_is_ordered(start: Start) -> None:
    run = start()
    run._framework_saves(None, "--async-save writes in the background")
    _deliver(run.folder, _command(kind="checkpoint_now", apply_at_step=2))
    assert list(run.steps(0, 4)) == [*range(4)]
    run.finish()
    (told,) = stored(run.folder).events("command")
    assert (told.data["state"], told.data["detail"]) == ("rejected", "--async-save writes in the background")
    said = stored(run.folder).events("obeys")[0].data
    assert said == {"orders": ["stop"], "why": {"checkpoint_now": "--async-save writes in the background"}}


def test_a_loop_that_draws_before_its_boundary_knows_at_which_one_it_is_to_save(start: Start) -> None:
    run = start()
    seen: list[int] = []
    run.on_checkpoint(seen.append)
    _deliver(run.folder, _command(kind="checkpoint_now", apply_at_step=3))
    due: list[int] = []
    for step in range(6):
        run.boundary(step, 6)
        if run._saves_before(step + 1):
            due.append(step + 1)
    run.finish()
    assert (due, seen) == ([3], [2])
