"""The life of a command: ordered, fenced, delivered, agreed by all ranks, acted on, seen in the data. Pure.

A command is the dict of docs/api.md. Nothing here talks to anybody: time, ids and what is known of the job are
handed in, and every method returns the commands that changed, for the worker to store, audit and deliver.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stabilitybackend.errors import Conflict
from stabilitybackend.policy.agent_orders import (
    AGENT_KINDS,
    OURSELVES,
    agent_order,
    answer_for,
    answered,
    check_free,
    comes_back,
    is_under_way,
    verdict,
)
from stabilitybackend.policy.orders import OPEN_STATES, JobView, Order, check_fields
from stabilitybackend.policy.rollback_order import rollback_order

__all__ = ["MAX_ATTEMPTS", "CommandBook"]

#: Tries to agree on one step boundary before the command fails.
MAX_ATTEMPTS = 3
#: A command is ignored when no rank has said a word so many steps after its boundary ...
IGNORED_AFTER_STEPS = 5
#: ... and so many seconds after it was ordered: an agent that was away for a moment still brings it in time.
IGNORED_AFTER_S = 20.0
#: Agents may still answer so long after an order's expiry (and the grace of a restart), seconds.
ANSWER_S = 5.0
#: Commands kept per run; the oldest ended ones go first.
MAX_COMMANDS = 2_000
#: History entries kept per command.
MAX_HISTORY = 200

_RETRY = frozenset({"missed", "aborted", "abort", "timeout"})


class CommandBook:
    """The commands of one run."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._commands: dict[str, dict[str, Any]] = {}
        #: The newest restart, until its job is back: rows are looked at for it.
        self._restart: str | None = None
        #: Commands that a restart ended, until they are told.
        self._ended: list[dict[str, Any]] = []

    def load(self, commands: Iterable[Mapping[str, Any]]) -> None:
        """Take over what was stored, after a restart."""
        for command in sorted(commands, key=lambda c: c["issued"]):
            self._commands[command["command_id"]] = dict(command)
            if command["kind"] == "restart" and is_under_way(command):
                self._restart = command["command_id"]

    def all(self) -> list[dict[str, Any]]:
        """Return the commands, newest first."""
        return list(self._commands.values())[::-1]

    def get(self, command_id: str) -> dict[str, Any] | None:
        """Return one command, None where there is none."""
        return self._commands.get(command_id)

    def waiting(self) -> list[dict[str, Any]]:
        """Return the commands that an agent which connects now has to know."""
        return [c for c in self._commands.values() if c["state"] in OPEN_STATES]

    def restart_under_way(self) -> dict[str, Any] | None:
        """Return the restart whose job is not back yet, None where there is none."""
        command = None if self._restart is None else self._commands.get(self._restart)
        return command if command is not None and is_under_way(command) else None

    def restart_that_ends(self, node: str, started_ns: int) -> str | None:
        """Return the id of the restart that a process of ``node`` is to be ended by, None where there is none."""
        command = self.restart_under_way()
        return command["command_id"] if command is not None and not comes_back(command, node, started_ns) else None

    def find(self, idempotency_key: str | None) -> dict[str, Any] | None:
        """Return the command that was ordered under this key before."""
        if idempotency_key is None:
            return None
        return next((c for c in self._commands.values() if c.get("idempotency_key") == idempotency_key), None)

    # --- ordering ------------------------------------------------------------------------------------------------

    def order(
        self,
        order: Order,
        job: JobView,
        *,
        command_id: str,
        issuer: str,
        now: float,
        plan: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the new command.

        Args:
            plan: of a restart, the plan that the agents write (``policy/plan.py``).

        Raises:
            BadRequest: a field is out of range, or no such checkpoint can be rolled back to.
            Conflict: two processes are one rank, another rollback or restart is under way, no agent could deliver this
                one, or its checkpoint is from inside an open incident.
        """
        check_fields(order)
        if job.agents == 0:
            raise Conflict(
                "no agent of this run is connected, so nobody can deliver a command",
                hint="is the job running, and can its nodes reach us? A finished job is restarted, not rolled back",
            )
        if order.kind in AGENT_KINDS:
            check_free(order, job, self._commands.values(), now)
            if order.kind == "restart":
                self._give_way(now)
            return self._begin(agent_order(order, command_id, self._run_id, job, issuer=issuer, now=now, plan=plan))
        if job.twins:
            raise Conflict(f"ranks can't agree: {job.twins}", hint="each process of a job must be a rank of its own")
        self._check_free(now)
        return self._begin(rollback_order(order, command_id, self._run_id, job, issuer=issuer, now=now))

    def ask_agents(self, kind: str, command_id: str, job: JobView, reason: str, now: float) -> list[dict[str, Any]]:
        """Return the new order of the server itself to the agents, nothing when it was given already."""
        if command_id in self._commands or job.agents == 0:
            return []
        order = Order(kind=kind, reason=reason)
        return [self._begin(agent_order(order, command_id, self._run_id, job, issuer=OURSELVES, now=now))]

    def _begin(self, command: dict[str, Any]) -> dict[str, Any]:
        by = f"ordered by {command['issuer']}"
        if command.get("unpromised"):
            by += f"; the job has not said that it can change {', '.join(command['unpromised'])}"
        _note(command, "pending", command["issued"], by)
        self._commands[command["command_id"]] = command
        if command["kind"] == "restart":
            self._restart = command["command_id"]
        self._forget_old()
        return command

    def _check_free(self, now: float) -> None:
        """Raise Conflict while a rollback or a restart is under way."""
        for busy in self._commands.values():
            if busy["kind"] == "dump_stacks" or busy["state"] not in OPEN_STATES | {"acted"}:
                continue
            if busy["state"] == "acted" and now >= busy["expires"]:
                continue
            what = f"rollback {busy['command_id']} to step {busy['to_step']}"
            raise Conflict(
                f"{what if busy['kind'] == 'rollback' else 'restart ' + busy['command_id']} is under way "
                f"(state {busy['state']})",
                hint="wait until it is done, or until it expires",
            )

    def _give_way(self, now: float) -> None:
        """A restart begins: it ends what waits for ranks that will be gone."""
        for command in self._commands.values():
            if command["kind"] == "restart" and command["state"] == "acted":
                self._ended.append(_note(command, "failed", now, "no new row came before the next restart"))
            elif command["kind"] not in AGENT_KINDS and command["state"] in OPEN_STATES:
                text = "no rank answered, and the job is restarted; nothing was rolled back"
                self._ended.append(_note(command, "failed", now, text))

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
        command = self._commands.get(data["command_id"])
        if command is None:
            return []
        said, detail = data["state"], data.get("detail") or ""
        if rank is None and command["kind"] in AGENT_KINDS and said != "delivered":
            back = command["state"] == "failed" and bool(command["nodes"].get(node, {}).get("gone"))
            if not answered(command, node, said, detail, time):
                return []
            _history(command, said, time, f"{node}: {detail}", None, step)
            self._conclude(command, time, late=False, again=back)
            return [command]
        if rank is None:
            return (
                self.delivered(command["command_id"], time, detail or "delivered to an agent")
                if said == "delivered"
                else []
            )
        if (data.get("attempt") or command["attempt"]) != command["attempt"] and said != "acted":
            return []  # about a boundary that was given up
        known = command["ranks"].get(str(rank))
        if known is not None and known["state"] == said and known["step"] == step:
            return []
        command["ranks"][str(rank)] = {"state": said, "step": step, "time": time, "detail": detail}
        if said == "acted" and isinstance(data.get("applied"), dict):
            command["ranks"][str(rank)]["applied"] = data["applied"]
        _history(command, said, time, detail, rank, step)
        self._draw_conclusion(command, said, time, detail, rank)
        return [command]

    def _conclude(self, command: dict[str, Any], time: float, *, late: bool, again: bool = False) -> bool:
        """Close an order for agents when nobody else will answer; return whether it is closed now.

        Args:
            again: it was closed for an agent that was gone and has answered after all.
        """
        end = verdict(command, late=late) if again or command["state"] in OPEN_STATES else None
        if end is not None:
            _note(command, end[0], time, end[1])
        return end is not None

    def agents_gone(self, gone: Mapping[str, float], now: float) -> list[dict[str, Any]]:
        """Answer orders for agents that ended with them in their hands.

        Args:
            gone: node -> when the connection of its last agent ended, unix seconds, of nodes that have none now.
        """
        changed = []
        for command in self.waiting():
            said = answer_for(command, gone, now) if command["kind"] in AGENT_KINDS else {}
            for node, detail in said.items():
                _history(command, "failed", now, f"{node}: {detail}", None, None)
            if said:
                self._conclude(command, now, late=False)
                changed.append(command)
        return changed

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
                    f"the job went past step {command['apply_at_step']} without answering: it takes commands "
                    "only where it steps with run.steps() and has a handler (@run.on_rollback); nothing was rolled back"
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
            if command["kind"] in AGENT_KINDS:
                continue  # a restart ends the job, and agents may still answer
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

    def on_row(self, node: str, started_ns: int, segment: int, step: int, time: float) -> list[dict[str, Any]]:
        """A rank logged a row: the restart that its process came up after is done.

        Args:
            node, started_ns: of the process; ns since 1970 by the node's clock.
            segment: in which the row is.
        """
        command = self.restart_under_way()
        if command is None or not comes_back(command, node, started_ns):
            return []
        self._restart = None
        command["segment"], command["first_step"] = segment, step
        return [_note(command, "done", time, f"first row of a new process at step {step} on {node}")]

    def settle(self, now: float) -> list[dict[str, Any]]:
        """Close what is complete or too late; call it about once a second."""
        changed, self._ended = self._ended, []
        for command in self._commands.values():
            if command["state"] == "acted" and command["segment"] is not None:
                changed.append(_note(command, "done", now, f"first new point at step {command['first_step']}"))
            elif command["kind"] in AGENT_KINDS:
                late = now > command["expires"] + float(command.get("grace_s") or 0.0) + ANSWER_S
                if late and self._conclude(command, now, late=True):
                    changed.append(command)
                if late and command["state"] == "failed" and command["command_id"] == self._restart:
                    self._restart = None  # a process that starts now is no doing of an agent that is long gone
            elif command["state"] in OPEN_STATES and now > command["expires"]:
                text = f"{len(command['ranks'])} of {command['world_size']} ranks answered; nothing was rolled back"
                if command["segment"] is not None:
                    text = "the steps went back, but not all ranks said that their state was restored (run.restored)"
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
