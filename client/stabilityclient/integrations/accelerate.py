"""Accelerate: a tracker for ``accelerator.log``, and ``steps`` in place of the loops over epochs and batches.

    from stabilityclient.integrations.accelerate import steps, tracker

    accelerator = Accelerator(log_with=tracker(run))
    for step, batch in steps(accelerator, loader, run=run, epochs=3):

Features and limits: docs/integrations/accelerate.md. A step is an optimizer step, the first one is 1; with
gradient accumulation it has several batches.
"""

from __future__ import annotations

import json
import os
from importlib import import_module
from typing import NamedTuple

from stabilityclient.integrations.shared.adapter import Adapter, guarded, standing_around
from stabilityclient.integrations.shared.prepared_data import draws, order_comes_again, same_order
from stabilityclient.integrations.shared.unsaved import Order
from stabilityclient.rollback.decision import Rollback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from typing import Any

    from stabilityclient.integrations.shared.adapter import Around
    from stabilityclient.run import Run

__all__ = ["Saved", "steps", "tracker"]

#: Own file in the folder: an object registered for checkpointing would make it unreadable to other scripts.
_FILE = "stabilityboard.json"


class Saved(NamedTuple):
    """Where training is.

    Args:
        step: the last that was trained. epoch: passes that are over. gone: batches of the next pass, on this rank, that
            were trained or left out.
        order: state of the generator from which the order of this pass was drawn, in hex, None where none is.
        ordered: id of the rollback that changed the state last (``Unsaved.ordered``).
    """

    step: int = 0
    epoch: int = 0
    gone: int = 0
    order: str | None = None
    ordered: str = ""


#: Kinds of training whose ``load_state`` into a running job was tried.
_TRIED = ("NO", "MULTI_CPU", "MULTI_GPU")


def tracker(run: Run) -> Any:
    """Return a tracker for ``Accelerator(log_with=...)``: values of ``accelerator.log`` become metrics of ``run``.

    Without ``step=`` they belong to the step that :func:`steps` is at, or to one more than the last.
    """
    base: Any = import_module("accelerate.tracking").GeneralTracker
    return type("StabilityTracker", (_Tracker, base), {})(run)


class _Tracker:
    name = "stabilityboard"
    requires_logging_directory = False

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run
        self._calls = 0

    @property
    def tracker(self) -> Run:
        """The run."""
        return self._run

    @guarded
    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        """Store metrics; texts and the like are no metrics."""
        self._calls += 1
        if step is None:
            begun = 0 if self._run._components is None else self._run._components.slot.step
            step = begun if begun > 0 else self._calls
        given = {name: value for name, value in values.items() if _is_number(value)}
        if given:
            self._run.log(step, given)


def _is_number(value: Any) -> bool:
    return (isinstance(value, int | float) and not isinstance(value, bool)) or hasattr(value, "item")


def steps(
    accelerator: Any,
    loader: Any,
    *,
    run: Run,
    epochs: int = 1,
    resume_from: str | os.PathLike[str] | None = None,
) -> Iterator[tuple[int, Any]]:
    """Yield ``(step, batch)`` of all epochs in place of the loops over them, and obey rollbacks and stops in between.

    On a rollback all ranks load the rollback's checkpoint with ``accelerator.load_state`` before the same step and
    continue behind it. A folder of ``accelerator.save_state``, at the end of a step, counts as a checkpoint.

    Args:
        accelerator: has prepared model, optimizer, schedule and loader.
        loader: returned by ``accelerator.prepare``.
        epochs: passes over it; batches that are left out on command are not replaced.
        run: of :func:`stabilityclient.init`.
        resume_from: a folder that ``save_state`` wrote within such a loop: load it, and continue behind it.

    Raises:
        Exception: raised by ``load_state``; a rollback that was being carried out has then failed.
    """
    loop = _Loop(accelerator, loader, run, epochs)
    if resume_from is not None:
        loop.resume(resume_from)
    with standing_around(loop.around()):
        try:
            while (yield from loop.batches()):
                loop.go_back()
        finally:
            loop.leave()


class _Loop(Adapter):
    def __init__(self, accelerator: Any, loader: Any, run: Run, epochs: int) -> None:
        super().__init__(run, inside=True)  # Accelerate itself takes each neighbour of its checkpoints for one
        self._accelerator = accelerator
        self._loader = loader
        self._epochs = epochs
        #: State after the last whole step; batches of its pass that are gone, trained or left out.
        self._at = Saved()
        self._gone = 0
        #: Batches still to be left out.
        self._skip = 0
        #: Changes to the state that was loaded, due at the first batch behind it.
        self._changes: Order | None = None
        #: The step of the newest checkpoint, and its folder.
        self._saved_step: int | None = None
        self._saved_path = ""
        #: A batch is in the job's hands. A step has begun: more of its batches may follow.
        self._training = self._within = False

    def around(self) -> Iterator[Around]:
        """Yield the methods to stand around."""
        yield self._accelerator, "save_state", self._save_state
        yield self._accelerator, "backward", self._backward

    def _state(self) -> Saved | None:
        """Return the state that is saved now, None amid a step."""
        if not self._training:
            return self._at
        if not self._accelerator.sync_gradients:
            return None
        return self._at._replace(step=self._at.step + 1, gone=self._gone)

    def resume(self, path: Any) -> None:
        """Continue from a folder of ``save_state``."""
        self._load(path)
        order = self._unsaved.take_up(str(path), self._at.ordered)
        if order is not None:
            self._change(order)

    def _load(self, path: Any) -> None:
        self._accelerator.load_state(path)
        with open(os.path.join(path, _FILE)) as file:
            self._at = Saved(**json.load(file))

    def _change(self, order: Order) -> None:
        self._changes = order
        self._skip = order.skip_batches or 0

    def leave(self) -> None:
        """The loop has ended."""
        self._enter(None)
        self._run.boundary(self._at.step + 1, self._at.step + 1)

    # --- batches -------------------------------------------------------------------------------------------------

    def batches(self) -> Generator[tuple[int, Any], None, bool]:
        """Yield until the data, or training, ends; return whether a rollback is the reason."""
        while self._at.epoch < self._epochs:
            if not self._at.gone:
                self._at = self._at._replace(order=draws(self._loader))
            self._gone = self._at.gone
            source = same_order(self._loader, self._at.epoch, self._at.gone, self._at.order)
            self._enter("data")
            for batch in source:
                self._gone += 1
                if self._skip:
                    self._skip -= 1
                    continue
                if not self._begins():
                    source.close()
                    return self._rollback is not None
                self._enter("forward")
                self._training = True
                yield self._at.step + 1, batch
                self._training = False
                if self._accelerator.sync_gradients:
                    self._at = self._at._replace(step=self._at.step + 1, gone=self._gone)
                    self._within = False
                self._enter("data")
            self._at = self._at._replace(epoch=self._at.epoch + 1, gone=0)
        return False

    def _begins(self) -> bool:
        """Look for orders before a step; False where training does not continue with it."""
        if self._within:
            return True
        self._enter(None)
        if self._changes is not None:
            self._finish(self._changes)
        if self._can is None:
            self._offer()
        order = self._run.boundary(self._at.step + 1)
        if isinstance(order, Rollback):
            self._check(order)
        elif order is not None:
            return False
        self._within = self._rollback is None
        return self._within

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def _save_state(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self._enter(None)
        with self._run.phase("checkpoint"):
            path = original(*given, **named)
            self._report(path)
        return path

    def _backward(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self._enter("backward")
        done = original(*given, **named)
        self._enter(None)
        return done

    @guarded
    def _report(self, path: Any) -> None:
        state = self._state()
        if state is None:
            return
        self._saved_step = state.step
        self._saved_path = os.path.abspath(path)
        if not self._accelerator.is_main_process:
            return
        with open(os.path.join(path, _FILE), "w") as file:
            json.dump(state._asdict(), file)
        self._unsaved.saved(path)
        self._run.checkpoint(state.step, path)

    # --- commands ------------------------------------------------------------------------------------------------

    @guarded
    def _offer(self) -> None:
        self._can = ()
        accelerator = self._accelerator
        if accelerator.distributed_type.name not in _TRIED or not accelerator._optimizers:
            self._run._framework_saves(None, "checkpoints of FSDP, DeepSpeed, Megatron-LM and TPU were not tried")
            return
        if accelerator.use_stateful_dataloader:
            self._run._framework_saves(
                None, "its loaders keep their place themselves, and have drawn the next batch already"
            )
        else:
            self._run._framework_saves(self._save_on_command)
        groups = [group for optimizer in accelerator._optimizers for group in optimizer.param_groups]
        # A schedule that was not prepared is neither saved nor found: it would undo the scale at its next step.
        scales = bool(accelerator._schedulers) or not any("initial_lr" in group for group in groups)
        again = order_comes_again(self._loader) or self._at.order is not None
        able = {"lr_scale": scales, "skip_batches": again}
        self._promise(*(name for name, can in able.items() if can))

    def _save_on_command(self, step: int) -> None:
        """Save in addition to the job's own saves; nothing where it just saved."""
        accelerator = self._accelerator
        if self._saved_step == step:
            return
        if accelerator.project_configuration.automatic_checkpoint_naming:
            accelerator.save_state()
            return
        folder = os.path.dirname(self._saved_path) or os.path.join(accelerator.project_dir or ".", "checkpoints")
        accelerator.save_state(os.path.join(folder, f"ordered-{step}"))

    @guarded
    def _check(self, rollback: Rollback) -> None:
        if self._accepts(rollback):
            self._rollback = rollback

    def go_back(self) -> None:
        """Load the checkpoint of the rollback; the next batches are those behind it."""
        assert self._rollback is not None
        self._within = False
        self._load(self._rollback.checkpoint)
        self._change(Order.of(self._rollback))

    @guarded
    def _finish(self, order: Order) -> None:
        """The checkpoint is loaded and the first batch behind it is there: change the rates, report the changes."""
        self._changes = None
        rollback = self._rollback
        self._rollback = None
        schedules = [getattr(one, "scheduler", one) for one in self._accelerator._schedulers]
        applied = self._scaled(order.lr_scale, self._accelerator._optimizers, schedules)
        if order.skip_batches is not None:
            applied["skip_batches"] = order.skip_batches - self._skip
        before = self._at.ordered
        self._at = self._at._replace(ordered=order.command_id)
        if rollback is None:
            return  # of the process that died
        self._unsaved.note(rollback.checkpoint, order, before)
        self._report_back(rollback, self._at.step, applied)
