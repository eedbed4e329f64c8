"""The runs that the twelve questions are about, on one server: whoever only looks finds them as they were left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from stabilityclient.wire import Hello
from support.foreign_jobs import FOREIGN, send
from support.job_frames import Job
from support.night.jobs import COMMIT, HangingJob, SpikingJob, launch, tell
from support.ports import free_port
from support.processes import Server

__all__ = ["LOST_GPU_HOURS", "a_job_of_ones_own", "a_job_that_went_back", "a_night"]

#: Lost to the rollback of the run `back`: its ranks, times the steps that it discarded, in as many hours. It is so much
#: that what rollbacks of some seconds add to it is not seen.
RANKS, DISCARDED = 8, 30
LOST_GPU_HOURS = RANKS * DISCARDED
HOUR_S = 3600.0


def _wait_for(work: Coroutine[Any, Any, None]) -> None:
    """Do it in a thread: a browser's event loop may run in this one."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()


def _good(server: Server) -> None:
    """A run of yesterday, of the same project as the sick one, with another commit and learning rate."""
    job = Job()
    job.wait(time.time() - 86_400 - 1000)
    hello = Hello("good", "a-good", "gpu-001", "0.1.0", project="llm", name="7b-lr3e-4", sources=[job.info])
    hello.config = {"model": {"layers": 32, "width": 4096}, "optimizer": {"lr": 3e-4}, "batch_size": 1024}
    told = [job.event("launch", **launch(job, "3e-4", COMMIT)), job.rows(range(1, 200)), job.event("finish")]
    _wait_for(tell(server.url, hello, *told))


def _went_back(server: Server) -> None:
    """A run that is over, and went back once, a moment ago: on the first of a month that is of this month, too."""
    jobs = [Job(rank, 1, RANKS) for rank in range(RANKS)]
    hello = Hello("back", "a-back", "gpu-100", "0.1.0", project="other", name="13b-went-back")
    hello.sources = [job.info for job in jobs]
    frames = []
    for job in jobs:
        job.info.started = time.time() - (DISCARDED + 1) * HOUR_S
        job.wait(job.info.started + HOUR_S - 1000)
        frames.append(job.rows(range(1, 11), {"loss": [2.0] * 10}))
        job.wait(DISCARDED * HOUR_S - 0.1)
        frames += [job.rows([10 + DISCARDED], {"loss": [2.0]}), job.rolled_back(10, "d-1")]
        frames += [job.rows([11, 12], {"loss": [2.0, 2.0]}), job.event("finish")]
    _wait_for(tell(server.url, hello, *frames))


def _is_open(server: Server, run: str, kind: str) -> None:
    """Wait until an incident of this kind is open in a run."""
    server.wait_for(
        f"/runs/{run}/incidents",
        lambda answer: any(one["kind"] == kind and one["state"] == "open" for one in answer["incidents"]),
        f"the {kind} of {run} is open",
        60,
    )


@contextmanager
def a_night(folder: Path) -> Iterator[Server]:
    """Run a server with five runs, whose ids are `hang`, `sick`, `good`, `back` and `600-metrics`."""
    with (
        Server(folder / "data", free_port(), env={"STABILITY_HANG_FLOOR_S": "3"}) as server,
        HangingJob(server.url, "hang"),
    ):
        _good(server)
        with SpikingJob(server.url, "sick", "7b-lr6e-4"):  # after the good run, which it is compared with
            _went_back(server)
            many = next(one for one in FOREIGN if one.run_id == "600-metrics")
            send(server.url, replace(many, steps=200, ends=True), time.time())
            _is_open(server, "hang", "hang")
            _is_open(server, "sick", "spike")
            yield server


@contextmanager
def a_job_of_ones_own(server: Server, run: str) -> Iterator[str]:
    """Run a job in a spike for somebody who orders or changes something; nothing of it is left. Give its run's id.

    Its spike is newer than that of `sick`, so that it stands above it.
    """
    with SpikingJob(server.url, run, run, ago_s=22.0):
        advised = lambda facts: (facts["worst_incident"] or {}).get("advice") == "roll_back"  # noqa: E731
        server.wait_for(f"/runs/{run}", advised, "it is advised to roll back", 60)
        yield run
    httpx.delete(f"{server.url}/api/v1/runs/{run}", params={"force": True}).raise_for_status()


@contextmanager
def a_job_that_went_back(server: Server, run: str) -> Iterator[str]:
    """The same after a rollback to step 200 that somebody ordered: it trains well. Give its run's id."""
    with a_job_of_ones_own(server, run):
        order = {"kind": "rollback", "to_step": 200, "reason": "a loss spike"}
        answer = httpx.post(f"{server.url}/api/v1/runs/{run}/commands", json=order)
        assert answer.status_code == 201, answer.text
        path = f"/runs/{run}/commands/{answer.json()['command_id']}"
        server.wait_for(path, lambda one: one["state"] == "done", "it is rolled back", 60)
        server.wait_for(f"/runs/{run}", lambda facts: facts["undo"] is not None, "it can be undone", 60)
        yield run
