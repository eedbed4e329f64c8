"""Orders that agents carry out, not ranks: they need no step boundary, so they reach a job that stands. Pure.

``dump_stacks`` is done when every agent looked. ``restart`` is acted when every agent wrote the plan and ended its
ranks, and done with the first row of a process that started after the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stabilitybackend.errors import Conflict
from stabilitybackend.policy.orders import OPEN_STATES, JobView, Order

__all__ = [
    "AGENT_KINDS",
    "EXPIRES_S",
    "GONE_S",
    "OURSELVES",
    "agent_order",
    "answer_for",
    "answered",
    "check_free",
    "comes_back",
    "is_under_way",
    "verdict",
]

#: ``dump_stacks``: look closely at every rank. ``restart``: write the plan, then end the ranks of this node.
AGENT_KINDS = frozenset({"dump_stacks", "restart"})
#: Nobody may begin with an order after so long, seconds, and it is over then whoever has not answered. A dump takes at
#: most 3 s a node; a restart waits for ranks that leave by themselves.
EXPIRES_S: Mapping[str, float] = {"dump_stacks": 15.0, "restart": 60.0}
#: How long ranks get to leave by themselves before they are killed, seconds: enough to close files, not to save a
#: checkpoint, which a rank that hangs could not do anyway.
GRACE_S = 10.0
#: An agent whose connection ended is waited for so long, seconds: a rank starts another one within 2 to 8 s, which
#: knows from its files what was in hand. After that its order has an answer: somebody waits for one.
GONE_S = 10.0
#: A rollback that no rank answered for so long does not keep a restart waiting, seconds: the job stands.
UNANSWERED_AFTER_S = 20.0
#: People may order so many dumps within DUMPS_WITHIN_S: each one interrupts the system calls of every rank.
MAX_DUMPS = 6
DUMPS_WITHIN_S = 60.0
#: Issuer of the server's own orders.
OURSELVES = "stabilityboard"


def agent_order(
    order: Order, command_id: str, run_id: str, job: JobView, *, issuer: str, now: float,
    plan: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return a new command in the shape of docs/api.md; ``world_size`` is the number of agents that should answer."""
    expires_s = EXPIRES_S[order.kind] if order.expires_s is None else order.expires_s
    fence: dict[str, Any] = {"segment": job.head, "segment_key": job.head_key}
    command: dict[str, Any] = {
        "command_id": command_id,
        "run_id": run_id,
        "kind": order.kind,
        "to_step": order.to_step,
        "lr_scale": order.lr_scale,
        "seed": None,
        "skip_batches": order.skip_batches,
        "reason": order.reason,
        "issuer": issuer,
        "issued": now,
        "expires": now + expires_s,
        "fence": fence,
        "state": "pending",
        "attempt": 1,
        "apply_at_step": None,
        "world_size": job.agents,
        "ranks": {},
        "nodes": {},
        "history": [],
        "checkpoint": None,
        "segment": None,
        "first_step": None,
        "idempotency_key": order.idempotency_key,
    }
    if order.kind == "restart":
        assert plan is not None
        # In hex: JavaScript would round the number.
        fence["starts"] = {node: f"{started:x}" for node, started in sorted(job.starts.items())}
        checkpoint = plan.get("checkpoint")
        command["plan"] = {**plan, "command_id": command_id}
        command["grace_s"] = GRACE_S if order.grace_s is None else order.grace_s
        if isinstance(checkpoint, Mapping):
            command |= {"to_step": checkpoint["step"], "checkpoint": checkpoint["path"]}
        command |= {name: plan.get(name) for name in ("skip_batches", "lr_scale")}
    return command


def check_free(order: Order, job: JobView, commands: Iterable[Mapping[str, Any]], now: float) -> None:
    """Raise Conflict where an order for agents has to wait, or nobody could carry it out."""
    if order.kind == "dump_stacks":
        dumps = [c for c in commands if c["kind"] == "dump_stacks"]
        recent = [c for c in dumps if c["issuer"] != OURSELVES and 0 <= now - c["issued"] < DUMPS_WITHIN_S]
        if len(recent) >= MAX_DUMPS:
            raise Conflict(
                f"{len(recent)} dumps were ordered in the last {DUMPS_WITHIN_S:.0f} s, expected at most {MAX_DUMPS}",
                hint="each one disturbs every rank: look at the newest one, or wait a minute",
            )
        busy = next((c for c in dumps if c["state"] in OPEN_STATES), None)
        if busy is not None:
            raise Conflict(
                f"dump {busy['command_id']} is under way (state {busy['state']})",
                hint="its stacks are here in a few seconds; order another one then",
            )
        return
    for command in commands:
        if command["kind"] == "restart" and command["state"] in OPEN_STATES:
            raise Conflict(
                f"restart {command['command_id']} is under way (state {command['state']})",
                hint="wait until all agents answered, or until it expires",
            )
        if command["kind"] == "rollback" and _is_acting(command, now):
            raise Conflict(
                f"rollback {command['command_id']} to step {command['to_step']} is under way "
                f"(state {command['state']})",
                hint=f"wait until it is done; one that no rank answers gives way after {UNANSWERED_AFTER_S:.0f} s",
            )
    if not job.starts:
        raise Conflict(
            "no agent has reported a rank yet, so there is nothing to restart",
            hint="order it again in a few seconds; a job that is over is started by its launcher, see GET .../plan",
        )


def _is_acting(rollback: Mapping[str, Any], now: float) -> bool:
    if rollback["state"] == "acted":
        return bool(now < rollback["expires"])
    unanswered = not rollback["ranks"] and now - rollback["issued"] >= UNANSWERED_AFTER_S
    return rollback["state"] in OPEN_STATES and not unanswered


def answered(command: dict[str, Any], node: str, state: str, detail: str, time: float) -> bool:
    """Note what the agent of a node says; return whether that is news.

    A node that has acted stays so: its agent may be started anew, get the order again, and refuse it because of the
    ranks that came up since. What was said for a node whose agent was gone gives way to any word of its own.
    """
    known = command["nodes"].get(node)
    if known is not None and not known.get("gone") and (known["state"] == "acted" or known["state"] == state):
        return False
    command["nodes"][node] = {"state": state, "time": time, "detail": detail}
    return True


def answer_for(command: dict[str, Any], gone: Mapping[str, float], now: float) -> dict[str, str]:
    """Note that agents ended with the order in their hands and no other one came; return node -> what is said.

    Args:
        gone: node -> when the connection of its last agent ended, unix seconds, of nodes that have none now.
    """
    left = {"dump_stacks": "its stacks are missing", "restart": "whether its ranks were ended is not known"}
    said = {}
    for node, since in gone.items():
        # Who was away before the order was not asked: the order counts those that were there.
        if node not in command["nodes"] and since >= command["issued"] and now - since >= GONE_S:
            said[node] = (
                f"its agent ended before it answered, and none came for {GONE_S:.0f} s: {left[command['kind']]}"
            )
            command["nodes"][node] = {"state": "failed", "time": now, "detail": said[node], "gone": True}
    return said


def is_under_way(restart: Mapping[str, Any]) -> bool:
    """Return whether the job may still come back by this restart: also where an agent went with it in its hands."""
    gone = any(word.get("gone") for word in restart["nodes"].values())
    return restart["state"] in OPEN_STATES | {"acted"} or (restart["state"] == "failed" and gone)


def verdict(command: Mapping[str, Any], *, late: bool) -> tuple[str, str] | None:
    """Return (state, detail) that follows from what the agents said, None while others may still answer.

    Args:
        late: the order has expired: nobody else will act.
    """
    heard = {node: word for node, word in command["nodes"].items() if word["state"] in ("acted", "failed")}
    acted = [node for node, word in heard.items() if word["state"] == "acted"]
    wanted = int(command["world_size"])
    if len(heard) < wanted and not late:
        return None
    refusals = "; ".join(f"{node}: {word['detail']}" for node, word in heard.items() if word["state"] == "failed")[:500]
    missing = f"; {wanted - len(heard)} did not answer" if len(heard) < wanted else ""
    if not heard:
        return ("expired", f"0 of {wanted} agents answered; nothing was done")
    if not acted:
        return ("failed", f"{refusals}{missing}")
    detail = f"{len(acted)} of {wanted} agents have done it{missing}{f'; {refusals}' if refusals else ''}"
    return ("done" if command["kind"] == "dump_stacks" else "acted", detail)


def comes_back(command: Mapping[str, Any], node: str, started_ns: int) -> bool:
    """Return whether a process of ``node`` is one that started after this restart was decided."""
    starts = {name: int(started, 16) for name, started in command["fence"].get("starts", {}).items()}
    # A node that was not there: a spare. Its clock is compared with those of the others then.
    return started_ns > starts.get(node, max(starts.values(), default=0))
