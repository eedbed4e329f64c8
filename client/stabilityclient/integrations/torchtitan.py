"""torchtitan: ``train`` in place of ``trainer.train``, for a script like torchtitan's own ``train.py``.

    from stabilityclient.integrations.torchtitan import train

    train(trainer, run=run)

Features and limits: docs/integrations/torchtitan.md. A step is an optimizer step, counted as
``trainer.step`` counts: the first one is 1, and the folder ``step-100`` holds the state after step 100.
"""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import contextmanager
from importlib import import_module

from stabilityclient.integrations.data import ids_of
from stabilityclient.integrations.shared.adapter import Adapter, guarded, standing_around, within
from stabilityclient.integrations.shared.ranks import agreed, rank_and_world
from stabilityclient.integrations.shared.skips import Skips
from stabilityclient.integrations.shared.unsaved import Order
from stabilityclient.rollback.decision import Rewind, Rollback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from stabilityclient.integrations.shared.adapter import Around
    from stabilityclient.run import Run

__all__ = ["Feed", "as_at_the_start", "discard_later", "newest", "read", "train", "write"]

#: Of labels: a token that has no loss (torchtitan/components/loss.py, IGNORE_INDEX).
_IGNORED = -100


_FILE = "stabilityboard.json"
_METADATA = ".metadata"
#: Its name in a folder of abandoned steps: torchtitan takes such a folder for no checkpoint.
_LEFT = ".metadata.left"


def write(path: str, kept: dict[str, Any]) -> None:
    """Write into a checkpoint's folder.

    Raises:
        OSError: it can't be written.
    """
    os.makedirs(path, exist_ok=True)
    with open(os.path.join(path, _FILE), "w") as file:
        json.dump(kept, file)


def read(path: str) -> dict[str, Any]:
    """Return the record; for a checkpoint of torchtitan alone, one without changes."""
    try:
        with open(os.path.join(path, _FILE)) as file:
            return dict(json.load(file))
    except FileNotFoundError:
        return {"lr_scale": 1.0, "skips": None, "ordered": ""}


def discard_later(folder: str, step: int) -> None:
    """Hide checkpoints of later steps: torchtitan would continue from the highest number when it starts again."""
    for later, path in _checkpoints(folder):
        if later > step:
            os.replace(os.path.join(path, _METADATA), os.path.join(path, _LEFT))


def newest(folder: str) -> int:
    """Return the step from which torchtitan continues by itself, 0 where there is none."""
    return max((step for step, _ in _checkpoints(folder)), default=0)


def _checkpoints(folder: str) -> Iterator[tuple[int, str]]:
    """Yield step and folder of each checkpoint that torchtitan takes for one."""
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        match = re.search(r"step-(\d+)", name)
        path = os.path.join(folder, name)
        if match and os.path.isfile(os.path.join(path, _METADATA)):
            yield int(match[1]), path


class Feed:
    """Iterates over the batches of the steps; a place is the data of one step, with all its micro-batches.

    Args:
        skips: their state in a checkpoint, None where nothing was left out.

    Attributes:
        skips: batches left out, past and future.
    """

    def __init__(self, run: Run, trainer: Any, skips: dict[str, Any] | None) -> None:
        self._run, self._trainer = run, trainer
        self.skips = Skips(skips or None)
        self._per_step = trainer.gradient_accumulation_steps * trainer.num_pipeline_parallel_microbatches
        self._source: Iterator[Any] | None = None
        #: Batches drawn for this step; the first one of the next, or its error.
        self._drawn = 0
        self._waiting: list[Any] = []
        self._error: Exception | None = None

    def over(self, source: Iterator[Any]) -> Feed:
        """Take batches from torchtitan's iterator."""
        self._source = source
        return self

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self._run.phase("data"):
            if self._error is not None:
                raise self._error
            if self._waiting:
                return self._waiting.pop()
            return self._next(self._trainer.step)

    def fetch(self) -> None:
        """Skip the batches due, and wait for the first batch of the next step."""
        with self._run.phase("data"):
            try:
                self._waiting.append(self._next(self._trainer.step + 1))
            except Exception as error:  # no more data: raised at the next request
                self._error = error

    def _next(self, step: int) -> Any:
        assert self._source is not None
        if self._drawn == 0:
            for _ in range(self._per_step * self.skips.before(step)):
                next(self._source)
        batch = next(self._source)
        self._drawn = (self._drawn + 1) % self._per_step
        ids = ids_of(batch[0].get("input")) if isinstance(batch[0], dict) else None
        if ids is not None:
            self._run.data(step, ids=ids)
        return batch


def as_at_the_start(dataset: Any) -> None:
    """Let a data set be in its first epoch's order: torchtitan's do not go back to it when they load a state."""
    if hasattr(dataset, "_original_data"):
        dataset._data = dataset._original_data
    for inner in getattr(dataset, "_datasets", None) or ():
        as_at_the_start(inner)


#: Parts of a checkpoint without which there is no going back.
_NEEDED = ("optimizer", "lr_scheduler", "train_state")


def train(trainer: Any, *, run: Run) -> None:
    """Train as ``trainer.train()`` does, report it to ``run``, and obey rollbacks and stops.

    On a rollback all ranks leave torchtitan's loop before the same step, load its checkpoint and continue. Call
    it on every rank.

    Args:
        trainer: built by the configuration.
        run: of :func:`stabilityclient.init`.

    Raises:
        Exception: raised by ``trainer.train``; a rollback that was being carried out has then failed.
    """
    job = _Job(run, trainer)
    with job.watching():
        while True:
            try:
                trainer.train()
                return
            except Rewind as rewind:
                job.rewind(rewind.rollback)


class _Job(Adapter):
    """Reports one ``train``, asks for commands before each step, and goes back."""

    def __init__(self, run: Run, trainer: Any) -> None:
        super().__init__(run)
        self._trainer = trainer
        self._within = False
        #: The step whose state was saved, or loaded, last.
        self.saved: int | None = None
        self._values: dict[str, Any] = {}
        #: Sum of this rank's losses so far in this step, and of how many tokens; None without a count.
        self._loss: Any = None
        self._tokens: Any = None
        # Elsewhere a rank has a part of the sequence, or of the layers.
        dims = trainer.parallel_dims
        self._has_losses = not (dims.pp_enabled or dims.cp_enabled or dims.tp_enabled)
        self._feed: Feed | None = None
        #: Places that the rollback left out.
        self._places: tuple[int, int] | None = None
        #: Product of the factors that were ordered on the way to this state.
        self._lr_scale = 1.0
        self._schedules = [one for one in trainer.lr_schedulers if hasattr(one, "base_lrs")]
        #: torchtitan's checkpoints have no rates of the schedule: they are those of the configuration.
        self._configured = [list(schedule.base_lrs) for schedule in self._schedules]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Stand around methods of the trainer and of its parts inside the context."""
        trainer = self._trainer
        around: list[Around] = [
            (trainer, "train_step", self._train_step),
            (trainer, "forward_backward_step", self._forward_backward),
            (trainer.optimizers, "step", self._optimize),
            (import_module("torchtitan.distributed.utils"), "clip_grad_norm_", self._clip),
            (trainer.metrics_processor.logger, "log", self._logged),
            (trainer.checkpointer, "save", self._save),
            (trainer, "should_continue_training", self._continues),
            (trainer, "batch_generator", self._batches),
            (trainer.checkpointer, "load", self._load),
        ]
        if hasattr(trainer, "validator"):
            around.append((trainer.validator, "validate", within(self._run, "eval")))
        try:
            with standing_around(around):
                yield
        finally:
            self._enter(None)
        self._run.boundary(trainer.step + 1, trainer.step + 1)

    # --- the state -----------------------------------------------------------------------------------------------

    def rewind(self, rollback: Rollback) -> None:
        """The next ``train`` loads the checkpoint of this rollback."""
        self._enter(None)
        self._rollback = rollback
        trainer = self._trainer
        trainer.checkpointer.maybe_wait_for_saving()
        as_at_the_start(getattr(trainer.dataloader, "dataset", None))
        processor = trainer.metrics_processor
        processor.ntokens_since_last_log = 0
        processor.time_last_log = time.perf_counter()
        processor.data_loading_times.clear()

    def _load(self, original: Callable[..., Any], step: int = -1) -> Any:
        """Load a checkpoint as ``checkpointer.load`` does, and its record of this package."""
        trainer = self._trainer
        rollback = self._rollback
        before = self._feed
        plan = None if rollback is not None or not trainer.checkpointer.enable else agreed(self._followed_plan)
        if rollback is not None:
            step = rollback.to_step
        elif plan is not None:
            step = plan["checkpoint"]["step"]
        loaded = original(step)
        if not (loaded and trainer.step):
            self._feed = Feed(self._run, trainer, None)
            return loaded
        self.saved = trainer.step
        path = self.path_of(trainer.step)
        kept = agreed(lambda: read(path))
        self._lr_scale = kept["lr_scale"]
        self._ordered = kept.get("ordered", "")
        self._feed = Feed(self._run, trainer, kept["skips"])
        order = None if rollback is not None else self._unsaved.take_up(path, self._ordered)
        if rollback is not None:
            self._places = self._change(rollback.lr_scale, rollback.skip_range, rollback.skip_batches, before)
        elif order is not None:
            self._scale(order.lr_scale)
            if order.skip_places is not None:
                self._feed.skips.leave_out(*order.skip_places)
        elif plan is not None and plan["id"] != self._unsaved.ordered:
            self._change(plan.get("lr_scale"), plan.get("skip_range"), plan.get("skip_batches"), None)
            self._unsaved.follow_plan(plan)
        if rollback is not None or plan is not None:
            agreed(lambda: discard_later(trainer.checkpointer.folder, trainer.step))
        if rollback is not None or self._lr_scale != 1.0:
            self._set_rates()
        return loaded

    def _followed_plan(self) -> dict[str, Any] | None:
        """Return the plan by which this process continues, with its id, None without one; asked on the first rank.

        Raises:
            ValueError: torchtitan can't load the checkpoint of the plan.
        """
        plan = self._unsaved.plan
        named = None if plan is None else plan.get("checkpoint")
        if plan is None or not named:
            return None
        latest = newest(self._trainer.checkpointer.folder)
        if latest and self._unsaved.follows_plan(self.path_of(latest)):
            return None
        step = named["step"]
        if problem := self._problem(named["path"] or self.path_of(step), step):
            raise ValueError(f"the plan of the restart can't be followed: {problem}")
        return plan | {"id": self._unsaved.plan_id}

    def _change(
        self, scale: float | None, steps: Any, batches: int | None, before: Feed | None
    ) -> tuple[int, int] | None:
        """Make the ordered changes to the loaded state; return the places that are left out, None without any."""
        assert self._feed is not None
        self._scale(scale)
        left = self._feed if before is None else before
        return self._feed.skips.carry_out(self._trainer.step, steps, batches, left.skips)

    def _scale(self, factor: float | None) -> None:
        self._lr_scale *= 1.0 if factor is None else factor

    def _set_rates(self) -> None:
        """Set the rates that the schedules give now, times the scale."""
        for schedule, configured in zip(self._schedules, self._configured, strict=True):
            schedule.base_lrs = [rate * self._lr_scale for rate in configured]
            schedule._last_lr = schedule.get_lr()
            for group, base, rate in zip(
                schedule.optimizer.param_groups, schedule.base_lrs, schedule._last_lr, strict=True
            ):
                group["initial_lr"], group["lr"] = base, rate

    def _batches(self, original: Callable[..., Any], data: Any) -> Any:
        batches = original(data)
        # The validator has a loader of its own.
        return batches if self._feed is None or data is not self._trainer.dataloader else self._feed.over(batches)

    @guarded
    def _save_own(self, step: int) -> None:
        """Write the state that torchtitan does not know into its checkpoint."""
        skips = {} if self._feed is None else self._feed.skips.state()
        kept = {"lr_scale": self._lr_scale, "skips": skips, "ordered": self._unsaved.ordered}
        write(self.path_of(step), kept)

    # --- orders --------------------------------------------------------------------------------------------------

    def _continues(self, original: Callable[..., Any]) -> bool:
        """Return whether there is a next step, between two of them."""
        trainer = self._trainer
        if not original():
            return False
        step = trainer.step + 1
        if self._rollback is not None:
            self._finish()
        elif self._can is None:
            self._offer()
        order = self._run.boundary(step, trainer.config.training.steps + 1)
        if not isinstance(order, Rollback):
            return order is None
        self._rewind(order, lambda: agreed(lambda: self._problem(str(order.checkpoint), order.to_step)))
        return True

    @guarded
    def _offer(self) -> None:
        self._can = ()
        checkpointer = self._trainer.checkpointer
        off = not checkpointer.enable or checkpointer.load_only
        why = "its configuration saves no checkpoints (checkpoint.enable, load_only)" if off else ""
        self._run._framework_saves(None if why else self._save_on_command, why)
        if off or len(self._schedules) != len(self._trainer.lr_schedulers):
            return
        excluded = checkpointer.exclude_from_loading
        if any(name in excluded for name in _NEEDED):
            return
        self._promise("lr_scale", *(() if "dataloader" in excluded else ("skip_batches", "skip_range")))

    def _save_on_command(self, step: int) -> None:
        """Save as torchtitan does at its interval, and wait until it is written; nothing where it just did."""
        checkpointer = self._trainer.checkpointer
        if self.saved != step:
            interval = checkpointer.interval
            checkpointer.interval = 1
            try:
                checkpointer.save(step)
            finally:
                checkpointer.interval = interval
        checkpointer.maybe_wait_for_saving()

    def _problem(self, path: str, step: int) -> str:
        """Return why torchtitan can't load a checkpoint, "" if it can."""
        own = self.path_of(step)
        if os.path.realpath(path) != os.path.realpath(own):
            return f"torchtitan loads from its own folder only, where step {step} is {own} and not {path}"
        if not os.path.isfile(os.path.join(own, ".metadata")):
            return f"{own} is not whole: it has no .metadata"
        return ""

    @guarded
    def _finish(self) -> None:
        """The checkpoint is loaded: wait for the first batch behind it, and report the changes."""
        rollback = self._rollback
        self._rollback = None
        assert rollback is not None
        assert self._feed is not None
        self._feed.fetch()
        applied: dict[str, Any] = {}
        if rollback.lr_scale is not None:
            rates = [float(group["lr"]) for one in self._trainer.optimizers for group in one.param_groups]
            applied = {"lr_scale": rollback.lr_scale, "rates": rates}
        skips = (("skip_batches", rollback.skip_batches), ("skip_range", rollback.skip_range))
        applied |= {name: value for name, value in skips if value is not None}
        self._unsaved.note(rollback.checkpoint, Order.of(rollback, self._places), self._ordered)
        self._run.restored(rollback, applied=applied)

    def path_of(self, step: int) -> str:
        """Return the folder of a step's checkpoint."""
        return os.path.abspath(os.path.join(self._trainer.checkpointer.folder, f"step-{step}"))

    # --- steps ---------------------------------------------------------------------------------------------------

    def _train_step(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self._within = True
        self._values = {"lr": self._rate()}  # a schedule moves on before the step ends
        self._loss = self._tokens = None
        try:
            return original(*given, **named)
        finally:
            self._enter(None)
            self._within = False
            self._flush()

    def _rate(self) -> float:
        return float(next(iter(self._trainer.optimizers)).param_groups[0]["lr"])

    @guarded
    def _flush(self) -> None:
        values = self._values
        self._values = {}
        if self._loss is None:
            return  # out of data before the step began
        if self._tokens is not None:
            values["loss"] = self._loss / self._tokens
        self._run.log(self._trainer.step, values)

    def _forward_backward(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self._enter("forward")  # and backward: torchtitan does both in one call
        loss = original(*given, **named)
        self._enter(None)
        self._add(loss, named)
        return loss

    @guarded
    def _add(self, loss: Any, named: dict[str, Any]) -> None:
        if not self._has_losses or hasattr(loss, "to_local"):
            self._loss = 0
            return
        # Its loss is a sum divided by the tokens of all ranks. A copy: CUDA graphs write into the same place again.
        total = loss.detach() * named["global_valid_tokens"]
        tokens = (named["labels"] != _IGNORED).sum()
        self._loss = total if self._tokens is None else self._loss + total
        self._tokens = tokens if self._tokens is None else self._tokens + tokens

    def _clip(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self._enter("optimizer")
        norm = original(*given, **named)
        if self._within and not hasattr(norm, "to_local"):  # a DTensor is read by all ranks together
            self._values["grad_norm"] = norm
        return norm

    def _optimize(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        self._enter("optimizer")
        done = original(*given, **named)
        self._enter(None)
        return done

    def _logged(self, original: Callable[..., Any], metrics: dict[str, Any], step: int) -> Any:
        self._take(metrics, step)
        return original(metrics, step)

    @guarded
    def _take(self, metrics: dict[str, Any], step: int) -> None:
        if rank_and_world()[0] != 0:
            return  # the same on all ranks, but for memory and speed
        if self._within:
            self._values.update(metrics)
        else:
            self._run.log(step, dict(metrics))

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def _save(self, original: Callable[..., Any], step: int, last_step: bool = False) -> Any:
        with self._run.phase("checkpoint"):
            saved = original(step, last_step=last_step)
            checkpointer = self._trainer.checkpointer
            # Weights alone are nothing to go back to.
            if saved and not (last_step and checkpointer.last_save_model_only):
                self.saved = step
                if rank_and_world()[0] == 0:
                    self._save_own(step)
                    self._report(step, checkpointer.save_future)
        return saved

    @guarded
    def _report(self, step: int, future: Any) -> None:
        ordered = self._unsaved.ordered

        def written(done: Any = None) -> None:
            if done is None or done.exception() is None:
                if ordered == self._unsaved.ordered:  # one that another thread writes may be of before a rollback
                    self._unsaved.saved(self.path_of(step))
                self._run.checkpoint(step, self.path_of(step))

        if future is None:
            written()
        else:
            future.add_done_callback(written)
