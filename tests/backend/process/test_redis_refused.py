"""A Redis that can't hold the runs stops the start, in words that say what to do; and few connections serve many."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stabilitybackend.errors import RedisStartError, SettingsError
from stabilitybackend.redis_link import check_server, make_redis
from stabilitybackend.settings import Settings
from support.cli_program import program_in
from support.plain_redis import PlainRedis

pytestmark = pytest.mark.both_redis


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis+cluster://h:1,i:2", "a Redis Cluster is not supported yet"),
        ("rediss+cluster://h:1", "a Redis Cluster is not supported yet"),
        ("redis+sentinel://h:1/primary", "Sentinel is not supported yet; name the primary"),
        ("redis://a:1,b:2", "several addresses"),
        ("redis://u:secret@a:1,u:secret@b:2", "several addresses"),
        ("redis://a:port", "the port a number"),
        ("redis://a:0", "the port a number"),
        ("redis://[::1", "no address that can be read"),
        ("redis://a/runs", "database runs"),
        ("unix://", "the path of a socket"),
        ("127.0.0.1:6379", "scheme none"),
    ],
)
def test_an_address_that_no_single_server_can_have_is_refused_in_words(url: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        Settings(data_dir=tmp_path, redis_url=url)
    assert words in refused.value.message
    assert "--redis-url" in refused.value.hint
    assert "secret" not in refused.value.message


@pytest.mark.parametrize(
    "url", ["redis://h", "redis://:p,w@h:1/2", "rediss://u:p@h:6379/0?ssl_cert_reqs=none", "unix:///run/redis.sock"]
)
def test_an_address_of_one_server_is_taken(url: str, tmp_path: Path) -> None:
    assert Settings(data_dir=tmp_path, redis_url=url).redis_url == url


async def _refused(url: str) -> RedisStartError:
    redis = make_redis(url)
    with pytest.raises(RedisStartError) as refused:
        await check_server(redis, url)
    await redis.aclose()
    return refused.value


async def test_a_node_of_a_cluster_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with PlainRedis(tmp_path, cluster=True) as node:
        refused = await _refused(node.url)
    assert "is a node of a Redis Cluster" in refused.message
    assert "cluster-enabled no" in refused.hint


async def test_a_replica_is_refused_with_the_address_of_its_primary(tmp_path: Path) -> None:
    with PlainRedis(tmp_path) as primary, PlainRedis(tmp_path, "--replicaof", "127.0.0.1", str(primary.port)) as other:
        refused = await _refused(other.url)
    assert f"is a replica of 127.0.0.1:{primary.port}" in refused.message
    assert primary.url in refused.hint


async def test_a_sentinel_is_refused_because_it_holds_no_data(tmp_path: Path) -> None:
    with PlainRedis(tmp_path, sentinel=True) as sentinel:
        refused = await _refused(sentinel.url)
    assert "is a Sentinel" in refused.message
    assert "get-master-addr-by-name" in refused.hint


async def test_an_option_that_nobody_knows_is_refused_and_named(redis_url: str) -> None:
    refused = await _refused(f"{redis_url}?colour=red")
    assert "colour" in refused.message


def test_up_refuses_a_node_of_a_cluster_before_it_says_that_it_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = program_in(tmp_path, monkeypatch, capsys)
    with PlainRedis(tmp_path, cluster=True) as node:
        code, out, err = program("up", "--port", "0", "--redis-url", node.url)
    assert (code, out) == (1, "")
    assert "is a node of a Redis Cluster" in err


async def test_calls_that_find_no_connection_free_wait_for_one(redis_url: str) -> None:
    redis = make_redis(redis_url, connections=2)
    answers = await asyncio.gather(*(redis.blpop([f"none-{n}"], timeout=0.01) for n in range(40)))
    assert answers == [None] * 40
    await redis.aclose()
