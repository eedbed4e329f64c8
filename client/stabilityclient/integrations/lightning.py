"""Lightning: ``fit`` in place of ``trainer.fit``. Works with the packages ``lightning`` and ``pytorch_lightning``.

    from stabilityclient.integrations.lightning import fit

    fit(trainer, model, loader, run=run)

What it does and what it can't: docs/integrations/lightning.md. A step is an optimizer step, counted as
``trainer.global_step`` counts: the first one is 1, and a checkpoint of step N holds the state after it.
"""

from __future__ import annotations

import os
from importlib import import_module

from stabilityclient.integrations.lightning_data import Place, hands_out_batches, order_comes_again
from stabilityclient.integrations.lightning_hooks import Hooks, saving_io
from stabilityclient.integrations.shared.guarded import guarded
from stabilityclient.integrations.shared.rates import scale_rates
from stabilityclient.integrations.shared.refusals import refusal
from stabilityclient.integrations.shared.unsaved import Order, Unsaved
from stabilityclient.rollback.orders import Rewind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from stabilityclient.rollback.decision import Rollback
    from stabilityclient.run import Run

__all__ = ["fit"]

#: Launchers whose processes run ``fit`` itself. Those of ``ddp_spawn`` run only Lightning's part of it.
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

    On a rollback all ranks leave Lightning's loop before the same step, load the rollback's checkpoint and go on.
    Call it on every rank.

    Args:
        run: of :func:`stabilityclient.init`. The others are of ``Trainer.fit``.

    Raises:
        Exception: what ``trainer.fit`` raises; a rollback that was being carried out has then failed.
    """
    package = _package_of(trainer)
    base: Any = import_module(package).Callback
    callback: Any = type("StabilityCallback", (_Obeying, base), {})(run, package)
    # Behind those that save: they come last.
    last = type("StabilityCallbackAtTheEnd", (_AtTheEnd, base), {})(callback)
    trainer.callbacks[:] = [callback, *trainer.callbacks, last]
    io = saving_io(trainer, import_module(f"{package}.plugins.io").CheckpointIO, run, callback.saved)
    callback.reports = io is not None
    try:
        while True:
            try:
                trainer.fit(model, train_dataloaders, val_dataloaders, datamodule, ckpt_path, **more)
                return
            except Rewind as rewind:
                callback.rewind(rewind.rollback)
                ckpt_path = rewind.rollback.checkpoint
                trainer.fit_loop = _fresh(trainer)
    finally:
        if io is not None:
            io.run = None
        trainer.callbacks[:] = [one for one in trainer.callbacks if one is not callback and one is not last]


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

    def __init__(self, first: _Obeying) -> None:
        self._first = first

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self._first.save_where_ordered(trainer)


class _Obeying(Hooks):
    """Goes back: what is done between the exception that leaves Lightning's loop and the first step after it."""

    #: What is written through the trainer's checkpoint IO is reported.
    reports = False

    def __init__(self, run: Run, package: str) -> None:
        super().__init__(run)
        self._package = package
        self._can: tuple[str, ...] = ()
        self._place: Place | None = None
        #: Of the checkpoint that was loaded: batches left out in its epoch, and still to be left out.
        self._skipped = self._skip = 0
        #: The same: which order changed it last.
        self._ordered = ""
        self._unsaved = Unsaved(run)
        #: What is to be done to the state that is loaded.
        self._changes: Order | None = None
        self._rollback: Rollback | None = None

    def rewind(self, rollback: Rollback) -> None:
        """The next fit loads the checkpoint of this rollback."""
        self._rollback = rollback
        self._changes = Order.of(rollback)
        self._skipped, self._skip, self._ordered = 0, 0, ""

    @guarded
    def saved(self, checkpoint: dict[str, Any], path: Any) -> None:
        """A checkpoint was written; one that goes on in the background may be of before a rollback."""
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
        again = fetched and order_comes_again(trainer)  # asked of the loaders, before something stands around them
        self._place = Place(trainer, self._skipped, self._skip + skip) if step and fetched else None
        applied = {} if order is None else self._change(trainer, order)
        if rollback is not None:
            self._finish(trainer, rollback, step, applied)
        else:
            self._offer(trainer, fetched and module.automatic_optimization, again)
        super().on_train_start(trainer, module)

    def _offer(self, trainer: Any, usual: bool, again: bool) -> None:
        """Say what this job obeys. ``usual``: Lightning draws the batches and makes the steps."""
        if not usual or type(trainer.strategy.launcher).__name__ not in _LAUNCHERS:
            self._run._framework_saves(
                None, "manual optimization, a dataloader_iter, ddp_spawn and notebooks were not tried"
            )
            return
        self._can = ("lr_scale", "skip_batches") if again else ("lr_scale",)
        self._run.can_roll_back(*self._can)
        why = self._why_none_saved(trainer)
        self._run._framework_saves(None if why else lambda step: self._save_on_order(trainer, step), why)

    def _why_none_saved(self, trainer: Any) -> str:
        strategy, io = trainer.strategy, trainer.strategy.checkpoint_io
        base = import_module(f"{self._package}.strategies").Strategy
        if not self.reports or type(strategy).save_checkpoint is not base.save_checkpoint:
            return f"{type(strategy).__name__} writes checkpoints in a way of its own, which was not tried"
        while hasattr(io, "_checkpoint_io"):
            if any(kind.__name__ == "AsyncCheckpointIO" for kind in type(io).__mro__):
                return "AsyncCheckpointIO writes in the background: at the end of a step nobody knows how a save went"
            io = io._checkpoint_io
        return ""

    def _save_on_order(self, trainer: Any, step: int) -> None:
        """Save as ``trainer.save_checkpoint`` does, beside what the job saves; nothing where it just did."""
        folder = os.path.join(trainer.default_root_dir, "checkpoints")
        for callback in reversed(trainer.checkpoint_callbacks):
            whole = not getattr(callback, "save_weights_only", False)
            if whole and getattr(callback, "_last_global_step_saved", None) == step:
                return
            folder = getattr(callback, "dirpath", None) or folder
        trainer.save_checkpoint(os.path.join(folder, f"ordered-step={step}.ckpt"))

    def _change(self, trainer: Any, order: Order) -> dict[str, Any]:
        applied: dict[str, Any] = {}
        if order.lr_scale is not None:
            schedules = [config.scheduler for config in trainer.lr_scheduler_configs]
            applied["rates"] = scale_rates(trainer.optimizers, schedules, order.lr_scale)
            applied["lr_scale"] = order.lr_scale
        if order.skip_batches is not None:
            applied["skip_batches"] = order.skip_batches
        return applied

    def _finish(self, trainer: Any, rollback: Rollback, step: int, applied: dict[str, Any]) -> None:
        self._unsaved.note(rollback.checkpoint, Order.of(rollback), self._ordered)
        for callback in trainer.checkpoint_callbacks:
            if hasattr(callback, "_last_global_step_saved"):
                callback._last_global_step_saved = step  # or a step that was saved before is not saved again
        if step == rollback.to_step:
            self._run.restored(rollback, applied=applied)
        else:
            self._run.refused(rollback, f"{rollback.checkpoint} holds the state of step {step}")
            self._run.rolled_back(step, "another checkpoint than the one that was ordered", **applied)

    @guarded
    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        if self._place is not None:
            self._place.skipped = 0

    def go_back(self, rollback: Rollback) -> None:
        why = refusal(rollback, self._can)
        if why:
            self._run.refused(rollback, why)
        else:
            raise Rewind(rollback)

    def state_dict(self) -> dict[str, Any]:
        place = self._place
        skipped, skip = (0, 0) if place is None else (place.skipped, place.skip)
        return {"skipped": skipped, "skip": skip, "ordered": self._unsaved.ordered}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._skipped, self._skip, self._ordered = state["skipped"], state["skip"], state.get("ordered", "")
