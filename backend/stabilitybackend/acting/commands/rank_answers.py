"""What follows from the answers of ranks that agree on one step boundary, and from there being none. Pure."""

from __future__ import annotations

from stabilitybackend.acting.commands.request import JobView
from stabilitybackend.schema.commands import KINDS, OPEN_STATES, Command

__all__ = ["draw_conclusion", "what_came", "why_ignored"]

#: A command is ignored when no rank has answered so many steps after its boundary ...
IGNORED_AFTER_STEPS = 5
#: ... and so many seconds after it was ordered: an agent that was away for a moment still brings it in time.
IGNORED_AFTER_S = 20.0
#: How a rank says that it stopped and could not save first (stabilityclient/rollback/order_calls.py).
NOT_SAVED = "the checkpoint was not saved"


def draw_conclusion(command: Command, reported: str, time: float, detail: str, rank: int) -> None:
    """Enter what follows for the command from what ``rank`` reported, which its ``ranks`` hold already."""
    size = command.world_size
    if reported == "acted":
        if _count(command, "acted") >= size:
            said = f"all {size} ranks {KINDS[command.kind].acted}"
            if command.kind == "rollback":  # its end is the first new point
                command.note("acted", time, said)
            else:
                command.note("done", time, f"{said}{_troubles(command)}")
    elif reported == "failed":
        command.note("failed", time, f"rank {rank}: {detail}")
    elif command.state not in OPEN_STATES:
        pass
    elif reported == "rejected":
        command.note("rejected", time, f"rank {rank}: {detail}")
    elif reported == "ready" and _count(command, "ready") >= size:
        command.note("ready", time, f"all {size} ranks act before step {command.apply_at_step}")


def why_ignored(command: Command, job: JobView, now: float) -> str:
    """Return why a job does not look for commands that went past this one without an answer, "" where it may answer.

    What a rank answered before it logged a row is here with that row. The step that the job should be in by now says
    nothing: after the server was away, the answer is on its way.
    """
    past = job.logged_step + 1 - (command.apply_at_step or 0)
    if command.ranks or past <= IGNORED_AFTER_STEPS or now - command.issued <= IGNORED_AFTER_S:
        return ""
    needs = "run.steps() or calls run.boundary()"
    if command.kind == "rollback":
        needs = "run.steps() and a handler (@run.on_rollback), or calls run.boundary() and run.can_roll_back()"
    return (
        f"the job went past step {command.apply_at_step} without answering: it takes commands "
        f"only where it steps with {needs}; {KINDS[command.kind].nothing}"
    )


def what_came(command: Command) -> str:
    """Return what ranks of a job that ended had done of a command, half a sentence."""
    acted = [rank for rank, reported in command.ranks.items() if reported.state == "acted"]
    if not acted:
        return KINDS[command.kind].nothing
    return f"only rank{'s' if len(acted) > 1 else ''} {', '.join(acted)} had {KINDS[command.kind].acted}"


def _troubles(command: Command) -> str:
    """Return what ranks that stopped could not do before, to be added to a sentence; "" where nothing."""
    failed = [f"rank {rank}: {one.detail}" for rank, one in command.ranks.items() if NOT_SAVED in one.detail]
    return f"; {failed[0]}" if failed else ""


def _count(command: Command, state: str) -> int:
    """Return how many ranks report ``state``."""
    return sum(rank.state == state for rank in command.ranks.values())
