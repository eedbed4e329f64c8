"""Lightning: ``fit`` in place of ``trainer.fit``. Works with the packages ``lightning`` and ``pytorch_lightning``.

    from stabilityclient.integrations.lightning import fit

    fit(trainer, model, loader, run=run)

Features and limits: docs/integrations/lightning.md. A step is an optimizer step, counted as
``trainer.global_step`` counts: the first one is 1, and a checkpoint of step N holds the state after it.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from importlib import import_module

from stabilityclient.integrations.shared.adapter import Adapter, guarded
from stabilityclient.integrations.shared.unsaved import Order
from stabilityclient.rollback.decision import Rewind, Rollback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from stabilityclient.rank_state.phase import Phase
    from stabilityclient.rollback.decision import Stop
    from stabilityclient.run import Run

__all__ = ["Place", "fit", "hands_out_batches", "order_comes_again", "saving_io"]

#: The name under which ``lightning.pytorch.utilities.grad_norm`` logs the norm of all gradients.
_TOTAL_NORM = "grad_2.0_norm_total"


def _logged(trainer: Any, *, on_step: bool) -> dict[str, Any]:
    """Return the values logged with ``self.log``, before Lightning thins it out for its own loggers."""
    results = trainer._results
    return {} if results is None else results.metrics(on_step)["log"]


def _end_here(trainer: Any, module: Any) -> None:
    """End training before the batch that Lightning is about to train, with all that it does at the end."""
    trainer.should_stop = True
    trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None
    # Only the module's hook can leave a batch out, and Lightning moves the schedules on nevertheless.
    hooks: dict[str, Any] = {"on_train_batch_start": lambda *_: -1, "lr_scheduler_step": lambda *_: None}

    def on_train_end() -> None:
        for name in (*hooks, "on_train_end"):
            delattr(module, name)
        module.on_train_end()

    for name, hook in (*hooks.items(), ("on_train_end", on_train_end)):
        object.__setattr__(module, name, hook)


class _SavingIO:
    """Checkpoint IO around another one: reports each checkpoint when its file is there, until :meth:`stop`.

    Under ``AsyncCheckpointIO`` that is in its thread.

    Args:
        saved: called with a checkpoint and its path.
    """

    def __init__(self, inner: Any, run: Run, saved: Callable[[dict[str, Any], Any], None]) -> None:
        self._inner = inner
        self._run = run
        self._saved = saved
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, *more: Any, **named: Any) -> None:
        if self._stopped:
            self._inner.save_checkpoint(checkpoint, path, *more, **named)
            return
        with self._run.phase("checkpoint"):
            self._inner.save_checkpoint(checkpoint, path, *more, **named)
        if "optimizer_states" in checkpoint:  # weights alone are no state to go back to
            self._saved(checkpoint, path)
            self._run.checkpoint(checkpoint["global_step"], path)

    def load_checkpoint(self, *more: Any, **named: Any) -> Any:
        return self._inner.load_checkpoint(*more, **named)

    def remove_checkpoint(self, *more: Any, **named: Any) -> None:
        self._inner.remove_checkpoint(*more, **named)

    def teardown(self) -> None:
        self._inner.teardown()


def saving_io(trainer: Any, base: Any, run: Run, saved: Callable[[dict[str, Any], Any], None]) -> Any:
    """Put a :class:`_SavingIO` where the trainer's checkpoints are written; ``base`` is Lightning's CheckpointIO.

    Returns:
        It; None for a strategy that writes in another way.
    """
    try:
        outer = trainer.strategy
        io = outer.checkpoint_io
        while hasattr(io, "_checkpoint_io"):  # plug-ins around another one: the innermost writes
            outer = io
            io = io._checkpoint_io
        own = type("SavingIO", (_SavingIO, base), {})(io, run, saved)
        outer._checkpoint_io = own
        return own
    except Exception as error:  # a strategy that writes in another way
        run._guard.note("lightning", f"checkpoints are not reported: {type(error).__name__}: {error}")
        return None


#: Samplers of torch whose second pass over an epoch is as the first; the last one is that of a stream of data.
_REPEATING = ("SequentialSampler", "DistributedSampler", "_InfiniteConstantSampler")


class Place:
    """Sits between Lightning's fetcher and the loaders, from a rollback on, and skips the ordered batches.

    Args:
        trainer: in ``on_train_start``.
        skipped: batches that were left out in this epoch up to the checkpoint.
        skip: batches to leave out behind it.
    """

    def __init__(self, trainer: Any, skipped: int, skip: int) -> None:
        self._epoch_loop = trainer.fit_loop.epoch_loop
        fetcher = trainer.fit_loop._data_fetcher
        self._loader = fetcher.combined_loader
        #: Batches that were left out in this epoch.
        self.skipped = skipped
        #: Batches still to be left out.
        self.skip = skip
        # A loader with a state is at its place already.
        self._keeps_place = any(map(_stateful, self._loader.flattened)) or not order_comes_again(trainer)
        if fetcher.length is not None:
            self._length = fetcher.length
            fetcher.setup(_Sized(self))
        else:
            fetcher.setup(self)
        iter(fetcher)

    @property
    def length(self) -> int:
        """Batches that this epoch has, without those that are left out."""
        return max(0, int(self._length) - self.skipped - self.skip)

    def reset(self) -> None:
        """Shut the loaders' workers down."""
        self._loader.reset()

    def __iter__(self) -> Iterator[Any]:
        # A generator: the loaders begin when the first batch is asked for, when Lightning knows epoch and place.
        iterator = iter(self._loader)
        if not self._keeps_place:
            progress = self._epoch_loop.batch_progress
            done = 0 if progress.is_last_batch else progress.current.ready + self.skipped
            for _ in range(done):
                next(iterator, None)
        self._keeps_place = False
        # Not "yield from" or "for": Lightning's loader is its own iterator, and begins again when asked for one.
        while (batch := next(iterator, None)) is not None:
            if self.skip:
                self.skip -= 1
                self.skipped += 1
            else:
                yield batch


class _Sized:
    """The same for loaders with a length."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.reset = place.reset

    def __len__(self) -> int:
        return self._place.length

    def __iter__(self) -> Iterator[Any]:
        return iter(self._place)


def hands_out_batches(trainer: Any) -> bool:
    """Return whether Lightning asks for the batches; a ``training_step(dataloader_iter)`` does it by itself."""
    return "DataLoaderIter" not in type(trainer.fit_loop._data_fetcher).__name__


def order_comes_again(trainer: Any) -> bool:
    """Return whether a second pass over the same epoch has the same batches: only then some of them can be skipped.

    It has where the loader keeps its state, and where a sampler of torch follows the data or computes its order from
    seed and epoch. Where it draws (``shuffle=True``), and for unknown samplers and loaders of the job, not.
    """
    return all(map(_repeats, trainer.fit_loop._data_fetcher.combined_loader.flattened))


def _repeats(loader: Any) -> bool:
    if _stateful(loader):
        return True
    batches = getattr(loader, "batch_sampler", None)
    if batches is not None and type(batches).__name__ != "BatchSampler":
        return False
    return type(getattr(loader, "sampler", None)).__name__ in _REPEATING


def _stateful(loader: Any) -> bool:
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")


#: Launchers whose processes run ``fit`` itself. Those of ``ddp_spawn`` run only Lightning's part.
_LAUNCHERS = ("NoneType", "_SubprocessScriptLauncher")


def fit(
    trainer: Any,
    model: Any,
    train_dataloaders: Any = None,
    val_dataloaders: Any = None,
    datamodule: Any = None,
    ckpt_path: Any = None,
    *,
    run: Run,
    **more: Any,
) -> None:
    """Train as ``trainer.fit`` with these arguments does, report it to ``run``, and obey rollbacks and stops.

    On a rollback all ranks leave Lightning's loop before the same step, load the rollback's checkpoint and continue.
    Call it on every rank.

    Args:
        run: of :func:`stabilityclient.init`. The others are of ``Trainer.fit``.

    Raises:
        Exception: raised by ``trainer.fit``; a rollback that was being carried out has then failed.
    """
    package = _package_of(trainer)
    base: Any = import_module(package).Callback
    callback: Any = type("StabilityCallback", (_Callback, base), {})(run, package)
    with callback.watching(trainer):
        while True:
            try:
                trainer.fit(model, train_dataloaders, val_dataloaders, datamodule, ckpt_path, **more)
                return
            except Rewind as rewind:
                callback.rewind(rewind.rollback)
                ckpt_path = rewind.rollback.checkpoint
                trainer.fit_loop = _fresh(trainer)


def _package_of(trainer: Any) -> str:
    """Return the package that a trainer is from, also where its class is the user's."""
    for kind in type(trainer).__mro__:
        for package in ("lightning.pytorch", "pytorch_lightning"):
            if kind.__module__.startswith(f"{package}."):
                return package
    raise TypeError(f"trainer is a {type(trainer).__name__}, expected a Trainer of lightning or pytorch_lightning")


def _fresh(trainer: Any) -> Any:
    """Return a fit loop as the trainer's was before it began."""
    old = trainer.fit_loop
    loop = type(old)(trainer, min_epochs=old.min_epochs, max_epochs=old.max_epochs)
    steps = old.epoch_loop
    loop.epoch_loop = type(steps)(trainer, min_steps=steps.min_steps, max_steps=steps.max_steps)
    return loop


class _AtTheEnd:
    """The callback that is called behind all others."""

    def __init__(self, first: _Callback) -> None:
        self._first = first

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self._first.save_where_due(trainer)


class _Callback(Adapter):
    """Reports steps and phases of one ``fit``, asks for commands before each optimizer step, and goes back.

    Args:
        package: of the trainer.
    """

    def __init__(self, run: Run, package: str) -> None:
        super().__init__(run)
        self._package = package
        #: Whether files written through the trainer's checkpoint IO are reported.
        self._reports = False
        self._eval: Phase | None = None
        self._step = 0
        #: A step has begun: its micro-batches follow.
        self._within = False
        #: Whether commands were asked for before the next step, and the answer.
        self._asked = False
        self._command: Rollback | Stop | None = None
        self._losses: list[Any] = []
        self._lr: float | None = None
        self._place: Place | None = None
        #: Of the checkpoint that was loaded: batches left out in its epoch, and still to be left out.
        self._skipped = self._skip = 0
        #: Changes to the state that is loaded.
        self._changes: Order | None = None

    @contextmanager
    def watching(self, trainer: Any) -> Iterator[None]:
        """Be a callback of the trainer, and report its checkpoints, inside the context."""
        package = import_module(self._package)
        # Behind the callbacks that save: they come last.
        last = type("StabilityCallbackAtTheEnd", (_AtTheEnd, package.Callback), {})(self)
        trainer.callbacks[:] = [self, *trainer.callbacks, last]
        io = saving_io(trainer, import_module(f"{self._package}.plugins.io").CheckpointIO, self._run, self.saved)
        self._reports = io is not None
        try:
            yield
        finally:
            if io is not None:
                io.stop()
            trainer.callbacks[:] = [one for one in trainer.callbacks if one is not self and one is not last]

    def rewind(self, rollback: Rollback) -> None:
        """The next fit loads the checkpoint of this rollback."""
        self._rollback = rollback
        self._changes = Order.of(rollback)
        self._skipped, self._skip, self._ordered = 0, 0, ""

    @guarded
    def saved(self, checkpoint: dict[str, Any], path: Any) -> None:
        """A checkpoint was written; one that continues in the background may be of before a rollback."""
        ours = checkpoint.get("callbacks", {}).get(self.state_key, {})  # type: ignore[attr-defined]
        if ours.get("ordered", "") == self._unsaved.ordered:
            self._unsaved.saved(path)

    @guarded
    def on_train_start(self, trainer: Any, module: Any) -> None:
        rollback, self._rollback = self._rollback, None
        if rollback is None and trainer.ckpt_path is not None:
            self._changes = self._unsaved.take_up(str(trainer.ckpt_path), self._ordered)
        order, self._changes = self._changes, None
        step = trainer.global_step
        skip = 0 if order is None else order.skip_batches or 0
        fetched = hands_out_batches(trainer)
        again = fetched and order_comes_again(trainer)  # asked of the loaders, before they are wrapped
        self._place = Place(trainer, self._skipped, self._skip + skip) if step and fetched else None
        applied = {} if order is None else self._change(trainer, order)
        if rollback is not None:
            self._finish(trainer, rollback, step, applied)
        else:
            self._offer(trainer, fetched and module.automatic_optimization, again)
        self._step = step
        self._within = self._asked = False
        self._losses = []
        self._enter("data")

    def _offer(self, trainer: Any, usual: bool, again: bool) -> None:
        """Report the orders that this job obeys. ``usual``: Lightning draws the batches and makes the steps."""
        if not usual or type(trainer.strategy.launcher).__name__ not in _LAUNCHERS:
            self._run._framework_saves(
                None, "manual optimization, a dataloader_iter, ddp_spawn and notebooks were not tried"
            )
            return
        self._promise(*("lr_scale", "skip_batches") if again else ("lr_scale",))
        why = self._why_none_saved(trainer)
        self._run._framework_saves(None if why else lambda step: self._save_on_command(trainer, step), why)

    def _why_none_saved(self, trainer: Any) -> str:
        strategy, io = trainer.strategy, trainer.strategy.checkpoint_io
        base = import_module(f"{self._package}.strategies").Strategy
        if not self._reports or type(strategy).save_checkpoint is not base.save_checkpoint:
            return f"{type(strategy).__name__} writes checkpoints in a way of its own, which was not tried"
        while hasattr(io, "_checkpoint_io"):
            if any(kind.__name__ == "AsyncCheckpointIO" for kind in type(io).__mro__):
                return "AsyncCheckpointIO writes in the background: at the end of a step nobody knows how a save went"
            io = io._checkpoint_io
        return ""

    def _save_on_command(self, trainer: Any, step: int) -> None:
        """Save as ``trainer.save_checkpoint`` does, in addition to the job's own saves; nothing where it just did."""
        folder = os.path.join(trainer.default_root_dir, "checkpoints")
        for callback in reversed(trainer.checkpoint_callbacks):
            whole = not getattr(callback, "save_weights_only", False)
            if whole and getattr(callback, "_last_global_step_saved", None) == step:
                return
            folder = getattr(callback, "dirpath", None) or folder
        trainer.save_checkpoint(os.path.join(folder, f"ordered-step={step}.ckpt"))

    def _change(self, trainer: Any, order: Order) -> dict[str, Any]:
        schedules = [config.scheduler for config in trainer.lr_scheduler_configs]
        applied = self._scaled(order.lr_scale, trainer.optimizers, schedules)
        if order.skip_batches is not None:
            applied["skip_batches"] = order.skip_batches
        return applied

    def _finish(self, trainer: Any, rollback: Rollback, step: int, applied: dict[str, Any]) -> None:
        self._unsaved.note(rollback.checkpoint, Order.of(rollback), self._ordered)
        for callback in trainer.checkpoint_callbacks:
            if hasattr(callback, "_last_global_step_saved"):
                callback._last_global_step_saved = step  # or a step that was saved before is not saved again
        self._report_back(rollback, step, applied)

    @guarded
    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        if self._place is not None:
            self._place.skipped = 0

    # --- steps ---------------------------------------------------------------------------------------------------

    @guarded
    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
        self._enter(None)
        if not self._within:
            self._ask(trainer)
            self._asked = False
            if isinstance(self._command, Rollback):
                self._rewind(self._command)
            elif self._command is not None:
                _end_here(trainer, module)
                return
            self._within = True
        self._enter("forward")

    def _ask(self, trainer: Any) -> None:
        """Ask for commands before the next step, once."""
        if not self._asked:
            stop = trainer.max_steps + 1 if trainer.max_steps > 0 else None
            self._asked = True
            self._command = self._run.boundary(self._step + 1, stop)

    @guarded
    def save_where_due(self, trainer: Any) -> None:
        """A batch ended, for all other callbacks too: the last moment at which nothing of the next one was drawn."""
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

    # --- state in a checkpoint -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        place = self._place
        skipped, skip = (0, 0) if place is None else (place.skipped, place.skip)
        return {"skipped": skipped, "skip": skip, "ordered": self._unsaved.ordered}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._skipped, self._skip, self._ordered = state["skipped"], state["skip"], state.get("ordered", "")
