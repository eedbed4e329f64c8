"""``stabilityboard mcp`` as assistants use it: the SDK's own client over stdio, against a real server."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.types import CallToolResult, Tool

from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis
from stabilityclient.wire import Hello
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.people.assistant import spoken_to
from support.server_stack import RunningServer

#: Onset of the spike of ``sick``, and the steps at which its loss is NaN.
ONSET, NAN_STEPS = 220, (262, 263)
#: Name -> tool and arguments; all of them are called in one session.
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "runs": ("list_runs", {}),
    "filtered": ("list_runs", {"filter": "name:well", "columns": ["config.lr"]}),
    "bad filter": ("list_runs", {"filter": "lr>>3"}),
    "state": ("run_state", {"run": "sick"}),
    "open": ("incidents", {"run": "sick"}),
    "points": ("metric_points", {"run": "sick", "metric": "loss", "around_step": 250, "span": 40, "max_points": 100}),
    "thin": ("metric_points", {"run": "sick", "metric": "loss", "span": 260, "max_points": 20}),
    "compared": ("compare_runs", {"runs": ["sick", "well"], "metrics": ["loss", "nothing"]}),
    "lineage": ("lineage", {"run": "sick"}),
    "offer": ("rollback_offer", {"run": "sick"}),
    "no run": ("run_state", {"run": "none"}),
    "too many": ("list_runs", {"limit": 1000}),
}


def _losses(steps: range, *, sick: bool) -> list[float]:
    values = [2 + 0.01 * math.sin(1.7 * step) + 4 * (sick and step >= ONSET) for step in steps]
    return [math.nan if sick and step in NAN_STEPS else value for step, value in zip(steps, values, strict=True)]


async def _fill(server: RunningServer) -> None:
    for run_id, sick in (("sick", True), ("well", False)):
        job = Job()
        async with RawAgent(server.agent_url) as agent:
            await agent.ask(Hello(run_id, "a1", "n0", "0.1.0", project="llm", name=run_id,
                                  config={"lr": 1e-3 * (1 + sick)}, sources=[job.info]))  # fmt: skip
            steps = range(1, 201)
            await agent.store(job.rows(steps, {"loss": _losses(steps, sick=sick)}))
            await agent.store(job.event("checkpoint", 200, path="c/200"))
            steps = range(201, 271)
            await agent.store(job.rows(steps, {"loss": _losses(steps, sick=sick)}))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("mcp")
    with EmbeddedRedis(folder) as redis, RunningServer(redis.url, folder / "data") as running:
        asyncio.run(_fill(running))
        running.wait_for("/runs/sick/incidents", lambda a: [i for i in a["incidents"] if i["kind"] == "spike"], "it")
        # The table is as of a second ago at most.
        running.wait_for(
            "/run_table",
            lambda a: [row["step"] for row in a["rows"]] == [270, 270] and a["rows"][0]["run_id"] == "sick",
            "both are there, the sick one first",
        )
        yield running


@pytest.fixture(scope="module")
def session(server: RunningServer) -> tuple[list[Tool], Mapping[str, CallToolResult]]:
    """The tools that an assistant is offered, and what it gets for each of CALLS."""

    async def ask() -> tuple[list[Tool], Mapping[str, CallToolResult]]:
        async with Client(spoken_to(server.url)) as client:
            tools = (await client.list_tools()).tools
            return tools, {name: await client.call_tool(tool, given) for name, (tool, given) in CALLS.items()}

    return asyncio.run(ask())


@pytest.fixture
def answers(session: tuple[list[Tool], Mapping[str, CallToolResult]]) -> dict[str, Any]:
    """The answers as JSON; what was refused as its text."""

    def read(result: CallToolResult) -> Any:
        text = result.content[0].text  # type: ignore[union-attr]
        return text if result.is_error else json.loads(text)

    return {name: read(result) for name, result in session[1].items()}


def test_every_tool_says_that_it_only_reads_and_what_it_does(session: tuple[list[Tool], Any]) -> None:
    tools = session[0]
    assert sorted(tool.name for tool in tools) == [
        "compare_runs", "incident", "incidents", "lineage", "list_runs", "metric_points", "rollback_offer", "run_state",
    ]  # fmt: skip
    assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in tools)
    assert all(len(tool.description or "") > 40 for tool in tools)


def test_runs_come_sick_first_and_a_filter_is_that_of_the_table(answers: dict[str, Any]) -> None:
    assert [run["run_id"] for run in answers["runs"]["runs"]] == ["sick", "well"]
    assert answers["runs"]["runs"][0]["worst_incident"]["kind"] in ("spike", "nonfinite")
    assert [run["columns"] for run in answers["filtered"]["runs"]] == [{"config.lr": 0.001}]


def test_what_the_server_refuses_is_an_answer_with_its_hint(answers: dict[str, Any]) -> None:
    assert "bad_filter" in answers["bad filter"]
    assert "there is no run 'none' (not_found). Hint:" in answers["no run"]
    assert "limit" in answers["too many"]


def test_a_runs_state_names_what_is_wrong_and_what_is_offered(answers: dict[str, Any]) -> None:
    state = answers["state"]
    assert {one["kind"] for one in state["open"]} >= {"spike"}
    assert (state["last_step"], state["rollback_offered"]["to_step"]) == (270, 200)
    assert [one["incident_id"] for one in answers["open"]["incidents"]] == [one["incident_id"] for one in state["open"]]


def test_points_around_a_step_say_in_words_which_are_not_finite(answers: dict[str, Any]) -> None:
    points = answers["points"]
    assert [step for step, _ in points["points"]] == list(range(230, 271))
    assert dict(points["points"])[262] == "NaN"
    assert "2 of these 41 points are not finite: NaN at step 262, NaN at step 263." in points["in_words"]


def test_points_of_many_steps_are_thinned_out_and_say_so(answers: dict[str, Any]) -> None:
    assert len(answers["thin"]["points"]) <= 40
    assert answers["thin"]["resolution"].startswith("extremes of each ")


def test_two_runs_are_laid_side_by_side_with_what_differs_in_their_configs(answers: dict[str, Any]) -> None:
    loss, nothing = answers["compared"]["metrics"]
    assert loss["side_by_side"]["columns"] == ["x", "sick", "well"]
    step, sick, well = loss["side_by_side"]["rows"][-2]
    assert (step > ONSET, sick - well > 3) == (True, True)
    assert nothing["not_logged_by"] == ["sick", "well"]
    assert {"name": "lr", "sick": "0.002", "well": "0.001"} in answers["compared"]["differences"]


def test_the_lineage_has_segments_and_checkpoints_and_the_offer_says_why(answers: dict[str, Any]) -> None:
    assert [one["cause"] for one in answers["lineage"]["segments"]] == ["start"]
    assert [one["step"] for one in answers["lineage"]["newest_checkpoints"]] == [200]
    assert (answers["offer"]["to_step"], "from before" in answers["offer"]["why"]) == (200, True)


async def test_an_incident_is_shown_with_its_evidence_and_advice(server: RunningServer) -> None:
    from stabilitybackend.base.api_client import ApiClient
    from stabilityplugins.mcp.reading import ReadingTools

    spike = next(one for one in server.get("/runs/sick/incidents")["incidents"] if one["kind"] == "spike")
    with ApiClient(server.url) as client:
        shown = json.loads(await asyncio.to_thread(ReadingTools(client).incident, "sick", spike["incident_id"]))
    assert (shown["onset_step"], shown["advice"]["action"]) == (spike["onset_step"], spike["suggestion"]["action"])
    assert len(json.dumps(shown)) < 10_000


def test_without_the_sdk_the_program_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from support.cli_program import program_in

    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    monkeypatch.delitem(sys.modules, "stabilityplugins.mcp.server", raising=False)
    code, _, said = program_in(tmp_path, monkeypatch, capfd)("mcp")
    assert (code, "pip install 'stabilityboard[mcp]'" in said) == (1, True)
