"""A real job that stalls in its first step is told in minutes, also where it waits for data that nobody fetches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.processes import Ranks, Server


# Soak: two looks at stacks, each after four times the floor. The bounds of a real server are 40 s each.
@pytest.mark.soak
def test_a_first_batch_that_never_comes_is_told_long_before_the_first_steps_budget(
    tmp_path: Path, free_port: int
) -> None:
    plan = json.dumps({"hang_at": [1, 1]})
    with (
        Server(tmp_path / "data", free_port, env={"STABILITY_HANG_FLOOR_S": "3"}) as server,
        Ranks("job.py", [plan], url=server.url, folder=tmp_path / "spool", run_id="first"),
    ):
        answer = server.wait_for(
            "/runs/first/incidents",
            lambda found: [one for one in found["incidents"] if one["kind"] == "hang"],
            "the hang is told",
            60,
        )
        (hang,) = (one for one in answer["incidents"] if one["kind"] == "hang")
        assert (hang["rank"], hang["evidence"]["verdict"]["class"]) == (1, "data_loader")
