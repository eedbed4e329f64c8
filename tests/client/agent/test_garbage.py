"""Whatever lies in a run folder, the agent neither ends nor waits for it, and says what it can't use."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from stabilitybackend.ingest.connection import check_frame
from stabilityclient.agent.agent_events import AgentEvents
from stabilityclient.agent.commands.agent_commands import CommandToRun, ProcessFence
from stabilityclient.agent.commands.restart import Restarter
from stabilityclient.agent.service import AgentService
from stabilityclient.agent.sources import Source, Sources
from stabilityclient.agent.watch.deaths import DeathWatch, fatal_text
from stabilityclient.agent.watch.dump_signal import dump_signal_trouble
from stabilityclient.agent.watch.visibility_gaps import source_gaps
from stabilityclient.rank_state.slot import CLAIM_STEPS, FLAG_PENDING, STATE_FINISHED, STATE_RUNNING, Slot
from stabilityclient.start import start_ticks
from support.agent.spooled import stored


def _rank(run_folder: Path, pid: int, started: int = 1, **facts: Any) -> Path:
    """Make a source of rank 0 and return its folder."""
    name = f"r0-{started}-{pid}"
    home = run_folder / "sources" / name
    home.mkdir(parents=True)
    info = {"source": name, "rank": 0, "node": "n", "pid": pid, "started": started, "start_ticks": start_ticks(pid)}
    (home / "source.json").write_text(json.dumps(info | facts))
    return home


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run folder without sources."""
    (tmp_path / "agent").mkdir()
    (tmp_path / "run.json").write_text('{"run_id": "r"}')
    return tmp_path


def _only(run_folder: Path) -> Source:
    sources = Sources(run_folder)
    (source,) = sources.discover()
    return source


def _facts(**facts: Any) -> Callable[[Path], object]:
    good = {"source": "bad", "rank": 0, "node": "n", "pid": 7, "started": 1.0}
    return lambda path: path.write_text(json.dumps(good | facts))


_NO_SOURCES: dict[str, Callable[[Path], object]] = {
    "another name": _facts(source="r9-1-1"),
    "a pid of nobody": _facts(pid=-1),
    "a pid of all": _facts(pid=0),
    "a rank below 0": _facts(rank=-4),
    "a start that is no time": _facts(started=float("nan")),
    "text": _facts(pid="7"),
    "no object": lambda path: path.write_bytes(b"[1]"),
    "nested": lambda path: path.write_bytes(b"[" * 200_000),
    "bytes": lambda path: path.write_bytes(bytes(range(256))),
    "huge": lambda path: (path.touch(), os.truncate(path, 2**40)),
    "a folder": lambda path: path.mkdir(),
    "a fifo": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("garbage", _NO_SOURCES)
def test_a_folder_that_is_no_source_is_named_and_the_others_are_found(tmp_path: Path, garbage: str) -> None:
    _rank(tmp_path, os.getpid())
    (tmp_path / "sources" / "bad").mkdir()
    _NO_SOURCES[garbage](tmp_path / "sources" / "bad" / "source.json")
    (tmp_path / "sources" / "lost+found").mkdir()
    sources = Sources(tmp_path)
    assert [source.info.pid for source in sources.discover()] == [os.getpid()]
    (spot,) = source_gaps(sources.broken)
    assert (spot.what, spot.why.startswith("sources/'bad': ")) == ("source", True)


@pytest.mark.parametrize("put", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_what_lies_in_place_of_a_ranks_files_makes_nobody_wait(tmp_path: Path, put: Callable[[Path], None]) -> None:
    home = _rank(tmp_path, os.getpid())
    put(home / "slot")
    put(home / "stacks")
    source = _only(tmp_path)
    source.observe()
    assert (source.alive, source.slot, bool(source.trouble)) == (True, None, True)
    assert fatal_text(source) is None


@pytest.mark.parametrize("ticks", [None, 0, "5", [1], 1e400])
def test_a_process_whose_start_is_not_known_gets_no_signal(tmp_path: Path, ticks: object) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        home = _rank(tmp_path, process.pid, start_ticks=ticks)
        slot = Slot(str(home / "slot"), pid=process.pid, rank=0, world_size=1, started=1.0)
        slot.dump_signal = 40  # would end it
        slot.write_probes()
        source = _only(tmp_path)
        source.observe()
        assert "start is not known" in dump_signal_trouble(source, send=True)
        assert process.poll() is None
        process.kill()


def test_an_event_that_the_server_would_refuse_is_made_one_that_it_takes(run_folder: Path) -> None:
    deep: Any = "end"
    for _ in range(50):
        deep = {"x": [deep]}
    own = AgentEvents(run_folder, "n", 2**25, pytest.fail)
    own.event("stacks", 2**60, {"stack": "\ud800" + "x" * 200_000 + "main", "deep": deep, "count": 2**80, 5: {1, 2}})
    own.event("stacks", 3, {"stack": "é" * 60_000, "more": ["x" * 60_000] * 3, "ok": float("nan")})
    own.close()
    store = stored(run_folder)
    for frame in store.frames:
        check_frame(frame)
    first, second = store.events("stacks", None)
    assert (first.step, first.data["stack"][-5:], first.data["count"]) == (None, "xmain", str(2**80)[:40])
    assert (second.step, len(second.data["stack"]), len(second.data["more"])) == (3, 15_000, 3)


def test_a_rank_in_another_container_lives_as_its_slot_says_and_is_never_touched(run_folder: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:  # has the same pid here
        home = _rank(run_folder, other.pid, pid_ns="pid:[1]", start_ticks=1)
        slot = Slot(str(home / "slot"), pid=other.pid, rank=0, world_size=1, started=1.0)
        slot.dump_signal = 40  # would end it
        slot.write_probes()
        source = _only(run_folder)
        source.observe()
        assert (source.alive, source.elsewhere) == (True, True)
        watch = DeathWatch()
        assert (watch.follow(source), watch.trouble) == (None, "")
        assert "another container" in dump_signal_trouble(source, send=True)
        plan = {"version": 1, "action": "relaunch"}
        command = CommandToRun("c", "restart", plan=plan, fence=ProcessFence(starts={"n": "1"}), grace_s=0.0)
        state, detail = asyncio.run(Restarter(run_folder, "n", Sources(run_folder), gone_s=0.1).carry_out(command))
        assert (state, "another container" in detail, other.poll()) == ("failed", True, None)
        slot.set_state(STATE_FINISHED)
        slot.close()
        source.observe()
        assert (source.alive, source.final) == (False, True)
        other.kill()


def test_a_damaged_cursor_keeps_no_agent_from_its_work(run_folder: Path) -> None:
    order = {"open": [{"command": {"command_id": [], "kind": {}}, "begun": "x"}], "taken": [[]]}
    checkpoints = [{}, 5, {"path": 1, "step": "x", "seen": 0}]
    for garbage in ({"checkpoints": checkpoints, "deaths": [[1]], "orders": order}, [1]):
        (run_folder / "agent" / "cursor.json").write_text(json.dumps(garbage))
        AgentService(run_folder, {"STABILITY_KMSG": str(run_folder / "none")})


def test_a_death_is_told_once_though_the_agent_is_killed_right_after(run_folder: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    _rank(run_folder, process.pid)
    process.wait()
    for _ in range(2):  # the second agent finds what the first one left behind, which never wrote anything later
        agent = AgentService(run_folder, {"STABILITY_KMSG": str(run_folder / "none")})
        agent._poll()
    assert len(stored(run_folder).events("process_death", None)) == 1


async def test_a_rank_that_the_hello_names_is_watched_before_the_next_look(run_folder: Path) -> None:
    home = _rank(run_folder, os.getpid())
    agent = AgentService(run_folder, {"STABILITY_KMSG": str(run_folder / "none")})
    assert [source.source for source in agent._hello().sources] == [home.name]
    source = agent._sources.get(home.name)
    assert source is not None
    assert source.pidfd is not None


def test_the_end_of_a_process_that_opened_the_run_twice_is_told_once(run_folder: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    for started in (1, 2):
        _rank(run_folder, process.pid, started)
    process.wait()
    AgentService(run_folder, {"STABILITY_KMSG": str(run_folder / "none")})._poll()
    (death,) = stored(run_folder).events("process_death", None)
    assert death.data["source"] == f"r0-2-{process.pid}"


def test_pending_calls_are_told_only_where_the_main_thread_runs_the_loop(tmp_path: Path) -> None:
    home = _rank(tmp_path, os.getpid())
    slot = Slot(str(home / "slot"), pid=os.getpid(), rank=0, world_size=1, started=1.0)
    slot.flags, slot.pending = FLAG_PENDING, 7
    slot.write_probes()
    source = _only(tmp_path)
    source.observe()
    assert source.slot is not None
    assert (source.slot.state, source.main_thread_pending) == (STATE_RUNNING, 7)
    thread = Thread(target=slot.claim, args=(CLAIM_STEPS,))  # as in a worker of Ray
    thread.start()
    thread.join()
    source.observe()
    assert source.main_thread_pending is None


def test_a_write_that_is_under_way_is_no_trouble_until_the_process_does_not_end_it(tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "60"])
    home = _rank(tmp_path, process.pid)
    slot = Slot(str(home / "slot"), pid=process.pid, rank=0, world_size=1, started=1.0)
    slot._pack_lock = lambda *_: None  # killed, or without a core, between the two stores of a step
    slot.set_step(7, 2.0)
    source = _only(tmp_path)
    troubles = []
    for _ in range(2):
        source.observe()
        troubles.append(source.trouble)
    process.kill()
    process.wait()
    source.observe()
    assert [trouble is None for trouble in troubles] == [True, False]
    assert (source.alive, source.trouble is not None) == (False, True)
    assert not source.over  # how it ended is still to be reported
