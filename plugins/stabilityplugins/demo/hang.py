"""The demo's hang without a person: waits for the verdict, orders the restart, and sees the job go on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from stabilitybackend.schema.commands import END_STATES, CommandRequest
from stabilityplugins.demo.api import DemoRun
from stabilityplugins.demo.check import incident_facts

__all__ = ["act_on_hang", "hang_problems"]

#: What the incident has to name: which rank, and what it waits for.
EXPECTED_CLASS = "data_loader"
EXPECTED_CULPRITS = [1]
#: Steps past the hang that the restarted job has to come to.
STEPS_AFTER = 20
#: The stacks are waited for so long after the first verdict, seconds.
SHARPENED_WITHIN_S = 12.0
#: A verdict has to be there within this of the last progress, seconds.
VERDICT_WITHIN_S = 60.0

#: Waits for something: ``wait(what, poll)`` returns the first true answer of ``poll`` or raises.
Wait = Callable[[str, Callable[[], Any]], Any]


def act_on_hang(
    run: DemoRun,
    fault_step: int,
    wait: Wait,
    result: dict[str, Any],
    print_line: Callable[[str], None],
) -> None:
    """Play the person's part in a hang, and note in ``result`` what was reported and what came of it.

    Raises:
        StabilityBoardError: a step of it did not happen in time.
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
    """Return what is wrong with the incident of the hang."""
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
