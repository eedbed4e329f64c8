"""Sign-in by a trusted proxy: its header is believed from its address alone, and gives no more than the file says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from stabilitybackend.access.auth import ROLES, KeyRing, Principal
from stabilitybackend.access.people.proxy import PERSON, ProxyPeople
from stabilitybackend.base.errors import Forbidden, SettingsError
from stabilitybackend.base.settings import Settings
from stabilitybackend.storage.redis_link import make_redis
from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis
from stabilityfrontend.viewer import Api
from support.server_stack import RunningServer

USER, GROUPS = "X-Forwarded-User", "X-Forwarded-Groups"
ROLES_FILE = """
default = "viewer"
[users]
anna = "operator"
boss = "admin"
eve = { role = "operator", project = "other" }
[groups]
ml = "operator"
sre = "admin"
"""


def settings(folder: Path, roles: str = ROLES_FILE, proxies: str | None = "127.0.0.1", **more: Any) -> Settings:
    file = folder / "roles.toml"
    file.write_text(roles)
    given = {"proxy_user_header": USER, "proxy_groups_header": GROUPS, "roles": file, **more}
    return Settings(data_dir=folder / "data", trusted_proxies=proxies, **given)


def who(people: ProxyPeople | None, peer: str | None, **headers: str) -> Any:
    assert people is not None
    return people.who(peer, [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()])


def test_a_person_has_the_role_of_the_file_then_of_the_strongest_group_then_the_default(tmp_path: Path) -> None:
    people = ProxyPeople.of(settings(tmp_path, proxies="10.0.0.0/8, ::1"))
    for name, groups, role in (("anna", "sre", "operator"), ("bob", "x, ml,sre", "admin"), ("carl", "", "viewer")):
        found = who(people, "10.1.2.3", x_forwarded_user=name, x_forwarded_groups=groups)
        assert (found.name, found.scopes, found.by) == (name, frozenset(ROLES[role]), "proxy")
    assert who(people, "::ffff:10.1.2.3", x_forwarded_user="eve").project == "other"
    assert who(people, "10.1.2.3") is None


@pytest.mark.parametrize(
    "name",
    ["anna, boss@example.org", "anna,boss", "anna boss", "anna;boss", "local", "Local", "autopilot", "an\x00na", ""],
)
def test_what_is_no_name_of_one_person_signs_nobody_in(tmp_path: Path, name: str) -> None:
    refused = who(ProxyPeople.of(settings(tmp_path)), "127.0.0.1", x_forwarded_user=name)
    assert isinstance(refused, Forbidden)
    assert refused.code == "bad_person"


def test_the_header_is_believed_from_no_other_address(tmp_path: Path) -> None:
    people = ProxyPeople.of(settings(tmp_path, proxies="10.0.0.1"))
    for peer in ("10.0.0.2", "127.0.0.1", None, "testclient"):
        for name in ("x_forwarded_user", "x_forwarded_groups"):
            refused = who(people, peer, **{name: "boss"})
            assert isinstance(refused, Forbidden)
            assert refused.code == "foreign_proxy"


def test_two_names_no_name_and_one_without_a_role_are_refused(tmp_path: Path) -> None:
    people = ProxyPeople.of(settings(tmp_path, roles='[users]\nanna = "viewer"\n'))
    assert people is not None
    twice = people.who("127.0.0.1", [(b"x-forwarded-user", b"anna"), (b"x-forwarded-user", b"boss")])
    found = [twice, who(people, "127.0.0.1", x_forwarded_user=""), who(people, "127.0.0.1", x_forwarded_groups="ml")]
    assert [one.code for one in found if isinstance(one, Forbidden)] == ["bad_person"] * 3
    assert who(people, "127.0.0.1", x_forwarded_user="mallory").code == "no_role"


@pytest.mark.parametrize(
    ("roles", "proxies", "said"),
    [
        (
            "[users]\nanna = 'root'",
            "127.0.0.1",
            r"roles.toml: \[users\] anna = 'root'.* one of viewer, operator, admin",
        ),
        ("[users\n", "127.0.0.1", "line 1"),
        ("people = 1", "127.0.0.1", "roles.toml: people.* default"),
        (ROLES_FILE, None, "trusted_proxies is 'nothing'"),
        (ROLES_FILE, "0.0.0.0/0", "everybody could be anybody"),
        (ROLES_FILE, "*", "addresses and networks"),
    ],
)
def test_a_wrong_setting_stops_the_start_with_its_place(
    tmp_path: Path, roles: str, proxies: str | None, said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        ProxyPeople.of(settings(tmp_path, roles, proxies))


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, RunningServer, list[str]]]:
    """Behind a proxy at 127.0.0.1, behind one that is elsewhere, and a key of each."""
    folder = tmp_path_factory.mktemp("proxied")
    (folder / "roles.toml").write_text(ROLES_FILE)
    given = {"proxy_user_header": USER, "proxy_groups_header": GROUPS, "roles": folder / "roles.toml"}

    async def key(url: str) -> str:
        redis = make_redis(url)
        made = (await KeyRing(redis).create("machine", ["read"]))[1]
        await redis.aclose()
        return made

    with ExitStack() as stack:

        def made(name: str, trusted_proxies: str) -> tuple[RunningServer, str]:
            (folder / name).mkdir()
            redis = stack.enter_context(EmbeddedRedis(folder / name))
            made = asyncio.run(key(redis.url))
            server = RunningServer(redis.url, folder / name / "data", trusted_proxies=trusted_proxies, **given)
            return stack.enter_context(server), made

        (near, near_key), (far, far_key) = made("near", "127.0.0.1"), made("far", "10.9.9.9")
        yield near, far, [near_key, far_key]


def me(server: RunningServer, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return server.client.get("/api/v1/me", headers=named)


def test_behind_the_proxy_a_person_is_who_it_says_and_may_what_the_file_says(servers: Any) -> None:
    near, _, [key, _] = servers
    anna = me(near, x_forwarded_user="anna", x_forwarded_for="203.0.113.7").json()
    assert (anna["name"], anna["role"], anna["by"]) == ("anna", "operator", "proxy")
    assert near.client.get("/api/v1/audit", headers={USER: "anna"}).status_code == 403
    assert near.client.get("/api/v1/audit", headers={USER: "boss"}).status_code == 200
    assert me(near).json()["error"]["code"] == "key_missing"
    # A program's key counts before what the proxy says of its user.
    assert me(near, x_forwarded_user="boss", authorization=f"Bearer {key}").json()["name"] == "machine"


def test_who_is_no_proxy_and_sends_the_header_is_refused_everywhere(servers: Any) -> None:
    _, far, [_, key] = servers
    sent = {USER: "boss", "X-Forwarded-For": "10.9.9.9", "Authorization": f"Bearer {key}"}
    for method, path in (("GET", "/api/v1/me"), ("GET", "/"), ("POST", "/api/v1/login"), ("GET", "/livez")):
        answer = far.client.request(method, path, headers=sent)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign_proxy"), path
    for url in (far.live_url, far.agent_url):
        with pytest.raises(InvalidStatus) as refused, connect(url, additional_headers=sent):
            pass
        assert refused.value.response.status_code == 403
    assert me(far, authorization=f"Bearer {key}").json()["name"] == "machine"


async def test_what_the_server_draws_it_draws_for_the_same_person() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await JSONResponse({"name": scope[PERSON].name})(scope, receive, send)

    scope = {
        "type": "http", "method": "POST", "path": "/", "query_string": b"", "scheme": "http", "server": ("h", 1),
        "headers": [(b"host", b"h:1")], "client": ("203.0.113.7", 1), "app": app,
        PERSON: Principal("anna", frozenset({"read"}), proxied=True),
    }  # fmt: skip
    api = Api(Request(scope), asyncio.get_running_loop())
    assert (await asyncio.to_thread(api.get, "/me"))["name"] == "anna"
