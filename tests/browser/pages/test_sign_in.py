"""Sign-in at a real provider as a person sees it: Chromium, the board's button, the provider's own page, and back.

The provider is another site (localhost) than the board (127.0.0.1), as it is for people: cookies that the browser keeps
from other sites are kept from this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis
from support.oidc.real import RealProvider
from support.server_stack import RunningServer
from support.waiting import wait_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

OpenPage = Callable[..., "Page"]
ROLES = """
[groups]
ml = { role = "operator", project = "llm" }
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, RealProvider]]:
    folder = tmp_path_factory.mktemp("sign_in")
    (folder / "roles.toml").write_text(ROLES)
    with EmbeddedRedis(folder) as redis, RealProvider(folder) as provider:
        provider.know("anna", "ml")
        provider.know("eve", "sales")
        given = {"roles": folder / "roles.toml", "oidc_name": "Acme", **provider.settings}
        with RunningServer(redis.url, folder / "data", public=True, port=provider.board_port, **given) as server:
            yield server, provider


def at_the_provider(page: Page, name: str) -> None:
    """Go through the provider's pages: who it is, and that the board may know."""
    page.wait_for_selector("[name=login]")
    page.fill("[name=login]", name)
    page.fill("[name=password]", "any")
    page.click("[type=submit]")
    page.wait_for_selector("[name=prompt][value=consent]", state="attached")
    page.click("[type=submit]")


def test_a_person_signs_in_at_the_providers_page_and_out_again(
    stage: tuple[RunningServer, RealProvider], chromium: Browser
) -> None:
    server, _ = stage
    context = chromium.new_context()
    context.set_default_timeout(90_000)
    page = context.new_page()
    page.goto(f"{server.url}/incidents?severity=critical")
    page.wait_for_selector("#login-provider")
    assert page.inner_text("#login-provider") == "Sign in with Acme"
    page.click("#login-provider")
    assert page.url.startswith("http://localhost:")
    at_the_provider(page, "anna")
    page.wait_for_selector("#who-name")
    assert page.url == f"{server.url}/incidents?severity=critical"
    assert page.inner_text("#who-name") == "anna@example.org"
    assert page.inner_text("#who-may") == "project llm · operator"
    session = next(one for one in context.cookies(server.url) if one["name"] == f"stabilityboard_{server.port}")
    assert (session["httpOnly"], session["sameSite"]) == (True, "Strict")
    assert page.evaluate("document.cookie + JSON.stringify(localStorage)").count("ey") == 0

    page.click("#log-out")
    page.wait_for_selector("text=Do you want to sign-out")
    page.click("[value=yes]")
    page.wait_for_selector("#login-provider")
    assert page.url == f"{server.url}/login"
    # Neither here nor there is anybody signed in.
    page.click("#login-provider")
    page.wait_for_selector("[name=login]")
    context.close()


@pytest.mark.soak
def test_who_has_no_role_reads_so_and_may_sign_in_as_somebody_else(
    stage: tuple[RunningServer, RealProvider], chromium: Browser
) -> None:
    server, _ = stage
    context = chromium.new_context()
    context.set_default_timeout(90_000)
    page = context.new_page()
    page.goto(f"{server.url}/login?next=/runs")
    page.click("#login-provider")
    at_the_provider(page, "eve")
    page.wait_for_selector("#login-refused")
    assert "no role here fits you or your groups" in page.inner_text("#login-refused")
    assert page.inner_text("#login-provider") == "Sign in with Acme as another person"
    page.click("#login-provider")
    at_the_provider(page, "anna")
    page.wait_for_selector("#who-name")
    assert page.url == f"{server.url}/runs"
    context.close()


@pytest.mark.parametrize(
    ("scheme", "width"),
    [("dark", 390), *(pytest.param("light", wide, marks=pytest.mark.soak) for wide in (1280, 2560))],
)
def test_the_page_says_that_the_provider_is_away_and_still_takes_a_key(
    stage: tuple[RunningServer, RealProvider], open_page: OpenPage, tmp_path: Path, scheme: str, width: int
) -> None:
    _, provider = stage
    (tmp_path / "roles.toml").write_text(ROLES)
    away = {**provider.settings, "oidc_issuer": "http://localhost:9", "oidc_name": "Acme"}
    away["roles"] = tmp_path / "roles.toml"
    redis = EmbeddedRedis(tmp_path)
    with redis, RunningServer(redis.url, tmp_path / "data", public=True, **away) as lone:
        page = open_page(f"{lone.url}/login?refused=provider_away", quiet=False, scheme=scheme, width=width)
        page.wait_for_selector("#login-provider")
        assert page.inner_text("#login-refused").startswith("Acme can't be reached from this server.")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.fill("#login-key", "sb_wrong")
        page.click("#login-send")
        wait_in(page, "document.querySelector('#login-error')?.textContent.includes('not known here')")
