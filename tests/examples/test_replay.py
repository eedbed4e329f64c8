"""The training job comes back to exactly where a checkpoint was: bit for bit, on two real ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.installed import needs
from support.ports import free_port

# Soak: it trains twice on two ranks. That the demo's job goes back and on is `test_demo.py`.
pytestmark = [
    pytest.mark.soak,
    pytest.mark.torch,
    needs("torch", "the training job needs torch: make test installs it"),
]

_JOB = Path(__file__).with_name("replay_job.py")
#: Two rows instead of eight: the laws are the same, the steps four times as fast.
_SMALL = ["--rows", "3"]


def run_plan(folder: Path, tokens: Path, plan: list[list[Any]]) -> list[list[list[Any]]]:
    """Train by ``plan`` on two ranks; return what each rank saw."""
    out = folder / "seen"
    command = [sys.executable, str(_JOB), str(out), *_SMALL]
    command += ["--data-cache", str(tokens), "--checkpoint-dir", str(folder / "checkpoints"), "--", json.dumps(plan)]
    # What torchrun would set; itself, it takes two seconds to load PyTorch only to start two processes.
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    log = folder / "ranks.log"
    with log.open("wb") as errors:
        places = [{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"} for rank in range(2)]
        ranks = [subprocess.Popen(command, env=env | place, stderr=errors) for place in places]
    try:
        assert [rank.wait(120) for rank in ranks] == [0, 0], log.read_text(errors="replace")[-3000:]
    finally:
        for rank in ranks:
            rank.kill()  # one whose peer has failed would wait for it
    return [json.loads(out.with_suffix(f".{rank}.json").read_text()) for rank in range(2)]


class Job:
    """What a job saw that trained to 12 and was sent back to 6 three times, and one that a restart took up at 6."""

    def __init__(self, folder: Path, tokens: Path) -> None:
        plan = [["train", 6], ["save"], ["train", 12], ["restore", 6], ["train", 12]]
        plan += [["restore", 6], ["skip", 5], ["train", 8], ["restore", 6], ["reseed", 7], ["train", 8]]
        seen = run_plan(folder, tokens, plan)
        self.steps = [[step for step, *_ in rank] for rank in seen]
        self.first = [rank[6:12] for rank in seen]
        self.again = [rank[12:18] for rank in seen]
        self.skipped = [rank[18:20] for rank in seen]
        self.reseeded = [rank[20:] for rank in seen]
        seen = run_plan(folder, tokens, [["resume"], ["train", 12], ["save"], ["back", 6, 7], ["train", 8]])
        self.resumed = [rank[:6] for rank in seen]
        self.ordered = [rank[6:] for rank in seen]
        self.after_death = run_plan(folder, tokens, [["resume"], ["train", 8]])


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory, tokens: Path) -> Job:
    return Job(tmp_path_factory.mktemp("replay"), tokens)


def test_a_job_that_is_sent_back_goes_on_with_the_step_after_the_checkpoint(job: Job) -> None:
    assert job.steps == 2 * [[*range(1, 13), *range(7, 13), 7, 8, 7, 8]]


def test_a_rollback_without_changes_gives_the_same_losses_again(job: Job) -> None:
    assert job.again == job.first


def test_a_restarted_job_resumes_with_the_losses_of_the_one_that_was_not_interrupted(job: Job) -> None:
    assert job.resumed == job.first


def test_a_job_that_dies_before_its_next_save_comes_up_where_it_was_ordered_with_what_was_ordered(job: Job) -> None:
    assert job.after_death == job.ordered == job.reseeded


def test_skipped_batches_and_a_new_seed_give_other_losses_from_the_first_step_on(job: Job) -> None:
    for rank in range(2):
        assert len({job.first[rank][0][1], job.skipped[rank][0][1], job.reseeded[rank][0][1]}) == 3
