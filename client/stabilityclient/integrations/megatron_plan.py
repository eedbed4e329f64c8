"""A restart by plan of a Megatron-LM job: its checkpoint, its scale of the learning rate, what is left out of the data.

Scale and skips are kept among Megatron's arguments, which each of its checkpoints has in it.
"""

from __future__ import annotations

import inspect
import os
import re

from stabilityclient.integrations.shared.ranks import agreed
from stabilityclient.plan import read_plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any

    from stabilityclient.run import Run

__all__ = ["Restart"]

#: Among Megatron's arguments: the product of the ordered scales; the steps that were ordered to be left out.
_SCALE, _SKIPS = "stability_lr_scale", "stability_skipped_steps"
_FOLDER = re.compile(r"iter_(\d{7,})")


class Restart:
    """Loads what a plan names and keeps what it changed.

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
        """Be around what looks at the arguments in the checkpoint that is loaded: take ours."""
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
    """Return the steps that a plan leaves out, which goes on behind ``step``."""
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
