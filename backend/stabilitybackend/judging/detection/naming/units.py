"""The unit of a metric, from its name alone: ``step_time_s``, ``max_reserved(GiB)``, ``tokens_per_sec``."""

from __future__ import annotations

import re
from functools import lru_cache

from stabilitybackend.schema.metric_roles import NAMES_REMEMBERED

__all__ = ["unit_of"]

#: Last word of a name -> unit.
_WORDS = {
    "ms": "ms", "us": "µs", "ns": "ns", "sec": "s", "secs": "s", "seconds": "s", "mins": "min", "minutes": "min",
    "hours": "h", "bytes": "B", "kib": "KiB", "mib": "MiB", "gib": "GiB", "tib": "TiB", "kb": "kB", "mb": "MB",
    "gb": "GB", "tb": "TB", "mhz": "MHz", "ghz": "GHz", "hz": "Hz", "watts": "W", "celsius": "°C", "pct": "%",
    "percent": "%", "percentage": "%", "rpm": "rpm", "joules": "J", "kwh": "kWh", "tflops": "TFLOP/s",
}  # fmt: skip
#: One letter is a unit only where another word of the name says what is measured: ``loss_s`` is a student's loss.
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
    """Return the unit that a name ends with, "" where it says none.

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
