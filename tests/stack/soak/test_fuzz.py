"""Eight readers send every route what it does not expect; the server answers all others meanwhile."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from support.processes import Server

READERS = 8
REQUESTS = int(os.environ.get("FUZZ_REQUESTS", "6000"))
SEED = int(os.environ.get("FUZZ_SEED", "1"))
#: Longest that anybody else may wait for a probe meanwhile, seconds.
LIVEZ_S = 0.2
#: Pause of who asks for the probe, seconds.
PROBE_EVERY_S = 0.02
RUNS = [f"run-{n}" for n in range(4)]
#: Routes that never end, or that end the run which the others ask about.
LEFT_OUT = {("delete", "/api/v1/runs/{run_id}"), ("get", "/api/v1/runs/{run_id}/export")}
TEXTS = [
    "", " ", "loss", "=loss*2", "=" + "(" * 300 + "loss" + ")" * 300, "name:*a*a*a", "*" * 1_000, "[a-" * 300,
    "-" * 900, "lr>1 loss<2 age<3d", "a\x00b", "../../etc", "\ud7ff\U0010ffff", "9" * 400, "1e400", "NaN", "-1", "0",
    "1", "100000000", "true", "segment:0", "segment:9", "time", "step", "fork", '"', "{}", "x" * 5_000,
]  # fmt: skip
VALUES: list[Any] = [
    None, True, 0, -1, 1.5, 1e308, 2**63, "", "loss", "x" * 2_000, "[" * 500, [], {}, [[]] * 50, {"a": {"b": 1}},
    ["run-1"] * 100,
]  # fmt: skip


class Fuzz:
    """Asks at random.

    Args:
        client: of one reader. paths: of the server's OpenAPI.
    """

    def __init__(self, client: httpx.Client, paths: dict[str, Any], draw: random.Random) -> None:
        self._client = client
        self._draw = draw
        self._routes = [
            (method, path, route)
            for path, methods in paths.items()
            for method, route in methods.items()
            if (method, path) not in LEFT_OUT
        ]

    def ask(self) -> tuple[str, int, float]:
        """Send one request; return it in words, its status, and the seconds that it took."""
        method, path, route = self._draw.choice(self._routes)
        filled, query = path, {}
        for one in route.get("parameters", ()):
            value = self._draw.choice(RUNS if one["name"] in ("run_id", "run") and self._draw.random() < 0.8 else TEXTS)
            if one["in"] == "path":
                filled = filled.replace("{" + one["name"] + "}", quote(value, safe="") or "-")
            elif one["in"] == "query" and (one.get("required") or self._draw.random() < 0.4):
                query[one["name"]] = value
        body = self._body() if method in ("post", "put") else None
        begin = time.monotonic()
        answer = self._client.request(
            method, filled, params=query, content=body, headers={"Content-Type": "application/json"}
        )
        return f"{method} {filled[:80]} {query!s:.200} {body!s:.200}", answer.status_code, time.monotonic() - begin

    def _body(self) -> bytes:
        names = (
            "run",
            "kind",
            "text",
            "policy",
            "version",
            "match",
            "reason",
            "ends",
            "to_step",
            "note",
            "tags",
            "step",
            "name",
        )
        body = {name: self._draw.choice(VALUES) for name in self._draw.sample(names, self._draw.randrange(6))}
        return json.dumps(self._draw.choice([body, body, body, self._draw.choice(VALUES)])).encode()


@pytest.mark.soak
def test_whatever_readers_send_the_server_answers_the_probe_and_makes_no_mistake(
    tmp_path: Path, free_port: int
) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(_row(step)) + "\n" for step in range(5_000)))
    with Server(tmp_path / "data", free_port) as server:
        for run in RUNS:
            command = [sys.executable, "-m", "stabilitybackend.cli", "import", str(log), "--run-id", run]
            subprocess.run(command, check=True, capture_output=True, env=os.environ | {"STABILITY_URL": server.url})
        paths = httpx.get(f"{server.url}/api/v1/openapi.json").json()["paths"]
        waits_s: list[float] = []
        over = threading.Event()
        probe = threading.Thread(target=_probe, args=(server.url, waits_s, over))
        probe.start()
        with ThreadPoolExecutor(READERS) as pool:
            each = REQUESTS // READERS
            asked = pool.map(lambda n: _asked(server.url, paths, random.Random(f"{SEED} {n}"), each), range(READERS))
            found = [one for many in asked for one in many]
        over.set()
        probe.join()
        found.sort(key=lambda one: -one[2])
        print(f"seed {SEED}: {len(found)} requests, {len(waits_s)} probes, worst {max(waits_s):.3f} s")
        print("\n".join(f"{took_s:.2f} s {status} {what}" for what, status, took_s in found[:8]))
        assert [one for one in found if one[1] >= 500 and one[1] != 503] == []
        assert server.answers()
        assert max(waits_s) < LIVEZ_S


def _asked(url: str, paths: dict[str, Any], draw: random.Random, times: int) -> list[tuple[str, int, float]]:
    with httpx.Client(base_url=url, timeout=60.0, verify=False) as client:
        fuzz = Fuzz(client, paths, draw)
        return [fuzz.ask() for _ in range(times)]


def _row(step: int) -> dict[str, float]:
    return {"step": step, "loss": 2.0 + 1 / (1 + step)} | {f"m{n}": step / (n + 1) for n in range(10)}


def _probe(url: str, waits_s: list[float], over: threading.Event) -> None:
    with httpx.Client(base_url=url, timeout=60.0, verify=False) as client:
        while not over.wait(PROBE_EVERY_S):
            begin = time.monotonic()
            client.get("/livez").raise_for_status()
            waits_s.append(time.monotonic() - begin)
