"""Commands that agents carry out, not ranks: they need no step boundary, so they reach a job that hangs. Pure.

``dump_stacks`` is done when every agent looked. ``restart`` is acted when every agent wrote the plan and ended its
ranks, and done with the first row of a process that started after the order.
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
    Fence,
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

#: How long ranks get to leave by themselves before they are killed, seconds: enough to close files, not to save a
#: checkpoint, which a rank that hangs could not do anyway.
GRACE_S = 10.0
#: An agent whose connection ended is waited for so long, seconds: a rank starts another one within 2 to 8 s, which
#: knows from its files what was in hand. After that its order has an answer: somebody waits for one.
GONE_S = 10.0
#: A rollback that no rank answered for so long does not keep a restart waiting, seconds: the job hangs.
UNANSWERED_AFTER_S = 20.0
#: People may order so many dumps within DUMPS_WITHIN_S: each one interrupts the system calls of every rank.
MAX_DUMPS = 6
DUMPS_WITHIN_S = 60.0
#: What is noted for a node whose ranks answer: its agent handed them a command of a kind that it does not know.
AGENT_TOO_OLD = "its agent is older than this kind of command: update stabilityclient there and start the job again"
#: Issuer of the server's own orders.
OURSELVES = "stabilityboard"


def new_dump(new: NewCommand) -> StackDump:
    """Return the command, pending and with no history; ``world_size`` is the number of agents that should answer."""
    return StackDump(**new.fields(), world_size=new.job.agents)


def new_task(new: NewCommand) -> Task:
    """Return the command; see ``new_dump``."""
    return Task(**new.fields(), world_size=new.job.agents, task=new.request.task or "")


def new_restart(new: NewCommand, plan: Plan) -> Restart:
    """Return the command, as ``new_dump``; ``plan`` is what the agents write."""
    request, job, checkpoint = new.request, new.job, plan.checkpoint
    starts = {node: f"{started:x}" for node, started in sorted(job.starts.items())}
    return Restart(
        **new.fields() | {"fence": Fence(job.head, job.head_key, starts)},
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
    """Raise Conflict where a command for agents has to wait, or nobody could carry it out."""
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
    """Note what the agent of a node reports; return whether that is news.

    A node that has acted stays so: its agent may be started again, get the command again, and refuse it because of the
    ranks that came up since. What was noted for a node whose agent was gone gives way to any report of its own.
    """
    known = command.nodes.get(node)
    if known is not None and not known.gone and known.state in ("acted", state):
        return False
    command.nodes[node] = NodeState(state, time, detail)
    return True


def answer_for(command: AgentCommand, gone: Mapping[str, float], now: float) -> dict[str, str]:
    """Note that agents ended before they answered and no other one came; return node -> what is noted.

    Args:
        gone: node -> when the connection of its last agent ended, unix seconds, of nodes that have none now.
    """
    noted = {}
    for node, since in gone.items():
        # Who was away before the command was not asked: it counts those that were there.
        if node not in command.nodes and since >= command.issued and now - since >= GONE_S:
            noted[node] = (
                f"its agent ended before it answered, and none came for {GONE_S:.0f} s: "
                f"{KINDS[command.kind].unanswered}"
            )
            command.nodes[node] = NodeState("failed", now, noted[node], gone=True)
    return noted


def is_under_way(restart: Restart) -> bool:
    """Return whether the job may still come back by this restart: also where an agent went before it answered."""
    gone = any(node.gone for node in restart.nodes.values())
    return restart.state not in END_STATES or (restart.state == "failed" and gone)


def verdict(command: AgentCommand, *, late: bool) -> tuple[State, str] | None:
    """Return (state, detail) that follows from the reports, None while others may still answer: it is not ``late``."""
    ended = {name: node for name, node in command.nodes.items() if node.state in ("acted", "failed")}
    acted = [name for name, node in ended.items() if node.state == "acted"]
    wanted = command.world_size
    if len(ended) < wanted and not late:
        return None
    refusals = "; ".join(f"{name}: {node.detail}" for name, node in ended.items() if node.state == "failed")[:500]
    missing = f"; {wanted - len(ended)} did not answer" if len(ended) < wanted else ""
    if not ended:
        older = "; agents that are older than it do not know it: update stabilityclient on the nodes"
        # One that has it may have done it: its answer comes late where the server was away.
        known = "; nothing was done" if command.state == "pending" else f": {KINDS[command.kind].unanswered}"
        return ("expired", f"0 of {wanted} agents answered{known}{older if command.kind == 'task' else ''}")
    if not acted:
        return ("failed", f"{refusals}{missing}")
    detail = f"{len(acted)} of {wanted} agents have done it{missing}{f'; {refusals}' if refusals else ''}"
    return (KINDS[command.kind].answered, detail)


def comes_back(command: Restart, node: str, started_ns: int) -> bool:
    """Return whether a process of ``node`` is one that started after this restart was decided."""
    starts = {name: int(started, 16) for name, started in command.fence.starts.items()}
    # A node that was not there: a spare. Its clock is compared with those of the others then.
    return started_ns > starts.get(node, max(starts.values(), default=0))
