"""What makes the commands that need no more than the request and the job."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stabilitybackend.acting.commands.agent_commands import new_dump, new_task
from stabilitybackend.acting.commands.batch_orders import new_show_batches
from stabilitybackend.acting.commands.boundary_orders import new_checkpoint, new_stop
from stabilitybackend.acting.commands.request import NewCommand
from stabilitybackend.schema.commands import Command, Kind

__all__ = ["MAKERS"]

MAKERS: Mapping[Kind, Callable[[NewCommand], Command]] = {
    "stop": new_stop,
    "checkpoint_now": new_checkpoint,
    "dump_stacks": new_dump,
    "task": new_task,
    "show_batches": new_show_batches,
}
