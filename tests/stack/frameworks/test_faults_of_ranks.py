"""With a framework's integration and nothing else, what happens to one of two ranks is named, and so is the rank."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stack.fitted_runs import Fitted
from support.installed import needs
from support.ports import free_port
from support.processes import Server

pytestmark = pytest.mark.soak

#: Seconds from the start of a job until its fault is told.
WAIT_S = 240.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server") / "data", free_port()) as server:
        yield server


@pytest.mark.parametrize(
    "job",
    [
        pytest.param("trainer", marks=needs("accelerate", "the job needs transformers and accelerate")),
        pytest.param("accelerated", marks=needs("accelerate", "the job needs accelerate")),
        pytest.param("composed", marks=needs("composer", "the job needs Composer")),
        pytest.param("megatron", marks=needs("megatron", "the job needs Megatron-LM")),
    ],
)
@pytest.mark.parametrize(
    ("fault", "kind", "classed"),
    [
        ("raise", "process_death", "exception"),
        ("kill", "process_death", "signal"),
        ("loader", "hang", "data_loader"),
        ("slow", "straggler", None),
    ],
)
def test_a_fault_of_one_rank_has_its_class_and_its_rank(
    job: str, fault: str, kind: str, classed: str | None, tmp_path: Path, server: Server
) -> None:
    script = f"frameworks/{job}_job.py"
    more = ("shuffled",) if job == "composed" else ()
    with Fitted(tmp_path, server, 2, *more, script=script, launcher="torchrun", FAULT=fault) as running:

        def told(answer: Any) -> bool:
            return any(one["kind"] == kind for one in answer["incidents"])

        path = f"/runs/{running.run_id}/incidents"
        running.wait_for_run()
        found = [one for one in server.wait_for(path, told, kind, WAIT_S)["incidents"] if one["kind"] == kind]
    verdict = found[0]["evidence"].get("verdict") or {}
    assert (verdict.get("class"), verdict.get("culprits", [found[0]["rank"]])) == (classed, [1])
