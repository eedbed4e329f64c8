"""What version 62f28c5 left in Redis, in the archive and in a spool is read by today's server, and shown as it was."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from golden import samples, stored
from stabilitybackend.judging.detectors.registry import renamed
from stabilityclient.wire import decode_message, encode_message
from support.cli_program import program_in
from support.plain_redis import PlainRedis
from support.server_stack import RunningServer

_ANSWERS = samples.answers()
_KEY = _ANSWERS.pop("key")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Today's server, on what the older one left, at the time at which that stopped: faults end by the clock."""
    home = tmp_path_factory.mktemp("older")
    (data := home / "data").mkdir()
    samples.unpack("archive", data)
    now = time.time
    later = now() - _ANSWERS["/runs/job/plan"]["written"] - 60.0  # its agents are lost by then
    with PlainRedis(home) as redis, pytest.MonkeyPatch.context() as monkeypatch:
        samples.fill_redis(redis.url)
        monkeypatch.setattr(time, "time", lambda: now() - later)
        with RunningServer(redis.url, data) as running:
            running.client.headers["Authorization"] = f"Bearer {_KEY}"
            yield running


@pytest.mark.parametrize(
    "path", [path for path in _ANSWERS if path.startswith("/runs/") or path == "/gpus"], ids=lambda path: path[:36]
)
def test_each_value_that_an_older_server_showed_of_a_run_is_shown_today(server: RunningServer, path: str) -> None:
    then = stored.without_words(_ANSWERS[path])
    for change in (then, *then["changes"]) if path.endswith("/detectors") else ():
        change["settings"] = renamed(change["settings"])  # six detectors of curves are one since

    now = stored.without_words(server.client.get(f"/api/v1{path}").raise_for_status().json())

    assert stored.different(stored.shown_then(then, now), stored.shown_then(then, then)) is None


def test_interruptions_and_corrections_that_an_older_server_remembered_are_counted_today(server: RunningServer) -> None:
    then, now = _ANSWERS["/interruptions"], server.get("/interruptions")

    assert [each["category"] for each in now["interruptions"]] == ["software_bug"]
    assert [stored.shown_then(*pair) for pair in zip(then["interruptions"], now["interruptions"], strict=True)] == [
        stored.shown_then(each, each) for each in then["interruptions"]
    ]


def test_every_page_and_every_answer_is_served_without_an_error_on_the_redis_of_an_older_server(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    pages = ["/", "/compare", "/interruptions", "/gallery", "/incidents", "/runs/job", "/runs/frames"]

    statuses = {path: server.client.get(path).status_code for path in [*pages, *_api_paths(server)]}

    assert {path: status for path, status in statuses.items() if status != 200} == {}
    assert caplog.messages == []


def _api_paths(server: RunningServer) -> Iterator[str]:
    """Yield each address that the OpenAPI names a GET for, for each run, incident, command and dump that is there."""
    given = {
        "compare": "?run=job&run=frames&metric=loss", "series": "?metric=loss", "export": "?format=jsonl",
        "attempts": "?metric=loss", "search": "?q=job", "views": "?kind=runs",
    }  # fmt: skip
    for path, methods in server.app.openapi()["paths"].items():
        since_then = (
            path.endswith(("/audit", "/audit/export", "/branches")) or "/batch_samples/" in path or "/oidc/" in path
        )  # scope, forks, orders, a provider: not there
        if "get" not in methods or "export_id" in path or since_then:
            continue
        last = path.rsplit("/", 1)[-1]
        for run in ("job", "frames") if "{run_id}" in path else ("",):
            for one in _filled(path.replace("{run_id}", run), run):
                yield one + given.get(last, "")


def _filled(path: str, run: str) -> list[str]:
    found = re.search(r"{(incident_id|command_id|request)}", path)
    if found is None:
        return [path]
    about = {"incident_id": "incidents", "command_id": "commands", "request": "stacks"}[found[1]]
    several = _ANSWERS[f"/runs/{run}/{about}"]
    (several,) = several.values()
    ids = [each[found[1]] for each in several]
    return [path.replace(found[0], quote(one)) for one in ids]


def test_each_frame_that_an_older_agent_sent_is_read_and_written_again_to_the_same_bytes() -> None:
    frames = samples.frames()

    assert len(frames) > 20
    assert [encode_message(decode_message(data)) for data in frames] == frames


def test_the_spool_that_an_older_client_left_is_imported_whole(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = program_in(tmp_path, monkeypatch, capsys)
    monkeypatch.setenv("STABILITY_API_KEY", _KEY)

    code, out, _ = program("import", samples.unpack("spool", tmp_path), "--url", server.url)

    assert code == 0, out
    run = server.wait_for("/runs/offline", lambda r: r["last_step"] == 1010, "all of it is read")
    assert (run["ranks"], run["metrics"]) == ([0, 1], ["loss", "grad_norm", "lr"])
    assert run["config"] == {"lr": 3e-4, "layers": [2, 4]}
