"""Sign-in at a real provider: node-oidc-provider, certified, in its own process and through its own pages."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from stabilitybackend.access.auth import KeyRing
from stabilitybackend.storage.redis_link import make_redis
from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis
from support.oidc.real import SECRET, RealProvider
from support.server_stack import RunningServer
from support.waiting import wait_until

ROLES = """
[users]
"boss@example.org" = "admin"
[groups]
ml = { role = "operator", project = "llm" }
guests = "viewer"
"""


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedRedis(tmp_path_factory.mktemp("real")) as server:
        yield server.url


def board(redis: str, folder: Path, provider: RealProvider, **more: Any) -> RunningServer:
    """Return a server whose provider this is; on the port that the provider knows."""
    (folder / "roles.toml").write_text(ROLES)
    given = {"roles": folder / "roles.toml", "oidc_name": "Acme", **provider.settings, **more}
    return RunningServer(redis, folder / "data", public=True, port=provider.board_port, **given)


def provider_of(folder: Path, **how: Any) -> RealProvider:
    provider = RealProvider(folder, **how)
    provider.know("anna", "ml")
    return provider


async def key_in(redis_url: str) -> str:
    redis = make_redis(redis_url)
    made = (await KeyRing(redis).create("wall", ["read"]))[1]
    await redis.aclose()
    return made


def browser_of(server: RunningServer) -> httpx.Client:
    return httpx.Client(base_url=server.url, timeout=30, verify=False)


@pytest.mark.parametrize(
    ("auth", "algorithm", "short_tokens"),
    [("client_secret_basic", "RS256", True), ("client_secret_post", "ES256", False), ("none", "Ed25519", True)],
    ids=["basic-RS256-short", "post-ES256-whole", "public-Ed25519"],
)
def test_a_person_signs_in_at_a_real_provider(
    redis: str, tmp_path: Path, auth: str, algorithm: str, short_tokens: bool
) -> None:
    secret = None if auth == "none" else SECRET
    with (
        provider_of(tmp_path, auth=auth, algorithm=algorithm, short_tokens=short_tokens) as provider,
        board(redis, tmp_path, provider, oidc_client_secret=secret) as server,
        browser_of(server) as browser,
    ):
        start = f"{server.url}/api/v1/oidc/start?next=/incidents"
        page = provider.sign_in(browser, start, "anna")
        assert (page.url.host, page.url.path) == ("127.0.0.1", "/incidents")
        me = browser.get("/api/v1/me").json()
        assert (me["name"], me["role"], me["project"]) == ("anna@example.org", "operator", "llm")


def test_a_sign_in_after_another_one_needs_no_password_and_has_the_new_groups_and_a_logout_ends_both(
    redis: str, tmp_path: Path
) -> None:
    with provider_of(tmp_path) as provider, board(redis, tmp_path, provider) as server, browser_of(server) as browser:
        start = f"{server.url}/api/v1/oidc/start"
        provider.sign_in(browser, start, "anna")
        provider.know("anna", "guests")
        # Nobody is asked: it is the same person in the same browser.
        again = browser.get(start, follow_redirects=True)
        assert again.url.path == "/"
        assert browser.get("/api/v1/me").json()["role"] == "viewer"
        provider.know("anna", "sales")
        refused = browser.get(start, follow_redirects=True)
        assert (refused.url.path, refused.url.params["refused"]) == ("/login", "no_role")
        # Nobody is signed in by it, and nobody is signed out: whoever was in is in.
        assert browser.get("/api/v1/me").json()["role"] == "viewer"
        asked = browser.get(start, params={"other": "true"}, follow_redirects=True)
        assert "/interaction/" in asked.url.path
        provider.know("anna", "ml")

        then = browser.post("/api/v1/logout").json()["go_to"]
        assert browser.get("/api/v1/me").status_code == 401
        page = browser.get(then)
        assert page.status_code == 200
        form = dict(re.findall(r'name="(\w+)" value="([^"]*)"', page.text))
        action = re.search(r'action="([^"]+)"', page.text)
        assert action is not None
        out = browser.post(str(page.url.join(action[1])), data={**form, "logout": "yes"}, follow_redirects=True)
        assert str(out.url) == f"{server.url}/login"
        assert "/interaction/" in browser.get(start, follow_redirects=True).url.path


@pytest.mark.soak
def test_a_server_starts_without_its_provider_and_takes_new_keys_of_one_that_comes_back(
    redis: str, tmp_path: Path
) -> None:
    provider = provider_of(tmp_path)
    with board(redis, tmp_path, provider) as server, browser_of(server) as browser:
        start = f"{server.url}/api/v1/oidc/start?next=/incidents"
        away = server.get("/sign_in")["oidc"]["trouble"]
        assert away == "Acme can't be reached from this server. Try again in a moment, or use a key."
        refused = browser.get(start).headers["location"]
        assert refused == "/login?refused=provider_away&next=%2Fincidents"
        # Who has a key comes in as ever.
        assert browser.post("/api/v1/login", json={"key": asyncio.run(key_in(redis))}).status_code == 200
        assert browser.get("/api/v1/me").json()["name"] == "wall"
        for kid in ("first", "second"):
            provider.start(kid)
            try:
                wait_until(lambda: server.get("/sign_in")["oidc"]["trouble"] == "", 20, "the provider is back")
                assert provider.sign_in(browser, start, "anna").url.path == "/incidents"
                assert browser.get("/api/v1/me").json()["name"] == "anna@example.org"
            finally:
                provider.stop()
            browser.cookies.clear()


def test_a_session_may_what_the_file_says_at_the_servers_last_start(redis: str, tmp_path: Path) -> None:
    with provider_of(tmp_path) as provider:
        with board(redis, tmp_path, provider) as server, browser_of(server) as browser:
            provider.sign_in(browser, f"{server.url}/api/v1/oidc/start", "anna")
            cookies = {one.name: str(one.value) for one in browser.cookies.jar if one.domain == "127.0.0.1"}
            assert browser.get("/api/v1/me").status_code == 200
        # Started again with another file, the same Redis and the same cookie: another role, then none.
        (tmp_path / "other.toml").write_text('[groups]\nml = "viewer"\n')
        with board(redis, tmp_path, provider, roles=tmp_path / "other.toml") as server:
            found = httpx.get(f"{server.url}/api/v1/me", cookies=cookies, verify=False).json()
            assert (found["role"], found["project"]) == ("viewer", None)
        (tmp_path / "other.toml").write_text('[users]\nbob = "viewer"\n')
        with board(redis, tmp_path, provider, roles=tmp_path / "other.toml") as server:
            gone = httpx.get(f"{server.url}/api/v1/me", cookies=cookies, verify=False)
            assert (gone.status_code, gone.json()["error"]["code"]) == (401, "session_ended")
        # What one provider said is nothing to a server that has another one.
        with board(redis, tmp_path, provider, oidc_issuer="https://other.example") as server:
            assert httpx.get(f"{server.url}/api/v1/me", cookies=cookies, verify=False).status_code == 401
