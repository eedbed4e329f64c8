"""What the autopilot is worth in real trainings with a fault, and its harm, against a person who needs ten minutes.

    python benchmarks/autopilot.py [--faults NAME ...] [--seeds 4711 ...] [--healthy 22] [--jobs 2]

The laboratory's model trains for real, twice with each fault and seed: with the autopilot, and without. In both a
person follows the advice: ten minutes after an alarm (at --step-s seconds a step) somebody is at it, corrects what the
advice says comes first (which helps only where that is the cause), and goes back as it says while the trouble is open.
The autopilot has the default policy and is asked every ten steps. What the person is faster with stays theirs. Faults
of the data lie in batches and are met again with them; those of the schedule lie in steps.

Saved are the steps that the job with the autopilot did not have to train to get to its end, compared with the one
without. Each step counts --step-s seconds on --gpus GPUs; loading a checkpoint counts nothing, in neither. Harm is a
job with autopilot that is worse off than the one without: more steps trained, trouble open at the end that the other
had not, or a loss of the last 50 steps that is more than 5 % higher. Where it ordered nothing the two are the same job,
which is not trained again. Healthy runs have to see no action. Seeds follow from the newest commit that touched a rule
or the autopilot; --draw 1 takes the next five of them, and so on. Returns 1 where there was harm, or an action in a
healthy run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "laboratory"), str(HERE.parent / "examples" / "laboratory")]
from closed_loop import FAULTS, changes_of, chosen, corrected, goes_back, seed_of  # noqa: E402

from seeds import RULES, report_seeds  # noqa: E402

#: Families without a fault, some of which look like one.
HEALTHY = (
    "healthy_smooth", "healthy_noisy", "healthy_heavy_tailed", "healthy_decay", "healthy_curriculum",
    "healthy_epochs", "healthy_few_rows", "sudden_drop", "warm_up", "batch_ramp", "lr_drop",
)  # fmt: skip
POLICY = "dry_run: false\n"
#: Seconds until a person who was called is at it.
REACTION_S = 600.0
#: Rows between two looks, and rollbacks after which a person would look for the cause instead.
ROWS_AT_ONCE = 10
MAX_ROLLBACKS = 6
#: The person's and the autopilot's new seed are the same one, so that both meet the same data in the same order.
NEW_SEED = 7
#: A final loss that is so much higher is worse, and steps at the end that it is the mean of.
WORSE, LAST_STEPS = 1.05, 50


def train(fault: str, seed: int, with_autopilot: bool, reaction: int) -> dict[str, Any]:
    """Train one job to its end and return what came of it.

    Args:
        reaction: steps from an alarm until a person is at it.
    """
    import msgspec
    from followed_job import FollowedJob

    from stabilitybackend.acting.autopilot.policy import read_policy
    from stabilitybackend.lineage.consumer import Effects
    from stabilitybackend.runs.derived.autopilot import RunAutopilot
    from stabilitybackend.runs.feed.pubsub import Channel
    from stabilitybackend.runs.state import RunState
    from stabilitybackend.schema.incidents import shown
    from stabilityclient.wire import EventBlock, Frame, Health, PointsBlock, SourceInfo

    now, count, fixed = [1e9], [0], set[str]()
    orders: list[dict[str, Any]] = []
    source = SourceInfo("r0-1-1", 0, 1, 0, "n0", 1, 1e9, 0)
    state = RunState("autopilot", lambda: now[0])
    state.agents.health(Health("a1", "n0", now[0], []))
    nothing: Any = None
    pilot = RunAutopilot("autopilot", nothing, nothing, Channel(), lambda: now[0])
    pilot._policy = read_policy(POLICY) if with_autopilot else None

    def send(block: PointsBlock | EventBlock) -> None:
        count[0] += 1
        state.apply(Frame(source, count[0], count[0], [block]), replayed=False)

    def event(kind: str, step: int, /, **data: Any) -> None:
        send(EventBlock(kind, now[0], step, data))

    def saved(step: int) -> None:
        job.job.save(step)
        event("checkpoint", step, path=f"c/{step}")
        event("checkpoint_seen", step, path=f"c/{step}", kind="file", complete=True)

    job = FollowedJob(fault, seed, lambda: fault in FAULTS and corrected(fault, fixed))
    event("handler", 0, can=["lr_scale", "seed", "skip_batches", "skip_range"], branches=True)
    saved(0)
    step = trained = 0
    alarm_at: int | None = None
    losses: dict[int, float] = {}
    while step < job.settings.steps:
        step, trained, now[0] = step + 1, trained + 1, now[0] + 1
        if row := job.step(step):
            losses[step] = row["loss"]
            numbers = [_packed("<q", step), _packed("<d", now[0]), _packed(f"<{len(row)}d", *row.values())]
            send(PointsBlock(list(row), *numbers))
        if step % job.settings.checkpoint_every == 0:
            saved(step)
        if step % ROWS_AT_ONCE:
            continue
        changes = Effects()
        pilot.judge(state, changes)
        order: dict[str, Any] | None = None
        for command in changes.commands.values():
            span = command.skip_range
            order = {
                "by": "autopilot", "key": command.command_id, "to_step": command.to_step, "lr_scale": command.lr_scale,
                "skip_range": list(span) if isinstance(span, tuple) else None,
                "seed": None if command.seed is None else NEW_SEED,
            }  # fmt: skip
            event("command", step, command_id=command.command_id, state="acted")
        incidents = [msgspec.to_builtins(shown(one)) for one in state.incidents.all()]
        live = [one for one in incidents if one["alarm"] and one["state"] == "open" and not one["dead"]]
        alarm_at = None if not live else trained if alarm_at is None else alarm_at
        if order is None and alarm_at is not None and trained - alarm_at >= reaction:
            advice = chosen(incidents)
            if advice is not None:
                fixed.add(advice["fix_first"])
                if goes_back(advice) and len(orders) < MAX_ROLLBACKS:
                    order = {"by": "person", "key": f"back-{len(orders)}", "to_step": advice["to_step"],
                             "lr_scale": advice["lr_scale"], "skip_range": advice["skip_range"],
                             "seed": seed_of(advice), "changes": changes_of(advice)}  # fmt: skip
        if order is not None:
            job.go_back(order["to_step"], order["lr_scale"], order["seed"], order["skip_range"])
            order["at"] = step
            orders.append(order)
            step, key = order["to_step"], order.pop("key")
            changed = order.pop("changes", None) or {
                name: order[name] for name in ("lr_scale", "skip_range", "seed") if order[name] is not None
            }
            event("segment", step, key=key, to_step=step, reason="", command_id=key, changes=changed)
            alarm_at = None
    incidents = [msgspec.to_builtins(shown(one)) for one in state.incidents.all()]
    alive = [one for one in incidents if one["alarm"] and not one["dead"] and one["state"] == "open"]
    return {
        "trained": trained,
        "steps": job.settings.steps,
        "orders": orders,
        "asked": sum(one["kind"] == "autopilot_gave_up" for one in incidents),
        "open": sorted({one["kind"] for one in alive if one["about"] in ("model", "data")} - {"learning_rate"}),
        "loss": fmean(losses[at] for at in range(step - LAST_STEPS + 1, step + 1) if at in losses),
    }


def compare(case: tuple[str, int, int]) -> dict[str, Any]:
    """Return what came of a fault with and without autopilot."""
    fault, seed, reaction = case
    with_it = train(fault, seed, True, reaction)
    acted = any(order["by"] == "autopilot" for order in with_it["orders"])
    without = train(fault, seed, False, reaction) if acted and fault in FAULTS else with_it
    opened = [kind for kind in with_it["open"] if kind not in without["open"]]
    worse = not with_it["loss"] <= WORSE * without["loss"]
    saved = without["trained"] - with_it["trained"]
    return {
        "fault": fault, "seed": seed, "acted": sum(order["by"] == "autopilot" for order in with_it["orders"]),
        "asked": with_it["asked"], "saved_steps": saved, "loss": [with_it["loss"], without["loss"]],
        "harm": [
            *([f"{-saved} steps more"] if saved < 0 else []), *(f"{kind} open at the end" for kind in opened),
            *(["loss"] if acted and worse else []),
        ],
        "orders": with_it["orders"], "person": without["orders"], "still": with_it["open"],
    }  # fmt: skip


def _packed(form: str, *values: float) -> bytes:
    import struct

    return struct.pack(form, *values)


def _seeds(count: int, draw: int) -> list[int]:
    """Return the seeds of a report: they follow from the newest commit that touched a rule or the autopilot.

    Args:
        draw: so many reports were drawn from that commit before.
    """
    watched = [
        *RULES,
        "backend/stabilitybackend/acting/autopilot",
        "backend/stabilitybackend/runs/derived/autopilot.py",
    ]
    root = HERE.parent

    def git(*command: str) -> str:
        return subprocess.run(["git", *command], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    if changed := git("status", "--porcelain", "--", *watched):
        raise RuntimeError(f"rules are changed and not committed, so that seeds can't follow them: {changed}")
    commit = git("log", "-1", "--format=%H", "--", *watched)
    seeds = report_seeds(count * (draw + 1), commit)[-count:]
    print(f"seeds of {commit[:8]}, draw {draw}: {' '.join(map(str, seeds))}", flush=True)
    return seeds


def _run(cases: list[tuple[str, int, int]], jobs: int) -> Iterator[dict[str, Any]]:
    with ProcessPoolExecutor(jobs) as pool:
        for one in pool.map(compare, cases):
            print(json.dumps(one), flush=True)
            yield one


def main() -> int:
    """Run all jobs, print a line each and a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--faults", nargs="*", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[])
    parser.add_argument("--draw", type=int, default=0, help="which five seeds of that commit, from 0")
    parser.add_argument("--healthy", type=int, default=2 * len(HEALTHY), help="runs without a fault")
    parser.add_argument("--step-s", type=float, default=5.0, help="seconds a step")
    parser.add_argument("--gpus", type=int, default=256)
    parser.add_argument("--jobs", type=int, default=2, help="at once")
    options = parser.parse_args()
    seeds = options.seeds or _seeds(5, options.draw)
    reaction = round(REACTION_S / options.step_s)
    found = list(_run([(fault, seed, reaction) for seed in seeds for fault in options.faults], options.jobs))
    many = [(HEALTHY[at % len(HEALTHY)], seeds[at // len(HEALTHY) % len(seeds)]) for at in range(options.healthy)]
    healthy = list(_run([(name, seed, reaction) for name, seed in many], options.jobs))
    hours = options.gpus * options.step_s / 3600.0
    print("| fault | jobs | it acted in | rollbacks | it asked in | steps saved, median | harm |")
    print("|---|---|---|---|---|---|---|")
    for fault in options.faults:
        mine = [one for one in found if one["fault"] == fault]
        saved = sorted(one["saved_steps"] for one in mine)
        print(
            f"| `{fault}` | {len(mine)} "
            f"| {sum(one['acted'] > 0 for one in mine)} | {sum(one['acted'] for one in mine)} "
            f"| {sum(one['asked'] > 0 for one in mine)} | {saved[len(saved) // 2]} "
            f"| {sum(bool(one['harm']) for one in mine)} |"
        )
    steps, harm = sum(one["saved_steps"] for one in found), [one for one in found if one["harm"]]
    acted = sum(one["acted"] for one in healthy) + sum(one["asked"] for one in healthy)
    print(
        f"{len(found)} jobs with a fault: {steps} steps saved, {steps * hours:.1f} GPU-hours on {options.gpus} GPUs at "
        f"{options.step_s:g} s a step; harm in {len(harm)}: {[(h['fault'], h['seed'], h['harm']) for h in harm]}"
    )
    print(f"{len(healthy)} healthy runs: {acted} actions")
    return 1 if harm or acted else 0


if __name__ == "__main__":
    sys.exit(main())
