"""The agent as a program: one run folder, one lock."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from stabilityclient.agent.folder import lock_folder
from stabilityclient.agent.service import AgentService

__all__ = ["main"]

#: How long a starting agent waits for the lock: a rank that asks for an agent holds it for an instant, seconds.
LOCK_WAIT_S = 1.0


def main(arguments: list[str]) -> int:
    """Run the agent of a run folder; return 0 when all was delivered or another agent is there, 1 when data stays."""
    if len(arguments) != 1:
        print("usage: python -m stabilityclient.agent RUN_FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    lock = lock_folder(folder, LOCK_WAIT_S)
    if lock is None:
        return 0
    try:
        return 0 if asyncio.run(AgentService(folder, dict(os.environ)).run()) == "done" else 1
    finally:
        os.close(lock)
