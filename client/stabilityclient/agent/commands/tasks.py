"""Carries out ``task``: a kind of command that the owner of the nodes adds, a Python function by name.

An agent knows no task of its own. A command names a task that a file of ``STABILITY_AGENT_PLUGINS`` registered on the
node, and nothing else: no text of theirs becomes a command line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from stabilityclient.agent.commands.agent_commands import CommandToRun

__all__ = ["TASKS", "TaskCall", "carry_out", "register"]

#: Seconds that a task may take; its thread continues, but its answer is no longer waited for.
TIMEOUT_S = 60.0
MAX_DETAIL_CHARS = 500


class TaskCall(NamedTuple):
    """Arguments of a task.

    Args:
        run_id: of the run. folder: its spool on this node. node: its name. reason: text of the person.
    """

    run_id: str
    folder: str
    node: str
    reason: str


#: Name of each task -> its function, which returns a sentence; an exception is reported as failed.
TASKS: dict[str, Callable[[TaskCall], str]] = {}


def register(name: str) -> Callable[[Callable[[TaskCall], str]], Callable[[TaskCall], str]]:
    """Add a task, as a decorator above its function, which runs in a thread of the agent.

    Raises:
        ValueError: there is one of this name.
    """

    def add(task: Callable[[TaskCall], str]) -> Callable[[TaskCall], str]:
        if name in TASKS:
            raise ValueError(f"there is a task {name!r} already, give this one another name")
        TASKS[name] = task
        return task

    return add


async def carry_out(command: CommandToRun, over: bool, folder: str, node: str) -> tuple[str, str]:
    """Run a task; return the state ``acted`` or ``failed``, and a sentence."""
    task = TASKS.get(command.task)
    if task is None:
        known = ", ".join(TASKS) or "none"
        return "failed", f"there is no task {command.task!r} on this node, expected one of: {known}"
    call = TaskCall(command.run_id, folder, node, command.reason)
    try:
        answer = await asyncio.wait_for(asyncio.to_thread(task, call), TIMEOUT_S)
    except asyncio.TimeoutError:
        return "failed", f"no answer after {TIMEOUT_S:.0f} s"
    return "acted", " ".join(str(answer).split())[:MAX_DETAIL_CHARS]
