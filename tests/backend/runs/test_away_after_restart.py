"""A server and a node that die together: the server that comes back says so, of jobs that were under way alone."""

from __future__ import annotations

import pytest

from support.job_frames import Job
from support.manager_stack import Stage, rows
from support.waiting import until


@pytest.mark.parametrize(
    ("ended", "expected"), [(False, [("agent_lost", "The agent on n0 does not report")]), (True, [])]
)
async def test_a_run_that_was_live_when_the_server_ended_opens_an_incident_and_one_that_had_ended_does_not(
    stage: Stage, ended: bool, expected: list[tuple[str, str]]
) -> None:
    job = Job()
    worker = await stage.send(job.event("start"), *rows(job, 1, 40), *([job.event("finish")] if ended else []))
    await worker.tick()
    await stage.restart()
    worker = await stage.manager.get("run-1")
    for _ in range(6):
        stage.now += 10.0
        await worker.tick()

    def found() -> list[tuple[str, str]]:
        return [(one.kind, one.title) for one in worker.state.incidents.all()]

    await until(lambda: found() == expected, 10, f"its incidents are {expected}")
