"""How a rank ended: told within an instant, with the cause and what it rests on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stabilityclient.agent.sources import Source
from stabilityclient.agent.watch.deaths import DeathWatch, OomCounters, counter_file
from stabilityclient.agent.watch.exits import exit_status, has_ended, open_process, send_signal
from stabilityclient.rank_state.slot import STATE_EXCEPTION, STATE_LEFT, STATE_RUNNING, Slot
from stabilityclient.start import start_ticks
from stabilityclient.wire import SourceInfo
from support.agent.gateway import Gateway
from support.agent.small_job import SmallJob
from support.waiting import wait_until

#: What a rank does -> (cause, signal, exit code).
_ENDS = {
    "os.kill(os.getpid(), 9)": ("signal", 9, None),
    "os.kill(os.getpid(), 15)": ("signal", 15, None),
    "import ctypes; ctypes.string_at(0)": ("crash", 11, None),
    "os.abort()": ("crash", 6, None),
    "os._exit(7)": ("exit_code", None, 7),
    "sys.exit(3)": ("exit_code", None, 3),
    "raise ValueError('bad batch')": ("exception", None, 1),
    "os.kill(os.getpid(), 2); time.sleep(60)": ("signal", 2, None),
}
_GOOD_ENDS = ("os._exit(0)", "pass", "run.finish(timeout_s=0); os.kill(os.getpid(), 9)")


def test_every_end_is_told_soon_with_its_cause_and_a_good_one_is_not(agents: Path) -> None:
    codes = [*_ENDS, *_GOOD_ENDS]
    with Gateway() as gateway, SmallJob(agents, gateway, len(codes) + 1) as job:
        for rank, code in enumerate(codes):
            job.do(rank, code)
        for process in job.ranks[:-1]:
            process.wait(60)
        ended = time.time()
        events = job.wait_events("process_death", len(_ENDS))
        assert max(event.time for event in events) < ended + 3.0  # 30 ms on a machine that has nothing else to do
        deaths = {event.data["rank"]: event.data for event in events}
        found = {codes[rank]: (d["cause"], d["signal"], d["exit_code"]) for rank, d in deaths.items()}
        assert found == _ENDS
        assert {death["how"] for death in deaths.values()} <= {"pidfd", "zombie"}
        assert all(event.step == 3 for event in events)
        crash = deaths[2]
        assert crash["fatal"].startswith("Fatal Python error: Segmentation fault")
        assert "string_at" in crash["fatal"]
        assert deaths[6]["evidence"]["exception"] == "ValueError: bad batch"
        assert "SIGKILL from outside" in deaths[0]["evidence"]["text"]
        left = job.wait_health(lambda ranks, state: ranks[len(_ENDS)], "the rank that left with 0")
        assert (left["alive"], left["state"]) == (False, "left")
        assert len(gateway.store.events("process_death", None)) == len(_ENDS)


#: A rank whose main thread is gone while another one lives on: its process is still to end, with code 5.
_ENDS_SLOWLY = """
import ctypes, platform, threading
number = 60 if platform.machine() == "x86_64" else 93  # exit() of one thread, in Linux's numbers
threading.Thread(target=lambda: (time.sleep(0.7), os._exit(5))).start()
ctypes.CDLL(None).syscall(number, 0)
"""


def test_an_agent_with_nothing_left_to_deliver_stays_for_the_end_of_a_process_that_takes_a_while(agents: Path) -> None:
    with Gateway() as gateway, SmallJob(agents, gateway, 1) as job:
        wait_until(lambda: gateway.store.steps(0) == [1, 2, 3], 10, "all is delivered")
        job.do(0, _ENDS_SLOWLY)
        (death,) = job.wait_events("process_death", 1)
        assert (death.data["cause"], death.data["exit_code"]) == ("exit_code", 5)


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A memory control group of 96 MiB, v1 or v2, where the machine lets us make one."""
    found = _memory_root()
    if found is None:
        pytest.skip("no memory control group can be made here (needs root)")
    group = found / f"stability-test-{os.getpid()}"
    group.mkdir()
    limit = "memory.max" if (group / "memory.max").exists() else "memory.limit_in_bytes"
    (group / limit).write_text(str(96 * 2**20))
    yield group
    wait_until(lambda: not (group / "cgroup.procs").read_text(), 10, "the group is empty")
    group.rmdir()


def _memory_root() -> Path | None:
    for root in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
        probe = root / f"stability-probe-{os.getpid()}"
        try:
            probe.mkdir()
        except OSError:
            continue
        names = os.listdir(probe)
        probe.rmdir()
        if "memory.max" in names or "memory.limit_in_bytes" in names:
            return root
    return None


@pytest.mark.parametrize("kernel_log", ["readable", "hidden"])
def test_a_rank_that_the_kernel_kills_for_memory_is_told_as_that(
    agents: Path, small_group: Path, kernel_log: str
) -> None:
    hidden = {"STABILITY_KMSG": str(agents / "none")} if kernel_log == "hidden" else {}
    if kernel_log == "readable" and not os.access("/dev/kmsg", os.R_OK):
        pytest.skip("the kernel log can't be read here")

    def enter() -> None:
        (small_group / "cgroup.procs").write_text("0")

    with Gateway() as gateway, SmallJob(agents, gateway, 2, environ=hidden, before={1: enter}) as job:
        # The agent is rank 0's child and lives in another group.
        job.do(1, "kept = []\nwhile True: kept.append(b'x' * 2**22)")
        job.ranks[1].wait(60)
        (death,) = job.wait_events("process_death", 1)
        assert (death.data["cause"], death.data["signal"], death.data["rank"]) == ("oom_kill", 9, 1)
        source = death.data["oom"]["source"]
        if kernel_log == "hidden":
            assert (source, death.data["oom"]["kills"]) == ("cgroup", 1)
            assert death.data["oom"]["counter"].startswith(str(small_group))
            blind = job.wait_health(lambda ranks, state: state["blind"], "what can't be seen")
            assert [entry["what"] for entry in blind if "none" in entry["why"]] == ["kernel_log"]
        else:
            assert source in ("kernel log", "cgroup")  # in a container the log's pids are not ours


#: /proc/<pid>/cgroup, the fields of mountinfo that matter, and the file that counts.
_LAYOUTS: dict[str, tuple[str, str, str]] = {
    "v1": ("4:memory:/job", "/ {mount} - cgroup cgroup rw,memory", "job/memory.oom_control"),
    "v1 in docker": (
        "4:memory:/docker/abc",
        "/docker/abc {mount} - cgroup cgroup rw,memory",
        "memory.oom_control",
    ),
    "v1 with a task below": (
        "4:memory:/docker/abc/task_0",
        "/docker/abc {mount} - cgroup cgroup rw,memory",
        "task_0/memory.oom_control",
    ),
    "v2": ("0::/job/step_0", "/ {mount} - cgroup2 cgroup2 rw", "job/step_0/memory.events.local"),
    "v2 before Linux 5.2": ("0::/job", "/ {mount} - cgroup2 cgroup2 rw", "job/memory.events"),
    "v2 with a namespace, as in Kubernetes": ("0::/", "/ {mount} - cgroup2 cgroup2 rw", "memory.events.local"),
    "v2 of the host's tree": (
        "0::/kubepods.slice/pod1/abc",
        "/kubepods.slice/pod1/abc {mount} - cgroup2 cgroup2 rw",
        "memory.events.local",
    ),
}


@pytest.mark.parametrize("layout", _LAYOUTS)
def test_the_counter_of_a_ranks_own_group_is_found(layout: str, tmp_path: Path) -> None:
    group, mount, file = _LAYOUTS[layout]
    root = tmp_path / "cgroup fs"
    counter = root / file
    counter.parent.mkdir(parents=True)
    counter.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(f"9:name=systemd:/\n{group}\n")
    (tmp_path / "self").mkdir()
    line = mount.format(mount=str(root).replace(" ", "\\040"))
    (tmp_path / "self" / "mountinfo").write_text(f"31 23 0:28 / /sys rw - tmpfs tmpfs rw\n35 31 0:32 {line}\n")
    assert counter_file(7, tmp_path) == str(counter)
    assert counter_file(8, tmp_path) is None


def _counters(tmp_path: Path, clock: list[float]) -> tuple[OomCounters, Callable[[int], None]]:
    file = tmp_path / "memory.events"
    file.write_text("oom_kill 5\n")
    counters = OomCounters(lambda pid: str(file), lambda: clock[0])

    def kill(number: int) -> None:
        file.write_text(f"oom_kill {number}\n")

    return counters, kill


def test_each_kill_of_a_group_explains_one_death_and_only_for_a_while(tmp_path: Path) -> None:
    clock = [0.0]
    counters, kill = _counters(tmp_path, clock)
    for pid in (1, 2, 3):
        counters.follow(pid)
    counters.poll()
    assert counters.kill_of(1) is None
    kill(7)
    counters.poll()
    assert [counters.kill_of(pid) is not None for pid in (1, 2, 3)] == [True, True, False]
    kill(8)
    counters.poll()
    clock[0] += 60
    counters.poll()
    assert counters.kill_of(3) is None


def _source(tmp_path: Path, pid: int, ticks: int, state: int, text: str = "") -> Source:
    slot = Slot(str(tmp_path / "slot"), pid=pid, rank=0, world_size=1, started=1.0)
    slot.set_state(state, text)
    slot.close()
    source = Source(tmp_path, SourceInfo("r0-1-1", rank=0, pid=pid), ticks)
    source.observe()
    return source


@pytest.mark.parametrize("state", [STATE_RUNNING, STATE_EXCEPTION, STATE_LEFT])
def test_an_end_that_nobody_saw_is_told_by_what_the_slot_says(tmp_path: Path, state: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    ticks = start_ticks(process.pid)
    process.wait()
    source = _source(tmp_path, process.pid, ticks, state, "ValueError: x" if state == STATE_EXCEPTION else "")
    watch = DeathWatch()
    assert watch.follow(source) is None  # it is gone already
    reported = watch.reported(source)
    assert reported is not None
    data: dict[str, Any] | None = reported[0]
    if state == STATE_LEFT:
        assert data is None
    else:
        assert data is not None
        assert (data["cause"], data["how"]) == ("unknown" if state == STATE_RUNNING else "exception", "slot")


def test_a_kill_for_memory_of_a_child_is_not_the_end_of_a_rank_that_said_how_it_left(tmp_path: Path) -> None:
    counters, kill = _counters(tmp_path, [0.0])
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ticks = start_ticks(process.pid)
    source = _source(tmp_path, process.pid, ticks, STATE_EXCEPTION, "RuntimeError: DataLoader worker was killed")
    counters.follow(process.pid)
    kill(6)  # a data loader's worker in the same group
    process.communicate(b"\n")
    source.observe()
    reported = DeathWatch(counters).reported(source)
    assert reported is not None
    assert reported[0] is not None
    assert (reported[0]["cause"], reported[0]["oom"], reported[1].how) == ("exception", None, "none")


@pytest.mark.parametrize("python", ["new", "built on an old Linux"])
def test_a_handle_of_a_process_means_no_later_one_of_the_same_pid(python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if python != "new":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
        monkeypatch.delattr(signal, "pidfd_send_signal", raising=False)
    process = subprocess.Popen(["sleep", "60"])
    try:
        assert open_process(process.pid, start_ticks(process.pid) + 1) is None
        fd = open_process(process.pid, start_ticks(process.pid))
        assert fd is not None
        assert not has_ended(fd)
        send_signal(fd, signal.SIGTERM)
        wait_until(lambda: has_ended(fd), 5, "the end is seen")
        assert exit_status(fd, process.pid, 0)[:3] == (15, None, "zombie")
        process.wait()
        status = exit_status(fd, process.pid, 0)
        with pytest.raises(ProcessLookupError):
            send_signal(fd, signal.SIGTERM)
        os.close(fd)
        assert open_process(process.pid, 0) is None
        # Before Linux 6.15 the kernel has forgotten it by now, and we say so.
        assert status[:3] == (15, None, "pidfd") or (status.how, "Linux < 6.15" in status.why) == ("none", True)
    finally:
        process.kill()
        process.wait()
