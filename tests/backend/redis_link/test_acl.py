"""A user of Redis with exactly the commands that docs/operations.md lists can do all that we do, and one with less is
refused in words that name what lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from stabilitybackend.base.errors import RedisStartError
from stabilitybackend.storage.redis_link import check_server, make_redis
from stabilitybackend.storage.redis_link.checks import NEEDED, NEEDED_OF_CLUSTER, NEEDED_SINCE_7_2, acl_line
from support.plain_redis import PlainRedis
from support.redis_servers.cluster import RedisNodes
from support.redis_servers.users import PASSWORD, allow

ROOT = Path(__file__).parents[3]
#: Methods of redis-py's clients and pipelines that are no command, and commands with another name.
_NO_COMMANDS = {
    "pipeline", "execute", "execute_command", "aclose", "initialize", "masters", "master_of", "key_of_each", "on_node",
    "parse_response", "xgroup_create",
}  # fmt: skip
#: A command that is called, or called from a script.
_CALL = re.compile(r"(?:\b_?(?:redis|pipe|pipeline)\.(?=[a-z_]+\()|\bredis\.call\(['\"])(?!call\()(\w+)")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainRedis]:
    with PlainRedis(tmp_path_factory.mktemp("one")) as running:
        yield running


def as_user(one: PlainRedis, line: str, name: str) -> str:
    """Make a user and return the URL with its login."""
    with Redis.from_url(one.url, protocol=2) as client:
        allow([client], line, name)
    return one.url.replace("://", f"://{name}:{PASSWORD}@")


async def refused(url: str) -> RedisStartError:
    redis = make_redis(url)
    with pytest.raises(RedisStartError) as found:
        await check_server(redis, url)
    await redis.aclose()
    return found.value


def test_each_command_that_the_code_uses_is_on_the_list() -> None:
    used = dict[str, str]()
    for package in ("backend/stabilitybackend", "alerting/stabilityalerting", "plugins/stabilityplugins"):
        for file in [*(ROOT / package).rglob("*.py"), *(ROOT / package).rglob("*.lua")]:
            used |= {name.lower(): file.name for name in _CALL.findall(file.read_text())}
    known = {name.partition("|")[0] for name in (*NEEDED, *NEEDED_SINCE_7_2, *NEEDED_OF_CLUSTER)}
    known |= {"delete", *_NO_COMMANDS}
    assert len(used) > 50
    assert {name: file for name, file in used.items() if name not in known} == {}


def test_the_line_to_copy_in_the_documentation_is_this_list() -> None:
    page = (ROOT / "docs/operations.md").read_text()
    copied = re.sub(r" [\\]\n *", " ", page).replace("'", "")
    assert f"redis-cli {acl_line()}\n" in copied


async def test_with_exactly_the_listed_commands_the_start_is_allowed(one: PlainRedis) -> None:
    url = as_user(one, acl_line(cluster=False), "enough")
    redis = make_redis(url)
    assert (await check_server(redis, url)).startswith("redis 7")
    assert await redis.get("sb:allowed") is None
    await redis.aclose()


@pytest.mark.parametrize("lacking", ["xadd", "eval", "xgroup|create", "info", "multi", "exec", "hkeys", "time"])
async def test_a_command_that_lacks_is_named_with_how_to_allow_it(one: PlainRedis, lacking: str) -> None:
    url = as_user(one, acl_line(cluster=False).replace(f" +{lacking} ", " "), "less")
    found = await refused(url)
    assert f"the user less of Redis at {one.url} may not use {lacking.replace('|', ' ').upper()}" in found.message
    assert f"ACL SETUSER less +{lacking} " in found.hint
    assert PASSWORD not in found.message + found.hint


async def test_keys_that_may_not_be_touched_are_named(one: PlainRedis) -> None:
    url = as_user(one, acl_line(cluster=False).replace("~sb:*", "~other:*"), "elsewhere")
    found = await refused(url)
    assert "may not touch keys that begin with sb:" in found.message
    assert "ACL SETUSER elsewhere ~sb:*" in found.hint


async def test_a_wrong_password_is_a_refused_login(one: PlainRedis) -> None:
    as_user(one, acl_line(cluster=False), "someone")
    found = await refused(one.url.replace("redis://", "redis://someone:wrong@"))
    assert "refused the login" in found.message


async def test_on_a_cluster_one_node_that_allows_less_is_found(nodes: RedisNodes) -> None:
    for each in nodes.nodes:
        with each.client() as client:
            allow([client], acl_line(), "board")
    url = nodes.url.replace("://", f"://board:{PASSWORD}@")
    redis = make_redis(url)
    assert "3 masters" in await check_server(redis, url)
    await redis.aclose()
    with nodes.masters[2].client() as node:
        node.execute_command("ACL", "SETUSER", "board", "-xtrim", "-cluster|myid")  # type: ignore[no-untyped-call]
    found = await refused(url)
    assert "may not use XTRIM, CLUSTER MYID" in found.message
