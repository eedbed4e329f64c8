"""MosaicML Composer: a logger that reports, and ``fit`` in place of ``trainer.fit``, which obeys too.

    from stabilityclient.integrations.composer import fit, logger

    trainer = Trainer(..., loggers=logger(run))
    fit(trainer)

Features and limits: docs/integrations/composer.md. A step is a batch of Composer's, counted as
``timestamp.batch`` counts when it has ended: the first one is 1, and ``ep0-ba100-rank0.pt`` holds the state after step
100.
"""

from __future__ import annotations

import os
import re
import zipfile
from contextlib import contextmanager
from functools import partial
from importlib import import_module

from stabilityclient.integrations.data import Batches, ids_of
from stabilityclient.integrations.shared.adapter import Adapter, guarded, standing_around
from stabilityclient.integrations.shared.ranks import agreed, rank_and_world
from stabilityclient.integrations.shared.skips import Skips
from stabilityclient.integrations.shared.unsaved import Order
from stabilityclient.rollback.decision import Rewind, Rollback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from stabilityclient.integrations.shared.adapter import Around
    from stabilityclient.rollback.decision import Stop
    from stabilityclient.run import Run

__all__ = ["Place", "fit", "keeps_its_own_place", "link_of", "logger"]

#: Names of Composer's and of its OptimizerMonitor, and their names here.
_OURS = {"loss/train/total": "loss", "l2_norm/grad/global": "grad_norm"}
#: Metrics of ranks other than the first: Composer's are the same on all.
_OF_RANKS = ("loss", "lr")


def _is_whole(saver: Any) -> bool:
    # Parts of a state, and files uploaded and deleted here, can't be rolled back to.
    return not (saver.weights_only or saver.ignore_keys or saver.remote_uploader is not None)


def link_of(saver: Any, state: Any) -> str:
    """Return the link to the newest checkpoint, by which ``autoresume`` continues, "" where there is none."""
    link = "" if saver.latest_filename is None else str(saver.latest_filename.format(state))
    return link if os.path.islink(link) else ""


def _put_aside(saver: Any, state: Any, left: list[str], path: str) -> None:
    """Rename files of steps that were left, and let the link by which ``autoresume`` continues lead to ``path``.

    Composer does not train in a folder that has later ones. A process that has just started knows of none.
    """
    for name in {*left, *_later(saver, state)}:
        if os.path.isfile(name):
            folder, file = os.path.split(name)
            os.replace(name, os.path.join(folder, f"left-{file}"))
    if link := link_of(saver, state):
        os.remove(link)
        os.symlink(os.path.relpath(path, os.path.dirname(link)), link)


def _later(saver: Any, state: Any) -> Iterator[str]:
    """Yield files of later steps that lie in a saver's folder, where their names have the step."""
    folder, name = os.path.dirname(saver.filename.format(state)), re.escape(saver.filename.filename)
    step = r"(\d+)"
    pattern = re.compile(re.sub(r"\\\{\w+\\\}", ".+", name.replace(r"\{batch\}", step, 1)))
    for file in os.listdir(folder) if step in pattern.pattern and os.path.isdir(folder) else ():
        match = pattern.fullmatch(file)
        if match and int(match[1]) > int(state.timestamp.batch):
            yield os.path.join(folder, file)


def _is_first() -> bool:
    return rank_and_world()[0] == 0


def _is_number(value: Any) -> bool:
    return (isinstance(value, int | float) and not isinstance(value, bool)) or hasattr(value, "item")


class Place:
    """Hands out the batches of a trainer's epochs.

    Args:
        trainer: in ``fit_start``.

    Attributes:
        skips: batches left out, past and future.
    """

    def __init__(self, run: Run, trainer: Any) -> None:
        self._run, self._trainer = run, trainer
        self._loader = trainer.state.dataloader
        self._batches = Batches(self._loader)
        self.skips = Skips()
        #: Steps whose batch was handed out.
        self._step = int(trainer.state.timestamp.batch)

    def is_at(self, step: int, loader: Any) -> bool:
        """Return whether this is the place of a trainer."""
        return self._step == step and self._loader is loader

    def epoch(self, original: Callable[..., Any], mode: Any) -> Iterator[Any]:
        """Yield the rest of an epoch, with the events of Composer's own iterator around each batch."""
        state = self._trainer.state
        batches = original(mode)
        given, state._dataloader = state._dataloader, self._each()
        try:
            first = next(batches, self)
        finally:
            state._dataloader = given
        if first is not self:
            yield first
            yield from batches

    def _each(self) -> Iterator[Any]:
        trainer = self._trainer
        state = trainer.state
        if trainer._rng_state is not None:
            import_module("composer.utils.reproducibility").load_rng_state(trainer._rng_state)
            trainer._rng_state = None
        for _ in range(int(state.dataloader_len) - int(state.timestamp.batch_in_epoch)):
            step = int(state.timestamp.batch) + 1
            with self._run.phase("data"):
                self._batches.skip(self.skips.before(step))
                batch = next(self._batches)
            ids = ids_of(batch)
            if ids is not None:
                self._run.data(step, ids=ids, epoch=self._batches.epoch, position=self._batches.position)
            self._step = step
            yield batch

    def state(self) -> dict[str, Any]:
        """Return the content of a checkpoint, of all ranks; all call it."""
        own = {"skips": self.skips.state(), "data": self._batches.state_dict()}
        return {"ranks": import_module("composer.utils.dist").all_gather_object(own)}

    def load(self, state: dict[str, Any]) -> None:
        """Go to the place that a checkpoint has."""
        rank, world = rank_and_world()
        then = len(state["ranks"])
        own = state["ranks"][rank if then == world else 0]
        self.skips = Skips(own["skips"])
        self._batches.load_state_dict(own["data"], share=then / world)


def keeps_its_own_place(state: Any) -> bool:
    """Return whether Composer is to find the place: where its epochs are not the loader's, or the data has a state."""
    loader = state.dataloader
    if hasattr(loader, "__next__") or state.dataloader_len is None or not hasattr(loader, "__len__"):
        return True
    if len(loader) != int(state.dataloader_len):
        return True
    return hasattr(getattr(loader, "dataset", None), "state_dict") and not hasattr(loader, "state_dict")


def logger(run: Run) -> Any:
    """Return a logger for ``Trainer(loggers=...)``: values of the trainer and its callbacks become metrics.

    Phases are reported too; checkpoints are, and orders are obeyed, where the trainer trains by :func:`fit`.
    """
    base: Any = import_module("composer.loggers").LoggerDestination
    return type("StabilityLogger", (_Logger, base), {})(run)


def fit(trainer: Any, **arguments: Any) -> None:
    """Train as ``trainer.fit`` with these arguments does, and obey rollbacks and stops.

    On a rollback all ranks leave Composer's loop before the same step, load its checkpoint and continue. Call
    it on every rank.

    Args:
        trainer: with a :func:`logger` among its ``loggers``.

    Raises:
        ValueError: it has none; the plan of a restart names a checkpoint that can't be loaded.
        Exception: raised by ``trainer.fit`` or the load of a checkpoint; a rollback that was being carried out has
            then failed.
    """
    board = next((one for one in trainer.logger.destinations if isinstance(one, _Logger)), None)
    if board is None:
        raise ValueError("the trainer has no logger of ours, expected Trainer(..., loggers=logger(run))")
    with board.obeying(trainer):
        board.begin_where_due()
        while True:
            try:
                trainer.fit(**arguments)
                return
            except Rewind as rewind:
                board.load(rewind.rollback)
                arguments = {}
            except _Over:
                _end(trainer)
                return


class _Over(BaseException):
    """Leaves Composer's loop before a step that is not to begin."""


def _end(trainer: Any) -> None:
    """End a fit as Composer does."""
    event = import_module("composer.core").Event.FIT_END
    trainer.state.stop_training()
    trainer.engine.run_event(event)
    trainer._run_evaluators(event)


class _Logger(Adapter):
    """Reports one trainer, asks for commands before each step, and goes back.

    Composer runs loggers behind all callbacks, so the values that those log in an event are there.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        #: The step that is under way, or the last one.
        self._step = 0
        self._within = False
        self._values: dict[str, Any] = {}
        #: The state is not back yet: values logged now belong to no segment.
        self._waits = False
        self._savers: list[Any] = []
        #: State of this adapter that goes into the next checkpoint, and that a checkpoint had, until it is used.
        self._state: dict[str, Any] = {}
        self._loaded: dict[str, Any] = {}
        #: Whether commands were asked for before the step, and the answer.
        self._asked = False
        self._command: Rollback | Stop | None = None
        self._trainer: Any = None
        #: None where Composer finds the place in the data by itself.
        self._place: Place | None = None
        #: The checkpoint from which this process continues, and the plan that names it; whether it has begun.
        self._begin = ""
        self._plan: dict[str, Any] | None = None
        self._begun = False
        #: Factor due on the rates; places left out.
        self._factor: float | None = None
        self._places: tuple[int, int] | None = None

    # --- metrics and steps ---------------------------------------------------------------------------------------

    @guarded
    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Take logged values; Composer counts some of a step's values under the step before."""
        if self._within:
            self._values.update(metrics)
        elif self._step and not self._waits and _is_first():
            self._log(metrics)

    def _log(self, metrics: dict[str, Any]) -> None:
        numbers = {name: value for name, value in metrics.items() if _is_number(value)}
        if numbers:
            self._run.log(self._step, numbers)

    @guarded
    def _begin_step(self, state: Any) -> None:
        self._waits = False
        self._within = True
        self._values = {"lr": state.optimizers[0].param_groups[0]["lr"]}  # a schedule moves on before the step ends

    @guarded
    def batch_end(self, state: Any, logger: Any) -> None:
        self._enter(None)
        self._within = False
        values = self._values
        self._values = {}
        for theirs, ours in _OURS.items():
            if theirs in values:
                values.setdefault(ours, values[theirs])
        self._log(values if _is_first() else {name: values[name] for name in _OF_RANKS if name in values})

    @guarded
    def fit_end(self, state: Any, logger: Any) -> None:
        self._enter(None)
        self._step = int(state.timestamp.batch)
        self._run.boundary(self._step + 1, self._step + 1)

    # --- phases --------------------------------------------------------------------------------------------------

    @guarded
    def after_dataloader(self, state: Any, logger: Any) -> None:
        self._enter(None)

    @guarded
    def before_forward(self, state: Any, logger: Any) -> None:
        self._enter("forward")

    @guarded
    def before_backward(self, state: Any, logger: Any) -> None:
        self._enter("backward")

    @guarded
    def after_train_batch(self, state: Any, logger: Any) -> None:
        self._enter("optimizer")

    @guarded
    def eval_before_all(self, state: Any, logger: Any) -> None:
        self._enter("eval")

    @guarded
    def eval_after_all(self, state: Any, logger: Any) -> None:
        self._enter(None)

    # --- checkpoints ---------------------------------------------------------------------------------------------

    @contextmanager
    def obeying(self, trainer: Any) -> Iterator[None]:
        """Obey commands in this trainer, and stand around its savers, inside the context."""
        self._trainer = trainer
        self._savers = [one for one in trainer.state.callbacks if hasattr(one, "saved_checkpoints")]
        around: list[Around] = [(saver, "_save_checkpoint", self._save) for saver in self._savers]
        spins = trainer.spin_dataloaders
        try:
            with standing_around([*around, (trainer, "_iter_dataloader", self._iterate)]):
                yield
        finally:
            self.leave()
            trainer.spin_dataloaders = spins

    def leave(self) -> None:
        """Composer's loop was left."""
        self._enter(None)
        self._within = False
        self._waits = True

    def _save(self, original: Callable[..., Any], state: Any, *more: Any, **named: Any) -> None:
        saver = original.__self__  # type: ignore[attr-defined]
        with self._run.phase("checkpoint"):
            self._gather()
            original(state, *more, **named)
            self._report(saver, state)

    @guarded
    def _report(self, saver: Any, state: Any) -> None:
        if _is_whole(saver) and _is_first() and saver.saved_checkpoints:
            path = os.path.abspath(saver.saved_checkpoints[-1])
            self._unsaved.saved(path)
            self._run.checkpoint(int(state.timestamp.batch), path)

    def saver(self) -> Any:
        """Return the saver of complete checkpoints, None without one."""
        return next(filter(_is_whole, self._savers), None)

    @guarded
    def stand_on(self, path: str, state: Any) -> None:
        """Training continues from a checkpoint: the notes of savers and monitors about later steps are void."""
        for saver in self._savers:
            saver.last_checkpoint_batch = None  # or a step that was saved before is not saved again
            known, now = saver.all_saved_checkpoints_to_timestamp, state.timestamp.batch
            left = [name for name, at in known.items() if at.batch > now]
            for name in left:
                del known[name]
            saver.saved_checkpoints = [name for name in saver.saved_checkpoints if name not in left]
            # All ranks wait: the next fit looks into the folder on each of them.
            agreed(partial(_put_aside, saver, state, left, path))
        for callback in state.callbacks:
            for name, window in vars(callback).items():
                if name.startswith("history_") and hasattr(window, "clear"):
                    window.clear()  # SpeedMonitor's: samples per second would be below zero

    # --- the data ------------------------------------------------------------------------------------------------

    @guarded
    def fit_start(self, state: Any, logger: Any) -> None:
        self._step = int(state.timestamp.batch)
        self._within = self._asked = False
        self._values = {}
        if self._trainer is None:
            return
        loaded = self._loaded
        self._loaded = {}
        before = self._place
        self._place = self._find(state, loaded)
        if self._place is not None and self._step:
            self._trainer.spin_dataloaders = False  # the batches are those of the place
        first = not self._begun
        self._begun = True
        if self._rollback is not None:
            self._ordered = str(loaded.get("ordered", ""))
            self._change(self._rollback.lr_scale, self._rollback.skip_range, self._rollback.skip_batches, before)
        elif first and self._begin and self._step:
            self._take_up(str(loaded.get("ordered", "")))

    def _find(self, state: Any, loaded: dict[str, Any]) -> Place | None:
        place = self._place
        held = "ranks" in loaded
        if keeps_its_own_place(state) or (self._step and not held and place is None):
            return None
        if place is None or held or not place.is_at(self._step, state.dataloader):
            place = Place(self._run, self._trainer)
        if held:
            place.load(loaded)
        return place

    def _take_up(self, ordered: str) -> None:
        """Make the changes still due to the state that a process has loaded at its start."""
        order = self._unsaved.take_up(self._begin, ordered)
        plan = self._plan
        if order is not None:
            self._factor = order.lr_scale
            if order.skip_places is not None and self._place is not None:
                self._place.skips.leave_out(*order.skip_places)
        elif plan is not None and plan["id"] != ordered:
            self._change(plan.get("lr_scale"), plan.get("skip_range"), plan.get("skip_batches"), None)
            self._unsaved.follow_plan(plan)

    def _change(self, factor: float | None, steps: Any, batches: int | None, before: Place | None) -> None:
        self._factor = factor
        self._places = None
        if self._place is not None:
            left = self._place if before is None else before
            self._places = self._place.skips.carry_out(self._step, steps, batches, left.skips)
        elif steps is not None or batches:
            self._run._guard.note("plan", "Composer finds the place in the data by itself: nothing is left out of it")

    def _iterate(self, original: Callable[..., Any], mode: Any) -> Iterator[Any]:
        """Return the batches of an epoch."""
        if self._place is None or mode.name != "TRAIN":
            return original(mode)  # type: ignore[no-any-return]
        return self._place.epoch(original, mode)

    def _gather(self) -> None:
        """Gather on all ranks the state that goes into the checkpoint."""
        self._state = {} if self._place is None else self._place.state()
        self._state["ordered"] = self._unsaved.ordered

    def state_dict(self) -> dict[str, Any]:
        return self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loaded = state

    @guarded
    def before_dataloader(self, state: Any, logger: Any) -> None:
        # Composer waits for the other ranks there too: a rank that waits is not the one without data.
        self._enter("data" if self._place is None else None)

    # --- steps and orders ----------------------------------------------------------------------------------------

    def batch_start(self, state: Any, logger: Any) -> None:
        self._enter(None)
        self._step = int(state.timestamp.batch) + 1
        if self._trainer is None:
            self._begin_step(state)
            return
        self._finish(state)
        if self._can is None:
            self._offer(state)
        self._ask(self._step)
        self._asked = False
        if isinstance(self._command, Rollback):
            self._rewind(self._command, partial(agreed, partial(_problem, str(self._command.checkpoint))))
        elif self._command is not None:
            raise _Over
        self._begin_step(state)

    def _ask(self, step: int) -> None:
        """Ask for commands before a step, once."""
        if not self._asked:
            self._asked = True
            self._command = self._run.boundary(step)

    @guarded
    def batch_checkpoint(self, state: Any, logger: Any) -> None:
        """A step has ended, for the savers too, and nothing of the next one was drawn: save, if that is ordered."""
        if self._trainer is not None and self._run._saves_before(self._step + 1):
            self._ask(self._step + 1)

    def _save_on_command(self, step: int) -> None:
        """Let Composer's own saver save; nothing where it just did."""
        state = self._trainer.state
        saver = self.saver()
        if saver.last_checkpoint_batch != state.timestamp.batch:
            saver._save_checkpoint(state, self._trainer.logger)

    @guarded
    def _offer(self, state: Any) -> None:
        self._can = ()
        if not _can_load(state):
            self._run._framework_saves(None, "checkpoints of FSDP, DeepSpeed and profiled trainers were not tried")
            return
        why = "" if self.saver() else "no CheckpointSaver writes whole states to a disk (Trainer(save_folder=...))"
        self._run._framework_saves(None if why else self._save_on_command, why)
        skips = ("skip_batches", "skip_range") if self._place is not None else ()
        self._promise("lr_scale", *skips)

    def load(self, rollback: Rollback) -> None:
        """Load the checkpoint of a rollback on all ranks."""
        self.leave()
        self._rollback = rollback
        self._load(str(rollback.checkpoint))

    def begin_where_due(self) -> None:
        """Load the checkpoint that the plan of a restart names, if the trainer has not loaded it; at the first fit."""
        if self._begun:
            return
        self._begin = _loaded_from(self._trainer.state)
        self._plan, path = agreed(self._from_where)
        if not path:
            return
        if _is_same(path, self._begin):
            self.stand_on(path, self._trainer.state)
        else:
            self._load(path)
        self._begin = path

    def _from_where(self) -> tuple[dict[str, Any] | None, str]:
        """Return the plan that holds, with its id, and the checkpoint to resume from, "" for the trainer's own.

        Asked on the first rank.

        Raises:
            ValueError: it can't be loaded.
        """
        plan = self._unsaved.plan
        state = self._trainer.state
        named = None if plan is None else plan.get("checkpoint")
        if plan is None or not named:
            return None, ""
        latest = [os.path.realpath(link) for link in (link_of(saver, state) for saver in self._savers) if link]
        # A rollback since then has gone back to another one.
        path = next((one for one in (self._begin, *latest) if one and self._unsaved.follows_plan(one)), "")
        followed = None if path else plan | {"id": self._unsaved.plan_id}
        path = path or str(named["path"] or "")
        if _is_same(path, self._begin):
            return followed, path
        if not _can_load(state):
            self._run._guard.note("plan", f"{path or named} can't be loaded into this trainer by us: not followed")
            return None, ""
        problem = _problem(path) if path else f"the path of the checkpoint of step {named['step']} is not known"
        if problem:
            raise ValueError(f"the plan of the restart can't be followed: {problem}")
        return followed, path

    def _load(self, path: str) -> None:
        trainer = self._trainer
        state = trainer.state
        name = state.run_name
        if "GROUP_RANK" in os.environ:  # torchrun's name; Composer needs it to load a checkpoint
            os.environ.setdefault("NODE_RANK", os.environ["GROUP_RANK"])
        # As at a start: Composer's own way to the place in the data begins with these random numbers.
        import_module("composer.utils.reproducibility").seed_all(state.seed)
        trainer._rng_state = import_module("composer.utils.checkpoint").load_checkpoint(
            path, state, trainer.logger, algorithm_passes=trainer.engine.algorithm_passes
        )
        state.run_name = name
        self.stand_on(path, state)

    @guarded
    def _finish(self, state: Any) -> None:
        """A checkpoint is loaded and the first batch behind it is there: change the rates, report the changes."""
        rollback = self._rollback
        self._rollback = None
        applied = self._scaled(self._factor, state.optimizers, state.schedulers)
        self._factor = None
        if rollback is None:
            return  # of the process that died, or of a plan
        if self._place is not None:
            skips = (("skip_batches", rollback.skip_batches), ("skip_range", rollback.skip_range))
            applied |= {name: value for name, value in skips if value is not None}
        self._unsaved.note(rollback.checkpoint, Order.of(rollback, self._places), self._ordered)
        self._report_back(rollback, self._step - 1, applied)


def _loaded_from(state: Any) -> str:
    """Return the checkpoint that a trainer has loaded when it was made, "" for none."""
    return str(getattr(state, "load_path", None) or "").replace("{rank}", "0")


def _is_same(path: str, other: str) -> bool:
    return "" not in (path, other) and os.path.realpath(path) == os.path.realpath(other)


def _can_load(state: Any) -> bool:
    """Return whether a checkpoint was ever loaded into such a trainer that is ready to train."""
    return not (state.fsdp_enabled or getattr(state, "deepspeed_enabled", False) or state.profiler is not None)


def _problem(path: str) -> str:
    """Return why a checkpoint can't be loaded, "" where nothing is seen."""
    if not os.path.exists(path):
        return f"{path} is not there"
    if path.endswith(".pt") and not zipfile.is_zipfile(path):
        return f"{path} is not whole"
    return ""
