"""A live run that has the data of another run of its project: real server, real Redis."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import pytest

from stabilitybackend.base import rounds
from stabilityclient.wire import Hello
from stabilityplugins.other_runs import service
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.server_stack import RunningServer


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "ROUND_S", 0.02)
    monkeypatch.setattr(service, "ROUND_S", 0.02)
    monkeypatch.setattr(service, "SHARE", 1.0)


def batches(count: int, seed: int) -> list[float]:
    """Return how hard each batch is."""
    rng = random.Random(seed)
    return [rng.gauss(0, 0.05) for _ in range(count)]


def losses(hard: Sequence[float], seed: int, level: float = 3.0) -> list[float]:
    """Return what a model with noise of its own makes of batches."""
    rng = random.Random(seed)
    return [level + one + rng.gauss(0, 0.01) for one in hard]


class Trained:
    """A run with an agent that stays connected, and logs one loss a step."""

    def __init__(self, server: RunningServer, run_id: str, first: int, values: Sequence[float]) -> None:
        self.server, self.run_id, self.first, self.values = server, run_id, first, values
        self.job, self.agent, self.done = Job(), RawAgent(server.agent_url), 0

    async def __aenter__(self) -> Self:
        await self.agent.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.agent.__aexit__()

    async def begin(self, project: str = "p", config: Mapping[str, Any] | None = None) -> None:
        hello = Hello(
            self.run_id, "a1", "n0", "0.1.0", project=project, name=f"name of {self.run_id}",
            sources=[self.job.info], config=dict(config or {}),
        )  # fmt: skip
        await self.agent.ask(hello)

    async def log(self, count: int, ids: Sequence[int] = ()) -> None:
        """Log the next ``count`` values, and the ids of all batches where they are given, and have them judged."""
        part = self.values[self.done : self.done + count]
        steps = range(self.first + self.done, self.first + self.done + len(part))
        for step, batch in zip(steps, ids[self.done :], strict=False):
            await self.agent.store(self.job.event("batch", step, fingerprint=f"{batch:016x}", of="ids"))
        await self.agent.store(self.job.rows(steps, {"loss": part}))
        self.done += count
        await asyncio.to_thread(
            self.server.wait_for, f"/runs/{self.run_id}", lambda run: run["last_step"] == steps[-1], "its last step"
        )

    async def until(self, holds: Callable[[], object], ids: Sequence[int] = ()) -> None:
        """Go on, 16 values at a time as long as there are any, until something holds."""
        async with asyncio.timeout(60):
            while not holds():
                await (self.log(16, ids) if self.done < len(self.values) else asyncio.sleep(0.05))

    async def found(self, ids: Sequence[int] = ()) -> dict[str, Any]:
        """Go on until another run is named; return what is said of it."""
        await self.until(self.named, ids)
        [found] = self.named()
        return found

    def named(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.server.get(f"/runs/{self.run_id}/batches")["other_runs"]
        return found

    def incident(self) -> dict[str, Any]:
        """Return the one incident that says so."""
        every = self.server.get(f"/runs/{self.run_id}/incidents")["incidents"]
        [found] = [one for one in every if one["evidence"]["detector"] == "other_runs"]
        return dict(found)


async def trained(server: RunningServer, run_id: str, values: Sequence[float], ids: Sequence[int] = ()) -> None:
    """Let a run log from step 1 on, and go."""
    async with Trained(server, run_id, 1, values) as run:
        await run.begin()
        await run.log(len(values), ids)


async def test_a_run_that_was_started_again_under_another_id_names_the_run_that_had_its_data(
    server: RunningServer,
) -> None:
    hard = batches(1_200, 1)
    await trained(server, "first", losses(hard, 2))
    async with Trained(server, "again", 1_201, losses(hard, 3, 2.0)) as again:
        await again.begin()
        found = await again.found()
        assert (found["other_run"], found["other_name"], found["by"]) == ("first", "name of first", "loss")
        assert (found["first"], found["other_step"], found["learned"]) == (1_201, 1, False)
        incident = again.incident()
        assert (incident["kind"], incident["severity"], incident["alarm"]) == ("shared_data", "info", False)


async def test_a_run_of_a_sweep_names_one_of_the_others_once(server: RunningServer) -> None:
    hard = batches(1_200, 1)
    await trained(server, "one", losses(hard, 2))
    await trained(server, "two", losses(hard, 3))
    async with Trained(server, "three", 1, losses(hard, 4, 2.0)) as third:
        await third.begin()
        found = await third.found()
        assert (found["first"], found["other_step"]) == (1, 1)
        assert "compared point by point" in third.incident()["text"]
        await third.log(64)
        assert third.incident()["version"] == 1


async def test_data_that_the_weights_have_learned_in_the_run_they_come_from_is_an_alarm_until_new_data_comes(
    server: RunningServer,
) -> None:
    hard = batches(600, 1)
    await trained(server, "base", losses(hard, 2))
    async with Trained(server, "more", 1, losses([*hard[64:], *batches(1_200, 7)], 3, 2.0)) as run:
        await run.begin(config={"fork_from": "base?_step=600"})
        found = await run.found()
        assert (found["other_run"], found["learned"], found["first"] - found["other_step"]) == ("base", True, -64)
        incident = run.incident()
        assert (incident["kind"], incident["severity"], incident["state"]) == ("repeat_data", "warning", "open")
        await run.until(lambda: run.incident()["state"] == "recovered")
        assert run.done >= 536


async def test_a_run_that_goes_on_with_the_data_behind_its_fork_is_no_alarm(server: RunningServer) -> None:
    hard = batches(1_200, 1)
    await trained(server, "base", losses(hard, 2))
    async with Trained(server, "right", 201, losses(hard[200:], 3, 2.0)) as run:
        await run.begin(config={"fork_from": "base?_step=200"})
        found = await run.found()
        assert (found["other_run"], found["learned"], found["first"], found["other_step"]) == ("base", False, 201, 201)


async def test_equal_batch_ids_name_the_other_run_where_the_losses_show_nothing(server: RunningServer) -> None:
    rng = random.Random(1)
    ids = [rng.getrandbits(64) for _ in range(256)]
    await trained(server, "first", [3.0] * 256, ids)
    async with Trained(server, "again", 501, [2.0] * 224) as again:
        await again.begin()
        found = await again.found(ids[32:])
        assert (found["by"], found["other_run"], found["first"] - found["other_step"]) == ("ids", "first", 468)


async def test_runs_with_other_data_or_of_another_project_name_none(server: RunningServer) -> None:
    hard = batches(1_200, 1)
    await trained(server, "one", losses(hard, 2))
    other, same, third = (
        Trained(server, name, 1, losses(data, seed))
        for seed, (name, data) in enumerate([("other", batches(192, 6)), ("same", hard[:192]), ("third", hard)])
    )
    async with other, same, third:
        await other.begin()
        await same.begin(project="elsewhere")
        await third.begin()
        await other.log(192)
        await same.log(192)
        await third.found()  # those that waited longer were compared before it
        assert (other.named(), same.named()) == ([], [])
