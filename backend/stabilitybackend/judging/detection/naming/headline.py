"""Main metrics of a run, under their own names: by roles, then by common words.

Used by the run's page, the wall and tables of runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, islice

from stabilitybackend.schema.metric_roles import (
    BATCH_SIZE,
    GRAD_NORM,
    LOSS,
    LR,
    NAMES_REMEMBERED,
    RATIO,
    SPEED,
    STEP_TIME,
    VAL_LOSS,
    best_of,
    dataset_of,
    likely_role_of,
    role_of,
    words_of,
)
from stabilitybackend.schema.pages.headline import Headline, HeadlineCell, HeadlineChart
from stabilitybackend.schema.watched import WatchedMetric, WatchedMetrics

__all__ = ["MAX_CELLS", "MAX_CHARTS", "headline_of", "main_of", "unit_of"]

#: Last word of a name -> unit.
_WORDS = {
    "ms": "ms", "us": "µs", "ns": "ns", "sec": "s", "secs": "s", "seconds": "s", "mins": "min", "minutes": "min",
    "hours": "h", "bytes": "B", "kib": "KiB", "mib": "MiB", "gib": "GiB", "tib": "TiB", "kb": "kB", "mb": "MB",
    "gb": "GB", "tb": "TB", "mhz": "MHz", "ghz": "GHz", "hz": "Hz", "watts": "W", "celsius": "°C", "pct": "%",
    "percent": "%", "percentage": "%", "rpm": "rpm", "joules": "J", "kwh": "kWh", "tflops": "TFLOP/s",
}  # fmt: skip
#: One letter is a unit only with another word for the quantity: ``loss_s`` is a student's loss.
_LETTERS = {
    "s": ("s", frozenset((
        "time", "duration", "latency", "elapsed", "wall", "wait", "delay", "age", "eta", "uptime", "timeout",
        "interval",
        "data", "forward", "backward", "optimizer", "compute", "step", "load", "save", "runtime", "sync",
    ))),
    "c": ("°C", frozenset(("temp", "temperature", "junction", "hotspot"))),
    "w": ("W", frozenset(("power", "draw", "watt", "tdp", "energy"))),
    "j": ("J", frozenset(("energy",))),
}  # fmt: skip
_SECONDS = frozenset(("s", "sec", "secs", "second", "seconds"))
_BRACKETS = re.compile(r"\(([^()]{1,12})\)\s*$")
_PER = re.compile(
    r"(?:^|[_\-/ .])([A-Za-z]+)(?:_per_|-per-| per |(?<=tokens)/|(?<=samples)/|(?<=steps)/|(?<=images)/|(?<=it)/)"
    r"(s|secs?|seconds?|step|gpu|day|hour)$",
    re.IGNORECASE,
)
_WORD = re.compile(r"[A-Za-z%]+")


@lru_cache(maxsize=NAMES_REMEMBERED)
def unit_of(metric: str) -> str:
    """Return the unit at the end of a name, "" for none.

    Example:
        >>> [unit_of(name) for name in ("step_time_s", "tokens_per_sec", "gpu/0/temperature_c", "loss_s", "mfu(%)")]
        ['s', 'tokens/s', '°C', '', '%']
    """
    name = metric.strip()
    brackets = _BRACKETS.search(name)
    if brackets is not None:
        inside = brackets[1]
        return "s" if inside.lower() in _SECONDS else _WORDS.get(inside.lower(), "%" if inside == "%" else "")
    rate = _PER.search(name)
    if rate is not None:
        return f"{rate[1].lower()}/{'s' if rate[2].lower() in _SECONDS else rate[2].lower()}"
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or not name.lower().endswith(words[-1]):
        return ""
    last = words[-1]
    if last in _LETTERS:
        unit, beside = _LETTERS[last]
        return unit if beside.intersection(words[:-1]) else ""
    if last in ("min", "max"):
        return ""
    # A whole name is no unit: ``seconds`` alone may count anything, and ``mb`` may be a microbatch.
    return _WORDS.get(last, "") if len(words) > 1 or last == "tflops" else ""


#: Cells of a strip; more are not read.
MAX_CELLS = 8
#: Cells up to which metrics without a role or common word fill a strip.
FILLED_CELLS = 4
#: Small charts of a page by default: three rows of three.
MAX_CHARTS = 9
#: Metrics in the search: a job with more has its roles among the first ones, or names them.
MAX_LOOKED_AT = 20_000
#: Readings of agents' GPUs are no metrics of the training.
_READINGS = "gpu/"
#: Ids of roles fixed by pages and their tests.
_IDS = {GRAD_NORM: "grad", SPEED: "tokens", STEP_TIME: "step-time", VAL_LOSS: "val-loss"}
#: Roles in order of display.
_ORDER = (LOSS, "reward", VAL_LOSS, GRAD_NORM, "accuracy", "kl", "entropy", SPEED, STEP_TIME, "mfu", LR, "perplexity",
          "success", "length", "memory")  # fmt: skip
_BY_MEDIAN = frozenset((SPEED, STEP_TIME))

#: Role -> words of its names. Every word of one of the tuples is required.
_COMMON: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = (
    ("reward", (("reward",), ("rewards",), ("rew",), ("episode", "return"), ("returns",))),
    ("accuracy", (("accuracy",), ("acc",))),
    ("kl", (("kl",),)),
    ("entropy", (("entropy",),)),
    ("mfu", (("mfu",),)),
    ("perplexity", (("perplexity",), ("ppl",))),
    ("success", (("success", "rate"), ("win", "rate"), ("winrate",), ("solve", "rate"))),
    ("length", (("completion", "length"), ("response", "length"), ("ep", "len"), ("episode", "length"))),
    ("memory", (("memory",), ("mem",), ("vram",))),
)
#: Words of derived numbers: one without them is preferred.
_ABOUT = frozenset((
    "std", "var", "min", "max", "coef", "coeff", "coefficient", "target", "loss", "clip", "clipped", "clipfrac",
    "bonus",
    "weight", "beta", "num", "count", "layer", "layers", "head", "per", "margin", "margins", "rejected", "penalty",
    "free", "total", "retries", "time",
))  # fmt: skip
#: Counters and clocks are progress, no result: never used to fill a strip.
_COUNTERS = frozenset((
    "step", "steps", "epoch", "epochs", "iteration", "iterations", "iter", "timestamp", "seed", "version", "rank",
    "consumed", "samples", "seen", "episodes", "timesteps",
))  # fmt: skip


@lru_cache(maxsize=NAMES_REMEMBERED)
def common_role_of(metric: str) -> str:
    """Return the common role of a metric, by the words of its name; "" for any other.

    Example:
        >>> [common_role_of(name) for name in ("rollout/ep_rew_mean", "approx_kl", "kl_loss", "train/acc", "alpha")]
        ['reward', 'kl', '', 'accuracy', '']
    """
    words = set(words_of(metric))
    if "loss" in words or "coef" in words or "coeff" in words:
        return ""
    return next((role for role, sets in _COMMON if any(words.issuperset(one) for one in sets)), "")


def headline_of(watched: WatchedMetrics, metrics: Sequence[str]) -> Headline:
    """Return the headline of a run that logs ``metrics``.

    Args:
        watched: by detectors (``watched_of``).
        metrics: names in the order of appearance.
    """
    logged = [name for name in metrics[:MAX_LOOKED_AT] if not name.startswith(_READINGS)]
    chosen = _by_role(watched.watched, logged)
    order = sorted(chosen, key=_ORDER.index)
    if LOSS not in chosen and "reward" in chosen:
        order.insert(0, order.pop(order.index("reward")))
    cells = [_cell(role, chosen[role]) for role in order][:MAX_CELLS]
    if len(cells) < FILLED_CELLS:
        cells += _fill(logged, chosen.values(), FILLED_CELLS - len(cells))
    main = main_of(logged, chosen.get(LOSS))
    if main is not None:
        known = [cell for cell in cells if cell.metric == main and cell.role]
        others = [cell for cell in cells if cell.metric != main]
        cells = [*(known or [HeadlineCell("main", main, "", unit_of(main))]), *others]
    below = chosen.get(GRAD_NORM)
    charts = [*_families(watched, logged), *(_chart(cell) for cell in cells if cell.metric != main and cell.role)]
    return Headline(main, below if below != main else None, cells[:MAX_CELLS], charts[:MAX_CHARTS])


def main_of(metrics: Iterable[str], loss: str | None) -> str | None:
    """Return the metric for a large chart, or a curve in a table.

    The loss, else the reward, else a metric named like a loss, else the first that is no counter. Readings of GPUs are
    excluded.

    Args:
        loss: the metric watched as the loss, None for none.

    Example:
        >>> main_of(["gpu/0/power_w", "epoch", "kl", "ppo/value_loss", "reward"], None)
        'reward'
    """
    if loss is not None:
        return loss
    logged = [name for name in metrics if not name.startswith(_READINGS)][:MAX_LOOKED_AT]
    rewards = [name for name in logged if common_role_of(name) == "reward"]
    if rewards:
        return min(rewards, key=_aside)
    return _named_like_a_loss(logged) or next(chain(_plain_ones(logged), logged), None)


def _plain_ones(names: Iterable[str]) -> Iterator[str]:
    return (name for name in names if not _COUNTERS.intersection(words_of(name)) and dataset_of(name) is None)


def _by_role(watched: Iterable[WatchedMetric], logged: Sequence[str]) -> dict[str, str]:
    """Return role -> its one metric."""
    of_role: dict[str, list[str]] = {}
    for one in watched:
        if one.dataset is None and one.role in _ORDER:
            of_role.setdefault(one.role, []).append(one.metric)
    # A utilisation is a speed too, and has a cell of its own next to another speed.
    of_role[SPEED] = [name for name in of_role.get(SPEED, ()) if common_role_of(name) != "mfu"] or of_role.get(
        SPEED, []
    )
    chosen = {role: best_of(role, names) or names[0] for role, names in of_role.items() if names}
    for name in logged:  # unwatched metrics may have a recognised name nevertheless
        role = role_of(name)
        if role in _ORDER and role not in of_role and role != BATCH_SIZE and role != LOSS:
            chosen.setdefault(role, best_of(role, logged) or name)
    taken = set(chosen.values())
    common: dict[str, list[str]] = {}
    for name in logged:
        role = common_role_of(name)
        if role and name not in taken and dataset_of(name) is None:
            common.setdefault(role, []).append(name)
    for role, names in common.items():
        if role not in chosen:
            chosen[role] = min(names, key=_aside)
    return chosen


def _aside(metric: str) -> tuple[int, int, int, str]:
    """Return a sort key: the quantity itself before derived numbers, and a mean first."""
    words = words_of(metric)
    return (len(_ABOUT.intersection(words)), 0 if "mean" in words or "avg" in words else 1, len(words), metric)


def _named_like_a_loss(logged: Sequence[str]) -> str | None:
    """Return a metric named as a loss of a part or a policy."""
    likely = next((name for name in logged if likely_role_of(name) == LOSS), None)
    return likely or next(
        (name for name in logged if words_of(name)[-1:] == ("loss",) and dataset_of(name) is None), None
    )


def _fill(logged: Sequence[str], taken: Iterable[str], count: int) -> list[HeadlineCell]:
    """Return other metrics in the order of the job, without counters."""
    there = set(taken)
    left = [name for name in logged if name not in there]
    few = list(islice(_plain_ones(left), count)) or left[:count]
    return [HeadlineCell(f"other-{place}", name, "", unit_of(name)) for place, name in enumerate(few, 1)]


def _cell(role: str, metric: str) -> HeadlineCell:
    unit = unit_of(metric)
    return HeadlineCell(_IDS.get(role, role), metric, role, unit, role in _BY_MEDIAN)


def _chart(cell: HeadlineCell) -> HeadlineChart:
    return HeadlineChart(cell.id, cell.metric, [cell.metric], cell.unit, per_rank=cell.role == STEP_TIME)


def _families(watched: WatchedMetrics, logged: Sequence[str]) -> list[HeadlineChart]:
    """Return the charts with a line for each data set."""
    charts = []
    losses = [one for one in watched.watched if one.role == LOSS and one.dataset is not None]
    if losses:
        names = [one.metric for one in losses]
        charts.append(HeadlineChart("datasets", *_family(names, [one.dataset or "" for one in losses])))
    shares = [one for one in watched.watched if one.role == RATIO and one.dataset is not None and one.text == ""]
    if shares or watched.mixture:
        metrics = _family([one.metric for one in shares], [one.dataset or "" for one in shares])[1] if shares else []
        charts.append(HeadlineChart("ratio", "Mixture", metrics))
    return charts


def _family(names: list[str], datasets: list[str]) -> tuple[str, list[str]]:
    """Return the title of a family and its names, as ``prefix*`` where possible."""
    cut: Callable[[int], str] = lambda place: names[place].removesuffix(datasets[place])  # noqa: E731
    prefix = cut(0)
    if prefix.endswith("/") and all(cut(place) == prefix for place in range(len(names))):
        return f"{prefix}*", [f"{prefix}*"]
    return f"{names[0]} …" if len(names) > 1 else names[0], names
