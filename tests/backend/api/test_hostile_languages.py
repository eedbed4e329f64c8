"""Whatever a caller writes in a language of ours (YAML, filters, expressions, JSON) is bounded in work.

Counted is the CPU time of the thread that serves, not the time on the clock: other processes on the machine change
nothing.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from redis import Redis

from stabilitybackend.base.yaml_file import MAX_DEPTH, MAX_VALUES, BadYaml, read_yaml
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.server_stack import RunningServer

#: CPU time of the event loop's thread that one request may cost, seconds: an agent's pulse waits no longer than that.
BOUND_S = 0.05

Ask = Callable[[httpx.Client, str], httpx.Response]


@pytest.fixture(scope="module")
def server(redis_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with Redis.from_url(redis_server) as client:
        client.flushall()
    with RunningServer(redis_server, tmp_path_factory.mktemp("languages")) as server:
        yield server


@pytest.fixture(scope="module")
def incident(server: RunningServer) -> str:
    """The id of an incident of the run ``run-1``, which has a hundred points."""
    return asyncio.run(_begun(server))


async def _begun(server: RunningServer) -> str:
    job = Job()
    async with RawAgent(server.agent_url) as agent:
        await agent.begin(job.rows(range(1, 101)), job.rows(range(101, 131), {"loss": [math.nan] * 30}))
        path = "/runs/run-1/incidents"
        found = await asyncio.to_thread(server.wait_for, path, lambda found: found["incidents"], "an incident")
        incident: str = found["incidents"][0]["incident_id"]
        return incident


#: Texts in the language of filters.
FILTERS = {
    "stars": "name:" + "*a" * 900,
    "question marks": "name:" + "*?" * 900 + "z",
    "alternatives": "name:" + ",".join(f"a*{n}" for n in range(500)),
    "terms": " ".join(f"lr>{n}" for n in range(400)),
    "minus signs": "-" * 1_999,
    "quotes": '"' * 1_999,
    "a long number": "lr>" + "9" * 1_900,
    "a long exponent": "lr>1e" + "9" * 1_900,
    "a long age": "age<" + "9" * 300 + "w",
    "dots": ".".join("a" for _ in range(900)) + ":1",
    "brackets": "name:" + "[a-" * 500,
}
#: Formulas over metrics.
FORMULAS = {
    "parentheses": "(" * 900 + "loss" + ")" * 900,
    "minus signs": "-" * 1_900 + "loss",
    "powers": "loss" + " ** loss" * 200,
    "powers of numbers": "9 ** 9 ** 9 ** 9",
    "products": " * ".join(["loss"] * 200),
    "calls": "log(" * 400 + "loss" + ")" * 400,
    "back-ticks": "`" * 1_000,
    "a long number": "1" * 1_900 + " + loss",
    "smoothing": "ema(loss, 1e-300)",
}
#: YAML, longest allowed.
YAML = {
    "brackets": "[" * 60_000,
    "braces": "{" * 60_000,
    "dashes": "- " * 30_000,
    "question marks": "? " * 30_000,
    "indented names": "\n".join(" " * depth + "a:" for depth in range(340)),
    "values in a line": "[" + "a," * 32_000 + "]",
    "names in a line": "{" + ",".join(f"a{n}: b" for n in range(6_000)) + "}",
    "routes": "routes:\n" + "\n".join("- {receivers: [x]}" for _ in range(3_300)),
    "numbers": "- 1e9\n" * 10_000,
    "a long number": "a: " + "9" * 60_000,
    "a long hexadecimal number": "a: 0x" + "f" * 60_000,
    "a long sexagesimal number": "a: 1" + ":59" * 20_000,
    "documents": "---\n" * 16_000,
    "aliases": "a: &a [x, x]\nb: [*a, *a]",
    "tags": "- !!omap [a: 1]\n" * 4_000,
    "a quote without its end": "'" * 64_000,
}
#: Bodies in JSON.
JSON = {
    "deep lists": '{"kind":' + "[" * 200_000,
    "deep objects": '{"kind":' * 60_000,
    "a long number": '{"kind": "rollback", "to_step": ' + "9" * 100_000 + "}",
    "many nodes": json.dumps({"kind": "restart", "exclude_nodes": [f"n{n}" for n in range(60_000)]}),
    "a long text": json.dumps({"kind": "task", "task": "x" * 900_000}),
}
MUTES: dict[str, dict[str, Any]] = {
    "stars": {"run": ["*a" * 2_000] * 200},
    "brackets": {"run": "[" * 100_000},
    "a long name": {"x" * 100_000: "y"},
}


def _cases() -> Iterator[Any]:
    def get(path: str, **params: str) -> Ask:
        return lambda client, incident: client.get(f"/api/v1/{path}", params=params)

    def send(method: str, path: str, body: dict[str, Any]) -> Ask:
        return lambda client, incident: client.request(method, f"/api/v1/{path}", json=body)

    def preview(text: str) -> Ask:
        body = {"run": "run-1", "text": text}
        return lambda client, incident: client.post("/api/v1/alerting/preview", json=body | {"incident": incident})

    def post(path: str, content: str) -> Ask:
        headers = {"Content-Type": "application/json"}
        return lambda client, incident: client.post(f"/api/v1/{path}", content=content.encode(), headers=headers)

    for name, text in FILTERS.items():
        for path in ("run_table", "search", "incidents"):
            yield pytest.param(get(path, q=text), id=f"filter, {name}, {path}")
    for name, text in FORMULAS.items():
        yield pytest.param(get("runs/run-1/series", metric=f"={text}"), id=f"formula, {name}, series")
        yield pytest.param(get("compare", run="run-1", metric=f"={text}"), id=f"formula, {name}, compare")
    for name, text in YAML.items():
        yield pytest.param(preview(text), id=f"yaml, {name}, preview")
        yield pytest.param(send("PUT", "alerting/routes", {"text": text, "version": 9}), id=f"yaml, {name}, routes")
        yield pytest.param(send("PUT", "runs/run-1/autopilot", {"policy": text}), id=f"yaml, {name}, autopilot")
    for name, text in JSON.items():
        for path in ("runs/run-1/commands", "runs/run-1/proposals", "alerting/mutes", "runs/run-1/annotations"):
            yield pytest.param(post(path, text), id=f"json, {name}, {path}")
    for name, match in MUTES.items():
        body = {"match": match, "reason": "r", "ends": 1e10}
        yield pytest.param(send("POST", "alerting/mutes", body), id=f"mute, {name}")


@pytest.mark.parametrize("ask", list(_cases()))
def test_a_hostile_text_holds_the_server_up_for_less_than_an_agents_pulse(
    ask: Ask, server: RunningServer, incident: str
) -> None:
    costs_s: list[float] = []
    while not costs_s or (costs_s[-1] >= BOUND_S and len(costs_s) < 3):  # the thread has rounds of its own, too
        begin_s = _served_s(server)
        answer = ask(server.client, incident)
        costs_s.append(_served_s(server) - begin_s)
        assert answer.status_code < 500, answer.text[:300]
    assert min(costs_s) < BOUND_S


def _served_s(server: RunningServer) -> float:
    """CPU seconds of the thread that serves."""
    return time.clock_gettime(time.pthread_getcpuclockid(server.thread_ident))


def test_yaml_at_its_bounds_is_read() -> None:
    deep = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    wide = "[" + "1," * (MAX_VALUES - 1) + "]"
    assert read_yaml(deep, "f").items("lists")
    assert len(read_yaml(wide, "f").items("numbers")) == MAX_VALUES - 1


@pytest.mark.parametrize("text", ["[" * (MAX_DEPTH + 1), "[" + "1," * MAX_VALUES + "]", "a: !!str 5"])
def test_yaml_beyond_its_bounds_is_refused_in_words(text: str) -> None:
    with pytest.raises(BadYaml, match=r"line 1: .*, expected"):
        read_yaml(text, "f")
