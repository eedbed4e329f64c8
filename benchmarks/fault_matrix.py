"""Breaks real jobs in twenty ways and looks at what the board says: which kind, which class, which rank, how soon.

    python benchmarks/fault_matrix.py                    every fault 5 times, 10 healthy jobs; about half an hour
    python benchmarks/fault_matrix.py --faults sigkill livelock --repeats 1 --healthy 0
    python benchmarks/fault_matrix.py --hub              ranks meet through a hub that behaves as NCCL, without torch

Ranks are processes that meet in gloo's all_reduce, the server has its default settings. Times are from the fault (the
last progress) to the incident, and to the right verdict on the incident; a verdict counts when it still stands 6 s
later. The faults and what is right: ``examples/faults/catalog.py``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from parts.server_process import ServerProcess, free_port

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "faults"))

from catalog import FAULTS, Fault
from judge import Outcome, incidents_of, judged, run_of, wait_for
from stage import FaultyJob

#: Steps that a job has done before a fault of its node happens; those of ranks come at their plan's step.
WARM_STEPS = 60
#: How long a healthy job runs, seconds.
HEALTHY_S = 110.0
#: Jobs at once: they sleep nearly all the time.
JOBS = 4


def main(arguments: Sequence[str]) -> int:
    """Run the matrix; return 1 when a bound is missed."""
    options = _options(arguments)
    chosen = [fault for fault in FAULTS if not options.faults or fault.name in options.faults]
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="fault-matrix-") as folder,
        ServerProcess(Path(folder) / "server") as server,
    ):
        jobs = [(fault, number) for number in range(options.repeats) for fault in chosen]
        with ThreadPoolExecutor(options.jobs) as pool:
            found = [
                pool.submit(_one, fault, number, server.url, Path(folder), options.hub, options.world)
                for fault, number in jobs
            ]
            healthy = [
                pool.submit(_healthy, number, server.url, Path(folder), options.hub)
                for number in range(options.healthy)
            ]
            outcomes = [each.result() for each in found]
            quiet = [each.result() for each in healthy]
    good = _tell(chosen, outcomes, quiet)
    print(f"{len(jobs)} jobs with faults, {len(quiet)} healthy ones, {time.monotonic() - began:.0f} s")
    return 0 if good else 1


def _one(fault: Fault, number: int, url: str, folder: Path, hub: bool, world: int) -> Outcome:
    run_id = f"{fault.name}-{number}".replace("_", "-")
    try:
        return _broken(fault, number, run_id, url, folder, hub, world)
    except NotTraining as error:
        # It says nothing about us: no rank came as far as the fault. Printed, and tried once more.
        print(f"launched again: {error}", flush=True)
        return _broken(fault, number, f"{run_id}-again", url, folder, hub, world)


class NotTraining(Exception):
    """A job did not come as far as its fault."""


def _comes_up(url: str, run_id: str, home: Path, step: int) -> None:
    _wait_for_ranks(lambda: (run_of(url, run_id).get("last_step") or 0) >= step, 90.0, f"{run_id} trains", home)


def _wait_for_ranks(condition: Callable[[], Any], timeout_s: float, what: str, home: Path) -> None:
    try:
        wait_for(condition, timeout_s, what)
    except SystemExit as error:
        output = (home / "ranks.log").read_text(errors="replace").strip().splitlines()[-3:]
        raise NotTraining(f"{error}; its ranks printed: {' | '.join(output)[:600] or 'nothing'}") from error


def _broken(fault: Fault, number: int, run_id: str, url: str, folder: Path, hub: bool, world: int) -> Outcome:
    home = folder / run_id
    home.mkdir()
    own = ServerProcess(home / "server", port=free_port()) if fault.name == "server_away" else None
    if own is not None:
        own.start()
        url = own.url
    # Another rank each time, never 0: it logs the loss.
    rank = 1 + number % (world - 1)
    job = FaultyJob(fault, url=url, run_id=run_id, folder=home, torch=not hub, world_size=world, rank=rank)
    try:
        with job:
            _comes_up(url, run_id, home, WARM_STEPS - 5)
            if fault.node or fault.lasts_s:
                job.happen(own)
            _wait_for_ranks(lambda: job.happened, 60.0, f"{fault.name} happens in {run_id}", home)
            return judged(job, fault, url)
    finally:
        if own is not None:
            own.stop()


def _healthy(number: int, url: str, folder: Path, hub: bool) -> Outcome:
    """A job with long checkpoints and evaluations; of every second one the agent is stopped for 20 s."""
    run_id = f"healthy-{number}"
    home = folder / run_id
    home.mkdir()
    pause = next(fault for fault in FAULTS if fault.name == "agent_paused")
    plan = {
        "checkpoint_every": 100, "checkpoint_s": [1.0 + number / 10, 25.0 + number], "eval_every": 140,
        "eval_s": [0.5, 20.0 + number],
    }  # fmt: skip
    outcome = Outcome("healthy")
    job = FaultyJob(pause if number % 2 else None, url=url, run_id=run_id, folder=home, torch=not hub, **plan)
    with job:
        _comes_up(url, run_id, home, WARM_STEPS)
        began = time.time()
        if job.fault is not None:
            job.happen()
        while time.time() < began + HEALTHY_S:
            time.sleep(1.0)
        incidents = incidents_of(url, run_id)
    assert incidents is not None
    outcome.false_alarms = [f"{one['kind']}: {one['title']}" for one in incidents if one["severity"] != "info"]
    return outcome


def _tell(chosen: list[Fault], outcomes: list[Outcome], quiet: list[Outcome]) -> bool:
    head = f"{'fault':16} {'jobs':>4} {'kind':>5} {'class':>5} {'rank':>5}  {'incident s':>16}  {'verdict s':>16}"
    print(f"{head}  false alarms")
    for fault in chosen:
        mine = [outcome for outcome in outcomes if outcome.fault == fault.name]
        alarms = [alarm for outcome in mine for alarm in outcome.false_alarms]
        print(
            f"{fault.name:16} {len(mine):4} {sum(o.kind for o in mine):5} {sum(o.classed for o in mine):5} "
            f"{sum(o.blamed for o in mine) if fault.blames else '-':>5}  {_spread([o.opened_s for o in mine]):>16}  "
            f"{_spread([o.verdict_s for o in mine]):>16}  {len(alarms)} {'; '.join(sorted(set(alarms)))[:120]}"
        )
        for outcome in mine:
            if not (outcome.kind and outcome.classed and outcome.blamed):
                print(f"{'':16} said: {outcome.said[:400] or 'nothing'}")
    blaming = {fault.name for fault in chosen if fault.blames}
    classed = sum(o.classed for o in outcomes) / max(1, len(outcomes))
    to_blame = [o for o in outcomes if o.fault in blaming]
    blamed = sum(o.blamed for o in to_blame) / max(1, len(to_blame))
    verdicts = [o.verdict_s for o in outcomes]
    healthy_alarms = [alarm for outcome in quiet for alarm in outcome.false_alarms]
    print(f"right class {classed:.1%} (aim 95 %), right rank or node {blamed:.1%} (aim 95 %)")
    print(f"from the fault to the right verdict: {_spread(verdicts)} s (aim 60)")
    print(f"healthy jobs: {len(quiet)}, alarms {len(healthy_alarms)} (aim 0) {'; '.join(healthy_alarms)[:300]}")
    return classed >= 0.95 and blamed >= 0.95 and not healthy_alarms


def _spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.1f} (max {max(known):.1f})" if known else "-"


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", nargs="+", choices=[fault.name for fault in FAULTS], help="only these")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--healthy", type=int, default=10, help="healthy jobs")
    parser.add_argument("--hub", action="store_true", help="no torch: ranks meet through a hub")
    parser.add_argument("--world", type=int, default=2, help="ranks of a job")
    parser.add_argument("--jobs", type=int, default=JOBS, help="at once")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
