"""Orders to a job in the process of the test, which has no server: handed to it as its agent does."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import stabilityclient
from stabilityclient.agent.commands.downlink import Downlink
from support.agent.spooled import stored

__all__ = ["answers", "deliver", "rollback_order"]


def rollback_order(to_step: int, at_step: int, **more: Any) -> dict[str, Any]:
    """Return the command that a job of one rank goes back to ``to_step`` before ``at_step`` begins."""
    now = time.time()
    return {
        "command_id": "c1", "kind": "rollback", "to_step": to_step, "lr_scale": None, "seed": None,
        "skip_batches": None, "reason": "", "issuer": "", "issued": now, "expires": now + 600,
        "fence": {"segment": 0, "segment_key": ""}, "attempt": 1, "apply_at_step": at_step, "world_size": 1,
        "state": "pending", **more,
    }  # fmt: skip


def deliver(run: stabilityclient.Run, command: dict[str, Any]) -> None:
    """Hand a command to a run."""
    problems: list[str] = []
    Downlink(Path(str(run.folder)), problems.append).take(command, 0.0)
    assert problems == []


def answers(run: stabilityclient.Run) -> list[tuple[str, Any]]:
    """Return what a run said of its commands: state, and what was applied."""
    return [(one.data["state"], one.data.get("applied")) for one in stored(run.folder).events("command")]
