"""What somebody without a key can make the server keep, on a real uvicorn: almost nothing, and not for long."""

from __future__ import annotations

import logging
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from redis import Redis

from stabilitybackend.cli import http_protocol
from stabilitybackend.server.http_guard import MAX_BODY_BYTES, MAX_LOGIN_BYTES
from support.ports import free_port
from support.processes import Server
from support.server_stack import RunningServer

MIB = 1024 * 1024
#: What may lie in the kernel's buffers of a connection of this machine, both sides.
IN_BUFFERS = 16 * MIB


@pytest.fixture(scope="module")
def server(redis_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with Redis.from_url(redis_server) as client:
        client.flushall()  # a key that another test left would make keys necessary
    with RunningServer(redis_server, tmp_path_factory.mktemp("limits")) as server:
        yield server


def raw(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def rest(connection: socket.socket) -> bytes:
    """Return all that comes until the other side closes."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * MIB,
        b"GET /" + b"x" * MIB,
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + b"X: 1\r\n" * 200 + b"\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 40_000 + b"\r\n\r\n",
    ],
    ids=["one long header", "a long address", "many headers", "a long head that is whole"],
)
def test_a_head_that_is_too_large_ends_the_connection(server: RunningServer, head: bytes) -> None:
    with raw(server.port) as connection:
        try:
            connection.sendall(head)
        except (BrokenPipeError, ConnectionResetError):
            return
        assert rest(connection).startswith(b"HTTP/1.1 400 ") or rest(connection) == b""


@pytest.mark.parametrize("beginning", [b"", b"GET /healthz HTTP/1.1\r\nHost: loc", b"\r\n"])
def test_a_head_that_does_not_come_ends_the_connection(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, beginning: bytes
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.2)
    with raw(server.port) as connection:
        connection.sendall(beginning)
        assert rest(connection) == b""


def test_a_connection_that_was_used_is_still_bound_to_send_its_head_in_time(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_TIMEOUT_S", 0.2)
    with raw(server.port) as connection:
        connection.sendall(b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"GET /heal")
        assert rest(connection) == b""


def test_a_body_that_does_not_come_ends_the_connection(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stabilitybackend.server.http_guard.BODY_TIMEOUT_S", 0.2)
    with raw(server.port) as connection:
        connection.sendall(b"POST /api/v1/login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        assert rest(connection).startswith(b"HTTP/1.1 408 ")


def test_rubbish_is_one_line_in_the_log_however_often_it_comes(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("uvicorn.tests")
    log.addFilter(http_protocol.RubbishFilter())
    for _ in range(50):
        log.warning("Invalid HTTP request received.")
    log.warning("something else")
    assert caplog.messages == ["Invalid HTTP request received.", "something else"]


def _peak_kib(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found.group(1))


@pytest.mark.parametrize("how", ["Content-Length: 134217728", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("path", ["/api/v1/login", "/api/v1/runs/r/commands"])
def test_eight_large_bodies_without_a_key_are_refused_and_kept_nowhere(guarded: Server, path: str, how: str) -> None:
    assert guarded.process is not None
    before = _peak_kib(guarded.process.pid)
    piece = b"x" * MIB if how.startswith("Content") else b"100000\r\n" + b"x" * MIB + b"\r\n"
    for _ in range(8):
        with raw(int(guarded.url.rpartition(":")[2])) as connection:
            connection.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{how}\r\n\r\n".encode())
            sent = 0
            try:
                while sent < 128 * MIB:
                    sent += connection.send(piece)
            except (BrokenPipeError, ConnectionResetError):
                pass
        assert sent < IN_BUFFERS + MAX_LOGIN_BYTES
    assert _peak_kib(guarded.process.pid) - before < 8 * 1024


def test_a_body_is_not_read_before_the_key_is_known(guarded: Server) -> None:
    with httpx.Client(base_url=guarded.url, timeout=20) as nobody:
        order = nobody.post("/api/v1/runs/none/commands", content=b"x" * (2 * MAX_BODY_BYTES))
    assert (order.status_code, order.json()["error"]["code"]) == (401, "key_missing")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that other machines reach."""
    data = tmp_path_factory.mktemp("guarded") / "data"
    made = [sys.executable, "-m", "stabilitybackend.cli", "keys", "create", "tests", "--data-dir", str(data)]
    subprocess.run(made, check=True, capture_output=True, timeout=60)
    with Server(data, free_port(), env={"STABILITY_HOST": "0.0.0.0"}) as server:
        yield server
