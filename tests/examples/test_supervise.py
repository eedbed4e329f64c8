"""What the launchers' recipes do with a plan; the launchers themselves are stand-ins here."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

_RECIPES = Path(__file__).parents[2] / "examples" / "supervise"
#: Each stand-in writes down how it was called; these lines say what it answers.
_ANSWERS = {
    "sbatch": "exit 0",
    "scontrol": 'printf "n1\\nn2\\nn3\\n"',
}


def _launch(folder: Path, script: str, plan_exit: int, *plans: list[str], **env: str) -> tuple[int, list[str]]:
    """Run a recipe until it ends; the job ends badly once for each of ``plans``, the nodes that each leaves out."""
    log = folder / "calls"
    for at, excluded in enumerate(plans):
        (folder / f"plan-{at}").write_text(json.dumps({"exclude_nodes": excluded}))
    asked = f"asked=$(ls '{folder}' | grep -c ^asked); touch '{folder}'/asked-$asked"
    fails = f'[ $(grep -c "^$(basename $0) " "$LOG") -gt {len(plans)} ]'
    answers = _ANSWERS | {
        "srun": fails,
        "torchrun": fails,
        "stabilityboard": f"{asked}; [ $# -ge 6 ] && cat '{folder}'/plan-$asked > \"$6\"; exit {plan_exit}",
    }
    for name, answer in answers.items():
        (folder / name).write_text(f'#!/bin/sh\necho "{name} $*" >> "$LOG"\n{answer}\n')
        (folder / name).chmod(0o755)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("STABILITY_", "SLURM_"))}
    env = clean | {"PATH": f"{folder}:{os.environ['PATH']}", "LOG": str(log), "HERE": "/recipes"} | env
    command = [str(_RECIPES / script), "my-run", str(folder / "checkpoints")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, log.read_text().splitlines()


_SLURM = {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": "/"}


def test_slurm_queues_the_job_again_without_the_nodes_that_are_suspect(tmp_path: Path) -> None:
    code, calls = _launch(tmp_path, "slurm.sh", 41, ["n2"], **_SLURM)
    assert code == 0
    assert calls[-1] == f"sbatch --exclude=n2 /recipes/slurm.sh my-run {tmp_path / 'checkpoints'}"


def test_slurm_goes_on_with_a_spare_in_the_same_allocation(tmp_path: Path) -> None:
    code, calls = _launch(tmp_path, "slurm.sh", 41, ["n1"], **_SLURM, NEED="2")
    assert code == 0
    starts = [call for call in calls if call.startswith(("srun", "sbatch"))]
    assert ["--exclude=n1" in start for start in starts] == [False, True]
    assert starts[1].startswith("srun --nodes=2")
    assert "--rdzv-endpoint n2:29500" in starts[1]


def test_slurm_does_not_take_back_a_node_that_an_earlier_plan_left_out(tmp_path: Path) -> None:
    code, calls = _launch(tmp_path, "slurm.sh", 41, ["n1"], ["n3"], **_SLURM, NEED="1")
    assert code == 0
    starts = [call for call in calls if call.startswith(("srun", "sbatch"))]
    assert [call.split("--exclude=")[-1].split()[0] for call in starts[1:]] == ["n1", "n1,n3"]


def test_slurm_queues_the_job_without_what_the_jobs_before_it_left_out(tmp_path: Path) -> None:
    code, calls = _launch(tmp_path, "slurm.sh", 41, ["n2"], **_SLURM, EXCLUDED="n8")
    assert code == 0
    assert calls[-1].startswith("sbatch --exclude=n2,n8 ")


@pytest.mark.parametrize(("script", "env"), [("slurm.sh", _SLURM), ("torchrun.sh", {})], ids=["slurm", "torchrun"])
def test_nothing_is_started_again_when_a_human_has_to_look(tmp_path: Path, script: str, env: dict[str, str]) -> None:
    code, calls = _launch(tmp_path, script, 42, [], **env)
    assert code == 42
    assert sum(call.startswith(("srun", "torchrun")) for call in calls) == 1


def test_torchrun_is_started_again_where_the_plan_says_so(tmp_path: Path) -> None:
    code, calls = _launch(tmp_path, "torchrun.sh", 40, [])
    assert code == 0
    assert [call.split()[0] for call in calls] == ["torchrun", "stabilityboard", "torchrun"]


def test_a_suspect_node_is_left_to_whoever_started_torchrun(tmp_path: Path) -> None:
    assert _launch(tmp_path, "torchrun.sh", 41, ["n1"])[0] == 41
