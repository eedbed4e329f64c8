"""What happens to a job is named: real processes break in every way of examples/faults, several at a time.


Ranks meet through a hub that behaves as NCCL does: whoever waits for a dead one waits for ever. The server's bounds are
short, so that the whole takes seconds; ``benchmarks/fault_matrix.py`` takes the default ones, and torch.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.ports import free_port
from support.processes import Server

_FOLDER = Path(__file__).resolve().parents[2] / "examples" / "faults"
sys.path.insert(0, str(_FOLDER))
catalog, judge, stage = (importlib.import_module(name) for name in ("catalog", "judge", "stage"))
sys.path.remove(str(_FOLDER))

#: Bounds of the server: a step takes 0.05 s, so that five times the longest one is far below the floor.
_LIMITS = {"STABILITY_HANG_FLOOR_S": "4", "STABILITY_AGENT_LOST_S": "6"}
_STEP = 60
#: Jobs at once: each is two ranks and their agents, and their starts share two cores with other tests.
_JOBS = 5
#: True of a machine that is busy with tests.
_BUSY = ("throughput", "straggler")
#: Faults that need more time, or a server of their own, than all tests have: in the matrix of benchmarks/.
_ELSEWHERE = ("server_away", "agent_paused")
#: One more of a class that another fault shows already, or slow to tell: left to ``make soak``.
_SOAK = ("oom", "blocked", "abort", "exit_code", "slow_all", "slow_data", "partition", "agent_dead")
_FAULTS = [fault for fault in catalog.FAULTS if fault.name not in _ELSEWHERE]


def _can_make_cgroups() -> bool:
    return os.access("/sys/fs/cgroup/memory", os.W_OK)


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Any]]]:
    """Every fault that is asked for happens to a job of its own; the futures hold what was said."""
    asked = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    port = free_port()
    home = tmp_path_factory.mktemp("faults")
    with ExitStack() as stack:
        server = stack.enter_context(Server(home / "data", port, env=_LIMITS))
        pool = stack.enter_context(ThreadPoolExecutor(_JOBS))
        yield {
            fault.name: pool.submit(_outcome, fault, server.url, home)
            for fault in _FAULTS
            if fault.name in asked and (fault.name != "oom" or _can_make_cgroups())
        }


def _outcome(fault: Any, url: str, home: Path) -> Any:
    run_id, folder = f"t-{fault.name}".replace("_", "-"), home / fault.name
    folder.mkdir()
    plan = {"period_s": 0.05, "step": _STEP}
    with stage.FaultyJob(fault, url=url, run_id=run_id, folder=folder, **plan) as job:
        judge.wait_for(lambda: (judge.run_of(url, run_id).get("last_step") or 0) >= _STEP - 5, 60, f"{run_id} trains")
        if fault.node:
            job.happen()
        judge.wait_for(lambda: job.happened, 30, f"{fault.name} happens")
        return judge.judged(job, fault, url, wait_s=45, settle_s=1)


@pytest.mark.parametrize(
    "name",
    [pytest.param(f.name, marks=pytest.mark.soak if f.name in _SOAK else ()) for f in _FAULTS],
)
def test_a_fault_is_named_with_its_class_and_who_is_to_blame(name: str, outcomes: dict[str, Future[Any]]) -> None:
    if name not in outcomes:
        pytest.skip("memory cgroups can't be made here")

    found = outcomes[name].result()

    assert (found.kind, found.classed, found.blamed) == (True, True, True), found.said
    assert [alarm for alarm in found.false_alarms if not alarm.startswith(_BUSY)] == []
