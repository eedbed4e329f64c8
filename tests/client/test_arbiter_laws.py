"""One set of laws for every arbiter: the first decision stands, for everybody, for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabilityclient.rollback.arbiter import ABORT, COMMIT, FileArbiter, MemoryArbiter, TorchStoreArbiter, settle
from support.agent.spooled import child

Make = Callable[[str], Any]


@pytest.fixture(params=["memory", "file", pytest.param("torch_store", marks=pytest.mark.torch)])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Give each rank its own arbiter of one attempt: ``make("c1.1")``."""
    if request.param == "memory":
        shared: dict[str, MemoryArbiter] = {}
        yield lambda attempt: shared.setdefault(attempt, MemoryArbiter())
    elif request.param == "file":
        yield lambda attempt: FileArbiter(str(tmp_path / attempt))
    else:
        torch = pytest.importorskip("torch")
        server = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=10))

        def connect(attempt: str) -> TorchStoreArbiter:
            store = torch.distributed.TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=10))
            return TorchStoreArbiter(torch.distributed.PrefixStore("default", store), attempt)

        yield connect


def test_nothing_is_decided_and_nobody_is_ready_at_first(make: Make) -> None:
    arbiter = make("c.1")
    assert arbiter.decision() is None
    assert not arbiter.all_ready(1)


def test_all_are_ready_when_each_rank_said_so_and_saying_it_twice_counts_once(make: Make) -> None:
    ranks = [make("c.1") for _ in range(3)]
    for rank in (0, 2, 2, 0):
        ranks[rank].mark_ready(rank)
    assert not ranks[0].all_ready(3)
    ranks[1].mark_ready(1)
    assert all(arbiter.all_ready(3) for arbiter in ranks)


@pytest.mark.parametrize(("first", "second"), [(COMMIT, ABORT), (ABORT, COMMIT), (COMMIT, COMMIT)])
def test_the_first_decision_stands_for_everybody(make: Make, first: str, second: str) -> None:
    one, other = make("c.1"), make("c.1")
    assert one.decide(first) == first
    assert other.decide(second) == first
    assert (one.decision(), other.decision(), make("c.1").decision()) == (first, first, first)


def test_attempts_do_not_touch_each_other(make: Make) -> None:
    make("c.1").decide(ABORT)
    make("c.1").mark_ready(0)
    assert make("c.2").decision() is None
    assert not make("c.2").all_ready(1)


def test_of_many_who_decide_at_once_all_get_the_same(make: Make) -> None:
    results: list[str] = []
    gate = threading.Barrier(8)

    def work(number: int, arbiter: Any) -> None:
        gate.wait()
        results.append(arbiter.decide(COMMIT if number % 2 else ABORT))

    threads = [threading.Thread(target=work, args=(number, make("c.1"))) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert len(set(results)) == 1


def test_a_rank_alone_at_the_boundary_gives_up_in_time_and_everybody_obeys(make: Make) -> None:
    waiting = make("c.1")
    waiting.mark_ready(0)
    assert settle(waiting, 2, wait_s=0.05) == ABORT
    late = make("c.1")
    late.mark_ready(1)
    assert settle(late, 2, wait_s=5) == ABORT


def test_ranks_that_are_all_ready_commit(make: Make) -> None:
    arbiters = [make("c.1") for _ in range(2)]
    for rank, arbiter in enumerate(arbiters):
        arbiter.mark_ready(rank)
    assert [settle(arbiter, 2, wait_s=5) for arbiter in arbiters] == [COMMIT, COMMIT]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_in_any_order_of_events_all_ranks_act_or_none(data: st.DataObject) -> None:
    """Each rank is a list of single moves; Hypothesis chooses whose move comes next, and who says no or dies."""
    world = data.draw(st.integers(1, 4))
    fate = [data.draw(st.sampled_from(["ready", "rejects", "late", "dies", "impatient"])) for _ in range(world)]
    arbiter = MemoryArbiter()
    acted: dict[int, bool] = {}

    def moves(rank: int) -> Iterator[None]:
        if fate[rank] == "dies":
            return
        if fate[rank] in ("rejects", "late"):
            if fate[rank] == "late":
                yield  # passes the boundary without the command
            arbiter.decide(ABORT)
            acted[rank] = False
            return
        arbiter.mark_ready(rank)
        yield
        patience = 1 if fate[rank] == "impatient" else 50
        while True:  # settle(), one look a move
            standing = arbiter.decision()
            if standing is None and arbiter.all_ready(world):
                yield
                standing = arbiter.decide(COMMIT)
            elif standing is None:
                patience -= 1
                standing = arbiter.decide(ABORT) if patience < 0 else None
            if standing is not None:
                acted[rank] = standing == COMMIT
                return
            yield

    running = {rank: moves(rank) for rank in range(world)}
    while running:
        rank = data.draw(st.sampled_from(sorted(running)))
        try:
            next(running[rank])
        except StopIteration:
            del running[rank]
    alive = [rank for rank in range(world) if fate[rank] != "dies"]
    assert len({acted[rank] for rank in alive}) <= 1
    if any(kind in ("rejects", "late", "dies") for kind in fate):
        assert not any(acted.values())


@pytest.mark.torch
@pytest.mark.soak
def test_two_processes_agree_through_the_default_store_of_torch(free_port: int) -> None:
    code = """
import os, sys
import torch.distributed as dist
from datetime import timedelta
dist.init_process_group("gloo", timeout=timedelta(seconds=20))
from stabilityclient.rollback.arbiter import TorchStoreArbiter, find_store, settle
rank = dist.get_rank()
said = []
for attempt in ("c.1", "c.2"):
    arbiter = TorchStoreArbiter(find_store(), attempt)
    if attempt == "c.1" or rank == 0:
        arbiter.mark_ready(rank)
        said.append(settle(arbiter, 2, wait_s=20 if attempt == "c.1" else 0.2))
    else:
        said.append(arbiter.decide("abort"))
dist.barrier()
print(*said)
"""
    ranks = [
        child(code, RANK=str(r), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port)) for r in (0, 1)
    ]
    outs = [rank.communicate(timeout=60) for rank in ranks]
    assert [out.split() for out, _ in outs] == [["commit", "abort"]] * 2, outs
