"""One rank of a small job: ``python job.py PLAN`` with PLAN as JSON, see ``DEFAULTS``."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import stabilityclient

DEFAULTS = {
    "start": 1,  # first step
    "stop": 60,  # first step that is not run
    "enough": "",  # file; the steps end where a rank finds it, wherever that is
    "period_s": 0.01,
    "declare": {},  # after step (as text) -> step to go back to, once each
    "checkpoints": "",  # folder; a checkpoint every 10 steps
    "apart": False,  # after each rollback they get names of their own, and overwrite none
    "die_at": None,  # [rank, step]: that rank kills itself with -9
    "hang_at": None,  # [rank, step]: that rank stands still in phase "data", the others wait for it
    "together": "",  # folder; each rank waits there for all others before its first step, as in a first all-reduce
    "late": None,  # [rank, file]: that rank begins once the file is there; before their first step the others wait
    "finish": True,
}


def _wait_for(file: str) -> None:
    while not os.path.exists(file):
        time.sleep(0.05)


def main() -> None:
    plan = DEFAULTS | json.loads(sys.argv[1])
    rank = int(os.environ["RANK"])
    late, gate = plan["late"] or (None, "")
    if rank == late:
        _wait_for(gate)
    run = stabilityclient.init(project="tests", name="job")
    if late is not None:
        with run.phase("init", expect_s=1.0):
            _wait_for(gate)
    if plan["together"]:
        (Path(plan["together"]) / str(rank)).touch()
        while len(os.listdir(plan["together"])) < int(os.environ["WORLD_SIZE"]):
            time.sleep(0.005)
    loaded: list[int] = []

    @run.on_rollback
    def restore(rollback: stabilityclient.Rollback) -> None:
        assert rollback.checkpoint is not None
        assert Path(rollback.checkpoint).read_text() == str(rollback.to_step)
        loaded.append(rollback.to_step)

    first, step = plan["start"], 0
    while first < plan["stop"]:
        for step in run.steps(first, plan["stop"]):
            if plan["die_at"] == [rank, step]:
                os.kill(os.getpid(), signal.SIGKILL)
            if plan["hang_at"] is not None and step == plan["hang_at"][1]:
                with run.phase("data" if plan["hang_at"][0] == rank else "backward"):
                    time.sleep(600)
            time.sleep(plan["period_s"])
            run.log(step, {"loss": 1000.0 * len(loaded) + 2000.0 - step, "rank": float(rank)})  # falls: no incident
            if plan["checkpoints"] and step % 10 == 0 and rank == 0:
                path = Path(plan["checkpoints"]) / (f"{len(loaded)}-{step}" if plan["apart"] else str(step))
                path.write_text(str(step))
                run.checkpoint(step, path)
            if str(step) in plan["declare"]:
                back = plan["declare"].pop(str(step))
                run.rolled_back(to_step=back, reason="the job decided", lr_scale=0.5)
                step = back
                break
            if plan["enough"] and os.path.exists(plan["enough"]):
                plan["stop"] = step + 1
                break
        first = step + 1
    outcome = run.finish() if plan["finish"] else None
    print(json.dumps({"loaded": loaded, "last": step, "outcome": outcome}), flush=True)


main()
