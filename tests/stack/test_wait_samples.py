"""Real ranks that meet in gloo: the samples find the one that the others wait for, without a phase."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stabilityclient.rank_state.slot import SlotView, read_slot
from support.ports import free_port

pytest.importorskip("torch")

_JOB = """
import time, torch, torch.distributed as dist, stabilityclient
dist.init_process_group("gloo")
run = stabilityclient.init(project="samples", run_id="samples")
total, model = torch.zeros(8), torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
for step in run.steps(0, 90):
    time.sleep(0.08 if dist.get_rank() else 0.02)  # its data
    if {wrapped}:
        model(torch.ones(4, 8)).sum().backward()
    else:
        dist.all_reduce(total)
    run.log(step, {{"loss": 1.0}})
run.finish()
"""


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_rank_that_the_others_wait_for_waits_least(wrapped: bool, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(_JOB.format(wrapped=wrapped))
    env = os.environ | {"STABILITY_DIR": str(tmp_path / "spool"), "STABILITY_MODE": "offline", "OMP_NUM_THREADS": "1"}
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    done = subprocess.run([sys.executable, *launch, str(script)], env=env, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    slots = [read_slot(str(path)) for path in (tmp_path / "spool").glob("samples/sources/*/slot")]
    share = {slot.rank: slot.waits[1] / slot.waits[0] for slot in slots if isinstance(slot, SlotView)}
    assert share[1] < 0.35
    assert share[0] > share[1] + 0.3
