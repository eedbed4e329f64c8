"""Of a log that is followed, the receivers hear what comes, and of its history only what is still so at its end."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from support.followed_log import Follower
from support.server_stack import RunningServer
from support.waiting import until


def rows(steps: range, bad: range = range(0)) -> str:
    """Return lines with a loss that wriggles around 2, and jumps in ``bad``."""
    losses = ((step, 2.0 + 0.01 * (step * 7 % 11) + (6.0 if step in bad else 0.0)) for step in steps)
    return "".join(json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in losses)


@pytest.mark.soak
async def test_only_what_is_open_at_the_end_of_a_logs_history_and_what_comes_after_it_is_sent(
    redis_url: str, receiver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STABILITY_WEBHOOK_URL", f"{receiver.url}/hook")
    monkeypatch.setenv("STABILITY_WEBHOOK_SECRET", "secret")
    log, out = tmp_path / "log.jsonl", tmp_path / "out"
    log.write_text(rows(range(500), bad=range(200, 203)))
    server = RunningServer(redis_url, tmp_path / "server")
    await asyncio.to_thread(server.__enter__)
    try:

        def wait(condition: Any, what: str) -> Any:
            return asyncio.to_thread(server.wait_for, "/runs/r", condition, what, 30)

        async def hears(onset: int) -> None:
            async def heard() -> bool:
                return onset in [one.json["incident"]["onset_step"] for one in receiver.received]

            await until(heard, 30, f"the receiver hears of step {onset}")

        asked = (server.url, out, log, "--run-id", "r")
        with Follower(*asked) as follower:
            await asyncio.to_thread(follower.wait_for, "follows log.jsonl")
            await wait(lambda r: r["last_step"] == 499 and r["config"]["followed"].get("since"), "all is sent")
            with log.open("a") as file:
                file.write(rows(range(500, 560), bad=range(520, 523)))
            await wait(lambda r: r["last_step"] == 559, "the new rows")
            await asyncio.to_thread(follower.kill)
        with log.open("a") as file:
            file.write(rows(range(560, 700), bad=range(600, 700)))
        with Follower(*asked):
            await hears(600)
        kinds = {incident["kind"] for incident in server.get("/runs/r/incidents")["incidents"]}
        assert kinds >= {"spike"}
        onsets = {i["onset_step"] for i in server.get("/runs/r/incidents")["incidents"] if i["kind"] == "spike"}
        assert 200 in onsets
    finally:
        await asyncio.to_thread(server.__exit__, None, None, None)
    heard = {one.json["incident"]["onset_step"] for one in receiver.received}
    assert 200 not in heard
