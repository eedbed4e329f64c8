"""A job that hangs: all ranks wait in a collective for one, and their agents say what they see of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from parts.growth_jobs import RANKS_PER_NODE, START, Rank, Run, running, words

from stabilityclient.wire import EventBlock, Frame, Health, SourceInfo

__all__ = ["hung_ranks"]

#: The rank that the others wait for.
CULPRIT = 5
COLLECTIVE = 1_841
_HEART = (
    'Thread 0x00007f64b7fff6c0 (most recent call first):\n  File "/usr/lib/python3.11/threading.py", line 331 in wait\n'
)
_WAITS = (("/lib/torch/distributed/distributed_c10d.py", "all_reduce"), ("/job/train.py", "train"))
_LOADS = (("/lib/torch/utils/data/dataloader.py", "__next__"), ("/job/train.py", "train"))


def hung_ranks(count: int) -> Run:
    """The standstill is noticed, looked into, judged anew with each answer, and grows longer; then steps go on."""
    run, ranks = Run(), [Rank(rank, count) for rank in range(count)]
    running(run, ranks)
    since = run.now
    for _ in range(3):
        run.now += 9.0
        run.health(_stalls(ranks, since, run.now))
        run.tick()
    (request,) = (one.command_id for one in run.state.commands.waiting() if one.kind == "dump_stacks")
    run.frames(_looks(ranks, request), len(ranks) // RANKS_PER_NODE // 4)
    for _ in range(3):
        run.now += 60.0
        run.health(_stalls(ranks, since, run.now))
        run.tick()
    (hang,) = (one for one in run.state.incidents.all() if one.kind == "hang")
    assert hang.evidence["verdict"]["culprits"] == [CULPRIT], hang.evidence["verdict"]
    run.health(words(ranks, 4, run.now))
    run.tick()
    assert run.state.incidents.open_count() == 0
    return run


def _stalls(ranks: list[Rank], since: float, now: float) -> list[Health]:
    found = words(ranks, 3, now, step_start=since, phase="backward", phase_start=since)
    found[CULPRIT // RANKS_PER_NODE].ranks[CULPRIT % RANKS_PER_NODE]["phase"] = "data"
    return found


def _looks(ranks: list[Rank], request: str) -> Iterable[Frame]:
    everybody = {"name": "0", "desc": "default_pg", "ranks": [[0, len(ranks), 1]]}
    groups = [
        everybody | {"enqueued": at, "started": at, "completed": COLLECTIVE - 1} for at in (COLLECTIVE, COLLECTIVE - 1)
    ]
    threads = [_HEART, *(_main(calls) for calls in (_WAITS, _LOADS))]
    for at in range(0, len(ranks), RANKS_PER_NODE):
        node = ranks[at].info.node
        looks = [_look(rank) for rank in ranks[at : at + RANKS_PER_NODE]]
        data = {"request": request, "threads": threads, "pgs": groups, "ranks": looks}
        yield Frame(
            SourceInfo(f"a{node}-1", None, 1, None, node, 1, START), 1, 1, [EventBlock("stacks", START, 3, data)]
        )


def _look(rank: Rank) -> dict[str, Any]:
    loads = rank.info.rank == CULPRIT
    active = [] if loads else [{"pg": "0", "seq": COLLECTIVE, "op": "all_reduce", "sizes": [[4096]], "age_s": 9.0}]
    return {
        "rank": rank.info.rank, "source": rank.info.source, "pid": rank.info.pid, "stack": [0, 2 if loads else 1],
        "stack_missing": None, "proc": {"state": "S", "cpu": 0.0}, "slot": {"phase": "data" if loads else "backward"},
        "collectives": {"pgs": [int(loads)], "active": active},
    }  # fmt: skip


def _main(calls: tuple[tuple[str, str], ...]) -> str:
    frames = "".join(f'  File "{file}", line 10 in {function}\n' for file, function in calls)
    return f"\nCurrent thread 0x00007f64bdbbdb80 (most recent call first):\n{frames}"
