"""Follows the advice as it is written, in real trainings with a fault: does the fault come back?

    python benchmarks/laboratory/closed_loop.py [--faults NAME ...] [--seeds 4711 ...] [--jobs 2] [--served]

The laboratory's model trains for real. A program reads the run's advice as the API answers it and does what it says,
and nothing else: it waits, corrects what is to be corrected first (which helps only where that is the cause), and goes
back to the checkpoint with the batches, learning rate and seed of the advice. Faults of the data lie in batches and are
met again with them; those of the schedule lie in steps. A fault came back where an incident of the curves is open at
the end. An advised checkpoint is clean where it is older than the fault's first step. Where the cause is in the code
no rollback helps, and the program can't correct it: there the advice has to say so first.

By default the advice is made in this process from the frames that an agent would send, ten rows at a time, so that the
outcome does not depend on how busy the machine is. ``--served``: by a real server, of a real job with the client, over
HTTP. Returns 1 where an aim is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "examples" / "laboratory")]

#: Fault -> what has to be corrected for it to be gone: "" where batches are to be left out, cause where it is in the
#: code.
FAULTS = {
    "garbage_batches": "",
    "corrupt_dataset": "",
    "wrong_tokenizer": "",
    "empty_row": "",
    "lr_bump": "schedule",
    "lr_window": "schedule",
    "killed_by_lr": "schedule",
    "lr_creep": "schedule",
    "mix_drift": "mixture",
    "negative_decay": "cause",
}
#: Aims: shares of the jobs in which the fault does not come back, and of the advised checkpoints that are clean.
GONE, CLEAN = 0.95, 0.98
#: Rows between two looks at the advice, and rollbacks after which a person would look.
ROWS_AT_ONCE = 10
MAX_ROLLBACKS = 3


def chosen(incidents: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the one advice of the run, None while there is none."""
    advised = [one["suggestion"] for one in incidents if one["state"] == "open" and one["suggestion"]]
    return next((advice for advice in advised if advice["leads"]), None)


def goes_back(advice: dict[str, Any]) -> bool:
    """Say whether the advice is to go back now: at once, or once what comes first is corrected."""
    if advice["to_step"] is None or advice["fix_first"] == "cause" or "While the loss is as it was" in advice["text"]:
        return False
    return advice["action"] == "roll_back" or (advice["action"] == "inspect" and bool(advice["fix_first"]))


def corrected(fault: str, fixed: set[str]) -> bool:
    """Say whether what the program corrected so far is what causes the fault; a cause in the code is none of it."""
    return FAULTS[fault] in fixed - {"", "cause"}


def seed_of(advice: dict[str, Any]) -> int | None:
    """Return the seed that the program takes where the advice asks for a new one."""
    return 7 if advice["reseed"] else None


def changes_of(advice: dict[str, Any]) -> dict[str, Any]:
    """Return what an order for the advice changes beside the step."""
    changes = {name: advice[name] for name in ("lr_scale", "skip_range")} | {"seed": seed_of(advice)}
    return {name: value for name, value in changes.items() if value is not None}


def outcome(
    fault: str, seed: int, fixed: set[str], orders: list[dict[str, Any]], incidents: list[Any]
) -> dict[str, Any]:
    """Return what came of a job."""
    from followed_job import first_step

    first = first_step(fault, seed)
    alive = [one for one in incidents if one["alarm"] and not one["dead"] and one["about"] in ("model", "data")]
    back = [one for one in alive if one["state"] == "open" and one["kind"] != "learning_rate"]
    return {
        "fault": fault, "seed": seed, "first": first, "fixed": sorted(fixed), "orders": orders,
        "clean": [order["to_step"] < first for order in orders],
        "back": [f"{one['kind']} at {one['onset_step']}" for one in back],
        "in_vain": any(one["suggestion"]["fix_first"] == "cause" for one in back if one["suggestion"]),
        "said": sorted({one["suggestion"]["text"][:160] for one in back if one["suggestion"]}),
    }  # fmt: skip


def follow(fault: str, seed: int) -> dict[str, Any]:
    """Train one job to its end, do what the advice says, and return what came of it."""
    import msgspec
    from followed_job import FollowedJob

    from stabilitybackend.runs.state import RunState
    from stabilitybackend.schema.incidents import shown
    from stabilityclient.wire import EventBlock, Frame, PointsBlock, SourceInfo

    now, count, fixed, orders = [1e9], [0], set[str](), list[dict[str, Any]]()
    source = SourceInfo("r0-1-1", 0, 1, 0, "n0", 1, 1e9, 0)
    state = RunState("closed-loop", lambda: now[0])

    def send(block: PointsBlock | EventBlock) -> None:
        count[0] += 1
        state.apply(Frame(source, count[0], count[0], [block]), replayed=False)

    def event(kind: str, step: int, **data: Any) -> None:
        send(EventBlock(kind, now[0], step, data))

    job = FollowedJob(fault, seed, lambda: corrected(fault, fixed))
    event("checkpoint", 0, path="c/0")
    step = 0
    while step < job.settings.steps:
        step, now[0] = step + 1, now[0] + 1
        row = job.step(step)
        numbers = [array_of("<q", step), array_of("<d", now[0]), array_of(f"<{len(row)}d", *row.values())]
        send(PointsBlock(list(row), *numbers))
        if step % job.settings.checkpoint_every == 0:
            job.job.save(step)
            event("checkpoint", step, path=f"c/{step}")
        if step % ROWS_AT_ONCE:
            continue
        advice = chosen([msgspec.to_builtins(shown(one)) for one in state.incidents.all()])
        if advice is None:
            continue
        fixed.add(advice["fix_first"])
        if goes_back(advice) and len(orders) < MAX_ROLLBACKS:
            names = ("to_step", "skip_range", "lr_scale", "action", "fix_first")
            orders.append({name: advice[name] for name in names} | {"at": step, "seed": seed_of(advice)})
            job.go_back(advice["to_step"], advice["lr_scale"], seed_of(advice), advice["skip_range"])
            step = advice["to_step"]
            key, changes = f"back-{len(orders)}", changes_of(advice)
            event("segment", step, key=key, to_step=step, reason="the advice", command_id=key, changes=changes)
    return outcome(fault, seed, fixed, orders, [msgspec.to_builtins(shown(one)) for one in state.incidents.all()])


def array_of(form: str, *values: float) -> bytes:
    """Return numbers as they travel."""
    import struct

    return struct.pack(form, *values)


def main() -> int:
    """Run all jobs and print a line each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[])
    parser.add_argument("--jobs", type=int, default=2, help="at once")
    parser.add_argument("--served", action="store_true", help="with a real server and the client")
    options = parser.parse_args()
    from seeds import report_seeds

    cases = [(fault, seed) for seed in options.seeds or report_seeds(5) for fault in options.faults]
    outcomes = []
    for one in _served(cases, options.jobs) if options.served else _folded(cases, options.jobs):
        outcomes.append(one)
        print(json.dumps(one), flush=True)
    curable = [one for one in outcomes if FAULTS[one["fault"]] != "cause"]
    others = [one for one in outcomes if FAULTS[one["fault"]] == "cause"]
    gone = sum(not one["back"] for one in curable) / max(1, len(curable))
    said = sum(one["in_vain"] for one in others)
    wrong = sum(one["in_vain"] for one in curable)
    clean = [good for one in outcomes for good in one["clean"]]
    share = sum(clean) / len(clean) if clean else 1.0
    print(f"{len(curable)} jobs with a fault that can be helped: gone in {gone:.0%}, called incurable in {wrong}")
    print(f"{len(others)} jobs with one that can't: the advice says so first in {said}")
    print(f"{len(clean)} rollbacks, {share:.0%} to clean states")
    return 0 if gone >= GONE and share >= CLEAN and said == len(others) and not wrong else 1


def _folded(cases: list[tuple[str, int]], jobs: int) -> Any:
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(follow, *zip(*cases, strict=True))


def _served(cases: list[tuple[str, int]], jobs: int) -> Any:
    from parts.server_process import ServerProcess
    from served_job import follow_served

    with (
        tempfile.TemporaryDirectory(prefix="closed-loop-") as name,
        ServerProcess(Path(name) / "server") as server,
        ThreadPoolExecutor(jobs) as pool,
    ):
        yield from pool.map(lambda case: follow_served(*case, server.url, Path(name) / f"{case[0]}-{case[1]}"), cases)


if __name__ == "__main__":
    sys.exit(main())
