"""Megatron-LM: ``pretrain`` unchanged, watched. For ``pretrain_gpt.py`` and others that call ``megatron.training``.

    import stabilityclient
    from stabilityclient.integrations.megatron import watched

    pretrain = watched(pretrain, stabilityclient.init(project="llm", name="7b"))  # right before it is called

A step is Megatron's iteration: the first one is 1, and ``iter_0000100`` holds the state after step 100. The job goes
back by a restart, whose plan it follows: docs/integrations/megatron.md.
"""

from __future__ import annotations

import inspect
import math
import os
import re
from contextlib import ExitStack
from functools import wraps
from importlib import import_module
from time import monotonic

from stabilityclient.integrations.shared.adapter import guarded, stand_around
from stabilityclient.integrations.shared.ranks import agreed
from stabilityclient.plan import read_plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any

    from stabilityclient.rollback.decision import Rollback, Stop
    from stabilityclient.run import Run

__all__ = ["Report", "Restart", "watched"]

#: Megatron's name of the loss in its dictionaries, and its name here.
_LOSS = "lm loss"
#: Arguments of ``training_log`` -> metric.
_LOGGED = {
    "learning_rate": "lr",
    "grad_norm": "grad_norm",
    "loss_scale": "loss_scale",
    "params_norm": "params_norm",
    "num_zeros_in_grad": "num_zeros",
}


class Report:
    """Wraps Megatron's functions; their effects and results are unchanged.

    Args:
        training: ``megatron.training.training``. get_args: of Megatron.
    """

    def __init__(self, run: Run, training: ModuleType, get_args: Callable[[], Namespace]) -> None:
        self._run, self._training, self._get_args = run, training, get_args
        self._mpu: Any = import_module("megatron.core.parallel_state")
        self._names = inspect.signature(training.training_log)
        #: Step that begins, or is trained; the one whose state was saved last.
        self._step = self._saved = 0
        #: Arguments for a save, while the boundary behind a step is looked at.
        self._told: dict[str, Any] | None = None
        self._began = monotonic()
        self._validations: list[Any] = []
        #: Whether this rank speaks for its pipeline stage, and for its part of the data.
        self._speaks = self._reads = False
        #: The phase of a forward pass. In it no rank waits for another one of its stage: a slow one is seen.
        self._forward = "forward"

    # --- steps ---------------------------------------------------------------------------------------------------

    def train(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Be around the loop."""
        self._begin(inspect.signature(original).bind(*given, **named).arguments)
        return original(*given, **named)

    @guarded
    def _begin(self, given: dict[str, Any]) -> None:
        args, mpu = self._get_args(), self._mpu
        first = mpu.get_tensor_model_parallel_rank() == 0
        self._speaks = first and mpu.get_data_parallel_rank(with_context_parallel=True) == 0
        self._reads = first and mpu.get_context_parallel_rank() == 0 and mpu.is_pipeline_last_stage(ignore_virtual=True)
        if mpu.get_pipeline_model_parallel_world_size() > 1:  # stages do not have the same work
            self._forward = f"forward_stage_{mpu.get_pipeline_model_parallel_rank()}"
        for name in ("data", self._forward):
            # Who is slow is asked of phases in the order in which they began: of these, in which ranks work, before
            # "train_step", in which they wait for a slow one.
            with self._run.phase(name):
                pass
        if int(os.environ.get("LOCAL_RANK", 0)) == 0:
            plain = (str, int, float, type(None))
            told = {name: value for name, value in vars(args).items() if isinstance(value, plain)}
            self._run.update_config({"megatron": told})
        iterators: Any = given.get("train_data_iterator")
        for one in iterators if isinstance(iterators, list) else [iterators]:
            if hasattr(one, "iterable"):
                one.iterable = _Read(one.iterable, self)
        self._step = args.iteration + 1
        self._offer()
        self._obey()

    def _obey(self) -> None:
        """A stop before a step that ``checkpoint_and_decide_exit`` does not come before: the loop ends by itself."""
        args = self._get_args()
        if self._run.boundary(self._step, args.train_iters + 1) is not None:
            args.train_iters = self._step - 1

    def train_step(self, original: Callable[..., Any], forward: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Be around forward, backward and the optimizer of one step."""

        @wraps(forward)
        def call(*given: Any, **named: Any) -> Any:
            with self._run.phase(self._forward):
                return forward(*given, **named)

        self._began = monotonic()
        with self._run.phase("train_step"):
            return original(call, *given, **named)

    def dummy_train_step(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Be around a step whose batch is drawn and left out."""
        self._began = monotonic()
        reads, self._reads = self._reads, False  # this batch is not trained
        with self._run.phase("skip"):
            result = original(*given, **named)
        self._reads = reads
        self._left_out()
        return result

    @guarded
    def _left_out(self) -> None:
        args = self._get_args()
        # Metrics that each step has, too: by these the server sees from which step the job went on.
        values = {"step_time_s": monotonic() - self._began, "skipped_batches": 1}
        if self._speaks:
            values |= self._taken(args.consumed_train_samples + self._samples(args))
        self._run.log(self._step, values)
        self._step += 1
        self._obey()

    def checkpoint_and_decide_exit(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Be around the last thing of each step: an ordered stop ends the job as ``--exit-interval`` does."""
        self._told = told = inspect.signature(original).bind(*given, **named).arguments
        iteration = told["iteration"]
        ends = original(*given, **named)
        order = self._between(iteration, iteration + 1 if ends else self._get_args().train_iters + 1)
        self._told = None
        if ends or order is None:
            return ends
        if self._get_args().save:
            self._save(iteration, told)
        return True

    def _save(self, iteration: int, told: dict[str, Any]) -> None:
        """Save as ``--save-interval`` does; nothing where Megatron just did."""
        if self._saved != iteration:
            self._training.save_checkpoint_and_time(
                iteration,
                told["model"],
                told["optimizer"],
                told["opt_param_scheduler"],
                told["num_floating_point_operations_so_far"],
                told["checkpointing_context"],
                train_data_iterator=told["train_data_iterator"],
            )

    def _save_on_order(self, step: int) -> None:
        if self._told is None:
            raise RuntimeError(f"step {step} was left out by --iterations-to-skip: Megatron saves nothing behind it")
        self._save(step, self._told)

    @guarded
    def _offer(self) -> None:
        args = self._get_args()
        why = ""
        if not args.save:
            why = "it saves nowhere (--save)"
        elif args.no_save_optim:
            why = "--no-save-optim saves the weights alone, which are no state to go back to"
        elif args.async_save:
            why = "--async-save writes in the background: at the end of a step nobody knows how a save went"
        self._run._framework_saves(None if why else self._save_on_order, why)

    def _between(self, iteration: int, stop: int) -> Rollback | Stop | None:
        """Return the command, if any; never a rollback, as this job offers none."""
        self._step = iteration + 1
        return self._run.boundary(self._step, stop)

    # --- curves --------------------------------------------------------------------------------------------------

    def training_log(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Be around the log of a step, which is called in each."""
        took_s = monotonic() - self._began
        self._log(self._names.bind(*given, **named).arguments, took_s)
        return original(*given, **named)

    @guarded
    def _log(self, told: dict[str, Any], took_s: float) -> None:
        args, step = self._get_args(), int(told["iteration"])
        values: dict[str, Any] = {"step_time_s": took_s}
        if self._speaks:
            losses, skipped = told["loss_dict"], int(told["skipped_iter"])
            values |= {"loss" if name == _LOSS else name: value for name, value in losses.items()}
            values |= {ours: told[name] for name, ours in _LOGGED.items() if told.get(name) is not None}
            # Megatron looks at the losses of a step without an update, too.
            wrong = skipped and any(not math.isfinite(float(value.float().sum())) for value in losses.values())
            samples = self._samples(args)
            values |= self._taken(args.consumed_train_samples)
            values |= {
                "skipped_iterations": skipped,
                "nan_iterations": int(wrong),
                "batch_size": samples,
                "tokens_per_s": samples * args.seq_length / took_s,
            }
            if args.log_throughput:
                work = self._training.num_floating_point_operations(args, samples)
                values["tflops_per_gpu"] = work / took_s / 1e12 / args.world_size
        self._run.log(step, values)

    def _samples(self, args: Namespace) -> int:
        """Return the samples of one step, of all ranks."""
        return int(args.micro_batch_size * args.data_parallel_size * self._training.get_num_microbatches())

    def _taken(self, samples: int) -> dict[str, int]:
        return {"consumed_samples": samples, "consumed_tokens": samples * self._get_args().seq_length}

    def evaluate(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Be around the validation of one data set."""
        result = original(*given, **named)
        self._validations.append(result[0])
        return result

    def evaluate_and_print_results(
        self,
        original: Callable[..., Any],
        prefix: str,
        forward: Any,
        iterator: Any,
        model: Any,
        iteration: int,
        *more: Any,
        **named: Any,
    ) -> Any:
        """Be around the validation, or test, of all its data sets."""
        self._validations = []
        with self._run.phase("eval"):
            result = original(prefix, forward, iterator, model, iteration, *more, **named)
        self._validated(iteration, "test_loss" if prefix.endswith("test set") else "val_loss")
        return result

    @guarded
    def _validated(self, step: int, name: str) -> None:
        if not self._speaks:
            return
        values: dict[str, Any] = {}
        for number, losses in enumerate(self._validations):
            place = f"/{number}" if len(self._validations) > 1 else ""  # by the order of the data sets, as in its log
            for key, value in (losses or {}).items():
                values[f"{name if key == _LOSS else f'{name} {key}'}{place}"] = value
        if values:
            self._run.log(step, values)

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def save_checkpoint(self, original: Callable[..., Any], iteration: int, *given: Any, **named: Any) -> Any:
        """Be around a save. One that continues in the background is announced as it begins: the agent looks at it."""
        with self._run.phase("checkpoint"):
            result = original(iteration, *given, **named)
        self._announce(iteration, bool(named.get("non_persistent_ckpt")))
        return result

    @guarded
    def _announce(self, iteration: int, passing: bool) -> None:
        args = self._get_args()
        if passing:  # deleted by the next one, and Megatron loads no other than the newest
            return
        self._saved = iteration
        if int(os.environ.get("RANK", 0)) == 0 and not args.no_save_optim:  # weights alone are none to go back to
            self._run.checkpoint(iteration, os.path.join(args.save, f"iter_{iteration:07d}"))

    def maybe_finalize_async_save(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Be around the wait for saves in the background."""
        if not self._get_args().async_save:
            return original(*given, **named)
        with self._run.phase("checkpoint"):
            return original(*given, **named)

    # --- data ----------------------------------------------------------------------------------------------------

    @guarded
    def _took(self, batch: Any) -> None:
        tokens = batch.get("tokens") if self._reads and isinstance(batch, dict) else None
        if tokens is not None:
            self._run.data(self._step, ids=tokens)


class _Read:
    """The iterator over the batches, with the time that each takes as a phase."""

    def __init__(self, iterable: Any, report: Report) -> None:
        self._iterable, self._report = iterable, report

    def __iter__(self) -> _Read:
        return self

    def __next__(self) -> Any:
        with self._report._run.phase("data"):
            batch = next(self._iterable)
        self._report._took(batch)
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterable, name)  # a loader that Megatron saves has methods of its own


#: Among Megatron's arguments: the product of the ordered scales; the steps that were ordered to be left out.
_SCALE, _SKIPS = "stability_lr_scale", "stability_skipped_steps"
_FOLDER = re.compile(r"iter_(\d{7,})")


class Restart:
    """Loads the checkpoint of a plan and keeps the plan's changes.

    Args:
        training: ``megatron.training.training``. get_args: of Megatron.
    """

    def __init__(self, run: Run, training: ModuleType, get_args: Callable[[], Namespace]) -> None:
        self._run, self._training, self._get_args = run, training, get_args

    def set_up(self, original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Be around ``setup_model_and_optimizer``, which loads the checkpoint.

        Raises:
            RuntimeError: the plan can't be followed, with the reason.
        """
        args = self._get_args()
        setattr(args, _SCALE, 1.0)
        setattr(args, _SKIPS, [])
        plan = agreed(lambda: read_plan(run_id=self._run.run_id)) or {}
        named_one = plan.get("checkpoint")
        local = args.non_persistent_ckpt_type
        if named_one:
            self._load_from(args, named_one)
        try:
            model, optimizer, schedule = original(*given, **named)
        finally:
            args.non_persistent_ckpt_type = local
        if named_one:
            if args.iteration != named_one["step"]:
                what = f"the plan names {named_one['path']}, and Megatron loaded the state of step {args.iteration}"
                raise RuntimeError(what)
            setattr(args, _SCALE, getattr(args, _SCALE) * (plan.get("lr_scale") or 1.0))
            getattr(args, _SKIPS).extend(_left_out(plan, args.iteration))
            if plan.get("seed") is not None:
                what = "is ordered, and this job can take none: its data come as before"
                self._run._guard.note("plan", f"seed {plan['seed']} {what}")
        self._leave_out(args)
        if schedule is not None and getattr(args, _SCALE) != 1.0:
            _scale(schedule, getattr(args, _SCALE))
        return model, optimizer, schedule

    def check_checkpoint_args(self, original: Callable[..., Any], held: Namespace, *given: Any, **named: Any) -> Any:
        """Wrap the check of the arguments in the loaded checkpoint: take the values of this package."""
        args = self._get_args()
        setattr(args, _SCALE, float(getattr(held, _SCALE, 1.0)))
        setattr(args, _SKIPS, [int(step) for step in getattr(held, _SKIPS, ())])
        return original(held, *given, **named)

    def _load_from(self, args: Namespace, checkpoint: Mapping[str, Any]) -> None:
        path = os.path.normpath(str(checkpoint["path"]))
        match = _FOLDER.fullmatch(os.path.basename(path))
        if match is None or int(match[1]) != checkpoint["step"] or not checkpoint["step"]:
            what = f"expected a folder iter_<step> of step {checkpoint['step']}, which Megatron can load"
            raise RuntimeError(f"the plan names {path}, {what}")
        args.load, args.ckpt_step = os.path.dirname(path), checkpoint["step"]
        # Of the run itself, whatever it was started from; and none that is newer on a node's own disk.
        args.finetune, args.pretrained_checkpoint, args.non_persistent_ckpt_type = False, None, None

    def _leave_out(self, args: Namespace) -> None:
        steps = [step for step in getattr(args, _SKIPS) if step > args.iteration]
        if steps:
            first = _first_number(self._training)
            args.iterations_to_skip = sorted({*args.iterations_to_skip, *(step - 1 + first for step in steps)})


def _left_out(plan: Mapping[str, Any], step: int) -> range:
    """Return the steps that a plan leaves out, which continues behind ``step``."""
    if plan.get("skip_range"):
        first, last = plan["skip_range"]
        return range(max(first, step + 1), last + 1)
    return range(step + 1, step + 1 + (plan.get("skip_batches") or 0))


def _first_number(training: ModuleType) -> int:
    """Return by which number ``--iterations-to-skip`` means the first step: up to core 0.16 by 0, then by 1."""
    code = inspect.getsource(inspect.unwrap(training.train))
    if re.search(r"\(iteration \+ 1\) in args\.iterations_to_skip", code):
        return 1
    if re.search(r"\bif iteration in args\.iterations_to_skip", code):
        return 0
    raise RuntimeError(
        "the plan leaves out data, and this version of Megatron has no --iterations-to-skip that we know"
    )


def _scale(schedule: Any, factor: float) -> None:
    """Let a schedule give ``factor`` times its rates, from the next step on.

    Its own numbers stay: Megatron compares them with the arguments when it loads.
    """
    own = schedule.get_lr

    def get_lr(*given: Any, **named: Any) -> Any:
        return factor * own(*given, **named)

    schedule.get_lr = get_lr
    schedule.step(0)


def watched(pretrain: Callable[..., Any], run: Run) -> Callable[..., Any]:
    """Return ``pretrain`` that reports to ``run``, and follows the plan of the restart that brought this job up.

    Within the call some functions of ``megatron.training`` are wrapped; their effects are unchanged.

    Args:
        pretrain: of ``megatron.training``, or its wrapper.
        run: of :func:`stabilityclient.init`, on every rank. It is finished when ``pretrain`` ends in order.

    Raises:
        RuntimeError: from the call, on all ranks: the plan can't be followed.
    """

    @wraps(pretrain)
    def call(*given: Any, **named: Any) -> Any:
        try:
            with ExitStack() as stack:
                for one in _around(run):
                    stack.callback(stand_around(*one))
                result = pretrain(*given, **named)
        except SystemExit as end:
            if end.code in (None, 0):  # --exit-interval and the like; other codes show the launcher a failure
                run.finish()
            raise
        run.finish()
        return result

    return call


def _around(run: Run) -> list[tuple[Any, str, Callable[..., Any]]]:
    """Return the wrappers: the module, the name in it, and the wrapper, called with the function first."""
    training: Any = import_module("megatron.training.training")
    checkpointing: Any = import_module("megatron.training.checkpointing")
    get_args: Any = import_module("megatron.training.global_vars").get_args
    report, restart = Report(run, training, get_args), Restart(run, training, get_args)

    def set_up(original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        with run.phase("load"):
            return restart.set_up(original, *given, **named)

    around: list[tuple[Any, str, Callable[..., Any]]] = [
        (training, "setup_model_and_optimizer", set_up),
        (checkpointing, "check_checkpoint_args", restart.check_checkpoint_args),
        (training, "train", report.train),
        (training, "train_step", report.train_step),
        (training, "dummy_train_step", report.dummy_train_step),
        (training, "training_log", report.training_log),
        (training, "evaluate", report.evaluate),
        (training, "evaluate_and_print_results", report.evaluate_and_print_results),
        (training, "save_checkpoint", report.save_checkpoint),
        (training, "maybe_finalize_async_save", report.maybe_finalize_async_save),
        (training, "checkpoint_and_decide_exit", report.checkpoint_and_decide_exit),
    ]
    return [one for one in around if hasattr(one[0], one[1])]
