"""``run.steps`` and ``run.boundary``: between two steps all ranks obey what people ordered, or none does."""

from __future__ import annotations

from _operator import index  # the same as operator.index, without the module's import time
from time import time

from stabilityclient.arguments import cut, step_of
from stabilityclient.errors import RefusedError
from stabilityclient.rollback.decision import Rollback
from stabilityclient.rollback.order_calls import OrderCalls
from stabilityclient.rollback.orders import Stop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any, TypeVar

    from stabilityclient.rank_state.phase import Phase
    from stabilityclient.rollback.lineage import RankLineage

    Handler = TypeVar("Handler", bound=Callable[[Rollback], object])

__all__ = ["StepCalls"]

#: Longest text of a reason, characters. Longer ones are cut, with a mark.
MAX_REASON_CHARS = 10_000
#: Who drives the steps: our loop, or the job's own.
STEPS = "steps()"
BOUNDARY = "boundary()"


class StepCalls(OrderCalls):
    """The calls of a run between two steps."""

    _lineage: RankLineage
    #: Called by each log(), and what it is while no state is awaited.
    _all_quick: Callable[[Iterable[type]], bool]
    _quick: Callable[[Iterable[type]], bool]
    #: STEPS or BOUNDARY while steps run, else "".
    _loop = ""
    #: boundary() was called in this process.
    _begun = False
    #: The time from a rollback that boundary() returned until its state is back.
    _restore_phase: Phase | None = None
    _went_back: int | None = None
    #: What is called before this rank goes back on order, and what that gave to be called when its state is back.
    _on_pause: Callable[[Rollback], object] | None = None
    _resumes: object = None

    def phase(self, name: str, expect_s: float | None = None) -> Phase:
        """Return the context manager of a phase."""
        raise NotImplementedError

    def _drain_device_values(self, to_step: int | None = None) -> None:
        raise NotImplementedError

    # --- what the job can do -------------------------------------------------------------------------------------

    def on_rollback(
        self, handler: Handler | None = None, *, can: Iterable[str] | None = None, later: bool = False
    ) -> Any:
        """Register the function that restores the job's state; it gets a :class:`Rollback`. Use as a decorator.

        It is for loops over :meth:`steps`. It may return what it applied, e.g. ``{"lr_scale": 0.5}``: the rollback
        costs show that beside what was ordered.

        Args:
            can: what it can change beside the step: some of ``lr_scale``, ``seed``, ``skip_batches``, ``skip_range``;
                orders for others are refused. Left out (``@run.on_rollback``) only the step is promised: the page
                offers no change, and what is ordered over HTTP all the same reaches the handler.
            later: it only notes the order; the state is back when the job calls :meth:`restored`.
        """
        named = self._restoring.named(can)

        def register(taken: Handler) -> Handler:
            self._restoring.take(taken, named, later)
            self._offer()
            return taken

        return register if handler is None else register(handler)

    def can_roll_back(self, *changes: str) -> None:
        """Say that this job obeys the rollbacks that :meth:`boundary` returns; without it they are refused.

        Args:
            changes: what it can change beside the step: some of ``lr_scale``, ``seed``, ``skip_batches``,
                ``skip_range``. Orders for others are refused.
        """
        named = self._restoring.named(changes)
        if named is not None:
            self._restoring.promise(named)
            self._offer()

    def on_pause(self, hook: Handler) -> Handler:
        """Register what lets a watchdog in this process know of a rollback; use as a decorator.

        It gets the :class:`Rollback` on every rank, in the thread that trains, right before its state is restored. A
        function that it returns is called when the state is back, or the rollback has failed. For watchdogs outside
        the agent writes a file (docs/restart.md).
        """
        self._on_pause = hook
        return hook

    # --- between two steps ---------------------------------------------------------------------------------------

    def steps(self, start: int, stop: int | None = None) -> Iterator[int]:
        """Yield ``start``, ``start + 1``, ... before ``stop``, and obey the commands that people send in between.

        On a rollback on which all ranks agreed, the handler of ``@run.on_rollback`` is called on every rank at the same
        step boundary, and the steps go on from ``to_step + 1``; so they do after :meth:`rolled_back`. A checkpoint is
        saved on order by ``@run.on_checkpoint``. On an ordered stop the loop ends as after its last step, further loops
        have no steps, and ``run.stopped`` says who ordered it.

        Raises:
            Exception: what the handler raises; the command is reported as failed.
        """
        step = index(start)
        end = None if stop is None else index(stop)
        if self.stopped is not None:
            return
        self._went_back = None
        self._enter(STEPS, step)
        try:
            while end is None or step < end:
                command = self._between(step, end)
                if command is not None:
                    if command["kind"] == "stop":
                        self._stop_on_order(command, step)
                        return
                    step = self._roll_back(command, step)
                    continue
                yield step
                if self._went_back is not None:
                    step, self._went_back = self._went_back, None
                step += 1
        finally:
            self._leave(step)

    def boundary(self, step: int, stop: int | None = None) -> Rollback | Stop | None:
        """Say that ``step`` would begin now, and return what people ordered; None, nearly always: then it begins.

        For a loop that belongs to somebody else; it does what :meth:`steps` does between two steps, but calls no
        handler of rollbacks. Call it on every rank before each step, in the thread that trains.

        A :class:`Rollback` is returned on all ranks or on none. The job restores its state and calls :meth:`restored`
        before it logs the next step, or says with :meth:`refused` why it can't; else the rollback has failed. It is
        returned only to jobs that called :meth:`can_roll_back`. After a :class:`Stop` the job ends: each
        further call returns it again.

        Args:
            step: 0 to 2**53 - 1.
            stop: first step that this loop does not run, if that is known. With ``step`` equal to it the loop is over.
        """
        parts = self._components
        if parts is None:
            return None
        try:
            if type(step) is not int or step < 0:
                step = step_of(step)
            if self._loop != BOUNDARY and self.stopped is None:
                self._begin(step)
            if stop is not None and step >= stop:
                self._leave(step)
                return None
            if self.stopped is not None:
                return self.stopped
        except Exception as error:
            self._guard.caught(BOUNDARY, error)
            return None
        command = self._between(step, stop)
        return None if command is None else self._hand_out(command, step)

    def refused(self, rollback: Rollback, why: str) -> None:
        """Say that this rank can't carry out a rollback that :meth:`boundary` returned, and goes on as it was.

        The command has failed. All ranks have agreed on it by then: refuse it on all of them.

        Args:
            why: in words, for people.
        """
        if self._components is None:
            return
        try:
            command, step, _ = self._restoring.noted(rollback, "refused()")
            self._end_restore()
            self._restoring.report(command, "failed", f"the job refused: {cut(why, MAX_REASON_CHARS)}", step)
        except Exception as error:
            self._guard.caught("refused()", error)

    def rolled_back(self, to_step: int, reason: str = "", **changes: Any) -> None:
        """Say that the job went back by itself: points after ``to_step`` are dead, the next ones a new segment.

        Inside a loop over :meth:`steps` the next step is then ``to_step + 1``.

        Args:
            to_step: step whose state was restored; the next point belongs to ``to_step + 1``.
            reason: why, in words.
            changes: what is different now, e.g. ``lr_scale=0.5``. Call it on all ranks in the same order.
        """
        try:
            self._went_back = step_of(to_step)
            self._drain_device_values(self._went_back)
            self._lineage.declare(self._went_back, cut(reason, MAX_REASON_CHARS), changes)
            self._say_restored(self._went_back)
        except Exception as error:
            self._guard.caught("rolled_back()", error)

    # --- inside --------------------------------------------------------------------------------------------------

    def _offer(self) -> None:
        """Let the ranks' agreement know whether somebody would carry out a rollback."""
        if self._components is not None:
            takes = {STEPS: self._restoring.has_handler, BOUNDARY: self._restoring.promised}
            self._components.boundary.has_handler = takes.get(self._loop, any(takes.values()))

    def _steps_here(self) -> bool:
        return self._loop != ""

    def _enter(self, loop: str, step: int) -> None:
        """Steps begin, from ``step`` on, in this thread."""
        self._loop = loop
        parts = self._components
        if parts is None:
            return
        try:
            parts.enter()
            self._offer()
            self._say_orders()
            self._say_environment()
            if doubt := parts.boundary.doubt():
                self._guard.note(loop, f"commands are refused: {doubt}")
        except Exception as error:
            self._guard.caught(loop, error)
        if loop == STEPS or not self._begun:
            self._goes_on(step - 1)

    def _begin(self, step: int) -> None:
        """The job calls boundary() for the first time, or again after an order or the end of a loop."""
        if self._loop == STEPS:
            raise RefusedError(["boundary() came within a loop over steps(), which does the same by itself"])
        self._give_up(f"step {step} began without run.restored()")
        self._enter(BOUNDARY, step)
        self._begun = True

    def _between(self, step: int, stop: int | None) -> dict[str, Any] | None:
        """Return the command on which all ranks act now; without one, let the step begin."""
        parts = self._components
        if parts is None:
            return None
        try:
            while True:
                command = parts.boundary.check(step, stop)
                if command is None:
                    parts.slot.set_step(step, time())
                if command is None or command["kind"] != "checkpoint_now":
                    return command
                self._save_on_order(command, step)
        except Exception as error:
            self._guard.caught(self._loop, error)
            return None

    def _leave(self, step: int) -> None:
        loop, self._loop = self._loop, ""
        try:
            if self._components is not None:
                self._components.leave(step)
        except Exception as error:
            self._guard.caught(loop, error)

    def _roll_back(self, command: dict[str, Any], step: int) -> int:
        """Call the user's handler and return the step that comes next."""
        self._pause(Rollback.of(command))
        try:
            with self.phase("rollback"):
                rollback, answer = self._restoring.call(command, step)
        except BaseException:
            self._resume()
            raise
        self._follow(rollback)
        if self._restoring.back(command, step, answer):
            self._resume()
            self._goes_on(rollback.to_step, again=True)
        return rollback.to_step + 1

    def _pause(self, rollback: Rollback) -> None:
        """Say that no step comes for a while, on order: in the slot for the agent, and to the hook of the job."""
        try:
            if self._components is not None:
                self._components.slot.pause(time())
            if self._on_pause is not None:
                self._resumes = self._on_pause(rollback)
        except Exception as error:
            self._guard.caught("on_pause()", error)

    def _resume(self) -> None:
        """The state is back, or never will be: call what the hook gave."""
        resumes, self._resumes = self._resumes, None
        try:
            if callable(resumes):
                resumes()
        except Exception as error:
            self._guard.caught("on_pause()", error)

    def _follow(self, rollback: Rollback) -> None:
        """What was logged so far is complete, and the next row is in the rollback's segment."""
        try:
            self._drain_device_values(rollback.to_step)
            self._lineage.follow(rollback)
        except Exception as error:
            self._guard.caught(self._loop or BOUNDARY, error)

    # --- a rollback that boundary() returned ---------------------------------------------------------------------

    def _hand_out(self, command: dict[str, Any], step: int) -> Rollback | Stop | None:
        """Return what all ranks have agreed on; trouble of ours is no reason for this one to go on."""
        order: Rollback | Stop | None = None
        try:
            self._leave(step)
            if command["kind"] == "stop":
                order = self._stop_on_order(command, step)
            else:
                order = self._restoring.hand_out(command, step)
                self._await_restore(order)
        except Exception as error:
            self._guard.caught(BOUNDARY, error)
        return order

    def _await_restore(self, rollback: Rollback) -> None:
        self._pause(rollback)
        self._restore_phase = self.phase("rollback").__enter__()
        self._quick = quick = self._all_quick

        def row_came(types: Iterable[type]) -> bool:
            # In place of the first thing that log() calls: a job that waits for no state pays nothing.
            self._give_up("a step was logged without run.restored()")
            return quick(types)

        self._all_quick = row_came

    def _back(self, rollback: Rollback, applied: Mapping[str, Any] | None) -> None:
        command, step, followed = self._restoring.noted(rollback, "restored()")
        self._end_restore()
        if not followed:
            self._follow(rollback)
        self._restoring.acted(command, step, applied)
        self._say_restored(int(command["to_step"]))

    def _end_restore(self) -> None:
        """Nothing is awaited any more."""
        self._resume()
        phase, self._restore_phase = self._restore_phase, None
        if phase is not None:
            phase.__exit__()
            self._all_quick = self._quick

    def _give_up(self, why: str, *, mistake: bool = True) -> None:
        """A rollback that boundary() returned was never restored: it has failed.

        Args:
            mistake: of the job's code, which a test should see.
        """
        open_one = self._restoring.given_up()
        if open_one is None:
            return
        self._end_restore()
        command, step = open_one
        text = f"{why}: the state of step {command['to_step']} was not said to be back"
        self._restoring.report(command, "failed", text, step)
        if mistake:
            self._guard.caught(BOUNDARY, RefusedError([text]))

    def _end_steps(self, why: str) -> None:
        """The process ends, in the loop of boundary() perhaps: take votes back, and say what was never restored."""
        try:
            if self._loop == BOUNDARY and self._components is not None:
                self._leave(max(0, self._components.slot.step + 1))
            self._give_up(why, mistake=False)
        except Exception as error:
            self._guard.caught("finish()", error)
