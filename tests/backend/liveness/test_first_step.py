"""A first step in which nothing moves is told within two minutes; one that compiles, loads or fetches is let be."""

from __future__ import annotations

from typing import Any

import pytest

from stabilitybackend.judging.detectors.engine.base import Finding
from support.jobs.stalled_job import C10D, PROBED, RUN
from support.jobs.watched_job import START, Job, stack

TORCH = "/venv/lib/python3.11/site-packages/torch"
LOCKED = stack(
    (f"{TORCH}/utils/file_baton.py", "wait"), (f"{TORCH}/utils/cpp_extension.py", "_jit_compile"), (RUN, "main")
)
REDUCES = stack((C10D, "all_reduce"), (RUN, "main"))
BUILDS = stack(
    ("/usr/lib/python3.11/subprocess.py", "wait"), (f"{TORCH}/utils/cpp_extension.py", "_run_ninja"), (RUN, "main")
)
COMPILES = stack(
    ("/usr/lib/python3.11/threading.py", "wait"), (f"{TORCH}/_inductor/async_compile.py", "wait"), (RUN, "main")
)
FETCHES = stack(
    ("/usr/lib/python3.11/queue.py", "get"), (f"{TORCH}/utils/data/dataloader.py", "_try_get"), (RUN, "main")
)
LOADS = stack((f"{TORCH}/serialization.py", "load"), (RUN, "main"))
BUSY = {"proc": {"state": "R", "cpu": 1.0, "wchan": ""}}


def first_step(
    seconds: int,
    stacks: list[str],
    more: dict[str, Any] | None = None,
    ranks: int = 2,
    used_s: float | None = None,
    child: str = "S",
) -> list[Finding]:
    """Return what is said of a job that stands in its first step for `seconds`, each look finding the next stack.

    Args:
        used_s: CPU seconds of a rank's threads and workers from one look to the next; None: the agent does not say.
        child: the kernel's word for what its worker does.
    """
    here = {"step": 0, "step_start": START, "phase": "forward", "phase_start": START}
    job = Job(nodes={"a": list(range(ranks))}, more={**PROBED, "world_size": 2, **here, **(more or {})})
    answered = 0
    for _ in range(seconds):
        job.run(1, moving=False)
        while answered < len(job.wanted):
            for rank in range(ranks):
                proc = {"state": "S", "children": [{"pid": 9, "name": "pt_data_worker", "state": child}]}
                proc |= {} if used_s is None else {"tree_cpu_s": 100 + answered * used_s}
                job.answer(rank, slot={"phase": "forward"}, stack=stacks[min(answered, len(stacks) - 1)], proc=proc)
            answered += 1
    return [finding for finding in job.said if finding.kind == "hang"]


@pytest.mark.parametrize(
    ("where", "more"), [(LOCKED, {}), (REDUCES, {}), (REDUCES, BUSY)], ids=["stale lock", "collective", "spinning"]
)
def test_a_first_step_in_which_nothing_moves_is_told_within_two_minutes(where: str, more: dict[str, Any]) -> None:
    assert first_step(35, [where], more) == []
    (opened, *_) = first_step(118, [where], more)
    assert (opened.state, opened.severity) == ("open", "critical")


@pytest.mark.parametrize(
    ("stacks", "more"),
    [
        ([BUILDS], {}),
        ([COMPILES], {}),
        ([FETCHES], {}),
        ([LOADS], {}),
        ([stack((RUN, f"trace_{n}"), (RUN, "main")) for n in range(20)], {}),
        ([stack((RUN, "capture"), (RUN, "main"))], BUSY),
        ([LOCKED], {"phase": "compile"}),
        ([LOCKED], {"proc": {"state": "D", "cpu": 0.0, "wchan": "io_schedule"}}),
    ],
    ids=["builds", "compiles", "fetches", "loads", "stacks change", "uses the processor", "declared", "disk"],
)
def test_a_long_first_step_is_no_hang(stacks: list[str], more: dict[str, Any]) -> None:
    assert first_step(500, stacks, more) == []


def test_a_wait_for_data_is_told_where_no_thread_and_no_worker_uses_the_processor() -> None:
    (opened, *_) = first_step(118, [FETCHES], {"phase": "data"}, used_s=0.1)
    assert (opened.state, opened.severity) == ("open", "critical")


@pytest.mark.parametrize(
    ("used_s", "child"),
    [(2.0, "S"), (-30.0, "S"), (0.1, "D"), (None, "S")],
    ids=["workers are at it", "a worker came to its end", "a worker reads a disk", "an agent that does not say"],
)
def test_a_wait_for_data_that_somebody_is_at_work_for_is_no_hang(used_s: float | None, child: str) -> None:
    assert first_step(500, [FETCHES], {"phase": "data"}, used_s=used_s, child=child) == []


def test_where_a_rank_has_not_come_the_first_step_keeps_its_time() -> None:
    assert first_step(300, [REDUCES], ranks=1) == []


def test_a_rank_that_compiles_keeps_those_that_wait_for_it_from_being_told() -> None:
    here = {"step": 0, "step_start": START, "phase": "forward", "phase_start": START}
    job = Job(nodes={"a": [0, 1]}, more={**PROBED, "world_size": 2, **here})
    answered = 0
    for _ in range(400):
        job.run(1, moving=False)
        while answered < len(job.wanted):
            job.answer(0, slot={"phase": "forward"}, stack=COMPILES)
            job.answer(1, slot={"phase": "forward"}, stack=REDUCES)
            answered += 1
    assert job.said == []
    assert len(job.wanted) <= 8
