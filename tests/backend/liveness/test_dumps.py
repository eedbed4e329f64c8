"""What agents collect is grouped by identical stack, classified, bounded, and read whatever it is."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabilitybackend.judging.liveness.stacks.collectives import read
from stabilitybackend.judging.liveness.stacks.dumps import DumpBook
from stabilitybackend.judging.liveness.stacks.parse import ParsedFrame, classify, main_call, main_thread
from support.gateway_stack import RawAgent
from support.job_frames import Job as Frames
from support.jobs.watched_job import stack
from support.saved_state import taken_over
from support.server_stack import RunningServer

TORCH = "/venv/lib/python3.11/site-packages/torch"
PYTHON = "/usr/lib/python3.11"
RUN = "/home/me/train.py"


def test_the_main_thread_is_the_last_one_and_its_frames_come_innermost_first() -> None:
    text = stack((f"{PYTHON}/queue.py", "get"), (RUN, "<module>"))
    assert main_thread(text) == (ParsedFrame("get", f"{PYTHON}/queue.py", 10), ParsedFrame("<module>", RUN, 10))


def test_of_a_signal_that_another_thread_took_the_main_thread_is_still_the_last() -> None:
    text = stack((RUN, "train")).replace("Current thread", "Thread").replace("Thread", "Current thread", 1)
    assert main_thread(text) == (ParsedFrame("train", RUN, 10),)


def test_names_of_threads_and_unknown_lines_of_newer_pythons_are_read() -> None:
    text = (
        'Thread 0x00007f64bdbbdb80 [MainThread] (most recent call first):\n  File "a b.py", line ??? in <lambda>\n'
        "  Extension modules: numpy (total: 1)\n"
    )
    assert main_thread(text) == (ParsedFrame("<lambda>", "a b.py", 0),)


@pytest.mark.parametrize(
    "text", ["", "garbage", "Thread 0x1 (most recent call first):", '  File "x", line 1 in y', "\0"]
)
def test_a_text_without_a_stack_gives_none(text: str) -> None:
    assert main_thread(text) == ()


@settings(max_examples=40, deadline=None)
@given(st.text(alphabet='Thread 0x(most):\n"File, line 1 in', max_size=300), st.integers(0, 400))
def test_any_text_and_any_cut_is_read_without_harm(noise: str, cut: int) -> None:
    text = stack((RUN, "train"), (RUN, "<module>"))
    assert isinstance(main_thread(noise + text[cut:] + noise), tuple)


@pytest.mark.parametrize(
    ("calls", "phase", "where"),
    [
        ([(f"{TORCH}/distributed/distributed_c10d.py", "all_reduce"), (RUN, "train")], "backward", "collective"),
        ([(f"{TORCH}/distributed/distributed_c10d.py", "barrier"), (RUN, "save")], "checkpoint", "collective"),
        ([(f"{TORCH}/nn/parallel/distributed.py", "_pre_forward"), (RUN, "train")], "", "collective"),
        ([(f"{PYTHON}/threading.py", "wait"), (f"{PYTHON}/queue.py", "get"), (RUN, "train")], "", "data"),
        ([(f"{PYTHON}/selectors.py", "select"), (f"{PYTHON}/multiprocessing/connection.py", "wait"),
          (f"{PYTHON}/multiprocessing/queues.py", "get"), (f"{TORCH}/utils/data/dataloader.py", "_try_get_data")],
         "", "data"),
        ([(RUN, "read_file"), (RUN, "train")], "data", "data"),
        ([(RUN, "next_batch"), (RUN, "train")], "", "data"),
        ([(f"{TORCH}/serialization.py", "save"), (RUN, "train")], "", "checkpoint"),
        ([(f"{TORCH}/distributed/checkpoint/filesystem.py", "write_data"), (RUN, "train")], "", "checkpoint"),
        ([(RUN, "save_checkpoint"), (RUN, "train")], "", "checkpoint"),
        ([(f"{TORCH}/autograd/graph.py", "_engine_run_backward"), (f"{TORCH}/_tensor.py", "backward")], "", "native"),
        ([(f"{TORCH}/cuda/__init__.py", "synchronize"), (RUN, "train")], "", "native"),
        ([(RUN, "helper"), (RUN, "train")], "forward", "user"),
        ([(f"{PYTHON}/threading.py", "wait"), (f"{PYTHON}/threading.py", "join"), (RUN, "train")], "", "idle"),
        ([(f"{PYTHON}/selectors.py", "select"), (f"{PYTHON}/asyncio/base_events.py", "_run_once")], "", "idle"),
        ([(f"{PYTHON}/selectors.py", "select"), (f"{PYTHON}/subprocess.py", "_communicate"),
          (f"{PYTHON}/subprocess.py", "communicate"), (RUN, "upload")], "", "user"),
        ([(f"{PYTHON}/subprocess.py", "_try_wait"), (f"{PYTHON}/subprocess.py", "wait"), (RUN, "upload")], "", "user"),
        ([(f"{PYTHON}/selectors.py", "select"), (RUN, "serve")], "", "user"),
    ],
)  # fmt: skip
def test_what_the_main_thread_does_is_told_by_its_frames(calls: list[tuple[str, str]], phase: str, where: str) -> None:
    assert classify(main_thread(stack(*calls)), phase) == where


@pytest.mark.parametrize(
    ("calls", "call", "where"),
    [
        ([(RUN, "evict"), (RUN, "train")], "with cache", "lock"),
        ([(RUN, "evict"), (RUN, "train")], "self._lock.acquire", "lock"),
        ([(RUN, "evict"), (RUN, "train")], "fcntl.flock", "lock"),
        ([(RUN, "evict"), (RUN, "train")], "loss.item", "user"),
        ([(f"{PYTHON}/threading.py", "wait"), (f"{PYTHON}/threading.py", "acquire"), (RUN, "train")],
         "waiter.acquire", "lock"),
        ([(f"{PYTHON}/multiprocessing/synchronize.py", "__enter__"), (RUN, "train")], "semlock.__enter__", "lock"),
        ([(f"{PYTHON}/threading.py", "wait"), (f"{PYTHON}/queue.py", "get"), (RUN, "train")], "waiter.acquire", "data"),
        ([(f"{PYTHON}/threading.py", "_wait_for_tstate_lock"), (f"{PYTHON}/threading.py", "join"), (RUN, "train")],
         "lock.acquire", "idle"),
    ],
)  # fmt: skip
def test_a_lock_is_told_by_the_call_or_by_the_code_of_locks(
    calls: list[tuple[str, str]], call: str, where: str
) -> None:
    text = stack(*calls).replace(f"in {calls[0][1]}\n", f"in {calls[0][1]}\n    ~ {call}\n", 1)
    assert classify(main_thread(text), "", main_call(text)) == where


def taken(book: DumpBook, rank: int, text: str | None, **data: Any) -> None:
    said = {"request": "d-1", "rank": rank, "pid": 100 + rank, "stack": text, "slot": {"phase": "backward", "step": 9}}
    book.take({**said, **data}, f"n{rank // 4}", 5.0, lambda: range(8))


WAITS = stack((f"{TORCH}/distributed/distributed_c10d.py", "all_reduce"), (RUN, "train"))
MINE = stack((RUN, "helper"), (RUN, "train"))


def test_ranks_with_one_stack_are_one_group_and_who_does_something_else_is_odd() -> None:
    book = DumpBook()
    for rank in range(7):
        taken(book, rank, MINE if rank == 5 else WAITS)
    taken(book, 7, None, stack_missing="the process has no handler for signal 40")
    found = book.get("d-1")
    assert found is not None
    assert [(g.ranks, g.nodes, g.where, g.what, g.odd) for g in found.groups] == [
        ([0, 1, 2, 3, 4, 6], ["n0", "n1"], "collective", "all_reduce", False),
        ([5], ["n1"], "user", "", True),
    ]
    assert found.complete
    assert found.ranks["7"].missing == "the process has no handler for signal 40"
    assert found.ranks["5"].slot == {"phase": "backward", "step": 9}
    assert found.groups[1].text == MINE


def test_two_ranks_in_different_places_are_told_apart_by_who_waits() -> None:
    book = DumpBook()
    taken(book, 0, MINE)
    taken(book, 1, WAITS)
    found = book.get("d-1")
    assert found is not None
    assert [(group.ranks, group.odd) for group in found.groups] == [([0], True), ([1], False)]


def big_answer(rank: int, everyone: list[int]) -> dict[str, Any]:
    """What a rank of a large job answers: groups, many threads, its children."""
    groups = [{"name": "0", "desc": "default_pg", "ranks": everyone, "enqueued": 9, "completed": 8}]
    for number in range(1, 6):
        members = everyone[rank % 16 :: 16]
        groups.append({"name": f"{number}-{rank % 16}", "desc": "dp", "ranks": members, "enqueued": 9, "completed": 8})
    return {
        "text": "\n".join([WAITS] * 20) + "".join(f'  File "{RUN}", line {at} in call_{at}\n' for at in range(60)),
        "proc": {"state": "S", "cpu": 0.1, "wchan": "futex", "threads": 90,
                 "children": [{"pid": p, "name": "pt_data_worker", "state": "S", "wchan": "futex"} for p in range(8)]},
        "slot": {"step": 9, "phase": "backward", "phase_start": 1.5e9, "beat": 7, "pending": 3, "expect_s": 0.0},
        "collectives": {"pgs": groups, "active": [{"pg": "0", "seq": 9, "op": "all_reduce", "sizes": [[4096, 4096]]}]},
    }  # fmt: skip


def test_a_dump_of_2048_ranks_takes_less_than_4_mib() -> None:
    book, everyone = DumpBook(), list(range(2_048))
    taken(book, 0, WAITS)  # what is made once, whatever the dump
    sizes = []
    tracemalloc.start()
    try:
        for rank in range(128):  # tracemalloc is slow: the rest is reckoned
            answer = big_answer(rank, everyone)
            taken(book, rank, answer.pop("text"), **answer)
            del answer
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    dump = book.dump("d-1")
    assert dump is not None
    assert len(dump.samples) == 128
    assert sizes[-1] + 30 * (sizes[-1] - sizes[63]) < 4 * 1024 * 1024


def test_every_rank_with_a_stack_of_its_own_stays_within_bounds() -> None:
    book = DumpBook()
    for rank in range(600):
        taken(book, rank, stack((RUN, f"call_{rank}"), (RUN, "train")) + "x" * 5_000)
    dump = book.dump("d-1")
    assert dump is not None
    assert len(dump.stacks) == 512
    assert dump.bytes < 4 * 1024 * 1024


def test_old_dumps_go_when_there_are_more_than_eight() -> None:
    book = DumpBook()
    for number in range(12):
        taken(book, 0, WAITS, request=f"d-{number}")
    assert [dump.request for dump in book.held()] == [f"d-{number}" for number in range(11, 3, -1)]


def test_dumps_outlive_a_restart_through_the_snapshot() -> None:
    book, again = DumpBook(), DumpBook()
    for rank in range(4):
        taken(book, rank, WAITS, collectives=big_answer(rank, list(range(8)))["collectives"])
    assert taken_over(book, again).get("d-1") == book.get("d-1")


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"request": 3, "rank": 0},
        {"request": "d", "rank": "0"},
        {"request": "d", "rank": -1},
        {"request": "d", "rank": 1e99},
    ],
)
def test_an_event_that_names_no_rank_or_request_is_passed_over(data: dict[str, Any]) -> None:
    book = DumpBook()
    assert book.take(data, "a", 1.0) is None
    assert book.held() == []


@pytest.mark.parametrize(
    "said",
    [
        None, 3, [], {}, {"pgs": 3}, {"pgs": [3, None]}, {"pgs": [{}], "active": [{}, 3]},
        {"pgs": [{"name": [], "ranks": ["x", -1, True, 10**12], "enqueued": "?", "completed": float("nan")}],
         "active": [{"pg": "0", "seq": "x"}, {"pg": {}, "seq": 10**30, "op": None, "sizes": {"a": 1}}]},
    ],
)  # fmt: skip
def test_recorders_that_say_nonsense_harm_nothing(said: object) -> None:
    book = DumpBook()
    read(said, {})
    taken(book, 0, WAITS, collectives=said, proc=[], slot=7, stack_missing={})
    found = book.get("d-1")
    assert found is not None
    assert found.ranks["0"].pid == 100


async def test_dumps_are_served_and_an_unknown_one_is_a_404_that_says_what_to_do(
    redis_url: str, tmp_path: Path
) -> None:
    job = Frames(0, 1)
    said = {
        "request": "d-1",
        "rank": 0,
        "pid": 7,
        "stack": WAITS,
        "slot": {"phase": "backward"},
        "proc": {"state": "S"},
    }
    with RunningServer(redis_url, tmp_path) as server:
        async with RawAgent(server.agent_url) as agent:
            await agent.hello("run-1", sources=[job.info])
            await agent.ask(job.rows(range(1, 4)))
            await agent.ask(job.event("stacks", 3, **said))
            got = server.wait_for("/runs/run-1/stacks", lambda answer: len(answer["dumps"]) == 1, "the dump")
        assert got["dumps"][0] == server.client.get("/api/v1/runs/run-1/stacks/d-1").json()
        assert [group["where"] for group in got["dumps"][0]["groups"]] == ["collective"]
        missing = server.client.get("/api/v1/runs/run-1/stacks/none")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")


def test_which_ranks_should_answer_is_asked_once_a_dump_and_not_at_each_answer() -> None:
    book, asked = DumpBook(), []

    def running() -> list[int]:
        asked.append(1)
        return [0, 1, 2]

    for rank in range(3):
        book.take({"request": "d-1", "rank": rank, "stack": stack((RUN, "train"))}, "n0", 1.0, running)
    found = book.get("d-1")
    assert found is not None
    assert (len(asked), found.complete) == (1, True)
