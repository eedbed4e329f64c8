"""Work between two steps: read the mailbox, answer commands, act with all ranks or not at all.

Almost always this is one comparison of eight bytes in mapped memory. The protocol is in ``docs/wire.md``; a
rank's decision is in ``decision.py``, the agreement of ranks in ``arbiter.py``.
"""

from __future__ import annotations

import os
import time

from stabilityclient.errors import NotReadyError
from stabilityclient.rollback.arbiter import ABORT, COMMIT, settle
from stabilityclient.rollback.command_files import CommandFiles
from stabilityclient.rollback.decision import NO_SAVER, SHOW_BATCHES, Situation, judge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from stabilityclient.identity import RankIdentity
    from stabilityclient.rollback.arbiter import Arbiter

__all__ = ["Boundary"]


class Boundary:
    """The commands of one rank.

    Args:
        folder: of the run on this node.
        rank, world_size: this process in its job.
        arbiter: makes the arbiter of one attempt: ``arbiter(command_id, attempt)``; raises when there is none.
        report: logs a ``command`` event: ``report(command, state, detail, step)``.
        identity: checks the identity of this process before it votes, and raises NotReadyError; None: it is sure.

    Raises:
        OSError: the mailbox can't be made or mapped.
    """

    def __init__(
        self,
        folder: str,
        rank: int,
        world_size: int,
        arbiter: Callable[[str, int], Arbiter],
        report: Callable[[dict[str, Any], str, str, int], None],
        *,
        identity: RankIdentity | None = None,
    ) -> None:
        self._rank = rank
        self._world_size = world_size
        self._arbiter = arbiter
        self._report = report
        self._identity = identity
        self._files = CommandFiles(folder)
        self._ready: dict[tuple[str, int], tuple[dict[str, Any], Arbiter]] = {}
        #: Segment of this rank and the unix seconds when it was entered.
        self._segment_key = ""
        self._segment_entered = time.time()
        self._rollbacks = False
        self._cannot_save = NO_SAVER
        self._keeps_batches = False

    def offer(
        self, *, rollbacks: bool | None = None, cannot_save: str | None = None, keeps_batches: bool | None = None
    ) -> None:
        """Change which commands this rank obeys; None leaves a setting unchanged.

        Args:
            rollbacks: the job can carry out a rollback.
            cannot_save: why no checkpoint can be saved on command, "" where it can.
            keeps_batches: ``data/ring.py`` answers the commands for batches.
        """
        if rollbacks is not None:
            self._rollbacks = rollbacks
        if cannot_save is not None:
            self._cannot_save = cannot_save
        if keeps_batches is not None:
            self._keeps_batches = keeps_batches

    def check(self, step: int, stop: int | None) -> dict[str, Any] | None:
        """Return the command on which all ranks act before ``step`` begins, None (nearly always) when there is none.

        Args:
            step: the step that would begin now.
            stop: first step that the loop does not run, None for no end.
        """
        for command in self._files.new():
            if command.get("kind") != SHOW_BATCHES:
                self._answer(command, step, stop)
            elif not self._keeps_batches:
                self._report(command, "rejected", "this rank keeps no batches (run.keep_batches)", step)
        return self._act(step) if self._ready else None

    def saves_before(self, step: int) -> bool:
        """Return whether this rank gave its word to save a checkpoint before ``step`` begins."""
        return any(
            command["apply_at_step"] == step and (command["kind"] == "checkpoint_now" or command.get("save"))
            for command, _ in self._ready.values()
        )

    def doubt(self) -> str:
        """Return why this process is not sure which rank it is and must not act, empty where it is; checks again."""
        try:
            if self._identity is not None:
                self._identity.check()
                self._world_size = self._identity.world_size
        except NotReadyError as error:
            return str(error)
        except Exception as error:  # of torch or the disk: a rank without an answer does not act
            return f"who this process is can't be found out: {type(error).__name__}: {error}"
        return ""

    def leave(self, step: int) -> None:
        """The loop ends before ``step``: take back every vote."""
        for key, (command, arbiter) in list(self._ready.items()):
            del self._ready[key]
            self._withdraw(command, arbiter, f"the loop ended before step {step}", step)

    def entered(self, key: str) -> None:
        """This rank is in segment ``key`` from now on. A vote for a boundary of the old one holds no longer."""
        for ready, (command, arbiter) in list(self._ready.items()):
            del self._ready[ready]
            self._withdraw(command, arbiter, "the job went back by itself", command["apply_at_step"])
        self._segment_key = key
        self._segment_entered = time.time()

    def close(self) -> None:
        """Unmap the mailbox."""
        self._files.close()

    def _act(self, step: int) -> dict[str, Any] | None:
        for key, (command, arbiter) in list(self._ready.items()):
            apply_at = command["apply_at_step"]
            if apply_at > step:
                continue
            del self._ready[key]
            if apply_at < step:  # the caller jumped over the boundary (a new loop with a later start)
                self._withdraw(
                    command, arbiter, f"the loop went on at step {step}, the command was for {apply_at}", step
                )
                continue
            try:
                decided = settle(arbiter, self._world_size)
            except Exception as error:  # the store went away in between: the others' reads are unknown
                self._report(command, "failed", f"whether the ranks agreed can't be read: {error}", step)
                continue
            if decided == COMMIT:
                return command
            self._report(command, "aborted", f"not all {self._world_size} ranks were ready for step {step}", step)
        return None

    def _withdraw(self, command: dict[str, Any], arbiter: Arbiter, why: str, step: int) -> None:
        if arbiter.decide(ABORT) == COMMIT:
            self._report(command, "failed", f"{why}, though all ranks had agreed", step)
        else:
            self._report(command, "aborted", why, step)

    def _answer(self, command: dict[str, Any], step: int, stop: int | None) -> None:
        command_id, attempt = str(command["command_id"]), int(command.get("attempt") or 1)
        doubt = self.doubt()
        situation = Situation(
            boundary=step,
            stop=stop,
            now=time.time() + float(command.get("clock_offset_s") or 0.0),
            segment=(self._segment_key, self._segment_entered),
            world_size=self._world_size,
            has_handler=self._rollbacks,
            exists=os.path.exists,
            cannot_save=self._cannot_save,
        )
        verdict, detail = ("rejected", doubt) if doubt else judge(command, situation)
        arbiter = None
        try:
            arbiter = self._arbiter(command_id, attempt)
            if verdict == "ready":
                arbiter.mark_ready(self._rank)
        except Exception as error:
            # Without its vote no commit can hold, so continuing is safe; report why. The vote may have arrived and
            # only its receipt be lost: then it is taken back, or the others would go back without this rank.
            why = f"the ranks can't agree: {error}"
            try:
                if arbiter is not None:
                    self._withdraw(command, arbiter, why, step)
                    return
            except Exception:
                pass  # a store out of reach can't be asked by the others either
            self._report(command, "rejected", why, step)
            return
        if verdict == "ready":
            self._ready[(command_id, attempt)] = (command, arbiter)
        else:
            arbiter.decide(ABORT)
        self._report(command, verdict, detail, step)
