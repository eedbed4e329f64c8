"""What is known about a run beside its points: launches, differences to another run, and what people change."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from stabilitybackend.schema.job.about import Difference
from stabilitybackend.server.about.differences import config_differences, options
from stabilityclient.wire import Hello
from support.gateway_stack import RawAgent
from support.job_frames import Job
from support.ports import free_port
from support.processes import Server


def launch(job: Job, commit: str, lr: str, host: str = "h0", **more: Any) -> Any:
    """The event of an agent that saw a launch."""
    git = {"commit": commit, "branch": "main", "dirty": False}
    command = ["python", "train.py", "--lr", lr]
    return job.event("launch", source=job.info.source, host=host, command=command, git=git, **more)


async def send(server: Server, run_id: str, config: dict[str, Any], *frames: Any, **hello: Any) -> None:
    """Introduce a run and store its frames."""
    async with RawAgent(f"{server.url.replace('http', 'ws')}/api/v1/agent") as agent:
        sources = list({one.source.source: one.source for one in frames}.values())
        await agent.ask(Hello(run_id, "a1", "n0", "0.1", project="p", config=config, sources=sources, **hello))
        await agent.store(*frames)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Three finished runs: a good one, one started again with another commit, and one for people to change."""
    with Server(tmp_path_factory.mktemp("about") / "data", free_port()) as server:
        good = Job()
        frames = [launch(good, "a" * 40, "1e-3"), good.rows(range(1, 20)), good.event("finish")]
        asyncio.run(send(server, "good", {"lr": 1e-3, "model": {"dim": 8}}, *frames))
        first, again = Job(start=1), Job(start=2)
        frames = [
            launch(first, "a" * 40, "1e-3"),
            first.rows(range(1, 20)),
            launch(again, "b" * 40, "3e-4"),
            again.rows(range(20, 40)),
            again.event("finish"),
        ]
        config = {"lr": 3e-4, "model": {"dim": 8}, "new": None}
        asyncio.run(send(server, "now", config, *frames, tags=["baseline"], notes="as reported"))
        edited = Job()
        frames = [launch(edited, "a" * 40, "1e-3"), edited.event("finish")]
        asyncio.run(send(server, "edited", {"lr": 3e-4}, *frames, tags=["baseline"], notes="as reported"))
        yield server


def about(server: Server, run: str = "now", **query: str) -> Any:
    return httpx.get(f"{server.url}/api/v1/runs/{run}/about", params=query).json()


def test_a_restart_with_another_commit_is_visible(server: Server) -> None:
    newest, oldest = about(server)["launches"]
    assert newest["git"]["commit"] == "b" * 40
    assert newest["command"] == "python train.py --lr 3e-4"
    assert newest["changed"] == [
        {"name": "commit", "before": "a" * 40, "now": "b" * 40},
        {"name": "command line: --lr", "before": "1e-3", "now": "3e-4"},
    ]
    assert oldest["changed"] == []


def test_the_last_good_run_is_chosen_by_the_server_and_named(server: Server) -> None:
    diff = about(server, against="last_good")["diff"]
    assert diff["run_id"] == "good"
    assert "finished without open incidents" in diff["why"]
    assert diff["config"] == [
        {"name": "lr", "before": "0.001", "now": "0.0003"},
        {"name": "new", "before": None, "now": "null"},
    ]
    assert diff["equal"] == 1
    assert [one["name"] for one in diff["facts"]] == ["commit", "command line: --lr"]


def test_without_an_earlier_good_run_it_says_so(server: Server) -> None:
    answer = httpx.get(f"{server.url}/api/v1/runs/good/about", params={"against": "last_good"}).json()
    assert answer["diff"] is None
    assert "no earlier run" in answer["no_diff"]


def test_what_people_change_stays_when_the_job_reports_again(server: Server) -> None:
    before = about(server, "edited")
    assert (before["tags"], before["notes"], before["edited"]) == (["baseline"], "as reported", None)
    url = f"{server.url}/api/v1/runs/edited/about"
    changed = httpx.put(url, json={"tags": ["good", "good", " "], "name": "Seven"}).json()
    assert (changed["tags"], changed["name"], changed["notes"]) == (["good"], "Seven", "as reported")
    job = Job(start=3)
    asyncio.run(send(server, "edited", {"lr": 3e-4}, job.event("start"), tags=["other"], name="n"))
    now = about(server, "edited")
    assert (now["tags"], now["name"], now["edited"]["who"]) == (["good"], "Seven", "local")
    run = httpx.get(f"{server.url}/api/v1/runs/edited").json()
    assert (run["tags"], run["name"]) == (["good"], "Seven")
    assert httpx.put(url, json={"name": ""}).json()["name"] == "n"


def test_of_two_who_change_a_run_at_once_neither_loses_what_they_wrote(server: Server) -> None:
    url = f"{server.url}/api/v1/runs/now/about"
    httpx.put(url, json={"tags": ["old"], "notes": "one"})
    with ThreadPoolExecutor() as people:
        list(people.map(lambda tag: httpx.put(url, json={"add_tags": [tag]}), "abcd"))
    assert sorted(httpx.put(url, json={"remove_tags": ["old", "d"]}).json()["tags"]) == ["a", "b", "c"]
    changed = {"notes": "mine", "notes_before": "one"}
    assert [httpx.put(url, json=changed).status_code for _ in "12"] == [200, 200]  # the same twice: its answer got lost
    refused = httpx.put(url, json={"notes": "theirs", "notes_before": "one"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "notes_changed")
    assert "'mine'" in refused.json()["error"]["message"]
    assert httpx.put(url, json={"add_tags": [str(one) for one in range(30)]}).status_code == 422


@pytest.mark.parametrize("body", [{"tags": ["x" * 65]}, {"tags": ["x"] * 33}, {"notes": "x" * 10_001}, {"other": 1}])
def test_a_change_beyond_the_limits_is_refused(server: Server, body: dict[str, Any]) -> None:
    assert httpx.put(f"{server.url}/api/v1/runs/now/about", json=body).status_code == 422


def test_a_number_and_its_text_are_two_values() -> None:
    found, equal = config_differences({"a": 1, "b": {"c": [1]}, "d": "x"}, {"a": "1", "b": {"c": [1]}, "d": "x"})
    assert (found, equal) == ([Difference("a", "1", '"1"')], 2)


def test_a_command_line_is_compared_option_by_option() -> None:
    given = ["python", "train.py", "--lr", "1e-3", "--x=2", "--flag", "--y", "-1", "model.dim=8", "--lr", "2"]
    assert options(given) == {
        "argument 1": "python", "argument 2": "train.py", "--lr": "1e-3", "--x": "2", "--flag": "", "--y": "-1",
        "model.dim": "8", "--lr (2)": "2",
    }  # fmt: skip
