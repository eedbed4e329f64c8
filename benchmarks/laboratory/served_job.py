"""The closed loop over HTTP: a real server, a real job with the client, and a program that orders what is advised.

``python benchmarks/laboratory/served_job.py FAULT SEED FOLDER`` is the job; ``follow_served`` is the program.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

__all__ = ["follow_served"]

#: Seconds a step at least, so that the server follows; between two looks of the program; and that a job may take.
STEP_S, LOOK_S, JOB_S = 0.008, 0.1, 240.0


def train(fault: str, seed: int, folder: Path) -> None:
    """Be the job: train, announce checkpoints, obey rollbacks. A file ``fixed`` in the folder takes the cause away."""
    from followed_job import FollowedJob

    import stabilityclient

    job = FollowedJob(fault, seed, (folder / "fixed").exists)
    run = stabilityclient.init(project="closed loop", name=f"{fault} {seed}")

    @run.on_rollback(can=("lr_scale", "seed", "skip_range"))
    def back(rollback: stabilityclient.Rollback) -> dict[str, Any]:
        job.go_back(rollback.to_step, rollback.lr_scale, rollback.seed, rollback.skip_range)
        return rollback.changes()

    def save(step: int) -> None:
        job.job.save(step)
        path = folder / f"checkpoint-{step}"
        path.write_text(str(step))
        run.checkpoint(step, str(path))

    save(0)
    for step in run.steps(1, job.settings.steps + 1):
        begin = time.monotonic()
        run.log(step, job.step(step))
        if step % job.settings.checkpoint_every == 0:
            save(step)
        time.sleep(max(0.0, STEP_S - (time.monotonic() - begin)))
    run.finish()


def follow_served(fault: str, seed: int, url: str, folder: Path) -> dict[str, Any]:
    """Start a job, do what the advice says, and return what came of it.

    Raises:
        TimeoutError: the job did not end in time.
    """
    from closed_loop import chosen, corrected, goes_back, outcome

    folder.mkdir(parents=True)
    run_id = f"{fault}-{seed}".replace("_", "-")
    env = os.environ | {"STABILITY_URL": url, "STABILITY_RUN_ID": run_id, "RANK": "0", "WORLD_SIZE": "1"}
    with open(folder / "job.log", "wb") as log:
        command = [sys.executable, __file__, fault, str(seed), str(folder)]
        job = subprocess.Popen(command, env=env | {"STABILITY_DIR": str(folder)}, stdout=log, stderr=log)
    orders: list[dict[str, Any]] = []
    fixed, end = set[str](), time.monotonic() + JOB_S
    with httpx.Client(base_url=f"{url}/api/v1/runs/{run_id}", timeout=30.0) as client:
        while job.poll() is None:
            if time.monotonic() > end:
                job.kill()
                job.wait()
                raise TimeoutError(f"{run_id} did not end within {JOB_S:.0f} s")
            time.sleep(LOOK_S)
            answer = client.get("/incidents")
            advice = chosen(answer.json()["incidents"]) if answer.status_code == 200 else None
            if advice is None:
                continue
            fixed.add(advice["fix_first"])
            if corrected(fault, fixed):
                (folder / "fixed").touch()
            if goes_back(advice) and (order := _order(client, advice)) is not None:
                orders.append(order)
        return outcome(fault, seed, fixed, orders, client.get("/incidents").json()["incidents"])


def _order(client: httpx.Client, advice: dict[str, Any]) -> dict[str, Any] | None:
    """Order the rollback and wait until it is over; None where it was refused."""
    from closed_loop import changes_of

    order = {"to_step": advice["to_step"], **changes_of(advice)}
    answer = client.post("/commands", json={"kind": "rollback", "reason": "the advice", **order})
    if answer.status_code >= 300:
        return None
    command = answer.json()["command_id"]
    for _ in range(100):
        time.sleep(LOOK_S)
        known = [one for one in client.get("/commands").json()["commands"] if one["command_id"] == command]
        if known and known[0]["progress"]["ended"]:
            break
    return order | {"fix_first": advice["fix_first"]}


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
