"""Follows what the board says of a job with a fault until it is right and has settled, or the time is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import httpx

from catalog import Fault
from stage import FaultyJob

#: How long the right verdict is waited for, seconds after the fault.
WAIT_S = 100.0
#: How long a right verdict has to stand, seconds.
SETTLE_S = 6.0
#: How long a job with a fault that is none is watched, seconds after it.
QUIET_S = 60.0

__all__ = ["Outcome", "incidents_of", "judged", "run_of", "wait_for"]


@dataclass
class Outcome:
    """What was said of one job.

    Attributes:
        fault: its name.
        kind, classed, blamed: whether the kind of the incident, the class of its verdict, and the rank or node were
            right in the end.
        opened_s, verdict_s: seconds from the fault to the incident and to the right verdict.
        false_alarms: incidents that are not true. said: all of them, in words.
    """

    fault: str
    kind: bool = False
    classed: bool = False
    blamed: bool = False
    opened_s: float | None = None
    verdict_s: float | None = None
    false_alarms: list[str] = field(default_factory=list)
    said: str = ""


def judged(
    job: FaultyJob,
    fault: Fault,
    url: str,
    *,
    wait_s: float = WAIT_S,
    settle_s: float = SETTLE_S,
    quiet_s: float = QUIET_S,
) -> Outcome:
    """Return what was said of a job whose fault has happened.

    Args:
        url: of the server.
        wait_s: longest wait for what is right, settle_s: how long it has to stand, quiet_s: how long nothing may be
            said where nothing may, all in seconds.
    """
    assert job.happened is not None
    outcome = Outcome(fault.name)
    incidents: list[dict[str, Any]] = []
    until = job.happened + (wait_s if fault.kind else quiet_s)
    while time.time() < until:
        incidents = incidents_of(url, job.run_id) or incidents
        right = next((one for one in incidents if one["kind"] == fault.kind), None)
        if right is not None and outcome.opened_s is None:
            outcome.opened_s = right["opened"] - job.happened
        whole = right is not None and _classed(right, fault) and _blamed(right, fault, job)
        if whole and outcome.verdict_s is None:
            outcome.verdict_s = time.time() - job.happened
            until = min(until, time.time() + settle_s)
        time.sleep(0.2)
    incidents = incidents_of(url, job.run_id) or incidents
    right = next((one for one in incidents if one["kind"] == fault.kind), None)
    outcome.kind = right is not None or not fault.kind
    outcome.classed = not fault.kind or (right is not None and _classed(right, fault))
    outcome.blamed = not fault.blames or (right is not None and _blamed(right, fault, job))
    loud = [one for one in incidents if one["severity"] != "info"]
    truths = {fault.kind, *fault.also}
    outcome.false_alarms = [f"{one['kind']}: {one['title']}" for one in loud if one["kind"] not in truths]
    twice = [one for one in loud if one["kind"] == fault.kind][1:]
    outcome.false_alarms += [f"twice: {one['title']}" for one in twice]
    outcome.said = "; ".join(
        f"{one['kind']} {(one['evidence'].get('verdict') or {}).get('class', '')} rank {one['rank']}: {one['title']}"
        for one in incidents
    )
    return outcome


def _classed(incident: dict[str, Any], fault: Fault) -> bool:
    return not fault.classes or (incident["evidence"].get("verdict") or {}).get("class") in fault.classes


def _blamed(incident: dict[str, Any], fault: Fault, job: FaultyJob) -> bool:
    if not fault.blames:
        return True
    if fault.node:
        nodes = (incident["evidence"].get("verdict") or {}).get("nodes") or [incident["node"]]
        return list(nodes) == [f"node-{job.rank}"]
    culprits = (incident["evidence"].get("verdict") or {}).get("culprits", [incident["rank"]])
    return list(culprits) == [job.rank]


@cache
def _client() -> httpx.Client:
    # One for all jobs: httpx.get() makes a TLS context each time, 30 ms of CPU that the jobs need. The server is cut
    # off and killed now and then, so no connection is kept.
    return httpx.Client(timeout=10.0, limits=httpx.Limits(max_keepalive_connections=0))


def run_of(url: str, run_id: str) -> dict[str, Any]:
    """Return the Run of docs/api.md, {} while there is none."""
    try:
        answer = _client().get(f"{url}/api/v1/runs/{run_id}")
    except httpx.HTTPError:
        return {}
    return dict(answer.json()) if answer.status_code == 200 else {}


def incidents_of(url: str, run_id: str) -> list[dict[str, Any]] | None:
    """Return the incidents of a run, oldest first; None while the server is away."""
    try:
        answer = _client().get(f"{url}/api/v1/runs/{run_id}/incidents")
    except httpx.HTTPError:
        return None  # the server is away
    return list(answer.json()["incidents"])[::-1] if answer.status_code == 200 else None


def wait_for(condition: Callable[[], Any], timeout_s: float, what: str) -> None:
    """Return when ``condition()`` is true; SystemExit naming ``what`` when that takes longer."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(0.1)
