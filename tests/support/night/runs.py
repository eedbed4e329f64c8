"""The runs that the twelve questions are about, on one server: a spike, a hang, one that ended well, 600 metrics."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from stabilityclient.wire import Health, Hello
from support.foreign_jobs import FOREIGN, send
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.ports import free_port
from support.processes import Ranks, Server

__all__ = ["COMMIT", "SUSPECT", "a_night"]

JOB = str(Path(__file__).parents[2] / "browser" / "jobs" / "advised_job.py")
#: The node whose rank does not get its data.
SUSPECT = "gpu-017"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def _good(server: Server) -> None:
    job = Job()
    job.wait(time.time() - 86_400 - 1000)
    git = {"commit": COMMIT, "branch": "main", "dirty": False, "changed": 0, "files": []}
    launch = {
        "source": job.info.source,
        "host": "gpu-001",
        "command": ["python", "train.py", "--lr", "3e-4"],
        "git": git,
    }
    frames = [job.event("launch", **launch), job.rows(range(1, 200)), job.event("finish")]

    async def tell() -> None:
        async with RawAgent(f"{server.url.replace('http', 'ws')}/api/v1/agent") as agent:
            hello = Hello("good", "a-good", "gpu-001", "0.1.0", project="llm", name="7b-lr3e-4", sources=[job.info])
            hello.config = {"model": {"layers": 32, "width": 4096}, "optimizer": {"lr": 3e-4}, "batch_size": 1024}
            await agent.ask(hello)
            await agent.store(*frames)

    thread = threading.Thread(target=lambda: asyncio.run(tell()))
    thread.start()
    thread.join()


@contextmanager
def _hanging(server: Server) -> Iterator[None]:
    """Two ranks on two nodes: they train for some seconds, then rank 1 waits for its data and rank 0 for rank 1."""
    stop = threading.Event()
    began = time.time()

    async def node(rank: int, name: str) -> None:
        job = Job(rank, 1, 2)
        job.info.node, job.info.started, job.info.pid = name, began, 100 + rank
        job.wait(began - 1000)
        async with RawAgent(f"{server.url.replace('http', 'ws')}/api/v1/agent") as agent:
            hello = Hello("hang", f"a-{rank}", name, "0.1.0", project="llm", name="70b-stuck", sources=[job.info])
            await agent.ask(hello)
            step, since = 0, began
            for beat in range(1, 10_000):
                if stop.is_set():
                    return
                now = time.time()
                if step < 40:
                    await agent.ask(job.rows(range(step + 1, step + 11)))
                    step, since = step + 10, now
                stuck = step >= 40
                slot = {
                    "rank": rank, "source": job.info.source, "pid": 100 + rank, "alive": True, "state": "running",
                    "step": step, "step_start": since, "phase": "data" if rank and stuck else "backward",
                    "phase_start": since, "expect_s": 0.0, "beat": beat if not stuck else 4, "last_seq": step,
                    "dropped": 0, "segment_key": "", "time": now, "world_size": 2,
                }  # fmt: skip
                await agent.send(Health(f"a-{rank}", name, now, [slot], {}))
                await asyncio.sleep(0.5)

    async def both() -> None:
        await asyncio.gather(node(0, "gpu-003"), node(1, SUSPECT))

    thread = threading.Thread(target=lambda: asyncio.run(both()))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def a_night(folder: Path) -> Iterator[Server]:
    """Run a server with four runs, whose ids are `sick`, `hang`, `good`, `600-metrics`."""
    with Server(folder / "data", free_port(), env={"STABILITY_HANG_FLOOR_S": "3"}) as server:
        job: dict[str, Any] = {"folder": folder / "spool", "run_id": "sick", "world_size": 1, "STABILITY_DRAIN_S": "10"}
        with Ranks(JOB, [str(folder)], url=server.url, **job), _hanging(server):
            _good(server)
            many = next(one for one in FOREIGN if one.run_id == "600-metrics")
            send(server.url, replace(many, ends=True), time.time())
            for run, kind in (("sick", "spike"), ("hang", "hang")):
                server.wait_for(
                    f"/runs/{run}/incidents",
                    lambda answer, kind=kind: any(
                        one["kind"] == kind and one["state"] == "open" for one in answer["incidents"]
                    ),
                    f"the {kind} is open",
                    60,
                )
            yield server
