"""What the common metric names mean, the one table of them: for live runs, imports and backtests alike.

One metric may be called ``lr``, ``learning_rate`` or ``train/lr``. A validation's loss is none of the training.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

__all__ = [
    "BATCH_SIZE", "GRAD_NORM", "LOSS", "LR", "OTHERS", "SPEED", "STEP_TIME", "VAL_LOSS", "dataset_of", "loss_of",
    "role_of",
]  # fmt: skip

LOSS = "loss"
GRAD_NORM = "grad_norm"
LR = "lr"
BATCH_SIZE = "batch_size"
VAL_LOSS = "val_loss"
#: How fast the job is, in whatever unit, more is faster; and the time of a step, less is.
SPEED = "tokens_per_s"
STEP_TIME = "step_time_s"

#: Our name -> how others spell it, as it is in their files. Where a log has several, the first of them is the one
#: that an import renames. PyTorch Lightning, Hugging Face, Megatron-LM, torchtitan, Composer, NeMo, OLMo, DeepSpeed.
OTHERS: dict[str, tuple[str, ...]] = {
    LOSS: (
        "train/loss", "train_loss", "training_loss", "train/loss_step", "train_loss_step", "Loss/train", "Train/Loss",
        "Train/loss", "loss/train", "training/loss", "lm loss", "lm-loss-training/lm loss", "train/lm_loss", "Loss",
        "loss_metrics/global_avg_loss", "loss/train/total", "metrics/train/LanguageCrossEntropy", "reduced_train_loss",
        "train/CrossEntropyLoss", "train/CE loss", "Train/Samples/train_loss",
    ),
    GRAD_NORM: (
        "train/grad_norm", "grad-norm", "gradient_norm", "train/gradient_norm", "grad_norm_total",
        "l2_norm/grad/global", "optim/total_grad_norm",
    ),
    LR: (
        "train/learning_rate", "learning_rate", "train/lr", "learning-rate", "lr-AdamW", "lr-Adam", "lr-SGD",
        "Learning Rate", "LR", "lr-DecoupledAdamW/group0", "optim/learning_rate_group0", "Train/Samples/lr",
    ),
}  # fmt: skip
#: More spellings of each role, lower case, ``-`` and space as ``_``, without a leading ``train/`` or ``train_``.
_SPELLINGS = {
    LOSS: ("loss", "lm_loss", "loss_train", "total_loss"),
    GRAD_NORM: ("grad_norm", "gradient_norm", "gnorm", "global_grad_norm"),
    LR: ("lr", "learning_rate"),
    BATCH_SIZE: ("batch_size", "global_batch_size", "batch_size_tokens", "tokens_per_batch"),
    VAL_LOSS: ("val_loss", "eval/loss", "eval_loss", "val/loss", "validation/loss", "valid_loss"),
    # torchtitan, Composer, OLMo, Megatron-LM and Megatron-DeepSpeed, NeMo, GPT-NeoX, Lightning's ThroughputMonitor,
    # Hugging Face, nanoGPT, MaxText. Imports keep these names: units differ, and a speed is only compared with itself.
    SPEED: (
        "tokens_per_s", "tokens_per_sec", "tokens_per_second", "tokens/s", "tokens/sec", "samples_per_s",
        "samples_per_sec", "samples_per_second", "throughput", "mfu", "mfu(%)", "tflops", "wps",
        "throughput(tps)", "throughput/tokens_per_sec", "throughput/tokens_per_second", "throughput/samples_per_sec",
        "throughput/device/tokens_per_sec", "throughput/device/tokens_per_second", "throughput/device/samples_per_sec",
        "throughput/device/batches_per_sec", "throughput/device/batches_per_second", "throughput/batches_per_sec",
        "throughput/device/mfu", "throughput/mfu", "throughput/device/tps", "throughput/device/bps",
        "iteration_time/tokens_per_second", "iteration_time/samples_per_second", "tflops_per_sec_per_gpu",
        "runtime/samples_per_sec", "runtime/flops_per_sec_per_gpu", "device/batches_per_sec", "device/samples_per_sec",
        "device/items_per_sec", "device/mfu", "steps_per_second", "steps_per_sec", "batches_per_sec",
        "perf/throughput", "perf/per_device_tokens_per_sec", "perf/per_device_tflops_per_sec",
    ),
    STEP_TIME: (
        "step_time_s", "step_time", "step_time_ms", "step_timing", "step_timing_in_s", "iteration_time",
        "iteration_time_s", "iteration_time_ms", "iteration_time/iteration_time", "iter_time", "runtime/iteration_time",
        "time_metrics/end_to_end(s)", "perf/step_time_seconds", "time_per_step", "perf/time_per_step",
        "seconds_per_step",
    ),
}  # fmt: skip
_TRAIN_PREFIXES = ("train/", "train_", "training/", "train|")


def _plain(metric: str) -> str:
    return metric.lower().replace("-", "_").replace(" ", "_")


_ROLES = {_plain(name): role for table in (OTHERS, _SPELLINGS) for role, names in table.items() for name in names}


@lru_cache(maxsize=4_096)
def role_of(metric: str) -> str | None:
    """Return what a metric is, by its name, or None for any other.

    Example:
        >>> role_of("train/learning-rate"), role_of("loss"), role_of("loss/code"), role_of("eval/loss")
        ('lr', 'loss', None, 'val_loss')
    """
    name = _plain(metric)
    if name in _ROLES:
        return _ROLES[name]
    for prefix in _TRAIN_PREFIXES:
        name = name.removeprefix(prefix)
    return _ROLES.get(name)


def loss_of(metrics: Iterable[str]) -> str | None:
    """Return the metric that is a run's training loss, None where none is known as one.

    Example:
        >>> loss_of(["loss/code", "train/loss", "lr"]), loss_of(["reward"])
        ('train/loss', None)
    """
    losses = [name for name in metrics if role_of(name) == LOSS]
    known = {name: place for place, name in enumerate((LOSS, *OTHERS[LOSS]))}
    return min(losses, key=lambda name: (known.get(name, len(known)), name), default=None)


@lru_cache(maxsize=4_096)
def dataset_of(metric: str) -> str | None:
    """Return the data set (or part) whose loss this is, None for any other metric.

    Example:
        >>> dataset_of("loss/code"), dataset_of("train/loss/web"), dataset_of("loss"), dataset_of("loss/train")
        ('code', 'web', None, None)
    """
    if role_of(metric) == LOSS:
        return None
    name = metric
    for prefix in _TRAIN_PREFIXES:
        name = name.removeprefix(prefix)
    return name.removeprefix("loss/") or None if name.startswith("loss/") else None
