"""A live run that has the data of another run of its project: real server, real Redis."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from stabilitybackend.other_runs import service
from stabilityclient.wire import Hello
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.server_stack import RunningServer


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
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
        self.job = Job()
        self.agent = RawAgent(server.agent_url)

    async def begin(self, project: str = "p", config: Mapping[str, Any] | None = None) -> None:
        await self.agent.__aenter__()
        source = self.job.info
        hello = Hello(
            self.run_id, "a1", "n0", "0.1.0", project=project, name=f"name of {self.run_id}", sources=[source],
            config=dict(config or {}),
        )  # fmt: skip
        await self.agent.ask(hello)

    async def log(self, until: int, ids: Sequence[int] = ()) -> None:
        """Log up to ``until`` values, 16 a frame, so that the run is looked at as it grows."""
        done = getattr(self, "done", 0)
        for at in range(done, until, 16):
            part = self.values[at : min(at + 16, until)]
            steps = range(self.first + at, self.first + at + len(part))
            for step, batch in zip(steps, ids[at:], strict=False):
                await self.agent.store(self.job.event("batch", step, fingerprint=f"{batch:016x}", of="ids"))
            await self.agent.store(self.job.rows(steps, {"loss": part}))
            await self._judged(steps[-1])
        self.done = until

    async def _judged(self, step: int) -> None:
        await asyncio.to_thread(
            self.server.wait_for, f"/runs/{self.run_id}", lambda run: run["last_step"] == step, f"step {step}"
        )
        await asyncio.sleep(0)

    async def end(self) -> None:
        await self.agent.__aexit__()

    async def found(self, count: int = 1) -> list[dict[str, Any]]:
        answer = await asyncio.to_thread(
            self.server.wait_for,
            f"/runs/{self.run_id}/batches",
            lambda batches: len(batches["other_runs"]) >= count,
            f"{count} other runs",
        )
        found: list[dict[str, Any]] = answer["other_runs"]
        return found


async def test_a_run_that_was_started_again_under_another_id_is_told_which_run_had_its_data(
    server: RunningServer,
) -> None:
    hard = batches(400, 1)
    first, again = Trained(server, "first", 1, losses(hard, 2)), Trained(server, "again", 401, losses(hard, 3, 2.0))
    await first.begin()
    await first.log(400)
    await first.end()
    await again.begin()
    await again.log(160)
    [found] = await again.found()
    assert (found["other_run"], found["other_name"], found["by"]) == ("first", "name of first", "loss")
    assert (found["first"] - found["other_step"], found["learned"]) == (400, False)
    [incident] = server.get("/runs/again/incidents")["incidents"]
    assert (incident["kind"], incident["severity"], incident["alarm"]) == ("shared_data", "info", False)
    await again.end()
