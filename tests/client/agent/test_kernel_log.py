"""The kernel's log: what its lines mean in the forms of kernels and drivers, and what is said where it is shut."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stabilityclient.agent.watch.kernel_lines import MAX_TEXT_CHARS, KernelMessage, LineReader, bus_key
from stabilityclient.agent.watch.kernel_log import MAX_BYTES, MAX_LINES, KernelLog

#: Unix time at which the machine of these tests booted; its log counts from here.
BOOT = 1_700_000_000.0


class Clock:
    """Wall clock and time since boot, moved by hand."""

    def __init__(self, uptime: float = 100.0) -> None:
        self.uptime = uptime

    def log(self, path: Path) -> KernelLog:
        return KernelLog(str(path), now=lambda: BOOT + self.uptime, uptime=lambda: self.uptime)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def device(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    path.write_bytes(b"")
    return path


def write(path: Path, *texts: str, at: float = 105.0) -> None:
    with open(path, "ab") as file:
        for text in texts:
            file.write(f"3,{file.tell()},{int(at * 1e6)},-;{text}\n".encode())


def meanings(*texts: str) -> list[KernelMessage]:
    reader = LineReader()
    lines = [reader.take(f"6,1,2500000,-;{text}") for text in texts]
    return [line for line in lines if line is not None]


@pytest.mark.parametrize(
    ("text", "bus_id", "xid"),
    [
        (
            "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            "0000:05:00",
            79,
        ),
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", "0000:03:00", 14),
        ("NVRM: Xid (PCI:0000:9B:00): 31, pid=12345, name=python, Ch 00000008, intr 10000000.", "0000:9b:00", 31),
        ("NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1", "0009:01:00", 154),
        ("NVRM: Xid (PCI:0000:04:00 GPU-I:05): 94, Contained: SM (0x1). RST: No, D-RST: No", "0000:04:00", 94),
        ("NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.", "0000:29:00", 79),
        (
            r"NVRM: The NVIDIA GPU 0000:18:00.0\x0aNVRM: (PCI ID: 10de:2901) installed in this system has\x0a"
            r"NVRM: fallen off the bus and is not responding to commands.",
            "0000:18:00",
            79,
        ),
    ],
)
def test_an_xid_is_read_in_every_form_of_the_driver(text: str, bus_id: str, xid: int) -> None:
    [line] = meanings(text)
    assert (line.what, line.bus_id, line.xid, line.time) == ("xid", bus_id, xid, 2.5)


def test_off_the_bus_in_three_records_names_the_gpu_of_the_first() -> None:
    [line] = meanings(
        "NVRM: The NVIDIA GPU 0000:18:00.0",
        "NVRM: (PCI ID: 10de:2901) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    )
    assert (line.what, line.bus_id, line.xid) == ("xid", "0000:18:00", 79)


def test_a_kill_for_memory_tells_process_and_whose_limit_it_was() -> None:
    assert meanings(
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=job,mems_allowed=0,oom_memcg=/job,task_memcg=/job/a,"
        "task=pt_data (w) 3,pid=4242,uid=0",
        "Memory cgroup out of memory: Killed process 4242 (pt_data (w) 3) total-vm:9kB, anon-rss:8kB, file-rss:0",
        "oom_reaper: reaped process 4242 (pt_data (w) 3), now anon-rss:0kB",
        "Out of memory: Killed process 7 (python) total-vm:1kB, anon-rss:1kB, file-rss:0kB",
        "Out of memory: Kill process 8 (python3) score 917 or sacrifice child",
    ) == [
        KernelMessage(
            "oom",
            "Memory cgroup out of memory: Killed process 4242 (pt_data (w) 3) total-vm:9kB, anon-rss:8kB, file-rss:0",
            2.5,
            pid=4242,
            comm="pt_data (w) 3",
            scope="cgroup",
            cgroup="/job",
        ),
        KernelMessage(
            "oom",
            "Out of memory: Killed process 7 (python) total-vm:1kB, anon-rss:1kB, file-rss:0kB",
            2.5,
            pid=7,
            comm="python",
            scope="global",
        ),
        KernelMessage(
            "oom",
            "Out of memory: Kill process 8 (python3) score 917 or sacrifice child",
            2.5,
            pid=8,
            comm="python3",
            scope="global",
        ),
    ]


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("mce", "mce: [Hardware Error]: Machine check events logged"),
        ("mce", "{1}[Hardware Error]: event severity: corrected"),
        ("edac", "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0)"),
        ("link", "mlx5_core 0000:17:00.0 ib0: Link down"),
        ("link", "ixgbe 0000:3b:00.0 eth2: NIC Link is Down"),
        ("link", "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)"),
        ("link", "pcieport 0000:00:01.1: pciehp: Slot(0): Link Down"),
        ("link", "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:05:00.0"),
        ("io", "blk_update_request: I/O error, dev sda, sector 1234 op 0x0:(READ)"),
        ("io", "nfs: server 10.0.0.7 not responding, still trying"),
        ("io", "nvme nvme0: I/O 12 QID 3 timeout, aborting"),
        ("io", "EXT4-fs (vda): Remounting filesystem read-only"),
        ("hung_task", "INFO: task python:1234 blocked for more than 120 seconds."),
        ("hung_task", "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:1234]"),
    ],
)
def test_a_sick_node_is_told_by_its_kind(what: str, text: str) -> None:
    [line] = meanings(text)
    assert line.what == what
    assert line.text == text


@pytest.mark.parametrize(
    "text",
    [
        "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
        "mlx5_core 0000:17:00.0 eth0: Link up",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.65.06",
        "NVRM: Xid error: xyz, invalid data",
        "python[77]: segfault at 0 ip 00007f error 4 in libtorch.so",
        "EXT4-fs (vda): mounted filesystem r/w without journal. Quota mode: none.",
        "process_api (1): drop_caches: 10",
    ],
)
def test_daily_business_is_no_line_that_matters(text: str) -> None:
    assert meanings(text) == []


@pytest.mark.parametrize(
    "record", ["", ";", "NVRM: Xid (0000:03:00): 14, no header", "a,b,c,-;NVRM: Xid (0000:03:00): 14,"]
)
def test_what_is_no_record_is_passed_over(record: str) -> None:
    assert LineReader().take(record) is None


@pytest.mark.parametrize("text", ["00000000:05:00.0", "0000:05:00.0", "PCI:0000:05:00", "05:00.0", "0000:05:00"])
def test_one_bus_id_has_one_spelling(text: str) -> None:
    assert bus_key(text) == "0000:05:00"


def test_only_what_is_newer_than_the_reader_is_told_and_once(device: Path, clock: Clock) -> None:
    write(device, "NVRM: Xid (PCI:0000:05:00): 48, old", at=50.0)
    log = clock.log(device)
    clock.uptime = 106.0
    assert log.read() == []
    write(device, "NVRM: Xid (PCI:0000:05:00): 79, new", at=107.25)
    clock.uptime = 108.0
    [line] = log.read()
    assert (line.xid, line.time) == (79, BOOT + 107.25)
    assert log.read() == []


def test_a_log_whose_clock_drifted_gives_times_between_two_looks(device: Path, clock: Clock) -> None:
    log = clock.log(device)
    clock.uptime = 110.0
    write(device, "NVRM: Xid (PCI:0000:05:00): 79, fast clock", at=300.0)
    write(device, "NVRM: Xid (PCI:0000:05:00): 79, slow clock", at=3.0)
    assert [line.time for line in log.read()] == [BOOT + 110.0, BOOT + 100.0]


def test_continuation_lines_torn_writes_and_garbage_do_not_hide_the_next_record(device: Path, clock: Clock) -> None:
    log = clock.log(device)
    with open(device, "ab") as file:
        file.write(
            b"6,1,1,-;usb 1-1: new\n SUBSYSTEM=usb\n DEVICE=c189:1\n\xff\xfe\x00garbage\n3,2,1,-;NVRM: Xid (PCI:0"
        )
    assert log.read() == []
    with open(device, "ab") as file:
        file.write(b"000:05:00): 63, Row remapping\n SUBSYSTEM=pci\n DEVICE=+pci:0000:05:00.0\n")
    [line] = log.read()
    assert (line.xid, line.text) == (63, "NVRM: Xid (PCI:0000:05:00): 63, Row remapping")


def test_a_fifo_without_a_writer_never_waits(tmp_path: Path, clock: Clock) -> None:
    os.mkfifo(tmp_path / "kmsg")
    log = clock.log(tmp_path / "kmsg")
    assert (log.read(), log.blind) == ([], None)
    with open(tmp_path / "kmsg", "wb") as writer:
        writer.write(b"3,1,1,-;NVRM: Xid (PCI:0000:05:00): 95, Uncontained\n")
        writer.flush()
        assert [line.xid for line in log.read()] == [95]
        assert log.read() == []


def test_a_flood_is_cut_and_counted(device: Path, clock: Clock) -> None:
    log = clock.log(device)
    write(device, *[f"blk_update_request: I/O error, dev sda, sector {i} {'x' * 2_000}" for i in range(MAX_LINES + 7)])
    lines = log.read()
    assert (len(lines), log.dropped) == (MAX_LINES, 7)
    assert len(lines[0].text) == MAX_TEXT_CHARS


def test_a_flood_of_one_error_hides_no_other(device: Path, clock: Clock) -> None:
    log = clock.log(device)
    flood = ["NVRM: Xid (PCI:0000:05:00): 31, pid=7, name=python, MMU Fault"] * (2 * MAX_LINES)
    write(device, *flood, "NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.", *flood)
    assert [line.xid for line in log.read()] == [31] * MAX_LINES + [79]
    write(device, *[f"NVRM: Xid (PCI:0000:05:00): {xid}, ..." for xid in range(1_000, 2_000)])
    assert len(log.read()) == 2 * MAX_LINES


def test_a_look_at_a_long_log_is_bounded_and_the_next_goes_on(device: Path, clock: Clock) -> None:
    log = clock.log(device)
    write(device, *["of no interest " + "x" * 2_000] * (2 * MAX_BYTES // 2_000), "NVRM: Xid (PCI:0000:05:00): 79, end")
    looks = [[line.xid for line in log.read()] for _ in range(4)]
    assert looks == [[], [], [79], []]


def test_a_folder_in_the_logs_place_is_named(tmp_path: Path, clock: Clock) -> None:
    log = clock.log(tmp_path)
    assert log.read() == []
    assert str(log.blind).startswith(f"the kernel log {tmp_path} can't be read: ")


def test_records_that_the_kernel_overwrote_are_counted(
    device: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = clock.log(device)
    answers = [BrokenPipeError(), b"3,9,1,-;NVRM: Xid (PCI:0000:05:00): 74, NVLink\n", BlockingIOError()]

    def read(fd: int, size: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(os, "read", read)
    assert [line.xid for line in log.read()] == [74]
    assert log.lost == 1


def test_a_log_that_is_not_there_is_named_and_taken_up_when_it_comes(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "kmsg"
    log = clock.log(path)
    assert log.blind == f"the kernel log {path} can't be read: no such file or directory"
    assert log.do == "give the container the host's /dev/kmsg"
    path.write_bytes(b"")
    clock.uptime += 60.0
    assert (log.read(), log.blind, log.do) == ([], None, "")
    write(path, "NVRM: Xid (PCI:0000:05:00): 79, gone")
    assert [line.xid for line in log.read()] == [79]


def test_a_log_without_permission_says_what_to_do(device: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, flags: int) -> int:
        raise PermissionError(1, "Operation not permitted")  # dmesg_restrict; tests may run as root, who may all

    monkeypatch.setattr(os, "open", refuse)
    log = clock.log(device)
    assert log.blind == f"the kernel log {device} can't be read: operation not permitted"
    assert "CAP_SYSLOG" in log.do


def test_dev_null_in_the_logs_place_is_no_quiet_kernel(clock: Clock) -> None:
    log = clock.log(Path("/dev/null"))
    assert log.blind == "the kernel log /dev/null is /dev/null in this container"
    assert log.read() == []


def test_the_environment_names_another_log(device: Path) -> None:
    assert KernelLog(environ={"STABILITY_KMSG": str(device)}).path == str(device)
