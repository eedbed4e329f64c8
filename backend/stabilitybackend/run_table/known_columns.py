"""Which keys of configs and which metrics there are, in how many runs, with which values: to choose and complete."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from stabilitybackend.run_table.columns import BUILT_IN, CONFIG, METRIC, Column
from stabilitybackend.run_table.rows import TableRun
from stabilitybackend.schema.pages.run_table import ColumnFacts, RunColumns

__all__ = ["KnownColumns"]

#: Names are counted again after this time, seconds: it takes a fifth of a second with 5,000 runs.
COUNTED_S = 30.0
#: Values that are offered for one column; the longest that is, characters.
MAX_VALUES, MAX_VALUE_CHARS = 20, 120
#: Built-in columns whose values are offered.
_WITH_VALUES = ("project", "status", "tag")


@dataclass(frozen=True, slots=True)
class _Counted:
    """Names in so many runs, and the values of those that were asked for; threads share it."""

    made: float
    runs: int
    names: Counter[str]
    values: dict[str, list[str]] = field(default_factory=dict)


class KnownColumns:
    """Counts names, for each project that a key is bound to; ``clock`` returns unix seconds. Any thread may ask."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._counted: dict[str | None, _Counted] = {}

    def _count(self, project: str | None, rows: Sequence[TableRun]) -> _Counted:
        """Return in how many runs each ``config.<path>`` and ``metric.<name>`` is."""
        now = self._clock()
        known = self._counted.get(project)
        if known is not None and now - known.made < COUNTED_S and known.runs == len(rows):
            return known
        names, sets = Counter[str](), Counter[tuple[str, ...]]()
        for row in rows:
            names.update(CONFIG + path for path in row.config)
            sets[tuple(row.run.latest)] += 1  # runs of one job have the same metrics
        for metrics, count in sets.items():
            for name in metrics:
                names[METRIC + name] += count
        found = self._counted[project] = _Counted(now, len(rows), names)
        return found

    def search(self, project: str | None, rows: Sequence[TableRun], search: str, limit: int) -> RunColumns:
        """Return the columns whose name has the word, at most ``limit`` besides the built-in ones."""
        word = search.strip().lower()
        counted = self._count(project, rows)
        names = counted.names
        found = [key for key in names if word in key.partition(".")[2].lower()]
        found.sort(key=lambda key: (-names[key], key))
        built_in = [
            structs.replace(column.facts, values=_values(column, rows) if column.key in _WITH_VALUES else [])
            for column in BUILT_IN.values()
            if not word or word in column.key or word in column.label.lower()
        ]
        shown = [_facts(counted, key, rows) for key in found[:limit]]
        return RunColumns(built_in, shown, len(found))

    def facts_of(self, project: str | None, columns: Iterable[Column], rows: Sequence[TableRun]) -> list[ColumnFacts]:
        """Return what is known of some columns; one that no run has is marked as gone."""
        found = []
        for column in columns:
            if column.key in BUILT_IN:
                found.append(column.facts)
                continue
            runs = self._runs(project, column.key, rows)
            found.append(structs.replace(column.facts, runs=runs, gone=not runs))
        return found

    def notes(self, project: str | None, keys: Iterable[str], rows: Sequence[TableRun]) -> list[str]:
        """Return a sentence for each key that no run has."""
        found = []
        for key in keys:
            if self._runs(project, key, rows):
                continue
            bare = [name.partition(".")[2] for name in self._count(project, rows).names]
            near = difflib.get_close_matches(key.removeprefix(CONFIG).removeprefix(METRIC), {*bare, *BUILT_IN}, 3)
            meant = f" Did you mean {' or '.join(near)}?" if near else ""
            found.append(f"No run has {key[:80]!r} in its config or among its metrics.{meant}")
        return found

    def _runs(self, project: str | None, key: str, rows: Sequence[TableRun]) -> int:
        names = self._count(project, rows).names
        if key.startswith((CONFIG, METRIC)):
            return names[key]
        return max(names[CONFIG + key], names[METRIC + key])


def _facts(counted: _Counted, key: str, rows: Sequence[TableRun]) -> ColumnFacts:
    kind, _, name = key.partition(".")
    runs = counted.names[key]
    if kind == "metric":
        return ColumnFacts(key, name, "number", "newest value", runs)
    values = counted.values.get(key)
    if values is None:
        values = counted.values[key] = _config_values(name, rows)
    return ColumnFacts(key, name, "any", "of the config", runs, values)


def _config_values(name: str, rows: Sequence[TableRun]) -> list[str]:
    values = Counter[str]()
    for row in rows:
        value = row.config.get(name)
        if isinstance(value, str | bool | int) and len(str(value)) <= MAX_VALUE_CHARS:
            values[str(value).lower() if isinstance(value, bool) else str(value)] += 1
    return [value for value, _ in values.most_common(MAX_VALUES)]


def _values(column: Column, rows: Sequence[TableRun]) -> list[str]:
    counted = Counter[str]()
    for row in rows:
        value = column.value(row, 0.0)
        counted.update(value if isinstance(value, list) else [value] if value else [])
    return [value for value, _ in counted.most_common(MAX_VALUES)]
