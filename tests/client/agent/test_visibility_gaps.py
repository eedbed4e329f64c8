"""What can't be seen on a node is named with a reason, and nothing else is affected."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stabilityclient.agent.sources import Source
from stabilityclient.agent.watch.node_health import ClockWatch
from stabilityclient.agent.watch.visibility_gaps import (
    DUPLICATE_S,
    MAX_NAMED,
    SpoolDisk,
    duplicate_ranks,
    grouped,
    rank_gaps,
)
from stabilityclient.rank_state.slot import SLOT_BYTES, STATE_FINISHED, STATE_LEFT, STATE_RUNNING, SlotView
from stabilityclient.start import start_ticks
from stabilityclient.wire import SourceInfo
from support.agent.gateway import Gateway
from support.agent.small_job import SmallJob
from support.waiting import wait_until

#: Goes on with a step each 20 ms.
_STEPS = "for step in run.steps(4): run.log(step, {'loss': 1.0}); time.sleep(0.02)"


def _of(blind: list[dict[str, str]], what: str) -> list[str]:
    assert all(set(entry) == {"what", "why", "do"} and entry["why"] and entry["do"] for entry in blind)
    return [entry["why"] for entry in blind if entry["what"] == what]


def _goes_on(job: SmallJob, rank: int) -> None:
    last = job.gateway.store.steps(rank)[-1]
    wait_until(lambda: job.gateway.store.steps(rank)[-1] > last, 20, f"points of rank {rank} still come")


def test_slots_that_make_no_sense_are_named_and_all_points_arrive(agents: Path) -> None:
    with Gateway() as gateway, SmallJob(agents, gateway, 4) as job:
        for rank in range(4):
            job.do(rank, _STEPS)
        with open(job.slot_file(0), "r+b") as slot:  # an older or newer client
            slot.seek(8)
            slot.write(struct.pack("<I", 99))
        with open(job.slot_file(1), "r+b") as slot:
            slot.write(os.urandom(64))
        os.unlink(job.slot_file(2))

        def told(ranks: dict[int, dict[str, Any]], state: dict[str, Any]) -> Any:
            return (ranks, state) if all(ranks[rank]["trouble"] for rank in range(3)) else None

        ranks, state = job.wait_health(told, "three slots are in trouble")
        assert "version 99" in ranks[0]["trouble"]
        assert all("step" not in ranks[rank] and ranks[rank]["alive"] for rank in range(3))
        assert (ranks[3]["trouble"], ranks[3]["state"], ranks[3]["can_dump"]) == (None, "running", True)
        assert len(_of(state["blind"], "slot")) == 3
        for rank in range(4):
            _goes_on(job, rank)
        job.ranks[0].kill()
        (death,) = job.wait_events("process_death", 1)
        assert (death.data["rank"], death.data["cause"]) == (0, "signal")


def test_two_jobs_with_one_run_id_are_named_with_both_pids(agents: Path) -> None:
    with Gateway() as gateway, SmallJob(agents, gateway, 1) as job:
        other = subprocess.Popen(["sleep", "60"])
        try:
            now = time.time()
            for name, pid in (("r0-1-1", other.pid), ("r0-2-2", job.ranks[0].pid)):
                folder = job.folder / "sources" / name
                folder.mkdir()
                facts = {"source": name, "rank": 0, "node": "n", "pid": pid, "started": now - 60}
                facts["start_ticks"] = start_ticks(pid)
                (folder / "source.json").write_text(json.dumps(facts))
            (why,) = job.wait_health(lambda ranks, state: _of(state["blind"], "twins"), "both are named")
            assert f"{other.pid}" in why
            assert f"{job.ranks[0].pid}" in why
        finally:
            other.kill()
            other.wait()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 8 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here (needs root)")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def _fill(path: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        path.write_bytes(bytes(16 * 2**20))


def test_a_full_disk_is_named_and_what_lies_there_is_delivered(small_disk: Path) -> None:
    with Gateway() as gateway, SmallJob(small_disk, gateway, 2) as job:
        filler = small_disk / "filler"
        _fill(filler)
        why = job.wait_health(lambda ranks, state: _of(state["blind"], "spool"), "the full disk is named")
        assert "disk is full" in why[0]
        job.do(1, _STEPS)
        _goes_on(job, 1)  # there is room in its chunk
        job.ranks[0].kill()
        (death,) = job.wait_events("process_death", 1)  # and in that of the agent
        assert death.data["cause"] == "signal"
        gateway.send({"command_id": "d1", "kind": "dump_stacks", "state": "pending", "expires": time.time() + 15})
        (look,) = job.wait_looks("d1", 1)
        assert look["stack"] is None or "run.steps" in look["stack"] or look["stack_missing"]
        filler.unlink()
        job.wait_health(lambda ranks, state: not _of(state["blind"], "spool"), "the disk has room again")
        agent = job.agent_pid()
        job.ranks[1].kill()
        wait_until(lambda: not Path(f"/proc/{agent}").exists(), 20, "the agent has delivered all and left")


def test_a_disk_that_becomes_read_only_is_named_and_what_lies_there_is_delivered(small_disk: Path) -> None:
    with Gateway() as gateway, SmallJob(small_disk, gateway, 1) as job:
        gateway.drop_connections()
        agent = job.agent_pid()
        job.ranks[0].kill()
        os.kill(agent, signal.SIGKILL)
        remount = ["mount", "-o", "remount,ro", str(small_disk)]
        wait_until(  # refused while somebody could write
            lambda: subprocess.run(remount, capture_output=True, check=False).returncode == 0, 10, "it is read-only"
        )
        environ = dict(os.environ) | {"STABILITY_URL": gateway.url, "STABILITY_DRAIN_S": "1"}
        heard = len(gateway.healths)
        again = subprocess.run(
            [sys.executable, "-m", "stabilityclient.agent", str(job.folder)],
            env=environ,
            capture_output=True,
            check=False,
        )
        assert b"Traceback" not in again.stderr, again.stderr.decode()
        assert gateway.store.steps(0) == [1, 2, 3]
        assert "read-only" in _of(gateway.healths[heard].agent_state["blind"], "spool")[0]


def _give_up_kill() -> None:
    """Whoever is started from here on may not signal processes of other users, not even as root."""
    if ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_KILL, 0, 0, 0):
        raise OSError("the capability can't be given up")


_PR_CAPBSET_DROP, _CAP_KILL = 24, 5  # linux/prctl.h, linux/capability.h


def test_without_permission_for_signals_the_rest_is_told_and_the_job_goes_on(agents: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("another user can't be taken on here (needs root)")
    with Gateway() as gateway, SmallJob(agents, gateway, 2, before={0: _give_up_kill}) as job:
        job.do(0, _STEPS)
        job.do(1, f"os.setuid(65534)\n{_STEPS}")
        why = job.wait_health(lambda ranks, state: _of(state["blind"], "signals"), "the missing permission is named")
        assert why == ["rank 1: the agent may not signal the process: operation not permitted"]
        gateway.send({"command_id": "d1", "kind": "dump_stacks", "state": "pending", "expires": time.time() + 15})
        first, second = job.wait_looks("d1", 2)
        assert (first["stack_missing"], "<string>" in first["stack"]) == (None, True)
        assert (second["stack"], "may not signal" in second["stack_missing"]) == (None, True)
        assert second["proc"]["state"] in "RS"
        _goes_on(job, 1)
        job.ranks[1].kill()
        (death,) = job.wait_events("process_death", 1)
        assert (death.data["rank"], death.data["signal"]) == (1, 9)


def test_a_jump_of_the_clock_is_told_once() -> None:
    wall, steady = [1000.0], [50.0]
    clock = ClockWatch(lambda: wall[0], lambda: steady[0])
    wall[0], steady[0] = 1001.0, 51.0
    assert clock.step_s() == 0.0
    wall[0], steady[0] = 902.0, 52.0
    assert clock.step_s() == -100.0
    wall[0], steady[0] = 903.2, 53.0  # slewed
    assert clock.step_s() == 0.0


def _process(rank: int, pid: int, started: float) -> Source:
    return Source(Path("none"), SourceInfo(f"r{rank}-{pid}", rank=rank, pid=pid, started=started), 0)


def test_a_restart_in_which_one_process_follows_the_other_is_no_second_job() -> None:
    both = [_process(0, 1, 0.0), _process(0, 2, 100.0), _process(1, 3, 0.0)]
    assert duplicate_ranks([_process(0, 1, 0.0), _process(0, 1, 1.0)], 200.0) == []  # init() called twice
    assert duplicate_ranks(both, 100.0 + DUPLICATE_S / 2) == []
    assert [entry.why.startswith("rank 0 has 2 living") for entry in duplicate_ranks(both, 101.0 + DUPLICATE_S)] == [
        True
    ]


@pytest.mark.parametrize(
    ("state", "told"), [(STATE_RUNNING, ["rank 0: goodbye"]), (STATE_FINISHED, []), (STATE_LEFT, [])]
)
def test_that_a_rank_which_is_leaving_writes_no_stacks_is_no_trouble(state: int, told: list[str]) -> None:
    rank = _process(0, 1, 0.0)
    rank.slot = SlotView(bytes(SLOT_BYTES))
    rank.slot.state = state
    assert [entry.why for entry in rank_gaps([rank], lambda source: "goodbye")] == told


def test_ranks_with_one_trouble_are_one_entry() -> None:
    sources = [_process(rank, rank, 0.0) for rank in range(MAX_NAMED + 3)]
    found = grouped("slot", [(source, "torn" if source.info.rank else "cut") for source in sources], "restart")
    assert [entry.why for entry in found] == ["rank 0: cut", "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 2 more: torn"]


def test_records_that_are_dropped_are_a_trouble_for_a_minute(tmp_path: Path) -> None:
    now = [0.0]
    disk = SpoolDisk(tmp_path, 2**30, lambda: now[0])
    assert disk.state(0, "").error is None
    state = disk.state(7, "")
    assert (state.dropped, state.limit_mib, "dropped" in (state.error or "")) == (7, 1024.0, True)
    now[0] += 61
    assert disk.state(7, "").error is None
    assert disk.state(7, "no room").error == "no room"
    gone = SpoolDisk(tmp_path / "gone", 1, lambda: now[0]).state(0, "")
    assert "can't be read" in (gone.error or "")
