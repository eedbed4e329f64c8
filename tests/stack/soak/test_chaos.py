"""Server, Redis, agent and job are killed at random moments: every row once, on the branch that the trainer knows."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from stack.relaunched_rank_values import SAVE_EVERY
from stack.trainer_truth import Comparison, Truth, compared
from support.processes import Ranks, Server, agent_pid
from support.waiting import wait_until

RANKS = 2
PERIOD_S = 0.01
#: Small windows, so that the archiver is at work whenever somebody is killed; in the smallest a few frames fill it.
WINDOWS_MIB = (0.03, 0.1, 1.0, 4.0)
#: What is drawn from for each kill. A job that is launched again takes a second or two to its first step.
VICTIMS = ("server", "redis", "agent", "job")


class Chaos:
    """A server and a job of which parts are killed; each part comes back as its supervisor would bring it.

    Args:
        server: that runs.
        folder: of the job and of what it writes.
        draw: decides all that is random.
    """

    def __init__(self, server: Server, folder: Path, draw: random.Random) -> None:
        self.kills: Counter[str] = Counter()
        #: How often the server ended without a kill of its own process: its supervisor starts it again.
        self.ended_by_itself = 0
        self._server, self._folder, self._draw = server, folder, draw
        self._launch = -1
        self.job = self._launched()
        wait_until(lambda: self.trained(SAVE_EVERY), 60, "the first checkpoint is made")

    def kill_one(self) -> None:
        """Kill one part at a random moment."""
        time.sleep(self._draw.uniform(0.0, 1.2))  # a random moment: nothing is waited for
        self.supervise()
        victim = self._draw.choice(VICTIMS)
        getattr(self, f"_kill_{victim}")()
        self.kills[victim] += 1

    def supervise(self) -> None:
        """Start the server again where it ended by itself."""
        assert self._server.process is not None
        if self._server.process.poll() is not None:
            self.ended_by_itself += 1
            self._server.start(wait=False)

    def trained(self, steps: int) -> bool:
        """Whether each rank of this launch logged so many rows."""
        file = self._folder / "truth"
        if not file.exists():
            return False
        rows = Truth(file).rows
        return all(len(rows.get((self._launch, rank), ())) >= steps for rank in range(RANKS))

    def _kill_server(self) -> None:
        self._server.kill()
        time.sleep(self._draw.uniform(0.0, 0.5))
        self._server.start(wait=self._draw.random() < 0.5)

    def _kill_redis(self) -> None:
        def killed() -> bool:
            with suppress(AssertionError, OSError, subprocess.CalledProcessError):
                self._server.kill_redis("r")
                return True
            self.supervise()
            return False

        wait_until(killed, 30, "the server has a Redis to kill")

    def _kill_agent(self) -> None:
        def killed() -> bool:
            with suppress(OSError):
                os.kill(agent_pid(self._folder / "spool", "r"), signal.SIGKILL)
                return True
            return False

        wait_until(killed, 60, "there is an agent to kill")

    def _kill_job(self) -> None:
        self.job.processes[self._draw.randrange(RANKS)].kill()
        time.sleep(self._draw.uniform(0.0, 0.1))
        self.job.kill()  # a launcher ends the others and looks again a moment later
        time.sleep(self._draw.uniform(0.3, 1.0))
        self.job = self._launched()

    def _launched(self) -> Ranks:
        self._launch += 1
        arguments = [str(self._folder), str(self._launch), str(self._folder / "enough"), str(PERIOD_S)]
        generation = {"TORCHELASTIC_RESTART_COUNT": str(self._launch)}
        spool = self._folder / "spool"
        return Ranks("relaunched_rank.py", arguments, url=self._server.url, folder=spool, run_id="r", **generation)


@pytest.mark.soak
@pytest.mark.parametrize("window_mib", WINDOWS_MIB)
@pytest.mark.parametrize("kills", [int(os.environ.get("CHAOS_KILLS", "50"))])
@pytest.mark.parametrize("seed", [int(os.environ.get("CHAOS_SEED", "1"))])
def test_every_row_is_there_once_and_on_its_branch_whoever_is_killed(
    window_mib: float, kills: int, seed: int, tmp_path: Path, free_port: int
) -> None:
    server = Server(tmp_path / "data", free_port, {"STABILITY_WINDOW_MIB": str(window_mib)})
    with server:
        chaos = Chaos(server, tmp_path, random.Random(seed))
        try:
            for _ in range(kills):
                chaos.kill_one()
            chaos.supervise()
            wait_until(server.answers, 60, "the server answers")
            wait_until(lambda: chaos.trained(4 * SAVE_EVERY), 120, "the last launch trains")
            (tmp_path / "enough").touch()
            outcomes = [lines[0] for lines in chaos.job.outputs()]
        finally:
            chaos.job.kill()
        truth = Truth(tmp_path / "truth")
        found = compared(server, "r", truth, RANKS)
        rows = sum(map(len, truth.rows.values()))
        wrongs = {name: len(each) for name, each in found._asdict().items()}
        print(f"seed {seed}, window {window_mib} MiB: kills {dict(chaos.kills)}, {len(truth.origin)} launches")
        print(f"{rows} rows, {wrongs}")
        print(f"the server ended by itself {chaos.ended_by_itself} times; {outcomes}")
        assert found == Comparison([], [], [], [])
        assert outcomes == ["delivered"] * RANKS
