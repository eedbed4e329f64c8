"""Which names are ours and which pages may call, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stabilitybackend.access.origins import Origins
from stabilitybackend.base.errors import Forbidden, SettingsError
from stabilitybackend.base.settings import Settings

PROXIED = {"public_url": "https://board.example"}


def origins(**settings: Any) -> Origins:
    return Origins.of(Settings(data_dir=Path("/nowhere"), **settings))


def asked(**headers: str) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


@pytest.mark.parametrize(
    ("settings", "host"),
    [
        ({}, "127.0.0.1:8080"),
        ({}, "LOCALHOST:1"),  # a forwarded port of ssh
        ({}, "localhost."),
        ({}, "[::1]:8080"),
        ({"host": "0.0.0.0"}, "10.1.2.3:8080"),
        ({"host": "0.0.0.0"}, "[fe80::1]:8080"),
        ({"host": "board"}, "board:8080"),
        ({"host": "0.0.0.0", "trusted_hosts": ("*.cluster",)}, "a.b.cluster:8080"),
        ({"trusted_hosts": ("board.lab",)}, "Board.lab"),
        (PROXIED, "board.example"),
        (PROXIED, "board.example:443"),
        (PROXIED, "127.0.0.1:8080"),  # what a proxy sends that does not pass Host on
    ],
)
def test_a_name_of_ours_is_served(settings: dict[str, Any], host: str) -> None:
    origins(**settings).check(asked(host=host))


@pytest.mark.parametrize(
    ("settings", "host"),
    [
        ({}, "evil.example:8080"),
        ({}, "10.1.2.3:8080"),
        ({}, "localhost.evil.example"),
        ({}, ""),
        ({}, "["),
        ({}, "127.0.0.1@evil.example"),
        ({"host": "0.0.0.0"}, "evil.example"),
        ({"trusted_hosts": ("*.cluster",)}, "cluster"),
        ({"trusted_hosts": ("*.cluster",)}, "evilcluster"),
        (PROXIED, "evil.example"),
    ],
)
def test_a_name_that_is_not_ours_is_refused_whatever_it_resolves_to(settings: dict[str, Any], host: str) -> None:
    with pytest.raises(Forbidden) as refused:
        origins(**settings).check(asked(host=host))
    assert refused.value.code == "foreign_host"
    assert "STABILITY_TRUSTED_HOSTS" in refused.value.hint


def test_a_request_without_a_host_and_one_with_two_are_refused() -> None:
    for headers in ([], [(b"host", b"localhost"), (b"host", b"localhost")]):
        with pytest.raises(Forbidden):
            origins().check(headers)


@pytest.mark.parametrize(
    ("settings", "origin", "host"),
    [
        ({}, "http://127.0.0.1:8080", "127.0.0.1:8080"),
        ({}, "http://localhost", "localhost:80"),
        ({}, "http://[::1]:8080", "[::1]:8080"),
        ({"trusted_hosts": ("board.lab",)}, "https://board.lab", "board.lab"),
        (PROXIED, "https://board.example", "board.example"),
        (PROXIED, "https://board.example", "127.0.0.1:8080"),
        (PROXIED, "http://localhost:8080", "localhost:8080"),
        ({"public_url": "https://board.example:443/"}, "https://board.example", "board.example"),
    ],
)
def test_a_page_of_ours_may_call(settings: dict[str, Any], origin: str, host: str) -> None:
    origins(**settings).check(asked(host=host, origin=origin))


@pytest.mark.parametrize(
    ("settings", "origin", "host"),
    [
        ({}, "https://evil.example", "127.0.0.1:8080"),
        ({}, "http://127.0.0.1:9999", "127.0.0.1:8080"),
        ({}, "null", "127.0.0.1:8080"),
        ({}, "chrome-extension://127.0.0.1:8080", "127.0.0.1:8080"),
        (PROXIED, "https://evil.example", "board.example"),
        (PROXIED, "https://board.example.evil.example", "127.0.0.1:8080"),
        (PROXIED, "http://board.example", "board.example"),  # the name without its https
    ],
)
def test_a_page_of_another_site_may_not_call(settings: dict[str, Any], origin: str, host: str) -> None:
    with pytest.raises(Forbidden) as refused:
        origins(**settings).check(asked(host=host, origin=origin))
    assert refused.value.code == "foreign_origin"
    assert "STABILITY_PUBLIC_URL" in refused.value.hint


def test_behind_a_proxy_the_public_address_says_whether_a_person_came_over_https() -> None:
    proxied = origins(**PROXIED)
    assert proxied.is_https(asked(host="board.example"), "http")
    assert proxied.is_https(asked(host="127.0.0.1:8080", origin="https://board.example"), "http")
    assert not proxied.is_https(asked(host="127.0.0.1:8080"), "http")
    assert not origins().is_https(asked(host="localhost"), "http")
    assert origins().is_https(asked(host="localhost"), "https")


@pytest.mark.parametrize(
    ("settings", "exposed"),
    [
        ({}, False),
        ({"public_url": "http://localhost:8080"}, False),
        ({"trusted_hosts": ("127.0.0.2",)}, False),
        (PROXIED, True),
        ({"trusted_hosts": ("board.lab",)}, True),
        ({"host": "0.0.0.0"}, True),
    ],
)
def test_a_public_name_means_that_others_can_reach_the_server(settings: dict[str, Any], exposed: bool) -> None:
    assert Settings(data_dir=Path("/nowhere"), **settings).exposed is exposed


@pytest.mark.parametrize(
    "given",
    [
        {"public_url": "board.example"},
        {"public_url": "ftp://board.example"},
        {"public_url": "https://board.example/stability?a=b"},
        {"public_url": "https://board.example/a/../b"},
        {"public_url": "https://board.example//b"},
        {"public_url": "https://board.example/runs/board"},
        {"public_url": "https://board.example:port"},
        {"public_url": "https://user:secret@board.example"},
        {"trusted_hosts": "https://board.example"},
        {"trusted_hosts": "a.example, b.example:8080"},
    ],
)
def test_a_public_name_that_can_not_be_one_stops_the_start(given: dict[str, str]) -> None:
    with pytest.raises(SettingsError) as refused:
        Settings.from_env_and_args({"HOME": "/h"}, **given)
    assert "secret" not in refused.value.message
    assert refused.value.hint == f"set STABILITY_{next(iter(given)).upper()}"
