"""Roles of metrics by their names, the one table for live runs, imports and backtests.

One metric may be called ``lr``, ``learning_rate`` or ``train/lr``. A validation loss is not of the training.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

#: Size of the cache of roles: more names than a run keeps (``points/metric_names.py``), as one too small never hits on
#: a row of all of them.
NAMES_REMEMBERED = 32_768

LOSS = "loss"
GRAD_NORM = "grad_norm"
LR = "lr"
BATCH_SIZE = "batch_size"
#: Tokens of a sample, as set: a longer context has another loss.
SEQUENCE_LENGTH = "sequence_length"
VAL_LOSS = "val_loss"
#: Speed of the job in any unit, more is faster; and time of a step, less is faster.
SPEED = "tokens_per_s"
STEP_TIME = "step_time_s"
#: Shares or counts of each data set, one metric a set.
RATIO = "ratio"
#: Prefixes of the metrics of a share, and of counts of a declared mixture: ``mixture.tokens/<data set>``.
SHARE_OF, TAKEN = "ratio/", "mixture."
TOKENS = "tokens"
SAMPLES = "samples"
#: Roles with one metric a run.
ROLES = (LOSS, GRAD_NORM, LR, BATCH_SIZE, VAL_LOSS, SPEED, STEP_TIME)

#: Own name -> other spellings, as in files. An import renames the first one present. PyTorch Lightning, Hugging Face,
#: Megatron-LM, torchtitan, Composer, NeMo, OLMo, DeepSpeed.
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
    # fairseq, MaxText, Levanter, OLMo-core and Keras, besides those above.
    LOSS: (
        "loss", "lm_loss", "loss_train", "total_loss", "nll", "nll_loss", "ce_loss", "train_inner/loss",
        "learning/loss", "batch_loss",
    ),
    GRAD_NORM: (
        "grad_norm", "gradient_norm", "gnorm", "global_grad_norm", "optim/total_grad_norm", "grad/norm/total",
        "train_inner/gnorm", "learning/grad_norm", "total_grad_norm",
    ),
    LR: (
        "lr", "learning_rate", "optim/learning_rate", "optim/lr_(group_0)", "train_inner/lr",
        "learning/current_learning_rate", "optimizer/learning_rate_group0", "optimizer/learning_rate",
    ),
    BATCH_SIZE: ("batch_size", "global_batch_size", "batch_size_tokens", "tokens_per_batch"),
    SEQUENCE_LENGTH: (
        "sequence_length", "seq_length", "seq_len", "seqlen", "max_seq_len", "max_seq_length", "max_sequence_length",
        "context_length", "context_len", "ctx_len", "block_size", "curriculum_seqlen", "curriculum/seq_len",
        "data/seq_len", "data/sequence_length", "data/seq_length",
    ),
    VAL_LOSS: ("val_loss", "eval/loss", "eval_loss", "val/loss", "validation/loss", "valid_loss"),
    # torchtitan, Composer, OLMo, Megatron-LM and Megatron-DeepSpeed, NeMo, GPT-NeoX, Lightning's ThroughputMonitor,
    # Hugging Face, nanoGPT, MaxText. Imports keep these names: units differ, and a speed is compared only with itself.
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


@lru_cache(maxsize=NAMES_REMEMBERED)
def role_of(metric: str) -> str | None:
    """Return the role of a metric, None for none.

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


def best_of(role: str, metrics: Iterable[str]) -> str | None:
    """Return the metric with a role, of several the first in the table; None for none.

    Example:
        >>> best_of(LR, ["train/lr", "loss", "learning_rate"])
        'learning_rate'
    """
    known = {name: place for place, name in enumerate((role, *OTHERS.get(role, ())))}
    named = [name for name in metrics if role_of(name) == role]
    return min(named, key=lambda name: (known.get(name, len(known)), name), default=None)


def loss_of(metrics: Iterable[str]) -> str | None:
    """Return a run's training loss, None for none in the table.

    Example:
        >>> loss_of(["loss/code", "train/loss", "lr"]), loss_of(["reward"])
        ('train/loss', None)
    """
    return best_of(LOSS, metrics)


@lru_cache(maxsize=NAMES_REMEMBERED)
def dataset_of(metric: str) -> str | None:
    """Return the data set (or part) of a loss, None for any other metric.

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


#: Suffixes and prefixes of names of the machine's metrics.
_OF_MACHINE_ENDS = ("_s", "_ms", "_c", "_w", "_mib", "_gib", "_bytes", "/s", "_per_sec", "_per_second")
_OF_MACHINE_STARTS = ("gpu/", "cpu/", "node/", "memory/", "time/", "throughput/", "system/", "perf/")


def of_machine(name: str) -> bool:
    """Return whether a metric is of the machine: speeds, times, readings."""
    plain = name.lower()
    machine = plain.startswith(_OF_MACHINE_STARTS) or plain.endswith(_OF_MACHINE_ENDS)
    return machine or role_of(name) in (SPEED, STEP_TIME)


# --- likely names, to be confirmed by the metric's values -------------------------------------------------------------

_OF_EVALUATION = frozenset(("val", "valid", "validation", "eval", "evaluation", "test", "dev", "heldout"))
#: Words of parts of the objective; and of numbers about a loss.
_OF_PARTS = frozenset((
    "aux", "auxiliary", "z", "zloss", "kl", "reg", "regularization", "balance", "balancing", "router", "moe", "expert",
    "experts",
))  # fmt: skip
_ABOUT_LOSSES = frozenset((
    "scale", "scaler", "scaled", "std", "var", "weight", "weights", "count", "delta", "diff", "ratio", "layer",
    "layers", "head", "heads",
))  # fmt: skip
#: Words that exclude a name from the training as a whole: those, of the machine, or other numbers about it.
_ASIDE = _OF_EVALUATION | _OF_PARTS | _ABOUT_LOSSES | frozenset((
    "max", "min", "ema", "avg", "best", "bias", "param", "time", "epoch", "samples", "tokens", "critic", "actor",
    "policy", "value", "reward", "discriminator", "generator", "clip", "clipped", "gpu", "seconds", "vs",
))  # fmt: skip
_LOSS_WORDS = frozenset(("loss", "nll", "crossentropy", "xent", "celoss", "crossentropyloss"))
#: Words of losses that a likely name lacks: means, perplexities, bounds.
_WORDS_OF_LOSSES = _LOSS_WORDS | frozenset((
    "losses", "ce", "bce", "mse", "mae", "rmse", "huber", "elbo", "nelbo", "ppl", "perplexity", "bpb", "bpc", "bpt",
    "objective", "cost", "simple",
))  # fmt: skip
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def _split(name: str) -> tuple[str, ...]:
    return tuple([word.lower() for word in _WORD.findall(name)])


@lru_cache(maxsize=NAMES_REMEMBERED)
def words_of(metric: str) -> tuple[str, ...]:
    """Return the words and numbers of a name, lower case.

    Example:
        >>> words_of("train/EvalLoss_2")
        ('train', 'eval', 'loss', '2')
    """
    return _split(metric)


@lru_cache(maxsize=NAMES_REMEMBERED)
def is_of_evaluation(metric: str) -> bool:
    """Return whether a metric is of an evaluation, by its name.

    Example:
        >>> is_of_evaluation("val/loss"), is_of_evaluation("EvalAccuracy"), is_of_evaluation("value_loss")
        (True, True, False)
    """
    return not _OF_EVALUATION.isdisjoint(words_of(metric))


_OF_PLAYERS = frozenset(
    ("policy", "actor", "critic", "value", "adversarial", "generator", "discriminator", "gan", "ppo")
)
_OF_REWARD = frozenset(("reward", "rewards", "return", "returns", "advantage", "advantages"))


@lru_cache(maxsize=NAMES_REMEMBERED)
def may_rise(metric: str) -> bool:
    """Return whether a loss is against a moving target, so that a rise is no harm, by its name.

    Example:
        >>> may_rise("policy_loss"), may_rise("loss_critic"), may_rise("train/loss")
        (True, True, False)
    """
    return not _OF_PLAYERS.isdisjoint(words_of(metric))


@lru_cache(maxsize=NAMES_REMEMBERED)
def is_of_reward(metric: str) -> bool:
    """Return whether a metric is a reward or return, by its name: the loss of such a training need not fall.

    Example:
        >>> is_of_reward("rollout/ep_reward"), is_of_reward("loss")
        (True, False)
    """
    return not _OF_REWARD.isdisjoint(words_of(metric))


@lru_cache(maxsize=NAMES_REMEMBERED)
def likely_role_of(metric: str) -> str | None:
    """Return the likely role of a metric outside the table, by the words of its name; its values must confirm it.

    Example:
        >>> [likely_role_of(name) for name in ("lr-Lion/pg1", "opt/gradient_norm", "lm/xent", "aux_loss")]
        ['lr', 'grad_norm', 'loss', None]
    """
    words = words_of(metric)
    if role_of(metric) is not None or dataset_of(metric) is not None or not words:
        return None
    plain = [word for word in words if not word.isdigit()]
    if "lr" in plain or ("learning" in plain and "rate" in plain):
        return LR
    if _ASIDE.intersection(plain):
        return None
    if {"grad", "grads", "gradient", "gradients"}.intersection(plain) and "norm" in plain:
        return GRAD_NORM if len(plain) == len(words) else None  # a number is that of a layer
    whole = metric.rpartition("/")[2].lower().replace("_", "").replace("-", "").replace(" ", "")
    return LOSS if plain[-1] in _LOSS_WORDS or whole in _LOSS_WORDS else None


@lru_cache(maxsize=NAMES_REMEMBERED)
def loss_rank(metric: str) -> int | None:
    """Return how likely a metric outside the table is the loss, by its name.

    Returns:
        0 for a likely name, 1 for one with a word of losses, 2 for a neutral one, None for one of another role.

    Example:
        >>> [loss_rank(name) for name in ("lm/xent", "policy_loss", "q", "aux_loss", "step_time_s", "reward")]
        [0, 1, 2, 2, None, None]
    """
    likely = likely_role_of(metric)
    if likely is not None:
        return 0 if likely == LOSS else None
    named = role_of(metric) is not None or dataset_of(metric) is not None
    if named or of_machine(metric) or is_of_evaluation(metric) or is_of_reward(metric):
        return None
    words = set(words_of(metric))
    if words.isdisjoint(_WORDS_OF_LOSSES) or words & _OF_PARTS:
        return 2
    return None if words & _ABOUT_LOSSES else 1


def has_parts(metric: str) -> bool:
    """Return whether a metric is of an objective of several parts: a reward, or a loss that is a part."""
    return is_of_reward(metric) or (loss_rank(metric) == 2 and not set(words_of(metric)).isdisjoint(_WORDS_OF_LOSSES))


# --- shares and counts of data sets ----------------------------------------------------------------------------------


class MixtureName(NamedTuple):
    """A metric that may be about one data set of a mixture.

    Args:
        family: common part of the sets' names. dataset: the set.
        measure: ``ratio``, ``tokens`` or ``samples`` by the name, "" where only the values can decide.
    """

    family: str
    dataset: str
    measure: str


#: Component of a name, lower case, ``-`` and space as ``_`` -> measure below it.
_MEASURES = {
    **dict.fromkeys((
        "ratio", "ratios", "share", "shares", "mix", "mixture", "weight", "weights", "proportion", "proportions",
        "fraction", "fractions", "data_ratio", "dataset_ratio", "data_mix", "data_mixture", "data_share",
        "domain_weights", "dataset_weights", "sampling_weights", "dataset_share", "domain_ratio",
    ), RATIO),
    **dict.fromkeys((
        "tokens", "token_count", "num_tokens", "tokens_seen", "tokens_by_dataset", "dataset_tokens", "domain_tokens",
    ), TOKENS),
    **dict.fromkeys((
        "samples", "sampled", "num_samples", "samples_seen", "docs", "documents", "sequences", "dataset_samples",
        "samples_by_dataset", "consumed_samples", "domain_samples",
    ), SAMPLES),
}  # fmt: skip
#: Heads of a name without a slash that a data set may follow: ``dataset_ratio_web``.
_HEADS = tuple(f"{word}_" for word in ("dataset_ratio", "data_ratio", "ratio", "mixture", "mix", "dataset_share",
                                        "share", "dataset_tokens", "dataset_samples", "dataset_weight"))  # fmt: skip
#: Components that are no data set.
_NO_DATASET = frozenset(("total", "all", "sum", "overall", "mean", "max", "min", "seen", "count", "rate", "global"))
#: Families of other shares: experts, layers, times, tests.
_NO_MIXTURE = frozenset((
    "expert", "experts", "router", "moe", "head", "heads", "layer", "layers", "attention", "attn", "eval", "val",
    "valid", "validation", "test", "class", "classes", "acc", "accuracy", "prob", "probs", "time", "timer", "timers",
    "phase",
    "perf", "memory", "gpu", "bench", "label", "labels", "pred", "token", "codebook", "per",
))  # fmt: skip


@lru_cache(maxsize=NAMES_REMEMBERED)
def mixture_of(metric: str) -> MixtureName | None:
    """Return the share or count that a metric may be, None for none.

    Only ``ratio/<data set>`` is one by its name alone; values have to confirm the others.

    Example:
        >>> tuple(mixture_of("tokens/web")), tuple(mixture_of("data/web/share"))
        (('tokens/*', 'web', 'tokens'), ('data/*/share', 'web', 'ratio'))
        >>> tuple(mixture_of("dataset_ratio_web")), tuple(mixture_of("parts/web")), mixture_of("time/forward")
        (('dataset_ratio_*', 'web', 'ratio'), ('parts/*', 'web', ''), None)
    """
    if role_of(metric) is not None or dataset_of(metric) is not None:
        return None
    parts = metric.split("/")
    found: MixtureName | None = None
    if len(parts) == 1:
        head = next((head for head in _HEADS if metric.startswith(head) and len(metric) > len(head)), None)
        if head is not None:
            measure = _MEASURES.get(head[:-1], RATIO)
            found = MixtureName(f"{head}*", metric[len(head) :], measure)
    elif len(parts) > 2 and (after := _MEASURES.get(_plain(parts[-1]))) is not None:
        found = MixtureName("/".join([*parts[:-2], "*", parts[-1]]), parts[-2], after)
    else:
        found = MixtureName("/".join([*parts[:-1], "*"]), parts[-1], _MEASURES.get(_plain(parts[-2]), ""))
    if found is None or found.dataset.isdigit() or found.dataset.lower() in _NO_DATASET:
        return None
    return None if _NO_MIXTURE.intersection(_split(found.family)) else found
