"""Attached to an application, the pages are served and its own routes stay as they were."""

from __future__ import annotations

import gzip
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from urllib.parse import urljoin

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

import stabilityfrontend
from support.waiting import wait_until


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    app = FastAPI()

    @app.get("/api/v1/mine")
    def mine() -> dict[str, int]:
        return {"mine": 1}

    stabilityfrontend.attach(app, title="Board of tests")
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="on"))
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, args=([bound],))
        thread.start()
        wait_until(lambda: server.started, 20, "the pages are served")
        with httpx.Client(base_url=f"http://127.0.0.1:{bound.getsockname()[1]}", timeout=20) as client:
            yield client
        server.should_exit = True
        thread.join()


def test_the_applications_own_routes_come_first(client: httpx.Client) -> None:
    assert client.get("/api/v1/mine").json() == {"mine": 1}


@pytest.mark.parametrize("path", ["/", "/login", "/runs/some-run"])
def test_a_page_is_html_that_loads_from_here_only(client: httpx.Client, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert "<title>Board of tests</title>" in answer.text
    sources = re.findall(r'<(?:script|link)[^>]* (?:src|href)="([^"]+)"', answer.text)
    assert sources
    assert [source for source in sources if not source.startswith(("./", "../", "data:"))] == []


@pytest.mark.parametrize("path", ["/", "/login", "/runs/", "/runs/some-run", "/runs/a%2Fb/incidents/c"])
def test_every_script_and_style_of_a_page_is_there_wherever_the_page_is(client: httpx.Client, path: str) -> None:
    # The page of a board that a proxy serves below /a/b, as a browser that knows nothing of that resolves it.
    sources = re.findall(r'(?:src|href)="([^"]+)"|url\("([^"]+)"\)', client.get(path).text)
    found = {urljoin(f"http://host/a/b{path}", one or other) for one, other in sources if not one.startswith("data:")}
    assert len(found) > 8
    for source in found:
        assert source.startswith("http://host/a/b/_"), source
        assert client.get(source.removeprefix("http://host/a/b")).status_code == 200, source


def test_no_page_script_or_style_has_an_address_from_the_root_of_the_host(client: httpx.Client) -> None:
    page = client.get("/").text
    assert re.findall(r"""(?:src|href|action)=["']/|url\(["']?/|pathname_prefix": ?"/""", page) == []
    styles = client.get(re.search(r'"\.(/_stability/board-[^"]+css)"', page)[1]).text
    assert re.findall(r"""url\(["']?/|@import""", styles) == []
    modules = client.get(re.search(r'"\.(/_stability/board-[^"]+js)"', page)[1]).text
    asked = r"""(?:fetch|import|WebSocket|EventSource|assign|replace|pushState|open|sendBeacon|register)\("""
    assert re.findall(asked + r"""(?:\{\}, "", )?["'`]/""", modules + page) == []
    assert re.findall(r"""\.(?:href|src|action) = ["'`]/|setAttribute\("(?:href|src)", ["'`]/""", modules + page) == []


def test_the_theme_is_set_before_anything_is_painted(client: httpx.Client) -> None:
    head, _, body = client.get("/").text.partition("<body>")
    assert "dataset.theme" in head
    assert "dataset.theme" not in body


def test_the_layout_is_ready_at_the_first_request_of_any_kind(client: httpx.Client) -> None:
    children = client.get("/_dash-layout").json()["props"]["children"]
    assert "chart-config" in {child["props"]["id"] for child in children}
    dependencies = client.get("/_dash-dependencies").json()
    assert {one["output"] for one in dependencies} == {
        "..page.children...viewer.data..",
        '{"part":["MATCH"],"type":"given"}.data',
        '{"part":["MATCH"],"type":"part"}.children',
    }


def test_what_pages_load_is_packed_kept_for_a_year_and_whole(client: httpx.Client) -> None:
    page = client.get("/").text
    ours = re.findall(r"(?<=href=\"\.)/_stability/board-[0-9a-f]{16}\.(?:js|css)", page)
    assert len(ours) == 2
    for url in ours:
        with client.stream("GET", url, headers={"accept-encoding": "gzip"}) as answer:
            assert answer.headers["content-encoding"] == "gzip"
            assert "immutable" in answer.headers["cache-control"]
            packed = b"".join(answer.iter_raw())
        plain = client.get(url, headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert gzip.decompress(packed) == plain.content
        assert len(packed) < len(plain.content) / 3


def test_importing_the_package_does_nothing() -> None:
    code = "import sys, stabilityfrontend; print(sorted({'dash', 'plotly', 'fastapi'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_attaching_prints_nothing_to_stdout() -> None:
    code = "import stabilityfrontend, fastapi; stabilityfrontend.attach(fastapi.FastAPI())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""


def test_the_public_names_are_these() -> None:
    assert stabilityfrontend.__all__ == ["PagesError", "attach"]


async def test_the_address_that_the_interruptions_had_leads_to_them_with_its_query() -> None:
    app = FastAPI()
    stabilityfrontend.attach(app)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        answer = await client.get("/fleet?days=7&project=a%20b")
    assert (answer.status_code, answer.headers["location"]) == (308, "./interruptions?days=7&project=a%20b")
