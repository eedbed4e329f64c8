"""Looks at the batches that a job keeps: for an incident that somebody opened, and by itself when a spike is found."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from stabilitybackend.base.errors import NotFound
from stabilitybackend.schema.commands import KINDS, Command, CommandRequest
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.kinds import kind_of

if TYPE_CHECKING:
    from stabilitybackend.runs.state import RunState

__all__ = ["own_commands", "with_step"]


def with_step(state: RunState, request: CommandRequest) -> CommandRequest:
    """Return the request with the step of its incident, where it names one and no step.

    Raises:
        NotFound: there is no such incident.
    """
    if request.incident_id is None:
        return request
    incident = state.incidents.get(request.incident_id)
    if incident is None:
        raise NotFound(
            f"run {state.run_id} has no incident {request.incident_id!r}", hint="list them with GET .../incidents"
        )
    return request if request.step is not None else replace(request, step=_first_step(incident))


def own_commands(state: RunState, incidents: Iterable[Incident], time: float, now: float) -> list[Command]:
    """Return what the server orders by itself for incidents that have just changed, where the job wants that.

    A note of one odd batch counts, too: there the batch is the whole story. Of a train its first one does. What comes
    in a backlog or an import is over: no ring holds it any more.

    Args:
        time: of the point that showed it. now: unix seconds.
    """
    found: list[Command] = []
    late = now - time > KINDS["show_batches"].expires_s
    for incident in incidents if state.kept.on_spike and not late else ():
        if incident.version == 1 and incident.nth == 1 and not incident.dead and kind_of(incident.kind).damages_weights:
            key = hashlib.sha256(f"{state.run_id}\0{incident.incident_id}".encode()).hexdigest()[:16]
            request = CommandRequest(
                "show_batches", incident_id=incident.incident_id, step=_first_step(incident),
                reason=f"found: {incident.title}",
            )  # fmt: skip
            found += state.commands.ask_for_batches(request, f"b-{key}", state.job(for_command=False), now)
    return found


def _first_step(incident: Incident) -> int | None:
    return None if kind_of(incident.kind).of_machine else incident.onset_step
