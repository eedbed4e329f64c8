"""What the common metric names mean: one metric may be called ``lr``, ``learning_rate`` or ``train/lr``."""

from __future__ import annotations

from functools import lru_cache

__all__ = ["BATCH_SIZE", "GRAD_NORM", "LOSS", "LR", "VAL_LOSS", "dataset_of", "role_of"]

LOSS = "loss"
GRAD_NORM = "grad_norm"
LR = "lr"
BATCH_SIZE = "batch_size"
VAL_LOSS = "val_loss"

#: Spellings of each role, lower case, ``-`` and space as ``_``, without a leading ``train/`` or ``train_``.
_SPELLINGS = {
    LOSS: ("loss", "lm_loss", "loss_train", "total_loss"),
    GRAD_NORM: ("grad_norm", "gradient_norm", "gnorm", "global_grad_norm"),
    LR: ("lr", "learning_rate"),
    BATCH_SIZE: ("batch_size", "global_batch_size", "batch_size_tokens", "tokens_per_batch"),
    VAL_LOSS: ("val_loss", "eval/loss", "eval_loss", "val/loss", "validation/loss", "valid_loss"),
}
_ROLES = {spelling: role for role, spellings in _SPELLINGS.items() for spelling in spellings}
_TRAIN_PREFIXES = ("train/", "train_", "training/")


@lru_cache(maxsize=4_096)
def role_of(metric: str) -> str | None:
    """Return what a metric is, by its name, or None for any other.

    Example:
        >>> role_of("train/learning-rate"), role_of("loss"), role_of("loss/code")
        ('lr', 'loss', None)
    """
    name = metric.lower().replace("-", "_").replace(" ", "_")
    for prefix in _TRAIN_PREFIXES:
        name = name.removeprefix(prefix)
    return _ROLES.get(name)


@lru_cache(maxsize=4_096)
def dataset_of(metric: str) -> str | None:
    """Return the data set (or part) whose loss this is, None for any other metric.

    Example:
        >>> dataset_of("loss/code"), dataset_of("train/loss/web"), dataset_of("loss"), dataset_of("loss_cls")
        ('code', 'web', None, None)
    """
    name = metric
    for prefix in _TRAIN_PREFIXES:
        name = name.removeprefix(prefix)
    return name.removeprefix("loss/") or None if name.startswith("loss/") else None
