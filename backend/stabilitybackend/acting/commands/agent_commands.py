"""Commands of agents, without a step boundary, so that they reach a hanging job. Pure.

``dump_stacks`` is done when every agent answered. ``restart`` is acted when every agent wrote the plan and ended its
ranks, and done with the first row of a process started after the command.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import UNSET
from msgspec.structs import replace

from stabilitybackend.acting.commands.request import JobView, NewCommand
from stabilitybackend.base.errors import Conflict
from stabilitybackend.schema.commands import (
    END_STATES,
    KINDS,
    OPEN_STATES,
    AgentCommand,
    Command,
    CommandFence,
    Kind,
    NodeState,
    Restart,
    StackDump,
    State,
    Task,
)
from stabilitybackend.schema.plan import Plan

__all__ = [
    "AGENT_TOO_OLD",
    "GONE_S",
    "OURSELVES",
    "answer_for",
    "answered",
    "check_free",
    "comes_back",
    "is_under_way",
    "new_dump",
    "new_restart",
    "new_task",
    "verdict",
]

#: Time for ranks to leave before a kill, seconds: enough to close files, not to save a checkpoint, which a hanging rank
#: could not do anyway.
GRACE_S = 10.0
#: Wait for an agent after its connection ended, seconds: a rank starts another one within 2 to 8 s, which reads open
#: commands from its files.
GONE_S = 10.0
#: A rollback without an answer of any rank delays a restart at most so long, seconds: the job hangs.
UNANSWERED_AFTER_S = 20.0
#: Dumps by people within DUMPS_WITHIN_S: each one interrupts the system calls of every rank.
MAX_DUMPS = 6
DUMPS_WITHIN_S = 60.0
#: Note for a node whose ranks answer: its agent handed them a kind of command unknown to it.
AGENT_TOO_OLD = "its agent is older than this kind of command: update stabilityclient there and start the job again"
#: Issuer of the server's own commands.
OURSELVES = "stabilityboard"


def new_dump(new: NewCommand) -> StackDump:
    """Return the command, pending and with no history; ``world_size`` is the number of agents that should answer."""
    return StackDump(**new.fields(), world_size=new.job.agents)


def new_task(new: NewCommand) -> Task:
    """Return the command; see ``new_dump``."""
    return Task(**new.fields(), world_size=new.job.agents, task=new.request.task or "")


def new_restart(new: NewCommand, plan: Plan) -> Restart:
    """Return the command, as ``new_dump``; ``plan`` is for the agents to write."""
    request, job, checkpoint = new.request, new.job, plan.checkpoint
    starts = {node: f"{started:x}" for node, started in sorted(job.starts.items())}
    return Restart(
        **new.fields() | {"fence": CommandFence(job.head, job.head_key, starts)},
        to_step=request.to_step if checkpoint is None else checkpoint.step,
        lr_scale=plan.lr_scale,
        seed=None if plan.seed is UNSET else plan.seed,
        skip_batches=plan.skip_batches,
        skip_range=UNSET if plan.skip_range is None else plan.skip_range,
        world_size=job.agents,
        checkpoint=None if checkpoint is None else checkpoint.path,
        plan=replace(plan, command_id=new.command_id),
        grace_s=GRACE_S if request.grace_s is None else request.grace_s,
    )


def check_free(kind: Kind, job: JobView, commands: Iterable[Command], now: float) -> None:
    """Raise Conflict where a command for agents has to wait, or no agent could carry it out."""
    if kind == "task":
        busy = next((c for c in commands if c.kind == "task" and c.state in OPEN_STATES), None)
        if busy is not None:
            raise Conflict(
                f"task {busy.command_id} is under way (state {busy.state})", hint="wait until all agents answered"
            )
        return
    if kind == "dump_stacks":
        dumps = [c for c in commands if c.kind == "dump_stacks"]
        recent = [c for c in dumps if c.issuer != OURSELVES and 0 <= now - c.issued < DUMPS_WITHIN_S]
        if len(recent) >= MAX_DUMPS:
            raise Conflict(
                f"{len(recent)} dumps were ordered in the last {DUMPS_WITHIN_S:.0f} s, expected at most {MAX_DUMPS}",
                hint="each one disturbs every rank: look at the newest one, or wait a minute",
            )
        busy = next((c for c in dumps if c.state in OPEN_STATES), None)
        if busy is not None:
            raise Conflict(
                f"dump {busy.command_id} is under way (state {busy.state})",
                hint="its stacks are here in a few seconds; order another one then",
            )
        return
    for command in commands:
        if command.kind == "restart" and command.state in OPEN_STATES:
            raise Conflict(
                f"restart {command.command_id} is under way (state {command.state})",
                hint="wait until all agents answered, or until it expires",
            )
        if KINDS[command.kind].by == "ranks" and _is_acting(command, now):
            to_step = "" if command.to_step is None else f" to step {command.to_step}"
            raise Conflict(
                f"{command.kind} {command.command_id}{to_step} is under way (state {command.state})",
                hint=f"wait until it is done; one that no rank answers gives way after {UNANSWERED_AFTER_S:.0f} s",
            )
    if not job.starts:
        raise Conflict(
            "no agent has reported a rank yet, so there is nothing to restart",
            hint="order it again in a few seconds; a job that is over is started by its launcher, see GET .../plan",
        )


def _is_acting(command: Command, now: float) -> bool:
    if command.state == "acted":
        return now < command.expires
    unanswered = not command.ranks and now - command.issued >= UNANSWERED_AFTER_S
    return command.state in OPEN_STATES and not unanswered


def answered(command: AgentCommand, node: str, state: str, detail: str, time: float) -> bool:
    """Record the report of a node's agent; return whether it is new.

    A node that has acted stays so: a restarted agent may get the command again, and refuse it because of newer ranks. A
    report of the agent replaces the note about its absence.
    """
    known = command.nodes.get(node)
    if known is not None and not known.gone and known.state in ("acted", state):
        return False
    command.nodes[node] = NodeState(state, time, detail)
    return True


def answer_for(command: AgentCommand, gone: Mapping[str, float], now: float) -> dict[str, str]:
    """Record that agents ended without an answer and a successor; return node -> note.

    Args:
        gone: node -> end of the connection of its last agent, unix seconds, of nodes without one now.
    """
    noted = {}
    for node, since in gone.items():
        # An agent away before the command was not asked: the command counts those that were there.
        if node not in command.nodes and since >= command.issued and now - since >= GONE_S:
            noted[node] = (
                f"its agent ended before it answered, and none came for {GONE_S:.0f} s: "
                f"{KINDS[command.kind].unanswered}"
            )
            command.nodes[node] = NodeState("failed", now, noted[node], gone=True)
    return noted


def is_under_way(restart: Restart) -> bool:
    """Return whether the job may still come back by this restart, also with an agent that left without an answer."""
    gone = any(node.gone for node in restart.nodes.values())
    return restart.state not in END_STATES or (restart.state == "failed" and gone)


def verdict(command: AgentCommand, *, late: bool) -> tuple[State, str] | None:
    """Return the resulting (state, detail), None while others may still answer: not ``late``."""
    ended = {name: node for name, node in command.nodes.items() if node.state in ("acted", "failed")}
    acted = [name for name, node in ended.items() if node.state == "acted"]
    wanted = command.world_size
    if len(ended) < wanted and not late:
        return None
    refusals = "; ".join(f"{name}: {node.detail}" for name, node in ended.items() if node.state == "failed")[:500]
    missing = f"; {wanted - len(ended)} did not answer" if len(ended) < wanted else ""
    if not ended:
        older = "; agents that are older than it do not know it: update stabilityclient on the nodes"
        # A delivered command may have been carried out: after an outage of the server its answer is late.
        known = "; nothing was done" if command.state == "pending" else f": {KINDS[command.kind].unanswered}"
        return ("expired", f"0 of {wanted} agents answered{known}{older if command.kind == 'task' else ''}")
    if not acted:
        return ("failed", f"{refusals}{missing}")
    detail = f"{len(acted)} of {wanted} agents have done it{missing}{f'; {refusals}' if refusals else ''}"
    return (KINDS[command.kind].answered, detail)


def comes_back(command: Restart, node: str, started_ns: int) -> bool:
    """Return whether a process of ``node`` started after this restart was decided."""
    starts = {name: int(started, 16) for name, started in command.fence.starts.items()}
    # A spare node: its clock is compared with those of the others.
    return started_ns > starts.get(node, max(starts.values(), default=0))
