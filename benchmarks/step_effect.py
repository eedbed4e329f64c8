"""Measures how much longer a step of the demo's job takes with us: two jobs take turns on the same cores.

    python benchmarks/step_effect.py [--ranks 1] [--rows 2] [--blocks 240] [--block-s 1] [--mode online] [--json]

On a shared machine a step's time wanders by ten per cent within a minute, so runs one after the other tell nothing of
an effect of half a per cent. Here the job of ``make demo`` runs twice at the same time, once with
``STABILITY_MODE=disabled`` and once recording, and one of the two is always stopped (SIGSTOP), with its agent and its
server. They take turns of a second or two in the order A B B A; each such four gives one ratio of median step times,
hence what wanders slower than some seconds falls out. The interval is a bootstrap over the fours (Efron 1979).

With one rank on two cores the agent and the server have a core that the job does not use, as on a GPU node, which has
a hundred cores and more. With as many ranks as cores they take their time from the job: what is seen then is the CPU
of the agent and, which a real job never pays, of the server; the table has the share of each. The exit code is 1 where
the whole interval lies above the aim: a wide interval proves nothing, either way.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from agent_cost import environment
from parts.server_process import ServerProcess, free_port, usage
from parts.stamped_train import Stamp, read_stamps

#: Aim of the product: share by which a step may be longer.
AIM = 0.005
#: Start of a turn that is not counted, seconds: caches are cold, and the step that was stopped in its middle ends.
SETTLE_S = 0.2
#: Steps that both jobs make before the first turn.
WARM_UP_STEPS = 30
#: Seconds until they have.
START_TIMEOUT_S = 180.0
#: Samples of the bootstrap, and its seed.
RESAMPLES, SEED = 4000, 1
_JOB = Path(__file__).parent / "parts" / "stamped_train.py"


class Job:
    """The demo's job: its ranks and their agent. torchrun would start them in sessions of their own, out of reach.

    Args:
        mode: STABILITY_MODE.
        ranks: of the job. rows: of a rank's batch: few make short steps, of which a turn has many.
        folder: for its spool, checkpoints and stamps.
        url: the server.
        tokens: folder that keeps the tokens for both.
        steps_a_turn: of ``stamped_train.py``.
    """

    def __init__(
        self, mode: str, ranks: int, rows: int, folder: Path, url: str, tokens: Path, steps_a_turn: int = 0
    ) -> None:
        folder.mkdir()
        self._stamps = folder / "stamps.0"
        self._run = folder / "spool" / mode
        env = environment(url, folder / "spool", mode, STABILITY_MODE=mode, STABILITY_DRAIN_S="1", OMP_NUM_THREADS="1")
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
        command = [
            sys.executable,
            str(_JOB),
            str(folder / "stamps"),
            str(steps_a_turn),
            "--rows",
            str(rows),
            "--steps",
            "10000000",
        ]
        command += ["--checkpoint-every", "10000000", "--checkpoint-dir", str(folder / "checkpoints")]
        command += ["--data-cache", str(tokens)]
        with (folder / "out").open("wb") as out:
            self._ranks = [
                subprocess.Popen(
                    command, env=env | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=out, stderr=out
                )
                for rank in range(ranks)
            ]

    @property
    def stamps(self) -> list[Stamp]:
        """Of the steps that rank 0 has begun."""
        return read_stamps(self._stamps) if self._stamps.exists() else []

    @property
    def agent_pid(self) -> int | None:
        """Process id of its agent, None while there is none."""
        try:
            return int(json.loads((self._run / "agent" / "agent.json").read_bytes())["pid"])
        except (OSError, ValueError, LookupError):
            return None

    def wait_for_steps(self, steps: int) -> None:
        """Return when it has made so many."""
        end = time.monotonic() + START_TIMEOUT_S
        while len(self.stamps) < steps:
            if any(rank.poll() is not None for rank in self._ranks) or time.monotonic() > end:
                raise SystemExit(f"the job does not train: {(self._stamps.parent / 'out').read_text()[-2000:]}")
            time.sleep(0.1)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to ranks and agent."""
        for rank in self._ranks:
            rank.send_signal(number)
        if self.agent_pid is not None:
            os.kill(self.agent_pid, number)

    def median_step_s(self, begin: float, end: float) -> float:
        """Return the median duration of the steps that lie between two times."""
        return statistics.median(
            after.at - before.at for before, after in pairwise(self.stamps) if begin <= before.at and after.at <= end
        )

    def end(self) -> None:
        """Kill it."""
        self.send(signal.SIGKILL)
        for rank in self._ranks:
            rank.wait()


def measure(ranks: int, rows: int, mode: str, blocks: int, block_s: float) -> dict[str, Any]:
    """Return the ratios of all fours, and what share of a core agent and server took in their turns."""
    with tempfile.TemporaryDirectory() as name, ServerProcess(Path(name) / "data") as server:
        folder = Path(name)
        without = Job("disabled", ranks, rows, folder / "disabled", server.url, folder / "tokens")
        watched = Job(mode, ranks, rows, folder / mode, server.url, folder / "tokens")
        try:
            without.wait_for_steps(WARM_UP_STEPS)
            watched.wait_for_steps(WARM_UP_STEPS)
            turns = _take_turns(without, watched, server.pid, blocks, block_s)
            medians = [(job is watched, job.median_step_s(begin, end)) for job, begin, end in turns["turns"]]
        finally:
            os.kill(server.pid, signal.SIGCONT)
            without.end()
            watched.end()
    fours = [medians[at : at + 4] for at in range(0, len(medians), 4)]
    ratios = [sum(step for ours, step in four if ours) / sum(step for ours, step in four if not ours) for four in fours]
    low, high = interval(ratios)
    return {
        "ranks": ranks,
        "mode": mode,
        "fours": len(fours),
        "disabled_ms": 1000 * statistics.median(step for ours, step in medians if not ours),
        "ratio": statistics.median(ratios),
        "low": low,
        "high": high,
        "agent_cpu_share": turns["agent_cpu_share"],
        "server_cpu_share": turns["server_cpu_share"],
    }


def _take_turns(without: Job, watched: Job, server_pid: int, blocks: int, block_s: float) -> dict[str, Any]:
    turns: list[tuple[Job, float, float]] = []
    watched.send(signal.SIGSTOP)
    without.send(signal.SIGSTOP)
    os.kill(server_pid, signal.SIGSTOP)
    agent = watched.agent_pid
    used = {pid: usage(pid).cpu_s for pid in (server_pid, agent) if pid is not None}
    ran_s = 0.0
    for number in range(blocks):
        ours = number % 4 in (1, 2)
        job = watched if ours else without
        if ours:
            os.kill(server_pid, signal.SIGCONT)
        job.send(signal.SIGCONT)
        begin = time.monotonic()
        time.sleep(SETTLE_S + block_s)
        turns.append((job, begin + SETTLE_S, time.monotonic()))
        ran_s += ours * (time.monotonic() - begin)
        job.send(signal.SIGSTOP)
        os.kill(server_pid, signal.SIGSTOP)
    shares = {pid: (usage(pid).cpu_s - before) / ran_s for pid, before in used.items()}
    return {
        "turns": turns,
        "server_cpu_share": shares[server_pid],
        "agent_cpu_share": shares.get(agent) if agent is not None else None,
    }


def interval(ratios: list[float]) -> tuple[float, float]:
    """Return where the median lies in 95 of 100 samples drawn anew from ``ratios``."""
    rng = random.Random(SEED)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return medians[RESAMPLES // 40], medians[-RESAMPLES // 40]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--mode", choices=("online", "offline"), default="online")
    parser.add_argument("--blocks", type=int, default=240, help="turns, a multiple of four")
    parser.add_argument("--block-s", type=float, default=1.0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing that was started stays
    found = measure(arguments.ranks, arguments.rows, arguments.mode, arguments.blocks // 4 * 4, arguments.block_s)
    if arguments.json:
        print(json.dumps(found))
    else:
        percent = [100 * (found[name] - 1) for name in ("ratio", "low", "high")]
        print(f"the demo's job, {found['ranks']} rank(s), {found['mode']} against disabled, {found['fours']} fours")
        print(f"{'  median step, disabled, ms':34}{found['disabled_ms']:10.2f}")
        print(f"{'  longer with us, %':34}{percent[0]:+10.2f}   95 %: {percent[1]:+.2f} to {percent[2]:+.2f}   aim 0.5")
        for who in ("agent", "server"):
            share = found[f"{who}_cpu_share"]
            print(f"{f'  {who}, % of one core':34}{'none' if share is None else f'{100 * share:.1f}':>10}")
    return int(found["low"] - 1 > AIM)


if __name__ == "__main__":
    sys.exit(main())
