"""Commands to show the kept batches: each rank answers for itself, the job continues. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from stabilitybackend.acting.commands.agent_commands import OURSELVES
from stabilitybackend.acting.commands.request import JobView, NewCommand
from stabilitybackend.base.errors import Conflict
from stabilitybackend.judging.batches.kept import MAX_RANKS, MAX_SAMPLES
from stabilitybackend.schema.commands import OPEN_STATES, Command, RankState, ShowBatches, State
from stabilitybackend.schema.events import CommandReport

__all__ = ["MAX_OWN", "OWN_WITHIN_S", "check_batches", "conclude", "may_ask", "new_show_batches", "take"]

#: Samples of an answer of all ranks together, but at least LEAST_SAMPLES each.
LEAST_SAMPLES = 2
#: The same for characters of their texts: some 256 kB an answer.
TEXT_CHARS = MAX_SAMPLES * 2_000
MAX_TEXT_CHARS, LEAST_TEXT_CHARS = 2_000, 200
#: Commands of people within ASKED_WITHIN_S: each one delays every rank by 5 s at most.
MAX_ASKED = 6
ASKED_WITHIN_S = 60.0
#: Commands of the server itself within OWN_WITHIN_S, in a job that spikes without end: a minute of delay.
MAX_OWN = 12
OWN_WITHIN_S = 3_600.0
#: Steps of the job added to the time for a start: the present one, and one more.
STEPS = 2
#: Characters of a rank's answer, named ranks, and lines of the history: each change of the command goes to all agents
#: and pages, and stays below 64 KiB for any number of ranks.
MAX_DETAIL_CHARS, MAX_NAMED, MAX_LINES = 200, 32, 48

_ENDS = frozenset({"acted", "rejected", "failed"})


def new_show_batches(new: NewCommand) -> ShowBatches:
    """Return the command, pending; ``world_size`` is the number of ranks that keep batches."""
    request, ranks = new.request, max(1, new.job.keepers)
    samples = max(LEAST_SAMPLES, min(64, MAX_SAMPLES // ranks))
    chars = max(LEAST_TEXT_CHARS, min(MAX_TEXT_CHARS, TEXT_CHARS // (ranks * samples)))
    fields = new.fields()
    if request.expires_s is None:  # a rank answers with its next batch
        fields["expires"] += STEPS * (new.job.step_time_s or 0.0)
    return ShowBatches(
        **fields,
        world_size=new.job.keepers,
        incident_id=request.incident_id,
        step=request.step,
        samples=samples,
        text_chars=chars,
    )


def check_batches(job: JobView, commands: Iterable[Command], now: float) -> None:
    """Raise Conflict for a job without kept batches, or after too many commands of people."""
    if not job.keepers:
        raise Conflict(
            "this job keeps no batches, so there are none to show",
            hint="run.keep_batches(...) in the training script keeps the newest ones",
        )
    looks = [c for c in commands if isinstance(c, ShowBatches)]
    busy = next((c for c in looks if c.state in OPEN_STATES), None)
    if busy is not None:
        raise Conflict(
            f"order {busy.command_id} is under way (state {busy.state})",
            hint="its answer comes with the next step of the job; order another one then",
        )
    recent = [c for c in looks if c.issuer != OURSELVES and 0 <= now - c.issued < ASKED_WITHIN_S]
    if len(recent) >= MAX_ASKED:
        raise Conflict(
            f"{len(recent)} were ordered in the last {ASKED_WITHIN_S:.0f} s, expected at most {MAX_ASKED}",
            hint="each one holds the job up: look at the newest one, or wait a minute",
        )


def may_ask(job: JobView, commands: Iterable[Command], now: float) -> bool:
    """Return whether the server may ask by itself: with kept batches, and not too often."""
    looks = [c for c in commands if isinstance(c, ShowBatches)]
    own = [c for c in looks if c.issuer == OURSELVES and 0 <= now - c.issued < OWN_WITHIN_S]
    return job.agents > 0 and job.keepers > 0 and len(own) < MAX_OWN and all(c.state not in OPEN_STATES for c in looks)


def take(command: ShowBatches, rank: int, step: int | None, report: CommandReport, time: float) -> list[Command]:
    """Take the report of a rank; return the command if it is to be stored and shown.

    That is the 1st, 2nd, 4th, 8th ... answer, and the last one: each change of a command goes to all agents and pages.
    """
    before = int(command.answered or "0", 16)
    if report.state not in _ENDS or rank >= MAX_RANKS or before >> rank & 1:  # which ones answered is a bit a rank
        return []
    answered = before | 1 << rank
    command.answered, command.acted = f"{answered:x}", command.acted + (report.state == "acted")
    _name(command, rank, RankState(report.state, step, time, (report.detail or "")[:MAX_DETAIL_CHARS]))
    count = answered.bit_count()
    if count >= command.world_size:
        conclude(command, time)
    return [command] if count >= command.world_size or count & (count - 1) == 0 else []


def _name(command: ShowBatches, rank: int, state: RankState) -> None:
    """Keep the report where there is room, or in the place of a success if it is a failure."""
    if len(command.ranks) >= MAX_NAMED:
        fine = next((one for one, known in command.ranks.items() if known.state == "acted"), None)
        if state.state == "acted" or fine is None:
            return
        del command.ranks[fine]
    command.ranks[str(rank)] = state
    if len(command.history) < MAX_LINES:
        command.add_line(state.state, state.time, state.detail, rank=rank, step=state.step)


def conclude(command: ShowBatches, now: float, why: str = "") -> list[Command]:
    """Close an open command with the answers so far, and return it; ``why`` no further ones are expected."""
    if command.state not in OPEN_STATES:
        return []
    acted = command.acted
    refused = next((f"rank {rank}: {one.detail}" for rank, one in command.ranks.items() if one.state != "acted"), "")
    state: State = "done" if acted else "failed" if command.ranks else "expired"
    answered = f"{acted} of {command.world_size} ranks showed their batches"
    if not command.ranks:
        answered = f"none of {command.world_size} ranks answered: an order is read where run.keep_batch() is called"
    command.note(state, now, "; ".join(part for part in (answered, refused, why) if part))
    return [command]
