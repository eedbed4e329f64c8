"""The agent's small parts, each by itself."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stabilityclient.agent.agent_events import MAX_WAITING_BYTES, MAX_WAITING_EVENTS, AgentEvents
from stabilityclient.agent.commands.downlink import MAX_COMMAND_FILES, MAX_OPEN, Downlink
from stabilityclient.agent.service import AgentLog
from stabilityclient.agent.sources import Sources, is_alive
from stabilityclient.agent.upload.door import agent_url, refusal
from stabilityclient.agent.upload.reader import chunk_numbers
from stabilityclient.agent.upload.records import SpooledEvent
from stabilityclient.agent.upload.spool_cleaner import SpoolCleaner
from stabilityclient.agent.upload.uplink import (
    Backoff,
    Callbacks,
    Uplink,
)
from stabilityclient.guard import Guard
from stabilityclient.sidecar import LOG_BYTES
from stabilityclient.spool import CHUNK_BYTES
from stabilityclient.start import start_ticks
from stabilityclient.wire import Hello


def test_a_command_is_written_whole_once_and_rings_the_mailbox(tmp_path: Path) -> None:
    downlink = Downlink(tmp_path, print, now=lambda: 5.0)
    command = {"command_id": "c1", "attempt": 1, "state": "pending"}
    for _ in range(3):
        downlink.take(command, 0.5)
    assert (tmp_path / "mailbox").read_bytes() == (1).to_bytes(8, "little")
    downlink.take({**command, "attempt": 2, "state": "done"}, 0.5)
    written = json.loads((tmp_path / "commands" / "c1.json").read_bytes())
    assert written == {**command, "attempt": 2, "state": "done", "received": 5.0, "clock_offset_s": 0.5}


@pytest.mark.parametrize("command_id", ["../../etc/passwd", "", "a/b", "x" * 200, ".hidden"])
def test_a_command_of_a_lying_server_stays_out_of_the_file_system(tmp_path: Path, command_id: str) -> None:
    said: list[str] = []
    Downlink(tmp_path / "run", said.append).take({"command_id": command_id}, 0.0)
    Downlink(tmp_path / "run", said.append).take({}, 0.0)
    assert len(said) == 2
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_command_files_are_bounded(tmp_path: Path) -> None:
    downlink = Downlink(tmp_path, print)
    for number in range(MAX_COMMAND_FILES + 20):
        downlink.take({"command_id": f"c{number}", "state": "done"}, 0.0)
    assert len(list((tmp_path / "commands").iterdir())) == MAX_COMMAND_FILES


def test_the_ranks_never_have_more_than_a_few_commands_open_and_the_server_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    for _ in range(2):  # a later agent counts what lies there
        downlink = Downlink(tmp_path, print, now=lambda: 5.0, reject=lambda data: told.append(data["command_id"]))
        for number in range(2_000):
            downlink.take({"command_id": f"c{number}", "attempt": 1, "state": "pending", "expires": 9.0}, 0.0)
    assert len(list((tmp_path / "commands").iterdir())) == MAX_OPEN
    assert (tmp_path / "mailbox").read_bytes() == MAX_OPEN.to_bytes(8, "little")
    assert told[:3] == [f"c{number}" for number in range(MAX_OPEN, MAX_OPEN + 3)]
    assert len(told) <= 2 * MAX_COMMAND_FILES


def test_there_is_room_for_a_command_when_one_has_ended_or_expired(tmp_path: Path) -> None:
    now = [5.0]
    downlink = Downlink(tmp_path, print, now=lambda: now[0])
    order = {"attempt": 1, "state": "pending", "expires": 9.0}
    for number in range(MAX_OPEN):
        downlink.take({"command_id": f"c{number}", **order}, 0.0)
    downlink.take({"command_id": "c0", **order, "state": "done"}, 0.0)
    downlink.take({"command_id": "next", **order}, 0.0)
    downlink.take({"command_id": "too many", **order}, 0.0)
    assert sorted(path.stem for path in (tmp_path / "commands").iterdir())[-2:] == ["c7", "next"]
    now[0] = 10.0
    downlink.take({"command_id": "later", **order, "expires": 20.0}, 0.0)
    assert (tmp_path / "commands" / "later.json").exists()


def test_a_pid_that_another_process_got_is_not_the_old_process() -> None:
    mine = start_ticks(os.getpid())
    assert is_alive(os.getpid(), mine)
    assert not is_alive(os.getpid(), mine + 1)
    assert not is_alive(2**22 + 1, 0)


def test_pauses_double_with_jitter_up_to_their_bound() -> None:
    low, high = Backoff(0.2, 10.0, lambda: 0.0), Backoff(0.2, 10.0, lambda: 1.0)
    assert [low.pause_s() for _ in range(4)] == [0.1, 0.2, 0.4, 0.8]
    assert [high.pause_s() for _ in range(8)][-2:] == [10.0, 10.0]
    high.reset()
    assert high.pause_s() == 0.2


def test_the_agents_door_is_beside_the_servers_url() -> None:
    assert agent_url("http://127.0.0.1:8080") == "ws://127.0.0.1:8080/api/v1/agent"
    assert agent_url("https://board.example/base/") == "wss://board.example/base/api/v1/agent"


def test_durable_chunks_beyond_what_is_kept_are_removed_and_no_other(tmp_path: Path) -> None:
    own = AgentEvents(tmp_path, "n", 2**30, print)
    for step in range(60_000):
        own.row(step, {"a": 1.0, "b": 2.0, "c": 3.0})
    sources = Sources(tmp_path)
    (source,) = sources.discover()
    folder = str(source.folder)
    before = chunk_numbers(folder)
    assert len(before) >= 4
    SpoolCleaner(4 * CHUNK_BYTES, now=lambda: 100.0).sweep(sources)
    assert chunk_numbers(folder) == before
    source.acked = 60_000
    SpoolCleaner(4 * CHUNK_BYTES, now=lambda: 100.0).sweep(sources)
    assert chunk_numbers(folder) == before
    source.durable = 60_000
    SpoolCleaner(4 * CHUNK_BYTES, now=lambda: 100.0).sweep(sources)
    assert chunk_numbers(folder) == before[-3:]
    own.close()


def test_the_agents_own_events_wait_for_room_on_the_disk_and_the_oldest_go_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, at: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    said: list[str] = []
    own = AgentEvents(tmp_path, "n", 2**30, said.append)
    with monkeypatch.context() as disk:
        disk.setattr(os, "posix_fallocate", full)
        for number in range(MAX_WAITING_EVENTS + 3):
            own.event("gpu_note", None, {"number": number})
        assert (len(own._waiting), own.dropped) == (MAX_WAITING_EVENTS, 3)
        for number in range(20):
            own.event("gpu_note", None, {"number": number, "texts": ["x" * (MAX_WAITING_BYTES // 80)] * 4})
    assert ("No space left" in said[0], own.error) == (True, said[0])
    assert (len(own._waiting), own.dropped) == (19, MAX_WAITING_EVENTS + 3 + 20 - 19)
    own.event("gpu_note", None, {"number": "last"})
    assert (len(own._waiting), own.error) == (0, "")
    (source,) = Sources(tmp_path).discover()
    events = [record for record in source.reader.read(1000, 2**30) if isinstance(record, SpooledEvent)]
    assert [event.data["number"] for event in events] == [*range(1, 20), "last"]
    assert events[0].time < events[-1].time
    own.close()


def test_the_agents_log_is_bounded_in_rate_and_size(tmp_path: Path) -> None:
    now = [0.0]
    with open(tmp_path / "log", "a") as stream:
        log = AgentLog(stream, now=lambda: now[0])
        for _ in range(100):
            log.write("the same trouble")
        assert (tmp_path / "log").read_text().count("\n") == 1
        for number in range(300):
            now[0] += 61
            log.write(f"{number} " + "x" * 10_000)
    assert (tmp_path / "log").stat().st_size <= LOG_BYTES + 20_000


def test_a_guard_logs_a_place_once_a_minute_with_the_count(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    guard = Guard(strict=False, now=lambda: now[0])
    for _ in range(5):
        guard.caught("log()", ValueError("bad"))
    now[0] += 61
    guard.caught("log()", ValueError("bad"))
    assert [record.message for record in caplog.records] == [
        "log(): ValueError: bad",
        "log(): ValueError: bad (4 more like it in the last minute)",
    ]
    assert guard.swallowed == 6


def test_a_strict_guard_raises() -> None:
    with pytest.raises(ValueError, match="bad"):
        Guard(strict=True).caught("log()", ValueError("bad"))


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (
            403,
            b'{"error": {"code": "foreign_host", "message": "board is no name", "hint": "add it"}}',
            "board is no name; add it",
        ),
        (401, b"<html>", "the server does not accept this API key; set STABILITY_API_KEY"),
        (403, None, "is not the agents' door: check STABILITY_URL"),
        (401, b"[]", "set STABILITY_API_KEY"),
    ],
)
def test_a_refused_agent_repeats_what_the_server_said(status: int, body: bytes | None, said: str) -> None:
    text = refusal(status, body, "ws://board:8080/api/v1/agent", has_key=True)
    assert text.startswith(f"HTTP {status}: ")
    assert said in text


@pytest.mark.parametrize(
    ("url", "key", "warned"),
    [
        ("http://board.example:8080", "sb_secret", True),
        ("https://board.example", "sb_secret", False),
        ("http://board.example:8080", None, False),
        ("http://127.0.0.1:8080", "sb_secret", False),
        ("http://localhost:8080", "sb_secret", False),
    ],
)
def test_an_agent_says_that_its_key_goes_out_in_clear_text(
    tmp_path: Path, url: str, key: str | None, warned: bool
) -> None:
    said: list[str] = []
    Uplink(url, key, Sources(tmp_path), lambda: Hello("r", "a", "n", "0"), Callbacks(), said.append)
    assert [("in clear text" in line, "secret" in line) for line in said] == [(True, False)] * warned
