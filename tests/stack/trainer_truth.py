"""What the ranks of ``relaunched_rank.py`` wrote down of themselves, and what the server makes of it beside that."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import httpx

from stack.relaunched_rank_values import ATTEMPT_VALUE, ATTEMPTS
from support.processes import Server
from support.waiting import wait_until

__all__ = ["Comparison", "Truth", "compared"]

#: Seconds that the backlog of earlier launches may take: what is missing after that is lost.
BACKLOG_S = 60.0


class Truth:
    """What the trainer wrote down.

    Args:
        file: a line for each row, for each start of an attempt, and for each order that a rank obeys.
    """

    def __init__(self, file: Path) -> None:
        #: (attempt, rank) -> steps. attempt -> the attempt and step that it went on from. order -> ranks that obeyed.
        self.rows: dict[tuple[int, int], list[int]] = {}
        self.origin: dict[int, tuple[int, int]] = {}
        self.obeyed: dict[str, set[int]] = {}
        for line in file.read_text().splitlines():
            attempt, rank, *more = line.split()
            if more[0] == "from":
                self.origin[int(attempt)] = (int(more[1]), int(more[2]))
            elif more[0] == "obeys":
                self.obeyed.setdefault(more[1], set()).add(int(rank))
            else:
                self.rows.setdefault((int(attempt), int(rank)), []).append(int(more[0]))

    def trained(self, launch: int, steps: int, ranks: int) -> bool:
        """Whether each rank logged so many rows in a launch."""
        rows = [
            sum(len(steps) for (attempt, of), steps in self.rows.items() if (attempt // ATTEMPTS, of) == (launch, rank))
            for rank in range(ranks)
        ]
        return min(rows) >= steps

    def effective(self, rank: int) -> dict[int, int]:
        """Return step -> attempt of what the model in memory learned."""
        curve: dict[int, int] = {}
        attempt, last = max(attempt for attempt, _ in self.rows), float("inf")
        while attempt >= 0:
            curve |= {step: attempt for step in self.rows.get((attempt, rank), ()) if step <= last}
            attempt, last = self.origin[attempt][0], min(last, self.origin[attempt][1])
        return curve

    def logged(self, rank: int) -> set[tuple[int, int]]:
        """Return (attempt, step) of every row that the rank was about to log."""
        return {(attempt, step) for (attempt, of), steps in self.rows.items() if of == rank for step in steps}

    def unsure(self, rank: int) -> set[tuple[int, int]]:
        """Return (attempt, step) of rows before whose log() the rank may have been killed; not so in the newest one."""
        newest = max(attempt for attempt, _ in self.rows)
        return {(attempt, steps[-1]) for (attempt, of), steps in self.rows.items() if of == rank and attempt < newest}


class Comparison(NamedTuple):
    """Rows as (rank, attempt, step): what the server has not, has twice, has on another branch, and made up."""

    lost: list[tuple[int, int, int]]
    doubled: list[tuple[int, int, int]]
    wrong_branch: list[tuple[int, int, int]]
    made_up: list[tuple[int, int, int]]


def compared(server: Server, run_id: str, truth: Truth, ranks: int) -> Comparison:
    """Return how every row that the server has, living and dead, differs from what the trainer knows.

    The backlog of earlier launches is waited for.
    """
    latest: list[Comparison] = []

    def nothing_is_missing() -> bool:
        with suppress(httpx.HTTPError):
            latest.append(_compared(server, run_id, truth, ranks))
            return not latest[-1].lost
        return False

    with suppress(AssertionError):
        wait_until(nothing_is_missing, BACKLOG_S, "the backlog is there")
    return latest[-1] if latest else _compared(server, run_id, truth, ranks)


def _compared(server: Server, run_id: str, truth: Truth, ranks: int) -> Comparison:
    found = Comparison([], [], [], [])
    for rank in range(ranks):
        living: Counter[tuple[int, int]] = Counter()
        dead: Counter[tuple[int, int]] = Counter()
        for entry in server.get(f"/runs/{run_id}/series", metric="loss", rank=rank, view="all")["series"]:
            pairs = zip(entry["steps"], entry["values"], strict=True)
            rows = Counter((int(value // ATTEMPT_VALUE), step) for step, value in pairs)
            (dead if entry["dead"] else living).update(rows)
        right = {(attempt, step) for step, attempt in truth.effective(rank).items()}
        logged, both = truth.logged(rank), living + dead
        wrong = (living.keys() - right) | (dead.keys() & right)
        found.lost.extend((rank, *row) for row in sorted(logged - both.keys() - truth.unsure(rank)))
        found.doubled.extend((rank, *row) for row in sorted(row for row, times in both.items() if times > 1))
        found.wrong_branch.extend((rank, *row) for row in sorted(wrong & logged))
        found.made_up.extend((rank, *row) for row in sorted(both.keys() - logged))
    return found
