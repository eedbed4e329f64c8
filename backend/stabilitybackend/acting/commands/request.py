"""State of a job at a request, and the checks of the request against it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stabilitybackend.acting.commands.abilities import Handlers
from stabilitybackend.base.errors import BadRequest, Conflict
from stabilitybackend.judging.incidents.affecting import damaged_by
from stabilitybackend.schema.commands import KINDS, CommandFence, CommandRequest
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.json_data import NAME_CHARS, TEXT_CHARS
from stabilitybackend.schema.lineage import Checkpoint

__all__ = [
    "JobView", "NewCommand", "check_behind", "check_fields", "check_outside", "last_good", "unverified_refused",
    "usable_checkpoint", "withheld",
]  # fmt: skip

#: Distance of the first common boundary, seconds of training: a command reaches the ranks in well under 0.2 s.
MARGIN_S = 0.5
#: Longest time for ranks to leave before a kill, seconds.
MAX_GRACE_S = 300.0
#: Nodes that one restart may leave out, or keep.
MAX_EXCLUDED = 256


@dataclass(frozen=True)
class JobView:
    """State of the job at this moment.

    Attributes:
        running_step: newest step that a rank is in, extrapolated to now; None before a step.
        step_time_s: usual seconds a step, None for unknown.
        world_size: ranks that have to agree.
        head, head_key: the segment of the fence.
        checkpoints: newest first.
        agents: connected now.
        starts: node -> newest start of its ranks' processes, ns since 1970 by the node's own clock.
        affects_weights: open incidents from whose onset on no checkpoint is good.
        handler: abilities reported by the job's ranks.
        keepers: ranks that keep their newest batches.
        segment_keys: segment -> the ranks' key, without undone ones.
        duplicates: processes with the same rank, as text; "" for none.
        hung: description of a hang, a sentence; "" for none.
        logged_step: newest step of this segment with a row, -1 for none.
    """

    running_step: int | None
    step_time_s: float | None
    world_size: int
    head: int
    head_key: str
    checkpoints: Sequence[Checkpoint]
    agents: int
    starts: Mapping[str, int] = field(default_factory=dict)
    affects_weights: Sequence[Incident] = ()
    handler: Handlers = field(default_factory=Handlers)
    keepers: int = 0
    segment_keys: Mapping[int, str] = field(default_factory=dict)
    duplicates: str = ""
    hung: str = ""
    logged_step: int = -1

    def boundary(self, attempt: int) -> int | None:
        """Return the step before which all ranks shall act, None for a job with an unknown step."""
        if self.running_step is None:
            return None
        ahead = 1 if not self.step_time_s else max(1, math.ceil(MARGIN_S / self.step_time_s))
        return self.running_step + ahead * (1 << (attempt - 1))


@dataclass(frozen=True)
class NewCommand:
    """Input of a new command.

    Args:
        job: its state.
        issuer: author. now: unix seconds.
    """

    request: CommandRequest
    job: JobView
    command_id: str
    run_id: str
    issuer: str
    now: float

    def fields(self) -> dict[str, Any]:
        """Return the common fields of all kinds."""
        return {
            "command_id": self.command_id,
            "run_id": self.run_id,
            "reason": self.request.reason,
            "issuer": self.issuer,
            "issued": self.now,
            "expires": self.request.expires(self.now),
            "fence": CommandFence(self.job.head, self.job.head_key),
            "idempotency_key": self.request.idempotency_key,
        }


def check_fields(request: CommandRequest) -> None:
    """Raise BadRequest for a field that is out of range, missing, or foreign to the kind."""
    kind = KINDS[request.kind]
    foreign = [name for name in _ALL_FIELDS if name not in kind.takes and getattr(request, name) is not None]
    if foreign:
        expected = ", ".join(sorted(kind.takes)) or "a reason"
        raise BadRequest(
            f"{', '.join(foreign)} given for a {request.kind}, expected only {expected}", hint="leave it out"
        )
    if request.kind == "rollback" and request.to_step is None:
        raise BadRequest("to_step is missing, expected the step of a checkpoint", hint="give a to_step")
    if request.kind == "task" and not request.task:
        raise BadRequest("task is missing, expected the name of one that the agents know", hint="give a task")
    if request.lr_scale is not None and not (math.isfinite(request.lr_scale) and 0 < request.lr_scale <= 10):
        raise BadRequest(
            f"lr_scale is {request.lr_scale}, expected a factor in (0, 10]", hint="0.5 halves the learning rate"
        )
    _check("to_step", request.to_step, 0, 2**53 - 1)
    _check("branch", request.branch, 0, 2**53 - 1)
    _check("step", request.step, 0, 2**53 - 1)
    _check("seed", request.seed, 0, 2**63 - 1)
    _check("skip_batches", request.skip_batches, 0, 10**9)
    _check_range(request)
    _check("expires_s", request.expires_s, 1, kind.max_expires_s)
    _check("grace_s", request.grace_s, 0, MAX_GRACE_S)
    if len(request.reason) > TEXT_CHARS:
        raise BadRequest(
            f"reason has {len(request.reason)} characters, expected at most {TEXT_CHARS}", hint="shorten it"
        )
    exclude, keep = request.exclude_nodes or (), request.keep_nodes or ()
    _check_nodes("exclude_nodes", exclude)
    _check_nodes("keep_nodes", keep)
    both = sorted(set(exclude) & set(keep))
    if both:
        raise BadRequest(
            f"{', '.join(both)} given in exclude_nodes and in keep_nodes, expected one of them",
            hint="leave the node out or keep it",
        )


#: All fields of all kinds.
_ALL_FIELDS = sorted(frozenset[str]().union(*(kind.takes for kind in KINDS.values())))


def usable_checkpoint(
    to_step: int, checkpoints: Sequence[Checkpoint], *, accept_unverified: bool = False
) -> str | None:
    """Return the path of the checkpoint of ``to_step``, None for a job that announces none.

    Raises:
        BadRequest: the job announces checkpoints, and none of that step is usable.
        Conflict: its writer is unknown, and that was not accepted.
    """
    if not checkpoints:
        return None
    usable = [c for c in checkpoints if c.usable]
    for checkpoint in usable:
        if checkpoint.step == to_step:
            return checkpoint.path
    unverified = next((c for c in withheld(checkpoints) if c.step == to_step and c.unverified), None)
    if unverified is not None:
        if accept_unverified:
            return unverified.path
        raise unverified_refused(unverified)
    known = ", ".join(str(c.step) for c in usable[:12]) or "none"
    unfit = next((c.unfit for c in withheld(checkpoints) if c.step == to_step), "")
    what = f"the checkpoint of step {to_step} can't be used: {unfit}" if unfit else ""
    raise BadRequest(what or f"there is no usable checkpoint for step {to_step}", hint=f"usable checkpoints: {known}")


def withheld(checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
    """Return those present on the effective timeline, and not offered."""
    return [c for c in checkpoints if c.available and not c.dead and c.unfit]


def unverified_refused(checkpoint: Checkpoint) -> Conflict:
    """Return the error for a checkpoint of an unknown writer."""
    return Conflict(
        f"the checkpoint of step {checkpoint.step} at {checkpoint.path} is not verified: {checkpoint.unfit}",
        hint="loading it runs code of its author. To go there all the same, say accept_unverified (on the command "
        "line: --accept-unverified)",
        code="unverified_checkpoint",
    )


def check_outside(
    request: CommandRequest, checkpoints: Sequence[Checkpoint], affects_weights: Sequence[Incident]
) -> None:
    """Raise Conflict for a checkpoint from inside an open incident, unless accepted."""
    if request.to_step is None or request.accept_inside_incident:
        return
    found = damaged_by(request.to_step, affects_weights)
    if found is None:
        return
    raise Conflict(
        f"the checkpoint of step {request.to_step} was {found.text} (incident {found.incident_id})",
        hint=f"{last_good(checkpoints, affects_weights)}; to go to step {request.to_step} all the same, say "
        "accept_inside_incident (on the command line: --accept-inside-incident)",
        code="inside_incident",
    )


def last_good(checkpoints: Sequence[Checkpoint], affects_weights: Sequence[Incident]) -> str:
    """Return as text the newest usable checkpoint from before all open incidents."""
    usable = (c.step for c in checkpoints if c.usable)
    good = max((step for step in usable if damaged_by(step, affects_weights) is None), default=None)
    return "no checkpoint is from before it" if good is None else f"the last good one is that of step {good}"


def _check(name: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:
        raise BadRequest(f"{name} is {value}, expected {low} to {high:g}", hint=f"give a {name} in that range")


def _check_range(request: CommandRequest) -> None:
    """Raise BadRequest where ``skip_range`` is no range of steps behind the checkpoint, or doubles another field."""
    span, before = request.skip_range, request.to_step
    if span is None:
        return
    if request.skip_batches is not None:
        raise BadRequest(
            "skip_batches and skip_range given, expected one of them",
            hint="skip_batches leaves out those right behind the checkpoint, skip_range those of some steps",
        )
    if len(span) != 2 or not 1 <= span[0] <= span[1] <= 2**53 - 1:
        raise BadRequest(
            f"skip_range is {span[:4]}, expected [first, last] with 1 <= first <= last", hint="give two steps"
        )
    if before is not None:
        check_behind(span, before)


def check_behind(skip_range: Sequence[int], to_step: int) -> None:
    """Raise BadRequest for a range of steps that is not behind the checkpoint."""
    if skip_range[0] <= to_step:
        raise BadRequest(
            f"skip_range begins at step {skip_range[0]}, but training goes on behind step {to_step}",
            hint=f"give a first step of {to_step + 1} or more, or an earlier checkpoint",
        )


def _check_nodes(name: str, nodes: Sequence[str]) -> None:
    if len(nodes) > MAX_EXCLUDED:
        raise BadRequest(f"{name} has {len(nodes)} names, expected at most {MAX_EXCLUDED}", hint="name fewer")
    for node in nodes:
        # They end on command lines (sbatch --exclude=...): no characters that a shell or a list would interpret.
        if not 1 <= len(node) <= NAME_CHARS or not node.replace("-", "").replace(".", "").replace("_", "").isalnum():
            raise BadRequest(
                f"{name} has {node!r:.60}, expected names of letters, digits, '.', '_' and '-'",
                hint="give the nodes' names as the run's page shows them",
            )
