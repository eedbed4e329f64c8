"""The batch behind a spike reaches the server by itself, and by an order: real server, real agent, two ranks."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from support.cli_program import program_in
from support.processes import Ranks, Server


# Soak: the browser's test shows the same ranks' answers on the page; here the program and the API are read, too.
@pytest.mark.soak
def test_the_bad_batch_of_one_rank_is_shown_without_and_with_an_order(
    tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        Server(tmp_path / "data", free_port) as server,
        Ranks("keeping_rank.py", [str(tmp_path)], url=server.url, folder=tmp_path / "spool", run_id="keep") as ranks,
    ):
        looks = server.wait_for(
            "/runs/keep/batch_samples", lambda found: found["answers"] and found["answers"][0]["ranks"] == [0, 1],
            "both ranks are asked when the loss is NaN",
        )  # fmt: skip
        assert (looks["ranks"], looks["held"], looks["on_spike"]) == ([0, 1], 40, True)
        (own,) = server.get("/runs/keep/commands")["commands"]
        (incident,) = server.get("/runs/keep/incidents")["incidents"]
        assert (own["issuer"], own["step"], own["incident_id"]) == ("stabilityboard", 60, incident["incident_id"])
        worst = server.get(f"/runs/keep/batch_samples/{own['command_id']}")["samples"][0]
        assert (worst["rank"], worst["step"], worst["loss"], worst["repeated"]) == (1, 60, "NaN", 0.9998)
        assert len(worst["text"]) <= 2000
        assert worst["text"].startswith("<img src=x onerror='window.pwned=1'> \0? \x1b[31mbuy now ")
        assert "show_batches" in incident["actions"]

        program, arguments = program_in(tmp_path, monkeypatch, capsys), ["batches", "keep", "--url", server.url]
        shown = json.loads(program(*arguments, "--step", "60", "--json")[1])
        assert [one["step"] for one in shown["batches"]] == sorted(one["step"] for one in shown["batches"])
        code, table, trouble = program(*arguments, "--incident", incident["incident_id"])
        assert (code, trouble, "\x1b[31m" in table) == (0, "", False)
        assert "2 ranks answered" in table
        unknown = httpx.post(
            f"{server.url}/api/v1/runs/keep/commands", json={"kind": "show_batches", "incident_id": "i"}
        )
        assert unknown.status_code == 404
        (tmp_path / "enough").touch()
        ranks.outputs()
