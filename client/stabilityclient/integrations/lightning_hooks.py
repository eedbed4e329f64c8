"""What a Lightning job reports, and where it looks for orders: its callback hooks and its checkpoint IO."""

from __future__ import annotations

from stabilityclient.integrations.shared.guarded import guarded
from stabilityclient.integrations.shared.phases import OnePhase
from stabilityclient.rollback.decision import Rollback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from stabilityclient.rank_state.phase import Phase
    from stabilityclient.rollback.orders import Stop
    from stabilityclient.run import Run

__all__ = ["Hooks", "saving_io"]

#: The name under which ``lightning.pytorch.utilities.grad_norm`` logs the norm of all gradients.
_TOTAL_NORM = "grad_2.0_norm_total"


class Hooks:
    """Reports steps and phases of one ``fit``, and asks for orders before each optimizer step."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._enter = OnePhase(run).enter
        self._eval: Phase | None = None
        self._step = 0
        #: A step has begun: micro-batches of it follow.
        self._within = False
        #: Orders were looked for before the next step, and this is what came.
        self._asked = False
        self._order: Rollback | Stop | None = None
        self._losses: list[Any] = []
        self._lr: float | None = None

    def go_back(self, rollback: Rollback) -> None:
        """Carry out a rollback before the step begins."""
        raise NotImplementedError

    # --- steps ---------------------------------------------------------------------------------------------------

    @guarded
    def on_train_start(self, trainer: Any, module: Any) -> None:
        self._step, self._within, self._losses = trainer.global_step, False, []
        self._asked = False
        self._enter("data")

    @guarded
    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
        self._enter(None)
        if not self._within:
            self._ask(trainer)
            order, self._asked = self._order, False
            if isinstance(order, Rollback):
                self.go_back(order)
            elif order is not None:
                _end_here(trainer, module)
                return
            self._within = True
        self._enter("forward")

    def _ask(self, trainer: Any) -> None:
        """Look for orders before the next step, once."""
        if not self._asked:
            stop = trainer.max_steps + 1 if trainer.max_steps > 0 else None
            self._asked, self._order = True, self._run.boundary(self._step + 1, stop)

    @guarded
    def save_where_ordered(self, trainer: Any) -> None:
        """A batch is over, for all other callbacks too: the last moment at which nothing of the next one was drawn."""
        if not self._within and self._run._saves_before(self._step + 1):
            self._enter(None)
            self._ask(trainer)
            self._enter("data")

    @guarded
    def on_before_backward(self, trainer: Any, module: Any, loss: Any) -> None:
        self._enter("backward")

    @guarded
    def on_after_backward(self, trainer: Any, module: Any) -> None:
        self._enter(None)

    @guarded
    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self._lr = optimizer.param_groups[0]["lr"]  # a schedule moves on before the batch ends
        self._enter("optimizer")

    @guarded
    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else None
        if loss is not None:
            self._losses.append(loss)
        if trainer.global_step > self._step:
            self._step, self._within = trainer.global_step, False
            self._log(trainer)
        self._enter("data")

    def _log(self, trainer: Any) -> None:
        values = dict(_logged(trainer, on_step=True))
        if _TOTAL_NORM in values:
            values.setdefault("grad_norm", values[_TOTAL_NORM])
        if self._losses:
            # Lightning divides the loss of a micro-batch by how many there are.
            parts = trainer.accumulate_grad_batches
            values["loss"] = self._losses[0] if parts == 1 else sum(self._losses) * (parts / len(self._losses))
        if self._lr is not None:
            values.setdefault("lr", self._lr)
        self._losses = []
        if values:
            self._run.log(self._step, values)

    @guarded
    def on_train_end(self, trainer: Any, module: Any) -> None:
        self._enter(None)
        self._run.boundary(self._step + 1, self._step + 1)

    @guarded
    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        self._leave_eval()
        self._enter(None)

    # --- evaluation ----------------------------------------------------------------------------------------------

    @guarded
    def on_validation_start(self, trainer: Any, module: Any) -> None:
        self._eval = self._run.phase("eval").__enter__()

    @guarded
    def on_validation_end(self, trainer: Any, module: Any) -> None:
        self._leave_eval()
        if not trainer.sanity_checking and (values := dict(_logged(trainer, on_step=False))):
            self._run.log(self._step, values)

    def _leave_eval(self) -> None:
        phase, self._eval = self._eval, None
        if phase is not None:
            phase.__exit__()


def _logged(trainer: Any, *, on_step: bool) -> dict[str, Any]:
    """Return what the module has logged with ``self.log``, before Lightning thins it out for its own loggers."""
    results = trainer._results
    return {} if results is None else results.metrics(on_step)["log"]


def _end_here(trainer: Any, module: Any) -> None:
    """End training before the batch that Lightning is about to train, with all that it does at the end."""
    trainer.should_stop = True
    trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None
    # Only the module's hook can leave a batch out, and Lightning moves the schedules on all the same.
    hooks: dict[str, Any] = {"on_train_batch_start": lambda *_: -1, "lr_scheduler_step": lambda *_: None}

    def on_train_end() -> None:
        for name in (*hooks, "on_train_end"):
            delattr(module, name)
        module.on_train_end()

    for name, hook in (*hooks.items(), ("on_train_end", on_train_end)):
        object.__setattr__(module, name, hook)


def saving_io(trainer: Any, base: Any, run: Run, saved: Callable[[dict[str, Any], Any], None]) -> Any:
    """Put ourselves where the trainer's checkpoints are written: each is reported when its file is there.

    Under ``AsyncCheckpointIO`` that is in its thread. ``saved`` gets what was written, and its path.

    Returns:
        What reports as long as its ``run`` is not None; None where that can't be done.
    """

    class Saving(base):  # type: ignore[misc]
        def __init__(self, inner: Any, run: Run | None) -> None:
            self.inner, self.run = inner, run

        def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, *more: Any, **named: Any) -> None:
            if self.run is None:
                self.inner.save_checkpoint(checkpoint, path, *more, **named)
                return
            with self.run.phase("checkpoint"):
                self.inner.save_checkpoint(checkpoint, path, *more, **named)
            if "optimizer_states" in checkpoint:  # weights alone are no state to go back to
                saved(checkpoint, path)
                self.run.checkpoint(checkpoint["global_step"], path)

        def load_checkpoint(self, *more: Any, **named: Any) -> Any:
            return self.inner.load_checkpoint(*more, **named)

        def remove_checkpoint(self, *more: Any, **named: Any) -> None:
            self.inner.remove_checkpoint(*more, **named)

        def teardown(self) -> None:
            self.inner.teardown()

    try:
        outer, io = trainer.strategy, trainer.strategy.checkpoint_io
        while hasattr(io, "_checkpoint_io"):  # plug-ins around another one: the innermost writes
            outer, io = io, io._checkpoint_io
        ours = Saving(io, run)
        outer._checkpoint_io = ours
        return ours
    except Exception as error:  # a strategy that writes in another way
        run._guard.note("lightning", f"checkpoints are not reported: {type(error).__name__}: {error}")
        return None
