"""The life of a command: ordered, fenced, delivered, agreed by all ranks, acted on, seen in the data. Pure.

A command is the dict of docs/api.md. Nothing here talks to anybody: time, ids and what is known of the job are
handed in, and every method returns the commands that changed, for the worker to store, audit and deliver.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stabilitybackend.errors import BadRequest, Conflict
from stabilitybackend.policy.agent_orders import AGENT_KINDS, agent_order, answered

__all__ = ["MAX_ATTEMPTS", "OPEN_STATES", "CommandBook", "JobView", "Order"]

#: States in which a command may still be acted on.
OPEN_STATES = frozenset({"pending", "delivered", "ready"})
#: Tries to agree on one step boundary before the command fails.
MAX_ATTEMPTS = 3
#: How far ahead the first common boundary lies, seconds of training: a command reaches the ranks in well under 0.2 s.
MARGIN_S = 0.5
#: A command that no rank acted on expires after this long, seconds: long enough for a few slow steps, short enough
#: that nobody is surprised by a rollback ordered before lunch.
DEFAULT_EXPIRES_S = 600.0
MAX_EXPIRES_S = 86_400.0
MAX_REASON_CHARS = 2_000
#: A command is ignored when no rank has said a word so many steps after its boundary ...
IGNORED_AFTER_STEPS = 5
#: ... and so many seconds after it was ordered: an agent that was away for a moment still brings it in time.
IGNORED_AFTER_S = 20.0
#: Commands kept per run; the oldest ended ones go first.
MAX_COMMANDS = 2_000
#: History entries kept per command.
MAX_HISTORY = 200

_RETRY = frozenset({"missed", "aborted", "abort", "timeout"})


@dataclass(frozen=True)
class Order:
    """A rollback that somebody asks for; units and ranges as in docs/api.md."""

    to_step: int
    lr_scale: float | None = None
    seed: int | None = None
    skip_batches: int | None = None
    reason: str = ""
    expires_s: float | None = None
    idempotency_key: str | None = None
    kind: str = "rollback"


@dataclass(frozen=True)
class JobView:
    """What is known of the job at this moment.

    Attributes:
        running_step: newest step that a rank is in, extrapolated to now; None when no step was seen.
        step_time_s: usual seconds a step, None when unknown.
        world_size: ranks that have to agree.
        head, head_key: the segment that the command is fenced to.
        checkpoints: Checkpoint dicts of docs/api.md, newest first.
        agents: agents connected now.
    """

    running_step: int | None
    step_time_s: float | None
    world_size: int
    head: int
    head_key: str
    checkpoints: Sequence[Mapping[str, Any]]
    agents: int

    def boundary(self, attempt: int) -> int | None:
        """Return the step before which all ranks shall act, None when the job's step is unknown."""
        if self.running_step is None:
            return None
        ahead = 1 if not self.step_time_s else max(1, math.ceil(MARGIN_S / self.step_time_s))
        return self.running_step + ahead * (1 << (attempt - 1))


class CommandBook:
    """The commands of one run."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._commands: dict[str, dict[str, Any]] = {}

    def load(self, commands: Iterable[Mapping[str, Any]]) -> None:
        """Take over what was stored, after a restart."""
        for command in sorted(commands, key=lambda c: c["issued"]):
            self._commands[command["command_id"]] = dict(command)

    def all(self) -> list[dict[str, Any]]:
        """Return the commands, newest first."""
        return list(self._commands.values())[::-1]

    def get(self, command_id: str) -> dict[str, Any] | None:
        """Return one command, None where there is none."""
        return self._commands.get(command_id)

    def waiting(self) -> list[dict[str, Any]]:
        """Return the commands that an agent which connects now has to know."""
        return [c for c in self._commands.values() if c["state"] in OPEN_STATES]

    def find(self, idempotency_key: str | None) -> dict[str, Any] | None:
        """Return the command that was ordered under this key before."""
        if idempotency_key is None:
            return None
        return next((c for c in self._commands.values() if c.get("idempotency_key") == idempotency_key), None)

    # --- ordering ------------------------------------------------------------------------------------------------

    def order(self, order: Order, job: JobView, *, command_id: str, issuer: str, now: float) -> dict[str, Any]:
        """Return the new command.

        Raises:
            BadRequest: a field is out of range, or no such checkpoint can be rolled back to.
            Conflict: another rollback is under way, or no agent could deliver this one.
        """
        _check_fields(order)
        busy = next((c for c in self._rollbacks() if c["state"] in OPEN_STATES | {"acted"}), None)
        if busy is not None and (busy["state"] != "acted" or now < busy["expires"]):
            raise Conflict(
                f"rollback {busy['command_id']} to step {busy['to_step']} is under way (state {busy['state']})",
                hint="wait until it is done, or until it expires",
            )
        if job.agents == 0:
            raise Conflict(
                "no agent of this run is connected, so nobody can deliver a command",
                hint="is the job running, and can its nodes reach us? A finished job is restarted, not rolled back",
            )
        if job.running_step is None:
            raise Conflict("the job has not begun a step yet", hint="order it again when the first step is there")
        checkpoint = _target(order.to_step, job)
        expires_s = DEFAULT_EXPIRES_S if order.expires_s is None else order.expires_s
        command: dict[str, Any] = {
            "command_id": command_id,
            "run_id": self._run_id,
            "kind": order.kind,
            "to_step": order.to_step,
            "lr_scale": order.lr_scale,
            "seed": order.seed,
            "skip_batches": order.skip_batches,
            "reason": order.reason,
            "issuer": issuer,
            "issued": now,
            "expires": now + expires_s,
            "fence": {"segment": job.head, "segment_key": job.head_key},
            "state": "pending",
            "attempt": 1,
            "apply_at_step": job.boundary(1),
            "world_size": job.world_size,
            "ranks": {},
            "history": [],
            "checkpoint": checkpoint,
            "segment": None,
            "first_step": None,
            "idempotency_key": order.idempotency_key,
        }
        _note(command, "pending", now, f"ordered by {issuer}")
        self._commands[command_id] = command
        self._forget_old()
        return command

    def ask_agents(self, kind: str, command_id: str, job: JobView, reason: str, now: float) -> list[dict[str, Any]]:
        """Return the new order of the server itself to the agents, nothing when it was given already."""
        if command_id in self._commands or job.agents == 0:
            return []
        command = agent_order(
            kind, command_id, self._run_id, segment=job.head, segment_key=job.head_key, agents=job.agents,
            reason=reason, issuer="stabilityboard", now=now,
        )  # fmt: skip
        _note(command, "pending", now, reason)
        self._commands[command_id] = command
        self._forget_old()
        return [command]

    def _rollbacks(self) -> list[dict[str, Any]]:
        return [command for command in self._commands.values() if command["kind"] not in AGENT_KINDS]

    def _forget_old(self) -> None:
        for command_id, command in list(self._commands.items()):
            if len(self._commands) <= MAX_COMMANDS:
                return
            if command["state"] not in OPEN_STATES:
                del self._commands[command_id]

    # --- what comes back -----------------------------------------------------------------------------------------

    def delivered(self, command_id: str, now: float, detail: str) -> list[dict[str, Any]]:
        """An agent took the command."""
        command = self._commands.get(command_id)
        if command is None or command["state"] != "pending":
            return []
        return [_note(command, "delivered", now, detail)]

    def on_event(
        self, rank: int | None, step: int | None, data: Mapping[str, Any], time: float, *, node: str = ""
    ) -> list[dict[str, Any]]:
        """Take a ``command`` event of a rank (or of an agent, rank None); return what changed."""
        command = self._commands.get(str(data.get("command_id")))
        if command is None:
            return []
        said, detail = str(data.get("state", "")), str(data.get("detail") or "")
        if rank is None and command["kind"] in AGENT_KINDS and said != "delivered":
            if answered(command, node, said, detail, time) and command["state"] in OPEN_STATES:
                _note(command, "done", time, f"all {command['world_size']} agents answered")
            return [command]
        if rank is None:
            return (
                self.delivered(command["command_id"], time, detail or "an agent has it") if said == "delivered" else []
            )
        if int(data.get("attempt", command["attempt"])) != command["attempt"] and said != "acted":
            return []  # about a boundary that was given up
        known = command["ranks"].get(str(rank))
        if known is not None and known["state"] == said and known["step"] == step:
            return []
        command["ranks"][str(rank)] = {"state": said, "step": step, "time": time, "detail": detail}
        _history(command, said, time, detail, rank, step)
        self._draw_conclusion(command, said, time, detail, rank)
        return [command]

    def _draw_conclusion(self, command: dict[str, Any], said: str, time: float, detail: str, rank: int) -> None:
        states = [r["state"] for r in command["ranks"].values()]
        if said == "acted":
            if states.count("acted") >= command["world_size"]:
                _note(command, "acted", time, f"all {command['world_size']} ranks rolled back")
        elif said == "failed":
            _note(command, "failed", time, f"rank {rank}: {detail}")
        elif command["state"] not in OPEN_STATES:
            pass
        elif said == "rejected":
            _note(command, "rejected", time, f"rank {rank}: {detail}")
        elif said == "ready" and states.count("ready") >= command["world_size"]:
            _note(command, "ready", time, f"all {command['world_size']} ranks stop at step {command['apply_at_step']}")
        elif said in _RETRY:
            command["retry"] = True

    def retries(self, job: JobView, now: float) -> list[dict[str, Any]]:
        """Return the commands that get a later boundary, or give up after MAX_ATTEMPTS."""
        changed = []
        for command in self.waiting():
            if not command.pop("retry", False):
                continue
            if command["attempt"] >= MAX_ATTEMPTS:
                changed.append(
                    _note(command, "failed", now, f"{MAX_ATTEMPTS} times not all ranks reached the boundary in time")
                )
                continue
            command["attempt"] += 1
            command["apply_at_step"] = job.boundary(command["attempt"])
            command["ranks"] = {}
            changed.append(
                _note(command, "delivered", now, f"attempt {command['attempt']}: boundary {command['apply_at_step']}")
            )
        return changed

    def ignored(self, job: JobView, now: float) -> list[dict[str, Any]]:
        """Close commands that the job went past without a word: it does not look for any."""
        changed = []
        for command in self.waiting():
            if command["kind"] in AGENT_KINDS:
                continue
            past = (job.running_step or 0) - (command["apply_at_step"] or 0)
            if not command["ranks"] and past > IGNORED_AFTER_STEPS and now - command["issued"] > IGNORED_AFTER_S:
                text = (
                    f"the job went past step {command['apply_at_step']} without answering: it takes orders only where "
                    "it steps with run.steps() and has a handler (@run.on_rollback); nothing was rolled back"
                )
                changed.append(_note(command, "failed", now, text))
        return changed

    def job_over(self, why: str, now: float) -> list[dict[str, Any]]:
        """Close the open commands of a job that ended: nobody is left who could obey.

        Args:
            why: how it ended, a sentence.
        """
        changed = []
        for command in self.waiting():
            acted = [rank for rank, word in command["ranks"].items() if word["state"] == "acted"]
            what = f"only ranks {', '.join(acted)} had gone back" if acted else "nothing was rolled back"
            changed.append(_note(command, "failed", now, f"the job ended before all ranks could act; {what}. {why}"))
        return changed

    def on_points(self, segment: int, segment_key: str, step: int, time: float) -> list[dict[str, Any]]:
        """The first point of ``segment`` is here: the command whose segment it is is done."""
        command = self._commands.get(segment_key)
        if command is None or command["segment"] is not None:
            return []
        command["segment"], command["first_step"] = segment, step
        if command["state"] == "acted":
            _note(command, "done", time, f"first new point at step {step}")
        return [command]

    def settle(self, now: float) -> list[dict[str, Any]]:
        """Close what is complete or too late; call it about once a second."""
        changed = []
        for command in self._commands.values():
            if command["state"] == "acted" and command["segment"] is not None:
                changed.append(_note(command, "done", now, f"first new point at step {command['first_step']}"))
            elif command["state"] in OPEN_STATES and now > command["expires"] and command["kind"] in AGENT_KINDS:
                heard = len(command["nodes"])
                changed.append(
                    _note(
                        command,
                        "done" if heard else "expired",
                        now,
                        f"{heard} of {command['world_size']} agents answered",
                    )
                )
            elif command["state"] in OPEN_STATES and now > command["expires"]:
                answered = len(command["ranks"])
                text = f"{answered} of {command['world_size']} ranks answered; nothing was rolled back"
                changed.append(_note(command, "expired", now, text))
        return changed

    def head_moved(self, head: int, head_key: str, now: float) -> list[dict[str, Any]]:
        """The job went somewhere else: commands decided on the old segment no longer hold."""
        changed = []
        for command in self.waiting():
            if (
                command["kind"] not in AGENT_KINDS
                and command["fence"]["segment"] != head
                and command["command_id"] != head_key
            ):
                text = f"decided on segment {command['fence']['segment']}, but the job is in segment {head} now"
                changed.append(_note(command, "rejected", now, text))
        return changed


def _note(command: dict[str, Any], state: str, time: float, detail: str) -> dict[str, Any]:
    command["state"] = state
    _history(command, state, time, detail, None, None)
    return command


def _history(command: dict[str, Any], state: str, time: float, detail: str, rank: int | None, step: int | None) -> None:
    command["history"].append({"state": state, "time": time, "detail": detail, "rank": rank, "step": step})
    del command["history"][:-MAX_HISTORY]


def _check_fields(order: Order) -> None:
    if order.kind != "rollback":
        raise BadRequest(f"kind is {order.kind!r}, expected 'rollback'", hint="other kinds of command come later")
    _check("to_step", order.to_step, 0, 2**53 - 1)
    if order.lr_scale is not None and not (math.isfinite(order.lr_scale) and 0 < order.lr_scale <= 10):
        raise BadRequest(
            f"lr_scale is {order.lr_scale}, expected a factor in (0, 10]", hint="0.5 halves the learning rate"
        )
    if order.seed is not None:
        _check("seed", order.seed, 0, 2**63 - 1)
    if order.skip_batches is not None:
        _check("skip_batches", order.skip_batches, 0, 10**9)
    if order.expires_s is not None:
        _check("expires_s", order.expires_s, 1, MAX_EXPIRES_S)
    if len(order.reason) > MAX_REASON_CHARS:
        raise BadRequest(
            f"reason has {len(order.reason)} characters, expected at most {MAX_REASON_CHARS}", hint="shorten it"
        )


def _check(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise BadRequest(f"{name} is {value}, expected {low} to {high:g}", hint=f"give a {name} in that range")


def _target(to_step: int, job: JobView) -> str | None:
    """Return the path of the checkpoint to roll back to, None for a job that announces none."""
    assert job.running_step is not None
    if to_step >= job.running_step:
        raise BadRequest(
            f"to_step is {to_step}, but the job is at step {job.running_step}",
            hint="give an earlier step: that of a checkpoint",
        )
    usable = [c for c in job.checkpoints if c["available"] and not c["dead"]]
    if not job.checkpoints:
        return None
    for checkpoint in usable:
        if checkpoint["step"] == to_step:
            return str(checkpoint["path"])
    known = ", ".join(str(c["step"]) for c in usable[:12]) or "none"
    raise BadRequest(f"there is no usable checkpoint for step {to_step}", hint=f"usable checkpoints: {known}")
