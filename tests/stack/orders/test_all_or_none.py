"""Twenty orders in a row, with kill -9 of the server, the agent or a rank at random moments: all ranks obey or none."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.ports import free_port
from support.processes import Ranks, Server, agent_pid
from support.waiting import wait_until

ORDERS = int(os.environ.get("ORDERS", "20"))
VICTIMS = ("nobody", "server", "agent", "rank")
ENDED = {"done", "rejected", "failed", "expired"}


class Job:
    """Two ranks that obey orders; each job is a run of its own.

    Args:
        server: to which it reports. folder: of all jobs.
    """

    def __init__(self, server: Server, folder: Path, number: int) -> None:
        self.server, self.run_id, self.folder = server, f"job-{number}", folder / str(number)
        self.folder.mkdir()
        self.spool = self.folder / "spool"
        self.ranks = Ranks(
            "orders/ordered_rank.py", [str(self.folder), "0.02"], url=server.url, folder=self.spool, run_id=self.run_id
        )

    def order(self, key: str, **order: Any) -> str:
        """Order it once, however often that takes, and return the command's id."""

        def taken() -> str | None:
            with suppress(httpx.HTTPError):
                url = f"{self.server.url}/api/v1/runs/{self.run_id}/commands"
                answer = httpx.post(url, json=order | {"idempotency_key": key, "expires_s": 30}, timeout=10)
                return str(answer.json()["command_id"]) if answer.status_code == 201 else None
            return None

        return str(wait_until(taken, 60, "the order is taken"))

    def ended(self, command_id: str) -> dict[str, Any]:
        """Return the command once it has ended."""
        path = f"/runs/{self.run_id}/commands/{command_id}"
        found: dict[str, Any] = self.server.wait_for(path, lambda c: c["state"] in ENDED, "the order has ended", 90)
        return found

    def saved(self, rank: int) -> list[int]:
        """Return the steps after which a rank saved."""
        file = self.folder / f"saved.{rank}"
        return [int(line) for line in file.read_text().split()] if file.exists() else []


@pytest.mark.soak
def test_orders_in_a_row_are_obeyed_by_all_ranks_at_one_step_or_by_none_whoever_is_killed(tmp_path: Path) -> None:
    draw = random.Random(ORDERS)
    killed, states = Counter[str](), Counter[str]()
    with Server(tmp_path / "data", free_port()) as server:
        job, number = Job(server, tmp_path, 0), 0
        try:
            for turn in range(ORDERS):
                stops = turn % 5 == 4
                order = {"kind": "stop", "save": True} if stops else {"kind": "checkpoint_now"}
                command_id = job.order(f"turn-{turn}", **order)
                time.sleep(draw.uniform(0.0, 0.8))  # a random moment: nothing is waited for
                victim = draw.choice(VICTIMS)
                killed[victim] += 1
                dead = draw.randrange(2) if victim == "rank" else None
                if victim == "server":
                    server.kill()
                    server.start()
                elif victim == "agent":
                    with suppress(ProcessLookupError):
                        os.kill(agent_pid(job.spool, job.run_id), signal.SIGKILL)
                elif dead is not None:
                    job.ranks.processes[dead].kill()
                command = job.ended(command_id)
                states[f"{command['kind']} {command['state']}"] += 1
                over = stops and command["state"] == "done"
                if over and dead is None:
                    job.ranks.outputs()
                    ends = [json.loads((job.folder / f"end.{rank}").read_text()) for rank in (0, 1)]
                    assert ends[0]["last"] == ends[1]["last"] == command["apply_at_step"] - 1
                if dead is None:
                    assert job.saved(0) == job.saved(1), (turn, victim, command["history"])
                    assert (command["apply_at_step"] - 1 in job.saved(0)) == (command["state"] == "done")
                else:  # who had given its word and was killed could not keep it any more
                    lived, gone = job.saved(1 - dead), job.saved(dead)
                    assert lived[: len(gone)] == gone or gone[: len(lived)] == lived, (turn, lived, gone)
                    assert abs(len(lived) - len(gone)) <= 1
                if over or dead is not None:
                    job.ranks.kill()
                    number += 1
                    job = Job(server, tmp_path, number)
        finally:
            job.ranks.kill()
    print(f"{sum(states.values())} orders: {dict(states)}; killed: {dict(killed)}")
    assert states["checkpoint_now done"] > ORDERS // 4
