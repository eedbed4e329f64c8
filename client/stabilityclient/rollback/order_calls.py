"""``run.on_checkpoint``, ``run.on_stop``: what the job does when people order a checkpoint, or its end."""

from __future__ import annotations

from stabilityclient.arguments import cut
from stabilityclient.rollback.decision import NO_SAVER
from stabilityclient.rollback.orders import Stop
from stabilityclient.state_calls import StateCalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    Saver = TypeVar("Saver", bound=Callable[[int], object])
    Stopper = TypeVar("Stopper", bound=Callable[[Stop], object])

__all__ = ["OrderCalls"]

#: Longest text of what a handler raised, characters.
MAX_TEXT_CHARS = 10_000


class OrderCalls(StateCalls):
    """The calls of a run about orders that leave the state as it is."""

    #: Set once the job was ordered to stop: no loop over ``steps()`` begins a step any more.
    stopped: Stop | None = None
    _saver: Callable[[int], Any] | None = None
    _stopper: Callable[[Stop], object] | None = None
    #: What an integration says: who saves where the job has no function of its own, or why nobody does.
    _framework_saver: Callable[[int], Any] | None = None
    _no_saver = ""
    #: What was said of this rank: the orders that it obeys, and why not the others.
    _said_orders: dict[str, Any] | None = None

    def on_checkpoint(self, handler: Saver) -> Saver:
        """Register the function that saves a checkpoint when people order one. Use as a decorator.

        It gets the step whose state it is to save, on all ranks the same one, in the thread that trains, between two
        steps. The path that it returns is announced as by :meth:`checkpoint`; one that returns None announces it by
        itself, or is a rank that announces none. What it raises fails the order; training goes on.
        """
        self._saver = handler
        self._say_orders()
        return handler

    def on_stop(self, handler: Stopper) -> Stopper:
        """Register a function that is called on each rank when people order the end, before the loop over
        :meth:`steps` ends: it gets a :class:`Stop`. Use as a decorator.

        No job needs one: the loop ends as if its last step had come, ``run.stopped`` says so, and the script goes on
        to its end. With :meth:`boundary` it is called before the :class:`Stop` is returned.
        """
        self._stopper = handler
        return handler

    def _framework_saves(self, handler: Callable[[int], object] | None, why: str = "") -> None:
        """Register an integration's function, which saves where the job has registered none.

        Args:
            handler: as of :meth:`on_checkpoint`; None: there is none.
            why: there is none, half a sentence.
        """
        self._framework_saver, self._no_saver = handler, why
        self._say_orders()

    def _saves_before(self, step: int) -> bool:
        """Say whether a checkpoint is to be saved before ``step``: for who has to know before he draws its batch.

        Only if so may :meth:`boundary` be called so early.
        """
        return self._components is not None and self._components.boundary.saves_before(step)

    def _say_orders(self) -> None:
        """Let the server and the ranks' agreement know which orders this rank obeys; said when it changes."""
        parts = self._components
        if parts is None:
            return
        saves = self._saver is not None or self._framework_saver is not None
        parts.boundary.cannot_save = "" if saves else self._no_saver or NO_SAVER
        if not self._steps_here():
            return
        orders: dict[str, Any] = {"orders": ["stop", "checkpoint_now"] if saves else ["stop"]}
        if not saves and self._no_saver:
            orders["why"] = {"checkpoint_now": self._no_saver}
        try:
            if orders != self._said_orders:
                self._said_orders = orders
                self._event("obeys", None, orders)
        except Exception as error:
            self._guard.caught("on_checkpoint()", error)

    def _steps_here(self) -> bool:
        """Say whether this process looks for orders: a loop over steps() began, or boundary() was called."""
        raise NotImplementedError

    def phase(self, name: str, expect_s: float | None = None) -> Any:
        """Return the context manager of a phase."""
        raise NotImplementedError

    def _save_now(self, command: dict[str, Any], step: int) -> str:
        """Save on order the state after the step before ``step``; return why that failed, "" where it did not.

        An order must never end training: what the job's function raises is told, and training goes on.
        """
        saver = self._saver or self._framework_saver
        assert saver is not None  # a rank without one rejects, and then nobody acts
        try:
            with self.phase("checkpoint"):
                path = saver(step - 1)
            if path is not None:
                self.checkpoint(step - 1, path)
        except Exception as error:
            trouble = cut(f"the checkpoint was not saved: {type(error).__name__}: {error}", MAX_TEXT_CHARS)
            self._tell(command, "failed" if command["kind"] == "checkpoint_now" else "", trouble, step)
            self._guard.caught("on_checkpoint()", error)
            return trouble
        return ""

    def _save_on_order(self, command: dict[str, Any], step: int) -> None:
        if not self._save_now(command, step):
            self._tell(command, "acted", f"saved the state after step {step - 1}", step)

    def _stop_on_order(self, command: dict[str, Any], step: int) -> Stop:
        """End training: save first where that was ordered, tell the job, and remember it."""
        order = Stop.of(command, step)
        self.stopped = order  # before anything that may raise under a test
        trouble = self._save_now(command, step) if order.save else ""
        saved = f", {trouble}" if trouble else ", and saved its state" if order.save else ""
        self._tell(command, "acted", f"stopped before step {step}{saved}", step)
        try:
            if self._stopper is not None:
                self._stopper(order)
        except Exception as error:
            self._guard.caught("on_stop()", error)
        return order

    def _tell(self, command: dict[str, Any], state: str, detail: str, step: int) -> None:
        try:
            if state:
                self._restoring.report(command, state, detail, step)
        except Exception as error:
            self._guard.caught("commands", error)
