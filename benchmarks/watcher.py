"""Who watches the watcher: kill -9 of server, alerting and Redis in turn, and the time until those outside know.

A real server, a real job of one rank with its agent, a real Alertmanager with the watchdog, a watcher of our own that
follows the rule of healthchecks.io (late after one interval and half an interval of grace). Before, while and after
something is dead the job raises incidents: each has to come once to a webhook and to Slack.

*frozen server* is stopped by SIGSTOP; *alerting* can't get the lease under which alone it may send; *redis* is killed
for good until all know. What an agent says comes after its own time, here one interval.

    python benchmarks/watcher.py [--rounds 5] [--every-s 30] [--only server redis]
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.outside.watched_board import VICTIMS, WatchedBoard
from support.waiting import wait_until

#: Heartbeat intervals within which the watcher has to know.
TARGET_INTERVALS = 2.0
COLUMNS = ("watcher knows", "watchdog ends", "agent says so", "all told after heal")


def main() -> None:
    """Print a row for each victim; exit with 1 where the target is missed, a heartbeat lied, or an alert was lost."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--every-s", type=float, default=30.0, help="seconds between two beats, 1 to 60")
    parser.add_argument("--only", nargs="+", choices=list(VICTIMS), default=list(VICTIMS))
    given = parser.parse_args()
    print(f"seconds after the kill, median (lowest to highest), {given.rounds} rounds, a beat each {given.every_s:g} s")
    heads = "".join(f"{name:>24}" for name in COLUMNS)
    print(f"{'killed':<15}{heads}{'lies':>6}{'lost':>6}{'twice':>6}{'load':>6}")
    bad = False
    for victim in given.only:
        bad |= _row(victim, given.every_s, given.rounds)
    raise SystemExit(bad)


def _row(victim: str, every_s: float, rounds: int) -> bool:
    chance, found, lies = random.Random(victim), {name: list[float]() for name in COLUMNS}, 0
    with WatchedBoard(Path(tempfile.mkdtemp(prefix="watcher-")), every_s, redis_of_its_own=victim == "redis") as board:
        titles = []
        for number in range(rounds):
            said = [f"{victim} {number} {when}" for when in ("before", "meanwhile", "after")]
            titles += said
            lies += _round(board, victim, said, chance, found)
        told = [(board.outside.opened("hook", one), board.outside.opened("slack", one)) for one in titles]
        lost = sum(not hook for hook, _ in told) + max(0, sum(not slack for _, slack in told) - board.unsure())
        twice = sum((len(hook) > 1) + (slack.total() > 1) for hook, slack in told)
    cells = "".join(f"{_cell(values):>24}" for values in found.values())
    print(f"{victim:<15}{cells}{lies:>6}{lost:>6}{twice:>6}{os.getloadavg()[0]:>6.1f}", flush=True)
    slow = max(found["watcher knows"]) > TARGET_INTERVALS * every_s + VICTIMS[victim]
    return bool(slow or lies or lost or twice)


def _round(
    board: WatchedBoard, victim: str, titles: list[str], chance: random.Random, found: dict[str, list[float]]
) -> int:
    """Kill, measure, heal; return how many heartbeats said that all was well while it was not."""
    outside, seen = board.outside, len(board.outside.agent)
    time.sleep(board.every_s * chance.random())
    board.raises(titles[0])
    time.sleep(0.4 * chance.random())
    moment = board.kill(victim)
    board.raises(titles[1])
    patience_s = max(30.0, board.every_s)
    wait_until(lambda: board.watchdog_ends() is None, patience_s, "the watchdog ends")
    found["watchdog ends"].append(time.monotonic() - moment)
    knows = wait_until(lambda: outside.alarm_after(moment + VICTIMS[victim]), patience_s, "the watcher knows")
    found["watcher knows"].append(knows - moment)
    if victim == "server":  # the others leave the agent's connection as it is
        at, _ = wait_until(lambda: outside.agent[seen:], patience_s, "the agent says so")[0]
        found["agent says so"].append(at - moment)
    healed = time.monotonic()
    board.heal(victim)
    board.raises(titles[2])
    wait_until(lambda: all(outside.opened("hook", title) for title in titles), 60, "all are told")
    found["all told after heal"].append(time.monotonic() - healed)
    wait_until(lambda: outside.good_signs(healed, time.monotonic()), patience_s, "the heart beats")
    wait_until(board.watchdog_ends, patience_s, "the watchdog fires")
    return len(outside.good_signs(moment + VICTIMS[victim], healed))


def _cell(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})" if values else "-"


if __name__ == "__main__":
    main()
