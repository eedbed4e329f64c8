"""Hugging Face: ``train`` in place of ``trainer.train``. For ``transformers.Trainer`` and its subclasses.

    from stabilityclient.integrations.transformers import train

    train(trainer, run=run)

Features and limits: docs/integrations/transformers.md. A step is an optimizer step, counted as
``trainer.state.global_step`` counts: the first one is 1, and ``checkpoint-N`` holds the state after step N.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from importlib import import_module

from stabilityclient.integrations.shared.adapter import Adapter, guarded, standing_around, within
from stabilityclient.integrations.shared.prepared_data import batches_from, length_of, order_comes_again, sampler_of
from stabilityclient.integrations.shared.unsaved import Order
from stabilityclient.rollback.decision import Rewind, Rollback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from stabilityclient.integrations.shared.adapter import Around
    from stabilityclient.run import Run

__all__ = ["leave", "newest", "train"]

#: Logged here at each step; Trainer logs them rarely, and rounded.
_OF_STEPS = frozenset({"loss", "grad_norm", "learning_rate"})


#: In the output folder: abandoned checkpoints, and their times. A folder that is written again counts again.
_FILE = "stabilityboard.json"
_STATE = "trainer_state.json"


def leave(output: str, to_step: int) -> None:
    """Note that the checkpoints of later steps belong to a branch that was left.

    Raises:
        OSError: the folder can't be written.
    """
    known = _checkpoints(output)
    left = _left(output) | {name: at for step, name, at in known if step > to_step}
    for step, name, _ in known:
        if step == to_step:
            left.pop(name, None)  # a rollback was undone: this one is of no branch that was left any more
    with open(os.path.join(output, _FILE), "w") as file:
        json.dump(left, file)


def newest(output: str) -> str | None:
    """Return the newest whole checkpoint that was not left, None where there is none."""
    left = _left(output)
    kept = max((one for one in _checkpoints(output) if left.get(one[1]) != one[2]), default=None)
    return os.path.join(output, kept[1]) if kept else None


def _checkpoints(output: str) -> list[tuple[int, str, int]]:
    """Return step, name and time of writing of each whole checkpoint."""
    found = []
    for name in os.listdir(output) if os.path.isdir(output) else ():
        kind, _, step = name.rpartition("-")
        state = os.path.join(output, name, _STATE)
        if kind == "checkpoint" and step.isdecimal() and os.path.exists(state):
            found.append((int(step), name, os.stat(state).st_mtime_ns))
    return found


def _left(output: str) -> dict[str, Any]:
    try:
        with open(os.path.join(output, _FILE)) as file:
            return dict(json.load(file))
    except (OSError, ValueError):
        return {}


#: Key among the states of callbacks in a ``trainer_state.json``: the number of batches left out before it,
#: and the command that changed it last.
_KEPT = "stabilityboard"
#: Kinds of training for which a second ``train`` was not tried.
_UNTRIED = (
    "is_deepspeed_enabled", "is_fsdp_enabled", "is_fsdp_xla_enabled", "is_tp_enabled",
    "is_distributed_loading_by_transformers",
)  # fmt: skip


def train(trainer: Any, resume_from_checkpoint: Any = None, *, run: Run, **more: Any) -> Any:
    """Train as ``trainer.train`` with these arguments does, report it to ``run``, and obey rollbacks and stops.

    On a rollback all ranks leave Trainer's loop before the same step, load its checkpoint and continue. Call it
    on every rank.

    Args:
        resume_from_checkpoint: True takes the newest checkpoint, never one that a rollback left.
        run: of :func:`stabilityclient.init`. The others are of ``Trainer.train``.

    Returns:
        The result of ``trainer.train``; after a rollback, of the training since.

    Raises:
        Exception: raised by ``trainer.train``; a rollback that was being carried out has then failed.
    """
    base: Any = import_module("transformers").TrainerCallback
    if resume_from_checkpoint is True:
        resume_from_checkpoint = newest(trainer.args.output_dir) or True
    begin = resume_from_checkpoint if isinstance(resume_from_checkpoint, str | os.PathLike) else None
    callback = type("StabilityCallback", (_Callback, base), {})(run, trainer, begin)
    with callback.watching():
        while True:
            try:
                return trainer.train(resume_from_checkpoint, **more)
            except Rewind as rewind:
                callback.rewind(rewind.rollback)
                resume_from_checkpoint = rewind.rollback.checkpoint


class _Callback(Adapter):
    """Reports steps, phases, logs and checkpoints of one ``train``, asks for commands before each step, and goes back.

    Args:
        begin: the checkpoint from which this process continues.
    """

    def __init__(self, run: Run, trainer: Any, begin: str | os.PathLike[str] | None) -> None:
        super().__init__(run)
        self._trainer = trainer
        self._losses: list[Any] = []
        self._grad_norm: Any = None
        self._rate: Any = None
        #: The state is not back yet: values logged now belong to no segment.
        self._waits = False
        #: The step of the newest checkpoint, also on ranks that write none.
        self._saved_at: int | None = None
        self._begin = begin
        #: Changes due to the loaded state once the first batch behind it is there.
        self._changes: Order | None = None
        #: Batches of this rank that were left out so far, and that have just been left out on command.
        self._skipped = self._skips = 0
        #: Batches of one pass, None if unknown; passes that Trainer has begun.
        self._length: int | None = None
        self._passes = 0
        #: Trainer's iterator over an epoch, and its replacement.
        self._theirs: Any = None
        self._ours: Any = None
        self._seed: Any = None
        self._tells_ids = False

    def rewind(self, rollback: Rollback) -> None:
        """The next ``train`` loads the checkpoint of this rollback."""
        self._enter(None)
        self._rollback, self._waits = rollback, True
        self._theirs = self._ours = self._saved_at = None
        self._changes = Order.of(rollback)
        if (handle := getattr(self._trainer, "neftune_hook_handle", None)) is not None:
            handle.remove()  # or the next train() adds its noise a second time

    # --- around methods of the trainer ---------------------------------------------------------------------------

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Act as the trainer's callback, and wrap methods without a callback, until the end."""
        trainer = self._trainer
        around: list[Around] = [
            (trainer, "get_batch_samples", self.fetch),
            (trainer, "training_step", self._training_step),
            (trainer, "evaluate", within(self._run, "eval")),
            (trainer, "_save_checkpoint", within(self._run, "checkpoint")),
            (trainer.accelerator, "backward", self._backward),
            (trainer.accelerator, "clip_grad_norm_", self._clip),
        ]
        trainer.add_callback(self)
        try:
            with standing_around(one for one in around if hasattr(one[0], one[1])):
                yield
        finally:
            self._enter(None)
            trainer.remove_callback(self)

    def _training_step(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self._enter("forward")
        loss = original(*given, **named)
        self._enter(None)
        self._losses.append(loss)
        return loss

    def _backward(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self._enter("backward")
        return original(*given, **named)

    def _clip(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self._grad_norm = original(*given, **named)
        return self._grad_norm

    # --- callback ------------------------------------------------------------------------------------------------

    @guarded
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._rate = self._trainer.optimizer.param_groups[0]["lr"]  # a schedule moves on before the step ends
        self._enter("optimizer")

    @guarded
    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._enter(None)

    @guarded
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        values: dict[str, Any] = {}
        if self._losses:
            # Trainer divides the loss of a micro-batch by the count of the whole step.
            values["loss"] = self._losses[0] if len(self._losses) == 1 else sum(self._losses)
        if self._grad_norm is not None:
            values["grad_norm"] = self._grad_norm
        if self._rate is not None:
            values["learning_rate"] = self._rate
        self._losses, self._grad_norm = [], None
        if values:
            self._run.log(state.global_step, values)

    @guarded
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        # The same on all ranks.
        if logs and state.is_world_process_zero and not self._waits:
            values = {
                name: value
                for name, value in logs.items()
                if name not in _OF_STEPS and isinstance(value, int | float) and not isinstance(value, bool)
            }
            if values:
                self._run.log(state.global_step, values)

    @guarded
    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._saved_at = state.global_step
        path = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        # Weights alone are no state to go back to. Files of the other ranks are small and written before.
        if args.should_save and not args.save_only_model and os.path.isdir(path):
            self._unsaved.saved(path)
            self._run.checkpoint(state.global_step, path)

    @guarded
    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._enter(None)
        self._run.boundary(state.global_step + 1, state.global_step + 1)

    @guarded
    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._losses, self._grad_norm, self._rate = [], None, None
        kept = (state.stateful_callbacks or {}).get(_KEPT) or {}
        self._skipped, self._skips, self._passes = int(kept.get("skipped_batches", 0)), 0, 0
        self._ordered = str(kept.get("ordered", ""))
        if self._rollback is None and self._begin is not None:
            self._changes = self._unsaved.take_up(str(self._begin), self._ordered)
        loader = self._trainer.callback_handler.train_dataloader
        self._length = length_of(loader)
        sampler = sampler_of(loader)
        if hasattr(sampler, "initial_seed"):
            if self._rollback is None:
                self._seed = sampler.initial_seed
            else:
                sampler.initial_seed = self._seed  # of any later seed of torch
        # Values that a collator draws anew in each pass identify no samples.
        whole = getattr(self._trainer.accelerator, "parallelism_config", None) is None
        self._tells_ids = whole and not getattr(self._trainer.data_collator, "mlm", False)

    @guarded
    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._passes += 1
        if self._length is None and self._passes == 2 and self._can:
            # Trainer takes up a stream of unknown length within its first pass only.
            self._promise("lr_scale")

    # --- steps ---------------------------------------------------------------------------------------------------

    def fetch(self, original: Callable[..., Any], iterator: Any, *more: Any, **named: Any) -> Any:
        """Return the batches of the next step, none where training ends before it."""
        # Not only data: Trainer also sums the tokens of all ranks, and waits for the sum.
        self._enter("forward")
        if iterator is not self._theirs:
            self._theirs = self._ours = iterator
            self._open()
        batches, items = original(self._each(), *more, **named)
        self._enter(None)
        if batches:
            step = self._trainer.state.global_step
            if self._changes is not None:
                self._finish(self._changes, step)
            if self._can is None:
                self._offer()
            order = self._run.boundary(step + 1, self._trainer.state.max_steps + 1)
            if isinstance(order, Rollback):
                self._rewind(order)
            elif order is not None:
                self._trainer.control.should_training_stop = True
                return [], None
            self._tell(step, batches)
        return batches, items

    def _each(self) -> Iterator[Any]:
        """Yield batches; the time that each takes is the data's."""
        while True:
            with self._run.phase("data"):
                batch = next(self._ours, self)
            if batch is self:
                return
            yield batch

    @guarded
    def _open(self) -> None:
        """An epoch of Trainer's begins, or continues: skip the ordered batches before its next one."""
        trainer = self._trainer
        skip = 0 if self._changes is None else self._changes.skip_batches or 0
        if (not self._skipped and not skip) or trainer.args.ignore_data_skip:
            return
        if self._length is None:
            for _ in range(self._skipped if self._passes == 1 else 0):
                next(self._theirs)
            for _ in range(skip):
                next(self._theirs)
                self._skips += 1
            return
        epoch, done = self._trained()
        place = epoch * self._length + done + self._skipped + skip
        loader = trainer.callback_handler.train_dataloader
        self._ours = batches_from(loader, place, self._length, self._length - done)
        self._skips = skip

    def _trained(self) -> tuple[int, int]:
        """Return the epochs, and batches of the next one, that are trained, as Trainer computes them on a resume."""
        assert self._length is not None
        parts = self._trainer.args.gradient_accumulation_steps
        epoch, steps = divmod(self._trainer.state.global_step, -(-self._length // parts))
        return epoch, steps * parts

    @guarded
    def _tell(self, step: int, batches: list[Any]) -> None:
        if not self._tells_ids:
            return
        epoch = self._passes - 1
        if self._length is not None:
            begun, done = self._trained()
            epoch = (begun * self._length + done + self._skipped) // self._length
        for batch in batches:
            tokens = batch["input_ids"] if hasattr(batch, "keys") and "input_ids" in batch else None
            if tokens is not None and not tokens.is_floating_point():
                self._run.data(step + 1, ids=tokens, epoch=epoch)

    # --- orders --------------------------------------------------------------------------------------------------

    @guarded
    def _offer(self) -> None:
        """Report the capabilities of this job, once Trainer's own loop is seen to run."""
        trainer = self._trainer
        self._can = ()
        if any(getattr(trainer, kind, False) for kind in _UNTRIED):
            self._run._framework_saves(None, "checkpoints of DeepSpeed, FSDP and tensor parallelism were not tried")
            return
        args = trainer.args
        why = (
            "save_only_model saves the weights alone, which are no state to go back to" if args.save_only_model else ""
        )
        self._run._framework_saves(None if why else self._save_on_command, why)
        keeps_place = not args.ignore_data_skip and not args.auto_find_batch_size
        again = keeps_place and order_comes_again(trainer.callback_handler.train_dataloader)
        self._promise(*("lr_scale", "skip_batches") if again else ("lr_scale",))

    def _save_on_command(self, step: int) -> None:
        """Save as Trainer does where ``control.should_save`` is set at the end of a step: this one has just ended."""
        trainer = self._trainer
        if self._saved_at == step:
            return
        trainer._save_checkpoint(trainer.model, trial=None)
        trainer.control = trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)

    @guarded
    def _finish(self, order: Order, step: int) -> None:
        """The checkpoint is loaded and the first batch behind it is there: change the rates, report the changes."""
        self._changes = None
        rollback, self._rollback, self._waits = self._rollback, None, False
        applied = self._scaled(order.lr_scale, [self._trainer.optimizer], [self._trainer.lr_scheduler])
        if order.skip_batches is not None:
            applied["skip_batches"] = self._skips
        self._skipped += self._skips
        kept = {"skipped_batches": self._skipped, "ordered": order.command_id}
        self._trainer.state.stateful_callbacks[_KEPT] = kept
        if rollback is None:
            return  # of the process that died
        self._unsaved.note(rollback.checkpoint, order, self._ordered)
        if self._trainer.args.should_save:
            leave(self._trainer.args.output_dir, step)
        self._report_back(rollback, step, applied)
