"""What stands before every route, on a real uvicorn: headers of each answer, host, origin, and the size of a body."""

from __future__ import annotations

import base64
import hashlib
import re
import socket
from collections.abc import Iterator

import pytest
from redis import Redis
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from stabilitybackend.server.http_guard import MAX_BODY_BYTES, MAX_LOGIN_BYTES
from support.server_stack import RunningServer

PAGES = ["/", "/login", "/runs/some-run", "/interruptions", "/no/such/page"]
OTHERS = [
    "/healthz",
    "/api/v1/runs",
    "/api/v1/runs/none",
    "/api/v1/openapi.json",
    "/_stability/board.js.map",
    "/assets/none.js",
    "/_dash-layout",
    "/_dash-component-suites/none/none.js",
]


@pytest.fixture(scope="module")
def server(redis_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with Redis.from_url(redis_server) as client:
        client.flushall()  # a key that another test left would make keys necessary
    with RunningServer(redis_server, tmp_path_factory.mktemp("guard")) as server:
        yield server


@pytest.mark.parametrize("path", PAGES + OTHERS)
def test_every_answer_forbids_framing_sniffing_and_foreign_scripts(server: RunningServer, path: str) -> None:
    answer = server.client.get(path)
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert (policy["frame-ancestors"], policy["default-src"], policy["base-uri"]) == ("'none'", "'none'", "'none'")
    assert not {"'unsafe-inline'", "'unsafe-eval'", "*", "data:", "blob:"} & set(policy["script-src"].split())
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "same-origin"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert "camera=()" in answer.headers["permissions-policy"]


def test_what_the_api_says_is_kept_by_nobody(server: RunningServer) -> None:
    assert server.client.get("/api/v1/runs").headers["cache-control"] == "no-store"
    assert server.client.get("/api/v1/runs/none").headers["cache-control"] == "no-store"
    assert server.client.get("/").headers["cache-control"] == "no-cache"


def test_scripts_and_styles_whose_address_has_their_hash_are_kept_and_missing_ones_are_not(
    server: RunningServer,
) -> None:
    for kind in ("js", "css"):
        address = re.search(rf"/_stability/board-[0-9a-f]{{16}}\.{kind}", server.client.get("/").text)
        assert address is not None
        assert server.client.get(address.group()).headers["cache-control"] == "public, max-age=31536000, immutable"
    assert server.client.get("/_stability/board-0000000000000000.js").headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", PAGES)
def test_each_script_that_stands_in_a_page_is_named_by_its_hash(server: RunningServer, path: str) -> None:
    answer = server.client.get(path)
    allowed = answer.headers["content-security-policy"]
    scripts = re.findall(r"<script(?![^>]*(?:src=|json))[^>]*>(.*?)</script>", answer.text, re.DOTALL)
    assert len(scripts) == 4  # the theme, what loads the modules, what tells Dash where it is, and what starts it
    for script in scripts:
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in allowed


def test_a_foreign_host_is_refused_before_any_route(server: RunningServer) -> None:
    for path in PAGES + OTHERS:
        answer = server.client.get(path, headers={"Host": "evil.example"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign_host")
        assert answer.headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize("path", ["live", "agent"])
@pytest.mark.parametrize("lie", [{"Origin": "http://evil.example"}, {"Origin": "null"}])
def test_a_socket_of_another_sites_page_is_refused(server: RunningServer, path: str, lie: dict[str, str]) -> None:
    with pytest.raises(InvalidStatus) as refused, connect(f"{server.live_url[:-4]}{path}", additional_headers=lie):
        pass
    assert refused.value.response.status_code == 403
    assert b"foreign_origin" in refused.value.response.body


def test_another_sites_page_can_not_log_a_person_in(server: RunningServer) -> None:
    answer = server.client.post("/api/v1/login", json={"key": "sb_"}, headers={"Origin": "https://evil.example"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign_origin")


@pytest.mark.parametrize(
    ("path", "most"), [("/api/v1/login", MAX_LOGIN_BYTES), ("/api/v1/runs/r/commands", MAX_BODY_BYTES)]
)
def test_a_body_that_is_too_large_is_refused(server: RunningServer, path: str, most: int) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(3):
            yield b"x" * most

    for body in (b"x" * (most + 1), chunks()):
        answer = server.client.post(path, content=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
        assert answer.headers["connection"] == "close"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/_dash-update-component"),
        ("GET", "/_dash-component-suites/dash/../../x"),
        ("GET", "/_dash-component-suites/none/none.js"),
        ("GET", "/_dash-component-suites/dash_renderer/build/none.js"),
        ("GET", "/assets/../app.py"),
        ("GET", "/assets/%2e%2e/app.py"),
        ("GET", "/%00"),
    ],
)
@pytest.mark.parametrize("body", [b"", b"{", b'{"output": 1, "inputs": [{}], "changedPropIds": 3}', b"\xff" * 99])
def test_rubbish_is_never_a_defect_of_the_server(server: RunningServer, method: str, path: str, body: bytes) -> None:
    answer = server.client.request(method, path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code < 500


def test_the_socket_of_dash_is_closed_to_everybody(server: RunningServer) -> None:
    with pytest.raises(InvalidStatus), connect(server.live_url.replace("api/v1/live", "_dash-ws-callback")):
        pass


def test_with_two_hosts_nobody_is_served(server: RunningServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
        raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    assert answer.startswith((b"HTTP/1.1 403", b"HTTP/1.1 400"))
