"""Below a path: what is left of a request's own, who is believed, and what cookies and links have of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send
from websockets.sync.client import connect

from stabilitybackend.access.auth import KeyRing
from stabilitybackend.base.errors import SettingsError
from stabilitybackend.base.settings import Settings
from stabilitybackend.server.addresses.served_path import ServedPath
from stabilitybackend.storage.redis_link import make_redis
from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis
from stabilityfrontend.app import OUR_PAGES
from stabilityfrontend.declared import LIVE_PAGES, MOVED, collect, functions_of
from support.server_stack import RunningServer

BELOW = "/user/jo%40lab/proxy/8080"


def settings(**given: Any) -> Settings:
    return Settings.from_env_and_args({"HOME": "/h"}, **given)


async def seen(served: ServedPath | str, raw: str, *headers: tuple[str, str], peer: str = "10.0.0.1") -> Scope:
    """Return the scope that an application is given."""
    found: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found.append(scope)

    wrapped = ServedPath(app, served, {"10.0.0.1"}) if isinstance(served, str) else served
    scope = {"type": "http", "path": httpx.URL(f"http://h{raw}").path, "raw_path": raw.encode(), "client": (peer, 1)}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in headers]
    await wrapped(scope, None, None)  # type: ignore[arg-type]
    return found[0]


@pytest.mark.parametrize(
    ("raw", "path", "left", "root"),
    [
        (f"{BELOW}/runs/a%2Fb", "/runs/a/b", "/runs/a%2Fb", BELOW),  # passed on
        ("/user/jo@lab/proxy/8080/runs", "/runs", "/runs", BELOW),  # quoted otherwise on its way
        (BELOW, "/", "/", BELOW),
        (f"{BELOW}/", "/", "/", BELOW),
        (f"{BELOW}{BELOW}/x", "/user/jo@lab/proxy/8080/x", f"{BELOW}/x", BELOW),  # once
        ("/runs", "/runs", "/runs", ""),  # taken off, or asked for without a proxy
        (f"{BELOW}1/runs", "/user/jo@lab/proxy/80801/runs", f"{BELOW}1/runs", ""),
    ],
)
async def test_the_path_is_taken_off_once_where_a_request_has_it(raw: str, path: str, left: str, root: str) -> None:
    scope = await seen(BELOW, raw)
    assert (scope["path"], scope["raw_path"], scope["root_path"]) == (path, left.encode(), root)


@pytest.mark.parametrize(
    ("headers", "peer", "root"),
    [
        ([("x-forwarded-prefix", "/hub/jo/")], "10.0.0.1", "/hub/jo"),
        ([("x-forwarded-context", "/hub/jo")], "10.0.0.1", "/hub/jo"),
        ([("x-forwarded-prefix", "/hub/jo")], "10.0.0.2", ""),  # no proxy of ours
        ([("x-forwarded-prefix", "/a"), ("x-forwarded-prefix", "/b")], "10.0.0.1", ""),
        ([("x-forwarded-prefix", "//evil.example")], "10.0.0.1", ""),
        ([("x-forwarded-prefix", "/a; Domain=evil.example")], "10.0.0.1", ""),
        ([("x-forwarded-prefix", "/" + "a" * 600)], "10.0.0.1", ""),
    ],
)
async def test_a_prefix_is_believed_from_a_trusted_proxy_alone(
    headers: list[tuple[str, str]], peer: str, root: str
) -> None:
    scope = await seen("", "/runs", *headers, peer=peer)
    assert (scope["path"], scope["root_path"]) == ("/runs", root)


async def test_under_a_name_the_path_is_assumed_and_at_an_address_of_this_machine_it_is_not() -> None:
    found = [(await seen("/hub/jo", "/", ("host", host)))["root_path"] for host in ("hub.example", "127.0.0.1:80", "[")]
    assert found == ["/hub/jo", "", ""]


@pytest.mark.parametrize(
    ("given", "below", "pages_url"),
    [
        ({}, "", None),
        ({"root_path": "/"}, "", None),
        ({"root_path": "/hub/jo/"}, "/hub/jo", None),
        ({"public_url": "https://hub.example/hub/jo/"}, "/hub/jo", "https://hub.example/hub/jo"),
        ({"public_url": "https://hub.example:8443/"}, "", "https://hub.example:8443"),
        ({"public_url": "https://hub.example", "root_path": "/hub/jo"}, "/hub/jo", "https://hub.example/hub/jo"),
        (
            {"public_url": "https://hub.example/hub/jo", "root_path": "/hub/jo/"},
            "/hub/jo",
            "https://hub.example/hub/jo",
        ),
    ],
)
def test_the_path_is_given_by_itself_or_as_that_of_the_public_url(
    given: dict[str, str], below: str, pages_url: str | None
) -> None:
    found = settings(**given)
    assert (found.below, found.pages_url) == (below, pages_url)


@pytest.mark.parametrize(
    "path", ["hub", "//hub", "/a//b", "/a/../b", "/a b", "/a?b", "/ü", "/" + "a" * 501, "/runs/x", "/api", "/_dash-x"]
)
def test_a_path_that_can_not_be_one_stops_the_start(path: str) -> None:
    with pytest.raises(SettingsError) as refused:
        settings(root_path=path)
    assert refused.value.hint == "give --root-path or set STABILITY_ROOT_PATH"


def test_two_paths_that_differ_stop_the_start() -> None:
    with pytest.raises(SettingsError, match="/hub/jo, the path of public_url"):
        settings(root_path="/other", public_url="https://hub.example/hub/jo")


@pytest.mark.parametrize("path", sorted({*collect(functions_of(OUR_PAGES), LIVE_PAGES).pages, *MOVED} - {"/"}))
def test_no_address_of_a_page_may_be_the_path(path: str) -> None:
    with pytest.raises(SettingsError):
        settings(root_path=f"/{path.split('/')[1]}")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, str]]:
    """A server that a hub serves below a path, and a key for it."""
    folder = tmp_path_factory.mktemp("below")

    async def key(url: str) -> str:
        redis = make_redis(url)
        made = (await KeyRing(redis).create("tests"))[1]
        await redis.aclose()
        return made

    with EmbeddedRedis(folder) as redis:
        made = asyncio.run(key(redis.url))
        given = {"public_url": "https://hub.example/user/jo", "trusted_proxies": "127.0.0.1"}
        with RunningServer(redis.url, folder / "data", **given) as server:
            yield server, made


@pytest.mark.parametrize("path", ["/user/jo/api/v1/login", "/api/v1/login"], ids=["passed on", "taken off"])
def test_no_other_server_of_a_hub_is_sent_the_cookie_of_a_session(
    guarded: tuple[RunningServer, str], path: str
) -> None:
    server, key = guarded
    named = {"Host": "hub.example", "Origin": "https://hub.example"}
    login = server.client.post(path, json={"key": key}, headers=named)
    cookie = login.headers["set-cookie"]
    assert cookie.startswith("__Secure-stabilityboard_default=")
    assert "; Path=/user/jo; " in cookie
    server.client.cookies.clear()
    with_it = named | {"Cookie": cookie.split(";")[0]}
    assert server.client.get("/user/jo/api/v1/me", headers=with_it).json()["by"] == "session"
    plain = socket.create_connection(("127.0.0.1", server.port))
    headers = {"Cookie": with_it["Cookie"]}
    with connect("ws://hub.example/user/jo/api/v1/live", sock=plain, additional_headers=headers, proxy=None) as live:
        live.send('{"type": "subscribe", "run_id": null, "cursor": null}')
        assert '"hello"' in live.recv(timeout=20)
    gone = server.client.post("/user/jo/api/v1/logout", headers=with_it).headers.get_list("set-cookie")
    assert all("; Path=/user/jo; Max-Age=0" in one for one in gone)
    assert gone[0].startswith("__Secure-stabilityboard_default=;")


def test_the_openapi_document_says_where_the_calls_are(guarded: tuple[RunningServer, str]) -> None:
    server, key = guarded
    headers = {"Authorization": f"Bearer {key}"}
    below, at_root = (
        server.client.get(f"{path}/api/v1/openapi.json", headers=headers).json() for path in ("/user/jo", "")
    )
    assert below == at_root | {"servers": [{"url": "/user/jo"}]}


def test_a_browser_at_an_unknown_name_is_told_what_to_set_and_a_program_gets_json(
    guarded: tuple[RunningServer, str],
) -> None:
    server, _ = guarded
    asked = {"Host": "<b>other.example", "Accept": "text/html,*/*;q=0.8", "X-Forwarded-Prefix": "/user/anna"}
    page = server.client.get("/", headers=asked | {"Host": "other.example:8443"})
    assert (page.status_code, page.headers["content-type"]) == (403, "text/html; charset=utf-8")
    assert "STABILITY_PUBLIC_URL=https://other.example:8443/user/anna stabilityboard up" in page.text
    assert "<script" not in page.text
    assert "<b>" not in server.client.get("/", headers=asked).text
    told = server.client.get("/", headers={"Host": "other.example"}).json()["error"]
    assert (told["code"], "STABILITY_PUBLIC_URL" in told["hint"]) == ("foreign_host", True)
    assert server.client.post("/api/v1/login", headers=asked).json()["error"]["code"] == "foreign_host"


def test_a_page_behind_a_proxy_that_passes_an_unknown_path_on_says_how_to_start(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path) as redis, RunningServer(redis.url, tmp_path / "data") as server:
        page = server.client.get("/user/jo/proxy/absolute/8080/")
        assert page.status_code == 404
        assert "<code>stabilityboard up --root-path /user/jo/proxy/absolute/8080</code>" in page.text
        assert "--root-path" not in server.client.get("/").text
        assert "<b>" not in server.client.get("/<b>/").text
