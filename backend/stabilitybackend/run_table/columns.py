"""The columns of the table: those that every run has, and how a key of a filter or an order finds its values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stabilitybackend.run_table.rows import TableRun
from stabilitybackend.schema.pages.run_table import ColumnFacts, ColumnKind

__all__ = ["BUILT_IN", "CONFIG", "METRIC", "Column", "column_of", "label_of"]

CONFIG, METRIC = "config.", "metric."
#: Value of a run in a column, at a time (unix seconds).
Value = Callable[[TableRun, float], Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A column; ``inside``: text is looked for in its values, elsewhere it has to be the whole value."""

    key: str
    label: str
    kind: ColumnKind
    what: str
    value: Value
    inside: bool = False

    @property
    def facts(self) -> ColumnFacts:
        """The column as pages get it."""
        return ColumnFacts(self.key, self.label, self.kind, self.what)


def _age(time: Callable[[TableRun], float | None]) -> Value:
    def age(row: TableRun, now: float) -> float | None:
        # A clock that is ahead does not make a run younger than new.
        return None if (then := time(row)) is None else max(0.0, now - then)

    return age


def _digest(name: str) -> Value:
    return lambda row, now: None if row.digest is None else getattr(row.digest, name)


#: The columns that every run has, in the order in which pages offer them.
BUILT_IN: dict[str, Column] = {
    one.key: one
    for one in (
        Column("state", "State", "state", "worst open incident, else what the job does; sick ones first",
               lambda row, now: row.urgency),
        Column("name", "Run", "text", "name of the run", lambda row, now: row.run.name, inside=True),
        Column("id", "Run id", "text", "id of the run", lambda row, now: row.run.run_id, inside=True),
        Column("project", "Project", "text", "", lambda row, now: row.run.project or None),
        Column("tag", "Tags", "tags", "tags that people gave it", lambda row, now: row.tags),
        Column("status", "Status", "text", "what the job does", lambda row, now: row.run.status),
        Column("step", "Step", "count", "newest step of the effective timeline", lambda row, now: row.run.last_step),
        Column("tokens", "Tokens", "count", "tokens seen so far, of a metric that counts them", _digest("tokens")),
        Column("speed", "Speed", "number", "tokens, samples or steps a second, as the job logs it, else by its step "
               "times", lambda row, now: row.speed[0]),
        Column("loss", "Loss", "number", "newest value of the metric that is watched as the loss",
               lambda row, now: row.loss),
        Column("curve", "Whole run", "curve", "the loss over the whole run", lambda row, now: None),
        Column("incidents", "Incidents", "count", "open incidents, without those that are only worth knowing",
               lambda row, now: row.run.open_incidents),
        Column("gpus", "GPUs", "count", "GPUs that agents see at work", lambda row, now: _gpus(row)),
        Column("ranks", "Ranks", "count", "ranks of the newest launch", lambda row, now: row.run.world_size),
        Column("goodput", "Goodput", "share", "of the time in which the job logged, the share that the model still has",
               _digest("goodput")),
        Column("rollbacks", "Rollbacks", "count", "times that it went back", lambda row, now: row.run.rollbacks),
        Column("since", "Since", "age", "since when its state is what it is", _age(lambda row: row.run.state.since)),
        Column("progress", "Last progress", "age", "since its ranks logged last", _age(lambda row: row.run.logged)),
        Column("age", "Age", "age", "since it first reported", _age(lambda row: row.run.created)),
        Column("updated", "Last report", "age", "since its agents sent anything", _age(lambda row: row.run.updated)),
    )
}  # fmt: skip


def _gpus(row: TableRun) -> int | None:
    now = row.run.world.gpus
    return now if now is not None else None if row.digest is None else row.digest.gpus


def column_of(key: str) -> Column:
    """Return the column of a key: a built-in one, ``config.<path>``, ``metric.<name>``, or else either of these."""
    known = BUILT_IN.get(key)
    if known is not None:
        return known
    if key.startswith(CONFIG):
        path = key.removeprefix(CONFIG)
        return Column(key, path, "any", "of the config", lambda row, now: row.config.get(path))
    if key.startswith(METRIC):
        name = key.removeprefix(METRIC)
        return Column(key, name, "number", "newest value", lambda row, now: row.metric(name))
    return Column(key, key, "any", "of the config, else the newest value", lambda row, now: row.any(key))


def label_of(column: Column, row: TableRun, value: Any) -> str:
    """Return a value as a group is called; "" for none."""
    if column.kind == "state":
        return row.run.state.word
    if isinstance(value, list):
        return ", ".join(sorted(value))
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
