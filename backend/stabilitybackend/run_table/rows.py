"""A run in the memory of the table: decoded once, with the values that filters and orders read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, get_args

from stabilitybackend.schema.metric_roles import SPEED, best_of
from stabilitybackend.schema.pages.run_table import Cell, RunDigest
from stabilitybackend.schema.runs import Run
from stabilitybackend.schema.severity import RunCondition

__all__ = ["TableRun", "conditions_of", "speed_of", "unit_of_speed"]

#: More than any time, unix seconds: a time divided by it stays less than one place of the order.
LATER = 1e11
#: Values of a list or map in a config that are looked at: a vocabulary in it is no column.
MAX_CONFIG_KEYS = 1_000
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class TableRun:
    """One run of the table.

    Attributes:
        run: as it was shown or stored last.
        digest: the digest of its points, None before the first one.
        text: searchable text, lower case.
    """

    def __init__(self, run: Run, digest: RunDigest | None, before: TableRun | None = None) -> None:
        self.run = run
        self.digest = digest
        if before is not None and before.run.config is run.config and "config" in before.__dict__:
            self.config = before.config  # flattened once: a live run becomes another one each second
        self.text = " ".join((run.name, run.run_id, run.project, *self.tags)).lower()

    @property
    def tags(self) -> list[str]:
        """Its tags, [] where it has none."""
        tags: list[str] = getattr(self.run, "tags", None) or []
        return tags

    @property
    def urgency(self) -> float:
        """Urgency: less is sooner; of equals the latest."""
        state = self.run.state
        return state.order - (state.since or 0.0) / LATER if state.incident_id else float(state.order)

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """Its config with dotted paths as keys."""
        return dict(_flat(self.run.config))

    @cached_property
    def loss(self) -> float | None:
        """The newest value of the metric that serves as its loss."""
        return None if self.run.loss_metric is None else self.metric(self.run.loss_metric)

    @cached_property
    def speed(self) -> tuple[float | None, str]:
        """How fast it is, and in which unit."""
        return speed_of(self.run, self.digest)

    def metric(self, name: str) -> float | None:
        """Return the newest value of a metric."""
        value = self.run.latest.get(name)
        return _WORDS.get(value) if isinstance(value, str) else value

    def any(self, key: str) -> Cell:
        """Return the value of a key without a prefix: the config's if present, else the newest value of a metric."""
        return self.config[key] if key in self.config else self.metric(key)


def conditions_of(rows: Iterable[TableRun]) -> dict[RunCondition, int]:
    """Return how many runs are each of the conditions; together they are all of them."""
    return dict.fromkeys(get_args(RunCondition), 0) | Counter(row.run.state.condition for row in rows)


def speed_of(run: Run, digest: RunDigest | None) -> tuple[float | None, str]:
    """Return how fast a run is, in tokens, samples or steps a second as its job logs it, else by its step times."""
    name = best_of(SPEED, (one for one in run.latest if unit_of_speed(one)))
    value = None if name is None else run.latest[name]
    if name is not None and isinstance(value, float | int) and value > 0:
        return float(value), unit_of_speed(name)
    return (None, "") if digest is None else (digest.speed, digest.speed_unit)


def unit_of_speed(metric: str) -> str:
    """Return the unit in the name of a speed, "" without one.

    Example:
        >>> unit_of_speed("throughput/device/tokens_per_sec"), unit_of_speed("tps"), unit_of_speed("mfu")
        ('tokens/s per GPU', 'tokens/s', '')
    """
    name = metric.lower()
    if "_per_s" not in name and "/s" not in name and not name.endswith(("tps", "(tps)", "wps")):
        return ""
    noun = next((noun for noun in ("tokens", "samples", "steps", "batches", "items") if noun in name), "")
    if not noun:
        noun = "tokens" if name.endswith(("tps", "(tps)", "wps")) else ""
    return f"{noun}/s per GPU" if noun and "device" in name else f"{noun}/s" if noun else ""


def _flat(config: Mapping[str, Any]) -> Iterator[tuple[str, Cell]]:
    left = MAX_CONFIG_KEYS
    ahead: list[tuple[str, Any]] = [(str(key), value) for key, value in reversed(list(config.items()))]
    while ahead and left:
        path, value = ahead.pop()
        left -= 1
        if isinstance(value, Mapping):
            ahead += [(f"{path}.{key}", inner) for key, inner in reversed(list(value.items()))]
        elif isinstance(value, list | tuple):
            yield path, ", ".join(str(one) for one in value[:16]) + (", ..." if len(value) > 16 else "")
        elif value is None or isinstance(value, bool | int | float | str):
            yield path, _WORDS.get(value, value) if isinstance(value, str) else value
