"""The life of a command: issued, fenced, delivered, agreed by all ranks, acted on, seen in the data. Pure.

No I/O: time, ids and the state of the job are arguments, and every method returns the changed commands, for the worker
to store, audit and deliver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec import UNSET

from stabilitybackend.acting.commands.agent_commands import (
    AGENT_TOO_OLD,
    OURSELVES,
    answer_for,
    answered,
    check_free,
    comes_back,
    is_under_way,
    new_dump,
    new_restart,
    new_task,
    verdict,
)
from stabilitybackend.acting.commands.batch_commands import check_batches, conclude, may_ask, new_show_batches, take
from stabilitybackend.acting.commands.boundary_commands import new_checkpoint, new_stop
from stabilitybackend.acting.commands.progress import JOB_ENDED
from stabilitybackend.acting.commands.request import (
    JobView,
    NewCommand,
    check_fields,
    check_outside,
    unverified_refused,
    usable_checkpoint,
)
from stabilitybackend.base.errors import BadRequest, Conflict
from stabilitybackend.schema.commands import (
    END_STATES,
    KINDS,
    NOT_CARRIED_OUT,
    OPEN_STATES,
    AgentCommand,
    Command,
    CommandRequest,
    Kind,
    RankState,
    Restart,
    Rollback,
    ShowBatches,
    State,
    Stop,
)
from stabilitybackend.schema.events import CommandReport
from stabilitybackend.schema.lineage import Branch, why_lost
from stabilitybackend.schema.plan import Plan

__all__ = ["MAX_ATTEMPTS", "CommandBook"]

#: Remedy for a job that can't roll back.
NO_ROLLBACK_HINT = "start the job again from the checkpoint, or give it a handler (docs/commands.md)"


def new_rollback(new: NewCommand) -> Rollback:
    """Return the command, pending and with no history.

    Raises:
        BadRequest: no usable checkpoint, or a change that the job can't make.
        Conflict: no step began yet, the job hangs, or the checkpoint is from inside an open incident.
    """
    request, job = new.request, new.job
    if job.hung:
        raise Conflict(
            f"the job hangs, and a rank that hangs does not come to the end of its step. {job.hung}",
            hint="restart the job from that checkpoint instead: agents do that, not the ranks",
            code="job_hangs",
        )
    if job.running_step is None:
        raise Conflict("the job has not begun a step yet", hint="order it again when the first step is there")
    assert request.to_step is not None
    if (why := job.handler.no_rollback(job.world_size)) and request.branch is None:
        raise BadRequest(why, hint=NO_ROLLBACK_HINT, code="job_cannot")
    if request.branch is not None:
        return _return(new, request.branch, request.to_step)
    if request.to_step >= job.running_step:
        raise BadRequest(
            f"to_step is {request.to_step}, but the job is at step {job.running_step}",
            hint="give an earlier step: that of a checkpoint",
        )
    checkpoint = usable_checkpoint(request.to_step, job.checkpoints, accept_unverified=request.accept_unverified)
    check_outside(request, job.checkpoints, job.affects_weights)
    return _command(new, request.to_step, checkpoint)


def _return(new: NewCommand, branch: int, to_step: int) -> Rollback:
    """Return the command to return to a discarded branch: an undone rollback."""
    request, job = new.request, new.job
    if why := job.handler.no_return(job.world_size):
        old = job.handler.is_old
        hint = "start the job again with the newer one" if old else NO_ROLLBACK_HINT
        raise BadRequest(f"branch is given, but {why}", hint=hint, code="job_too_old" if old else "job_cannot")
    if request.skip_batches or request.skip_range is not None:
        raise BadRequest(
            "skip_batches or skip_range given with branch: a branch goes on with the batches that it had",
            hint="leave them out; roll back on the branch to skip batches of it",
        )
    if branch not in job.segment_keys:
        raise BadRequest(f"branch is {branch}, and there is no such segment", hint="list them with GET .../segments")
    mine = [c for c in job.checkpoints if c.segment == branch]
    if any(c.step == to_step and not c.dead for c in mine):
        raise BadRequest(
            f"the checkpoint of step {to_step} of segment {branch} is on the effective timeline, and not discarded",
            hint="leave branch out",
        )
    accepted = request.accept_unverified
    there = [c for c in mine if c.dead and c.available and (not c.unfit or (accepted and c.unverified))]
    checkpoint = next((c.path for c in there if c.step == to_step), None)
    if checkpoint is None:
        lost = next((c for c in mine if c.dead and c.step == to_step), None)
        if lost is not None and lost.available and lost.unverified:
            raise unverified_refused(lost)
        why = "" if lost is None else f": it {why_lost(lost.available, lost.unfit)}"
        known = ", ".join(str(c.step) for c in there[:12]) or "none"
        raise BadRequest(
            f"the discarded part of segment {branch} has no usable checkpoint of step {to_step}{why}",
            hint=f"usable there: {known}",
        )
    command = _command(new, to_step, checkpoint)
    command.branch = Branch(branch, job.segment_keys[branch])
    return command


def _command(new: NewCommand, to_step: int, checkpoint: str | None) -> Rollback:
    request, job = new.request, new.job
    return Rollback(
        **new.fields(),
        to_step=to_step,
        lr_scale=request.lr_scale,
        seed=request.seed,
        skip_batches=request.skip_batches,
        skip_range=UNSET if request.skip_range is None else (request.skip_range[0], request.skip_range[1]),
        unpromised=_unpromised(request, job),
        apply_at_step=job.boundary(1),
        world_size=job.world_size,
        checkpoint=checkpoint,
    )


def _unpromised(request: CommandRequest, job: JobView) -> list[str]:
    """Return the requested changes that the job does not promise. Raise BadRequest for those that it can't make."""
    handler = job.handler
    asked = {"lr_scale": request.lr_scale not in (None, 1), "seed": request.seed is not None}
    asked |= {"skip_batches": bool(request.skip_batches), "skip_range": request.skip_range is not None}
    cannot = handler.cannot()
    missing = [name for name, wanted in asked.items() if wanted and name in cannot]
    if missing and handler.declares():
        raise BadRequest(
            f"{', '.join(missing)} given, but the job's rollback handler does not change that: it can "
            f"{', '.join(handler.can()) or 'only go back to the step'}",
            hint=f"leave it out, or let the handler do it and say so: @run.on_rollback(can=({missing[0]!r}, ...))",
            code="job_cannot",
        )
    return missing


#: A command is ignored when no rank has answered so many steps after its boundary ...
IGNORED_AFTER_STEPS = 5
#: ... and so many seconds after its issue: an agent that was away shortly still delivers it in time.
IGNORED_AFTER_S = 20.0
#: A rank's report of a stop without the save before it (stabilityclient/rollback/order_calls.py).
NOT_SAVED = "the checkpoint was not saved"


def draw_conclusion(command: Command, reported: str, time: float, detail: str, rank: int) -> None:
    """Update the command from the report of ``rank``, which is in its ``ranks`` already."""
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
    """Return why a job does not read commands, as it went past this one without an answer; "" where it may answer.

    A rank's answer arrives before the rows behind it. The extrapolated step proves nothing: after an outage of the
    server, the answer is on its way.
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
    """Return the progress at the ranks of a job that ended, half a sentence."""
    acted = [rank for rank, reported in command.ranks.items() if reported.state == "acted"]
    if not acted:
        return KINDS[command.kind].nothing
    return f"only rank{'s' if len(acted) > 1 else ''} {', '.join(acted)} had {KINDS[command.kind].acted}"


def _troubles(command: Command) -> str:
    """Return the failures of ranks that stopped, to be added to a sentence; "" for none."""
    failed = [f"rank {rank}: {one.detail}" for rank, one in command.ranks.items() if NOT_SAVED in one.detail]
    return f"; {failed[0]}" if failed else ""


def _count(command: Command, state: str) -> int:
    """Return how many ranks report ``state``."""
    return sum(rank.state == state for rank in command.ranks.values())


MAKERS: Mapping[Kind, Callable[[NewCommand], Command]] = {
    "stop": new_stop,
    "checkpoint_now": new_checkpoint,
    "dump_stacks": new_dump,
    "task": new_task,
    "show_batches": new_show_batches,
}


#: Tries to agree on one step boundary before the command fails.
MAX_ATTEMPTS = 3
#: Agents may still answer so long after a command's expiry (and the grace of a restart), seconds.
ANSWER_S = 5.0
#: Commands kept per run; the oldest ended ones go first.
MAX_COMMANDS = 2_000

#: Reports about a boundary at which not all ranks stopped.
_RETRY = frozenset({"missed", "aborted", "abort", "timeout"})


class CommandBook:
    """The commands of one run."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._commands: dict[str, Command] = {}
        #: The newest restart, until its job is back with a row.
        self._restart: Restart | None = None
        #: The newest stop that was carried out.
        self.stop: Stop | None = None
        #: Commands ended by a restart, until they are returned.
        self._ended: list[Command] = []

    def load(self, commands: Iterable[Command]) -> None:
        """Take the stored commands, after a restart of the server."""
        for command in sorted(commands, key=lambda c: c.issued):
            self._commands[command.command_id] = command
            if isinstance(command, Restart) and is_under_way(command):
                self._restart = command
            if isinstance(command, Stop) and command.state == "done":
                self.stop = command

    def all(self) -> list[Command]:
        """Return the commands, newest first."""
        return list(self._commands.values())[::-1]

    def get(self, command_id: str) -> Command | None:
        """Return one command, None for none."""
        return self._commands.get(command_id)

    def waiting(self) -> list[Command]:
        """Return the commands for a newly connected agent."""
        return [c for c in self._commands.values() if c.state in OPEN_STATES]

    def _waiting_for_ranks(self) -> list[Command]:
        return [c for c in self.waiting() if KINDS[c.kind].by == "ranks"]

    def restarts(self) -> list[Restart]:
        """Return the restarts that ended the job, or may still, newest first."""
        return [c for c in self.all() if isinstance(c, Restart) and c.state not in NOT_CARRIED_OUT]

    def restart_under_way(self) -> Restart | None:
        """Return the restart whose job is not back yet, None for none."""
        return self._restart if self._restart is not None and is_under_way(self._restart) else None

    def command_that_ends(self, node: str, started_ns: int) -> str | None:
        """Return the id of the restart or stop by which a process of ``node`` ends, None for none."""
        command = self.restart_under_way()
        if command is not None and not comes_back(command, node, started_ns):
            return command.command_id
        return self.stop.command_id if self.stop is not None and started_ns < self.stop.issued * 1e9 else None

    def find(self, idempotency_key: str | None) -> Command | None:
        """Return the earlier command under this key."""
        if idempotency_key is None:
            return None
        return next((c for c in self._commands.values() if c.idempotency_key == idempotency_key), None)

    # --- a new one -----------------------------------------------------------------------------------------------

    def issue(
        self,
        request: CommandRequest,
        job: JobView,
        *,
        command_id: str,
        issuer: str,
        now: float,
        plan: Plan | None = None,
    ) -> Command:
        """Return the new command.

        Args:
            plan: of a restart, for the agents to write (``commands/restart_plan.py``).

        Raises:
            BadRequest: a field out of range, or no usable checkpoint.
            Conflict: two processes are one rank, another rollback or restart is under way, no agent could deliver this
                one, or its checkpoint is from inside an open incident.
        """
        check_fields(request)
        if job.agents == 0:
            raise Conflict(
                "no agent of this run is connected, so nobody can deliver a command",
                hint="is the job running, and does it reach the server? A finished job is restarted, not rolled back",
            )
        if KINDS[request.kind].by == "agents":
            check_free(request.kind, job, self._commands.values(), now)
        elif request.kind == "show_batches":
            check_batches(job, self._commands.values(), now)
        else:
            if job.duplicates:
                raise Conflict(
                    f"ranks can't agree: {job.duplicates}", hint="each process of a job must be a rank of its own"
                )
            self._check_free(now)
        new = NewCommand(request, job, command_id, self._run_id, issuer, now)
        if request.kind == "rollback":
            rollback = new_rollback(new)
            return self._begin(rollback, ", ".join(rollback.unpromised or ()))
        if request.kind in MAKERS:
            return self._begin(MAKERS[request.kind](new))
        assert plan is not None
        self._give_way(now)
        self._restart = new_restart(new, plan)
        return self._begin(self._restart)

    def ask_for_stacks(self, command_id: str, job: JobView, reason: str, now: float) -> list[Command]:
        """Return the server's own command for all stacks, nothing if it was issued already."""
        if command_id in self._commands or job.agents == 0:
            return []
        request = CommandRequest("dump_stacks", reason=reason)
        return [self._begin(MAKERS["dump_stacks"](NewCommand(request, job, command_id, self._run_id, OURSELVES, now)))]

    def ask_for_batches(self, request: CommandRequest, command_id: str, job: JobView, now: float) -> list[Command]:
        """Return the server's own command for batches, nothing if it was issued already or is not allowed."""
        if command_id in self._commands or not may_ask(job, self._commands.values(), now):
            return []
        return [self._begin(MAKERS["show_batches"](NewCommand(request, job, command_id, self._run_id, OURSELVES, now)))]

    def _begin(self, command: Command, unpromised: str = "") -> Command:
        by = f"ordered by {command.issuer}"
        if unpromised:
            by += f"; the job has not said that it can change {unpromised}"
        command.note("pending", command.issued, by)
        self._commands[command.command_id] = command
        self._forget_old()
        return command

    def _check_free(self, now: float) -> None:
        """Raise Conflict while a rollback or a restart is under way."""
        for busy in self._commands.values():
            if KINDS[busy.kind].beside or busy.state in END_STATES:
                continue
            if busy.state == "acted" and now >= busy.expires:
                continue
            to_step = f" to step {busy.to_step}" if busy.kind == "rollback" else ""
            raise Conflict(
                f"{busy.kind} {busy.command_id}{to_step} is under way (state {busy.state})",
                hint="wait until it is done, or until it expires",
            )

    def _give_way(self, now: float) -> None:
        """End commands to the ranks that a restart ends."""
        for command in self._commands.values():
            if command.kind == "restart" and command.state == "acted":
                text = "no new row came before the next restart"
            elif KINDS[command.kind].by == "ranks" and command.state in OPEN_STATES:
                text = f"no rank answered, and the job is restarted; {KINDS[command.kind].nothing}"
            else:
                continue
            self._ended += _noted(command, "failed", now, text)

    def _forget_old(self) -> None:
        for command_id, command in list(self._commands.items()):
            if len(self._commands) <= MAX_COMMANDS:
                return
            if command.state not in OPEN_STATES:
                del self._commands[command_id]

    # --- what comes back -----------------------------------------------------------------------------------------

    def delivered(self, commands: Iterable[Command], now: float, detail: str) -> list[Command]:
        """Record a delivery to an agent; return the commands that had reached none before."""
        changed = [command for command in commands if command.state == "pending"]
        for command in changed:
            command.note("delivered", now, detail)
        return changed

    def on_event(
        self, rank: int | None, step: int | None, report: CommandReport, time: float, *, node: str = "",
        keeps: bool = True,
    ) -> list[Command]:  # fmt: skip
        """Take a report of a rank (or an agent, rank None); return the changed commands.

        Args:
            keeps: the rank keeps batches: its commands for batches do not wait for others, which reject them.
        """
        command = self._commands.get(report.command_id)
        if command is None or report.state == "delivered":  # older agents report that too: who sent it has noted it
            return []
        reported, detail = report.state, report.detail or ""
        if isinstance(command, AgentCommand):
            if rank is not None:  # what an agent does not know it hands to its ranks
                reported, detail = "failed", AGENT_TOO_OLD
            return self._on_agent(command, node, reported, detail, time, step)
        if rank is None:
            return []
        if isinstance(command, ShowBatches):
            return take(command, rank, step, report, time) if keeps or reported != "rejected" else []
        if (report.attempt or command.attempt) != command.attempt and reported != "acted":
            return []  # about a boundary that was given up
        known = command.ranks.get(str(rank))
        if known is not None and known.state == reported and known.step == step:
            return []
        command.ranks[str(rank)] = RankState(
            reported, step, time, detail, report.applied if reported == "acted" else None
        )
        command.add_line(reported, time, detail, rank=rank, step=step)
        draw_conclusion(command, reported, time, detail, rank)
        if isinstance(command, Stop) and command.state == "done":
            self.stop = command
        return [command]

    def _on_agent(
        self, command: AgentCommand, node: str, reported: str, detail: str, time: float, step: int | None
    ) -> list[Command]:
        known = command.nodes.get(node)
        back = command.state == "failed" and known is not None and known.gone
        late = command.state == "expired" and reported == "acted"  # it did so in time, and its word comes now
        if not answered(command, node, reported, detail, time):
            return []
        command.add_line(reported, time, f"{node}: {detail}", step=step)
        self._conclude(command, time, late=late, again=back or late)
        return [command]

    def _conclude(self, command: AgentCommand, time: float, *, late: bool, again: bool = False) -> bool:
        """Close a command for agents without further answers; return whether it is closed now.

        ``again``: it was closed for an absent agent, or late, and has answered after all.
        """
        end = verdict(command, late=late) if again or command.state in OPEN_STATES else None
        if end is not None:
            command.note(end[0], time, end[1])
        return end is not None

    def agents_gone(self, gone: Mapping[str, float], now: float) -> list[Command]:
        """Close commands for agents that ended before their answer.

        Args:
            gone: node -> end of the connection of its last agent, unix seconds, of nodes without one now.
        """
        changed: list[Command] = []
        for command in self.waiting():
            if not isinstance(command, AgentCommand):
                continue
            noted = answer_for(command, gone, now)
            for node, detail in noted.items():
                command.add_line("failed", now, f"{node}: {detail}")
            if noted:
                self._conclude(command, now, late=False)
                changed.append(command)
        return changed

    def retries(self, job: JobView, now: float) -> list[Command]:
        """Return the commands that get a later boundary, or give up after MAX_ATTEMPTS."""
        changed: list[Command] = []
        for command in self._waiting_for_ranks():
            if not any(rank.state in _RETRY for rank in command.ranks.values()):
                continue
            if command.attempt >= MAX_ATTEMPTS:
                text = f"{MAX_ATTEMPTS} times not all ranks reached the boundary in time"
                changed += _noted(command, "failed", now, text)
                continue
            command.attempt += 1
            command.apply_at_step = job.boundary(command.attempt)
            command.ranks = {}
            changed += _noted(command, "delivered", now, f"attempt {command.attempt}: boundary {command.apply_at_step}")
        return changed

    def ignored(self, job: JobView, now: float) -> list[Command]:
        """Close commands that the job passed without an answer."""
        changed: list[Command] = []
        for command in self._waiting_for_ranks():
            if why := why_ignored(command, job, now):
                changed += _noted(command, "failed", now, why)
        return changed

    def job_over(self, why: str, now: float) -> list[Command]:
        """Close the open commands of a job that ended.

        A restart ends the job, and agents may still answer, so theirs stay open.

        Args:
            why: its end, a sentence.
        """
        changed: list[Command] = []
        for command in self._waiting_for_ranks():
            changed += _noted(
                command, "failed", now, f"{JOB_ENDED} before all ranks could act; {what_came(command)}. {why}"
            )
        for command in self.waiting():
            changed += conclude(command, now, f"{JOB_ENDED}. {why}") if isinstance(command, ShowBatches) else []
        return changed

    def on_points(self, segment: int, segment_key: str, step: int, time: float) -> list[Command]:
        """Complete the command of ``segment`` at its first point."""
        command = self._commands.get(segment_key)
        if command is None or command.segment is not None:
            return []
        command.segment, command.first_step = segment, step
        if command.state == "acted":
            command.note("done", time, f"first new point at step {step}")
        return [command]

    def on_row(self, node: str, started_ns: int, segment: int, step: int, time: float) -> list[Command]:
        """Complete the restart of a process at its first row.

        Args:
            node, started_ns: of the process; ns since 1970 by the node's clock.
            segment: of the row.
        """
        command = self.restart_under_way()
        if command is None or not comes_back(command, node, started_ns):
            return []
        self._restart = None
        command.segment, command.first_step = segment, step
        return _noted(command, "done", time, f"first row of a new process at step {step} on {node}")

    def settle(self, now: float) -> list[Command]:
        """Close complete and expired commands; call it about once a second."""
        changed, self._ended = self._ended, []
        for command in self._commands.values():
            if command.state == "acted" and command.segment is not None:
                changed += _noted(command, "done", now, f"first new point at step {command.first_step}")
            elif isinstance(command, AgentCommand):
                late = now > command.agents_end + ANSWER_S
                if late and self._conclude(command, now, late=True):
                    changed.append(command)
                if late and command.state == "failed" and command is self._restart:
                    self._restart = None  # a process that starts now is no doing of an agent that is long gone
            elif isinstance(command, ShowBatches):
                changed += conclude(command, now) if now > command.expires + ANSWER_S else []
            elif command.state in OPEN_STATES and now > command.expires:
                text = f"{len(command.ranks)} of {command.world_size} ranks answered; {KINDS[command.kind].nothing}"
                if command.segment is not None:
                    text = "the steps went back, but not all ranks said that their state was restored (run.restored)"
                changed += _noted(command, "expired", now, text)
        return changed

    def head_moved(self, head: int, head_key: str, now: float) -> list[Command]:
        """Close commands decided on another segment than the new head."""
        left = [c for c in self._waiting_for_ranks() if c.fence.segment != head and c.command_id != head_key]
        for command in left:
            text = f"decided on segment {command.fence.segment}, but the job is in segment {head} now"
            command.note("rejected", now, text)
        return left


def _noted(command: Command, state: State, time: float, detail: str) -> list[Command]:
    command.note(state, time, detail)
    return [command]
