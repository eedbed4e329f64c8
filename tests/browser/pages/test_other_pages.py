"""Pages without a run to show: the empty list, an unknown run, an unknown address, the key."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from support.ports import free_port
from support.processes import Server
from support.waiting import wait_in

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("pages") / "data", free_port()) as server:
        yield server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    """A server that other machines reach, and a key for it."""
    data = tmp_path_factory.mktemp("guarded") / "data"
    command = [sys.executable, "-m", "stabilitybackend.cli", "keys", "create", "tests", "--data-dir", str(data)]
    key = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()[0]
    with Server(data, free_port(), env={"STABILITY_HOST": "0.0.0.0"}) as server:
        yield server, key


@pytest.mark.parametrize("scheme", [pytest.param("dark", marks=pytest.mark.soak), "light"])
def test_an_empty_list_says_how_to_begin(server: Server, open_page: OpenPage, scheme: str) -> None:
    page = open_page(server.url, scheme=scheme)
    page.wait_for_selector("#runs-empty:not([hidden])")
    words = page.inner_text("#runs-empty")
    assert "make demo" in words
    assert f'url="{server.url}"' in words
    compile(page.inner_text("#runs-empty pre"), "snippet", "exec")


def test_an_unknown_address_leads_back(server: Server, open_page: OpenPage) -> None:
    page = open_page(f"{server.url}/some/where", quiet=False)
    page.click("main a")
    page.wait_for_selector("#runs-empty:not([hidden])")
    assert page.evaluate("location.pathname") == "/"


@pytest.mark.soak
def test_a_wrong_key_is_refused_in_words(server: Server, open_page: OpenPage) -> None:
    page = open_page(f"{server.url}/login", quiet=False)
    page.wait_for_selector("#login-key")
    page.click("#login-send")
    assert page.inner_text("#login-error") == "Paste a key first."
    page.fill("#login-key", "not a key")
    page.click("#login-send")
    wait_in(page, "document.querySelector('#login-error')?.textContent.length > 20")
    assert page.evaluate("location.pathname") == "/login"


def test_without_a_key_a_page_asks_for_one_and_with_it_goes_where_it_was_going(
    guarded: tuple[Server, str], open_page: OpenPage
) -> None:
    server, key = guarded
    # The browser itself writes each refused request to the console.
    page = open_page(f"{server.url}/runs", quiet=False)
    page.wait_for_selector("#login-key")
    assert page.evaluate("location.search") == "?next=%2Fruns"
    page.fill("#login-key", key)
    page.click("#login-send")
    page.wait_for_selector("#runs-empty:not([hidden])")
    assert page.evaluate("location.pathname") == "/runs"
    wait_in(page, "document.querySelector('#live-pill')?.textContent.includes('connected')")
    assert key not in page.evaluate("JSON.stringify(Object.entries(localStorage)) + document.cookie")


@pytest.mark.soak
def test_who_is_logged_in_is_said_and_may_leave(guarded: tuple[Server, str], open_page: OpenPage) -> None:
    server, key = guarded
    page = open_page(f"{server.url}/login?next=/interruptions", quiet=False)
    page.fill("#login-key", key)
    page.click("#login-send")
    page.wait_for_selector("#log-out")
    assert (page.evaluate("location.pathname"), page.inner_text("#who-name")) == ("/interruptions", "tests")
    page.click("#log-out")
    page.wait_for_selector("#login-key")
    page.goto(f"{server.url}/interruptions")
    page.wait_for_selector("#login-key")
    assert page.evaluate("location.search") == "?next=%2Finterruptions"
