"""Parts are killed and stopped at random moments, orders under way: every row once, on the branch the trainer knows.

CHAOS_KILLS=150 CHAOS_SEED=7 python -m pytest -m soak tests/stack/soak/test_chaos.py -s
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from stack.relaunched_rank_values import SAVE_EVERY
from stack.trainer_truth import Comparison, Truth, compared
from support.processes import Ranks, Server, agent_pid
from support.roles.chaos import order_rollback
from support.waiting import wait_until

RANKS = 2
PERIOD_S = 0.01
#: Small windows, so that the archiver is at work whenever somebody is killed; in the smallest a few frames fill it.
WINDOWS_MIB = (0.03, 0.1, 1.0, 4.0)
#: What is drawn from for each kill and each stop. A job that is launched again takes a second or two to its first step.
VICTIMS = ("server", "redis", "agent", "job")
#: Shares of the turns that stop a part, and that have a rollback ordered just before.
STOPS, ORDERS = 0.3, 0.4
#: A part is stopped for so long, seconds.
STOPPED_S = (0.05, 3.0)


class Chaos:
    """A server and a job of which parts are killed; each part comes back as its supervisor would bring it.

    Args:
        server: that runs.
        folder: of the job and of what it writes.
        draw: decides all that is random.
    """

    def __init__(self, server: Server, folder: Path, draw: random.Random) -> None:
        self.done: Counter[str] = Counter()
        #: How often the server ended without a kill of its own process: its supervisor starts it again.
        self.ended_by_itself = 0
        self._server, self._folder, self._draw = server, folder, draw
        self._launch = -1
        self.job = self._launched()
        wait_until(lambda: self.trained(SAVE_EVERY), 60, "the first checkpoint is made")

    def turn(self) -> None:
        """Kill or stop one part at a random moment, perhaps with an order under way."""
        time.sleep(self._draw.uniform(0.0, 1.2))  # a random moment: nothing is waited for
        self.supervise()
        if self._draw.random() < ORDERS:
            self._order()
            time.sleep(self._draw.uniform(0.0, 0.4))
        victim = self._draw.choice(VICTIMS)
        if self._draw.random() < STOPS:
            self._stop(victim)
        else:
            getattr(self, f"_kill_{victim}")()
            self.done[f"kill {victim}"] += 1

    def supervise(self) -> None:
        """Start the server again where it ended by itself."""
        assert self._server.process is not None
        if self._server.process.poll() is not None:
            self.ended_by_itself += 1
            self._server.start(wait=False)

    def trained(self, steps: int) -> bool:
        """Whether each rank of this launch logged so many rows."""
        file = self._folder / "truth"
        return file.exists() and Truth(file).trained(self._launch, steps, RANKS)

    def _order(self) -> None:
        """Order a rollback, whether it is taken or not."""
        with suppress(httpx.HTTPError, KeyError, ValueError):  # the server is away, or knows no checkpoint
            with httpx.Client(base_url=self._server.url, verify=False, timeout=3.0) as client:
                answer = order_rollback(client, "r")
            self.done["order taken" if answer.is_success else f"order {answer.text}"] += 1

    def _stop(self, victim: str) -> None:
        """SIGSTOP, and SIGCONT later."""
        with suppress(OSError, AssertionError, subprocess.CalledProcessError):  # it has just ended
            pid = self._pid(victim)
            os.kill(pid, signal.SIGSTOP)
            self.done[f"stop {victim}"] += 1
            time.sleep(self._draw.uniform(*STOPPED_S))
            os.kill(pid, signal.SIGCONT)

    def _pid(self, victim: str) -> int:
        if victim == "redis":
            return self._server.redis_pid()
        if victim == "agent":
            return agent_pid(self._folder / "spool", "r")
        process = self._server.process if victim == "server" else self.job.processes[self._draw.randrange(RANKS)]
        assert process is not None
        return process.pid

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
def test_every_row_is_there_once_and_on_its_branch_whatever_is_killed_or_stopped(
    window_mib: float, kills: int, seed: int, tmp_path: Path, free_port: int
) -> None:
    server = Server(tmp_path / "data", free_port, {"STABILITY_WINDOW_MIB": str(window_mib)})
    with server:
        chaos = Chaos(server, tmp_path, random.Random(seed))
        try:
            for _ in range(kills):
                chaos.turn()
            chaos.supervise()
            wait_until(server.answers, 60, "the server answers")
            wait_until(lambda: chaos.trained(4 * SAVE_EVERY), 120, "the last launch trains")
            # finish() does not wait for a server that has been away for seconds, and an agent pauses between two tries.
            wait_until(lambda: _agent_state(tmp_path / "spool") == "connected", 60, "the agent is connected")
            (tmp_path / "enough").touch()
            outcomes = [lines[0] for lines in chaos.job.outputs()]
        finally:
            chaos.job.kill()
        truth = Truth(tmp_path / "truth")
        found = compared(server, "r", truth, RANKS)
        orders = server.get("/runs/r/commands")["commands"]
        rows = sum(map(len, truth.rows.values()))
        wrongs = {name: len(each) for name, each in found._asdict().items()}
        print(f"seed {seed}, window {window_mib} MiB: {dict(chaos.done)}, {len(truth.origin)} attempts")
        print(f"{rows} rows, {wrongs}, orders {Counter(one['state'] for one in orders)}")
        print(f"the server ended by itself {chaos.ended_by_itself} times; {outcomes}")
        assert found == Comparison([], [], [], [])
        # An order that is said to be done was obeyed by all ranks; by some, where the others were killed in it.
        assert {one["command_id"] for one in orders if one["state"] == "done"} <= {
            command for command, ranks in truth.obeyed.items() if len(ranks) == RANKS
        }
        assert outcomes == ["delivered"] * RANKS


def _agent_state(spool: Path) -> str:
    return str(json.loads((spool / "r" / "agent" / "agent.json").read_text())["state"])
