"""A job reports which random numbers it saved and goes on with, and what it computes with; it pays nothing for it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.random  # it is loaded when it is first used
import pytest

import stabilityclient
from stabilitybackend.runs.state import RunState
from stabilityclient.environment import environment, git_commit
from stabilityclient.errors import RefusedError
from stabilityclient.rank_state.random_states import random_states
from support.agent.spooled import child, frames, stored

Start = Callable[..., stabilityclient.Run]

JOB = """
import os, random, sys, types
import stabilityclient

first, last, seed, version = os.environ["JOB"].split()
sys.modules["triton"] = types.ModuleType("triton")
sys.modules["triton"].__version__ = version
run = stabilityclient.init(project="p", name="n", dir=os.environ["FOLDER"])
random.seed(int(seed))
for step in run.steps(int(first), int(last)):
    run.data(step, position=f"shard {step}")
    run.log(step, {"loss": 2.0 + random.gauss(0, 0.1)})
    if step == 199:
        random.seed(1)
        run.checkpoint(step, "/c/199")
run.finish()
"""


def test_a_checkpoint_carries_the_state_of_each_generator_that_is_in_use(start: Start) -> None:
    run = start()
    run.checkpoint(1, "/c/1")
    run.checkpoint(2, "/c/2")
    random.random()
    np.random.normal()
    run.checkpoint(3, "/c/3")
    run.finish()
    first, second, third = [event.data["rng"] for event in stored(run.folder).events("checkpoint")]
    assert {"python", "numpy"} <= set(first)
    assert first == second
    assert {name for name in second if second[name] != third[name]} == {"python", "numpy"}


def test_a_state_from_before_a_step_is_one_of_the_step_before(start: Start) -> None:
    run = start()
    run.checkpoint(200, "/c/200", before_step=True)
    with pytest.raises(RefusedError, match="step is 0 with before_step=True"):
        run.checkpoint(0, "/c/0", before_step=True)
    run.finish()
    assert [event.step for event in stored(run.folder).events("checkpoint")] == [199]


def test_a_checkpoint_tells_how_long_its_save_took_inside_and_after_its_phase(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 10_000, 10))
    run = start()
    run.checkpoint(1, "/c/1")
    with monkeypatch.context() as patch:
        patch.setattr("stabilityclient.rank_state.phase.monotonic", lambda: next(clock))
        with run.phase("checkpoint_forward"):
            pass
        with run.phase("checkpoint"):
            run.checkpoint(2, "/c/2")
        with run.phase("save"):
            pass
        run.checkpoint(3, "/c/3")
        run.checkpoint(4, "/c/4")
    run.finish()
    took = [event.data.get("took_s") for event in stored(run.folder).events("checkpoint")]
    assert took == [None, 10.0, 20.0, None]


def test_a_generator_that_cannot_be_read_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    monkeypatch.delitem(sys.modules, "numpy.random", raising=False)
    assert set(random_states()) == {"python"}


def test_a_process_reports_once_from_which_state_its_first_step_goes_on(start: Start) -> None:
    run = start()
    for _ in range(2):
        list(run.steps(7, 9))
    run.restored(20)
    run.finish()
    assert [(event.step, set(event.data)) for event in stored(run.folder).events("restored")] == [
        (6, {"rng"}), (20, {"rng"}),
    ]  # fmt: skip


def test_a_job_that_begins_at_step_0_restored_nothing(start: Start) -> None:
    run = start()
    list(run.steps(0, 3))
    run.finish()
    assert stored(run.folder).events("restored") == []


@pytest.mark.parametrize(
    ("given", "applied", "expected"),
    [("last", None, "expected a whole number"), (-3, None, "expected"), (3, {"seed": 1}, "expected applied= with")],
)
def test_a_state_that_is_none_is_refused(start: Start, given: object, applied: object, expected: str) -> None:
    run = start()
    with pytest.raises(RefusedError, match=expected):
        run.restored(given, applied=applied)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "x" * 101], ids=["empty", "long"])
def test_a_position_that_is_no_short_text_is_refused(start: Start, text: str) -> None:
    run = start()
    with pytest.raises(RefusedError, match=f"a text of {len(text)} characters, expected 1 to 100"):
        run.data(3, position=text)


def test_the_environment_is_reported_when_training_has_begun_by_the_first_rank_of_a_node(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    monkeypatch.setenv("SECRET_TOKEN", "s3cr3t")
    run = start()
    run.log(1, {"loss": 1.0})
    run.finish()
    (event,) = stored(run.folder).events("environment")
    assert event.data["variables"] == {"NVIDIA_TF32_OVERRIDE": "0"}
    assert event.data["entries"]["python"] == sys.version.split()[0]
    assert event.data["entries"]["numpy"] == np.__version__
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    other = start(run_id="r2")
    other.log(1, {"loss": 1.0})
    other.finish()
    assert stored(other.folder).events("environment") == []


def test_a_package_that_makes_its_version_up_when_asked_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = types.ModuleType("jax")
    lazy.__getattr__ = lambda name: 1 / 0  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "jax", lazy)
    monkeypatch.setitem(sys.modules, "flax", None)  # type: ignore[arg-type]
    assert not {"jax", "flax"} & set(environment({}, 1, "")["entries"])


def test_a_package_whose_version_is_no_text_is_not_asked_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = types.ModuleType("jax")
    odd.__version__ = type("Version", (), {"__str__": lambda self: 1 / 0})()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jax", odd)
    assert "jax" not in environment({}, 1, "")["entries"]


def test_texts_that_are_no_unicode_are_sent_all_the_same(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", os.fsdecode(b"--dump=/tmp/\xff"))
    run = start()
    run.data(1, position=os.fsdecode(b"shard \xff"))
    run.log(1, {"loss": 1.0})
    run.finish()
    spool = stored(run.folder)
    assert [event.data["position"] for event in spool.events("batch")] == ["shard ?"]
    assert [event.data["variables"]["XLA_FLAGS"] for event in spool.events("environment")] == ["--dump=/tmp/?"]


def test_the_commit_is_that_of_the_checkout_of_the_script(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        who = ("-c", "user.name=n", "-c", "user.email=e")
        return subprocess.run(
            ["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "m")
    (tmp_path / "deep").mkdir()
    script = str(tmp_path / "deep" / "train.py")
    head = git("rev-parse", "HEAD")
    assert git_commit(script) == head
    git("pack-refs", "--all")
    assert git_commit(script) == head
    git("worktree", "add", "-q", str(tmp_path / "tree"))
    git("commit", "-q", "--allow-empty", "-m", "n")
    assert git_commit(str(tmp_path / "tree" / "train.py")) == head
    git("checkout", "-q", "--detach")
    assert git_commit(script) == git("rev-parse", "HEAD") != head


def test_a_script_without_a_checkout_has_no_commit(tmp_path: Path) -> None:
    assert git_commit(os.path.join(tmp_path, "train.py")) == ""


@pytest.mark.parametrize(("seed", "rng"), [(1, "equal"), (3, "different")], ids=["restored", "another seed"])
def test_a_process_that_goes_on_with_other_random_numbers_and_versions_is_told_apart(
    tmp_path: Path, seed: int, rng: str
) -> None:
    for job in ("0 220 9 3.0", f"200 260 {seed} 3.1"):
        process = child(JOB, JOB=job, FOLDER=str(tmp_path), STABILITY_RUN_ID="r1", STABILITY_MODE="offline")
        assert process.communicate()[1] == ""
    state = RunState("r1", lambda: 1e9)
    for frame in frames(next(path.parent for path in tmp_path.rglob("sources"))):
        state.apply(frame, replayed=False)
    (resume,) = state.resumes.view().resumes
    parts = {part.part: part for part in resume.parts}
    assert parts["rng"].known == rng
    assert ("triton", "3.0", "3.1") in [(one.name, one.before, one.since) for one in resume.environment or ()]
    assert resume.position is not None
    assert (resume.position.went, state.unreadable.passed_over) == ("goes_on", 0)
