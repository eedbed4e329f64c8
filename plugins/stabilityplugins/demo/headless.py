"""The demo without a person: waits for the incident, orders the rollback over HTTP, and checks the result."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.markup import escape

from stabilitybackend.base.errors import StabilityBoardError
from stabilitybackend.schema.commands import END_STATES, Command, CommandRequest
from stabilityplugins.demo.api import DemoRun
from stabilityplugins.demo.check import check_lineage, dead_peak, healthy_after, incident_facts, ranks_that_acted
from stabilityplugins.demo.job import RANKS, TrainingJob
from stabilityplugins.demo.options import DemoOptions
from stabilityplugins.demo.watch import Watch

__all__ = ["DemoFailed", "DemoPlan", "run_headless"]

#: Cause and rank that the incident has to name.
EXPECTED_CLASS = "data_loader"
EXPECTED_CULPRITS = [1]
#: Steps past the hang that the restarted job has to come to.
STEPS_AFTER = 20
#: The stacks are waited for so long after the first verdict, seconds.
SHARPENED_WITHIN_S = 12.0
#: A verdict has to be there within this of the last progress, seconds.
VERDICT_WITHIN_S = 60.0

#: Bounded wait: ``wait(what, poll)`` returns the first true answer of ``poll`` or raises.
Wait = Callable[[str, Callable[[], Any]], Any]


def act_on_hang(
    run: DemoRun,
    fault_step: int,
    wait: Wait,
    result: dict[str, Any],
    print_line: Callable[[str], None],
) -> None:
    """Play the person's part in a hang, and note the reports and the result in ``result``.

    Raises:
        StabilityBoardError: one of its steps did not happen in time.
    """

    seen_at: list[float] = []

    def judged() -> dict[str, Any] | None:
        hang = next((incident for incident in run.incidents() if incident["kind"] == "hang"), None)
        if hang is None:
            return None
        seen_at.append(time.monotonic())
        # The first verdict rests on the free probes; stacks and Flight Recorders make it surer some seconds later.
        sure = (hang["evidence"].get("verdict") or {}).get("confidence") == "high"
        return hang if sure or time.monotonic() - seen_at[0] > SHARPENED_WITHIN_S else None

    incident = wait("a verdict on the hang", judged)
    verdict = incident["evidence"].get("verdict") or {}
    result["incident"] = incident_facts(incident)
    result["hang"] = {
        "verdict": {name: verdict.get(name) for name in ("class", "text", "confidence", "culprits")},
        "opened_after_s": round(incident["opened"] - verdict["since"], 1) if verdict.get("since") else None,
    }
    print_line(verdict.get("text") or incident["text"])
    ordered = time.monotonic()
    command = run.issue(CommandRequest("restart", reason=f"demo: {incident['title']}"))
    print_line("restart ordered: the agent ends the ranks, the launcher starts them again from the newest checkpoint")

    def again() -> bool:
        return run.last_step() >= fault_step + STEPS_AFTER

    wait(f"step {fault_step + STEPS_AFTER}", again)
    result["restart"] = {
        "command_id": command.command_id,
        "state": wait("the end of the restart", lambda: _ended(run, command.command_id)),
        "seconds_until_past_the_hang": round(time.monotonic() - ordered, 1),
    }


def hang_problems(result: dict[str, Any], incidents: list[dict[str, Any]]) -> list[str]:
    """Return the faults of the incident of the hang."""
    hang = result.get("hang")
    if hang is None:
        return []
    verdict, problems = hang["verdict"], []
    if verdict["class"] != EXPECTED_CLASS or verdict["culprits"] != EXPECTED_CULPRITS:
        problems.append(f"the verdict is {verdict}, expected {EXPECTED_CLASS} of rank {EXPECTED_CULPRITS}")
    if hang["opened_after_s"] is None or hang["opened_after_s"] > VERDICT_WITHIN_S:
        problems.append(f"the hang was reported {hang['opened_after_s']} s after the last progress")
    if result.get("restart", {}).get("state") != "done":
        problems.append(f"the restart ended as {result.get('restart', {}).get('state')}")
    still = [one["title"] for one in incidents if one["kind"] in ("hang", "process_death") and one["state"] == "open"]
    return problems + [f"still open although the job goes on: {title}" for title in still]


def _ended(run: DemoRun, command_id: str) -> str | None:
    state = run.command(command_id).state
    return state if state in END_STATES else None


#: Incident kinds that each fault may open; anything else at the fault's step is the wrong diagnosis. A lasting rise may
#: be called a level shift by the time that it is looked at.
EXPECTED_KINDS = {
    "bad_data": frozenset({"spike", "level_shift"}),
    "lr_window": frozenset({"spike", "divergence", "level_shift"}),
    "sampler": frozenset({"data_mix_drift"}),
}
#: These may well be true of the laptop that runs the demo among other work.
MACHINE_KINDS = frozenset({"throughput", "straggler"})
#: A person's addition to the advice of each fault after a look at the charts: here the LR chart shows the cause.
_CURED_LR_SCALE = {"lr_window": 0.05}
#: How far the onset may lie from the step of the fault.
ONSET_TOLERANCE_STEPS = 10
#: Where the job dies and is started again, the trouble begins at the checkpoint that it resumes from: that lies up to
#: 25 steps before the fault (``--checkpoint-every`` of the example).
RESUMING = frozenset({"sampler", "hang"})
RESUMED_FROM_STEPS = 25
#: Such a job is started twice, which takes some 20 s on a quiet machine and a minute on a busy one.
SECOND_START_S = 60.0
#: Effective steps after the rollback before the job is ended, and judged.
HEALTHY_STEPS = 60
#: Batches that are skipped where the suggestion names no number.
DEFAULT_SKIP_BATCHES = 100
#: Bound of a headless demo, seconds. Ending all processes takes up to 40 more.
TIMEOUT_S = 140.0
_FIRST_POINT_S = 90.0
#: How long the server may take to call the run finished, once the job is gone.
_LAST_MESSAGE_S = 10.0
_POLL_S = 0.05


class DemoFailed(StabilityBoardError):
    """Something that the demo promises did not happen."""

    default_code = "demo_failed"


@dataclass
class DemoPlan:
    """State of the demo: its setup, and facts gathered on the way.

    Args:
        run: the run.
        fault: name of the fault, as in ``--fault``.
        fault_step: where it was injected.
        seed: new seed for the rollback.
        deadline: ``time.monotonic()`` at the end of all waits.
        result: the JSON object that is printed at the end; filled during the demo.
    """

    run: DemoRun
    fault: str
    fault_step: int
    seed: int
    deadline: float
    result: dict[str, Any] = field(default_factory=dict)


def run_headless(options: DemoOptions, run: DemoRun, job: TrainingJob, console: Console) -> int:
    """Play the person's part, check, print the result as JSON; return 0 only if every check held."""
    started = time.monotonic()
    deadline = started + TIMEOUT_S + (SECOND_START_S if options.fault in RESUMING else 0.0)
    plan = DemoPlan(run, options.fault, options.fault_step, options.seed + 1, deadline)
    plan.result = {"run_id": run.run_id, "steps": 0}
    problems: list[str] = []
    watch = Watch(run, console)

    def alive() -> bool:
        watch.update()
        return job.running

    def reached() -> bool:
        return run.last_step() >= options.fault_step

    try:
        _wait_for("the first point", run.facts, until=started + _FIRST_POINT_S, alive=alive)
        if options.fault == "none":
            _wait_for(f"step {options.fault_step}", reached, until=plan.deadline, alive=alive)
        elif options.fault == "hang":

            def wait(what: str, poll: Callable[[], Any]) -> Any:
                return _wait_for(what, poll, until=plan.deadline, alive=alive)

            act_on_hang(run, options.fault_step, wait, plan.result, console.print)
        else:
            _act_on_incident(plan, alive, console.print)
    except StabilityBoardError as error:
        problems.append(error.message)
        console.print(f"[red]{escape(error.message)}[/red]\n{escape(job.tail())}", soft_wrap=True)
    job.end()
    watch.close()
    with contextlib.suppress(DemoFailed):
        over = time.monotonic() + _LAST_MESSAGE_S
        _wait_for("the last change", lambda: (run.facts() or {}).get("status") != "running", until=over)
    measured = job.log_calls()
    if measured is None:
        problems.append("the job left no measurement of its log calls: it did not end by itself")
    try:
        # The measurement is of the last start only.
        problems += _check_everything(plan, measured["count"] if measured and job.starts == 1 else None)
    except StabilityBoardError as error:
        problems.append(error.message)
    plan.result |= {"log_call_us": measured, "seconds": round(time.monotonic() - started, 1)}
    plan.result |= {"problems": problems, "ok": not problems}
    if options.json_output:
        print(json.dumps(plan.result), flush=True)
    else:
        console.print_json(json.dumps(plan.result))
    return 1 if problems else 0


def _wait_for(what: str, poll: Callable[[], Any], *, until: float, alive: Callable[[], bool] = lambda: True) -> Any:
    """Return the first true answer of ``poll``.

    Raises:
        DemoFailed: the deadline passed, or ``alive`` is false: no process is left to make it true.
    """
    while not (found := poll()):
        if not alive():
            raise DemoFailed(f"the training job ended while the demo waited for {what}")
        if time.monotonic() > until:
            raise DemoFailed(f"the demo waited in vain for {what}")
        time.sleep(_POLL_S)
    return found


def _act_on_incident(plan: DemoPlan, alive: Callable[[], bool], print_line: Callable[[str], None]) -> None:
    """Wait for the fault's incident, order its suggestion, and wait until the job is healthy again.

    Raises:
        DemoFailed: one of its steps did not happen in time.
    """
    expected = EXPECTED_KINDS[plan.fault]
    earliest = ONSET_TOLERANCE_STEPS + (RESUMED_FROM_STEPS if plan.fault in RESUMING else 0)

    def opened() -> dict[str, Any] | None:
        for incident in plan.run.incidents():
            late = incident["onset_step"] - plan.fault_step
            if incident["kind"] in expected and -earliest <= late <= ONSET_TOLERANCE_STEPS and incident["suggestion"]:
                return incident
        return None

    incident = _wait_for(f"an incident ({' or '.join(sorted(expected))})", opened, until=plan.deadline, alive=alive)
    plan.result["incident"] = incident_facts(incident)
    suggestion = incident["suggestion"]
    if suggestion.get("to_step") is None:
        raise DemoFailed(f"the incident suggests no checkpoint: {suggestion.get('text')}")

    ordered = time.monotonic()
    request = CommandRequest(
        "rollback",
        to_step=suggestion["to_step"],
        lr_scale=_CURED_LR_SCALE.get(plan.fault, suggestion.get("lr_scale")),
        skip_batches=suggestion.get("skip_batches") or DEFAULT_SKIP_BATCHES,
        seed=plan.seed,
        reason=f"demo: {incident['title']}",
        idempotency_key=f"demo-{incident['incident_id']}",
    )
    command = plan.run.issue(request)
    print_line(f"rollback to step {request.to_step} ordered, skipping {request.skip_batches} batches")

    def ended() -> Command | None:
        newest = plan.run.command(command.command_id)
        return newest if newest.state in END_STATES else None

    command = _wait_for("the rollback", ended, until=min(plan.deadline, ordered + 60), alive=alive)
    seconds = time.monotonic() - ordered
    plan.result["rollback"] = {
        "command_id": command.command_id,
        "state": command.state,
        "to_step": command.to_step,
        "skip_batches": command.skip_batches,
        "seconds_to_first_point": round(seconds, 3),
        "ranks": ranks_that_acted(command),
        "segment": command.segment,
    }
    if command.state != "done":
        raise DemoFailed(f"the rollback ended as {command.state}: {command.history[-1].detail}")
    print_line(f"rolled back; first new point after {seconds:.1f} s")

    def healthy_again() -> bool:
        segments = {segment["id"]: segment for segment in plan.run.segments()}
        return bool((segments[command.segment]["last_step"] or 0) >= target)

    target = max((command.to_step or 0) + HEALTHY_STEPS, incident["onset_step"] + HEALTHY_STEPS // 2)
    _wait_for(f"step {target}", healthy_again, until=plan.deadline, alive=alive)


def _check_everything(plan: DemoPlan, logged_points: int | None) -> list[str]:
    """Fill the result with the server's report of the finished run, and return the faults found."""
    facts = plan.run.facts() or {}
    segments = plan.run.segments()
    effective = plan.run.series("loss", "effective")
    everything = plan.run.series("loss", "all")
    last_step = max((step for entry in effective for step in entry["steps"]), default=0)
    lineage = check_lineage(effective, everything, segments, last_step)
    lineage["segments"] = len(segments)
    plan.result["steps"] = last_step
    plan.result["lineage"] = lineage
    problems = [
        f"lineage: {name} is {lineage[name]}" for name in ("missing", "duplicates", "misplaced") if lineage[name]
    ]
    stored = lineage["effective_points"] + lineage["dead_points"]
    if logged_points is not None and stored != logged_points:
        problems.append(f"the job logged {logged_points} points of loss, the server holds {stored}")
    newest = {incident["incident_id"]: incident for incident in plan.run.incidents()}
    mine = newest.get(plan.result.get("incident", {}).get("incident_id"))
    if mine is not None:
        # Its suggestion is gone by now: the advice is the one acted on.
        plan.result["incident"] = incident_facts(mine) | {"suggestion": plan.result["incident"]["suggestion"]}
    plan.result["other_incidents"] = [
        {"kind": other["kind"], "onset_step": other["onset_step"], "title": other["title"]}
        for other in newest.values()
        if mine is None or other["incident_id"] != mine["incident_id"]
    ]
    if plan.fault == "none":
        problems += [
            f"false alarm: {incident['title']}"
            for incident in newest.values()
            if incident["severity"] != "info" and incident["kind"] not in MACHINE_KINDS
        ]
    problems += hang_problems(plan.result, list(newest.values()))
    if "rollback" not in plan.result:
        return problems

    onset = plan.result["incident"]["onset_step"]
    health = healthy_after(effective, onset, HEALTHY_STEPS // 2)
    plan.result["loss"] = health | {"peak": dead_peak(everything, onset)}
    boundaries = plan.result["rollback"]["ranks"]
    if len(boundaries) != RANKS or len(set(boundaries.values())) != 1:
        problems.append(f"ranks acted at {boundaries}, expected {RANKS} ranks at one step")
    if not lineage["dead_points"]:
        problems.append("no dead points were kept: the abandoned branch is gone")
    if not health["healthy"]:
        problems.append(
            f"the loss is {health['after']} after the rollback, it was {health['baseline']} before the spike"
        )
    expected = 2 if plan.fault in RESUMING else 1  # a restart from a checkpoint goes back as well
    if facts.get("rollbacks") != expected:
        problems.append(f"the run shows {facts.get('rollbacks')} rollbacks, expected {expected}")
    return problems
