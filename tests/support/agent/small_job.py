"""A job of a few real processes with a real agent, whose ranks do what a test writes to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from stabilitybackend.judging.liveness.stacks.dumps import ranks_of
from stabilityclient.wire import EventBlock
from support.agent.gateway import Gateway
from support.waiting import wait_until

__all__ = ["SmallJob"]

_CODE = """
import os, sys, time
import stabilityclient
run = stabilityclient.init(project="p", run_id="r1")
for step in run.steps(1, 4):
    run.log(step, {"loss": 1.0})
print("up", flush=True)
exec(sys.stdin.read())
"""


class SmallJob:
    """Ranks of one run under one agent, with three steps behind them. Use as a context manager.

    Args:
        folder: STABILITY_DIR. gateway: their server. ranks: how many.
        environ: more environment of all ranks. of_rank: more environment of one. before: called in a rank's process
        before it begins.
    """

    def __init__(
        self,
        folder: Path,
        gateway: Gateway,
        ranks: int,
        environ: dict[str, str] | None = None,
        of_rank: dict[int, dict[str, str]] | None = None,
        before: dict[int, Callable[[], None]] | None = None,
    ) -> None:
        self.folder = folder / "r1"
        self.gateway = gateway
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        common = clean | {"STABILITY_URL": gateway.url, "STABILITY_DIR": str(folder), "WORLD_SIZE": str(ranks)}
        common |= {"LOCAL_WORLD_SIZE": str(ranks)} | (environ or {})
        self.ranks = [
            subprocess.Popen(
                [sys.executable, "-c", _CODE],
                env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} | (of_rank or {}).get(rank, {}),
                preexec_fn=(before or {}).get(rank),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for rank in range(ranks)
        ]

    def __enter__(self) -> SmallJob:
        for process in self.ranks:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
        everybody = set(range(len(self.ranks)))
        wait_until(lambda: {e["rank"] for e in self.health_now()} >= everybody, 20, "the agent sees every rank")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.ranks:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def do(self, rank: int, code: str) -> None:
        """Let a rank run some code, and end after it."""
        stdin = self.ranks[rank].stdin
        assert stdin is not None
        stdin.write(code)
        stdin.close()
        self.ranks[rank].stdin = None

    def wait_in(self, rank: int) -> None:
        """Wait until a rank has printed ``in``: what it was sent has brought it where the test wants it."""
        stdout = self.ranks[rank].stdout
        assert stdout is not None
        assert stdout.readline() == "in\n"

    def health_now(self) -> list[dict[str, Any]]:
        """Return the ranks of the newest Health message."""
        return self.gateway.healths[-1].ranks if self.gateway.healths else []

    def wait_health(self, condition: Callable[[dict[int, dict[str, Any]], dict[str, Any]], Any], what: str) -> Any:
        """Return what ``condition(ranks, agent_state)`` gives of a Health message that comes from now on."""
        before = len(self.gateway.healths)

        def newest() -> Any:
            if len(self.gateway.healths) == before:
                return None
            health = self.gateway.healths[-1]
            return condition({entry["rank"]: entry for entry in health.ranks}, health.agent_state)

        return wait_until(newest, 20, what)

    def wait_events(self, kind: str, count: int, timeout_s: float = 20.0) -> list[EventBlock]:
        """Return the agent's events of one type once there are so many."""
        found = self.gateway.store.events
        return wait_until(
            lambda: events if len(events := found(kind, None)) >= count else None, timeout_s, f"{count} {kind}"
        )

    def wait_looks(self, request: str, ranks: int) -> list[dict[str, Any]]:
        """Return what ``stacks`` events say of each rank, as the server reads them; what is missing is None."""
        nothing = dict.fromkeys(("stack", "stack_missing", "collectives", "collectives_missing"))

        def found() -> list[dict[str, Any]] | None:
            sent = [event.data for event in self.gateway.store.events("stacks", None)]
            looks = [{**nothing, **look} for data in sent if data["request"] == request for look in ranks_of(data)]
            return looks if len(looks) >= ranks else None

        return wait_until(found, 20, f"{request}: the looks at {ranks} ranks")

    def agent_pid(self) -> int:
        """Return the pid that the agent wrote down."""
        return int(json.loads((self.folder / "agent" / "agent.json").read_bytes())["pid"])

    def slot_file(self, rank: int) -> Path:
        """Return where a rank's slot lies."""
        (folder,) = (self.folder / "sources").glob(f"r{rank}-*")
        return folder / "slot"
