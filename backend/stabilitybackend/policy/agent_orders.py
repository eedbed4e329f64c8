"""Orders that agents carry out, not ranks: they need no step boundary, so they reach a job that stands. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["AGENT_KINDS", "DONE_AFTER_S", "agent_order", "answered"]

#: ``dump_stacks``: look closely at every rank. ``restart``: write the plan, then end the ranks of this node.
AGENT_KINDS = frozenset({"dump_stacks", "restart"})
#: An order is over so long after it was given, seconds, whoever has not answered by then.
DONE_AFTER_S = 15.0


def agent_order(
    kind: str, command_id: str, run_id: str, *, segment: int, segment_key: str, agents: int, reason: str, issuer: str,
    now: float, plan: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return a new command in the shape of docs/api.md; ``world_size`` is the number of agents that should answer."""
    return {
        "command_id": command_id,
        "run_id": run_id,
        "kind": kind,
        "to_step": None,
        "lr_scale": None,
        "seed": None,
        "skip_batches": None,
        "reason": reason,
        "issuer": issuer,
        "issued": now,
        "expires": now + DONE_AFTER_S,
        "fence": {"segment": segment, "segment_key": segment_key},
        "state": "pending",
        "attempt": 1,
        "apply_at_step": None,
        "world_size": agents,
        "ranks": {},
        "nodes": {},
        "history": [],
        "checkpoint": None,
        "segment": None,
        "first_step": None,
        "idempotency_key": None,
        "plan": None if plan is None else dict(plan),
    }


def answered(command: dict[str, Any], node: str, state: str, detail: str, time: float) -> bool:
    """Note what the agent of a node says; return whether all have acted."""
    command["nodes"][node] = {"state": state, "time": time, "detail": detail}
    heard = sum(word["state"] in ("acted", "failed") for word in command["nodes"].values())
    return heard >= int(command["world_size"])
