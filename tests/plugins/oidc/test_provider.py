"""What is learned of a provider: kept for an hour, longer while it is away, and never of another issuer.

Time is handed in; what answers is the fake of `support.oidc.fake`, over a socket.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from stabilitybackend.base.errors import SettingsError
from stabilitybackend.base.settings import Settings
from stabilitybackend.storage.redis_link import make_redis
from stabilityplugins.oidc.provider import FRESH_S, RETRY_S, Provider
from stabilityplugins.oidc.refusals import SignInRefused
from stabilityplugins.oidc.settings import OidcSettings, is_safe_address
from stabilityplugins.oidc.sign_in import OidcSignIn
from support.oidc.fake import FakeProvider

DISCOVERY = "/.well-known/openid-configuration"


@pytest.fixture(scope="module")
def kept() -> Iterator[FakeProvider]:
    with FakeProvider() as provider:
        yield provider


@pytest.fixture
def fake(kept: FakeProvider) -> FakeProvider:
    kept.reset()
    return kept


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def provider(fake: FakeProvider, clock: Clock, tmp_path: Path) -> AsyncIterator[Provider]:
    settings = OidcSettings.of(given(tmp_path, **fake.settings))
    assert settings is not None
    made = Provider(settings, monotonic=clock)
    yield made
    await made.close()


def given(folder: Path, **more: Any) -> Settings:
    known = {"public_url": "http://127.0.0.1:8080", "oidc_issuer": "https://id.example", "oidc_client_id": "board"}
    return Settings(data_dir=folder, **{name: value for name, value in {**known, **more}.items() if value is not None})


async def code_of(provider: Provider) -> str:
    """Return why nobody can sign in now, "" where everybody can."""
    try:
        await provider.ready()
    except SignInRefused as refused:
        return refused.code
    return ""


async def test_a_provider_that_was_away_is_asked_again_after_some_seconds(
    provider: Provider, fake: FakeProvider, clock: Clock
) -> None:
    fake.instead[DISCOVERY] = (503, b"")
    for _ in range(5):
        assert await code_of(provider) == "provider_away"
    assert fake.asked.count(DISCOVERY) == 1
    fake.instead.clear()
    clock.now += RETRY_S
    assert await code_of(provider) == ""


async def test_what_is_known_is_kept_for_an_hour_and_longer_while_the_provider_is_away(
    provider: Provider, fake: FakeProvider, clock: Clock
) -> None:
    for _ in range(3):
        assert await code_of(provider) == ""
    assert fake.asked.count(DISCOVERY) == 1
    fake.instead[DISCOVERY] = (503, b"")
    clock.now += FRESH_S
    assert await code_of(provider) == ""
    assert fake.asked.count(DISCOVERY) == 2
    fake.instead.clear()
    fake.says["end_session_endpoint"] = None
    clock.now += RETRY_S
    assert await provider.sign_out_url("") is None


@pytest.mark.parametrize(
    "says",
    [
        {"issuer": "https://other.example"}, {"issuer": None}, {"token_endpoint": None}, {"jwks_uri": 7},
        {"token_endpoint": "http://id.example/token"}, {"authorization_endpoint": "javascript:alert(1)"},
        {"jwks_uri": "file:///etc/passwd"}, {"end_session_endpoint": "http://id.example/"},
    ],
    ids=str,
)  # fmt: skip
async def test_a_provider_that_says_something_else_of_itself_is_not_used(
    provider: Provider, fake: FakeProvider, says: dict[str, Any]
) -> None:
    fake.says = says
    assert await code_of(provider) == "provider_wrong"


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"null", b"{" * 600_000], ids=["html", "list", "null", "endless"])
async def test_a_document_that_is_none_is_not_used(provider: Provider, fake: FakeProvider, body: bytes) -> None:
    fake.instead[DISCOVERY] = (200, body)
    assert await code_of(provider) == "provider_wrong"


async def test_a_redirect_of_the_provider_is_not_followed(provider: Provider, fake: FakeProvider) -> None:
    fake.instead[DISCOVERY] = (302, b"")
    assert await code_of(provider) == "provider_wrong"
    assert fake.asked == [DISCOVERY]


def test_secrets_go_over_https_or_within_this_machine_alone() -> None:
    for good in ("https://id.example/realms/ml", "http://127.0.0.1:5556/dex", "http://localhost", "http://[::1]:1"):
        assert is_safe_address(good), good
    for bad in ("http://id.example", "ftp://id.example", "id.example", "https://", "https://user:pass@id.example", "",
                "https://id.example/\n", "https://id example", "https://[", "https://id.example:x"):  # fmt: skip
        assert not is_safe_address(bad), bad


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"oidc_issuer": "http://id.example"}, "oidc_issuer is 'http://id.example', expected an https:// address"),
        ({"oidc_issuer": "https://id.example?x"}, "oidc_issuer"),
        ({"public_url": None}, "public_url is 'nothing'"),
        ({"oidc_client_id": None}, "oidc_client_id is 'nothing'"),
        ({"oidc_scopes": "email"}, "oidc_scopes is 'email', expected openid and others"),
        ({"oidc_client_secret": "a", "oidc_client_secret_file": Path("x")}, "oidc_client_secret is 'set', expected no"),
        ({"oidc_client_secret_file": Path("/nowhere")}, "oidc_client_secret_file is '/nowhere', expected a file"),
        ({"oidc_client_secret": "hunter2\n"}, "oidc_client_secret is '8 characters'"),
        ({}, "roles is 'nothing'"),
    ],
    ids=str,
)
def test_a_wrong_setting_stops_the_start_and_the_secret_is_in_no_message(
    tmp_path: Path, wrong: dict[str, Any], said: str
) -> None:
    settings = given(tmp_path, **wrong)
    assert "hunter2" not in repr(settings)
    with pytest.raises(SettingsError) as refused:
        OidcSignIn.of(settings, make_redis("redis://127.0.0.1:1"))
    assert said in refused.value.message
    assert "hunter2" not in refused.value.message + refused.value.hint


def test_without_the_packages_the_start_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stabilityplugins.oidc.provider", None)
    (tmp_path / "roles.toml").write_text('default = "viewer"\n')
    with pytest.raises(SettingsError) as refused:
        OidcSignIn.of(given(tmp_path, roles=tmp_path / "roles.toml"), make_redis("redis://127.0.0.1:1"))
    assert refused.value.hint == "pip install 'stabilityboard[oidc]'"


def test_the_secret_comes_from_a_file_and_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("hunter2\n")
    settings = OidcSettings.of(given(tmp_path, oidc_client_secret_file=file))
    assert settings is not None
    assert settings.client_secret == "hunter2"
    assert "hunter2" not in repr(settings)
    assert (settings.name, settings.redirect_url) == ("id.example", "http://127.0.0.1:8080/api/v1/oidc/callback")
    assert OidcSettings.of(given(tmp_path, oidc_issuer=None)) is None
