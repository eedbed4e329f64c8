"""A real job and server while the bucket is slow, broken, silent and away: every point is stored once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.agent.s3_server import KEYS, s3_server
from support.agent.store_proxy import Mood, store_proxy
from support.processes import Ranks, Server
from support.waiting import wait_until

METRICS = 12
#: How long the bucket is in each mood, seconds; a slow one answers 2 s later.
TROUBLE: tuple[tuple[Mood, float], ...] = (("slow", 20.0), ("failing", 20.0), ("away", 60.0), ("silent", 40.0))
DELAY_S = 2.0
#: A write that a silent store has taken ends after 60 s.
WELL_AGAIN_S = 120.0


@pytest.mark.soak
def test_every_point_is_stored_once_whatever_the_bucket_does_meanwhile(tmp_path: Path, free_port: int) -> None:
    with s3_server() as s3, store_proxy(s3) as bucket:
        bucket.delay_s = DELAY_S
        env = KEYS | {
            "AWS_ENDPOINT_URL": bucket.url,
            "STABILITY_ARCHIVE_URL": "s3://bucket/runs",
            "STABILITY_WINDOW_MIB": "0.2",
        }
        enough = tmp_path / "enough"
        with (
            Server(tmp_path / "data", free_port, env) as server,
            Ranks("two_ranks.py", [str(enough), "0.01"], url=server.url, folder=tmp_path / "spool", run_id="r") as job,
        ):
            _parts(server, 1)
            for mood, seconds in TROUBLE:
                bucket.mood = mood
                began = time.monotonic()
                if mood != "slow":
                    storage = server.wait_for(
                        "/runs/r/storage", lambda s: s["state"] == "failed", f"the page says that it is {mood}", 90
                    )
                    assert "s3://bucket/runs/r/" in storage["problem"]
                    assert "archive" in [reason["code"] for reason in _readiness(server)]
                time.sleep(max(0.0, seconds - (time.monotonic() - began)))
                bucket.mood = "well"
                server.wait_for("/runs/r/storage", lambda s: s["state"] == "ok", "all is archived again", WELL_AGAIN_S)
            enough.touch()
            rows = [int(lines[0]) for lines in job.outputs()]
            points = METRICS * sum(rows)
            server.wait_for(
                "/runs/r/segments", lambda s: s["segments"][0]["points"] >= points, f"{points} points are there", 60
            )
            storage = server.wait_for("/runs/r/storage", lambda s: s["state"] == "ok", "all is archived", 60)
            assert storage["cold"]["rows"] + storage["hot"]["values"] == points
            kinds = {incident["kind"] for incident in server.get("/runs/r/incidents")["incidents"]}
            assert not kinds & {"agent_lost", "hang", "process_death"}  # the bucket's trouble is none of the job's
            # After a request that timed out nobody asks the bucket for 5 s: an answer of that time says what it lacks.
            found = wait_until(lambda: _whole(server), 60, "all can be read")
            assert {entry["rank"] for entry in found["series"]} == {0, 1}
            for entry in found["series"]:
                assert entry["steps"] == list(range(1, rows[entry["rank"]] + 1))


def _parts(server: Server, count: int) -> None:
    server.wait_for("/runs/r/storage", lambda s: s["cold"]["parts"] >= count, f"{count} parts are there", 60)


def _readiness(server: Server) -> list[dict[str, Any]]:
    reasons: list[dict[str, Any]] = httpx.get(f"{server.url}/readyz").json()["reasons"]
    return reasons


def _whole(server: Server) -> Any:
    """Return the answer for the chart of the loss, None while some of it can't be read."""
    found = server.get("/runs/r/series", metric=["loss"])
    return None if found["problems"] else found
