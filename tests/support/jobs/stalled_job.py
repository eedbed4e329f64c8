"""A job that trained and then stalled, as the liveness monitor sees it, and what was found about it."""

from __future__ import annotations

from typing import Any

from stabilitybackend.judging.detectors.engine.base import Finding
from support.jobs.watched_job import Job

__all__ = ["C10D", "PROBED", "RUN", "answered", "stands", "told", "verdict"]

PROBED = {"pending": 5, "proc": {"state": "S", "cpu": 0.0, "wchan": "futex_wait"}, "can_dump": True, "world_size": 4}
RUN = "/home/me/train.py"
C10D = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def stands(
    wrong: dict[int, dict[str, Any]] | None = None, *, step_s: float = 0.5, seconds: int = 12, **job: Any
) -> Job:
    """Return a job of 4 ranks on 2 nodes that trained for a minute and then stood, some ranks as in `wrong`."""
    nodes = job.pop("nodes", {"a": [0, 1], "b": [2, 3]})
    made = Job(nodes=nodes, step_s=step_s, more=dict(PROBED), **job)
    for _ in range(60):
        made.more["pending"] += 1
        made.run(1)
    for rank, slot in (wrong or {}).items():
        made.stuck[rank] = dict(slot)
    made.run(seconds, moving=False)
    return made


def verdict(job: Job) -> dict[str, Any]:
    hangs = [finding for finding in job.said if finding.kind == "hang"]
    assert len({finding.key for finding in hangs}) == 1
    found: dict[str, Any] = hangs[-1].evidence["verdict"]
    return found


def told(job: Job) -> tuple[str, list[int]]:
    found = verdict(job)
    return found["class"], found["culprits"]


def answered(job: Job, answers: dict[int, dict[str, Any]]) -> Finding:
    for rank, answer in answers.items():
        job.answer(rank, **({"slot": {"phase": "backward"}} | answer))
    job.run(1, moving=False)
    return [finding for finding in job.said if finding.kind == "hang"][-1]
