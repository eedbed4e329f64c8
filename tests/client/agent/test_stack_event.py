"""Stacks that several ranks have in common go up once a node, and nothing that a person needs is lost on the way."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stabilitybackend.ingest.connection import check_frame
from stabilitybackend.judging.liveness.stacks.dumps import ranks_of
from stabilityclient.agent.agent_events import AgentEvents
from stabilityclient.agent.watch.stacks import runs, stack_events, threads
from support.agent.spooled import stored

LOADS = '  File "/usr/lib/python3.11/queue.py", line {line} in put\n  File "/me/train.py", line 51 in _work\n'
WAITS = '  File "/venv/torch/distributed/c10d.py", line 3252 in all_reduce\n  File "/me/train.py", line 9 in f\n'


def text(rank: int, line: int = 140, frames: str = WAITS) -> str:
    """Return what a rank with a loader's thread writes; each process has addresses of its own."""
    heading = "Thread 0x00007f18{:08x} (most recent call first):\n{}\n"
    return heading.format(rank, LOADS.format(line=line)) + f"Current {heading[0].lower()}{heading[1:]}".format(
        rank + 1, frames
    ).removesuffix("\n")


def look(rank: int, stack: str | None, **more: Any) -> dict[str, Any]:
    said = {"rank": rank, "source": f"r{rank}-1-{rank}", "pid": 100 + rank, "sampled": 5.0, "proc": {"state": "S"}}
    nothing = {"stack_missing": None, "collectives": None, "collectives_missing": None}
    return {**said, "slot": {"step": 3}, **nothing, "stack": stack, **more}


def read(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what the server makes of events, as ``look`` has it."""
    return [{**look(0, None), **rank} for event in events for rank in ranks_of(event)]


def plain(stack: str) -> str:
    return re.sub("0x[0-9a-f]+", "0x0", stack)


def test_ranks_at_one_place_say_it_once_and_a_thread_that_is_a_line_further_only_itself() -> None:
    (event,) = stack_events("d1", [look(rank, text(rank, line=141 if rank == 5 else 140)) for rank in range(8)])
    assert [part.count("\n  File") for part in event["threads"]] == [2, 2, 2]
    assert [rank["stack"] for rank in event["ranks"]] == [[0, 1]] * 5 + [[2, 1]] + [[0, 1]] * 2


def test_only_addresses_are_lost_between_a_rank_and_the_server() -> None:
    group = {"name": "0", "desc": "dp", "ranks": [1, 9, 17, 4], "enqueued": 3, "started": -1, "completed": 2}
    active = [{"pg": "0", "seq": 3, "op": "all_reduce", "state": "scheduled", "age_s": 5.5, "sizes": [[1]]}]
    looks = [
        look(0, text(0), collectives={"pgs": [group, {**group, "name": "1"}], "active": active}),
        look(1, "no thread here"),
        look(2, None, stack_missing="the process is stopped", collectives_missing="not asked"),
        look(3, "... the first threads are left out\n" + text(3), collectives={"pgs": [], "active": []}),
    ]
    whole = [{**each, "request": "d1", "stack": each["stack"] and plain(each["stack"])} for each in looks]
    assert read(stack_events("d1", looks)) == whole


@given(st.text(alphabet="Thread 0x1fC\nu", max_size=60))
def test_any_text_is_its_threads_in_their_order(noise: str) -> None:
    given = noise + "\n" + text(1) + noise
    parts = threads(given)
    assert len(parts) >= 2
    assert re.sub("0x[0-9a-fA-F]+", "0x0", "".join(parts)) == re.sub("0x[0-9a-fA-F]+", "0x0", given)


@given(st.lists(st.integers(-5, 40) | st.integers(), max_size=30))
def test_members_are_the_same_after_they_were_runs(members: list[int]) -> None:
    assert [first + at * stride for first, count, stride in runs(members) for at in range(count)] == members


@pytest.mark.parametrize("sign", ["x", "é", "\ud800"], ids=["ascii", "other letters", "half a pair"])
def test_events_of_ranks_that_share_nothing_stay_below_what_the_spool_and_the_server_take(
    tmp_path: Path, sign: str
) -> None:
    (tmp_path / "sources").mkdir()
    (tmp_path / "run.json").write_text('{"run_id": "r"}')
    own = AgentEvents(tmp_path, "n", 2**28, pytest.fail)
    frames = [f'  File "/me/{sign * 9_000}{rank}.py", line 3 in f\n{WAITS}' for rank in range(64)]
    for event in stack_events("d1", [look(rank, text(rank, frames=frames[rank])) for rank in range(64)]):
        own.event("stacks", 3, event)
    own.close()
    store = stored(tmp_path)
    for frame in store.frames:
        check_frame(frame)
    told = read([event.data for event in store.events("stacks", None)])
    same = [plain(text(rank, frames=frames[rank])).replace("\ud800", "?") for rank in range(64)]
    assert [rank["stack"] for rank in told] == same


def test_a_node_of_a_job_of_2048_ranks_tells_its_groups_in_little() -> None:
    groups = [{"name": "0", "desc": "world", "ranks": list(range(2_048)), "enqueued": 9, "started": 9, "completed": 8}]
    looks = []
    for rank in range(8):
        mine = {**groups[0], "name": f"1-{rank}", "ranks": list(range(rank, 2_048, 8))}
        looks.append(look(rank, text(rank), collectives={"pgs": [*groups, mine], "active": []}))
    (event,) = stack_events("d1", looks)
    assert len(json.dumps(event)) < 4_000
    assert [len(group["ranks"]) for rank in read([event]) for group in rank["collectives"]["pgs"]] == [2_048, 256] * 8


def test_what_a_ranks_file_says_in_another_shape_travels_as_it_is() -> None:
    odd: list[Any] = [{"pgs": 3}, {"pgs": [3, None, {"ranks": ["x", True]}]}, {"pgs": [{"ranks": [1, [2]]}], "x": {}}]
    deep: Any = "end"
    for _ in range(500):
        deep = [deep]
    events = stack_events("d1", [look(at, text(at), collectives=said) for at, said in enumerate([*odd, {"pgs": deep}])])
    assert [rank["rank"] for rank in read(events)] == [0, 1, 2, 3]
