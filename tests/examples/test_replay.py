"""The training job comes back to exactly where a checkpoint was: bit for bit, on two real ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the training job needs torch: make test installs it")
pytestmark = pytest.mark.torch

_JOB = Path(__file__).with_name("replay_job.py")
#: Two rows instead of eight: the laws are the same, the steps four times as fast.
_SMALL = ["--rows", "3"]


def run_plan(folder: Path, plan: list[list[Any]], *arguments: str) -> list[list[list[Any]]]:
    """Train by ``plan`` on two ranks; return what each rank saw."""
    out = folder / "seen"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(_JOB),
        str(out),
    ]
    command += [*_SMALL, "--checkpoint-dir", str(folder / "checkpoints"), *arguments, "--", json.dumps(plan)]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(out.with_suffix(f".{rank}.json").read_text()) for rank in range(2)]


def test_a_rollback_without_changes_gives_the_same_losses_again(tmp_path: Path) -> None:
    plan = [["train", 25], ["save"], ["train", 40], ["restore", 25], ["train", 40]]

    for seen in run_plan(tmp_path, plan):
        assert [step for step, *_ in seen] == [*range(1, 41), *range(26, 41)]
        assert seen[40:] == seen[25:40]


def test_a_restarted_job_resumes_with_the_losses_of_the_one_that_was_not_interrupted(tmp_path: Path) -> None:
    whole = run_plan(tmp_path, [["train", 10], ["save"], ["train", 20]])

    resumed = run_plan(tmp_path, [["resume"], ["train", 20]])

    assert resumed == [seen[10:] for seen in whole]


def test_skipped_batches_and_a_new_seed_give_other_losses_from_the_first_step_on(tmp_path: Path) -> None:
    plan = [["train", 10], ["save"], ["train", 12], ["restore", 10], ["skip", 5], ["train", 12]]
    plan += [["restore", 10], ["reseed", 7], ["train", 12]]

    rank_0, rank_1 = run_plan(tmp_path, plan)

    for seen in (rank_0, rank_1):
        first_losses = [seen[10][1], seen[12][1], seen[14][1]]
        assert len(set(first_losses)) == 3
