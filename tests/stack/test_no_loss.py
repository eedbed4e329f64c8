"""Every point is stored exactly once, whoever is killed meanwhile."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from support.processes import Ranks, Server, agent_pid

METRICS = 12
#: A small window, so that the archiver is at work whenever somebody is killed.
WINDOW_MIB = 0.1


@pytest.mark.parametrize(
    "seconds", [pytest.param(14.0, id="short"), pytest.param(60.0, id="full", marks=pytest.mark.soak)]
)
def test_every_point_is_stored_once_while_server_redis_and_agent_are_killed(
    seconds: float, tmp_path: Path, free_port: int
) -> None:
    server = Server(tmp_path / "data", free_port, {"STABILITY_WINDOW_MIB": str(WINDOW_MIB)})
    enough = tmp_path / "enough"  # the job outlives the last kill, however long the server takes to come up again
    with (
        server,
        Ranks("two_ranks.py", [str(enough), "0.005"], url=server.url, folder=tmp_path / "spool", run_id="r") as job,
    ):
        begin = time.monotonic()
        for at, victim in ((0.1, "server"), (0.3, "redis"), (0.45, "server"), (0.6, "agent"), (0.75, "server")):
            _sleep_until(begin + at * seconds)
            if victim == "server":
                server.kill()
                server.start()
            elif victim == "redis":
                server.kill_redis("r")
            else:
                os.kill(agent_pid(tmp_path / "spool", "r"), signal.SIGKILL)
        _sleep_until(begin + seconds)
        enough.touch()
        outputs = job.outputs()
        rows = [int(lines[0]) for lines in outputs]
        # The job is over and the last row of the longer rank is there; the backlog of the other may still be coming.
        stored = server.wait_for(
            "/runs/r", lambda r: r["status"] == "finished" and r["last_step"] == max(rows), "the run is finished", 60
        )
        assert stored["rollbacks"] == 0
        points = METRICS * sum(rows)
        (segment,) = server.wait_for(
            "/runs/r/segments", lambda s: s["segments"][0]["points"] >= points, f"{points} points are there", 60
        )["segments"]
        assert segment["points"] == points
        storage = server.wait_for("/runs/r/storage", lambda s: s["state"] in ("ok", "failed"), "all is archived", 60)
        assert (storage["state"], storage["problem"]) == ("ok", None)
        assert storage["cold"]["rows"] > 0.5 * segment["points"]
        assert storage["cold"]["rows"] + storage["hot"]["values"] == segment["points"]
        series = server.get("/runs/r/series", metric=["loss", "m3"])["series"]
        assert {(s["metric"], s["rank"]) for s in series} == {(m, r) for m in ("loss", "m3") for r in (0, 1)}
        for entry in series:
            steps = np.arange(1, rows[entry["rank"]] + 1)
            assert entry["steps"] == steps.tolist()
            if entry["metric"] == "m3":
                assert np.allclose(entry["values"], steps + 0.03)
            else:
                assert [s for s, v in zip(entry["steps"], entry["values"], strict=True) if v == "NaN"] == [
                    s for s in entry["steps"] if s % 500 == 0
                ]


def _sleep_until(moment: float) -> None:
    """The kills are spread over the run by the clock: that is what is tested, nothing waits for a result."""
    time.sleep(max(0.0, moment - time.monotonic()))
