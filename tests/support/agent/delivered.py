"""Orders as an agent hands them to a rank, and what the rank answers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import stabilityclient
from stabilityclient.agent.commands.downlink import Downlink
from support.agent.spooled import stored

__all__ = ["answers", "command", "deliver"]


def command(**more: Any) -> dict[str, Any]:
    now = time.time()
    return {
        "command_id": "c1",
        "kind": "rollback",
        "to_step": 3,
        "lr_scale": 0.5,
        "seed": 9,
        "skip_batches": 4,
        "reason": "spike",
        "issuer": "ada",
        "issued": now,
        "expires": now + 600,
        "fence": {"segment": 0, "segment_key": ""},
        "attempt": 1,
        "apply_at_step": 8,
        "world_size": 1,
        "checkpoint": None,
        "state": "pending",
        **more,
    }


def deliver(run_folder: Any, order: dict[str, Any]) -> None:
    problems: list[str] = []
    Downlink(Path(run_folder), problems.append).take(order, 0.0)
    assert problems == []


def answers(run: stabilityclient.Run) -> list[tuple[int | None, str]]:
    return [(event.step, event.data["state"]) for event in stored(run.folder).events("command")]
