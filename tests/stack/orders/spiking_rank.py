"""One rank of a job that spikes and stays there until it is rolled back: ``python spiking_rank.py PLAN``, PLAN as JSON.

PLAN: ``onset`` step of the spike, ``every`` steps between two checkpoints, ``checkpoints`` their folder, ``period_s`` a
step takes, ``enough`` a file at whose sight the steps end.
"""

from __future__ import annotations

import json
import os
import random
import struct
import sys
import time
from pathlib import Path

import stabilityclient


def save(path: Path, step: int) -> None:
    """Write a whole .safetensors file, which an agent can verify; the state is the step."""
    head = json.dumps({"step": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}}).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + struct.pack("<q", step))


def main() -> None:
    plan, rank = json.loads(sys.argv[1]), int(os.environ["RANK"])
    run = stabilityclient.init(project="tests", name="spiking")
    went_back: list[dict[str, object]] = []

    @run.on_rollback(can=("lr_scale", "seed", "skip_batches", "skip_range"))
    def restore(rollback: stabilityclient.Rollback) -> dict[str, object]:
        assert rollback.checkpoint is not None
        (step,) = struct.unpack("<q", Path(rollback.checkpoint).read_bytes()[-8:])
        assert step == rollback.to_step
        went_back.append({"to_step": step, "issuer": rollback.issuer, **rollback.changes()})
        return rollback.changes()

    last = 0
    for step in run.steps(1):
        time.sleep(plan["period_s"])
        spike = 2.5 + 0.01 * (step - plan["onset"]) if not went_back and step >= plan["onset"] else 0.0
        batch = step if not went_back or step < plan["onset"] else step + 1_000  # behind those that are left out
        noise = random.Random(7919 * batch + rank).gauss(0.0, 0.02)
        run.log(step, {"loss": 3.0 - 0.001 * step + noise + spike})
        if rank == 0 and step % plan["every"] == 0:
            path = Path(plan["checkpoints"]) / f"{len(went_back)}-{step}.safetensors"
            save(path, step)
            run.checkpoint(step, path)
        last = step
        if os.path.exists(plan["enough"]):
            break
    run.finish()
    print(json.dumps({"went_back": went_back, "last": last}), flush=True)


main()
