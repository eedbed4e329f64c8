"""The table of all runs: decoded rows in memory, kept up to date from changes, and the language of its filter.

    state:sick project:llm lr>3e-4 -tag:old "two words" loss<2 age<2h optimizer.name:adam* step:1000,2000

A term is a word to look for, or a key, an operator and a value. All terms must match; ``-`` negates a term. ``:`` and
``=`` mean equal (``*`` stands for anything, commas for "or"), ``!=`` is the opposite; ``<``, ``<=``, ``>`` and ``>=``
compare numbers. A text with spaces or commas goes into double quotes. Terms become functions once, then each run is
matched.
"""

from __future__ import annotations

import asyncio
import difflib
import math
import re
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import ge, gt, le, lt
from typing import Any, Literal, get_args

from msgspec import structs
from msgspec.structs import replace

from stabilitybackend.base.errors import BadRequest, Conflict, Unavailable
from stabilitybackend.run_table.columns import BUILT_IN, CONFIG, METRIC, Column, column_of, label_of
from stabilitybackend.run_table.rows import TableRun, conditions_of
from stabilitybackend.runs.index import BATCH, RunIndex
from stabilitybackend.runs.manager import RunManager
from stabilitybackend.schema.json_data import json_number
from stabilitybackend.schema.pages.run_table import (
    Cell,
    ColumnFacts,
    RunColumns,
    RunDigest,
    RunGroup,
    RunTable,
    TableRow,
)
from stabilitybackend.schema.runs import STATUSES, UNTIMED_KEY, Run
from stabilitybackend.schema.severity import PHASE_APPEARANCES, RunCondition
from stabilitybackend.storage.redis_link import redis_errors

__all__ = ["MAX_CHARS", "MAX_COLUMNS", "MAX_LIMIT", "Filter", "KnownColumns", "RunTables", "TableQuery", "parse"]

#: First key of an order without a request: runs with an open incident first, then those under way, then the newest.
DEFAULT_SORT = ("state",)
#: Columns that an order can have one after the other.
MAX_SORTS = 5


def wanted(names: Sequence[str], what: str) -> list[tuple[Column, bool]]:
    """Return the columns that ``sort`` or ``group`` name, and whether each is turned round by a ``-`` before it.

    Raises:
        BadRequest: nothing can be sorted or grouped by one of them.
    """
    if len(names) > MAX_SORTS:
        raise BadRequest(
            f"{len(names)} columns in {what}, expected at most {MAX_SORTS}", hint="leave the last ones out"
        )
    found = list[tuple[Column, bool]]()
    for name in names:
        column = column_of(name.removeprefix("-"))
        if not column.key or column.kind == "curve" or (what == "group" and column.kind == "age"):
            possible = [one.key for one in BUILT_IN.values() if one.kind != "curve"]
            raise BadRequest(
                f"{what} is {name[:80]!r}: runs can't be {'grouped' if what == 'group' else 'sorted'} by that",
                hint=f"possible: {', '.join(possible)}, config.<key>, metric.<name>"
                + ("; no ages" if what == "group" else ""),
            )
        found.append((column, name.startswith("-")))
    return found


def ordered(rows: Sequence[TableRun], sorts: Sequence[tuple[Column, bool]], now: float) -> list[TableRun]:
    """Return the runs in an order; equal ones the newest first; those without a value last, whichever way it goes."""
    found = sorted(rows, key=lambda row: (-row.run.created, row.run.run_id))
    for column, reverse in reversed(sorts):
        of = column.value
        with_key = [(_sort_key(of(row, now)), row) for row in found]
        present = [one for one in with_key if one[0] is not None and one[0][0] >= 0]
        odd = [row for key, row in with_key if key is not None and key[0] < 0]
        missing = [row for key, row in with_key if key is None]
        present.sort(key=lambda one: one[0], reverse=reverse)  # type: ignore[arg-type, return-value]
        found = [row for _, row in present] + odd + missing
    return found


def _sort_key(value: Any) -> tuple[int, float, str] | None:
    """Return the sort key of a value: numbers before texts; NaN has -1, it is neither large nor small."""
    if value is None or value == "" or value == []:
        return None
    if isinstance(value, int | float):
        number = float(value)
        return (-1, 0.0, "") if math.isnan(number) else (0, number, "")
    if isinstance(value, list):
        value = ", ".join(value)
    return (1, 0.0, str(value).lower())


def grouped(
    rows: Sequence[TableRun], by: tuple[Column, bool] | None, now: float
) -> tuple[list[TableRun], list[RunGroup]]:
    """Return the runs so that equal ones in a column stand together, in their order, and the groups."""
    if by is None:
        return list(rows), []
    column, reverse = by
    together = dict[str, list[TableRun]]()
    keys = dict[str, tuple[int, float, str] | None]()
    for row in rows:
        value = column.value(row, now)
        label = label_of(column, row, value)
        together.setdefault(label, []).append(row)
        keys.setdefault(label, _sort_key(value))
    present = sorted((one for one in together if keys[one] is not None), key=lambda one: keys[one], reverse=reverse)  # type: ignore[arg-type, return-value]
    groups, found = list[RunGroup](), list[TableRun]()
    for label in [*present, *(one for one in together if keys[one] is None)]:
        some = together[label]
        groups.append(RunGroup(label, len(found), len(some), conditions_of(some)))
        found += some
    return found, groups


#: Longest filter, characters: it is part of the page's address.
MAX_CHARS = 2_000

Operator = Literal["has", ":", "!=", "<", "<=", ">", ">="]
#: The longer ones first: ``<=`` is not ``<`` with a value that begins with ``=``.
_OPERATOR = re.compile(r"<=|>=|!=|==|[:=<>]")
_BARE = re.compile(r'[^\s"]')
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
#: Suffixes of a number. B is a billion, as in "7B parameters".
_SCALES = {"": 1.0, "%": 0.01, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_WORDS = {
    "nan": math.nan, "inf": math.inf, "+inf": math.inf, "-inf": -math.inf, "infinity": math.inf,
    "+infinity": math.inf, "-infinity": -math.inf,
}  # fmt: skip
_SECONDS = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


@dataclass(frozen=True, slots=True)
class Term:
    """One condition.

    Attributes:
        key: "" where a word is looked for.
        values: of which one has to fit; of a comparison one.
        wrong: a run fits where the condition does not hold.
        at: where the term begins in the text, from 0.
        text: as it was given.
        quoted: the value stood in quotes: ``*`` in it is a star.
    """

    key: str
    operator: Operator
    values: tuple[str, ...]
    wrong: bool
    at: int
    text: str
    quoted: bool = False


def refusal(text: str, at: int, why: str, possible: str) -> BadRequest:
    """Return the refusal of a filter that breaks at a position: the input, the position, the possible terms."""
    there = f"at character {at + 1}, {text[at : at + 40]!r}" if at < len(text) else "at its end"
    return BadRequest(
        f"q is {text[:200]!r}, which breaks {there}: {why}", hint=possible, code="bad_filter", at=at, why=why
    )


def parse(text: str) -> list[Term]:
    """Return the terms of a filter, [] of an empty one.

    Raises:
        BadRequest: ``bad_filter``: it is no filter; the message has the position, the hint the possible terms.
    """
    if len(text) > MAX_CHARS:
        raise BadRequest(
            f"q has {len(text)} characters, expected at most {MAX_CHARS}",
            hint="leave some of it out",
            code="bad_filter",
        )
    terms, at = list[Term](), 0
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        if at >= len(text):
            return terms
        term, at = _term(text, at)
        terms.append(term)


def _term(text: str, begin: int) -> tuple[Term, int]:
    at, wrong = begin, False
    if text[at] == "-" and at + 1 < len(text) and not text[at + 1].isspace():
        at, wrong = at + 1, True
    key, quoted, at = _piece(text, at, ends_at_operator=True)
    sign = _OPERATOR.match(text, at)
    if sign is None:
        if not key:
            raise refusal(text, begin, "a word is empty", "write a word, key:value or key>number, e.g. state:sick")
        return Term("", "has", (key,), wrong, begin, text[begin:at], quoted), at
    if not key:
        raise refusal(text, at, f"there is nothing before {sign[0]!r}", "write a key before it, e.g. loss<2")
    operator = {"=": ":", "==": ":"}.get(sign[0], sign[0])
    at = sign.end()
    values, starred = list[str](), True
    while True:
        value, in_quotes, after = _piece(text, at, ends_at_operator=False, ends_at_comma=True)
        if not value and not in_quotes:
            raise refusal(text, at, f"{key!r} has no value", f"write one behind {operator!r}; {key}:none finds none")
        values.append(value)
        starred, at = starred and not in_quotes, after
        if at >= len(text) or text[at] != ",":
            break
        at += 1
    if operator not in (":", "!=") and len(values) > 1:
        raise refusal(text, begin, f"{operator!r} compares with one number", f"write {key}{operator}{values[0]}")
    assert operator in get_args(Operator)
    return Term(key, operator, tuple(values), wrong, begin, text[begin:at], not starred), at  # type: ignore[arg-type]


def _piece(text: str, at: int, *, ends_at_operator: bool, ends_at_comma: bool = False) -> tuple[str, bool, int]:
    """Return a bare or quoted piece of a term, whether it was quoted, and where it ends."""
    if at < len(text) and text[at] == '"':
        found, place = list[str](), at + 1
        while place < len(text) and text[place] != '"':
            if text[place] == "\\" and place + 1 < len(text):
                place += 1
            found.append(text[place])
            place += 1
        if place >= len(text):
            raise refusal(text, at, "a quote is not closed", 'close it with ", or write \\" for a quote in a name')
        return "".join(found), True, place + 1
    end = at
    while end < len(text) and _BARE.match(text, end):
        if ends_at_operator and _OPERATOR.match(text, end):
            break
        if ends_at_comma and text[end] == ",":
            break
        end += 1
    return text[at:end], False, end


def number(text: str) -> float | None:
    """Return the number that a value is, None where it is none.

    Example:
        >>> number("3e-4"), number("1.5B"), number("90%"), number("nan?")
        (0.0003, 1500000000.0, 0.9, None)
    """
    word = _WORDS.get(text.lower())
    if word is not None:
        return word
    match = _NUMBER.match(text)
    scale = None if match is None else _SCALES.get(text[match.end() :])
    return None if match is None or scale is None else float(match[0]) * scale


def duration(text: str) -> float | None:
    """Return the seconds of a duration, None where it is none; a bare number is seconds.

    Example:
        >>> duration("2h"), duration("90"), duration("1.5d"), duration("soon")
        (7200.0, 90.0, 129600.0, None)
    """
    match = _NUMBER.match(text)
    scale = None if match is None else _SECONDS.get(text[match.end() :].lower() or "s")
    return None if match is None or scale is None else float(match[0]) * scale


#: Values of ``state:`` besides conditions, phases and statuses.
SEVERITIES = ("critical", "warning")
_COMPARE: dict[str, Callable[[float, float], bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge}
_Fits = Callable[[TableRun, float], bool]


class Filter:
    """A filter, ready to be asked.

    Args:
        text: see ``grammar``. Raises BadRequest, ``bad_filter``, where it is none.

    Attributes:
        keys: that it names and that no built-in column has.
    """

    def __init__(self, text: str) -> None:
        terms = parse(text)
        self._fits = [_compiled(term, text) for term in terms]
        columns = [column_of(term.key) for term in terms if term.key]
        self.keys = list(dict.fromkeys(one.key for one in columns if one.kind == "any" or "." in one.key))

    def of(self, rows: Iterable[TableRun], now: float) -> list[TableRun]:
        """Return the runs that fit, at ``now``, unix seconds."""
        found = list(rows)
        for fits in self._fits:
            found = [row for row in found if fits(row, now)]
        return found


def _compiled(term: Term, text: str) -> _Fits:
    fits = _word(term) if not term.key else _state(term, text) if term.key == "state" else _key(term, text)
    if term.wrong != (term.operator == "!="):
        return lambda row, now: not fits(row, now)
    return fits


def _word(term: Term) -> _Fits:
    word = term.values[0].lower()
    return lambda row, now: word in row.text


def _state(term: Term, text: str) -> _Fits:
    possible = tuple(dict.fromkeys((*get_args(RunCondition), *SEVERITIES, *PHASE_APPEARANCES, *STATUSES)))
    if term.operator not in (":", "!="):
        raise refusal(text, term.at, "a state is no number", "write state: and one of " + ", ".join(possible))
    wanted = {value.lower() for value in term.values}
    unknown = sorted(wanted.difference(possible))
    if unknown:
        raise refusal(text, term.at, f"there is no state {unknown[0][:60]!r}", "possible: " + ", ".join(possible))

    def fits(row: TableRun, now: float) -> bool:
        state, worst = row.run.state, row.run.worst_incident
        states = {state.condition, row.run.status, state.phase, worst.severity if worst else ""}
        return not wanted.isdisjoint(states)

    return fits


def _key(term: Term, text: str) -> _Fits:
    column = column_of(term.key)
    if term.operator in _COMPARE:
        return _comparison(term, column, text)
    one_of = [_equal(value, column, term, text) for value in term.values]
    of = column.value

    def fits(row: TableRun, now: float) -> bool:
        value = of(row, now)
        return any(equal(value) for equal in one_of)

    return fits


def _comparison(term: Term, column: Column, text: str) -> _Fits:
    given = term.values[0]
    if column.kind == "age":
        limit, possible = duration(given), f"write a time, e.g. {term.key}{term.operator}2h (s, min, h, d, w)"
    else:
        limit, possible = number(given), f"write a number, e.g. {term.key}{term.operator}3e-4 (also 10k, 1.5B, 90%)"
    if column.kind in ("text", "tags"):
        raise refusal(text, term.at, f"{term.key} is text, not a number", f"write {term.key}:{given}")
    if limit is None:
        raise refusal(text, term.at, f"{given[:60]!r} is no {'time' if column.kind == 'age' else 'number'}", possible)
    compare, of, than = _COMPARE[term.operator], column.value, limit

    def fits(row: TableRun, now: float) -> bool:
        value = of(row, now)
        return isinstance(value, int | float) and not isinstance(value, bool) and compare(value, than)

    return fits


def _equal(value: str, column: Column, term: Term, text: str) -> Callable[[Any], bool]:
    """Return whether a run's value is this one."""
    lower = value.lower()
    if lower == "none" and not term.quoted:
        return lambda found: found is None or found == [] or found == ""
    if value == "*" and not term.quoted:
        return lambda found: found is not None and found != [] and found != ""
    wanted = duration(value) if column.kind == "age" else number(value)
    if wanted is None and column.kind in ("count", "number", "share", "age"):
        raise refusal(
            text, term.at, f"{value[:60]!r} is no number", f"write {term.key}:1000, {term.key}>1000 or {term.key}:none"
        )
    like = _like(value, column.inside, term.quoted)

    def equal(found: Any) -> bool:
        if isinstance(found, bool):
            return lower == ("true" if found else "false")
        if isinstance(found, int | float):
            return wanted is not None and _same(float(found), wanted)
        if isinstance(found, str):
            return like(found)
        return isinstance(found, Sequence) and any(like(str(one)) for one in found)

    return equal


def _same(found: float, wanted: float) -> bool:
    if math.isnan(wanted):
        return math.isnan(found)
    return found == wanted or math.isclose(found, wanted, rel_tol=1e-9)


def _like(value: str, inside: bool, quoted: bool) -> Callable[[str], bool]:
    lower = value.lower()
    if "*" in lower and not quoted:
        # Each piece is looked for behind the one before: as a regular expression it could take for ever.
        first, *middle, last = lower.split("*")
        return lambda found: _pieces(found.lower(), first, middle, last)
    if inside:
        return lambda found: lower in found.lower()
    return lambda found: found.lower() == lower


def _pieces(found: str, first: str, middle: Sequence[str], last: str) -> bool:
    if not found.startswith(first) or not found.endswith(last) or len(found) < len(first) + len(last):
        return False
    at, end = len(first), len(found) - len(last)
    for piece in middle:
        place = found.find(piece, at, end)
        if place < 0:
            return False
        at = place + len(piece)
    return True


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
        """Return names, types and values of some columns; a column that no run has is marked as gone."""
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


#: Rows of one answer; columns in addition to the built-in ones.
MAX_LIMIT, MAX_COLUMNS = 5_000, 40
#: Seconds between two queries of Redis for changes of runs that this process does not follow.
ASK_EVERY_S = 0.25
#: Times in the index are those of frames, and some seconds late: changes are read so far back, seconds.
SLACK_S = 30.0
#: An order is the same for all who ask within this time, seconds.
SHARED_S = 1.0
#: Orders that are kept for those who page through them. One of 5,000 runs takes 40 KiB.
MAX_ORDERS = 64


@dataclass(frozen=True)
class TableQuery:
    """Request of a table. Fields: docs/api.md."""

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
    """Answers requests for the table of the runs.

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
        #: Time of the last request, unix seconds.
        self.used = float("-inf")

    # --- requests ------------------------------------------------------------------------------------------------

    async def table(
        self, query: TableQuery, columns: Sequence[str], offset: int, limit: int, order: str | None = None
    ) -> RunTable:
        """Return some rows, of a new order, or of one that an answer named.

        Raises:
            BadRequest: the filter, a column, a place or an order is none.
            Conflict: ``order_gone``: the order is too old; nothing is left out silently, the caller begins again.
            Unavailable: Redis is away, and no row is in memory.
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
        """Return a new order, or one of the last moment, or one in progress for the same request."""
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
        """Bring the rows up to date; concurrent callers wait for the same pass.

        Raises:
            Unavailable: Redis is away, and no row is in memory.
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
                    raise  # else the rows in memory are shown, and ``storing`` reports that Redis is away

    def _take_followed(self) -> None:
        for run_id, worker in self._manager.followed().items():
            run = worker.listing.run
            known = self._rows.get(run_id)
            if known is None:
                continue  # a new one: the index has it, with its digest
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
        changed |= self._followed - followed  # no longer followed: the stored state is the newest
        # Not by their number alone: one new run and one deleted run leave it unchanged.
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

    # --- digests of the points -----------------------------------------------------------------------------------

    def row(self, run_id: str) -> TableRun | None:
        """Return a run as the table has it."""
        return self._rows.get(run_id)

    def rows(self) -> list[TableRun]:
        """Return all runs as the table has them."""
        return list(self._rows.values())

    def digested(self, run_id: str, digest: RunDigest) -> None:
        """Take over the digest of a run's points."""
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
