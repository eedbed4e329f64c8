"""A restart ends the ranks it was decided on, after the plan is on the disk, and never those that came up since."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stabilityclient.agent.commands.agent_commands import CommandToRun
from stabilityclient.agent.commands.restart import Restarter
from stabilityclient.agent.sources import Sources
from stabilityclient.rank_state.slot import Slot
from stabilityclient.start import start_ticks

#: Stands still with SIGTERM held off, as a rank that hangs with the interpreter's lock held.
_DEAF = "import signal, time; signal.signal(15, lambda *_: None); print('up', flush=True)\nwhile True: time.sleep(60)"
_PLAIN = "import time; print('up', flush=True); time.sleep(600)"
_STARTED = 0x18F0_0000_0000_0000

Begin = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Starts a process and makes it a rank of the run folder."""
    processes: list[subprocess.Popen[str]] = []

    def start(rank: int, code: str = _PLAIN, *, started_ns: int = _STARTED, segment: str = "") -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        source = f"r{rank}-{started_ns:x}-{process.pid}"
        home = tmp_path / "sources" / source
        home.mkdir(parents=True)
        slot = Slot(str(home / "slot"), pid=process.pid, rank=rank, world_size=2, started=started_ns / 1e9)
        slot.set_segment(segment)
        slot.close()
        info = {"source": source, "rank": rank, "world_size": 2, "local_rank": rank, "node": "n0", "pid": process.pid}
        info |= {"started": started_ns / 1e9, "start_ticks": start_ticks(process.pid)}
        (home / "source.json").write_text(json.dumps(info))
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def _command(**more: Any) -> dict[str, Any]:
    plan = {"version": 1, "run_id": "r", "written": 5.0, "action": "relaunch", "checkpoint": None}
    fence = {"segment": 0, "segment_key": "", "starts": {"n0": f"{_STARTED:x}"}}
    return {"command_id": "c-1", "kind": "restart", "plan": plan, "fence": fence, "grace_s": 10.0} | more


def _carry_out(folder: Path, command: dict[str, Any]) -> tuple[str, str]:
    given, over = msgspec.convert(command, CommandToRun), bool(command.get("over"))
    return asyncio.run(Restarter(folder, "n0", Sources(folder), now=lambda: 7.0).carry_out(given, over))


def test_the_plan_is_on_the_disk_and_all_ranks_are_ended(tmp_path: Path, begin: Begin) -> None:
    ranks = [begin(0), begin(1)]
    state, detail = _carry_out(tmp_path, _command())
    assert (state, detail[:40]) == ("acted", "the plan is written, 2 ranks are ended i")
    assert [rank.wait(60) for rank in ranks] == [-signal.SIGTERM, -signal.SIGTERM]
    assert json.loads((tmp_path / "plan.json").read_text()) == _command()["plan"] | {"received": 7.0}


def test_a_rank_that_does_not_listen_or_is_stopped_is_ended_all_the_same(tmp_path: Path, begin: Begin) -> None:
    deaf, stopped = begin(0, _DEAF), begin(1)
    os.kill(stopped.pid, signal.SIGSTOP)
    state, detail = _carry_out(tmp_path, _command(grace_s=0.2))
    assert (state, detail.split("; ")[1]) == ("acted", "rank 0 only by SIGKILL after 0.2 s")
    assert (deaf.wait(60), stopped.wait(60)) == (-signal.SIGKILL, -signal.SIGTERM)


def test_several_ranks_that_do_not_listen_are_told_as_several_and_one_as_one(tmp_path: Path, begin: Begin) -> None:
    deaf = [begin(0, _DEAF), begin(1, _DEAF)]
    detail = _carry_out(tmp_path, _command(grace_s=0.2))[1]
    assert "2 ranks are ended in" in detail
    assert detail.split("; ")[1] == "ranks 0, 1 only by SIGKILL after 0.2 s"
    assert [rank.wait(60) for rank in deaf] == [-signal.SIGKILL, -signal.SIGKILL]
    begin(2)
    assert "1 rank is ended in" in _carry_out(tmp_path, _command(command_id="c-2"))[1]


@pytest.mark.parametrize(
    ("started_ns", "segment", "change", "why"),
    [
        (_STARTED + 1, "", {}, "started after it was decided"),
        (_STARTED, "c-old", {}, "decided on segment ''"),
        (_STARTED, "", {"fence": {"segment_key": "", "starts": {"n1": "ff"}}}, "without knowing the ranks of n0"),
        (_STARTED, "", {"plan": None}, "no plan of version 1"),
        (_STARTED, "", {"plan": {"version": 2}}, "no plan of version 1"),
    ],
    ids=["a later job", "another segment", "an unknown node", "no plan", "another version"],
)
def test_an_order_for_other_processes_ends_nobody_and_says_why(
    tmp_path: Path, begin: Begin, started_ns: int, segment: str, change: dict[str, Any], why: str
) -> None:
    rank = begin(0, started_ns=started_ns, segment=segment)
    state, detail = _carry_out(tmp_path, _command(**change))
    assert (state, why in detail, rank.poll()) == ("failed", True, None)
    assert not (tmp_path / "plan.json").exists()


def test_of_two_jobs_with_one_run_id_none_is_ended(tmp_path: Path, begin: Begin) -> None:
    ranks = [begin(0), begin(0)]
    restart = Restarter(tmp_path, "n0", Sources(tmp_path), now=lambda: _STARTED / 1e9 + 60)
    state, detail = asyncio.run(restart.carry_out(msgspec.convert(_command(), CommandToRun)))
    assert (state, "rank 0 has 2 living processes" in detail) == ("failed", True)
    assert [rank.poll() for rank in ranks] == [None, None]


def test_a_disk_that_takes_no_plan_ends_nobody(tmp_path: Path, begin: Begin) -> None:
    rank = begin(0)
    (tmp_path / "plan.json").mkdir()  # what root can't write either
    state, detail = _carry_out(tmp_path, _command())
    assert (state, "no rank was ended here" in detail, rank.poll()) == ("failed", True, None)


def test_an_agent_that_was_killed_after_the_plan_leaves_the_rest_to_the_next_one(tmp_path: Path, begin: Begin) -> None:
    gone, there = begin(0), begin(1)
    gone.kill()
    gone.wait(60)
    (tmp_path / "plan.json").write_text("{}")
    assert _carry_out(tmp_path, _command())[0] == "acted"
    assert there.wait(60) == -signal.SIGTERM
    assert _carry_out(tmp_path, _command()) == ("acted", "no rank is alive here; the plan is written")


def _planned(folder: Path) -> dict[str, Any]:
    """Leave the plan of an agent that was killed after it was written; return its order."""
    command = _command()
    command["plan"] |= {"command_id": "c-1"}
    (folder / "plan.json").write_text(json.dumps(command["plan"] | {"received": 3.0}))
    return command | {"begun": 1}


def test_of_an_order_that_is_too_late_it_is_told_who_was_left_and_nobody_is_ended(tmp_path: Path, begin: Begin) -> None:
    left = begin(1)
    state, detail = _carry_out(tmp_path, _planned(tmp_path) | {"over": True})
    assert (state, f"rank 1 (pid {left.pid}) of those" in detail, left.poll()) == ("failed", True, None)


def test_without_its_plan_on_the_disk_an_order_that_is_too_late_has_ended_nobody(tmp_path: Path, begin: Begin) -> None:
    begin(1)
    state, detail = _carry_out(tmp_path, _command(over=True))
    assert (state, "no rank was ended here" in detail) == ("failed", True)
    assert not (tmp_path / "plan.json").exists()


def test_beside_ranks_that_came_up_since_none_of_the_old_ones_is_ended(tmp_path: Path, begin: Begin) -> None:
    ranks = [begin(0), begin(1, started_ns=_STARTED + 5)]
    state, detail = _carry_out(tmp_path, _planned(tmp_path))
    assert (state, "started after it was decided" in detail) == ("failed", True)
    assert [rank.poll() for rank in ranks] == [None, None]


def test_a_plan_is_not_written_again_by_the_agent_that_goes_on(tmp_path: Path, begin: Begin) -> None:
    rank = begin(0)
    assert _carry_out(tmp_path, _planned(tmp_path))[0] == "acted"
    assert (rank.wait(60), json.loads((tmp_path / "plan.json").read_text())["received"]) == (-signal.SIGTERM, 3.0)


def test_the_agent_knows_which_ends_were_ordered(tmp_path: Path, begin: Begin) -> None:
    begin(0)
    sources = Sources(tmp_path)
    restart = Restarter(tmp_path, "n0", sources, now=time.time)
    asyncio.run(restart.carry_out(msgspec.convert(_command(), CommandToRun)))
    (source,) = sources.ranks()
    assert restart.ordered_end(source) == "c-1"
