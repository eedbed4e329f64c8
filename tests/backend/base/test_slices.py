"""Long work of a run is done in slices: others are served between them, and it comes to the same."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

from stabilitybackend.base.slices import SLICE_S, Slices, at_once
from stabilitybackend.runs.state import RunState
from stabilityclient.wire import Health
from support.job_frames import Job


def _lost_job(ranks: int) -> tuple[RunState, list[float]]:
    """Return a job that is up and its clock."""
    now = [1_000.0]
    state = RunState("run", lambda: now[0])
    jobs = [Job(rank, world_size=ranks) for rank in range(ranks)]
    for job in jobs:
        state.apply(job.event("start"), replayed=False)
        state.apply(job.rows(range(1, 20)), replayed=False)
    for second in range(30):
        now[0] += 1.0
        for job in jobs:
            rank = job.info.rank
            step = 19 if second > 4 else 10 + second
            slot = {"rank": rank, "source": job.info.source, "pid": 1, "alive": True, "step": step, "world_size": ranks}
            state.agents.health(
                Health(f"a{rank}", f"n{rank}", now[0], [slot | {"state": "running", "phase": "forward"}])
            )
        at_once(state.ticking())
    state.apply(jobs[0].rolled_back(10, "k"), replayed=False)
    state.apply(jobs[0].rows(range(11, 15)), replayed=False)
    for rank in range(ranks):
        state.liveness.agent_disconnected(f"a{rank}", now[0])
    now[0] += 45.0
    return state, now


def test_a_tick_in_slices_changes_what_one_in_one_go_does() -> None:
    (whole, _), (sliced, _) = _lost_job(40), _lost_job(40)
    changes, work = whole.tick(), sliced.ticking()
    slices = 0
    while True:
        try:
            next(work)
        except StopIteration as end:
            found = end.value
            break
        slices += 1
        sliced.view()  # somebody looks between two slices
    assert slices > 5
    assert found == changes
    assert changes.incidents
    assert (sliced.view(), sliced.incidents.all(), sliced.commands.all()) == (
        whole.view(), whole.incidents.all(), whole.commands.all(),
    )  # fmt: skip


def _work(said: list[str], clock: list[float]) -> Generator[None, None, int]:
    for name in ("first", "second", "third"):
        said.append(name)
        clock[0] += SLICE_S
        yield
    return 3


async def test_between_two_slices_others_are_served_and_what_agents_say_waits_for_the_end() -> None:
    said: list[str] = []
    clock = [0.0]
    slices = Slices(lambda: clock[0])
    working = asyncio.create_task(slices.run(_work(said, clock)))
    await asyncio.sleep(0)
    said.append("somebody")
    slices.after(lambda: said.append("an agent"))
    assert await working == 3
    slices.after(lambda: said.append("at once"))
    assert said == ["first", "somebody", "second", "third", "an agent", "at once"]


async def test_work_that_fails_gives_back_what_waited_for_it() -> None:
    said: list[str] = []
    clock = [0.0]
    slices = Slices(lambda: clock[0])

    def fails() -> Generator[None, None, int]:
        yield from _work(said, clock)
        raise ValueError("a mistake of ours")

    working = asyncio.create_task(slices.run(fails()))
    await asyncio.sleep(0)
    slices.after(lambda: said.append("an agent"))
    (error,) = await asyncio.gather(working, return_exceptions=True)
    assert (str(error), said[-1]) == ("a mistake of ours", "an agent")
