"""Sign-in at a provider through the real server: who comes in, who does not and why. The provider is a fake that bends
what no good one does; `test_real.py` has a real one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from stabilitybackend.access.auth import KeyRing
from stabilitybackend.base.keys import SIGN_INS
from stabilitybackend.server.stages import SignIn
from stabilitybackend.storage.redis_link import make_redis
from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis
from support.oidc.fake import FakeProvider, new_key
from support.server_stack import RunningServer
from support.waiting import wait_until

ROLES = """
[users]
"boss@example.org" = "admin"
[groups]
ml = { role = "operator", project = "llm" }
sre = "operator"
guests = "viewer"
"""


@dataclass
class Stage:
    """A server, the provider that it asks, and the key of somebody who may read the audit log."""

    server: RunningServer
    provider: FakeProvider
    key: str

    def browser(self) -> httpx.Client:
        """Return a browser that knows nothing yet."""
        return httpx.Client(base_url=self.server.url, timeout=30, verify=False)

    def begin(self, browser: httpx.Client, then: str = "/") -> str:
        """Press the button; return the provider's page."""
        answer = browser.get("/api/v1/oidc/start", params={"next": then})
        assert answer.status_code == 303
        return str(answer.headers["location"])

    def sign_in(self, browser: httpx.Client, then: str = "/") -> str:
        """Go all the way; return the page where it ends."""
        return self.end(browser, self.provider.callback(self.begin(browser, then)))

    def end(self, browser: httpx.Client, callback: str) -> str:
        """Come back from the provider; return the page where it ends."""
        answer = browser.get(callback)
        assert answer.status_code == 303, answer.text
        return str(answer.headers["location"])

    def refused(self, page: str) -> str:
        """Return the code in the address of the sign-in page, "" for another page."""
        return parse_qs(urlsplit(page).query).get("refused", [""])[0]

    def words(self, code: str = "") -> Any:
        """Return what the sign-in page is told."""
        return self.server.get("/sign_in", refused=code)["oidc"]

    def audit(self, action: str) -> list[dict[str, Any]]:
        """Return what the audit log has of an action, newest first."""
        headers = {"Authorization": f"Bearer {self.key}"}
        answer = self.server.client.get("/api/v1/audit", params={"action": action}, headers=headers)
        found: list[dict[str, Any]] = answer.json()["entries"]
        return found


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("oidc")
    (folder / "roles.toml").write_text(ROLES)

    async def key(url: str) -> str:
        redis = make_redis(url)
        made = (await KeyRing(redis).create("auditor", ["read", "admin"]))[1]
        await redis.aclose()
        return made

    with EmbeddedRedis(folder) as redis, FakeProvider() as provider:
        made = asyncio.run(key(redis.url))
        given = {"public": True, "roles": folder / "roles.toml", "oidc_name": "Acme", **provider.settings}
        with RunningServer(redis.url, folder / "data", **given) as server:
            yield Stage(server, provider, made)


@pytest.fixture
def stage(kept: Stage) -> Stage:
    kept.provider.reset()
    # Of each reason one refusal a minute is in the log: each test has its own minute.
    kept.server.app.server[SignIn].refusals._seen.clear()
    return kept


def test_who_signs_in_has_the_role_and_project_of_the_group_and_goes_where_they_wanted(stage: Stage) -> None:
    with stage.browser() as browser:
        assert browser.get("/api/v1/me").json()["error"]["code"] == "key_missing"
        assert stage.sign_in(browser, "/runs/r-1?x=loss") == "/runs/r-1?x=loss"
        me = browser.get("/api/v1/me").json()
        assert (me["name"], me["role"], me["project"], me["by"]) == ("anna@example.org", "operator", "llm", "session")
        assert browser.get("/api/v1/audit").status_code == 403
    entry = stage.audit("login")[0]
    assert (entry["who"], entry["key_id"], entry["target"]) == ("anna@example.org", None, "")
    assert "at Acme as operator, groups ml; from 127.0.0.1" in entry["detail"]


def test_the_cookies_are_as_those_of_a_login_with_a_key(stage: Stage) -> None:
    with stage.browser() as browser:
        begun = browser.get("/api/v1/oidc/start")
        back = browser.get(stage.provider.callback(begun.headers["location"]))
        port = stage.server.port
        assert begun.headers["set-cookie"].startswith(f"stabilityboard_sign_in_{port}=")
        assert begun.headers["set-cookie"].endswith("; Path=/; Max-Age=600; HttpOnly; SameSite=Lax")
        gone, session = back.headers.get_list("set-cookie")
        assert gone == f"stabilityboard_sign_in_{port}=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax"
        assert session.startswith(f"stabilityboard_{port}=")
        assert session.endswith("; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict")
        # And its writes are asked for their origin as all are.
        foreign = browser.post("/api/v1/logout", headers={"Origin": "https://evil.example"})
        assert (foreign.status_code, foreign.json()["error"]["code"]) == (403, "foreign_origin")
        assert browser.get("/api/v1/me").status_code == 200


def test_below_a_path_the_sign_in_goes_out_and_comes_back_below_it(tmp_path: Path) -> None:
    (tmp_path / "roles.toml").write_text(ROLES)
    with EmbeddedRedis(tmp_path) as redis, FakeProvider() as provider:
        given = {"public": True, "root_path": "/hub/jo", "roles": tmp_path / "roles.toml", **provider.settings}
        with RunningServer(redis.url, tmp_path / "data", **given) as server:
            board = f"{server.url}/hub/jo"
            stage = Stage(server, provider, "")
            with httpx.Client(base_url=board, timeout=30, verify=False) as browser:
                page = stage.begin(browser, "/runs/r-1")
                assert parse_qs(urlsplit(page).query)["redirect_uri"] == [f"{board}/api/v1/oidc/callback"]
                back = browser.get(provider.callback(page))
                assert back.headers["location"] == "/hub/jo/runs/r-1"
                assert ["; Path=/hub/jo; " in one for one in back.headers.get_list("set-cookie")] == [True, True]
                assert browser.get("/api/v1/me").json()["name"] == "anna@example.org"
                assert stage.end(browser, f"{board}/api/v1/oidc/callback?state=x").startswith("/hub/jo/login?refused=")
            assert stage.words()["start"] == f"{board}/api/v1/oidc/start"


def test_what_is_asked_for_is_a_code_with_pkce_state_and_nonce(stage: Stage) -> None:
    with stage.browser() as browser:
        first, second = (parse_qs(urlsplit(stage.begin(browser)).query) for _ in range(2))
    assert first["response_type"] == ["code"]
    assert first["scope"] == ["openid profile email"]
    assert first["redirect_uri"] == [f"{stage.server.url}/api/v1/oidc/callback"]
    assert first["code_challenge_method"] == ["S256"]
    for name in ("state", "nonce", "code_challenge"):
        assert len(first[name][0]) >= 43
        assert first[name] != second[name]


def test_groups_that_changed_count_from_the_next_sign_in_on(stage: Stage) -> None:
    roles = []
    with stage.browser() as browser:
        for groups in (["ml"], ["ml", "sre"], ["guests"], "guests"):
            stage.provider.person["groups"] = groups
            stage.sign_in(browser)
            me = browser.get("/api/v1/me").json()
            roles.append((me["role"], me["project"]))
    # Of two operators the first in the provider's list counts.
    assert roles == [("operator", "llm"), ("operator", "llm"), ("viewer", None), ("viewer", None)]


def test_who_has_no_role_is_refused_in_words_and_may_come_as_somebody_else(stage: Stage) -> None:
    stage.provider.person |= {"email": "eve@example.org", "groups": ["sales"]}
    with stage.browser() as browser:
        page = stage.sign_in(browser, "/runs")
        assert page == "/login?refused=no_role&next=%2Fruns"
        assert browser.get("/api/v1/me").status_code == 401
        assert "no role here fits you or your groups" in stage.words("no_role")["refusal"]
        entry = stage.audit("login.refused")[0]
        assert (entry["who"], entry["target"]) == ("eve@example.org", "no_role")
        again = browser.get("/api/v1/oidc/start", params={"other": "true"}).headers["location"]
        assert parse_qs(urlsplit(again).query)["prompt"] == ["login"]


def test_what_a_short_token_leaves_out_is_asked_for(stage: Stage) -> None:
    stage.provider.bend = lambda claims: [claims.pop(name) for name in ("email", "groups", "email_verified")]
    with stage.browser() as browser:
        stage.sign_in(browser)
        assert browser.get("/api/v1/me").json()["name"] == "anna@example.org"
        stage.provider.bend = lambda claims: [claims.pop("groups"), claims.update(sub="2")]
        assert stage.refused(stage.sign_in(browser)) == "token_bad"


@pytest.mark.parametrize(
    "person",
    [{"email": None}, {"email": ""}, {"email": ["a"]}, {"email": "a\nb"}, {"email": "x" * 201}, {"email": " anna"},
     {"email_verified": False}, {"email_verified": "no"}],
    ids=str,
)  # fmt: skip
def test_a_name_that_is_none_or_that_nobody_checked_is_refused(stage: Stage, person: dict[str, Any]) -> None:
    stage.provider.person |= person
    with stage.browser() as browser:
        assert stage.refused(stage.sign_in(browser)) == "no_name"


@pytest.mark.parametrize(
    "then",
    ["https://evil.example", "//evil.example", "/\\evil.example", "\\\\evil.example", "/\t/evil.example",
     "/\n/evil.example", "javascript:alert(1)", "runs", "", "/api/v1/me", "/login?next=//x", "/é", "/" + "a" * 3000],
)  # fmt: skip
def test_no_sign_in_leads_to_another_place_than_a_page_of_ours(stage: Stage, then: str) -> None:
    with stage.browser() as browser:
        assert stage.sign_in(browser, then) == "/"


def test_a_callback_works_once_and_in_the_browser_that_began(stage: Stage) -> None:
    with stage.browser() as browser, stage.browser() as other:
        callback = stage.provider.callback(stage.begin(browser))
        assert stage.refused(stage.end(other, callback)) == "other_browser"
        cookies = dict(browser.cookies)
        assert stage.end(browser, callback) == "/"
        # With the very cookie of the first time, as who copied the whole request would send it.
        replayed = httpx.get(callback, cookies=cookies, verify=False)
        assert stage.refused(replayed.headers["location"]) == "unknown_sign_in"
        assert not [one for one in replayed.headers.get_list("set-cookie") if "SameSite=Strict" in one]
        assert stage.refused(stage.end(other, "/api/v1/oidc/callback?code=x")) == "unknown_sign_in"
        assert stage.refused(stage.end(other, "/api/v1/oidc/callback?code=x&state=0-0.x")) == "unknown_sign_in"


def test_of_two_callbacks_at_once_one_signs_in(stage: Stage) -> None:
    with stage.browser() as browser, ThreadPoolExecutor(8) as threads:
        callback = stage.provider.callback(stage.begin(browser))
        cookies = dict(browser.cookies)
        answers = threads.map(lambda _: httpx.get(callback, cookies=cookies, verify=False), range(8))
        ends = sorted(str(answer.headers["location"]) for answer in answers)
    assert ends == ["/", *["/login?refused=unknown_sign_in&next=%2F"] * 7]


def test_a_code_of_another_sign_in_is_refused(stage: Stage) -> None:
    with stage.browser() as browser, stage.browser() as other:
        stolen = parse_qs(urlsplit(stage.provider.callback(stage.begin(other))).query)["code"][0]
        state = parse_qs(urlsplit(stage.begin(browser)).query)["state"][0]
        page = stage.end(browser, f"/api/v1/oidc/callback?code={stolen}&state={state}")
        assert stage.refused(page) == "provider_refused"
        assert "token_endpoint answered 400: invalid_grant" in stage.audit("login.refused")[0]["detail"]
        assert browser.get("/api/v1/me").status_code == 401


@pytest.mark.parametrize(
    ("bend", "detail"),
    [
        (lambda claims: claims.update(nonce="of another"), "nonce"),
        (lambda claims: claims.update(aud="another client"), "aud"),
        (lambda claims: claims.update(iss="https://other.example"), "iss"),
        (lambda claims: claims.update(exp=claims["iat"] - 60), "expired"),
    ],
    ids=["nonce", "aud", "iss", "exp"],
)
def test_a_token_that_does_not_hold_signs_nobody_in(stage: Stage, bend: Any, detail: str) -> None:
    stage.provider.bend = bend
    with stage.browser() as browser:
        assert stage.refused(stage.sign_in(browser)) == "token_bad"
        assert browser.get("/api/v1/me").status_code == 401
    entry = stage.audit("login.refused")[0]
    assert detail in entry["detail"].lower()
    assert entry["who"] == ""


def test_new_keys_of_the_provider_are_fetched_when_a_token_names_one(stage: Stage) -> None:
    with stage.browser() as browser:
        assert stage.sign_in(browser) == "/"
        stage.provider.key = new_key("second")
        # Not published: it may be anybody's.
        assert stage.refused(stage.sign_in(browser)) == "token_bad"
        stage.provider.published = [stage.provider.key.as_dict(private=False)]
        assert stage.sign_in(browser) == "/"
        before = stage.provider.asked.count("/jwks")
        assert stage.sign_in(browser) == "/"
        assert stage.provider.asked.count("/jwks") == before
        # And the old one is forgotten.
        stage.provider.key = FakeProvider._KEY
        assert stage.refused(stage.sign_in(browser)) == "token_bad"


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (500, b"Traceback: password=hunter2", "provider_away"),
        (502, b"<html>hunter2</html>", "provider_away"),
        (200, b"<html>hunter2</html>", "provider_wrong"),
        (200, b"{}", "provider_wrong"),
        (200, b'{"id_token": 7}', "provider_wrong"),
        (200, b"[" * 600_000, "provider_wrong"),
        (400, b'{"error": "invalid_client", "error_description": "hunter2"}', "provider_refused"),
        (400, b'{"error": "<b>hunter2</b>"}', "provider_refused"),
        (302, b"", "provider_refused"),
    ],
    ids=["500", "502", "html", "empty", "number", "endless", "refused", "markup", "redirect"],
)
def test_a_token_endpoint_in_trouble_signs_nobody_in(stage: Stage, status: int, body: bytes, code: str) -> None:
    stage.provider.instead["/token"] = (status, body)
    with stage.browser() as browser:
        assert stage.refused(stage.sign_in(browser)) == code
        assert stage.words(code)["refusal"]
        assert "hunter2" not in str(stage.audit("login.refused"))
        assert stage.provider.settings["oidc_client_secret"] not in str(stage.audit("login.refused"))


def test_a_slow_token_endpoint_is_given_up_and_holds_up_nobody(stage: Stage) -> None:
    stage.provider.goes_on.clear()
    with stage.browser() as browser:
        page = stage.sign_in(browser)
    assert stage.refused(page) == "provider_away"
    assert "has not answered within 5 s" in stage.audit("login.refused")[0]["detail"]


@pytest.mark.parametrize(
    ("back", "code"),
    [
        ({"code": None, "error": "access_denied"}, "cancelled"),
        ({"code": None, "error": "server_error", "error_description": "<script>"}, "provider_refused"),
        ({"iss": "https://other.example"}, "token_bad"),
        ({"code": None}, "provider_refused"),
    ],
    ids=["cancelled", "error", "another-provider", "no-code"],
)
def test_what_the_provider_sends_back_instead_of_a_code_is_said_in_words(
    stage: Stage, back: dict[str, str | None], code: str
) -> None:
    stage.provider.sends_back = back
    with stage.browser() as browser:
        page = stage.sign_in(browser, "/runs")
    assert (stage.refused(page), parse_qs(urlsplit(page).query)["next"]) == (code, ["/runs"])
    assert stage.words(code)["refusal"]
    assert "script" not in str(stage.audit("login.refused")[0])


def test_the_page_says_only_what_it_knows_by_a_code(stage: Stage) -> None:
    assert stage.words() == {
        "name": "Acme", "start": f"{stage.server.url}/api/v1/oidc/start", "trouble": "", "refusal": ""
    }  # fmt: skip
    assert stage.words("your password is wrong, write to evil@example.org")["refusal"] == ""


def test_refused_sign_ins_by_the_thousand_do_not_push_others_out_of_the_log(stage: Stage) -> None:
    before = len(stage.audit("login.refused"))
    with stage.browser() as browser:
        for _ in range(20):
            stage.end(browser, "/api/v1/oidc/callback?state=x")
        assert len(stage.audit("login.refused")) == before + 1
        redis = make_redis(stage.server._redis_url)

        async def kept() -> int:
            found = await redis.xlen(SIGN_INS)
            await redis.aclose()
            return int(found)

        # Nothing is kept of what was never begun.
        assert asyncio.run(kept()) < 200


def test_a_logout_ends_the_session_and_leads_to_the_providers_own(stage: Stage) -> None:
    with stage.browser() as browser:
        stage.sign_in(browser)
        cookies = dict(browser.cookies)
        then = browser.post("/api/v1/logout").json()["go_to"]
        address, query = then.split("?")
        given = {name: values[0] for name, values in parse_qs(query).items()}
        assert address == f"{stage.provider.issuer}/logout"
        assert given["client_id"] == "board"
        assert given["post_logout_redirect_uri"] == f"{stage.server.url}/login"
        assert given["id_token_hint"].count(".") == 2
        assert httpx.get(f"{stage.server.url}/api/v1/me", cookies=cookies, verify=False).status_code == 401
    assert stage.audit("logout")[0]["who"] == "anna@example.org"
    wait_until(lambda: stage.server.client.post("/api/v1/logout").json()["go_to"] is None, 5, "nobody to sign out")
