"""Which columns there are: several requests count and read them in threads of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stabilitybackend.run_table.rows import TableRun
from stabilitybackend.run_table.table import KnownColumns
from stabilitybackend.schema.runs import Run


def row(run_id: str, lr: int) -> TableRun:
    run = Run(run_id=run_id, project="llm", name=run_id, config={"lr": lr}, created=0.0, updated=0.0)
    return TableRun(run, None)


class Interrupted(list[TableRun]):
    """Rows that are counted, and while their values are read another thread does its work."""

    def __init__(self, rows: list[TableRun], other: Callable[[], object]) -> None:
        super().__init__(rows)
        self._reads, self._other = 0, other

    def __iter__(self) -> Iterator[TableRun]:
        self._reads += 1
        if self._reads == 2:
            self._other()
        return super().__iter__()


def test_values_of_a_column_are_those_of_the_runs_that_were_counted_whatever_a_slower_request_reads() -> None:
    known = KnownColumns(lambda: 0.0)
    newer = [row("a", 1), row("b", 2)]

    def values(rows: list[TableRun]) -> list[str]:
        (lr,) = known.search(None, rows, "lr", 10).found
        return lr.values

    assert values(Interrupted([row("a", 1)], lambda: values(newer))) == ["1"]
    assert values(newer) == ["1", "2"]
