"""Dumps of older agents, one event a rank, are read as those of now, one event a node; and any event without harm."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabilitybackend.judging.liveness.stacks.dumps import MAX_EVENT_MEMBERS, DumpBook, ranks_of
from stabilityclient.agent.watch.stacks import stack_events

#: What agents sent before ranks of a node shared an event: of a real job (gloo) in which rank 1 waits for its data.
_LOADER = """Thread 0x00007f1810bff6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/usr/lib/python3.11/queue.py", line 140 in put
  File "/work/rank.py", line 51 in _work
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

"""
_WAITS = """Current thread 0x00007f27f8cd2b80 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/work/rank.py", line 123 in _step
  File "/work/rank.py", line 187 in <module>
"""
_LOADS = """Current thread 0x00007f1822836b80 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/usr/lib/python3.11/queue.py", line 171 in get
  File "/work/rank.py", line 56 in next
  File "/work/rank.py", line 187 in <module>
"""


def old_event(rank: int) -> dict[str, Any]:
    """Return the whole data of an older agent's event."""
    waits = {"pg": "0", "seq": 10, "op": "all_reduce", "state": "scheduled", "age_s": 5.9, "sizes": [[1]]}
    number = 9 if rank == 1 else 10
    pg = {"name": "0", "desc": "default_pg", "ranks": [0, 1, 2, 3], "enqueued": number, "started": -1, "completed": 9}
    return {
        "request": "d1",
        "rank": rank,
        "source": f"r{rank}-18ea4d14fc5867d9-{9867 + rank}",
        "pid": 9867 + rank,
        "sampled": 1795332160.4,
        "proc": {"state": "S", "wchan": "futex_do_wait", "threads": 7, "cpu": 0.0, "children": []},
        "slot": {"step": 10, "phase": "data" if rank == 1 else "backward", "phase_start": 1795332155.1, "beat": 6},
        "stack": None if rank == 3 else _LOADS if rank == 1 else _LOADER + _WAITS,
        "stack_missing": "the process is stopped (state T)" if rank == 3 else None,
        "collectives": None if rank == 3 else {"pgs": [pg], "active": [] if rank == 1 else [waits]},
        "collectives_missing": "not asked" if rank == 3 else None,
    }


def of_older(events: list[dict[str, Any]]) -> dict[str, Any]:
    book = DumpBook()
    for event in events:
        assert book.take(event, "n0", 5.0, lambda: range(4)) == "d1"
    found = book.get("d1")
    assert found is not None
    return found


def test_a_stored_dump_of_an_older_agent_still_shows_its_stacks() -> None:
    found = of_older([old_event(rank) for rank in range(4)])
    assert [(group.ranks, group.where, group.what, group.odd) for group in found.groups] == [
        ([0, 2], "collective", "all_reduce #10 of default_pg", False),
        ([1], "data", "", True),
    ]
    assert [group.text for group in found.groups] == [_LOADER + _WAITS, _LOADS]
    assert found.ranks["3"].missing == "the process is stopped (state T)"
    assert (found.complete, found.collectives[0].missing) == (True, [1])


def test_one_event_for_the_node_makes_the_same_dump_but_for_the_threads_addresses() -> None:
    every = [old_event(rank) for rank in range(4)]
    old, new = of_older(every), of_older(stack_events("d1", every))
    for found in (old, new):
        for group in found.groups:
            group.text = group.text.replace("00007f1810bff6c", "").replace("00007f27f8cd2b8", "")
            group.text = group.text.replace("00007f1822836b8", "")
        found.bytes = 0
    assert new == old


def test_what_is_written_once_and_meant_a_thousand_times_takes_no_more_memory_than_the_bounds() -> None:
    text = "Thread 0x0 (most recent call first):\n" + "x" * 90_000
    group = {"name": "0", "desc": "", "ranks": [[0, 60_000, 1]], "enqueued": 1, "completed": 0}
    groups = [{**group, "ranks": [[at, 60_000, 1]]} for at in range(200)] + [{**group, "ranks": [[0, 2**62, 1]]}]
    rank = {"stack": [0] * 5_000 + [1], "collectives": {"pgs": list(range(201)), "active": []}}
    event = {
        "request": "d1",
        "threads": [text, _WAITS],
        "pgs": groups,
        "ranks": [{"rank": at} | rank for at in range(500)],
    }
    tracemalloc.start()
    try:
        for said in ranks_of(event):
            assert said["stack"].endswith(_WAITS)
            assert len(said["stack"]) == 100_000
        assert tracemalloc.get_traced_memory()[1] < 64 * MAX_EVENT_MEMBERS
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "event",
    [
        {"ranks": []},
        {"ranks": [3, None, {}]},
        {"ranks": [{"rank": -1, "stack": [0]}], "threads": 5, "pgs": "x"},
        {"ranks": {"rank": 0}},
    ],
)
def test_an_event_that_names_no_rank_is_passed_over(event: dict[str, Any]) -> None:
    book = DumpBook()
    assert book.take({"request": "d1", **event}, "n0", 1.0) is None
    assert book.held() == []


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["ranks", "pgs", "name", "seq"]), inner)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(_ANY, _ANY, _ANY, _ANY)
def test_an_event_of_any_content_is_read_without_harm(threads: Any, groups: Any, stack: Any, collectives: Any) -> None:
    book = DumpBook()
    rank = {"rank": 0, "stack": stack, "collectives": collectives}
    known = {"rank": 1, "stack": [0], "collectives": {"pgs": [0, 1, groups], "active": threads}}
    book.take({"request": "d1", "threads": threads, "pgs": groups, "ranks": [rank, known]}, "n0", 1.0)
    found = book.get("d1")
    assert found is not None
    assert list(found.ranks) == ["0", "1"]
