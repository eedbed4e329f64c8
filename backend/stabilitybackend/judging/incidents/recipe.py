"""Choices in a run's config that affect stability, with those that others made otherwise. Pure.

A config is free: a choice that is absent, or spelled in another way, is unknown and gives no line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stabilitybackend.judging.incidents import references as lit

__all__ = ["Recipe", "recipe_checks", "recipe_of"]

#: Adam's beta2 and epsilon from which on others chose less (references.BETA2, references.EPSILON).
HIGH_BETA2 = 0.99
HIGH_EPSILON = 1e-8
#: Tokens a batch below which large models are trained with more (references.BATCH).
LARGE_BATCH_TOKENS = 4_000_000
#: Width of a large transformer: those of a billion parameters have about 2,048.
LARGE_WIDTH = 2_048
#: Nested mappings that are read, and entries of a config.
MAX_DEPTH = 4
MAX_ENTRIES = 2_000


@dataclass(frozen=True, slots=True)
class Recipe:
    """Choices in a run's config; None: unknown.

    Args:
        beta2, epsilon: Adam's.
        precision: of weights and activations, as the config has it, lower case. states: of Adam's moments, the same.
        norm: layer of normalization, lower case. bias: linear layers have one.
        batch_tokens: tokens of a step. width: of the model. mup: maximal update parametrization.
        qk_norm, z_loss: they are used.
    """

    beta2: float | None = None
    epsilon: float | None = None
    precision: str | None = None
    states: str | None = None
    norm: str | None = None
    bias: bool | None = None
    batch_tokens: float | None = None
    width: float | None = None
    mup: bool | None = None
    qk_norm: bool | None = None
    z_loss: bool | None = None


def recipe_of(config: Mapping[str, Any]) -> Recipe:
    """Return the choices in a config of any nesting.

    Example:
        >>> recipe_of({"optim": {"betas": [0.9, 0.999], "eps": 1e-5}, "model": {"norm_type": "LayerNorm"}}).norm
        'layernorm'
    """
    entries: dict[str, Any] = {}
    for name, value in _flat(config, MAX_DEPTH):
        if len(entries) >= MAX_ENTRIES:
            break
        entries.setdefault(name, value)
    betas = _first(entries, "betas", "adam_betas")
    pair = betas if isinstance(betas, list | tuple) and len(betas) == 2 else (None, None)
    return Recipe(
        beta2=_number(_first(entries, "beta2", "beta_2", "adam_beta2"), pair[1]),
        epsilon=_number(_first(entries, "eps", "epsilon", "adam_eps", "adam_epsilon", "optimizer_eps")),
        precision=_precision(entries),
        states=_word(_first(entries, "optimizer_dtype", "optim_dtype", "exp_avg_dtype", "optimizer_state_dtype")),
        norm=_word(_first(entries, "norm_type", "normalization", "layer_norm_type", "layernorm_type", "norm")),
        bias=_flag(_first(entries, "bias", "use_bias", "include_bias", "add_bias_linear", "linear_bias")),
        batch_tokens=_tokens(entries),
        width=_number(_first(entries, "hidden_size", "d_model", "n_embd", "embed_dim", "model_dim")),
        mup=_mup(entries),
        qk_norm=_flag(_first(entries, "qk_norm", "use_qk_norm", "qk_layernorm", "query_key_norm")),
        z_loss=_flag(_first(entries, "z_loss", "use_z_loss", "z_loss_weight", "z_loss_coefficient", "z_loss_coeff")),
    )


def recipe_checks(recipe: Recipe) -> list[str]:
    """Return a line with its source for each choice that others made otherwise for a stable run.

    QK-norm and z-loss are last: for grown logits a line of the evidence comes first.
    """
    large = recipe.width is not None and recipe.width >= LARGE_WIDTH
    tokens = recipe.batch_tokens
    lines = [
        lit.BETA2.format(beta2=recipe.beta2) if recipe.beta2 is not None and recipe.beta2 >= HIGH_BETA2 else "",
        lit.EPSILON.format(epsilon=recipe.epsilon)
        if recipe.epsilon is not None and recipe.epsilon > HIGH_EPSILON
        else "",
        lit.FP16 if _is_half(recipe.precision) else "",
        lit.PURE_BF16 if recipe.precision in _PURE_BF16 or _is_bf16(recipe.states) else "",
        lit.LAYER_NORM if recipe.norm is not None and "layer" in recipe.norm and "rms" not in recipe.norm else "",
        lit.BIASES if recipe.bias else "",
        lit.BATCH.format(tokens=tokens) if large and tokens is not None and tokens < LARGE_BATCH_TOKENS else "",
        lit.MUP if large and not recipe.mup else "",
        lit.QK_NORM_OFF if recipe.qk_norm is False else "",
        lit.Z_LOSS_OFF if recipe.z_loss is False else "",
    ]
    return [line for line in lines if line]


#: Settings of pure bf16 weights (Lightning's spelling).
_PURE_BF16 = frozenset({"bf16-true", "pure_bf16"})


def _is_half(precision: str | None) -> bool:
    words = ("fp16", "float16", "torch.float16", "half", "16", "16-mixed", "16-true")
    return precision is not None and precision in words


def _is_bf16(dtype: str | None) -> bool:
    return dtype is not None and dtype.removeprefix("torch.") in ("bf16", "bfloat16")


def _flat(config: Mapping[str, Any], depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the names of a config in lower case, without parents, and their values."""
    nested: list[tuple[str, Mapping[str, Any]]] = []
    for key, value in config.items():
        # A tracker's names may be paths themselves; an epsilon of a layer of normalization is not the optimizer's.
        name = str(key).replace("-", "_").replace("/", ".").lower()
        if isinstance(value, Mapping):
            nested.append((name, value))
        elif not ("." in name and "norm" in name.rpartition(".")[0]):
            yield name.rpartition(".")[2], value
    for name, inner in nested if depth > 1 else ():
        if "norm" not in name:
            yield from _flat(inner, depth - 1)


def _first(entries: Mapping[str, Any], *names: str) -> Any:
    return next((entries[name] for name in names if entries.get(name) is not None), None)


def _number(*values: Any) -> float | None:
    return next((float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)), None)


def _word(value: Any) -> str | None:
    return value.lower() if isinstance(value, str) and value else None


def _flag(value: Any) -> bool | None:
    return bool(value) if isinstance(value, bool | int | float) else None


def _precision(entries: Mapping[str, Any]) -> str | None:
    for name in ("fp16", "pure_bf16"):
        if entries.get(name) is True:
            return name
    found = _first(entries, "precision", "mixed_precision", "param_dtype", "params_dtype", "torch_dtype", "dtype")
    return str(found) if found in (16, 32) else _word(found)


def _tokens(entries: Mapping[str, Any]) -> float | None:
    whole = _number(_first(entries, "tokens_per_batch", "batch_tokens", "global_batch_tokens", "tokens_per_step"))
    batch = _number(_first(entries, "global_batch_size", "train_batch_size"))
    length = _number(
        _first(entries, "seq_length", "sequence_length", "seq_len", "max_seq_len", "block_size", "context_length")
    )
    return whole if whole is not None else batch * length if batch is not None and length is not None else None


def _mup(entries: Mapping[str, Any]) -> bool | None:
    word = _word(_first(entries, "parametrization", "parameterization"))
    return "mup" in word if word is not None else _flag(_first(entries, "mup", "use_mup", "mu_p"))
