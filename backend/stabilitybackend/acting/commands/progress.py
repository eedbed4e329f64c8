"""Progress of a command: stages, a line about it, and reason of a failure. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

import msgspec
from msgspec import UNSET

from stabilitybackend.schema.commands import (
    END_STATES,
    NOT_CARRIED_OUT,
    WORDS,
    AgentCommand,
    CheckpointNow,
    Command,
    CommandStage,
    NodeState,
    Progress,
    RankState,
    Restart,
    Rollback,
    ShowBatches,
    StageState,
    Stop,
    Task,
)

__all__ = ["JOB_ENDED", "progress_of", "shown"]

#: Prefix of the reason where the job ended before it obeyed.
JOB_ENDED = "the job ended"

#: States of a rank in order; the command ends with the last of them.
_ORDER = ("pending", "delivered", "ready", "acted", "done")
#: Nodes or ranks listed one by one, and nodes named with their refusal.
_STAGES, _NAMED = 64, 4
#: State of a node or rank -> look of its stage.
_LOOKS: dict[str, StageState] = {"acted": "done", "done": "done", "failed": "failed", "rejected": "failed"}
#: The same -> label without an own text.
_WORDS = {"pending": "requested", "acted": "done", "rejected": "refused"}
_KINDS = {"restart": "Restart", "dump_stacks": "Stacks"}
#: Label of commands that are done at the ranks.
_WHAT = {"stop": "Stop", "checkpoint_now": "Checkpoint"}
_ACT = {"stop": "stopped", "checkpoint_now": "saved"}
#: Durations are in whole seconds from here on, and in minutes from here on.
_WHOLE_S, _MINUTES_S = 10.0, 60.0


def shown(command: Command) -> Command:
    """Return a command with its progress, which is not stored."""
    return msgspec.structs.replace(command, progress=progress_of(command))


def progress_of(command: Command) -> Progress:
    trouble = _trouble(command) if command.state in NOT_CARRIED_OUT else ""
    if isinstance(command, ShowBatches):
        acted = command.acted or _ranks_at(command, "acted")
        ranks = ((f"Rank {rank}", rank, report) for rank, report in command.ranks.items())
        stages, line = list(_each(command, ranks)), _batches_line(command, acted)
    elif isinstance(command, AgentCommand):
        nodes = ((node, node, report) for node, report in command.nodes.items())
        acted, stages, line = _nodes_at(command, "acted"), list(_each(command, nodes)), _agent_line(command)
    else:
        stages = _rank_stages(command)
        acted, line = _ranks_at(command, "acted"), _rank_line(command, stages, trouble)
    waits = command.waits is not UNSET and command.state == "pending"
    if waits:
        to_step = "" if command.to_step is None else f" to step {command.to_step:,}"
        what = f"{command.kind.replace('_', ' ').capitalize()}{to_step}"
        line = f"{what} is ordered, and not sent yet: {command.waits}. It is looked at again when one does."
    return Progress(
        word="waiting" if waits else WORDS[command.state],
        ended=command.state in END_STATES,
        failed=command.state in NOT_CARRIED_OUT,
        acted=acted,
        stages=stages,
        line=line,
        trouble=trouble,
    )


def _each(command: Command, reports: Iterable[tuple[str, str, RankState | NodeState]]) -> Iterator[CommandStage]:
    """Yield a stage for each rank or node, given as (label, key, report)."""
    yield CommandStage("pending", "Approved", "done", None)
    for name, key, report in islice(reports, _STAGES):
        label = f"{name}: {report.detail or _WORDS.get(report.state, report.state)}"
        yield CommandStage(key, label, _LOOKS.get(report.state, "active"), max(0.0, report.time - command.issued))


# --- carried out by ranks ------------------------------------------------------------------------------------------


def _ranks_at(command: Command, state: str) -> int:
    least = _ORDER.index(state)
    return sum(rank.state in _ORDER[least:] for rank in command.ranks.values())


def _rank_stages(command: Command) -> list[CommandStage]:
    size = command.world_size or len(command.ranks) or 1
    reached = _ORDER.index(command.state) if command.state in _ORDER else -1
    ready = max(_ranks_at(command, "ready"), size if reached >= 3 else 0)
    acted = max(_ranks_at(command, "acted"), size if reached >= 4 else 0)
    ended = command.state in END_STATES
    steps = [rank.step for rank in command.ranks.values() if rank.state in ("acted", "done") and rank.step is not None]
    boundary = steps[0] if steps else command.apply_at_step
    at = "" if boundary is None or (ended and not acted) else f", at the boundary before step {boundary:,}"
    first = "" if command.first_step is None else f": step {command.first_step:,}"
    rows = [
        ("pending", "Approved", True),
        ("delivered", "Sent to the nodes", reached >= 1 or ready > 0),
        ("ready", f"Ranks ready: {ready} of {size}", ready >= size or reached >= 3),
        ("acted", f"Ranks {_ACT.get(command.kind, 'acted')}: {acted} of {size}{at}", acted >= size or reached >= 4),
    ]
    if command.kind == "rollback":  # the others are done when all ranks have acted
        rows.append(("done", f"First new point{first}", command.state == "done"))
    # The first unfinished stage is the present or last one.
    here: StageState = "failed" if command.state in NOT_CARRIED_OUT else "active"
    stages = []
    for key, label, done in rows:
        after_s = _after_s(command, key) if done and key != "pending" else None
        stages.append(CommandStage(key, label, "done" if done else here, after_s))
        if not done:
            here = "waiting"
    return stages


def _after_s(command: Command, state: str) -> float | None:
    """Return the seconds from the request to the newest line of a state."""
    times = [entry.time for entry in command.history if entry.state == state]
    return max(0.0, times[-1] - command.issued) if times else None


def _trouble(command: Command) -> str:
    details = [
        f"Rank {rank}: {_sentence(report.detail)}"
        for rank, report in command.ranks.items()
        if report.detail and report.state in NOT_CARRIED_OUT
    ]
    last = [_sentence(one.detail) for one in command.history if one.state in NOT_CARRIED_OUT and one.detail][-1:]
    why = " ".join(details or last)
    acted = _ranks_at(command, "acted")
    if command.state == "rejected":
        words = ["The job refused.", why]
    elif command.state == "expired":
        words = ["No rank took it up in time, so it will not happen any more.", why]
    elif acted:
        # Ranks that went back while others did not are no longer one job.
        did = _ACT.get(command.kind, "went back")
        went = f"{_plural(acted, 'rank')} of {command.world_size or '?'} {did}, the others did not."
        words = [went, why, "Look at the job: its ranks may be at different steps."]
    else:
        over = any(one.detail.startswith(JOB_ENDED) for one in command.history if one.state in NOT_CARRIED_OUT)
        words = ["Not carried out.", why, "" if over else "Training goes on as before."]
    return " ".join(filter(None, words))


def _rank_line(command: Command, stages: list[CommandStage], trouble: str) -> str:
    what = (
        f"Rollback to step {command.to_step:,}" if command.to_step is not None else _WHAT.get(command.kind, "Rollback")
    )
    if isinstance(command, Rollback) and command.branch is not UNSET:
        what = f"Return to step {command.to_step:,} of the discarded branch"
    if command.state == "done" and command.kind != "rollback":
        return _done_line(command)
    if command.state == "done":
        after_s = stages[-1].after_s
        took = "" if after_s is None else f" in {_duration(after_s)}"
        return f"{what} done{took}: training goes on{_from(command)}."
    if trouble:
        return f"{what}: {trouble}"
    here = next((stage.label for stage in stages if stage.state == "active"), "The end")
    again = f" (attempt {command.attempt} of 3)" if command.attempt > 1 else ""
    return f"{what} under way{again}. Waiting for: {here[0].lower()}{here[1:]}."


def _done_line(command: Command) -> str:
    size = command.world_size
    ranks = "The rank has" if size == 1 else f"All {size:,} ranks have"
    at = command.apply_at_step or 0
    if isinstance(command, CheckpointNow):
        return f"Checkpoint saved: {ranks.lower()} saved the state after step {max(0, at - 1):,}."
    trouble = command.history[-1].detail.partition("; ")[2]
    saved = " after a checkpoint" if isinstance(command, Stop) and command.save and not trouble else ""
    line = f"Stopped: {ranks.lower()} stopped before step {at:,}{saved}."
    return f"{line} {_sentence(trouble)}".rstrip()


# --- answered by each rank for itself ------------------------------------------------------------------------------


def _batches_line(command: ShowBatches, acted: int) -> str:
    answered = f"{acted} of {_plural(command.world_size, 'rank')}"
    if command.state == "done":
        return f"Batches shown by {answered}."
    if command.state not in END_STATES:
        return f"The batches are asked for: {answered} answered. A rank answers with its next step."
    last = next((entry.detail for entry in reversed(command.history) if entry.detail), "nobody answered in time")
    return f"No batches: {_sentence(last)}"


# --- carried out by agents -----------------------------------------------------------------------------------------


def _nodes_at(command: AgentCommand, state: str) -> int:
    return sum(node.state == state for node in command.nodes.values())


def _agent_line(command: AgentCommand) -> str:
    refused = " ".join(_refusals(command))
    answered = f"{_nodes_at(command, 'acted')} of {_plural(command.world_size or len(command.nodes) or 1, 'node')}"
    if command.state in NOT_CARRIED_OUT:
        what = f"Task {command.task}" if isinstance(command, Task) else _KINDS[command.kind]
        last = next((entry.detail for entry in reversed(command.history) if entry.detail), "nobody answered in time")
        return f"{what}: {refused or _sentence(last)}"
    done = command.state == "done"
    if isinstance(command, Task):
        line = f"Task {command.task}: {'done' if done else 'under way'} on {answered}."
    elif not isinstance(command, Restart):
        line = f"Stacks collected on {answered}." if done else f"Collecting stacks: {answered}."
    elif done:
        line = f"The job runs again{'' if command.first_step is None else ','}{_from(command)}."
    elif command.state == "acted":
        line = f"The job's processes are ended on {answered}. Waiting for its launcher to start it again."
    else:
        line = f"The job is being ended: {answered}."
    return f"{line} {refused}".rstrip()


def _refusals(command: AgentCommand) -> list[str]:
    refused: list[tuple[str, NodeState]] = [one for one in command.nodes.items() if one[1].state == "failed"]
    return [f"{node}: {_sentence(report.detail or 'it did not work')}" for node, report in refused[:_NAMED]]


# --- words ---------------------------------------------------------------------------------------------------------


def _from(command: Command) -> str:
    return "" if command.first_step is None else f" from step {command.first_step:,}"


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def _duration(seconds: float) -> str:
    if seconds < _MINUTES_S:
        return f"{seconds:.1f} s" if seconds < _WHOLE_S else f"{seconds:.0f} s"
    return f"{seconds // 60:.0f} min {seconds % 60:02.0f} s"


def _sentence(text: str) -> str:
    """Return a report as a sentence: it begins small and ends without a stop; names stay."""
    words = text.strip()
    if re.match(r"[a-z]+(?=[\s,;:]|$)", words):
        words = words[0].upper() + words[1:]
    return words if not words or words[-1] in ".!?…" else f"{words}."
