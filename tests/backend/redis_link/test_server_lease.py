"""Two servers on one Redis: the second one waits, takes over from one that is gone, or says who is there."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis.asyncio import Redis

from stabilitybackend.base.errors import RedisStartError
from stabilitybackend.base.keys import SERVER
from stabilitybackend.storage.redis_link.server_lease import ServerLease
from support.forked_program import ForkedProgram
from support.plain_redis import PlainRedis
from support.waiting import wait_until

HERE = "redis://here"


def of_pid(folder: Path, pid: int, ticks: int) -> Path:
    """Return a folder of processes in which this one and that pid are, the latter with another start."""
    (folder / "self" / "ns").mkdir(parents=True)
    os.symlink("pid:[1]", folder / "self" / "ns" / "pid")
    (folder / str(pid)).mkdir()
    (folder / str(pid) / "stat").write_text(f"{pid} (a b) S {' '.join(['0'] * 18)} {ticks} 0")
    return folder


async def test_who_comes_second_is_told_who_is_there(redis: Redis) -> None:
    await ServerLease("http://a:1", clock=lambda: 0.0).take(redis, HERE)
    with pytest.raises(RedisStartError) as refused:
        await ServerLease("http://b:2").take(redis, HERE, wait_s=0.0)
    said = refused.value.message
    assert said.startswith("another server works on Redis at redis://here: http://a:1 on ")
    assert f"(pid {os.getpid()}, since 1970-01-01 00:00:00 UTC)" in said
    assert "another --redis-url" in refused.value.hint


async def test_what_was_given_back_is_free_and_only_its_holder_gives_it_back(redis: Redis) -> None:
    first, second = ServerLease("http://a:1"), ServerLease("http://b:2")
    await first.take(redis, HERE)
    await second.release(redis)
    assert await redis.exists(SERVER)
    await first.release(redis)
    await second.take(redis, HERE, wait_s=0.0)


async def test_the_claim_of_a_process_that_has_ended_here_is_taken_at_once(redis: Redis, tmp_path: Path) -> None:
    proc = of_pid(tmp_path, os.getpid(), ticks=5)
    await ServerLease("http://a:1", proc=proc).take(redis, HERE)
    (proc / str(os.getpid()) / "stat").write_text(f"{os.getpid()} (a) S {' '.join(['0'] * 18)} 6 0")
    await ServerLease("http://b:2", proc=proc).take(redis, HERE, wait_s=0.0)


async def test_a_claim_that_is_not_renewed_ends(redis: Redis) -> None:
    await ServerLease("http://a:1").take(redis, HERE)
    assert 0 < await redis.pttl(SERVER) <= 6_000


async def test_a_redis_that_is_full_keeps_no_server_from_its_start(redis: Redis) -> None:
    lease = ServerLease("http://a:1")
    await redis.config_set("maxmemory", "1")
    try:
        await lease.take(redis, HERE, wait_s=0.0)
    finally:
        await redis.config_set("maxmemory", "0")
    assert not await redis.exists(SERVER)


async def test_a_claim_of_another_version_is_respected(redis: Redis) -> None:
    await redis.hset(SERVER, mapping={"token": "x", "who": b"\xff"})
    with pytest.raises(RedisStartError, match="another server works on Redis at redis://here: of another version"):
        await ServerLease("http://b:2").take(redis, HERE, wait_s=0.0)


@contextmanager
def _server(folder: Path, redis_url: str) -> Iterator[tuple[ForkedProgram, Path]]:
    folder.mkdir()
    log = folder / "log"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("STABILITY_")}
    server = ForkedProgram(["up", "--port", "0", "--data-dir", str(folder), "--redis-url", redis_url], environ, log)
    try:
        yield server, log
    finally:
        server.send_signal(signal.SIGCONT)
        server.kill()
        server.wait(60)


def _is_up(folder: Path) -> bool:
    return (folder / "server.json").exists()


@pytest.mark.soak
def test_a_second_server_takes_over_from_one_that_was_stalled_which_then_stops_in_words(tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    with PlainRedis(tmp_path / "redis") as node, _server(tmp_path / "a", node.url) as (first, log):
        wait_until(lambda: _is_up(tmp_path / "a"), 30, "the first server is up")
        first.send_signal(signal.SIGSTOP)
        with _server(tmp_path / "b", node.url):
            wait_until(lambda: _is_up(tmp_path / "b"), 30, "another server takes over")
            first.send_signal(signal.SIGCONT)
            assert first.wait(30) != 0
            assert "took over" in log.read_text()


def test_a_second_server_ends_in_words_and_follows_at_once_on_one_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    with PlainRedis(tmp_path / "redis") as node, _server(tmp_path / "a", node.url) as (first, _):
        wait_until(lambda: _is_up(tmp_path / "a"), 30, "the first server is up")
        with _server(tmp_path / "b", node.url) as (second, refused):
            assert second.wait(60) != 0
            assert "another server works on Redis" in refused.read_text()
        first.kill()
        first.wait(60)
        with _server(tmp_path / "c", node.url):
            wait_until(lambda: _is_up(tmp_path / "c"), 30, "the next one is up")
