"""Each thing that a real PyTorch job does not restore is named, and a right resume is clean."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stabilityplugins.drill.alignment import align, saves
from stabilityplugins.drill.comparisons import Legs
from stabilityplugins.drill.job import run_leg
from stabilityplugins.drill.result import Result, judge
from stabilityplugins.drill.trace import LegTrace
from support.installed import needs

pytestmark = [needs("torch", "the job trains with PyTorch"), pytest.mark.torch, pytest.mark.soak]
JOB = Path(__file__).resolve().parents[3] / "examples" / "drill" / "plain.py"
STEPS = 10


def rounds(trace: LegTrace) -> int:
    return min((len(one.rounds) for one in trace.ranks.values()), default=0)


class Stage:
    """A straight and a stopped leg, of which a copy is resumed as often as wanted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.stopped = self._run("stopped", f"saved:{STEPS}", lambda trace: [0, *saves(trace)][-1] >= STEPS)
        self.straight = self._run("straight", f"rounds:{2 * STEPS}", lambda trace: rounds(trace) >= 2 * STEPS)

    def resumed(self, *arguments: str) -> Result:
        """Return what a resume with these arguments is judged to be."""
        name = "-".join(("resumed", *arguments))
        shutil.copytree(self._folder / "stopped" / "job", self._folder / name / "job")
        resumed = self._run(name, f"rounds:{STEPS}", lambda trace: rounds(trace) >= STEPS, *arguments)
        at = align(self.stopped, resumed)
        return judge(Legs(self.straight, self.stopped, self.stopped, resumed, at))

    def _run(self, name: str, wait: str, enough: Callable[[LegTrace], bool], *arguments: str) -> LegTrace:
        job = self._folder / name / "job"
        job.mkdir(parents=True, exist_ok=True)
        environ = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "STABILITY_"))}
        return run_leg(
            [sys.executable, str(JOB), "--folder", str(job), *arguments], self._folder / name, job_dir=job,
            cwd=self._folder, environ=environ, timeout_s=240, enough=enough, wait_after=wait,
        )  # fmt: skip


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return Stage(tmp_path_factory.mktemp("drill"))


def test_a_right_resume_is_identical_to_a_straight_run(stage: Stage) -> None:
    found = stage.resumed()

    assert found.text.startswith("CLEAN: identical to a straight run")
    assert {one.name: one.verdict for one in found.series} == dict.fromkeys(("loss", "grad_norm", "lr"), "identical")
    assert [check.name for check in found.checks if check.restored is not True] == []


@pytest.mark.parametrize(
    ("forgotten", "named"),
    [
        ("optimizer", "optimizer state"),
        pytest.param("data", "data", marks=pytest.mark.soak),
        pytest.param("weights", "weights", marks=pytest.mark.soak),
        pytest.param("schedule", "learning rate", marks=pytest.mark.soak),
        pytest.param("rng", "random numbers", marks=pytest.mark.soak),
        pytest.param("step", "step counter", marks=pytest.mark.soak),
    ],
)
def test_what_is_not_restored_is_named_first_and_nothing_else_is(stage: Stage, forgotten: str, named: str) -> None:
    found = stage.resumed("--forget", forgotten)

    assert (found.clean, found.first) == (False, named)
    assert [check.name for check in found.checks if check.restored is False and not check.follows] == [named]
