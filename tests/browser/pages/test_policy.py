"""The pages under their own Content-Security-Policy, and what pages of others can do to a person's browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from support.gateway_stack import log_frames
from support.job_frames import Job
from support.server_stack import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Page

OpenPage = Callable[..., "Page"]

#: Writes down each thing that the policy of the page forbade.
LISTEN = """() => {
  window.forbidden = [];
  document.addEventListener("securitypolicyviolation", (event) =>
    window.forbidden.push(`${event.effectiveDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));
}"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis

    folder = tmp_path_factory.mktemp("policy")
    with EmbeddedRedis(folder) as redis, RunningServer(redis.url, folder / "data") as server:
        calm = [2.0 + 0.01 * (i % 3) for i in range(150)]
        values = {"loss": calm + [6.0] * 9, "grad_norm": calm + [9.0] * 9, "lr": [0.1] * 159}
        log_frames(server.url, Job().rows(range(1, 160), values))
        server.wait_for("/runs/run-1/incidents", lambda found: found["incidents"], "the spike is an incident")
        yield server


@pytest.mark.soak
def test_no_page_does_what_its_policy_forbids_in_either_theme(server: RunningServer, open_page: OpenPage) -> None:
    incident = server.get("/runs/run-1/incidents")["incidents"][0]["incident_id"]
    # The browser itself writes to the console that there is no such page.
    page = open_page(f"{server.url}/no/such/page", before=f"({LISTEN})()", quiet=False)
    for address, shown in {
        "/no/such/page": "main a",
        "/": "#runs-body tr[data-run]",
        "/runs/run-1": "#chart-focus canvas",
        f"/runs/run-1/incidents/{incident}": "main .panel",
        "/runs/run-1/attempts": "#attempts-table tr",
        "/incidents": "#incidents-list, #incidents-empty",
        "/interruptions": "main",
        "/compare?run=run-1&metric=loss": "main",
        "/gallery": ".gallery-card canvas",
        "/?wall=1": ".wall-card, .wall-well",
        "/login": "#login-key",
    }.items():
        page.goto(f"{server.url}{address}")
        page.wait_for_selector(shown)
        if address != "/login" and "wall" not in address:
            page.click("#theme-toggle")
        assert page.evaluate("window.forbidden") == [], address


def test_a_page_opens_our_socket_and_no_other(server: RunningServer, open_page: OpenPage) -> None:
    listen = "window.opened = []; window.WebSocket = new Proxy(WebSocket, { construct: (kind, [url, ...rest]) => ("
    listen += "window.opened.push(new URL(url).pathname), new kind(url, ...rest)) });"
    page = open_page(f"{server.url}/runs/run-1", before=listen)
    page.wait_for_selector("#chart-focus canvas")
    assert set(page.evaluate("window.opened")) == {"/api/v1/live"}
    assert page.evaluate("JSON.parse(document.getElementById('_dash-config').textContent).websocket ?? null") is None
