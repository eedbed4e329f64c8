"""What pages of others can do to a server on loopback without keys, through the browser of somebody who visits them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from stabilitybackend.access.auth import KeyRing
from stabilitybackend.storage.redis_link import make_redis
from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis
from support.gateway_stack import log_frames
from support.job_frames import Job
from support.server_stack import RunningServer
from support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

OpenPage = Callable[..., "Page"]
ORDER = '{"kind": "rollback", "to_step": 5, "reason": "clickjacked"}'

#: Tries each way to write from a page of another site; gives what could be read of the answers.
WRITE = """async ([base, order]) => {
  const read = [];
  const url = `${base}/api/v1/runs/run-1/commands`;
  for (const options of [
    { method: "POST", body: order, mode: "no-cors", headers: { "Content-Type": "text/plain" } },
    { method: "POST", body: order, credentials: "include", headers: { "Content-Type": "application/json" } },
    { method: "DELETE" },
  ]) {
    try {
      read.push(await (await fetch(url, { ...options, signal: AbortSignal.timeout(20000) })).text());
    } catch (error) {
      read.push("");
    }
  }
  try {
    read.push(await (await fetch(`${base}/api/v1/runs`, { signal: AbortSignal.timeout(20000) })).text());
  } catch (error) {
    read.push("");
  }
  return read;
}"""

#: Sends the order as a form does, its answer into a frame.
SEND_FORM = """([base, order]) => {
  const url = `${base}/api/v1/runs/run-1/commands`;
  const form = document.createElement("form");
  Object.assign(form, { method: "POST", action: url, enctype: "text/plain", target: "answer" });
  const field = document.createElement("input");
  Object.assign(field, { name: order.slice(0, -1) + ', "idempotency_key": "', value: '"}' });
  form.append(field);
  document.body.append(form);
  form.submit();
}"""

SOCKET = """(url) => new Promise((done) => {
  const socket = new WebSocket(url);
  socket.onopen = () => done("open");
  socket.onclose = () => done("closed");
  setTimeout(() => done("neither, for 20 s"), 20000);
})"""


class _EvilPage(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        address = self.path.partition("?")[2]
        body = f'<body><iframe name="answer"></iframe><iframe name="framed" src="{address}"></iframe>'.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def evil() -> Iterator[str]:
    """Address of another site's page; what stands after its ``?`` is framed there."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _EvilPage) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://evil.example:{http.server_port}"
        http.shutdown()
        thread.join()


async def _key(redis_url: str, *scopes: str) -> str:
    redis = make_redis(redis_url)
    _, text = await KeyRing(redis).create("visitor", scopes)
    await redis.aclose()
    return text


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    """Return what ``work`` returns; in a thread, for the browser's own loop runs in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


@pytest.fixture
def redis_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedRedis(tmp_path_factory.mktemp("attacked")) as redis:
        yield redis.url


@pytest.fixture
def server(redis_of_its_own: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(redis_of_its_own, tmp_path_factory.mktemp("data")) as server:
        log_frames(server.url, Job().rows(range(1, 60)))
        server.wait_for("/runs/run-1", lambda run: run["last_step"] == 59, "the run is there")
        yield server


def test_a_name_that_leads_here_reads_nothing(server: RunningServer, evil: str, lied_to: Browser) -> None:
    page = lied_to.new_page()
    for path in ("/api/v1/runs", "/api/v1/runs/run-1/series?metric=loss", "/runs/run-1"):
        answer = page.goto(f"http://evil.example:{server.port}{path}")
        assert answer is not None
        assert answer.status == 403
        assert "run-1" not in page.content()
    page.goto(f"{evil}/?about:blank")  # a page of ours may open no socket elsewhere, which no script hears of
    assert page.evaluate(SOCKET, f"ws://evil.example:{server.port}/api/v1/live") == "closed"


def test_no_page_of_ours_is_framed(server: RunningServer, evil: str, lied_to: Browser) -> None:
    page = lied_to.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.goto(f"{evil}/?{server.url}/runs/run-1")
    place = page.wait_for_selector("iframe[name=framed]")
    assert place is not None
    framed = place.content_frame()
    assert framed is not None
    assert framed.query_selector("#root") is None
    assert framed.url.startswith("chrome-error:")
    assert [text for text in said if "frame-ancestors 'none'" in text]


def test_a_page_of_another_site_orders_nothing_and_reads_nothing(
    server: RunningServer, evil: str, lied_to: Browser
) -> None:
    page = lied_to.new_page()
    page.goto(f"{evil}/?about:blank")
    read = page.evaluate(WRITE, [server.url, ORDER])
    assert read == ["", "", "", ""]
    with page.expect_response(lambda answer: answer.url.startswith(server.url)) as answered:
        page.evaluate(SEND_FORM, [server.url, ORDER])
    assert answered.value.status == 403
    for path in ("live", "agent"):
        assert page.evaluate(SOCKET, f"ws://127.0.0.1:{server.port}/api/v1/{path}") == "closed"
    assert server.get("/runs/run-1/commands")["commands"] == []


@pytest.mark.soak
def test_a_key_that_only_looks_sees_no_button_that_orders(
    redis_of_its_own: str, server: RunningServer, open_page: OpenPage
) -> None:
    page = open_page(f"{server.url}/runs/run-1", quiet=False)  # it is thrown out when the key is made
    page.wait_for_selector("#rollback-open")
    assert page.inner_text("#who") == ""
    key = _run(_key(redis_of_its_own, "read"))
    # The server reads its keys again within two seconds; a login before that is one to a server without keys.
    wait_until(lambda: httpx.get(f"{server.url}/api/v1/runs").status_code == 401, 10, "the server knows the key")
    page = open_page(f"{server.url}/login?next=/runs/run-1", quiet=False)
    page.fill("#login-key", key)
    page.click("#login-send")
    page.wait_for_selector("#who-may")
    assert page.inner_text("#who-may") == "viewer · read-only"
    assert "scope “command”" in str(page.get_attribute("#who", "title"))
    page.wait_for_selector("#rollback-open", state="hidden")
