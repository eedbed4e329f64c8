"""Addresses of Redis: what can be written, and that a wrong one is refused in words, never with its password."""

from __future__ import annotations

from pathlib import Path

import pytest

from stabilitybackend.base.errors import SettingsError
from stabilitybackend.base.redis_address import RedisAddress, shown_url
from stabilitybackend.base.settings import Settings


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://a:1,b:2", "redis+cluster://a:1,b:2 for nodes of a Redis Cluster"),
        ("redis://u:secret@a:1,u:secret@b:2", "one login before all hosts"),
        ("redis+cluster://u:secret@a:1,u:secret@b:2", "one login before all hosts"),
        ("redis+cluster://a:1,b:2/3", "a cluster has only 0"),
        ("redis+cluster://a:1,,b:2", "an address without a host"),
        ("redis+sentinel://a:1,b:2", "it behind the hosts: redis+sentinel://a:1,b:2/name"),
        ("redis+sentinel://a:1/board/x", "database x"),
        ("redis+cluster:///", "an address without a host"),
        ("redis://a:port", "the port a number"),
        ("redis://a:0", "the port a number"),
        ("redis://[::1", "no address that can be read"),
        ("redis://a/runs", "database runs"),
        ("redis://u:sec/ret@a", "%2F for /"),
        ("redis://u:sec#ret@a", "%23 for #"),
        ("unix://", "the path of a socket"),
        ("127.0.0.1:6379", "scheme none"),
        ("cluster://a", "redis+cluster://host:port,host:port"),
    ],
)
def test_an_address_that_no_redis_can_have_is_refused_in_words(url: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        Settings(data_dir=tmp_path, redis_url=url)
    assert words in refused.value.message
    assert "--redis-url" in refused.value.hint
    assert not {"secret", "sec", "ret"} & set(refused.value.message.replace("/", " ").replace(":", " ").split())


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("redis://h", ("one", False, (("h", 6379),), "", None)),
        ("redis://:p,w@h:1/2", ("one", False, (("h", 1),), "", 2)),
        ("rediss://u:p@h:6379/0?ssl_cert_reqs=none", ("one", True, (("h", 6379),), "", 0)),
        ("unix:///run/redis.sock", ("one", False, (), "", None)),
        (
            "redis+cluster://a,b:7001,[::1]:7002",
            ("cluster", False, (("a", 6379), ("b", 7001), ("::1", 7002)), "", None),
        ),
        ("rediss+cluster://u:p@a:1/0", ("cluster", True, (("a", 1),), "", 0)),
        ("redis+sentinel://a,b:2/board", ("sentinel", False, (("a", 26379), ("b", 2)), "board", None)),
        ("rediss+sentinel://u:p@a:1/board/3", ("sentinel", True, (("a", 1),), "board", 3)),
    ],
)
def test_each_form_of_an_address_is_taken(
    url: str, parts: tuple[str, bool, tuple[tuple[str, int], ...], str, int | None], tmp_path: Path
) -> None:
    assert Settings(data_dir=tmp_path, redis_url=url).redis_url == url
    found = RedisAddress.of(url)
    assert (found.kind, found.tls, found.nodes, found.name, found.database) == parts


def test_one_node_of_many_is_asked_with_the_same_login_and_options() -> None:
    address = RedisAddress.of("rediss+cluster://u:p%40w@a:1,[::1]:2?ssl_ca_certs=/ca.pem")
    assert [address.of_node(*node) for node in address.nodes] == [
        "rediss://u:p%40w@a:1?ssl_ca_certs=/ca.pem",
        "rediss://u:p%40w@[::1]:2?ssl_ca_certs=/ca.pem",
    ]


def test_an_address_is_shown_without_its_login_and_its_options() -> None:
    assert shown_url("rediss+sentinel://u:secret@a:1,b:2/board?sentinel_password=hidden") == (
        "rediss+sentinel://a:1,b:2/board"
    )
