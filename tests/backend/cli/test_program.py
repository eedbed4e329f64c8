"""The program itself, as a process: what people type, what they see, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from stabilitybackend.storage.redis_server.embedded import running_url
from stabilityclient.wire import Ack
from support.gateway_stack import SOURCE, RawAgent, frame
from support.waiting import PATIENCE, wait_until

_KEY = re.compile(r"sb_[0-9a-f]{8}_[A-Za-z0-9_-]{43}")
_START_S = 20
_PROGRAM = [sys.executable, "-m", "stabilitybackend.cli"]


def environment(**extra: str) -> dict[str, str]:
    """This process's environment without any setting of ours."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("STABILITY_")}
    return env | {"COLUMNS": "200", "NO_COLOR": "1"} | extra


def run(*arguments: str | Path, **extra: str) -> subprocess.CompletedProcess[str]:
    command = [*_PROGRAM, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment(**extra))


@contextmanager
def up(data_dir: Path, *arguments: str, **extra: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """``stabilityboard up`` on a free port: its URL and process, killed when the block ends."""
    words = ["up", "--port", "0", "--data-dir", str(data_dir), *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*_PROGRAM, *words], env=environment(**extra), **pipes) as p:
        try:
            yield _url_of(data_dir, p), p
        finally:
            p.kill()


def _url_of(data_dir: Path, process: subprocess.Popen[str]) -> str:
    def url() -> str | None:
        assert process.poll() is None, process.communicate()
        facts = _server_file(data_dir)
        return facts.get("url") if facts.get("pid") == process.pid else None

    found = wait_until(url, _START_S, "the server is up")
    assert isinstance(found, str)
    return found


def _server_file(data_dir: Path) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = json.loads((data_dir / "server.json").read_text())
    except FileNotFoundError:
        return {}
    return facts


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, int]]:
    """URL, data folder and pid of a server for tests that leave it as it was."""
    folder = tmp_path_factory.mktemp("served")
    with up(folder) as (url, process):
        yield url, folder, process.pid


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.soak), signal.SIGTERM])
async def test_up_stops_cleanly_within_five_seconds_while_an_agent_is_connected(tmp_path: Path, number: int) -> None:
    with up(tmp_path, "--root-path", "/user/jo") as (url, process):
        async with RawAgent(url.replace("http", "ws") + "/user/jo/api/v1/agent") as agent:
            await agent.hello()
            assert await agent.ask(frame(1, [1.0])) == Ack(SOURCE.source, 1)
            process.send_signal(number)
            began = time.monotonic()
            await agent.socket.wait_closed()
            out, err = process.communicate(timeout=60)
            assert time.monotonic() - began < 5 * PATIENCE
    assert (process.returncode, err) == (0, "")
    assert f"is up at {url}" in out
    assert "Pages: a proxy's address that ends with /user/jo/" in out
    assert _server_file(tmp_path) == {}
    assert running_url(tmp_path) is None


_SWALLOWED = """
import signal, sys, weakref
from stabilitybackend.cli import up
from stabilitybackend.cli.app import main
made = up._made
class Thing: pass
def swallow(*given):
    thing = Thing()
    kept = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
    del thing  # what the callback raises is printed, and lost
    print("went on", flush=True)
    return made(*given)
up._made = swallow
sys.argv = ["stabilityboard", "up", "--port", "0", "--data-dir", sys.argv[1]]
main()
"""


@pytest.mark.soak
def test_a_stop_that_python_swallows_while_the_server_starts_is_not_lost(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _SWALLOWED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment())
    assert (done.returncode, done.stdout) == (0, "went on\n")
    assert running_url(tmp_path) is None


@pytest.mark.soak
async def test_a_server_killed_with_9_starts_again_at_once_with_its_data(tmp_path: Path) -> None:
    with up(tmp_path) as (url, process):
        async with RawAgent(url.replace("http", "ws") + "/api/v1/agent") as agent:
            await agent.hello()
            assert await agent.ask(frame(1, [1.0, 2.0])) == Ack(SOURCE.source, 2)
            process.kill()
            process.wait()
    with up(tmp_path) as (url, _):
        async with RawAgent(url.replace("http", "ws") + "/api/v1/agent") as agent:
            await agent.hello()
            assert await agent.ask(frame(1, [1.0, 2.0])) == Ack(SOURCE.source, 2)
        listed = run("runs", "--data-dir", tmp_path)
    assert listed.returncode == 0
    assert "run-1" in listed.stdout


@pytest.mark.soak
def test_up_runs_on_a_given_redis(tmp_path: Path, redis_url: str) -> None:
    with up(tmp_path, "--redis-url", redis_url) as (url, _):
        assert httpx.get(f"{url}/healthz").json()["redis"] == "ok"
        assert not (tmp_path / "redis").exists()


def test_a_port_in_use_is_said_with_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("up", "--port", str(port), "--data-dir", tmp_path)
    assert done.returncode == 2
    assert f"error: can't listen on 127.0.0.1:{port}: Address already in use" in done.stderr
    assert "hint:  another program may use it" in done.stderr


def test_a_redis_that_is_not_there_is_said_without_its_password(tmp_path: Path) -> None:
    done = run("up", "--port", "0", "--data-dir", tmp_path, "--redis-url", "redis://user:secret@127.0.0.1:1/0")
    assert done.returncode == 1
    assert "error: Redis at redis://127.0.0.1:1/0 can't be reached" in done.stderr
    assert "secret" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.soak
def test_a_second_server_on_the_same_folder_is_refused(served: tuple[str, Path, int]) -> None:
    _, folder, pid = served
    done = run("up", "--port", "0", "--data-dir", folder)
    assert done.returncode == 1
    assert f"is used by another Stabilityboard (process {pid})" in done.stderr


@pytest.mark.soak
def test_beyond_loopback_nothing_starts_without_a_key_and_with_one_it_is_asked_for(tmp_path: Path) -> None:
    outside = ("--host", "0.0.0.0")
    refused = run("up", "--port", "0", "--data-dir", tmp_path, *outside)
    assert refused.returncode == 2
    assert "no API key exists" in refused.stderr
    assert "stabilityboard keys create NAME" in refused.stderr

    made = run("keys", "create", "cluster", "--data-dir", tmp_path)
    key = made.stdout.strip()
    assert _KEY.fullmatch(key)
    with up(tmp_path, *outside) as (url, _):
        runs = f"{url}/api/v1/runs"
        assert httpx.get(f"{url}/healthz").status_code == 200
        assert httpx.get(runs).status_code == 401
        assert httpx.get(runs, headers={"Authorization": "Bearer " + key[:-1] + "-"}).status_code == 401
        assert httpx.get(runs, headers={"Authorization": f"Bearer {key}"}).json()["runs"] == []
        assert run("runs", "--data-dir", tmp_path, STABILITY_API_KEY=key).returncode == 0
        assert "needs an API key" in run("runs", "--data-dir", tmp_path).stderr


@pytest.mark.soak
def test_a_key_made_while_the_server_runs_works_and_stops_when_it_is_revoked(served: tuple[str, Path, int]) -> None:
    url, folder, _ = served
    key = run("keys", "create", "screen", "--scope", "read", "--data-dir", folder).stdout.strip()
    runs = {"url": f"{url}/api/v1/runs", "headers": {"Authorization": f"Bearer {key}"}}
    wait_until(lambda: httpx.get(**runs).status_code == 200, 5, "the new key works")
    assert run("keys", "revoke", key.split("_")[1], "--yes", "--data-dir", folder).returncode == 0
    wait_until(lambda: httpx.get(**runs).status_code == 401, 5, "the revoked key no longer works")
    assert run("keys", "open", "--data-dir", folder).returncode == 0
