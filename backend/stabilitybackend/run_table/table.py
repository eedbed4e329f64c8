"""The table of all runs: decoded rows in memory, kept up to date by what changed, asked by pages and programs."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from stabilitybackend.base.errors import BadRequest, Conflict, Unavailable
from stabilitybackend.run_table.columns import BUILT_IN, Column, column_of
from stabilitybackend.run_table.known_columns import KnownColumns
from stabilitybackend.run_table.matching import Filter
from stabilitybackend.run_table.order import DEFAULT_SORT, grouped, ordered, wanted
from stabilitybackend.run_table.rows import TableRun, conditions_of
from stabilitybackend.runs.index import BATCH, RunIndex
from stabilitybackend.runs.manager import RunManager
from stabilitybackend.schema.json_data import json_number
from stabilitybackend.schema.pages.run_table import (
    Cell,
    RunColumns,
    RunDigest,
    RunGroup,
    RunTable,
    TableRow,
)
from stabilitybackend.schema.runs import UNTIMED_KEY, Run
from stabilitybackend.storage.redis_link import redis_errors

__all__ = ["MAX_COLUMNS", "MAX_LIMIT", "RunTables", "TableQuery"]

#: Rows of one answer; columns beside the built-in ones.
MAX_LIMIT, MAX_COLUMNS = 5_000, 40
#: How often Redis is asked what changed of runs that nobody follows here, seconds.
ASK_EVERY_S = 0.25
#: Times in the index are those of frames, and some seconds late: what changed is looked for so far back, seconds.
SLACK_S = 30.0
#: An order is the same for all who ask within this time, seconds.
SHARED_S = 1.0
#: Orders that are kept for those who page through them. One of 5,000 runs takes 40 KiB.
MAX_ORDERS = 64


@dataclass(frozen=True)
class TableQuery:
    """What somebody wants to see. Fields: docs/api.md."""

    project: str | None
    q: str = ""
    sort: tuple[str, ...] = ()
    group: str = ""


@dataclass(frozen=True, slots=True)
class _Order:
    """Runs as they were sorted once."""

    token: str
    query: TableQuery
    ids: tuple[str, ...]
    groups: list[RunGroup]
    notes: list[str]
    made: float


class RunTables:
    """Answers what a table of the runs shows.

    Args:
        manager: of the runs. index: of all runs. clock: unix seconds now.
        news: returns the runs of which something else is stored than when it was called last, where somebody knows
            that already.
    """

    def __init__(
        self,
        manager: RunManager,
        index: RunIndex,
        clock: Callable[[], float] = time.time,
        news: Callable[[], set[str]] | None = None,
    ) -> None:
        self._news = news
        self._changed: set[str] = set()
        self._manager = manager
        self._index = index
        self._clock = clock
        self._rows: dict[str, TableRun] = {}
        self._followed: set[str] = set()
        self._asked = float("-inf")
        self._loading = asyncio.Lock()
        self._orders: OrderedDict[str, _Order] = OrderedDict()
        self._newest: dict[TableQuery, _Order] = {}
        self._ordering: dict[TableQuery, asyncio.Task[_Order]] = {}
        self._known = KnownColumns(clock)
        #: When somebody looked at the table last, unix seconds.
        self.used = float("-inf")

    # --- what people ask -----------------------------------------------------------------------------------------

    async def table(
        self, query: TableQuery, columns: Sequence[str], offset: int, limit: int, order: str | None = None
    ) -> RunTable:
        """Return some rows, of a new order, or of one that an answer named.

        Raises:
            BadRequest: the filter, a column, a place or an order is none.
            Conflict: ``order_gone``: the order is too old; nothing is left out silently, the caller begins again.
            Unavailable: Redis is away, and no row is known.
        """
        if len(columns) > MAX_COLUMNS:
            raise BadRequest(f"{len(columns)} columns asked for, expected at most {MAX_COLUMNS}", hint="ask for fewer")
        await self.refresh()
        self.used = self._clock()
        found = self._kept(order, query) if order else await self._shared(query)
        seen = self._visible(query.project)
        shown = [column_of(key) for key in columns]
        now = self._clock()
        rows = [self._row(run_id, shown, now) for run_id in found.ids[offset : offset + limit]]
        return RunTable(
            rows, offset, len(found.ids), len(seen), conditions_of(seen), found.token, found.groups,
            self._known.facts_of(query.project, shown, seen), found.notes, self._manager.storing,
        )  # fmt: skip

    async def columns(self, project: str | None, search: str, limit: int) -> RunColumns:
        """Return the columns whose name has a word, those of most runs first."""
        await self.refresh()
        seen = self._visible(project)
        return await asyncio.to_thread(self._known.search, project, seen, search, limit)

    def _visible(self, project: str | None) -> list[TableRun]:
        rows = self._rows.values()
        return list(rows) if project is None else [row for row in rows if row.run.project == project]

    def _kept(self, token: str, query: TableQuery) -> _Order:
        found = self._orders.get(token)
        if found is None or found.query.project != query.project:
            raise Conflict(
                f"order is {token[:40]!r}, which is not kept any more",
                hint="ask again without it: runs came and went since; begin with the first page of the new order",
                code="order_gone",
            )
        self._orders.move_to_end(token)
        return found

    async def _shared(self, query: TableQuery) -> _Order:
        """Return a new order, or the one that somebody got a moment ago, or waits for."""
        known = self._newest.get(query)
        if known is not None and self._clock() - known.made < SHARED_S:
            return known
        task = self._ordering.get(query)
        if task is None:
            task = self._ordering[query] = asyncio.create_task(self._ordered(query))
            task.add_done_callback(lambda _: self._ordering.pop(query, None))
        return await asyncio.shield(task)

    async def _ordered(self, query: TableQuery) -> _Order:
        sorts = wanted(query.sort or DEFAULT_SORT, "sort")
        by = wanted([query.group], "group")[0] if query.group else None
        filter_ = Filter(query.q)
        seen, now = self._visible(query.project), self._clock()

        def work() -> tuple[tuple[str, ...], list[RunGroup], list[str]]:
            rows, groups = grouped(ordered(filter_.of(seen, now), sorts, now), by, now)
            keys = dict.fromkeys([*filter_.keys, *(column.key for column, _ in [*sorts, *([by] if by else [])])])
            notes = self._known.notes(query.project, [key for key in keys if key not in BUILT_IN], seen)
            return tuple(row.run.run_id for row in rows), groups, notes

        ids, groups, notes = await asyncio.to_thread(work)
        order = _Order(secrets.token_hex(8), query, ids, groups, notes, now)
        self._orders[order.token] = order
        while len(self._orders) > MAX_ORDERS:
            _, oldest = self._orders.popitem(last=False)
            if self._newest.get(oldest.query) is oldest:
                del self._newest[oldest.query]
        self._newest[query] = order
        return order

    def _row(self, run_id: str, columns: Iterable[Column], now: float) -> TableRow:
        row = self._rows.get(run_id)
        if row is None:
            return TableRow(run_id=run_id, gone=True)
        run, digest = row.run, row.digest or _NO_DIGEST
        speed, unit = row.speed
        untimed = bool(run.config.get(UNTIMED_KEY))  # its moments are made up
        return TableRow(
            run_id=run_id, name=run.name, project=run.project, tags=row.tags, status=run.status,
            state=replace(run.state, since=None) if untimed else run.state,
            note=run.note, step=run.last_step, loss=None if row.loss is None else json_number(row.loss),
            loss_metric=run.loss_metric, tokens=digest.tokens, tokens_why=digest.tokens_why, speed=speed,
            speed_unit=unit, goodput=digest.goodput, goodput_why=digest.goodput_why,
            gpus=BUILT_IN["gpus"].value(row, now), ranks=run.world_size, open_incidents=run.open_incidents,
            worst_incident=run.worst_incident, rollbacks=run.rollbacks, undo=run.undo, created=run.created,
            updated=run.updated, progress=None if untimed else run.logged, curve=digest.curve,
            curve_why="" if digest.curve else _why_no_curve(row),
            cells=[_cell(column.value(row, now)) for column in columns],
        )  # fmt: skip

    # --- keeping up ----------------------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Bring the rows up to date; whoever comes meanwhile waits for the same look.

        Raises:
            Unavailable: Redis is away, and no row is known.
        """
        async with self._loading:
            self._take_followed()
            if self._clock() - self._asked < ASK_EVERY_S:
                return
            try:
                with redis_errors():
                    await self._ask()
            except Unavailable:
                if not self._rows:
                    raise  # else what is known is shown, and ``storing`` says that Redis is away

    def _take_followed(self) -> None:
        for run_id, worker in self._manager.followed().items():
            run = worker.listing.run
            known = self._rows.get(run_id)
            if known is None:
                continue  # a new one: the index tells, with its digest
            if known.run is not run:
                self._put(run, known.digest)

    async def _ask(self) -> None:
        now = self._clock()
        followed = set(self._manager.followed())
        first = not self._rows
        if self._news is not None:
            self._changed |= self._news()  # until it is read, whatever goes wrong on the way
        elif not first:
            self._changed = set(await self._index.active_since(self._asked - SLACK_S))
        changed = self._changed - followed
        changed |= self._followed - followed  # let go since: what was stored last is the newest
        # Not by their number alone: one that came and one that was deleted since leave it as it was.
        unknown = (changed | followed) - self._rows.keys()
        if first or unknown or await self._index.count() != len(self._rows):
            ids = await self._index.ids()
            there = set(ids)
            for gone in self._rows.keys() - there:
                del self._rows[gone]
            changed = (changed & there) | (there - self._rows.keys())
        await self._load(sorted(changed))
        self._changed = set()
        self._followed, self._asked = followed, now

    async def _load(self, run_ids: Sequence[str]) -> None:
        for at in range(0, len(run_ids), BATCH):
            some = run_ids[at : at + BATCH]
            runs, digests = await self._index.stored_all(some), await self._index.digests(some)
            workers = self._manager.followed()
            for run in runs:
                worker = workers.get(run.run_id)
                shown = self._manager.marked(run) if worker is None else worker.listing.run
                self._put(shown, digests.get(run.run_id))

    def _put(self, run: Run, digest: RunDigest | None) -> None:
        self._rows[run.run_id] = TableRun(run, digest, self._rows.get(run.run_id))

    # --- what is worked out of the points ------------------------------------------------------------------------

    def row(self, run_id: str) -> TableRun | None:
        """Return a run as the table has it."""
        return self._rows.get(run_id)

    def rows(self) -> list[TableRun]:
        """Return all runs as the table has them."""
        return list(self._rows.values())

    def digested(self, run_id: str, digest: RunDigest) -> None:
        """Take over what was worked out of a run's points."""
        if (known := self._rows.get(run_id)) is not None:
            self._put(known.run, digest)


_NO_DIGEST = RunDigest(
    step=None, head=0, status="", made=0.0, tokens_why="not worked out yet", goodput_why="not worked out yet"
)


def _why_no_curve(row: TableRun) -> str:
    if not row.run.latest:
        return "no metric is logged yet"
    return "not worked out yet" if row.digest is None else "fewer than two points"


def _cell(value: object) -> Cell:
    if isinstance(value, float):
        return json_number(value)
    return ", ".join(map(str, value)) if isinstance(value, list) else value  # type: ignore[return-value]
