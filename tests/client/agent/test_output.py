"""What ranks print: lines that people can read, bounded, without secrets, with the step at which they came."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stabilityclient.agent.output import (
    BURST_BYTES,
    BYTES_PER_S,
    MAX_LINE_CHARS,
    MAX_OPEN_BYTES,
    Lines,
    OutputFollower,
    output_files,
    readable,
    switched_off,
)
from stabilityclient.agent.sources import Source
from stabilityclient.secrets.messages import cleaned
from stabilityclient.wire import Output, SourceInfo


def rank(pid: int, number: int = 0) -> Source:
    """A rank's process, without a slot."""
    info = SourceInfo(f"r{number}-1-{pid}", rank=number, local_rank=number, pid=pid)
    return Source(Path("/nowhere"), info, 0)


def following(ranks: list[Source], setting: str = "", **places: int) -> OutputFollower:
    return OutputFollower("a1", "n0", lambda: ranks, setting, places, lambda text: None)


def texts(found: Any) -> list[str]:
    return [] if found is None else [line.text for line in found.lines]


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"one\ntwo\n", ["one", "two"]),
        (b"\x1b[31mred\x1b[0m \x1b]0;title\x07text\r\n", ["red text"]),
        (b"10%|#  |\r50%|## |\r100%|###|\n", ["100%|###|"]),
        (b"\x00\x01\xff\xfe\xfd\x00\x02\x03\x04\xff\xff\n", ["(11 bytes that are no text)"]),
        ("žluťoučký кот 猫\n".encode(), ["žluťoučký кот 猫"]),
        (b"\n\n  \n", ["", "", ""]),
    ],
)
def test_bytes_become_lines_that_people_can_read(data: bytes, lines: list[str]) -> None:
    assert list(map(readable, Lines().feed(data))) == lines


def test_lines_that_may_not_go_are_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that prints much more than is sent costs the node what is sent."""
    looked_at: list[bytes] = []
    monkeypatch.setattr("stabilityclient.agent.output.readable", lambda line: looked_at.append(line) or readable(line))
    monkeypatch.setattr("stabilityclient.agent.output.BYTES_PER_S", 0)
    log = tmp_path / "log"
    log.touch()
    followed = following([rank(os.getpid())], str(log))
    followed._poll()
    lines = [f"{number:06d} {'x' * 93}\n".encode() for number in range(10_000)]
    for at in range(0, len(lines), 500):
        log.write_bytes(b"".join(lines[: at + 500]))
        followed._poll()
    followed.close()
    assert sum(map(len, looked_at)) <= BURST_BYTES + 20 * 200
    found = list(iter(followed.message, None))
    assert sum(message.skipped + len(message.lines) for message in found) == len(lines)


@given(st.binary(max_size=400), st.integers(0, 400))
def test_lines_are_the_same_wherever_the_bytes_are_cut(data: bytes, at: int) -> None:
    once, twice = Lines(), Lines()
    assert once.feed(data) + once.rest() == twice.feed(data[:at]) + twice.feed(data[at:]) + twice.rest()


def test_a_line_without_an_end_takes_bounded_memory() -> None:
    lines = Lines()
    for _ in range(100):
        assert lines.feed(b"x" * 10_000) == []
    (rest,) = lines.rest()
    assert len(rest) <= MAX_OPEN_BYTES
    assert len(readable(rest)) <= MAX_LINE_CHARS + 2


def test_the_last_words_of_a_process_that_dies_are_read(tmp_path: Path) -> None:
    """Its /proc is gone by then: the file stays open."""
    code = "import sys; print('up', flush=True); sys.stdin.read(); print('x'); raise ValueError('the end')"
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        job = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=out, stderr=err)
    while not (tmp_path / "out").read_bytes():
        time.sleep(0.01)
    source = rank(job.pid)
    followed = following([source])
    followed._poll()
    assert texts(followed.message()) == ["up"]
    assert job.stdin is not None
    job.stdin.close()
    job.wait()
    source.alive = False
    followed._poll()
    found = followed.message()
    assert found is not None
    assert [(line.stream, line.text) for line in found.lines if "File" not in line.text] == [
        ("out", "x"),
        ("err", "Traceback (most recent call last):"),
        ("err", "ValueError: the end"),
    ]
    assert not followed.busy


def test_ranks_that_print_to_one_file_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("both\n")
    followed = following([rank(os.getpid(), 1), rank(os.getpid(), 0)], str(tmp_path / "log"))
    followed._poll()
    found = followed.message()
    assert found is not None
    assert [(line.rank, line.text) for line in found.lines] == [(0, "both")]
    followed.close()


def test_a_path_for_each_rank_is_followed_and_a_pipe_is_not(tmp_path: Path) -> None:
    for number in (0, 1):
        (tmp_path / f"rank{number}.log").write_text(f"from {number}\n")
    os.mkfifo(tmp_path / "rank2.log")
    ranks = [rank(os.getpid(), number) for number in range(4)]
    files = output_files(ranks, str(tmp_path / "rank{rank}.log"))
    assert [(one.rank, one.stream) for one in files] == [(0, "out"), (1, "out")]


def test_more_than_a_node_may_send_is_left_out_and_counted_and_the_newest_stays(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("")
    followed = following([rank(os.getpid())], str(file))
    followed._poll()
    sent, skipped = 0, 0
    for number in range(20):
        file.write_text(file.read_text() + "".join(f"{number} {line} {'x ' * 40}\n" for line in range(600)))
        followed._poll()
    while (message := followed.message()) is not None:
        sent += sum(len(line.text) for line in message.lines)
        skipped += message.skipped
        newest = message.lines[-1].text
    assert skipped
    assert sent <= BURST_BYTES + 2 * BYTES_PER_S
    assert followed._waiting_bytes == 0
    assert int(newest.split()[0]) >= 3
    followed.close()


def test_what_is_passed_over_is_counted_in_lines_and_no_half_line_is_read_behind_it(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("begun ")
    followed = following([rank(os.getpid())], str(file))
    followed._poll()
    lines = 50_000
    with file.open("a") as log:
        log.writelines(f"password={line:07}\n" for line in range(lines))
    followed._poll()
    message = followed.message()
    assert message is not None
    assert {line.text for line in cleaned(message).lines} == {"password=(hidden)"}
    while (more := followed.message()) is not None:
        message = Output(message.agent, message.node, message.lines + more.lines, message.skipped + more.skipped)
    assert len(message.lines) + message.skipped == pytest.approx(lines, rel=0.01)


def test_an_agent_goes_on_where_the_one_before_had_read(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("old\n")
    first = following([rank(os.getpid())], str(file))
    first._poll()
    assert texts(first.message()) == ["old"]
    file.write_text("old\nnew\n")
    second = following([rank(os.getpid())], str(file), **first.state())
    second._poll()
    assert texts(second.message()) == ["new"]
    first.close()
    second.close()


@pytest.mark.parametrize(
    ("setting", "off"), [("off", True), (" OFF ", True), ("0", True), ("", False), ("a/{rank}", False)]
)
def test_it_is_off_when_the_setting_says_so(setting: str, off: bool) -> None:
    assert switched_off(setting) is off
